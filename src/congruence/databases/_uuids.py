"""Convert UUIDs in Arrow arrays to text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["is_uuids", "uuid_texts"]

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)

#: Positions of the 32 digits among the 36 characters; the others are dashes.
_DIGIT_POSITIONS = np.array([k for k in range(36) if k not in (8, 13, 18, 23)])


def is_uuids(kind: pa.DataType) -> bool:
    """Return whether a type holds UUIDs: Arrow's extension type, or 16 bytes of fixed size."""
    return bool(kind == pa.uuid() or (pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16))


def uuid_texts(column: pa.Array) -> pa.Array:
    """Convert UUIDs to text.

    Parameters
    ----------
    column : pyarrow.Array, shape (b,)
        UUIDs, without nulls.

    Returns
    -------
    pyarrow.Array of large_string, shape (b,)
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    n = len(column)
    raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 : (column.offset + n) * 16].reshape(n, 16)
    digits = np.stack([_DIGITS[raw >> 4], _DIGITS[raw & 15]], axis=2).reshape(n, 32)
    text = np.full((n, 36), ord("-"), np.uint8)
    text[:, _DIGIT_POSITIONS] = digits
    ends = pa.py_buffer(np.arange(n + 1, dtype=np.int64) * 36)
    return pa.Array.from_buffers(pa.large_string(), n, [None, ends, pa.py_buffer(text)])
