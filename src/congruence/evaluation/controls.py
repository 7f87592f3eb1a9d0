"""Reference values for scores: maps that use only the means, and chance.

Vectors of one modality lie in a narrow cone, so the cosine between *any* two of them is high, and a mean cosine alone
says little about a map. Two controls show how much of it is due to the means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_seed
from congruence.maps import AffineMap, Map, OrthogonalMap
from congruence.metrics import paired_cosine

#: Number of random rotations over which a control is averaged, and their random seed.
DRAWS, RANDOM_STATE = 5, 0

#: A mean whose norm relative to the rows is at most this counts as zero, which has no direction.
_NO_DIRECTION = 1e-9


@dataclass(frozen=True)
class ControlRows:
    """Rows in place of mapped ones: ``lengths`` (n,) from ``center`` (d,), in a rotated space of ``width`` ≥ d."""

    center: np.ndarray
    lengths: np.ndarray
    width: int
    in_sample: bool

    def constant(self) -> np.ndarray | None:
        """Return every row replaced by the center (n, d); None if that is zero, or the only row."""
        scale = float(self.lengths.max(initial=0.0)) or 1.0
        if self._alone or float(np.linalg.norm(self.center)) <= _NO_DIRECTION * scale:
            return None
        return np.broadcast_to(self.center, (len(self.lengths), len(self.center)))

    @property
    def _alone(self) -> bool:
        return self.in_sample and len(self.lengths) < 2

    def rotated(self, rng: np.random.Generator) -> np.ndarray | None:
        """Return the rows (n, d) after a random rotation about the means, None if the center is the only row.
        Directions are independent: an average over rows has the same expectation as with one Haar rotation, for less.
        """
        if self._alone:
            return None
        directions = rng.standard_normal((len(self.lengths), self.width), dtype=np.float32)
        directions *= (self.lengths / np.linalg.norm(directions, axis=1)).astype(np.float32)[:, None]
        return directions[:, : len(self.center)] + self.center.astype(np.float32)

    def score(
        self, measure: Callable[[np.ndarray], float], *, draws: int = DRAWS, random_state: int = RANDOM_STATE
    ) -> Controls:
        """Score both kinds of control rows like the mapped ones; ``measure`` of rows (n, d) is a mean over rows."""
        check_seed(random_state)
        rng = np.random.default_rng(random_state)
        constant, drawn = self.constant(), (self.rotated(rng) for _ in range(draws))
        values = [measure(rows) for rows in drawn if rows is not None]
        return Controls(
            constant=None if constant is None else measure(constant),
            random_rotation=float(np.mean(values)) if values else None,
        )


@dataclass(frozen=True)
class Controls:
    """Scores of the two kinds of control rows, the second averaged over draws; None without such rows."""

    constant: float | None
    random_rotation: float | None


def control_rows(mapping: Map, X: RowsLike, Y: RowsLike) -> ControlRows:
    """Return the rows that replace the mapped rows of a map, set to their modality, in the two controls. The constant
    is z ↦ μ_B. The random rotation of an ``OrthogonalMap`` is z ↦ μ_B + (z − μ_A) Q with a Haar Q; of another affine
    map f it is z ↦ μ_B + (f(z) − μ_B) Q, since f may shrink what it adds to the mean. μ_A and μ_B are the means of the
    map's anchors or, for maps without means, nonlinear and joint-space maps, those of the given (mapped) rows.
    """
    X, Y = np.asarray(X), np.asarray(Y)
    affine = isinstance(mapping, AffineMap) and bool(mapping.target_mean_.any())  # else the map has no means
    if isinstance(mapping, OrthogonalMap):
        ours = mapping.source_mean_ if affine else X.mean(axis=0, dtype=np.float64)
        theirs = mapping.target_mean_ if affine else Y.mean(axis=0, dtype=np.float64)
        return ControlRows(theirs, _lengths(X, ours), max(X.shape[1], Y.shape[1]), not affine)
    center = mapping.target_mean_ if affine and isinstance(mapping, AffineMap) else None
    return control_rows_of(mapping.transform(X), mapping.transform_target(Y), center)


def control_rows_of(mapped: np.ndarray, theirs: np.ndarray, center: np.ndarray | None = None) -> ControlRows:
    """Return the rows that replace mapped rows (n, d) of a map of unknown means, beside ``theirs`` (m, d)."""
    own = mapped.mean(axis=0, dtype=np.float64) if center is None else center
    target = theirs.mean(axis=0, dtype=np.float64) if center is None else center
    return ControlRows(target, _lengths(mapped, own), theirs.shape[1], center is None)


def cosine_controls(
    mapping: Map, X: RowsLike, Y: RowsLike, *, draws: int = DRAWS, random_state: int = RANDOM_STATE
) -> Controls:
    """Return the mean cosines of the two controls on paired rows X and Y, shape (n, d), of a map set to their modality.

    >>> from congruence import OrthogonalMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=200, d_source=16, random_state=0)
    >>> mapping = OrthogonalMap().fit(problem.X, problem.Y)
    >>> controls = cosine_controls(mapping, problem.X, problem.Y)
    >>> bool(controls.constant < 0.9 and controls.random_rotation < 0.9)
    True
    """
    theirs = mapping.transform_target(Y)
    rows = control_rows(mapping, X, Y)
    return rows.score(lambda mapped: paired_cosine(mapped, theirs), draws=draws, random_state=random_state)


def chance_at_k(matching: ArrayLike, n: int, k: int = 1) -> float:
    """Return the expected share of queries that find a match among k of n rows drawn at random: 1 − C(n − m, k) / C(n,
    k) for each query with m matches, ``matching`` (q,).

    >>> round(chance_at_k([1, 1, 1], 303), 6)
    0.0033
    """
    missing = n - np.asarray(matching, dtype=np.float64)
    missed = np.ones_like(missing)
    for drawn in range(min(k, n)):
        missed *= np.maximum(missing - drawn, 0) / (n - drawn)
    return float(np.mean(1 - missed))


def _lengths(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the distance of each row from the mean."""
    return np.linalg.norm(rows - mean, axis=1)
