"""Conversion between packed bits and vectors of 1 and -1."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

__all__ = ["BitOrder", "pack", "unpack"]

#: Which bit of a byte holds the first component: the highest ("big"), as in NumPy and PostgreSQL, or the lowest ("little"), as in sqlite-vec.
BitOrder: TypeAlias = Literal["big", "little"]


def pack(vectors: np.ndarray, order: BitOrder = "big") -> np.ndarray:
    """Pack vectors, shape (b, dim), into bits, ndarray of uint8, shape (b, ceil(dim / 8)): 1 for components above 0."""
    return np.packbits(vectors > 0, axis=1, bitorder=order)


def unpack(packed: np.ndarray, dim: int, order: BitOrder = "big") -> np.ndarray:
    """Unpack bits, shape (b, ceil(dim / 8)), into vectors of 1 and -1, ndarray of float32, shape (b, dim)."""
    bits = np.unpackbits(packed, axis=1, count=dim, bitorder=order).astype(np.float32)
    bits *= 2
    bits -= 1
    return bits
