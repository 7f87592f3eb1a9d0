"""Sliced Wasserstein distances between two clouds of points on a sphere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, normalize_rows, to_numpy
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_seed
from congruence.errors import DtypeError, NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence.transport._circle import circular_cost, gridded_linear_cost, linear_cost

__all__ = ["choose_cost", "circle_costs", "random_frames", "sliced_wasserstein_sphere", "sphere_pair"]

Cost = Callable[[np.ndarray, np.ndarray], np.ndarray]

VARIANTS = ("circular", "linear")
#: Largest deviation of a row's norm from 1: rounding a unit row to float16 changes its norm by up to 0.0005.
TOLERANCE = 1e-3
#: Number of atoms whose circles are solved together: large enough to amortize NumPy's calls, small enough for the cache.
ATOMS = 2**17


def random_frames(n_projections: int, d: int, random_state: int | np.random.Generator = 0) -> np.ndarray:
    """Draw pairs of orthonormal vectors uniformly (by the Haar measure), each spanning the plane of a great circle.

    Parameters
    ----------
    n_projections : int
    d : int
        Dimension of the space, at least 2.
    random_state : int or numpy Generator, default=0

    Returns
    -------
    ndarray of float64, shape (n_projections, d, 2)

    Raises
    ------
    ParameterError
        If ``n_projections`` is not a positive integer, ``d`` is below 2, or the seed is invalid.

    Notes
    -----
    Two Gaussian vectors, orthonormalized by Gram–Schmidt: rotating both rotates the result, so no frame is preferred.

    Examples
    --------
    >>> from congruence.transport import random_frames
    >>> U = random_frames(3, 5)
    >>> (U.transpose(0, 2, 1) @ U).round(12)[0]
    array([[1., 0.],
           [0., 1.]])
    """
    check_positive(n_projections, "n_projections", integer=True)
    check_positive(d, "d", integer=True)
    if not isinstance(random_state, np.random.Generator):
        check_seed(random_state)
    if d < 2:
        raise ParameterError(f"Got d={d}; expected at least 2, since a great circle lies in a plane. Pass d=2 or more.")
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
    batch: int | None = None,
    random_state: int = 0,
) -> float:
    """Sliced Wasserstein distance between two clouds on the unit sphere, whose rows need not be paired.

    Both clouds are projected on random great circles, where transport is solved exactly;
    the result is (mean over circles of the p-th power of the distance)^(1/p).

    Parameters
    ----------
    X : array_like, shape (n, d)
        NumPy or torch; computed on the host, with projections in the input's precision (float16 in float32) and sums in float64.
    Y : array_like, shape (m, d)
    p : float, default=2
        At least 1. The linear variant is defined for 2 only.
    n_projections : int, default=50
        Number of great circles.
    variant : {"circular", "linear"}, default="circular"
        ``"circular"`` is the Wasserstein distance on each circle (Bonet et al. 2023). ``"linear"`` couples the clouds through the
        uniform distribution instead of directly (Liu et al. 2025): it is never smaller, and needs no search.
    grid : int, optional
        For ``"linear"``: average over this many points of the reference, as the published code does (100), instead of computing the integral.
    normalize : bool, default=False
        Scale rows to unit norm. Otherwise rows whose norm differs from 1 by more than 0.001 are refused.
    projections : array_like, shape (N, d, 2), optional
        Orthonormal frames, used instead of ``n_projections`` and ``random_state``.
    batch : int, optional
        Number of circles processed at once. By default as many as take a few tens of megabytes.
    random_state : int, default=0
        For :func:`random_frames`.

    Returns
    -------
    float
        In turns of the circle, from 0 to 1/2: multiply by 2π for radians.

    Raises
    ------
    ShapeError
        If the widths differ, or are 1, or ``projections`` has the wrong shape.
    ZeroRowError, DtypeError, NotFiniteError
        If a row is all zeros, or rows or projections are not real numbers or contain NaN or infinity.
    ParameterError
        If rows do not have unit norm, projections are not orthonormal, or an option is out of range.

    Notes
    -----
    O(N · (n + m) · (d + log(n + m))) operations and O(batch · (n + m)) memory. A row orthogonal to the plane of a circle, which has
    probability zero, is placed at the circle's origin.

    References
    ----------
    Bonet, Berg, Courty, Septier, Drumetz and Pham (2023), "Spherical sliced-Wasserstein", ICLR, section 3.
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
    return float(circle_costs(A, B, frames, cost, batch=batch)[0].mean() ** (1 / p))


def choose_cost(variant: str, p: float, grid: int | None) -> Cost:
    """Return the function that solves the problem on each circle.

    Raises
    ------
    ParameterError
        If the variant is unknown, ``p`` is below 1, or ``p`` or ``grid`` does not apply to the variant.
    """
    check_choice(variant, VARIANTS, "variant")
    check_positive(p, "p")
    if p < 1:
        raise ParameterError(f"Got p={p}; expected at least 1, since transport cost must be convex. Pass p=1 or p=2.")
    if variant == "circular":
        if grid is not None:
            raise ParameterError(
                f"Got grid={grid} with variant='circular'; expected None, since that is solved exactly. Leave out grid=…."
            )
        return partial(circular_cost, p=p)
    if p != 2:
        raise ParameterError(
            f"Got p={p} with variant='linear'; expected 2, for which it is defined. Pass p=2, or variant='circular'."
        )
    if grid is None:
        return linear_cost
    return partial(gridded_linear_cost, grid=check_positive(grid, "grid", integer=True))


def sphere_pair(X: RowsLike, Y: RowsLike, names: tuple[str, str], normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Validate two clouds on a sphere; with ``normalize`` rows may have any length, since only the angles of their projections are used.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError
        If arrays have the wrong shape or different widths, are not real numbers, contain NaN or infinity, or have a row of zeros.
    ParameterError
        If rows do not have unit norm, without ``normalize``.
    """
    A, B = (_on_sphere(side, name, normalize) for side, name in zip((X, Y), names, strict=True))
    if A.shape[1] != B.shape[1]:
        raise ShapeError(
            f"Got widths {A.shape[1]} of {names[0]} and {B.shape[1]} of {names[1]}; expected vectors of one space. "
            "Encode both with one model."
        )
    return A, B


def _on_sphere(X: RowsLike, name: str, normalize: bool) -> np.ndarray:
    A = as_matrix(X, name)
    n, d = A.shape
    if d < 2:
        raise ShapeError(
            f"Got {name} of width 1; expected at least 2, since a great circle lies in a plane. Pass vectors with more columns."
        )
    parts = list(blocks(n, d * 8))
    largest = np.concatenate([np.abs(A[part]).max(axis=1) for part in parts])
    if not largest.all():
        raise ZeroRowError(
            f"Got a row of zeros in {name} (row {np.flatnonzero(largest == 0)[0]}); expected a direction. Drop such rows."
        )
    if normalize:
        # Angles do not depend on the length of rows: scale them only if a product could overflow or underflow.
        return A if largest.min() > 1e-12 and largest.max() < 1e12 else A / largest[:, None]
    with np.errstate(over="ignore"):
        norms = np.concatenate([np.linalg.norm(A[part].astype(np.float64), axis=1) for part in parts])
    off = np.flatnonzero(np.abs(norms - 1) > TOLERANCE)
    if len(off):
        raise ParameterError(
            f"Got {len(off)} of {n} rows of {name} not on the unit sphere (row {off[0]} has norm {norms[off[0]]:.4g}); "
            f"expected norms within {TOLERANCE} of 1. Normalize the rows (normalize=True) if only directions matter."
        )
    return A


def _check_frames(projections: ArrayLike, d: int) -> np.ndarray:
    frames = to_numpy(projections)
    if frames.dtype.kind not in "fiu":
        raise DtypeError(f"Got projections of dtype {frames.dtype}; expected real numbers. Convert them to float32.")
    if frames.ndim != 3 or frames.shape[1:] != (d, 2) or not len(frames):
        raise ShapeError(
            f"Got projections of shape {frames.shape}; expected (N, {d}, 2), a frame of two vectors each. Use random_frames."
        )
    frames = frames.astype(np.float64)
    if not np.isfinite(frames).all():
        raise NotFiniteError("Got NaN or inf in projections; expected orthonormal frames. Use random_frames.")
    error = np.abs(np.einsum("nij,nik->njk", frames, frames) - np.eye(2)).max()
    if error > TOLERANCE:
        raise ParameterError(
            f"Got projections that are not orthonormal (off by {error:.3g}); expected orthonormal frames. "
            "Use random_frames, or a QR decomposition."
        )
    return frames


def circle_costs(
    A: np.ndarray,
    B: np.ndarray,
    frames: np.ndarray,
    cost: Cost,
    *,
    batch: int | None = None,
    order: np.ndarray | None = None,
) -> np.ndarray:
    """Return the cost on each circle and, with ``order``, also that between the clouds after exchanging rows.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    B : ndarray, shape (m, d)
    frames : ndarray, shape (N, d, 2)
    cost : callable
        From :func:`choose_cost`.
    batch : int, optional
    order : ndarray of int, shape (n + m,), optional
        A permutation of the concatenated rows of A and B, of which the first n make the first cloud.

    Returns
    -------
    ndarray, shape (1, N) or (2, N)
    """
    n, total = len(A), len(A) + len(B)
    if batch is not None:
        check_positive(batch, "batch", integer=True)
    size = 3 * total * max(A.itemsize, B.itemsize)  # two coordinates and an angle
    parts = blocks(len(frames), size, minimum=8) if batch is None else blocks(len(frames), 1, batch, batch)
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
