"""Ids and labels in files: columns of integers or of text of any length."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from congruence._utils.ids import MAX_ID_BYTES, refuse_missing, to_ids, too_long
from congruence.errors import IdError
from congruence.io.reading import damaged

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
