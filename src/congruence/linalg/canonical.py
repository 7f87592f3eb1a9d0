"""Canonical correlations from the singular value decompositions of both sides, shared by the maps and the metrics."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple, overload

import numpy as np

from congruence._utils.arrays import NUMPY
from congruence._utils.typing import Array, ArrayNamespace
from congruence.linalg.procrustes import cross_svd


class Canonical(NamedTuple):
    """Directions of two sides as columns (d, k), their correlations (k,), descending, and how many are not rounding."""

    x_directions: np.ndarray
    y_directions: np.ndarray
    correlations: np.ndarray
    rank: int


@overload
def gains(xp: ModuleType, s: np.ndarray, ridge: float) -> np.ndarray: ...
@overload
def gains(xp: ArrayNamespace, s: Array, ridge: Array | float) -> Array: ...
def gains(xp: ArrayNamespace | ModuleType, s: Array, ridge: Array | float) -> Array:
    """Return s / √(s² + λ), by which a ridge λ shrinks the directions of the singular values ``s`` (r,)."""
    return s / xp.sqrt(s * s + ridge)


def whiten(U: np.ndarray, s: np.ndarray, Vt: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the whitened rows (n, r) of A = U diag(s) Vᵀ, and the matrix (d, r), (AᵀA + λI)^(−1/2)."""
    return U * gains(NUMPY, s, ridge), Vt.T / np.sqrt(s * s + ridge)


def canonical_correlations(xp: ArrayNamespace, x_basis: Array, y_basis: Array) -> Array:
    """Return the canonical correlations of two whitened sides (n, r), in descending order (Björck and Golub 1973)."""
    return xp.clip(xp.linalg.svdvals(xp.matrix_transpose(x_basis) @ y_basis), 0.0, 1.0)


def canonical_directions(x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]) -> Canonical:
    """Return the canonical directions of two sides, each given by its whitened rows and matrix (Hotelling 1936)."""
    svd = cross_svd(x[0].T @ y[0], scale=1.0)
    return Canonical(x[1] @ svd.U, y[1] @ svd.Vt.T, np.minimum(svd.s, 1.0), svd.rank)
