"""Write results with one line per item to a CSV or Parquet file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def check_table_name(out: str, flag: str) -> None:
    """Raise ParameterError if a name ends in neither .csv nor .parquet."""
    from congruence.errors import ParameterError

    if not out.lower().endswith((".csv", ".parquet")):
        raise ParameterError(
            f"Got {flag} {out}; expected a .csv or .parquet file.", f"Pass {flag} rows.csv, for example."
        )


def write_table(table: pa.Table, out: str, *, force: bool) -> None:
    """Write a table atomically, in the format that its name specifies."""
    import pyarrow.csv
    import pyarrow.parquet

    from congruence._utils.atomic import atomic_path

    # Opened here, so that errors of the operating system are reported in its own words and not in Arrow's.
    with atomic_path(out, force=force) as temporary, open(temporary, "wb") as file:
        if out.lower().endswith(".csv"):
            pyarrow.csv.write_csv(table, file)
        else:
            pyarrow.parquet.write_table(table, file)
