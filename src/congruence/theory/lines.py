"""Minimax line fit: the line with the smallest maximum error for points that arrive in blocks and need not fit in memory.

The residuals y − a·x of all points span max(y − a·x) − min(y − a·x), which depends only on the upper and the lower hull of
the points. That span is convex and piecewise linear in the slope a, with a breakpoint at the slope of each edge of
the hull. So the best line is parallel to an edge, midway between it and the opposite vertex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = ["FLAT", "Envelope", "Line"]

#: Differences in x up to this size are rounding error: such points do not determine a slope.
FLAT = 1e-12


@dataclass(frozen=True)
class Line:
    """A straight line, y = slope · x + intercept."""

    slope: float
    intercept: float


class Envelope:
    """Upper and lower convex hull of points in the plane, updated block by block.

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
        """Add points.

        Parameters
        ----------
        x, y : ndarray of float64, shape (k,)
            Coordinates of the points.
        """
        self._upper = _extend(self._upper, x, y)
        self._lower = _extend(self._lower, x, -y)

    def span(self, slope: float) -> tuple[float, float]:
        """Return the smallest and the largest y − slope · x over all points added."""
        (ux, uy), (lx, ly) = self._upper, self._lower
        return float((-ly - slope * lx).min()), float((uy - slope * ux).max())

    def best_slope(self) -> float:
        """Return the slope at which the span is smallest; 0 if all points have the same x."""
        (ux, uy), (lx, ly) = self._upper, self._lower
        if ux[-1] - ux[0] <= FLAT:
            return 0.0
        with np.errstate(over="ignore"):
            slopes = np.concatenate([np.diff(uy) / np.diff(ux), -np.diff(ly) / np.diff(lx)])
        slopes = np.sort(slopes[np.isfinite(slopes)])
        low, high = 0, len(slopes) - 1
        while low < high:  # binary search for the first slope at which the convex span does not decrease
            middle = (low + high) // 2
            width, next_width = (np.ptp(self.span(float(a))) for a in slopes[middle : middle + 2])
            low, high = (low, middle) if width <= next_width else (middle + 1, high)
        return float(slopes[low])


def _extend(chain: tuple[np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper hull of the points of a chain and of more points."""
    cx, cy = chain
    if len(cx):
        outside = (y > np.interp(x, cx, cy)) | (x < cx[0]) | (x > cx[-1])
        if not outside.any():
            return chain
        x, y = np.concatenate([cx, x[outside]]), np.concatenate([cy, y[outside]])
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    top = np.append(x[1:] != x[:-1], True)  # the highest point for each x
    x, y = x[top], y[top]
    # A point on or below the chord of its neighbors is not a vertex. Dropping all such points at once is correct, since a vertex
    # lies above every chord. This thins out a cloud quickly; the stack below processes the remaining points one by one.
    while len(x) > 2:
        corner = np.ones(len(x), bool)
        corner[1:-1] = _orientation(x[:-2], y[:-2], x[1:-1], y[1:-1], x[2:], y[2:]) < 0
        kept = int(corner.sum())
        if kept > 0.9 * len(x):
            break
        x, y = x[corner], y[corner]
    stack: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(stack) > 1 and _orientation(*stack[-2], *stack[-1], *point) >= 0:
            stack.pop()
        stack.append(point)
    hull = np.array(stack)
    return hull[:, 0], hull[:, 1]


_N = TypeVar("_N", float, np.ndarray)


def _orientation(ax: _N, ay: _N, bx: _N, by: _N, cx: _N, cy: _N) -> _N:
    """Return a positive number if c lies to the left of the directed line from a to b, and a negative number if to the right."""
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
