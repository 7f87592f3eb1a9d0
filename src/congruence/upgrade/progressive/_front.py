"""Take a batch from the front of an order, without reading all rows of a large store."""

from __future__ import annotations

import numpy as np

from congruence.upgrade.progressive._lazy import Rows
from congruence.upgrade.progressive.order import take_in_order

__all__ = ["take_front"]


def take_front(
    scores: np.ndarray, eligible: np.ndarray, free: np.ndarray, n: int, old: Rows, native: np.ndarray, near: float
) -> np.ndarray:
    """Return the rows that :func:`take_in_order` takes, but read only those that it may take or compares with.

    Parameters
    ----------
    scores, eligible, free, n, old, native, near
        As for :func:`take_in_order`; ``old`` may be on disk.

    Returns
    -------
    ndarray of int
        Rows of the store.
    """
    # take_in_order looks for near-duplicates among the first 4 n rows; free rows may come in between.
    most = 4 * n + int(np.count_nonzero(free & eligible)) + 1
    first = _highest(scores, eligible, most)
    rows = np.union1d(first, native)
    within = np.isin(rows, first)
    taken = take_in_order(scores[rows], within, free[rows], n, old[rows], np.searchsorted(rows, native), near)
    return np.asarray(rows[taken])


def _highest(scores: np.ndarray, eligible: np.ndarray, most: int) -> np.ndarray:
    """Return the eligible rows with the highest scores, in any order; of rows with equal scores the first are taken."""
    rows = np.flatnonzero(eligible)
    if most >= len(rows):
        return rows
    scores = scores[rows]
    least = np.partition(scores, len(scores) - most)[len(scores) - most]
    above = rows[scores > least]
    return np.concatenate([above, rows[scores == least][: most - len(above)]])
