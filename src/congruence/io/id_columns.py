"""The columns of a file that could hold its ids."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence.errors import CongruenceError
from congruence.io.formats import find_column_format, is_folder, suffix_of, suffixes
from congruence.io.ids import column_ids

#: Usual names of id columns, in the order in which they are tried.
USUAL_NAMES = ("id", "ids", "names")

#: Suffixes of text with a header and cells.
_CELLS = (".csv", ".tsv")

_NOT_WHOLE = "it contains numbers that are not whole"
_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+(?:\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)", re.I)


def id_columns(path: str | Path, key: str | None, n: int) -> list[str]:
    """Return the columns or keys that could hold ids: text or whole numbers, one entry per row, without duplicates.

    ``key`` is the vectors' (for ``.csv`` their prefix). Empty for a folder, and for formats that hold only one array.
    """
    return [name for name in _candidates(path, key, n) if not id_fault(path, name)]


def usual_id_column(path: str | Path, key: str | None, n: int) -> str | None:
    """Return the first of ``USUAL_NAMES`` that is a column with one entry per row."""
    candidates = _candidates(path, key, n)
    return next((name for name in USUAL_NAMES if name in candidates), None)


def id_fault(path: str | Path, name: str) -> str | None:
    """Return why a column cannot serve as ids, or None if it can."""
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
    # Numbers are shorter, and matching a pattern may take quadratic time.
    brief = [entry for entry in ids if isinstance(entry, str) and len(entry) <= 64]
    if any(_NUMBER.fullmatch(entry) and not _WHOLE.fullmatch(entry) for entry in brief):
        return _NOT_WHOLE
    entry, count = Counter(ids).most_common(1)[0] if ids else ("", 0)
    return f"it contains {short(repr(str(entry)))} {count} times" if count > 1 else None


def _candidates(path: str | Path, key: str | None, n: int) -> list[str]:
    """Return the names of one-dimensional columns with one entry per row, without those of the vectors."""
    suffix = suffix_of(path)
    listed = suffixes(lambda one: one.read_column is not None and bool(one.shapes or one.listing))
    if is_folder(path) or suffix not in listed:
        return []
    shapes = find_column_format(path).shapes
    if shapes is not None:
        return [name for name, shape in shapes(str(path)).items() if shape == (n,)]
    held = find_column_format(path).listing(path)
    if suffix in _CELLS:  # without a prefix, all other columns are dimensions of the vectors
        return [name for name in held if (not name.startswith(key) if key else name in USUAL_NAMES)]
    return [name for name, kind in held.items() if kind in ("text", "number")]
