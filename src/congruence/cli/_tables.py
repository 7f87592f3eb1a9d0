"""Results with a line an item as a file: a table in CSV or Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def check_table_name(out: str, flag: str) -> None:
    """Refuse a name that is neither of a CSV nor of a Parquet file. Raises ParameterError."""
    from congruence.errors import ParameterError

    if not out.lower().endswith((".csv", ".parquet")):
        raise ParameterError(f"Got {flag} {out}; expected a .csv or a .parquet. Pass {flag} rows.csv.")


def write_table(table: pa.Table, out: str, *, force: bool) -> None:
    """Write a table whole or not at all, in the format that its name says."""
    import pyarrow.csv
    import pyarrow.parquet

    from congruence._utils.atomic import atomic_path

    # Opened here, so that a refusal of the system is told in its own words and not in Arrow's.
    with atomic_path(out, force=force) as temporary, open(temporary, "wb") as file:
        if out.lower().endswith(".csv"):
            pyarrow.csv.write_csv(table, file)
        else:
            pyarrow.parquet.write_table(table, file)
