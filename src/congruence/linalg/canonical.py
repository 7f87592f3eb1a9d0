"""Canonical correlations from the singular value decompositions of both sides, shared by the maps and the metrics."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple, overload

import numpy as np

from congruence._utils.arrays import NUMPY
from congruence._utils.typing import Array, ArrayNamespace
from congruence.linalg.procrustes import cross_svd

__all__ = ["Canonical", "canonical_correlations", "canonical_directions", "gains", "whiten"]


class Canonical(NamedTuple):
    """Canonical directions of two sides.

    Attributes
    ----------
    x_directions : ndarray of float64, shape (d_x, k)
        Directions as columns; the rows times these are the whitened variates.
    y_directions : ndarray of float64, shape (d_y, k)
    correlations : ndarray of float64, shape (k,)
        In descending order, at most 1.
    rank : int
        Number of correlations above rounding error.
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

    Parameters
    ----------
    xp : module
        Array namespace of ``s``.
    s : array, shape (r,)
        Singular values of a side's rows, all positive.
    ridge : float or 0-d array
        λ, added to the squared singular values.

    Returns
    -------
    array, shape (r,)
    """
    return s / xp.sqrt(s * s + ridge)


def whiten(U: np.ndarray, s: np.ndarray, Vt: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the whitened rows of A = U diag(s) Vᵀ, and the whitening matrix: (AᵀA + λI)^(−1/2) in the basis of the row space.

    Uses the singular values of the rows themselves: those of the Gram matrix would lose half the digits.

    Parameters
    ----------
    U : ndarray of float64, shape (n, r)
    s : ndarray of float64, shape (r,)
    Vt : ndarray of float64, shape (r, d)
    ridge : float
        λ.

    Returns
    -------
    basis : ndarray of float64, shape (n, r)
        A times the whitening matrix; its columns are orthonormal if ``ridge`` is 0.
    projection : ndarray of float64, shape (d, r)
        The whitening matrix.
    """
    return U * gains(NUMPY, s, ridge), Vt.T / np.sqrt(s * s + ridge)


def canonical_correlations(xp: ArrayNamespace, x_basis: Array, y_basis: Array) -> Array:
    """Return the canonical correlations of two whitened sides, in descending order, in [0, 1].

    Parameters
    ----------
    xp : module
        Array namespace of the bases. Gradients propagate through the result.
    x_basis, y_basis : array, shape (n, r_x) and (n, r_y)

    Returns
    -------
    array, shape (min(r_x, r_y),)

    References
    ----------
    Björck and Golub (1973), "Numerical methods for computing angles between linear subspaces".
    """
    return xp.clip(xp.linalg.svdvals(xp.matrix_transpose(x_basis) @ y_basis), 0.0, 1.0)


def canonical_directions(x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]) -> Canonical:
    """Return the canonical directions of two whitened sides.

    Parameters
    ----------
    x, y : tuple of two ndarray, shape (n, r) and (d, r)
        Basis and projection of a side, as returned by :func:`whiten`.

    Returns
    -------
    Canonical

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates". Vinod (1976), "Canonical ridge and econometrics of joint production".
    """
    svd = cross_svd(x[0].T @ y[0], scale=1.0)
    return Canonical(x[1] @ svd.U, y[1] @ svd.Vt.T, np.minimum(svd.s, 1.0), svd.rank)
