"""Scores of randomly re-paired rows, from what re-pairing leaves as it is: Gram matrices, neighbour tables and bases.

Every entry of :data:`REPAIRED` prepares two matrices once and returns a function from an order of Y's rows to the score
of ``(X, Y[order])``; the score itself is that of the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence import kernels
from congruence.errors import ShapeError
from congruence.metrics import correlations, neighbours
from congruence.metrics.dissimilarity import MOST_ROWS, Dissimilarities
from congruence.metrics.local_alignment import repaired_cknna

Score = Callable[[np.ndarray], float]


def _centred(A: np.ndarray) -> np.ndarray:
    A = A.astype(np.float64)
    return A - A.mean(axis=0)


def _narrow(A: np.ndarray) -> np.ndarray:
    """Return centred rows in a basis of their own span: the same Gram matrix from at most n columns."""
    A = _centred(A)
    if A.shape[1] <= len(A):
        return A
    values, vectors = np.linalg.eigh(A @ A.T)
    return vectors * np.sqrt(np.clip(values, 0, None))


def _linear_cka(X: np.ndarray, Y: np.ndarray) -> Score:
    A, B = _narrow(X), _narrow(Y)
    a, b = np.zeros(A.shape[1]), np.zeros(B.shape[1])
    first = kernels.hsic_unbiased(kernels.linear_sums(A, A, a, a))
    second = kernels.hsic_unbiased(kernels.linear_sums(B, B, b, b))
    scale = np.sqrt(first) * np.sqrt(second)
    return lambda order: float(kernels.hsic_unbiased(kernels.linear_sums(A, B[order], a, b)) / scale)


def _matrices(X: np.ndarray, name: str) -> None:
    if len(X) > MOST_ROWS:
        raise ShapeError(
            f"Got {len(X)} rows for the null of {name}; expected {MOST_ROWS} at most, since it keeps whole matrices; "
            "do compare a sample of the rows."
        )


def _rbf_cka(X: np.ndarray, Y: np.ndarray) -> Score:
    _matrices(X, "rbf_cka")
    n = len(X)

    def centred(A: np.ndarray) -> np.ndarray:
        """Return the U-centred kernel of unit norm: unbiased HSIC is the inner product of two such (Székely and Rizzo 2014)."""
        A = _centred(A)
        K = np.exp(-kernels.squared_distances(A, A) / (2 * kernels.median_squared_distance(A)))
        np.fill_diagonal(K, 0)
        rows = K.sum(axis=1) / (n - 2)
        K += rows.sum() / (n - 1) - rows - rows[:, None]
        np.fill_diagonal(K, 0)
        return K / np.linalg.norm(K)

    K, L = centred(X), centred(Y)
    return lambda order: _inner(K, L, order)


def _inner(K: np.ndarray, L: np.ndarray, order: np.ndarray) -> float:
    """Sum K ∘ L[order][:, order] a stretch of rows at a time."""
    return float(sum(np.vdot(K[i : i + 256], L[order[i : i + 256]][:, order]) for i in range(0, len(K), 256)))


def _neighbours(measure: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray, np.ndarray], Score]:
    def prepare(X: np.ndarray, Y: np.ndarray) -> Score:
        P, Q = neighbours.tables(X, Y, 10, "inner")
        # Row i is now Y's row order[i], and whoever was its neighbour has moved as well.
        return lambda order: measure(P, np.argsort(order)[Q[order]])

    return prepare


def _basis(A: np.ndarray, keep: float | int) -> np.ndarray:
    """Orthonormal basis of the leading principal components, on centred rows."""
    U, s, _ = correlations.spectrum(np, _centred(A))
    return U[:, : correlations.kept(np, s, keep)]


def _canonical(keep: float | int) -> Callable[[np.ndarray, np.ndarray], Score]:
    def prepare(X: np.ndarray, Y: np.ndarray) -> Score:
        U, V = _basis(X, keep), _basis(Y, keep)
        return lambda order: float(np.clip(np.linalg.svd(U.T @ V[order], compute_uv=False), 0, 1).mean())

    return prepare


def _pwcca(X: np.ndarray, Y: np.ndarray) -> Score:
    A = _centred(X)
    U, V = _basis(X, len(X)), _basis(Y, len(Y))
    coordinates = U.T @ A

    def value(order: np.ndarray) -> float:
        left, s, _ = np.linalg.svd(U.T @ V[order], full_matrices=False)
        used = np.abs(left.T @ coordinates).sum(axis=1)
        return float((used * np.clip(s, 0, 1)).sum() / used.sum())

    return value


def _rsa(X: np.ndarray, Y: np.ndarray) -> Score:
    _matrices(X, "rsa")

    def ranks(A: np.ndarray, name: str) -> np.ndarray:
        side = Dissimilarities(A, "correlation", name)
        out = side.ranks(side.sorted())
        square = np.zeros((len(A), len(A)))
        square[np.triu_indices(len(A), 1)] = out
        return (square + square.T) / np.linalg.norm(out)

    K, L = ranks(X, "X"), ranks(Y, "Y")
    return lambda order: _inner(K, L, order) / 2


def _procrustes_distance(X: np.ndarray, Y: np.ndarray) -> Score:
    A, B = _narrow(X), _narrow(Y)
    A, B = A / np.linalg.norm(A), B / np.linalg.norm(B)

    def value(order: np.ndarray) -> float:
        return float(np.arccos(np.clip(np.linalg.norm(A.T @ B[order], "nuc"), 0, 1)))

    return value


#: By name in METRICS, with the parameters that are the defaults there.
REPAIRED: dict[str, Callable[[Any, Any], Score]] = {
    "linear_cka": _linear_cka,
    "rbf_cka": _rbf_cka,
    "cknna": repaired_cknna,
    "mutual_knn": _neighbours(neighbours.common_share),
    "cycle_knn": _neighbours(neighbours.cycle_share),
    "lcs_knn": _neighbours(neighbours.common_length),
    "edit_knn": _neighbours(neighbours.edit_share),
    "cca": _canonical(50),
    "svcca": _canonical(0.99),
    "pwcca": _pwcca,
    "rsa": _rsa,
    "procrustes_distance": _procrustes_distance,
}
