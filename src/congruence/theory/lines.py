"""The straight line with the smallest largest error through points that come in blocks, and never lie in memory together.

The residuals y − a·x of all points span max(y − a·x) − min(y − a·x), which depends only on the upper and the lower side of
the points' convex hull. That span is convex and piecewise linear in the slope a, with a corner at the slope of each edge of
the hull; the best line therefore runs parallel to an edge, midway between it and the opposite corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = ["FLAT", "Envelope", "Line"]

#: Points whose x differ by less than this have no slope: what differs is rounding.
FLAT = 1e-12


@dataclass(frozen=True)
class Line:
    """A straight line, y = slope · x + intercept."""

    slope: float
    intercept: float


class Envelope:
    """Upper and lower side of the convex hull of points in the plane, kept up to date block by block.

    Examples
    --------
    >>> import numpy as np
    >>> points = Envelope()
    >>> points.add(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    >>> points.add(np.array([2.0]), np.array([3.0]))
    >>> slope = points.best_slope()
    >>> slope, points.span(slope)
    (1.5, (0.0, 0.5))
    """

    def __init__(self) -> None:
        empty = np.empty(0)
        self._upper, self._lower = (empty, empty), (empty, empty)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take in more points.

        Parameters
        ----------
        x, y : ndarray of float64, shape (k,)
        """
        self._upper = _extend(self._upper, x, y)
        self._lower = _extend(self._lower, x, -y)

    def span(self, slope: float) -> tuple[float, float]:
        """Return the least and the largest of y − slope · x over all points taken in."""
        (ux, uy), (lx, ly) = self._upper, self._lower
        return float((-ly - slope * lx).min()), float((uy - slope * ux).max())

    def best_slope(self) -> float:
        """Return the slope at which the span is smallest; 0 for points that all share one x."""
        (ux, uy), (lx, ly) = self._upper, self._lower
        if ux[-1] - ux[0] <= FLAT:
            return 0.0
        with np.errstate(over="ignore"):
            slopes = np.concatenate([np.diff(uy) / np.diff(ux), -np.diff(ly) / np.diff(lx)])
        slopes = np.sort(slopes[np.isfinite(slopes)])
        low, high = 0, len(slopes) - 1
        while low < high:  # a convex function rises from the first place at which it does not fall
            middle = (low + high) // 2
            here, there = (np.ptp(self.span(float(a))) for a in slopes[middle : middle + 2])
            low, high = (low, middle) if here <= there else (middle + 1, high)
        return float(slopes[low])


def _extend(chain: tuple[np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper side of the hull of a chain and more points."""
    cx, cy = chain
    if len(cx):
        outside = (y > np.interp(x, cx, cy)) | (x < cx[0]) | (x > cx[-1])
        if not outside.any():
            return chain
        x, y = np.concatenate([cx, x[outside]]), np.concatenate([cy, y[outside]])
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    top = np.append(x[1:] != x[:-1], True)  # the highest of those above one another
    x, y = x[top], y[top]
    # A point on or below the chord of its neighbors is no corner. Dropping all such points at once is right, since a corner
    # lies below no chord whatever; it thins a cloud quickly, and the stack below finishes the rest one by one.
    while len(x) > 2:
        corner = np.ones(len(x), bool)
        corner[1:-1] = _turn(x[:-2], y[:-2], x[1:-1], y[1:-1], x[2:], y[2:]) < 0
        kept = int(corner.sum())
        if kept > 0.9 * len(x):
            break
        x, y = x[corner], y[corner]
    stack: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(stack) > 1 and _turn(*stack[-2], *stack[-1], *point) >= 0:
            stack.pop()
        stack.append(point)
    hull = np.array(stack)
    return hull[:, 0], hull[:, 1]


_N = TypeVar("_N", float, np.ndarray)


def _turn(ax: _N, ay: _N, bx: _N, by: _N, cx: _N, cy: _N) -> _N:
    """Say on which side of the way from a to b the point c lies: positive on the left."""
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
