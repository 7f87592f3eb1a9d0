"""The largest entries of each row of a block of similarities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import is_tensor, namespace, to_numpy
from congruence._utils.typing import Array

# Candidates processed at a time. With ties every entry may be a candidate; this limits the memory.
_MAX_CANDIDATES = 2**20

# Ties that are kept for each of k places, so that tables take O(n k) memory however many rows are equal.
_MOST_TIED = 32


def top_k(similarity: Array, k: int) -> np.ndarray:
    """Return the columns of the k largest entries of each row, shape (m, k), largest first; ties by column; no NaN."""
    if k == 1 and isinstance(similarity, np.ndarray):  # NumPy's argmax returns the first of equal entries
        return np.argmax(similarity, axis=1)[:, None]
    xp = namespace(similarity)
    out = np.empty((len(similarity), k), dtype=np.intp)
    is_candidate = similarity >= kth_from_below(similarity, k)[:, None]
    for rows in candidate_slices(to_numpy(xp.count_nonzero(is_candidate, axis=1))):
        mask = is_candidate[rows]
        i, j = true_entries(mask)
        out[rows] = select_top_k(i, j, to_numpy(similarity[rows][mask]), len(mask), k)[0]
    return out


def true_entries(mask: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the true entries of a table: ten times as fast as ``numpy.nonzero``."""
    if not isinstance(mask, np.ndarray):
        i, j = map(to_numpy, namespace(mask).nonzero(mask))
        return i, j
    return np.divmod(np.flatnonzero(mask), mask.shape[1])


def select_top_k(i: np.ndarray, j: np.ndarray, value: np.ndarray, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and values, shape (m, k), of the k largest candidates of each row, largest first; ties by column.

    ``i`` and ``j``, shape (p,), are the rows, in ascending order, and columns of the candidates, at least k per row.
    """
    order = np.lexsort((j, -value, i))
    i, j, value = i[order], j[order], value[order]
    kept = np.arange(len(i)) - np.searchsorted(i, np.arange(m))[i] < k
    return j[kept].reshape(m, k), value[kept].reshape(m, k)


def share_top_k(
    i: np.ndarray, j: np.ndarray, value: np.ndarray, m: int, k: int, tie: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, columns, values and shares of all candidates that can be among the k largest of their row: a share
    is the probability of this if equal values are in random order.

    Arguments are as for ``select_top_k``; values of row r that differ by at most ``tie[r]``, shape (m,), are equal. Of
    more than ``_MOST_TIED`` · k candidates that are equal to the k-th, a random sample of this size has their share.
    """
    order = np.lexsort((j, -value, i))
    i, j, value = i[order], j[order], value[order]
    first = np.searchsorted(i, np.arange(m))
    kth = value[first + k - 1]
    kept = value >= (kth - tie)[i]
    i, j, value = i[kept], j[kept], value[kept]
    tied = value <= (kth + tie)[i]
    n_tied = np.bincount(i[tied], minlength=m)
    places = k - np.bincount(i[~tied], minlength=m)
    if int(n_tied.max()) > _MOST_TIED * k:
        where = np.flatnonzero(tied)
        where = where[np.lexsort((rng.random(len(where)), i[where]))]
        rank = np.arange(len(where)) - np.searchsorted(i[where], np.arange(m))[i[where]]
        kept = np.ones(len(i), bool)
        kept[where[rank >= _MOST_TIED * k]] = False
        i, j, value, tied = i[kept], j[kept], value[kept], tied[kept]
        n_tied = np.minimum(n_tied, _MOST_TIED * k)
    return i, j, value, np.where(tied, (places / n_tied)[i], 1.0)


def tie_shares(similarity: np.ndarray, k: int, tie: float = 0.0) -> np.ndarray:
    """Return the probability of each entry (m, n) to be among the k largest of its row if values that differ by at most
    ``tie`` are in random order: with c entries above the k-th value and t equal to it, (k − c) / t for these.
    """
    n = similarity.shape[1]
    kth = np.partition(similarity, n - k, axis=1)[:, n - k, None]
    above, level = similarity > kth + tie, np.abs(similarity - kth) <= tie
    return np.asarray(above + level * ((k - above.sum(axis=1)) / level.sum(axis=1))[:, None])


def any_drawn(relevant: int, tied: int, draws: int) -> float:
    """Return the probability of drawing a relevant one of the tied rows without replacement."""
    none_drawn = 1.0
    for i in range(draws):
        none_drawn *= max(tied - relevant - i, 0) / (tied - i)
    return 1.0 - none_drawn


def kth_from_below(similarity: Array, k: int) -> Array:
    """Return a lower bound on the k-th largest entry of each row, usually a tight one.

    It is the k-th largest of the maxima of groups, which are much faster to find.
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


def candidate_slices(counts: np.ndarray) -> Iterator[slice]:
    """Yield slices of consecutive rows with at most ``_MAX_CANDIDATES`` candidates each, or a single row with more."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MAX_CANDIDATES, side="right")))
        yield slice(start, stop)
        start = stop
