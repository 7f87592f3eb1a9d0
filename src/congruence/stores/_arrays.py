"""Stored arrays: the data types that can be read, and reading and writing the bytes of rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from congruence.errors import CorruptFileError, DtypeError, ShapeError
from congruence.stores.reading import reading


def as_column(array: np.ndarray, path: str) -> np.ndarray:
    """Return an array of labels or ids: numbers unchanged, text as an object array of str. Raises DtypeError, CorruptFileError."""
    kind = array.dtype.kind
    if kind not in "USiufb":
        raise DtypeError(
            f"Got entries of type {array.dtype} in {path}; expected text or numbers. Save the column as one of these."
        )
    if kind not in "US":
        return array
    with reading(path, UnicodeDecodeError, ValueError):  # damaged text may contain invalid characters
        if kind == "U" and (array.astype(array.dtype.newbyteorder("=")).view(np.uint32) > sys.maxunicode).any():
            raise ValueError("text with code points beyond Unicode")
        return np.array([text.decode() if kind == "S" else text for text in array.tolist()], dtype=object)


def stored_dtype(dtype: np.dtype, path: str) -> np.dtype:
    """Return the dtype in which a scan yields numbers stored as ``dtype``. Raises DtypeError."""
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return dtype.newbyteorder("=")
    if dtype.kind in "fiub":
        return np.dtype(np.float64)
    raise DtypeError(
        f"Got {'objects' if dtype.hasobject else dtype} in {path}; expected numbers. Store the vectors as float16, "
        "float32 or float64 (object arrays need pickle, which is never loaded)."
    )


def check_matrix_shape(shape: tuple[int, ...], path: str) -> tuple[int, int]:
    """Return (rows, columns) of a stored matrix, after checking its shape. Raises ShapeError, CorruptFileError."""
    if any(size < 0 for size in shape):
        raise CorruptFileError(
            f"Got an array of shape {shape} in {path}; expected nonnegative sizes. Save the file again."
        )
    if len(shape) != 2:
        raise ShapeError(
            f"Got an array of shape {tuple(shape)} in {path}; expected (items, dimensions). Pass the key of a matrix, as file:key."
        )
    if 0 in shape:
        raise ShapeError(
            f"Got an empty array of shape {tuple(shape)} in {path}; expected at least one row and column. Pass a file with vectors."
        )
    return shape[0], shape[1]


def read_exactly(stream: Any, array: np.ndarray, path: str) -> None:
    """Fill an array with the next bytes of a stream. Raises CorruptFileError if the stream ends early."""
    view = array.reshape(-1).view(np.uint8).data
    got = 0
    while got < len(view):
        count = stream.readinto(view[got:])
        if not count:
            raise CorruptFileError(
                f"Got a truncated file, {path}: {len(view) - got} bytes are missing; expected the whole array. "
                "Copy it again."
            )
        got += count


def scan_rows(
    stream: Any, n: int, dim: int, stored: np.dtype, dtype: np.dtype, batch: int, path: str
) -> Iterator[np.ndarray]:
    """Yield blocks of consecutive rows from a stream positioned at the first row."""
    for start in range(0, n, batch):
        block = np.empty((min(batch, n - start), dim), dtype=stored)
        read_exactly(stream, block, path)
        yield block if stored == dtype else block.astype(dtype)


def write_all(stream: Any, array: np.ndarray) -> None:
    """Write an array's bytes to a stream; raw files may accept only part of them per call."""
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[stream.write(view) :]
