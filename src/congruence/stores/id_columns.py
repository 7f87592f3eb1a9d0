"""Which columns of a file of vectors could hold its ids."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.validation import shorten
from congruence.errors import CongruenceError
from congruence.stores._base import reading
from congruence.stores._ids import column_ids
from congruence.stores.formats import find_column_format, is_folder, suffixes

__all__ = ["id_columns", "id_fault", "usual_id_column"]

#: Names by which ids are found when none is given, in this order.
USUAL_NAMES = ("id", "ids", "names")

_NOT_WHOLE = "it holds numbers that are not whole"
_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)", re.I)


def id_columns(path: str | Path, key: str | None, n: int) -> list[str]:
    """Name the columns or keys that could hold ids: text or whole numbers, an entry a row, no entry twice.

    Parameters
    ----------
    path : path-like
        A file of vectors. A folder has none: its ids stand in several files.
    key : str or None
        Key or column of the vectors; for ``.csv`` the prefix of their columns' names.
    n : int
        Rows.

    Returns
    -------
    list of str
        In the file's order; empty for formats that hold one array.

    Raises
    ------
    FileError, CorruptFileError
        If a file cannot be read, or a file is damaged.
    """
    return [name for name in _candidates(path, key, n) if not id_fault(path, name)]


def usual_id_column(path: str | Path, key: str | None, n: int) -> str | None:
    """Return the first of :data:`USUAL_NAMES` that names a column with an entry a row, whatever it holds, or None.

    Raises
    ------
    FileError, CorruptFileError
        If a file cannot be read, or a file is damaged.
    """
    there = _candidates(path, key, n)
    return next((name for name in USUAL_NAMES if name in there), None)


def id_fault(path: str | Path, name: str) -> str | None:
    """Say why a column cannot serve as ids, or None if it can."""
    try:
        read = find_column_format(path).read_column
        assert read is not None
        column = read(str(path), name)
        if not isinstance(column, np.ndarray) and pa.types.is_floating(column.type) and not column.null_count:
            return _NOT_WHOLE
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            return _NOT_WHOLE
        ids = column_ids(column, f"{path}:{name}").to_pylist()
    except CongruenceError as error:
        return str(error)
    # No number is longer, and a pattern may take time quadratic in a text.
    short = [entry for entry in ids if isinstance(entry, str) and len(entry) <= 64]
    if any(_NUMBER.fullmatch(entry) and not _WHOLE.fullmatch(entry) for entry in short):
        return _NOT_WHOLE
    entry, count = Counter(ids).most_common(1)[0] if ids else ("", 0)
    return f"it holds {shorten(repr(str(entry)))} {count} times" if count > 1 else None


def _candidates(path: str | Path, key: str | None, n: int) -> list[str]:
    """Return names of one-dimensional columns with an entry a row, the vectors' own left out."""
    suffix = Path(path).suffix.lower()
    if is_folder(path) or suffix not in suffixes(lambda one: one.read_column is not None and one.key is not None):
        return []
    shapes = find_column_format(path).shapes
    if shapes is not None:
        return [name for name, shape in shapes(str(path)).items() if shape == (n,)]
    with reading(path, UnicodeDecodeError), open(path, newline="", encoding="utf-8-sig") as stream:
        if suffix == ".csv":
            header = next(csv.reader(stream), [])
            # Without a prefix every other column is a dimension of the vectors.
            return (
                [name for name in header if not name.startswith(key)]
                if key
                else [n for n in header if n in USUAL_NAMES]
            )
        record = json.loads(next((line for line in stream if line.strip()), "{}"))
    return [name for name, value in record.items() if type(value) in (str, int)]
