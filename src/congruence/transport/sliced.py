"""Sliced Wasserstein distances between two clouds of points on a sphere."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, normalize_rows, to_numpy
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_seed
from congruence.errors import ParameterError, ShapeError, ZeroRowError

Cost = Callable[[np.ndarray, np.ndarray], np.ndarray]

VARIANTS = ("circular", "linear")
#: Largest deviation of a row's norm from 1: rounding a unit row to float16 changes its norm by up to 0.0005.
TOLERANCE = 1e-3
#: Number of atoms whose circles are solved together: large enough to amortize NumPy's calls, small enough for the
#: cache.
ATOMS = 2**17


def random_frames(n_projections: int, d: int, random_state: int | np.random.Generator = 0) -> np.ndarray:
    """Draw orthonormal pairs in d ≥ 2 dimensions by the Haar measure, (n_projections, d, 2), for great circles."""
    check_positive(n_projections, "n_projections", integer=True)
    check_positive(d, "d", integer=True)
    if not isinstance(random_state, np.random.Generator):
        check_seed(random_state)
    if d < 2:
        raise ParameterError(f"Got `d={d}`; a great circle needs two dimensions.", "Pass `d=2` or more.")
    Z = np.random.default_rng(random_state).standard_normal((n_projections, 2, d))
    first, second = Z[:, 0], Z[:, 1]
    first[:] = normalize_rows(first)
    for _ in range(2):  # twice: in few dimensions two vectors may be nearly parallel, and rounding then shows
        second -= np.einsum("ij,ij->i", first, second)[:, None] * first
        second[:] = normalize_rows(second)
    return Z.transpose(0, 2, 1)


def sliced_wasserstein_sphere(
    X: RowsLike,
    Y: RowsLike,
    *,
    p: float = 2,
    n_projections: int = 50,
    variant: str = "circular",
    grid: int | None = None,
    normalize: bool = False,
    projections: ArrayLike | None = None,
    random_state: int = 0,
) -> float:
    """Sliced Wasserstein distance between two clouds on the unit sphere, whose rows need not be paired.

    Both clouds are projected on random great circles, where transport is solved exactly; the result is (mean over
    circles of the p-th power of the distance)^(1/p), in turns of the circle, from 0 to 1/2.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d) and (m, d)
        NumPy or torch; computed on the host, with projections in the input's precision (float16 in float32) and sums in
        float64.
    p : float, default=2
        At least 1. The linear variant is defined for 2 only.
    variant : {"circular", "linear"}, default="circular"
        ``"circular"`` is the Wasserstein distance on each circle (Bonet et al. 2023). ``"linear"`` couples the clouds
        through the uniform distribution instead (Liu et al. 2025): it is never smaller, and needs no search.
    grid : int, optional
        For ``"linear"``: average over this many points of the reference, as the published code does (100), instead of
        computing the integral.
    normalize : bool, default=False
        Scale rows to unit norm. Otherwise rows whose norm differs from 1 by more than 0.001 are refused.
    projections : array_like, shape (N, d, 2), optional
        Orthonormal frames, used instead of ``n_projections`` and ``random_state``.

    Notes
    -----
    O(N · (n + m) · (d + log(n + m))) operations and O(n + m) memory.

    Source: Bonet, Berg, Courty, Septier, Drumetz and Pham (2023), "Spherical sliced-Wasserstein", ICLR, section 3.
    Liu et al. (2025), "Linear spherical sliced optimal transport", ICLR.
    Martin et al. (2024), "LCOT: Linear circular optimal transport", ICLR.
    Delon, Salomon and Sobolevski (2010), "Fast transport optimization for Monge costs on the circle".

    Examples
    --------
    Two points a quarter turn apart on a circle:

    >>> from congruence.transport import sliced_wasserstein_sphere
    >>> round(sliced_wasserstein_sphere([[1.0, 0.0]], [[0.0, 1.0]]), 12)
    0.25
    """
    check_seed(random_state)
    cost = choose_cost(variant, p, grid)
    A, B = sphere_pair(X, Y, ("X", "Y"), normalize)
    if projections is None:
        frames = random_frames(n_projections, A.shape[1], random_state)
    else:
        frames = _check_frames(projections, A.shape[1])
    return float(circle_costs(A, B, frames, cost)[0].mean() ** (1 / p))


def choose_cost(variant: str, p: float, grid: int | None) -> Cost:
    """Return the function that solves the problem on each circle."""
    check_choice(variant, VARIANTS, "variant")
    check_positive(p, "p")
    if p < 1:
        raise ParameterError(f"Got `p={p}`; expected at least 1, where the cost is convex.", "Pass `p=1` or `p=2`.")
    if variant == "circular":
        if grid is not None:
            raise ParameterError(
                f"Got `grid={grid}` with `variant='circular'`, which is solved exactly.", "Leave out `grid=…`."
            )
        return partial(circular_cost, p=p)
    if p != 2:
        raise ParameterError(
            f"Got `p={p}` with `variant='linear'`, which is defined for 2.", "Pass `p=2`, or `variant='circular'`."
        )
    if grid is None:
        return linear_cost
    return partial(gridded_linear_cost, grid=check_positive(grid, "grid", integer=True))


def sphere_pair(X: RowsLike, Y: RowsLike, names: tuple[str, str], normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Validate two clouds on a sphere; with ``normalize`` rows may have any length, since only angles are used."""
    A, B = (_on_sphere(side, name, normalize) for side, name in zip((X, Y), names, strict=True))
    if A.shape[1] != B.shape[1]:
        raise ShapeError(
            f"Got widths {A.shape[1]} of {names[0]} and {B.shape[1]} of {names[1]}.", "Encode both with one model."
        )
    return A, B


def _on_sphere(X: RowsLike, name: str, normalize: bool) -> np.ndarray:
    A = as_matrix(X, name)
    n, d = A.shape
    if d < 2:
        raise ShapeError(
            f"Got {name} of width 1; a great circle needs two dimensions.", "Pass vectors with more columns."
        )
    parts = list(blocks(n, d * 8))
    largest = np.concatenate([np.abs(A[part]).max(axis=1) for part in parts])
    if not largest.all():
        raise ZeroRowError(f"Got a row of zeros in {name} (row {np.flatnonzero(largest == 0)[0]}).", "Drop such rows.")
    if normalize:
        # Angles do not depend on the length of rows: scale them only if a product could overflow or underflow.
        return A if largest.min() > 1e-12 and largest.max() < 1e12 else A / largest[:, None]
    with np.errstate(over="ignore"):
        norms = np.concatenate([np.linalg.norm(A[part].astype(np.float64), axis=1) for part in parts])
    off = np.flatnonzero(np.abs(norms - 1) > TOLERANCE)
    if len(off):
        raise ParameterError(
            f"Got {len(off)} of {n} rows of {name} not on the unit sphere (row {off[0]} has norm {norms[off[0]]:.4g}).",
            "Pass `normalize=True`.",
        )
    return A


def _check_frames(projections: ArrayLike, d: int) -> np.ndarray:
    frames = to_numpy(projections)
    if frames.dtype.kind not in "fiu" or frames.ndim != 3 or frames.shape[1:] != (d, 2) or not len(frames):
        raise ShapeError(
            f"Got projections of shape {frames.shape} and type {frames.dtype}; expected numbers of shape (N, {d}, 2).",
            "Use random_frames.",
        )
    frames = frames.astype(np.float64)
    error = np.abs(np.einsum("nij,nik->njk", frames, frames) - np.eye(2)).max()
    if not error <= TOLERANCE:
        raise ParameterError(f"Got projections that are not orthonormal (off by {error:.3g}).", "Use random_frames.")
    return frames


def circle_costs(
    A: np.ndarray,
    B: np.ndarray,
    frames: np.ndarray,
    cost: Cost,
    *,
    order: np.ndarray | None = None,
) -> np.ndarray:
    """Return the cost on each circle (1, N) of two clouds; in a second row after permuting all by ``order``."""
    n, total = len(A), len(A) + len(B)
    size = 3 * total * max(A.itemsize, B.itemsize)  # two coordinates and an angle
    parts = blocks(len(frames), size, minimum=8)
    out = np.empty((1 if order is None else 2, len(frames)))
    for part in parts:
        turns = np.concatenate([_turns(A, frames[part]), _turns(B, frames[part])], axis=1)
        if order is not None:
            out[1, part] = _solve(turns[:, order], n, cost)
        out[0, part] = _solve(turns, n, cost)
    return out


def _turns(A: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Return the position of each row on each circle, −1/2 to 1/2 turns, shape (N, n)."""
    N, d, _ = frames.shape
    plane = frames.transpose(2, 0, 1).reshape(2 * N, d).astype(A.dtype) @ A.T
    angle = np.arctan2(plane[N:], plane[:N], out=plane[:N])
    angle *= 1 / (2 * np.pi)
    return angle


def _solve(turns: np.ndarray, n: int, cost: Cost) -> np.ndarray:
    """Return the cost on each circle between the first n positions and the others; sorts both in place."""
    turns[:, :n].sort(axis=1)
    turns[:, n:].sort(axis=1)
    costs = []
    for part in blocks(len(turns), turns.shape[1], ATOMS, 1):
        positions = turns[part].astype(np.float64)
        costs.append(cost(positions[:, :n], positions[:, n:]))
    return np.concatenate(costs)


# ------------------------------------------------------------------ transport on circles of circumference 1
# Equally weighted atoms; positions are in turns, sorted along the last axis, and all within one turn. With Q the
# quantile function, extended by Q(q + 1) = Q(q) + 1, every monotone plan pairs Q_u(q) with Q_v(q − θ) for some shift θ.
# Between n and m atoms the cost is convex and piecewise linear in θ, with breakpoints at multiples of 1/lcm(n, m)
# (Delon, Salomon and Sobolevski 2010, "Fast transport optimization for Monge costs on the circle", sections 5 and 6).
# So shifts are integers, in a small enough unit.


def circular_cost(u: np.ndarray, v: np.ndarray, p: float) -> np.ndarray:
    """Return W_p^p of each pair of rows of u (b, n) and v (b, m), minimized over all shifts: shape (b,)."""
    if u.shape[1] < v.shape[1]:  # each step of the search costs one term per atom of v
        u, v = v, u
    unit = math.lcm(u.shape[1], v.shape[1])
    wide = _unrolled(u)
    shift = _best_shift(wide, v, unit, p)
    if u.shape == v.shape:
        return _power(_ahead(wide, v.shape[1], unit, shift - 1) - v, p).mean(axis=1)
    return _integral(wide, v, unit, shift, lambda gap: _power(gap, p))


def linear_cost(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return squared linear circular distances (b,) of rows of u (b, n) and v (b, m): the optimal shift is known."""
    multiple = math.lcm(u.shape[1], v.shape[1])
    unit = multiple * -(-(2**51) // multiple)  # the shift is a real number: use a unit below its rounding error
    shift = np.rint((v.mean(axis=1) - u.mean(axis=1)) * unit).astype(np.int64)
    return _integral(_unrolled(u), v, unit, shift, _squared_arc)


def gridded_linear_cost(u: np.ndarray, v: np.ndarray, grid: int) -> np.ndarray:
    """Return ``linear_cost`` with a mean over ``grid`` points of the reference instead of the integral."""
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
    """Return a shift of minimal cost for each row, as a number of units: the one sign change of the slope of a convex
    function between shifts of one turn, by false position (Illinois), with a bisection every third step.
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
    """Return the exact integral of ``cost(Q_u(q) − Q_v(q − θ))``: both are constant between merged breakpoints."""
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
