"""Which rows of two sets find each other: mutual nearest neighbors under cross-domain similarity local scaling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import blocks

__all__ = ["mutual_neighbors"]


def mutual_neighbors(
    A: np.ndarray, B: np.ndarray, n_neighbors: int = 10, *, blocked: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the pairs of rows of which each is the other's nearest under CSLS.

    CSLS(a, b) = 2 ⟨a, b⟩ − r(a) − r(b), where r is the mean inner product of a row with its nearest rows of the other set. It takes
    from hubs, rows that are near to everything, what makes them everybody's nearest.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (n, d)
        Rows of unit norm, so that inner products are cosines.
    B : ndarray of float32 or float64, shape (m, d)
        The same, in one space with A.
    n_neighbors : int, default=10
        Rows that r averages over; all of the other set where that has fewer.
    blocked : int, optional
        Rows of A whose similarities are held at once; by default as many as fit 32 MB.

    Returns
    -------
    i : ndarray of int, shape (k,)
        Rows of A, ascending.
    j : ndarray of int, shape (k,)
        The row of B that belongs to each; none occurs twice.
    score : ndarray of float64, shape (k,)
        CSLS of each pair, in [-4, 4].

    Notes
    -----
    Two products of A and B, O(n m d) each, or one where all similarities fit one block; memory for a block and for ``n_neighbors`` numbers a row of B.
    Equal scores go to the lowest row number.

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data", §2.3.
    """
    dtype = np.result_type(A, B)
    A, B = A.astype(dtype, copy=False), B.astype(dtype, copy=False)
    n, m = len(A), len(B)
    # A block, its partition, and the partition of its columns live at a time.
    parts = list(blocks(n, 3 * m * dtype.itemsize) if blocked is None else blocks(n, 1, budget=blocked, minimum=1))
    whole = A @ B.T if len(parts) == 1 else None

    def similarities() -> Iterator[tuple[slice, np.ndarray]]:
        for part in parts:
            yield part, A[part] @ B.T if whole is None else whole

    own_k, other_k = min(n_neighbors, m), min(n_neighbors, n)
    ours = np.empty(n)
    top = np.full((0, m), -np.inf, dtype)
    for part, S in similarities():
        ours[part] = _mean_of_largest(S, own_k)
        stacked = S if not len(top) else np.concatenate([top, S])
        keep = min(other_k, len(stacked))
        top = np.partition(stacked, len(stacked) - keep, axis=0)[len(stacked) - keep :]
    theirs = _mean_of_largest(np.ascontiguousarray(top.T), other_k)

    to_b = np.empty(n, np.intp)
    of_a = np.empty(n)
    to_a = np.zeros(m, np.intp)
    best = np.full(m, -np.inf)
    for part, S in similarities():
        scaled = 2.0 * S - theirs
        to_b[part] = np.argmax(scaled, axis=1)
        of_a[part] = scaled[np.arange(len(scaled)), to_b[part]]
        scaled += theirs
        scaled -= ours[part, None]
        rows = np.argmax(scaled, axis=0)
        found = scaled[rows, np.arange(m)]
        better = found > best
        best[better] = found[better]
        to_a[better] = rows[better] + part.start
    i = np.flatnonzero(to_a[to_b] == np.arange(n))
    return i, to_b[i], of_a[i] - ours[i]


def _mean_of_largest(S: np.ndarray, k: int) -> np.ndarray:
    """Mean of the k largest entries of each row, added up in ascending order whatever the order of the columns."""
    m = S.shape[1]
    return np.asarray(np.sort(np.partition(S, m - k, axis=1)[:, m - k :], axis=1).mean(axis=1, dtype=np.float64))
