"""Take a batch from the front of an order, without reading all rows of a large store."""

from __future__ import annotations

import numpy as np

from congruence.upgrade.progressive._lazy import Rows
from congruence.upgrade.progressive.order import take_in_order

__all__ = ["take_front"]


def take_front(
    scores: np.ndarray, eligible: np.ndarray, free: np.ndarray, n: int, old: Rows, native: np.ndarray, near: float
) -> np.ndarray:
    """Return the rows that :func:`pick` would take, reading only those that it may take or compares with.

    Parameters
    ----------
    scores, eligible, free, n, old, native, near
        As for :func:`pick`; ``old`` may be on disk.

    Returns
    -------
    ndarray of int
        Rows of the store.
    """
    # pick looks for near-duplicates among the first 4 n rows; free rows may come in between.
    most = 4 * n + int(np.count_nonzero(free & eligible)) + 1
    first = _highest(scores, eligible, most)
    some = np.union1d(first, native)
    here = np.isin(some, first)
    taken = take_in_order(scores[some], here, free[some], n, old[some], np.searchsorted(some, native), near)
    return np.asarray(some[taken])


def _highest(scores: np.ndarray, eligible: np.ndarray, most: int) -> np.ndarray:
    """Return the eligible rows with the highest scores, in any order; of rows with equal scores the first are taken."""
    rows = np.flatnonzero(eligible)
    if most >= len(rows):
        return rows
    found = scores[rows]
    least = np.partition(found, len(found) - most)[len(found) - most]
    above = rows[found > least]
    return np.concatenate([above, rows[found == least][: most - len(above)]])
