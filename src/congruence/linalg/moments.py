"""One-pass, mergeable means and cross-covariances of paired rows, from which a rotation or linear map is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence._utils.arrays import blocks
from congruence.errors import ShapeError


class CrossMoments:
    """Weight, means and centered second moments of paired rows, in float64. ``cross`` (d_source, d_target) is Σ w (x −
    μ_x)ᵀ(y − μ_y), ``gram`` (d_source, d_source) or None the same of the source alone, and the scatters are Σ w ‖x −
    μ‖². Blocks are centered by their own mean and combined by the pairwise update of Chan, Golub and LeVeque (1983), so
    that a large common offset costs no digits.
    """

    def __init__(self, d_source: int, d_target: int, *, gram: bool = False) -> None:
        self.weight = 0.0
        self.rows = 0
        self.source_mean = np.zeros(d_source)
        self.target_mean = np.zeros(d_target)
        self.cross = np.zeros((d_source, d_target))
        self.gram = np.zeros((d_source, d_source)) if gram else None
        self.source_scatter = 0.0
        self.target_scatter = 0.0

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None, *, gram: bool = False) -> CrossMoments:
        """Gather the moments of paired rows; see ``update`` for the arguments."""
        return cls(X.shape[1], Y.shape[1], gram=gram).update(X, Y, weights)

    def update(self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None) -> CrossMoments:
        """Add paired rows (n, d_source) and (n, d_target); weights (n,) count as repetitions. Returns ``self``."""
        if weights is not None:
            keep = weights > 0
            if not keep.all():
                X, Y, weights = X[keep], Y[keep], weights[keep]
        # Four float64 copies of a block are in memory together.
        for part in blocks(len(X), 8 * (X.shape[1] + Y.shape[1]), minimum=256):
            self._merge(self._block(X[part], Y[part], None if weights is None else weights[part]))
        return self

    def _block(self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None) -> CrossMoments:
        new = object.__new__(CrossMoments)
        # A block of float32 rows, about its mean, loses nothing that a rotation needs by products in float32. Small
        # eigenvalues of a Gram matrix would be lost.
        single = X.dtype == Y.dtype == np.float32 and self.gram is None
        new.rows = len(X)
        w = np.ones(len(X)) if weights is None else weights.astype(np.float64)
        new.weight = float(w.sum())
        centered = []
        for rows in map(np.ascontiguousarray, (X, Y)):  # in other orders products round otherwise
            mean = rows.mean(axis=0, dtype=np.float64) if weights is None else w @ rows.astype(np.float64) / new.weight
            dtype = np.float32 if single else np.float64
            centered.append((mean, np.subtract(rows, mean.astype(dtype), dtype=dtype)))
        (new.source_mean, x), (new.target_mean, y) = centered
        new.source_scatter, new.target_scatter = (float(w @ np.einsum("ij,ij->i", z, z)) for z in (x, y))
        xw = x if weights is None else x * w[:, None].astype(x.dtype)
        new.cross = (xw.T @ y).astype(np.float64, copy=False)
        new.gram = xw.T @ x if self.gram is not None else None
        return new

    def _merge(self, other: CrossMoments) -> None:
        total = self.weight + other.weight
        if other.weight == 0:
            return
        share = other.weight / total
        factor = self.weight * share
        dx = other.source_mean - self.source_mean
        dy = other.target_mean - self.target_mean
        self.cross += other.cross
        self.cross += factor * np.outer(dx, dy)
        if self.gram is not None and other.gram is not None:
            self.gram += other.gram
            self.gram += factor * np.outer(dx, dx)
        self.source_scatter += other.source_scatter + factor * float(dx @ dx)
        self.target_scatter += other.target_scatter + factor * float(dy @ dy)
        self.source_mean = self.source_mean + share * dx
        self.target_mean = self.target_mean + share * dy
        self.weight = total
        self.rows += other.rows

    @classmethod
    def total(cls, parts: Sequence[CrossMoments]) -> CrossMoments:
        """Return the moments of several disjoint sets of rows together, with the Gram matrix if all have it."""
        if len({part.cross.shape for part in parts}) > 1:
            widths = " and ".join(sorted({str(part.cross.shape) for part in parts}))
            raise ShapeError(f"Got widths {widths}.", "Merge fits of the same models.")
        whole = all(part.gram is not None for part in parts if part.weight)  # else it would be that of some of the rows
        new = cls(*parts[0].cross.shape, gram=whole and parts[0].gram is not None)
        for part in parts:
            new._merge(part)
        return new

    def merge(self, other: CrossMoments) -> CrossMoments:
        """Return the moments of both sets of rows combined, with the Gram matrix if both have it."""
        return self.total([self, other])

    def without(self, part: CrossMoments) -> CrossMoments:
        """Return the moments of the remaining rows, without the Gram matrix, when ``part`` of them is removed."""
        removed = part.scaled(-1)
        removed.rows, removed.gram = -part.rows, None
        new = self.total([self, removed])
        new.source_scatter, new.target_scatter = max(new.source_scatter, 0.0), max(new.target_scatter, 0.0)
        return new

    def copy(self) -> CrossMoments:
        """Return an independent copy."""
        return CrossMoments.from_state(self.state())

    def scaled(self, factor: float) -> CrossMoments:
        """Return the moments of the same rows with every weight multiplied by ``factor``."""
        new = self.copy()
        new.weight, new.cross = self.weight * factor, self.cross * factor
        new.gram = None if self.gram is None else self.gram * factor
        new.source_scatter, new.target_scatter = self.source_scatter * factor, self.target_scatter * factor
        return new

    def swap(self) -> CrossMoments:
        """Return the moments with the two sides exchanged (without the Gram matrix)."""
        new = CrossMoments(len(self.target_mean), len(self.source_mean))
        new.weight, new.rows = self.weight, self.rows
        new.source_mean, new.target_mean = self.target_mean, self.source_mean
        new.cross = np.ascontiguousarray(self.cross.T)
        new.source_scatter, new.target_scatter = self.target_scatter, self.source_scatter
        return new

    def uncentered_cross(self) -> np.ndarray:
        """Return Σ w xᵀy about the origin, shape (d_source, d_target)."""
        return self.cross + self.weight * np.outer(self.source_mean, self.target_mean)

    def uncentered_gram(self) -> np.ndarray:
        """Return Σ w xᵀx about the origin, shape (d_source, d_source)."""
        assert self.gram is not None
        return self.gram + self.weight * np.outer(self.source_mean, self.source_mean)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything as arrays, for saving; ``from_state`` reads it back."""
        state = {
            "totals": np.array([self.weight, self.rows, self.source_scatter, self.target_scatter], dtype=np.float64),
            "source_mean": self.source_mean.copy(),
            "target_mean": self.target_mean.copy(),
            "cross": self.cross.copy(),
        }
        return state if self.gram is None else {**state, "gram": self.gram.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> CrossMoments:
        """Rebuild moments from ``state``."""
        new = object.__new__(cls)
        weight, rows, source_scatter, target_scatter = state["totals"].tolist()
        new.weight, new.rows = weight, int(rows)
        new.source_scatter, new.target_scatter = source_scatter, target_scatter
        new.source_mean, new.target_mean = state["source_mean"], state["target_mean"]
        new.cross, new.gram = state["cross"], state.get("gram")
        return new


def total_cross(moments: Sequence[CrossMoments], *, center: bool) -> np.ndarray:
    """Return the sum of Σ w xᵀy of several groups of rows, about each group's own means or about the origin."""
    total = np.zeros_like(moments[0].cross)
    for m in moments:
        total += m.cross if center else m.uncentered_cross()
    return total


def pooled_cross(moments: Sequence[CrossMoments], *, center: bool) -> np.ndarray:
    """Return ``total_cross`` divided by the total weight: the mean cross-covariance, shape (d_source, d_target)."""
    return total_cross(moments, center=center) / sum(m.weight for m in moments)


def total_size(moments: Sequence[CrossMoments], *, center: bool) -> float:
    """Return √(Σ w‖x‖² · Σ w‖y‖²), the largest possible sum of the singular values of ``total_cross``."""
    source = sum(m.source_scatter for m in moments)
    target = sum(m.target_scatter for m in moments)
    if not center:
        source += sum(m.weight * float(m.source_mean @ m.source_mean) for m in moments)
        target += sum(m.weight * float(m.target_mean @ m.target_mean) for m in moments)
    return float(np.sqrt(source * target))


def pooled_size(moments: Sequence[CrossMoments], *, center: bool) -> float:
    """Return ``total_size`` divided by the total weight."""
    return total_size(moments, center=center) / sum(m.weight for m in moments)
