"""The largest entries of each row of a block of similarities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import is_tensor, namespace, to_numpy
from congruence._utils.typing import Array

# Proposals handled at once. Ties can make every entry a proposal, and then this bounds the memory.
_PROPOSALS = 2**20


def top_k(similarity: Array, k: int) -> np.ndarray:
    """Return the columns of the k largest entries of each row, largest first; equal entries come lowest column first.

    Parameters
    ----------
    similarity : ndarray or tensor, shape (m, n)
        Without NaN. A tensor is searched on its device.
    k : int
        From 1 to n.

    Returns
    -------
    ndarray of int, shape (m, k)
    """
    if k == 1 and isinstance(similarity, np.ndarray):  # whose argmax is the first of equal entries
        return np.argmax(similarity, axis=1)[:, None]
    xp = namespace(similarity)
    out = np.empty((len(similarity), k), dtype=np.intp)
    proposed = similarity >= kth_from_below(similarity, k)[:, None]
    for rows in portions(to_numpy(xp.count_nonzero(proposed, axis=1))):
        there = proposed[rows]
        i, j = map(to_numpy, xp.nonzero(there))
        out[rows] = best_of(i, j, to_numpy(similarity[rows][there]), len(there), k)[0]
    return out


def best_of(i: np.ndarray, j: np.ndarray, value: np.ndarray, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the k largest of the entries proposed for each row, equal ones lowest column first.

    Parameters
    ----------
    i, j : ndarray of int, shape (p,)
        Rows, ascending, and columns of the entries; each row with k entries at least.
    value : ndarray, shape (p,)
    m, k : int

    Returns
    -------
    ndarray of int, shape (m, k)
        Columns.
    ndarray, shape (m, k)
        Values.
    """
    order = np.lexsort((j, -value, i))
    i, j, value = i[order], j[order], value[order]
    kept = np.arange(len(i)) - np.searchsorted(i, np.arange(m))[i] < k
    return j[kept].reshape(m, k), value[kept].reshape(m, k)


def kth_from_below(similarity: Array, k: int) -> Array:
    """Return for each row a number not above its k-th largest entry, and seldom much below it, shape (m,).

    The columns are dealt into many groups; the k-th largest of the groups' maxima has k entries at or above it. Maxima
    are much quicker to find than the k-th of all entries.
    """
    m, n = similarity.shape
    groups = max(256, 16 * k)
    width = n // groups
    if width > 1:
        similarity = namespace(similarity).max(similarity[:, : groups * width].reshape((m, width, groups)), axis=1)
    if is_tensor(similarity):
        return similarity.topk(k, dim=1, sorted=True).values[:, -1]
    place = similarity.shape[1] - k
    return np.partition(to_numpy(similarity), place, axis=1)[:, place]


def portions(counts: np.ndarray) -> Iterator[slice]:
    """Cut rows into slices with about ``_PROPOSALS`` proposals each."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _PROPOSALS, side="right")))
        yield slice(start, stop)
        start = stop
