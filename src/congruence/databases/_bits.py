"""Bits of a vector in bytes, and as the numbers 1 and -1."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

__all__ = ["BitOrder", "pack", "unpack"]

#: Which bit of a byte is the first component: the highest, as in NumPy and PostgreSQL, or the lowest, as in sqlite-vec.
BitOrder: TypeAlias = Literal["big", "little"]


def pack(vectors: np.ndarray, order: BitOrder = "big") -> np.ndarray:
    """Return ndarray of uint8, shape (b, ceil(dim / 8)): 1 where a number of shape (b, dim) is above 0."""
    return np.packbits(vectors > 0, axis=1, bitorder=order)


def unpack(packed: np.ndarray, dim: int, order: BitOrder = "big") -> np.ndarray:
    """Return ndarray of float32, shape (b, dim): 1 and -1, from bytes of shape (b, ceil(dim / 8))."""
    bits = np.unpackbits(packed, axis=1, count=dim, bitorder=order).astype(np.float32)
    bits *= 2
    bits -= 1
    return bits
