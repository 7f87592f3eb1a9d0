"""Agreement of the kernels of two models, the starting point of every theorem of the paper: contrastive training
determines the image–text kernel ⟨f(x), g(y)⟩ up to a constant (Thm 5.1), or slope and constant (Cor. C.6), and the
geometric theorems assume |⟨f, g⟩ − ⟨f̃, g̃⟩| ≤ ε.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice
from congruence.theory._base import LEVELS, dual_encoders, paired_models

RELATIONS = ("raw", "constant", "affine")

#: Rows and columns of the tile of a kernel that is in memory at a time.
_TILE = 1024
#: Up to this many pairs quantiles are exact; beyond, they come from a histogram.
_EXACT_PAIRS = 4_000_000
_BINS = 2**16

_Pairs = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class KernelAgreement(PlainData):
    """Deviation of the source model's kernel from a function of the target's kernel.

    - ``relation``: ``"raw"``: K = K̃. ``"constant"``: K = K̃ + c. ``"affine"``: K = a·K̃ + c.
    - ``pairs``: Number of entries compared.
    - ``epsilon``: max |K − line(K̃)| for the line that minimizes it, ``minimax``; with ``"raw"`` the ε of Assumptions
      C.20 and C.24.
    - ``least_squares``: The line that minimizes the mean square; ``rmse`` and ``quantiles`` refer to it, since the
      minimax line is determined by two or three pairs.
    - ``rmse``: Root mean square of K − line(K̃).
    - ``quantiles``, ``resolution``: Quantiles of |K − line(K̃)|, and by how much they may be too large; 0 if exact.
    - ``correlation``: Pearson correlation of K and K̃; None if one of them is constant.
    """

    relation: str
    pairs: int
    epsilon: float
    minimax: Line
    least_squares: Line
    rmse: float
    quantiles: dict[float, float]
    resolution: float
    correlation: float | None


def kernel_agreement(
    F: RowsLike,
    G: RowsLike,
    F_target: RowsLike,
    G_target: RowsLike,
    relation: str = "raw",
) -> KernelAgreement:
    """Compare the image–text kernels ⟨f(xᵢ), g(yⱼ)⟩ and ⟨f̃(xᵢ), g̃(yⱼ)⟩ over all n · m pairs.

    Images F (n, d) and F̃ (n, d̃) and texts G (m, d) and G̃ (m, d̃) of both models are unit rows. ``relation`` is what
    is fitted before the comparison: nothing ("raw"), a "constant", or slope and constant ("affine", the exact minimax
    line from the convex hull of the points).

    With all images and the text anchors, ``"raw"`` gives the ε of Assumption C.20; with the image anchors and all texts
    the ε′ of Assumption C.24. Two passes over tiles of both kernels, O(n·m·(d + d̃)) operations; memory does not grow
    with n·m.

    Source: Gupta et al. (2026), Assumption 5.2, Theorem 5.1 (C.11), Corollary C.6, Assumptions C.20 and C.24.
    """
    F, G, F_target, G_target = dual_encoders(F, G, F_target, G_target)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for rows in _tiles(len(F)):
            for columns in _tiles(len(G)):
                yield (F_target[rows] @ G_target[columns].T).ravel(), (F[rows] @ G[columns].T).ravel()

    return _compare(pairs, len(F) * len(G), relation)


def gram_agreement(F: RowsLike, F_target: RowsLike, relation: str = "raw") -> KernelAgreement:
    """Compare the kernels of one modality, ⟨f(xᵢ), f(xⱼ)⟩ and ⟨f̃(xᵢ), f̃(xⱼ)⟩, over all pairs i < j of n ≥ 2 items.

    A rotation preserves these inner products, so they can be compared even if the second modality is missing. The paper
    makes no assumption about them: their agreement follows from its theorems, and does not imply their assumptions.
    Rows and options are those of ``kernel_agreement``.
    """
    F, F_target = paired_models(F, F_target, ("F", "F_target"), min_rows=2)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for rows in _tiles(len(F)):
            for columns in _tiles(len(F), rows.start):
                x, y = F_target[rows] @ F_target[columns].T, F[rows] @ F[columns].T
                if rows == columns:
                    above = ~np.tri(len(x), dtype=bool)
                    x, y = x[above], y[above]
                if x.size:
                    yield x.ravel(), y.ravel()

    return _compare(pairs, len(F) * (len(F) - 1) // 2, relation)


def _tiles(n: int, start: int = 0) -> Iterator[slice]:
    return (slice(first, min(first + _TILE, n)) for first in range(start, n, _TILE))


def _compare(pairs: _Pairs, count: int, relation: str) -> KernelAgreement:
    """Fit x to y in one pass over blocks (x, y), and compute the residuals in a second pass."""
    check_choice(relation, RELATIONS, "relation")
    if count <= _EXACT_PAIRS:
        kept = list(pairs())
        pairs = lambda: iter(kept)  # noqa: E731
    envelope = Envelope()
    origin: tuple[float, float] | None = None
    sums = np.zeros(5)
    for x, y in pairs():
        envelope.add(x, y)
        if origin is None:  # shifted to the cloud of points, the sums of squares do not cancel
            origin = float(x.mean()), float(y.mean())
        x, y = x - origin[0], y - origin[1]
        sums += (x.sum(), y.sum(), x @ x, x @ y, y @ y)
    assert origin is not None
    dx, dy, xx, xy, yy = sums / count
    x_mean, y_mean = origin[0] + dx, origin[1] + dy
    xx, xy, yy = max(xx - dx * dx, 0.0), xy - dx * dy, max(yy - dy * dy, 0.0)
    correlation = None if min(xx, yy) <= FLAT**2 else float(np.clip(xy / np.sqrt(xx * yy), -1, 1))

    if relation == "affine":
        slope, slope_ls = envelope.best_slope(), float(xy / xx) if xx > FLAT**2 else 0.0
    else:
        slope = slope_ls = 1.0
    low, high = envelope.span(slope)
    if relation == "raw":
        minimax = least_squares = Line(1.0, 0.0)
        epsilon = max(abs(low), abs(high))
    else:
        minimax, epsilon = Line(slope, (low + high) / 2), (high - low) / 2
        least_squares = Line(slope_ls, float(y_mean - slope_ls * x_mean))
    worst = max(abs(end - least_squares.intercept) for end in envelope.span(least_squares.slope))
    rmse, values, resolution = _residuals(pairs, count, least_squares, worst)
    by_level = dict(zip(LEVELS, values, strict=True))
    return KernelAgreement(relation, count, epsilon, minimax, least_squares, rmse, by_level, resolution, correlation)


def _residuals(pairs: _Pairs, count: int, line: Line, worst: float) -> tuple[float, list[float], float]:
    """Return the root mean square and quantiles of |y − line(x)|, and by how much these may be too large."""
    exact = count <= _EXACT_PAIRS
    square, kept, histogram, width = 0.0, [], np.zeros(_BINS, np.int64), worst / _BINS
    for x, y in pairs():
        size = np.abs(y - line.slope * x - line.intercept)
        square += float(size @ size)
        if exact:
            kept.append(size)
        elif width > 0:
            histogram += np.bincount(np.minimum(size / width, _BINS - 1).astype(np.intp), minlength=_BINS)
    rmse = float(np.sqrt(square / count))
    if exact:
        return rmse, np.quantile(np.concatenate(kept), LEVELS, method="inverted_cdf").tolist(), 0.0
    if width == 0:
        return rmse, [0.0] * len(LEVELS), 0.0
    rank = np.clip(np.ceil(np.array(LEVELS) * count), 1, count)
    return rmse, ((np.searchsorted(np.cumsum(histogram), rank) + 1) * width).tolist(), width


#: Differences in x up to this size are rounding error: such points do not determine a slope.
FLAT = 1e-12
_FIRST = 10_000  # points whose hull comes first


@dataclass(frozen=True)
class Line:
    """A straight line, y = slope · x + intercept."""

    slope: float
    intercept: float


class Envelope:
    """Upper and lower convex hull of points in the plane, updated block by block, so that they need not fit in memory.

    The span of the residuals y − a·x depends on the hulls alone, and is convex and piecewise linear in a, with a
    breakpoint at the slope of each edge: the line with the smallest maximum error is parallel to an edge.
    """

    def __init__(self) -> None:
        empty = np.empty(0)
        self._upper, self._lower = (empty, empty), (empty, empty)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add points of coordinates x and y, shape (k,)."""
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
    if not len(cx) and len(x) > _FIRST:  # most of the others are within the hull of a few
        chain = cx, cy = _extend(chain, x[:: -(-len(x) // _FIRST)], y[:: -(-len(x) // _FIRST)])
    if len(cx):
        outside = (y > np.interp(x, cx, cy)) | (x < cx[0]) | (x > cx[-1])
        if not outside.any():
            return chain
        x, y = np.concatenate([cx, x[outside]]), np.concatenate([cy, y[outside]])
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    top = np.append(x[1:] != x[:-1], True)  # the highest point for each x
    x, y = x[top], y[top]
    while True:
        # A point on or below the chord of its neighbors is no vertex. All such points can be dropped at once, since
        # a vertex lies above every chord.
        dx, dy = np.diff(x), np.diff(y)
        corner = np.concatenate([[True], dx[:-1] * dy[1:] < dy[:-1] * dx[1:], [True]])[: len(x)]
        if corner.all():
            return x, y
        x, y = x[corner], y[corner]
