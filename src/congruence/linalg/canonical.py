"""Canonical correlations from the singular value decompositions of both sides, shared by the maps and the metrics."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple, overload

import numpy as np

from congruence._utils.arrays import NUMPY
from congruence._utils.typing import Array, ArrayNamespace
from congruence.linalg.procrustes import cross_svd


class Canonical(NamedTuple):
    """Canonical directions of two sides.

    ``x_directions`` (d_x, k): directions as columns; the rows times these are the whitened variates; ``y_directions``
    (d_y, k); ``correlations`` (k,): in descending order, at most 1; ``rank``: number of correlations above rounding
    error.
    """

    x_directions: np.ndarray
    y_directions: np.ndarray
    correlations: np.ndarray
    rank: int


@overload
def gains(xp: ModuleType, s: np.ndarray, ridge: float) -> np.ndarray: ...
@overload
def gains(xp: ArrayNamespace, s: Array, ridge: Array | float) -> Array: ...
def gains(xp: ArrayNamespace | ModuleType, s: Array, ridge: Array | float) -> Array:
    """Return the factor by which a ridge shrinks each singular direction: s / √(s² + λ).

    ``s`` (r,): singular values of a side's rows, all positive; ``ridge``: λ, added to the squared singular values.
    Returns (r,).
    """
    return s / xp.sqrt(s * s + ridge)


def whiten(U: np.ndarray, s: np.ndarray, Vt: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the whitened rows of A = U diag(s) Vᵀ, and (AᵀA + λI)^(−1/2) in the basis of the row space.

    Uses the singular values of the rows themselves: those of the Gram matrix would lose half the digits.

    ``U`` (n, r); ``s`` (r,); ``Vt`` (r, d). ``basis`` (n, r): A times the whitening matrix; its columns are orthonormal
    if ``ridge`` is 0; ``projection`` (d, r).
    """
    return U * gains(NUMPY, s, ridge), Vt.T / np.sqrt(s * s + ridge)


def canonical_correlations(xp: ArrayNamespace, x_basis: Array, y_basis: Array) -> Array:
    """Return the canonical correlations of two whitened sides, in descending order, in [0, 1].

    ``xp``: array namespace of the bases. Gradients propagate through the result; ``x_basis``, ``y_basis`` (n, r_x).
    Returns (min(r_x, r_y),).

    References
    ----------
    Björck and Golub (1973), "Numerical methods for computing angles between linear subspaces".
    """
    return xp.clip(xp.linalg.svdvals(xp.matrix_transpose(x_basis) @ y_basis), 0.0, 1.0)


def canonical_directions(x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]) -> Canonical:
    """Return the canonical directions of two whitened sides.

    ``x``, ``y`` (n, r): basis and projection of a side, as returned by :func:`whiten`.

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates". Vinod (1976), "Canonical ridge and econometrics of joint
    production".
    """
    svd = cross_svd(x[0].T @ y[0], scale=1.0)
    return Canonical(x[1] @ svd.U, y[1] @ svd.Vt.T, np.minimum(svd.s, 1.0), svd.rank)
