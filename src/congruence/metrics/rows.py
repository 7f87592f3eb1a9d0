"""Checks and normalization of rows that are compared by their directions."""

from __future__ import annotations

from typing import overload

import numpy as np

from congruence._utils.arrays import namespace, to_numpy
from congruence._utils.typing import Array
from congruence.errors import ShapeError, ZeroRowError

__all__ = ["check_same_width", "unit"]


def check_same_width(A: np.ndarray, B: np.ndarray) -> None:
    """Check that two matrices, shapes (n, d) and (m, d), have the same width, as vectors of one space do.

    Raises
    ------
    ShapeError
        If the widths differ.
    """
    if A.shape[1] != B.shape[1]:
        raise ShapeError(
            f"Got widths {A.shape[1]} and {B.shape[1]}; expected vectors of one space. Map one side into the other space first."
        )


@overload
def unit(A: np.ndarray, name: str) -> np.ndarray: ...
@overload
def unit(A: Array, name: str) -> Array: ...
def unit(A: Array, name: str) -> Array:
    """Return the rows of A scaled to unit norm, shape (n, d), in its dtype.

    Parameters
    ----------
    A : ndarray or tensor, shape (n, d)
    name : str
        Name of the argument, for error messages.

    Raises
    ------
    ZeroRowError
        If a row is all zeros, since it has no direction.
    """
    # Dividing by the largest entry first prevents overflow and underflow of the squares.
    xp = namespace(A)
    top = xp.max(xp.abs(A), axis=1, keepdims=True)
    if not xp.all(top):
        rows = to_numpy(xp.nonzero(top[:, 0] == 0)[0])
        raise ZeroRowError(
            f"Got a row of zeros in {name} (row {rows[0]}); expected rows with a direction, which a cosine needs. Drop such rows."
        )
    scaled = A / top
    return scaled / xp.sqrt(xp.einsum("ij,ij->i", scaled, scaled))[:, None]
