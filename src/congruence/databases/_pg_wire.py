"""Vectors in PostgreSQL's binary format, as COPY reads and binary cursors return them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from congruence.databases._bits import pack, unpack
from congruence.errors import DatabaseError

__all__ = ["INT_TYPES", "copy_stream", "decode_vectors"]

#: NumPy types of integer ids (big-endian), by PostgreSQL type.
INT_TYPES = {"int2": ">i2", "int4": ">i4", "int8": ">i8"}

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"

#: NumPy types of the components of a vector and of a halfvec; they follow two 16-bit integers, the width and zero.
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}


def decode_vectors(values: Sequence[bytes], kind: str, place: str) -> np.ndarray:
    """Decode vectors from a binary cursor.

    Parameters
    ----------
    values : sequence of bytes, length b
        One value per row; no NULL.
    kind : {"vector", "halfvec", "bit"}
    place : str
        Name of the table, for error messages.

    Returns
    -------
    ndarray of float32, shape (b, dim)
        Bits become 1 and -1.

    Raises
    ------
    DatabaseError
        If the rows differ in width, as is possible in a column declared without a width.
    """
    if kind == "bit":  # the number of bits, which is the same in all rows of a column, then the bits
        rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        return unpack(rows[:, 4:], int.from_bytes(values[0][:4], "big"))
    number = np.dtype(_NUMBERS[kind])
    widths = {len(value) for value in values}
    if len(widths) > 1:
        dims = " and ".join(str((width - 4) // number.itemsize) for width in sorted(widths)[:2])
        raise DatabaseError(
            f"Got vectors of {dims} dimensions in {place}; expected one width. Select the rows of one width by a condition (rows=)."
        )
    bytes_of_rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    return np.ascontiguousarray(bytes_of_rows[:, 4:]).view(number).astype(np.float32)


def copy_stream(ids: pa.Array, vectors: np.ndarray, id_kind: str, kind: str) -> bytes:
    """Encode rows of an id and a vector for COPY … FROM STDIN (FORMAT BINARY).

    Parameters
    ----------
    ids : pyarrow.Array, shape (b,)
    vectors : ndarray of float32, shape (b, dim)
    id_kind : {"int2", "int4", "int8", "uuid", "text", "varchar"}
    kind : {"vector", "halfvec", "bit"}
        A bit is 1 if the component is above 0.

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
        with np.errstate(over="ignore"):  # values beyond the range of float16 become infinite, which the server refuses
            rows["vector"] = vectors
    if fixed is not None:
        rows["n"], rows["id_bytes"], rows["id"] = 2, fixed.shape[1], fixed
        return _HEADER + rows.tobytes() + _TRAILER
    data, width = memoryview(rows.tobytes()), rows.itemsize
    parts: list[bytes | memoryview] = [_HEADER]
    for k, text in enumerate(ids.to_pylist()):
        encoded = text.encode()
        parts += (b"\0\2", len(encoded).to_bytes(4, "big"), encoded, data[k * width : (k + 1) * width])
    parts.append(_TRAILER)
    return b"".join(parts)
