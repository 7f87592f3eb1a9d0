"""Ids and labels in files: columns of integers or of text of any length."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from congruence._utils.ids import MAX_ID_BYTES, refuse_missing, to_ids, too_long
from congruence._utils.validation import shorten
from congruence.errors import CongruenceError, IdError
from congruence.io.formats import find_column_format, is_folder, suffix_of, suffixes
from congruence.io.reading import damaged, delimiter_of, read_lines, reading

#: A plain column of a file: an Arrow column of a table, an array of numbers, or an object array of Python values.
Column: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray


_TEXT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def id_type_of(kind: pa.DataType) -> pa.DataType:
    """Return the type in which the ids of a column are passed on: int64, uint64 or string."""
    if pa.types.is_dictionary(kind):
        return id_type_of(kind.value_type)
    if not pa.types.is_integer(kind):
        return pa.string()
    return pa.uint64() if pa.types.is_uint64(kind) else pa.int64()


def common_id_type(kinds: list[pa.DataType]) -> pa.DataType:
    """Return the type for the ids of several parts: their type if it is the same in all, else text."""
    plain = {id_type_of(kind) for kind in kinds}
    return plain.pop() if len(plain) == 1 else pa.string()


def missing_ids(column: pa.Array) -> np.ndarray:
    """Return the indices of the entries of a column that are null, NaN or empty text."""
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    if values.type in _TEXT:
        import pyarrow.compute as pc  # takes long to import

        empty = pc.equal(pc.fill_null(pc.binary_length(values), 0), 0).to_numpy(zero_copy_only=False)
    else:
        empty = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if values is not column:
        places = column.indices.fill_null(len(empty)).to_numpy(zero_copy_only=False)
        empty = np.append(empty, True)[places]
    return np.flatnonzero(empty)


def clean_ids(column: pa.Array, name: str, start: int = 0) -> pa.Array:
    """Return a column (b,) of ``name`` as ids, after checking them; ``start`` is the number of its first row."""
    kind, fix = column.type, "Pass another column of ids, or convert this one."
    wrong = IdError(f"Got ids of type {kind} in {name}; expected text or integers.", fix)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (number or kind in _TEXT or pa.types.is_dictionary(kind)):
        try:
            column = column.cast(pa.string())
        except pa.ArrowException:
            raise wrong from None
    refuse_missing(start + missing_ids(column), f"ids of {name}", floats=pa.types.is_floating(kind))
    if pa.types.is_dictionary(kind):
        if column.dictionary.type in _TEXT:  # checked before decoding repeats the values in every row
            _check_lengths(column.dictionary, name, start, column.indices)
        return clean_ids(column.dictionary_decode(), name, start)
    if pa.types.is_integer(kind):
        return column.cast(id_type_of(kind))
    if number:
        raise wrong
    _check_lengths(column, name, start)
    try:
        if "binary" in str(kind):
            column = column.cast(pa.large_string() if pa.types.is_large_binary(kind) else pa.string())
        column.validate(full=True)  # a damaged page may contain bytes that are not valid UTF-8
    except pa.ArrowException as error:
        raise damaged(name, f"its ids are not text in UTF-8: {error}") from error
    return column


def _check_lengths(column: pa.Array, name: str, start: int, indices: pa.Array | None = None) -> None:
    import pyarrow.compute as pc

    lengths = pc.binary_length(column)
    sizes = (lengths if indices is None else lengths.take(indices)).to_numpy(zero_copy_only=False)
    if len(sizes) and sizes.max() > MAX_ID_BYTES:
        raise too_long(int(sizes.max()), start + int(sizes.argmax()), name)


def column_ids(column: Column, name: str) -> pa.Array:
    """Return a whole column as ids, checked as in ``clean_ids``; text as large_string."""
    if isinstance(column, np.ndarray):
        return arrow_ids(to_ids(column, f"ids of {name}"))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    starts = np.cumsum([0, *map(len, chunks)]).tolist()
    missing = [start + missing_ids(chunk) for start, chunk in zip(starts, chunks, strict=False)]
    refuse_missing(
        np.concatenate([np.empty(0, int), *missing]), f"ids of {name}", floats=pa.types.is_floating(column.type)
    )
    return join_blocks([clean_ids(chunk, name, start) for start, chunk in zip(starts, chunks, strict=False)])


def column_texts(column: Column, name: str) -> np.ndarray:
    """Return a whole column as labels, shape (n,), object array of str."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column.astype(str).astype(object)
    try:
        values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        values = [value.decode() if isinstance(value, bytes) else value for value in values]
    except (UnicodeDecodeError, pa.ArrowException) as error:  # invalid UTF-8, or dictionary indices out of range
        raise damaged(name, f"its entries are not text in UTF-8: {error}") from error
    missing = sum(value is None for value in values)
    if missing:
        raise IdError(f"Got {missing} missing entries in {name}.", "Fill the missing entries, or drop these rows.")
    return np.array([str(value) for value in values], object)


def arrow_ids(ids: np.ndarray) -> pa.Array:
    """Return ids from ``congruence._utils.ids.to_ids`` as an Arrow array of int64, uint64 or large_string."""
    return pa.array(ids, pa.large_string() if ids.dtype == object else None)


def join_blocks(blocks: list[pa.Array]) -> pa.Array:
    """Return blocks of ids as one Arrow array: integers if all blocks have the same integer type, else large_string."""
    kind = common_id_type([block.type for block in blocks])
    kind = pa.large_string() if kind == pa.string() else kind
    return pa.concat_arrays([block.cast(kind) for block in blocks]) if blocks else pa.array([], kind)


def id_array(blocks: list[pa.Array]) -> np.ndarray:
    """Return blocks of ids as one NumPy array of integers or objects, the form that Embeddings use."""
    return join_blocks(blocks).to_numpy(zero_copy_only=False)


# ------------------------------------------------------------------ columns that could hold ids

#: Usual names of id columns, in the order in which they are tried.
USUAL_NAMES = ("id", "ids", "names")

#: Suffixes of text with a header and cells.
_CELLS = (".csv", ".tsv")

_NOT_WHOLE = "it contains numbers that are not whole"
_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)", re.I)


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
    short = [entry for entry in ids if isinstance(entry, str) and len(entry) <= 64]
    if any(_NUMBER.fullmatch(entry) and not _WHOLE.fullmatch(entry) for entry in short):
        return _NOT_WHOLE
    entry, count = Counter(ids).most_common(1)[0] if ids else ("", 0)
    return f"it contains {shorten(repr(str(entry)))} {count} times" if count > 1 else None


def _candidates(path: str | Path, key: str | None, n: int) -> list[str]:
    """Return the names of one-dimensional columns with one entry per row, without those of the vectors."""
    suffix = suffix_of(path)
    if is_folder(path) or suffix not in suffixes(lambda one: one.read_column is not None and one.key is not None):
        return []
    shapes = find_column_format(path).shapes
    if shapes is not None:
        return [name for name, shape in shapes(str(path)).items() if shape == (n,)]
    record = first_record(path)
    if suffix in _CELLS:  # without a prefix, all other columns are dimensions of the vectors
        return [name for name in record if (not name.startswith(key) if key else name in USUAL_NAMES)]
    return [name for name, value in record.items() if type(value) in (str, int)]


def first_record(path: str | Path) -> dict[str, object]:
    """Return the fields of the first line of a ``.csv`` or ``.jsonl``, with their values in the latter."""
    with reading(path, ValueError, csv.Error):
        lines = read_lines(path)
        if suffix_of(path) in _CELLS:
            first = next(lines, "")
            return dict.fromkeys(next(csv.reader(chain([first], lines), delimiter=delimiter_of(first)), []))
        if suffix_of(path) == ".json":
            return dict(find_column_format(path).listing(path))
        record = json.loads(next((line for line in lines if line.strip()), "{}"))
        return record if isinstance(record, dict) else {}
