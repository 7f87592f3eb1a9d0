"""Write wrong captions to a file."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.errors import CongruenceWarning, ShapeError
from congruence.persist import atomic_path
from congruence_papers.core import check_choice, check_same_rows
from congruence_papers.negatives.generation import Negative

COLUMNS = ("id", "caption", "negative", "kind")
SUFFIXES = (".csv", ".jsonl", ".parquet")


def write_negatives(
    negatives: Sequence[Negative], path: str | Path, ids: Sequence[str] | None = None, *, force: bool = False
) -> None:
    """Write wrong captions to a table, atomically.

    Parameters
    ----------
    negatives : sequence of Negative
    path : path-like
        ``.csv``, ``.jsonl`` or ``.parquet``, with the columns ``id``, ``caption``, ``negative`` and ``kind``.
    ids : sequence of str, optional
        Ids of the original captions; row numbers by default.
    force : bool, default=False
        Replace existing output.

    Raises
    ------
    ParameterError
        If the suffix is not supported.
    ShapeError
        If there are no negatives, or fewer ids than captions.
    OutputExistsError, FileError, StorageError
        If the output exists, its parent folder is missing, or it cannot be written.

    Warns
    -----
    CongruenceWarning
        If a spreadsheet would evaluate ids or captions in a ``.csv`` as formulas. They are written unchanged, so that
        they can be read back.
    """
    suffix = check_choice(Path(path).suffix.lower(), SUFFIXES, "suffix of the output")
    if not negatives:
        raise ShapeError("No negatives.", "Pass captions in English, or more `kinds=…`.")
    last = max(negative.row for negative in negatives)
    if ids is not None and last >= len(ids):
        check_same_rows(last + 1, len(ids), "captions", "ids")
    rows = [(str(n.row) if ids is None else str(ids[n.row]), n.caption, n.negative, n.kind) for n in negatives]
    risky = sum(any(cell.lstrip().startswith(("=", "+", "-", "@")) for cell in row) for row in rows)
    if suffix == ".csv" and risky:
        warnings.warn(
            CongruenceWarning(
                f"Got {risky} of {len(rows)} rows with a cell that begins with =, +, - or @; expected words, since a "
                "spreadsheet evaluates such cells as formulas.",
                "Write .jsonl or .parquet, or import the .csv as text.",
            ),
            stacklevel=2,
        )
    with atomic_path(path, force=force) as temporary:
        if suffix == ".parquet":
            columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
            table = pa.table({name: pa.array(column, pa.string()) for name, column in columns.items()})
            pq.write_table(table, temporary)
            return
        with open(temporary, "w", newline="", encoding="utf-8") as stream:
            if suffix == ".csv":
                writer = csv.writer(stream)
                writer.writerow(COLUMNS)
                writer.writerows(rows)
            else:
                for row in rows:
                    stream.write(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n")
