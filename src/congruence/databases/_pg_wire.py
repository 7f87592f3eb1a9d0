"""Vectors in PostgreSQL's binary format: what COPY takes, and what a binary cursor gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from congruence.databases._bits import pack, unpack
from congruence.errors import DatabaseError

__all__ = ["INT_TYPES", "copy_stream", "decode_vectors"]

#: Widths of the types of integer ids.
INT_TYPES = {"int2": ">i2", "int4": ">i4", "int8": ">i8"}

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"

#: The numbers of a vector and of a halfvec, big-endian, behind two 16-bit integers: the width, and zero.
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}


def decode_vectors(values: Sequence[bytes], kind: str, place: str) -> np.ndarray:
    """Read vectors as a binary cursor gives them.

    Parameters
    ----------
    values : sequence of bytes, length b
        One a row, none of them NULL.
    kind : {"vector", "halfvec", "bit"}
    place : str
        For messages.

    Returns
    -------
    ndarray of float32, shape (b, dim)
        Bits as 1 and -1.

    Raises
    ------
    DatabaseError
        The rows have several widths, which a column declared without one may hold.
    """
    if kind == "bit":  # the number of bits, which a column's type fixes, then the bits
        rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        return unpack(rows[:, 4:], int.from_bytes(values[0][:4], "big"))
    number = np.dtype(_NUMBERS[kind])
    widths = {len(value) for value in values}
    if len(widths) > 1:
        dims = " and ".join(str((width - 4) // number.itemsize) for width in sorted(widths)[:2])
        raise DatabaseError(
            f"Got vectors of {dims} dimensions in {place}; expected one width. Choose the rows of one width by a condition (rows=)."
        )
    bytes_of_rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    return np.ascontiguousarray(bytes_of_rows[:, 4:]).view(number).astype(np.float32)


def copy_stream(ids: pa.Array, vectors: np.ndarray, id_kind: str, kind: str) -> bytes:
    """Write rows of an id and a vector as COPY … FROM STDIN (FORMAT BINARY) reads them.

    Parameters
    ----------
    ids : pyarrow.Array, shape (b,)
    vectors : ndarray of float32, shape (b, dim)
    id_kind : {"int2", "int4", "int8", "uuid", "text", "varchar"}
    kind : {"vector", "halfvec", "bit"}
        A bit is 1 where a number is above 0.

    Returns
    -------
    bytes
    """
    b, dim = vectors.shape
    fixed: np.ndarray | None = None
    if id_kind in INT_TYPES:
        fixed = np.asarray(ids.to_numpy(zero_copy_only=False)).astype(INT_TYPES[id_kind])[:, None].view(np.uint8)
    elif id_kind == "uuid":
        digits = "".join(ids.to_pylist()).replace("-", "")
        fixed = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(b, 16)
    head = [] if fixed is None else [("n", ">i2"), ("id_bytes", ">i4"), ("id", np.uint8, (fixed.shape[1],))]
    if kind == "bit":
        width = -(-dim // 8)
        rows = np.empty(b, np.dtype([*head, ("bytes", ">i4"), ("bits", ">i4"), ("vector", np.uint8, (width,))]))
        rows["bytes"], rows["bits"], rows["vector"] = 4 + width, dim, pack(vectors)
    else:
        number = np.dtype(_NUMBERS[kind])
        tail = [("bytes", ">i4"), ("dim", ">u2"), ("zero", ">u2"), ("vector", number, (dim,))]
        rows = np.empty(b, np.dtype([*head, *tail]))
        rows["bytes"], rows["dim"], rows["zero"] = 4 + dim * number.itemsize, dim, 0
        with np.errstate(over="ignore"):  # what does not fit a half is infinite, and refused by the server
            rows["vector"] = vectors
    if fixed is not None:
        rows["n"], rows["id_bytes"], rows["id"] = 2, fixed.shape[1], fixed
        return _HEADER + rows.tobytes() + _TRAILER
    data, width = memoryview(rows.tobytes()), rows.itemsize
    parts: list[bytes | memoryview] = [_HEADER]
    for k, text in enumerate(ids.to_pylist()):
        one = text.encode()
        parts += (b"\0\2", len(one).to_bytes(4, "big"), one, data[k * width : (k + 1) * width])
    parts.append(_TRAILER)
    return b"".join(parts)
