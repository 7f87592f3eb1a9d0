"""Scores of randomly re-paired rows, computed from quantities that need only be reordered: Gram matrices, neighbor tables and bases.

Every entry of :data:`PERMUTATION_STATISTICS` prepares a side once, reorders a prepared side, and compares two prepared sides, so that comparing many
sides with many others needs only one preparation per side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from congruence._utils.arrays import NUMPY, to_numpy
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.linalg import kernels
from congruence.metrics import correlations, neighbors
from congruence.metrics._bases import spectrum
from congruence.metrics.dissimilarity import MOST_ROWS, Dissimilarities
from congruence.metrics.local_alignment import compare_masked, prepare_masked, reorder_masked
from congruence.metrics.search import neighbor_table

__all__ = [
    "BIASED_CKA",
    "PERMUTATION_STATISTICS",
    "Chance",
    "PermutationStatistic",
    "chance",
    "compare_first",
    "permutation_statistic",
]


#: The part of a metric that depends on one side only: a basis, a Gram matrix, or a table of neighbors.
SideT = TypeVar("SideT")


@dataclass(frozen=True)
class PermutationStatistic(Generic[SideT]):
    """A metric split into prepare, compare and reorder, so that re-pairings reuse the first step.

    Attributes
    ----------
    prepare : callable
        Function of a validated matrix, shape (n, d), and its name for error messages; returns a prepared side.
    reorder : callable
        Function of a prepared side and an order; returns the result of preparing ``A[order]``.
    compare : callable
        Function of two prepared sides; returns the score.
    """

    prepare: Callable[[np.ndarray, str], SideT]
    reorder: Callable[[SideT, np.ndarray], SideT]
    compare: Callable[[SideT, SideT], float]

    def __call__(self, X: np.ndarray, Y: np.ndarray) -> Callable[[np.ndarray], float]:
        """Return a function of an order of Y's rows that gives the score of ``(X, Y[order])``."""
        first, second = self.prepare(X, "X"), self.prepare(Y, "Y")
        return lambda order: self.compare(first, self.reorder(second, order))


def permutation_statistic(name: str) -> PermutationStatistic[Any]:
    """Return an entry of :data:`PERMUTATION_STATISTICS` by name.

    Raises
    ------
    ParameterError
        If the name is unknown; the message lists all names.
    """
    if name not in PERMUTATION_STATISTICS:
        raise ParameterError(
            f"Got metric={name!r}; expected one that compares two spaces: {', '.join(PERMUTATION_STATISTICS)}. Pass one of these."
        )
    return PERMUTATION_STATISTICS[name]


# ------------------------------------------------------------------ p-values from the null


class Chance(NamedTuple):
    """Null distribution and p-values of scores; each array has the shape of the scores.

    Attributes
    ----------
    mean, sd : ndarray, shape of the scores
        Mean and standard deviation of the scores of re-paired rows, without the actual pairing.
    p_value : ndarray, shape of the scores
        Share of the permutations + 1 pairings, including the actual one, whose score is at least as close, ties included. Never below
        1 / (permutations + 1).
    adjusted_p_value : ndarray, shape of the scores
        The same share for the closest of *all* scores in a pairing, each standardized by its mean and standard deviation
        over the permutations + 1 pairings.
    """

    mean: np.ndarray
    sd: np.ndarray
    p_value: np.ndarray
    adjusted_p_value: np.ndarray


def chance(values: np.ndarray, null: np.ndarray, larger_is_closer: np.ndarray | bool) -> Chance:
    """Return p-values of scores, individually and adjusted for choosing the best of all.

    Parameters
    ----------
    values : ndarray, any shape
    null : ndarray, shape (permutations, *values.shape)
        Row r holds all scores of the same re-pairing.
    larger_is_closer : bool or ndarray of bool, shape (*values.shape)
        Direction of each score.

    Returns
    -------
    Chance

    Notes
    -----
    If rows are unrelated, the actual pairing and the re-pairings are exchangeable. So are their largest standardized scores, as long as
    the mean and the standard deviation treat all pairings alike, as they do here. The probability that any adjusted p-value is at most
    α is then at most α, for any number of scores and re-pairings. Standardizing by the re-pairings alone would make the actual
    pairing more extreme than any of them can be: with 351 scores and 19 re-pairings, this rejects at 0.05 in 0.70 of cases.

    References
    ----------
    Westfall and Young (1993), "Resampling-based multiple testing": the single-step max-T procedure. Phipson and Smyth (2010),
    "Permutation p-values should never be zero".
    """
    sign = np.where(larger_is_closer, 1.0, -1.0)
    values, null = values * sign, null * sign
    draws = len(null)
    # Equal scores may differ by rounding if they are summed in another order; they must count as ties.
    tolerance = 1e-12 * np.maximum(1, np.abs(values))
    n_as_close = (null >= values - tolerance).sum(axis=0)
    pairings = np.concatenate([values[None], null])
    center, spread = pairings.mean(axis=0), pairings.std(axis=0)
    # A constant score (PWCCA with n ≤ d) carries no information: neither the value nor any re-pairing is extreme.
    scale = np.where(spread <= 1e-9 * np.maximum(1, np.abs(center)), np.inf, spread)
    slack = tolerance / scale
    best = ((null - center) / scale + slack).reshape(draws, -1).max(axis=1)
    observed = (values - center) / scale - slack
    n_best_as_close = draws - np.searchsorted(np.sort(best), observed)
    sd = null.std(axis=0, ddof=1) if draws > 1 else np.zeros(values.shape)
    return Chance(sign * null.mean(axis=0), sd, (1 + n_as_close) / (draws + 1), (1 + n_best_as_close) / (draws + 1))


# ------------------------------------------------------------------ preparing, re-pairing and comparing


def _centered(A: np.ndarray) -> np.ndarray:
    A = A.astype(np.float64)
    return A - A.mean(axis=0)


def _take(A: np.ndarray, order: np.ndarray) -> np.ndarray:
    return A[order]


def _positive(size: float, name: str) -> float:
    """Return the size of a side, by which it is divided. Raises InputError if it is zero."""
    if not size > 0:
        raise InputError(
            f"Got rows of {name} that are all equal, or all equally far from each other; expected rows that differ. Remove duplicate items, or check the encoder's outputs."
        )
    return size


def _scaled(A: np.ndarray, name: str) -> np.ndarray:
    """Return centered rows whose largest entry is 1."""
    A = _centered(A)
    return A / _positive(float(np.abs(A).max()), name)


def _check_full_size(A: np.ndarray, metric: str) -> None:
    """Check that n × n matrices fit in memory. Raises ShapeError."""
    if len(A) > MOST_ROWS:
        raise ShapeError(
            f"Got {len(A)} rows for the null of {metric}; expected at most {MOST_ROWS}, since it stores full n × n matrices. "
            "Pass a sample of the rows."
        )


def _reorder_square(L: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return L[order][:, order], in blocks of rows that fit the processor's cache."""
    out = np.empty_like(L)
    for i in range(0, len(L), 256):
        np.take(L[order[i : i + 256]], order, axis=1, out=out[i : i + 256], mode="clip")
    return out


def _u_center(K: np.ndarray) -> np.ndarray:
    """Return a kernel such that unbiased HSIC is n (n − 3) times an inner product (Székely and Rizzo 2014); overwrites K."""
    n = len(K)
    np.fill_diagonal(K, 0)
    rows = K.sum(axis=1) / (n - 2)
    K += rows.sum() / (n - 1) - rows - rows[:, None]
    np.fill_diagonal(K, 0)
    return K


class _Linear(NamedTuple):
    """A centered linear kernel of unit norm: as features, or as the Gram matrix if that is cheaper to compare."""

    matrix: np.ndarray
    is_gram: bool


def _prepare_linear(A: np.ndarray, name: str) -> _Linear:
    A = _scaled(A, name)
    n, d = A.shape
    if n <= 4 * d:  # re-pairing and comparing then cost n² operations instead of n·d²
        K = _u_center(A @ A.T)
        return _Linear(K / _positive(float(np.linalg.norm(K)), name), True)
    return _Linear(A / np.sqrt(np.sqrt(_positive(_linear_inner(A, A), name))), False)


def _linear_inner(A: np.ndarray, B: np.ndarray) -> float:
    n = len(A)
    zeros = np.zeros(A.shape[1]), np.zeros(B.shape[1])
    return float(n * (n - 3) * kernels.hsic_unbiased(kernels.linear_sums(A, B, *zeros)))


def _reorder_linear(side: _Linear, order: np.ndarray) -> _Linear:
    return _Linear(_reorder_square(side.matrix, order) if side.is_gram else side.matrix[order], side.is_gram)


def _compare_linear(first: _Linear, second: _Linear) -> float:
    if first.is_gram == second.is_gram:
        return (_inner if first.is_gram else _linear_inner)(first.matrix, second.matrix)
    K, B = (first.matrix, second.matrix) if first.is_gram else (second.matrix, first.matrix)
    # The inner product with a U-centered kernel is the same whether or not the other kernel is U-centered.
    return float(np.vdot(B, K @ B))


def _inner(K: np.ndarray, L: np.ndarray) -> float:
    return float(np.vdot(K, L))


def _prepare_biased(A: np.ndarray, name: str) -> _Linear:
    """Return the centered kernel of unit norm, or its features."""
    A = _scaled(A, name)
    is_gram = len(A) <= 4 * A.shape[1]
    K = A @ A.T if is_gram else A.T @ A
    size = _positive(float(np.linalg.norm(K)), name)
    return _Linear(K / size if is_gram else A / np.sqrt(size), is_gram)


def _compare_biased(first: _Linear, second: _Linear) -> float:
    if first.is_gram or second.is_gram:
        return _compare_linear(first, second)
    return float(np.sum((first.matrix.T @ second.matrix) ** 2))


def _prepare_rbf(A: np.ndarray, name: str) -> np.ndarray:
    _check_full_size(A, "rbf_cka")
    A = _centered(A)
    scale = _positive(kernels.median_squared_distance(A), name)
    K = _u_center(np.exp(-kernels.squared_distances(A, A) / (2 * scale)))
    return K / _positive(float(np.linalg.norm(K)), name)


def _prepare_rsa(A: np.ndarray, name: str) -> np.ndarray:
    _check_full_size(A, "rsa")
    side = Dissimilarities(A, "correlation", name)
    ranks = to_numpy(side.ranks(side.sorted()))
    square = np.zeros((len(A), len(A)))
    square[np.triu_indices(len(A), 1)] = ranks / _positive(float(np.linalg.norm(ranks)), name)
    return square + square.T


def _prepare_neighbors(A: np.ndarray, name: str) -> np.ndarray:
    return neighbor_table(A, 10, "inner", name=name)[0]


def _reorder_neighbors(Q: np.ndarray, order: np.ndarray) -> np.ndarray:
    # New row i is the former row order[i]; its neighbors have new row numbers as well.
    return np.argsort(order)[Q[order]]


def _prepare_basis(keep: float | int) -> Callable[[np.ndarray, str], np.ndarray]:
    def prepare(A: np.ndarray, name: str) -> np.ndarray:
        """Return an orthonormal basis of the leading principal components, on centered rows."""
        U, s, _ = spectrum(NUMPY, _scaled(A, name))
        return U[:, : correlations.count_kept(NUMPY, s, keep)]

    return prepare


def _compare_bases(U: np.ndarray, V: np.ndarray) -> float:
    return float(np.clip(np.linalg.svd(U.T @ V, compute_uv=False), 0, 1).mean())


def compare_first(U: np.ndarray, V: np.ndarray) -> float:
    """Return the first canonical correlation of two bases."""
    return float(np.clip(np.linalg.svd(U.T @ V, compute_uv=False).max(), 0, 1))


class _Weighted(NamedTuple):
    """A basis, and the coordinates of the columns in it, which do not depend on the order of the rows."""

    basis: np.ndarray
    coordinates: np.ndarray


def _prepare_weighted(A: np.ndarray, name: str) -> _Weighted:
    U, s, Vt = spectrum(NUMPY, _scaled(A, name))
    return _Weighted(U, s[:, None] * Vt)


def _reorder_weighted(side: _Weighted, order: np.ndarray) -> _Weighted:
    return _Weighted(side.basis[order], side.coordinates)


def _compare_weighted(first: _Weighted, second: _Weighted) -> float:
    left, s, _ = np.linalg.svd(first.basis.T @ second.basis, full_matrices=False)
    importance = np.abs(left.T @ first.coordinates).sum(axis=1)
    return float((importance * np.clip(s, 0, 1)).sum() / importance.sum())


def _prepare_shape(A: np.ndarray, name: str) -> np.ndarray:
    """Return centered rows of unit Frobenius norm, expressed in at most n columns."""
    A = _scaled(A, name)
    if A.shape[1] > len(A):
        values, vectors = np.linalg.eigh(A @ A.T)
        A = vectors * np.sqrt(np.clip(values, 0, None))
    return A / np.linalg.norm(A)


def _compare_shapes(A: np.ndarray, B: np.ndarray) -> float:
    return float(np.arccos(np.clip(np.linalg.norm(A.T @ B, "nuc"), 0, 1)))


def _neighbors(measure: Callable[[np.ndarray, np.ndarray], float]) -> PermutationStatistic[np.ndarray]:
    return PermutationStatistic(_prepare_neighbors, _reorder_neighbors, measure)


#: CKA with the biased HSIC: ``linear_cka(X, Y, estimator="biased")``.
BIASED_CKA = PermutationStatistic(_prepare_biased, _reorder_linear, _compare_biased)

#: Metrics split into steps, by their name in METRICS, with the default parameters used there.
PERMUTATION_STATISTICS: dict[str, PermutationStatistic[Any]] = {
    "linear_cka": PermutationStatistic(_prepare_linear, _reorder_linear, _compare_linear),
    "rbf_cka": PermutationStatistic(_prepare_rbf, _reorder_square, _inner),
    "cknna": PermutationStatistic(prepare_masked, reorder_masked, compare_masked),
    "mutual_knn": _neighbors(neighbors.common_share),
    "cycle_knn": _neighbors(neighbors.cycle_share),
    "lcs_knn": _neighbors(neighbors.common_length),
    "edit_knn": _neighbors(neighbors.edit_share),
    "cca": PermutationStatistic(_prepare_basis(50), _take, _compare_bases),
    "svcca": PermutationStatistic(_prepare_basis(0.99), _take, _compare_bases),
    "pwcca": PermutationStatistic(_prepare_weighted, _reorder_weighted, _compare_weighted),
    "rsa": PermutationStatistic(_prepare_rsa, _reorder_square, lambda K, L: _inner(K, L) / 2),
    "procrustes_distance": PermutationStatistic(_prepare_shape, _take, _compare_shapes),
}
