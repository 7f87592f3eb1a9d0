"""The refit of a progressive migration evaluated out of sample: made on some items and applied to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from congruence.upgrade.progressive.refit import FEWEST, Refit

__all__ = ["refit_unseen"]

#: Most items that a refit is made on here: its time grows with their cube.
_MOST = 500


def refit_unseen(
    refit: Refit,
    old: np.ndarray,
    new: np.ndarray,
    mapped: np.ndarray,
    take: Callable[[np.ndarray, int], np.ndarray],
    part: np.ndarray,
    sizes: Iterable[int],
) -> dict[int, np.ndarray]:
    """Map items after refits that have not seen them.

    Parameters
    ----------
    refit : Refit
    old : ndarray, shape (n, d_old)
    new : ndarray, shape (n, d_new)
        Unit rows.
    mapped : ndarray, shape (n, d_new)
        Each item mapped by a first map that has not seen it.
    take : callable
        Function of some items and a number; returns those of them that are re-embedded first.
    part : ndarray of int, shape (n,)
        Items of one part are mapped after a refit on items of the other parts.
    sizes : iterable of int
        Numbers of re-embedded rows to refit on; at most all items outside a part are taken.

    Returns
    -------
    dict of int to ndarray, shape (n, d_new)
        By size. For sizes too small to refit on, rows keep their first mapping.
    """
    sizes = sorted(set(sizes), reverse=True)
    kind = refit.first()
    out = {size: refit.transform(old, kind, mapped) for size in sizes}
    for k in np.unique(part):
        test, others = np.flatnonzero(part == k), np.flatnonzero(part != k)
        for size in sizes:
            rows = take(others, min(size, len(others), _MOST))
            if len(rows) < FEWEST:
                continue
            # Kind and penalty are chosen once, on the most rows of the first part: few candidates, hardly moved by an item of their own.
            every, choose = np.ones(len(rows), bool), k == part.min() and size == sizes[0]
            kind = refit.fit(old[rows], new[rows], every.astype(float), every, kind, choose=choose, mapped=mapped[rows])
            out[size][test] = refit.transform(old[test], kind, mapped[test])
    return out
