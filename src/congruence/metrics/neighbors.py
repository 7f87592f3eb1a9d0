"""Agreement of nearest neighbors between two spaces (Huh et al. 2024; the measures in `platonic-rep`'s ``metrics.py``).

Each side is represented by the table of every row's k nearest other rows in its own space (:mod:`~congruence.metrics.search`); the
measures compare the two tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks
from congruence._utils.validation import as_matrix, check_choice, check_same_rows
from congruence.metrics.search import NEIGHBORS, check_n_neighbors, neighbor_table, search_device

__all__ = [
    "common_length",
    "common_share",
    "cycle_knn",
    "cycle_share",
    "edit_knn",
    "edit_share",
    "lcs_knn",
    "mutual_knn",
    "tables",
]


def mutual_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Share of a row's nearest neighbors that are the same in both spaces, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
        Row i belongs to row i of X; the widths may differ.
    n_neighbors : int, default=10
        From 1 to n − 1.
    metric : {"inner", "cosine", "euclidean"}, default="inner"
        See :func:`~congruence.metrics.nearest`. The paper uses inner products of unit rows, which is ``"cosine"``.

    Returns
    -------
    float
        In [0, 1]. Unrelated spaces agree on n_neighbors / (n − 1) by chance.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; there are too few rows; or a
        parameter has an invalid value.

    References
    ----------
    Huh et al. (2024), "The Platonic Representation Hypothesis", appendix A; ``mutual_knn`` of its code.
    """
    return common_share(*tables(X, Y, n_neighbors, metric))


def common_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`mutual_knn` of two neighbor tables, both of shape (n, k)."""
    # A row occurs at most once in each list, so an entry that occurs twice in the concatenated lists is common to both.
    common = 0
    for part in blocks(len(P), 32 * P.shape[1]):
        both = np.sort(np.concatenate([P[part], Q[part]], axis=1), axis=1)
        common += int(np.count_nonzero(both[:, 1:] == both[:, :-1]))
    return common / P.size


def cycle_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Share of rows that are among the X-neighbors of their own Y-neighbors.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    n_neighbors : int, default=10
    metric : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, 1]. Not symmetric: the first step uses neighbors in Y, the second in X. It need not be 1 for ``Y = X``, since
        being a neighbor is not mutual.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; there are too few rows; or a
        parameter has an invalid value.

    References
    ----------
    Huh et al. (2024), appendix A; ``cycle_knn`` of its code.
    """
    return cycle_share(*tables(X, Y, n_neighbors, metric))


def cycle_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`cycle_knn` of two neighbor tables, both of shape (n, k)."""
    n, k = P.shape
    cycles = 0
    for part in blocks(n, 9 * k * k, minimum=1):
        rows = np.arange(part.start, part.stop)
        cycles += int((P[Q[part]] == rows[:, None, None]).any(axis=(1, 2)).sum())
    return cycles / n


def lcs_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Length of the longest common subsequence of the two lists of neighbors, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    n_neighbors : int, default=10
    metric : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, n_neighbors]: a length, as in the paper's code, not a share. Lists start with the nearest row, so order matters.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; there are too few rows; or a
        parameter has an invalid value.

    References
    ----------
    Huh et al. (2024), appendix A; ``lcs_knn`` of its code.
    """
    return common_length(*tables(X, Y, n_neighbors, metric))


def common_length(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`lcs_knn` of two neighbor tables, both of shape (n, k)."""
    total = 0
    for part in blocks(len(P), 16 * (P.shape[1] + 1)):
        total += int(_last_row(P[part], Q[part], edit=False).sum())
    return total / len(P)


def edit_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """One minus the edit distance of the two lists of neighbors relative to their length, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    n_neighbors : int, default=10
    metric : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, 1]; 1 if all lists agree, including their order. Insertion, deletion and substitution cost one each.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; there are too few rows; or a
        parameter has an invalid value.

    References
    ----------
    Huh et al. (2024), appendix A; ``edit_distance_knn`` of its code. Levenshtein (1966).
    """
    return edit_share(*tables(X, Y, n_neighbors, metric))


def edit_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`edit_knn` of two neighbor tables, both of shape (n, k)."""
    total = 0
    for part in blocks(len(P), 16 * (P.shape[1] + 1)):
        total += int(_last_row(P[part], Q[part], edit=True).sum())
    return 1.0 - total / P.size


def _last_row(P: np.ndarray, Q: np.ndarray, *, edit: bool) -> np.ndarray:
    """Run the dynamic program for edit distance or longest common subsequence over many pairs of lists at once.

    Parameters
    ----------
    P, Q : ndarray of int, shape (m, k)
    edit : bool
        Edit distance; otherwise the length of the longest common subsequence.

    Returns
    -------
    ndarray of int, shape (m,)
    """
    k = P.shape[1]
    # Lists run along the first axis, so that every step works on contiguous memory.
    P, Q = np.ascontiguousarray(P.T), np.ascontiguousarray(Q.T)
    above = np.zeros((k + 1, P.shape[1]), dtype=np.int32)
    if edit:
        above += np.arange(k + 1, dtype=np.int32)[:, None]
    current = above.copy()
    for i in range(k):
        current[0] = i + 1 if edit else 0
        for j in range(k):
            same = P[i] == Q[j]
            if edit:
                current[j + 1] = np.minimum(np.minimum(above[j + 1], current[j]) + 1, above[j] + ~same)
            else:
                current[j + 1] = np.maximum(np.maximum(above[j + 1], current[j]), above[j] + same)
        above, current = current, above
    return above[k]


def tables(X: ArrayLike, Y: ArrayLike, n_neighbors: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Validate both sides, and return their neighbor tables, each of shape (n, n_neighbors).

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        As for :func:`mutual_knn`.
    """
    check_choice(metric, NEIGHBORS, "metric")
    A = as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
    B = as_matrix(Y, "Y", min_rows=2, allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    check_n_neighbors(n_neighbors, len(A))
    return (
        neighbor_table(A, n_neighbors, metric, name="X", place=search_device(X))[0],
        neighbor_table(B, n_neighbors, metric, name="Y", place=search_device(Y))[0],
    )
