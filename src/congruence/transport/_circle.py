"""Optimal transport between equally weighted atoms on circles of circumference 1, for a batch of circles.

Positions are in turns, sorted along the last axis, and all within one turn. With Q the quantile function, extended by
Q(q + 1) = Q(q) + 1, every monotone plan pairs Q_u(q) with Q_v(q − θ) for some shift θ. Between n and m atoms the cost is
convex and piecewise linear in θ, with breakpoints at multiples of 1/lcm(n, m) (Delon, Salomon and Sobolevski 2010, "Fast transport
optimization for Monge costs on the circle", sections 5 and 6). So this module represents shifts as integers, in a small enough unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def circular_cost(u: np.ndarray, v: np.ndarray, p: float) -> np.ndarray:
    """Return W_p^p of each pair of rows, minimized over all shifts.

    Parameters
    ----------
    u : ndarray of float64, shape (b, n)
        Sorted positions, in turns.
    v : ndarray of float64, shape (b, m)
        Sorted positions, in turns.
    p : float
        Order of the distance, at least 1.

    Returns
    -------
    ndarray, shape (b,)
        Costs, in turns to the power p.
    """
    if u.shape[1] < v.shape[1]:  # each step of the search costs one term per atom of v
        u, v = v, u
    unit = math.lcm(u.shape[1], v.shape[1])
    wide = _unrolled(u)
    shift = _best_shift(wide, v, unit, p)
    if u.shape == v.shape:
        return _power(_ahead(wide, v.shape[1], unit, shift - 1) - v, p).mean(axis=1)
    return _integral(wide, v, unit, shift, lambda gap: _power(gap, p))


def linear_cost(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the squared linear circular distance of each pair of rows, linearized at the uniform distribution.

    The optimal shift to the uniform distribution is known (mean − 1/2), so the shift between u and v follows without a search.

    Parameters
    ----------
    u, v : ndarray of float64, shape (b, n) and (b, m)
        Sorted positions, in turns.

    Returns
    -------
    ndarray, shape (b,)
        Squared distances, in squared turns.
    """
    multiple = math.lcm(u.shape[1], v.shape[1])
    unit = multiple * -(-(2**51) // multiple)  # the shift is a real number: use a unit below its rounding error
    shift = np.rint((v.mean(axis=1) - u.mean(axis=1)) * unit).astype(np.int64)
    return _integral(_unrolled(u), v, unit, shift, _squared_arc)


def gridded_linear_cost(u: np.ndarray, v: np.ndarray, grid: int) -> np.ndarray:
    """Return :func:`linear_cost` with the integral replaced by a mean over ``grid`` evenly spaced points of the reference."""
    sides = []
    for side in (u, v):
        n = side.shape[1]
        q = (np.arange(grid) / grid - side.mean(axis=1, keepdims=True) + 0.5) % 1
        index = np.clip(np.ceil(q * n).astype(np.int64) - 1, 0, n - 1)
        sides.append(np.take_along_axis(side, index, axis=1))
    return _squared_arc(sides[0] - sides[1]).mean(axis=1)


def _power(gap: np.ndarray, p: float) -> np.ndarray:
    """Return |gap|^p."""
    return gap * gap if p == 2 else np.abs(gap) if p == 1 else np.abs(gap) ** p


def _squared_arc(gap: np.ndarray) -> np.ndarray:
    """Return the squared length of the shorter arc."""
    gap = gap - np.rint(gap)
    return gap * gap


def _unrolled(u: np.ndarray) -> np.ndarray:
    """Return the atoms over three turns: column n + i contains the value of Q on its step i, for −n ≤ i ≤ 2n."""
    return np.concatenate([u - 1, u, u + 1, u[:, :1] + 2], axis=1)


def _ahead(wide: np.ndarray, m: int, unit: int, shift: np.ndarray) -> np.ndarray:
    """Return Q_u just after the end of each of the m steps of v, shape (b, m)."""
    b, n = len(wide), wide.shape[1] // 3
    if n == m:
        windows = np.lib.stride_tricks.sliding_window_view(wide, m, axis=1)
        return windows[np.arange(b), n + 1 + shift]
    ends = np.arange(1, m + 1) * (unit // m) + shift[:, None]
    return _pick(wide, ends // (unit // n) + n)


def _pick(wide: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``np.take_along_axis(wide, index, axis=1)``, several times faster; overwrites ``index``."""
    index += np.arange(0, wide.size, wide.shape[1])[:, None]
    return wide.take(index)


def _best_shift(wide: np.ndarray, v: np.ndarray, unit: int, p: float) -> np.ndarray:
    """Return a shift of minimal cost for each row, as a number of units.

    The slope of a convex function changes sign once. The sign change is bracketed and located by false position (Illinois), with a
    bisection every third step to guarantee progress. Shifts of one turn bracket it: there all of u lies on one side of v.
    """
    b, m = v.shape
    after = np.concatenate([v[:, 1:], v[:, :1] + 1], axis=1)
    if p == 2:  # (a − v)² − (a − v')² = (v' − v)(2a − v − v'), and v'² − v² telescopes
        gaps, level = after - v, v[:, 0] + 0.5
        slope: Callable[[np.ndarray], np.ndarray] = lambda k: (  # noqa: E731
            np.einsum("bj,bj->b", gaps, _ahead(wide, m, unit, k)) - level
        )
    else:

        def slope(k: np.ndarray) -> np.ndarray:
            a = _ahead(wide, m, unit, k)
            return (_power(a - v, p) - _power(a - after, p)).sum(axis=1)

    low, high = np.full(b, -unit), np.full(b, unit)
    at_low, at_high = slope(low), slope(high)
    high = np.where(at_low < 0, high, low)  # the minimum may lie at the lower end
    last_left = np.zeros(b, dtype=bool)
    step = 0
    while (searching := high - low > 1).any():
        step += 1
        if step % 3:
            share = at_low / np.where(at_low < at_high, at_low - at_high, -np.inf)
        else:
            share = np.full(b, 0.5)
        width = high - low
        offset = np.minimum(np.maximum(np.rint(share * width).astype(np.int64), 1), width - 1)
        middle = np.where(searching, low + offset, high)
        at_middle = slope(middle)
        left = at_middle < 0
        repeated = left == last_left  # the same end moved twice in a row: Illinois halves the slope at the other end
        at_high = np.where(left, np.where(repeated, at_high / 2, at_high), at_middle)
        at_low = np.where(left, at_middle, np.where(repeated, at_low / 2, at_low))
        low, high, last_left = np.where(left, middle, low), np.where(left, high, middle), left
        low = np.where(at_middle == 0, high, low)
    return high


def _integral(
    wide: np.ndarray, v: np.ndarray, unit: int, shift: np.ndarray, cost: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the exact integral of ``cost(Q_u(q) − Q_v(q − θ))`` over one turn: both are constant between the merged breakpoints."""
    (b, m), n = v.shape, wide.shape[1] // 3
    step_u, step_v = unit // n, unit // m
    start = np.arange(m) * step_v + shift[:, None]
    first = start // step_u  # step of u in which each step of v begins
    is_v = np.zeros((b, n + m), dtype=bool)
    np.put_along_axis(is_v, first - first[:, :1] + np.arange(m), True, axis=1)
    index_v = np.cumsum(is_v, axis=1, dtype=np.int64) - 1
    index_u = first[:, :1] + np.arange(n + m) - index_v
    cuts = np.empty((b, n + m + 1), dtype=np.int64)
    cuts[:, :-1] = np.where(is_v, index_v * step_v + shift[:, None], index_u * step_u)
    cuts[:, -1] = shift + unit
    gap = _pick(wide, index_u + n) - _pick(v, index_v)
    return np.einsum("bk,bk->b", np.diff(cuts, axis=1), cost(gap)) / unit
