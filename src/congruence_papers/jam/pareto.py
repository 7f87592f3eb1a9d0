"""Pareto front: settings that no other setting beats in both of two measures."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from congruence.errors import NotFiniteError, ShapeError

__all__ = ["pareto_front"]


def pareto_front(cost: ArrayLike, gain: ArrayLike) -> np.ndarray:
    """Return a mask of the Pareto front: points for which no other point is at least as good in both measures and better in one.

    Parameters
    ----------
    cost : array_like, shape (n,)
        Smaller is better, e.g. a reconstruction error.
    gain : array_like, shape (n,)
        Larger is better, e.g. recall.

    Returns
    -------
    ndarray of bool, shape (n,)

    Raises
    ------
    ShapeError
        If the two have different numbers of points.
    NotFiniteError
        If a point contains NaN or infinity.

    Examples
    --------
    >>> pareto_front([0.1, 0.2, 0.3], [0.5, 0.7, 0.6])
    array([ True,  True, False])
    """
    costs, gains = (np.asarray(side, np.float64).reshape(-1) for side in (cost, gain))
    if len(costs) != len(gains):
        raise ShapeError(
            f"Got {len(costs)} costs and {len(gains)} gains; expected one of each per point. Pass both for the same points."
        )
    if not (np.isfinite(costs).all() and np.isfinite(gains).all()):
        raise NotFiniteError(
            "Got NaN or infinity among the points; expected finite ones. Leave out points that failed."
        )
    no_worse = (costs[:, None] <= costs) & (gains[:, None] >= gains)  # of point i, compared with point j
    better = (costs[:, None] < costs) | (gains[:, None] > gains)
    return np.asarray(~(no_worse & better).any(axis=0))
