"""Apply a map to blocks of rows, with its matrix converted once for all blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from congruence.maps import AffineMap, Map

__all__ = ["block_function"]


def block_function(mapped: Map, compute: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that maps a block of rows of dtype ``compute``, shape (b, d_source) to (b, d_out), by one matrix product if the map is affine."""
    if not isinstance(mapped, AffineMap):
        return mapped.transform
    # Converted once, not for each block.
    matrix = np.ascontiguousarray(mapped.matrix, dtype=compute)
    offset = mapped.offset.astype(compute)

    def transform(block: np.ndarray) -> np.ndarray:
        out: np.ndarray = block @ matrix
        out += offset
        return out

    return transform
