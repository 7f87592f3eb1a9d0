"""Candidate maps for cross-validation, fitted from sums over all pairs minus those of a fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.linalg.moments import CrossMoments
from congruence.linalg.procrustes import CrossSVD, half_svd
from congruence.linalg.shrinkage import choose_gains, mean_isometry
from congruence.maps import make_map

__all__ = ["LINEAR", "OFFSET", "ROTATIONS", "Candidate", "FittedPairs", "Moves", "Pairs", "moves"]

#: Share of the anchors' offset μ_B − μ_A @ rotation that is used for a modality whose target mean is unknown; docs/means.md gives the reason and the
#: data on which it was chosen.
OFFSET = 0.5

#: Functions from rows to mapped rows: for the anchors' modality, and for another one, whose source mean and target mean (or None) are passed.
Moves = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]]


@dataclass(frozen=True)
class Candidate:
    """A candidate map: its description, its method and its parameters."""

    name: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


#: In order of preference.
ROTATIONS = (
    Candidate("rotation about the means", "orthogonal"),
    Candidate("rotation about the means, no direction damped", "orthogonal", {"shrinkage": "covered"}),
    Candidate(
        "rotation about the means, weak directions damped more",
        "orthogonal",
        {"shrinkage": "wiener", "shrinkage_strength": 1.0},
    ),
    Candidate("rotation about the origin", "orthogonal", {"center": False}),
)
LINEAR = (
    Candidate("ridge regression", "linear"),
    Candidate("ridge regression without intercept", "linear", {"center": False}),
    Candidate("least squares with intercept", "linear", {"ridge": 0.0}),
)


class Pairs:
    """Paired rows and their moments.

    Parameters
    ----------
    X : ndarray, shape (n, d_source)
    Y : ndarray, shape (n, d_target)
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.X, self.Y = X, Y
        self._moments: CrossMoments | None = None

    def without(self, test: np.ndarray) -> FittedPairs:
        """Return all pairs except those in the given rows."""
        kept = np.ones(len(self.X), dtype=bool)
        kept[test] = False
        k = min(self.X.shape[1], self.Y.shape[1])
        if np.count_nonzero(kept) <= k:  # a product of thin matrices is decomposed faster than their cross-covariance
            return FittedPairs(self, kept, None)
        if self._moments is None:
            self._moments = CrossMoments.of(self.X, self.Y)
        left = self._moments.without(CrossMoments.of(self.X[test], self.Y[test]))
        return FittedPairs(self, kept, left)


class FittedPairs:
    """The pairs that candidates are fitted on; quantities that several candidates need are computed once.

    Parameters
    ----------
    pairs : Pairs
    which : ndarray of bool
    moments : CrossMoments or None
        None if there are fewer pairs than dimensions.
    """

    def __init__(self, pairs: Pairs, which: np.ndarray, moments: CrossMoments | None) -> None:
        self._pairs, self._which = pairs, which
        self.moments = moments
        self.means = (
            (moments.source_mean, moments.target_mean)
            if moments is not None
            else (self.X.mean(axis=0, dtype=np.float64), self.Y.mean(axis=0, dtype=np.float64))
        )
        self._solved: dict[bool, tuple[CrossSVD, float]] = {}

    @property
    def X(self) -> np.ndarray:
        """The source rows, shape (n, d_source): a copy, made only if rows themselves are needed."""
        return np.asarray(self._pairs.X[self._which])

    @property
    def Y(self) -> np.ndarray:
        """The target rows, shape (n, d_target)."""
        return np.asarray(self._pairs.Y[self._which])

    def solved(self, center: bool) -> tuple[CrossSVD, float]:
        """Return the SVD of the mean cross-covariance, with its leading ``rank`` singular vectors, and its alignment.

        The singular values are padded with zeros to min(d_source, d_target), as the shrinkage expects them.
        """
        if center not in self._solved:
            self._solved[center] = self._thin(center) if self.moments is None else self._whole(center)
        return self._solved[center]

    def span(self) -> np.ndarray | None:
        """Return an orthonormal basis of the span of the source rows, shape (d_source, n), or None if there are at least d_source rows.

        Ridge regression on the coordinates in this basis equals ridge regression on the rows.
        """
        if np.count_nonzero(self._which) >= self._pairs.X.shape[1]:
            return None
        return np.asarray(np.linalg.qr(self.X.T.astype(np.float64))[0])

    def _thin(self, center: bool) -> tuple[CrossSVD, float]:
        """Return :meth:`solved` from the rows, if there are fewer pairs than dimensions."""
        a, b = self.means if center else (0.0, 0.0)
        x, y = self.X.astype(np.float64) - a, self.Y.astype(np.float64) - b
        n, most = len(x), min(x.shape[1], y.shape[1])
        (qx, rx), (qy, ry) = np.linalg.qr(x.T), np.linalg.qr(y.T)
        U, s, Vt = np.linalg.svd(rx @ ry.T / n)
        size = float(np.linalg.norm(x) * np.linalg.norm(y)) / n
        rank = int(np.count_nonzero(s > 4 * max(x.shape[1], y.shape[1]) * np.finfo(np.float64).eps * max(size, 1e-300)))
        rank = min(rank, n - center)
        whole = np.zeros(most)
        whole[:rank] = s[:rank]
        return CrossSVD(qx @ U[:, :rank], whole, Vt[:rank] @ qy.T, rank), float(s.sum() / size) if size else 0.0

    def _whole(self, center: bool) -> tuple[CrossSVD, float]:
        """Return :meth:`solved` from the moments."""
        m = self.moments
        assert m is not None
        cross = (m.cross if center else m.uncentered_cross()) / m.weight
        svd = half_svd(cross)
        source, target = m.source_scatter, m.target_scatter
        if not center:
            source += m.weight * float(m.source_mean @ m.source_mean)
            target += m.weight * float(m.target_mean @ m.target_mean)
        size = float(np.sqrt(source * target)) / m.weight
        return svd, float(svd.s.sum() / size) if size else 0.0


def moves(candidate: Candidate, kept: FittedPairs) -> Moves:
    """Fit a candidate, and return functions that map rows of the anchors' modality and of another one.

    Parameters
    ----------
    candidate : Candidate
    kept : FittedPairs

    Returns
    -------
    callable
        Function of rows that returns mapped rows.
    callable
        Function of rows, their modality's source mean and its target mean (or None) that returns mapped rows.
    """
    if candidate.method != "orthogonal":
        fitted: Any = make_map(candidate.method, **candidate.parameters)
        basis = kept.span()
        fitted.solve(kept.X @ basis if basis is not None else kept.X, kept.Y)

        def own(rows: np.ndarray) -> np.ndarray:
            return np.asarray(fitted.transform(rows if basis is None else rows @ basis))

        return own, lambda rows, *means: own(rows)
    center = candidate.parameters.get("center", True)
    shrinkage = candidate.parameters.get("shrinkage", "wiener")
    svd, alignment = kept.solved(center)
    if svd.rank == 0:
        gains, extra = np.zeros(0), None
    else:
        gains = choose_gains(shrinkage, svd, alignment, candidate.parameters.get("shrinkage_strength"))[1][: svd.rank]
        extra = None
        if center and shrinkage == "wiener" and svd.rank < len(svd.s):
            matrix, count = mean_isometry(svd, [kept.means])
            extra = matrix if count else None
    a, b = kept.means if center else tuple(np.zeros_like(mean) for mean in kept.means)

    def rotate(rows: np.ndarray) -> np.ndarray:
        rotated = (rows @ svd.U * gains) @ svd.Vt
        return np.asarray(rotated if extra is None else rotated + rows @ extra)

    def other(rows: np.ndarray, source_mean: np.ndarray, target_mean: np.ndarray | None) -> np.ndarray:
        if target_mean is not None:
            return np.asarray(rotate(rows - source_mean) + target_mean)
        return np.asarray(rotate(rows) + OFFSET * (b - rotate(a[None])[0]))

    return lambda rows: rotate(rows - a) + b, other
