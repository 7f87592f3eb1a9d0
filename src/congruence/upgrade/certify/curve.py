"""Scores by number of anchors, and what more of them would add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

from congruence.upgrade.certify.intervals import Measured

#: Exponents tried for score(n) = a − b·n^−c. The error of a rotation falls as n^−1/2, and its effect on the score as
#: the square of that. Slower laws fit the beginning of some curves but not their end, and predicted larger gains than
#: further anchors brought (docs/certify.md).
EXPONENTS: Sequence[float] = np.linspace(0.7, 2.0, 27).tolist()

SHAPES = (0.5, 0.7, 1.0, 1.5)  # exponents of redrawn curves: a few noisy points hardly determine how to extrapolate


@dataclass(frozen=True)
class LearningCurve:
    """Held-out scores by number of anchors, and a power law fitted to them."""

    sizes: np.ndarray  # (s,), numbers of anchors
    scores: np.ndarray  # (parts, s), on parts of the items, or by maps of different anchors
    n: int  # anchors available, where the extrapolation starts
    exponent: float  # of best − drop·n^−exponent
    drop: float
    best: float  # the limit for many anchors

    @classmethod
    def through(
        cls, sizes: np.ndarray, scores: np.ndarray, n: int, exponents: Sequence[float] = EXPONENTS
    ) -> LearningCurve:
        """Fit the power law by least squares, with larger weights for larger sizes."""
        mean = scores.mean(axis=0)
        # The curve is extrapolated beyond the largest size, so large sizes have more weight: a law fitted to the first
        # sizes misses the last rise.
        weight = sizes / sizes.max()
        best = (np.inf, 1.0, 0.0, float(mean[-1]))
        for exponent in exponents:
            design = np.stack([np.ones(len(sizes)), -((sizes / sizes.max()) ** -exponent)], axis=1) * weight[:, None]
            (top, drop), *_ = np.linalg.lstsq(design, mean * weight, rcond=None)
            if drop < 0:  # fewer anchors score higher only by chance: use a constant
                top, drop = float(np.average(mean, weights=weight**2)), 0.0
            error = float(np.sum((design @ (top, drop) - mean * weight) ** 2))
            if error < best[0]:
                best = (error, float(exponent), float(drop), float(top))
        _, exponent, drop, top = best
        return cls(sizes, scores, n, exponent, drop * float(sizes.max()) ** exponent, top)

    def at(self, n: float) -> float:
        """Return the curve at n anchors."""
        return float(self.best - self.drop * float(n) ** -self.exponent)

    def gain(self, more: int) -> float:
        """Return the expected gain from this many further anchors."""
        return self.at(self.n + more) - self.at(self.n)

    def most(self, more: int) -> float:
        """Return an upper bound on the gain from further anchors: no doubling adds more than the previous one.

        The rise over the last doubling, with its one-sided 95 % error, times the number of doublings to come. Parts
        share anchors, so the variance of their mean is s² (1/parts + held out/fitted on): Nadeau and Bengio (2003),
        "Inference for the generalization error".
        """
        half = int(np.abs(self.sizes - self.sizes[-1] / 2).argmin())
        rise = self.scores[:, -1] - self.scores[:, half]
        parts, fitted_on = len(rise), self.sizes[-1]
        error = 0.0
        if parts > 1:
            shared = (self.n - fitted_on) / fitted_on
            error = float(t.ppf(0.95, parts - 1) * rise.std(ddof=1) * np.sqrt(1 / parts + shared))
        doublings = np.log1p(more / self.n) / np.log(self.sizes[-1] / self.sizes[half])
        return max(self.gain(more), (float(rise.mean()) + error) * float(doublings))

    def enough(self, wanted: float, most: int) -> int | None:
        """Return how many further anchors raise the curve to a score, or None if ``most`` are not enough."""
        if wanted >= self.best or self.drop <= 0:
            return None
        more = int(np.ceil((self.drop / (self.best - wanted)) ** (1 / self.exponent))) - self.n
        if more > most:
            return None
        more = max(more, 1)
        # Rounded up to two significant digits: more would suggest false precision.
        step = 10 ** max(0, int(np.log10(more)) - 1)
        return min(most, -(-more // step) * step)

    def redraw(self, rng: np.random.Generator) -> LearningCurve:
        """Return the curve through a bootstrap sample of the parts, with a random exponent from ``SHAPES``."""
        sample = self.scores[rng.integers(len(self.scores), size=len(self.scores))]
        return LearningCurve.through(self.sizes, sample, self.n, [float(rng.choice(SHAPES))])

    def lifted(self, by: float) -> LearningCurve:
        """Return the curve shifted vertically, so that it passes through a score measured more accurately."""
        return LearningCurve(self.sizes, self.scores + by, self.n, self.exponent, self.drop, self.best + by)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {
            "anchors": self.sizes.tolist(),
            "mean": self.scores.mean(axis=0).tolist(),
            "error": (self.scores.std(axis=0) / np.sqrt(max(len(self.scores) - 1, 1))).tolist(),
            "law": {"best": self.best, "drop": self.drop, "exponent": self.exponent},
        }


def curve_of(measured: Measured, name: str, n: int, level: float) -> LearningCurve:
    """Return the curve of a score through its level with all n anchors, which all items determine."""
    curve = LearningCurve.through(np.array(measured.sizes) * n, measured.curves[name], n)
    return curve.lifted(level - curve.at(n))


def gains(curve: LearningCurve, cosine_curve: LearningCurve) -> list[dict[str, Any]]:
    """Return the expected gain in score and cosine from several numbers of further anchors, and its upper bound; None
    for one that says nothing, since no score exceeds 1.
    """
    steps = sorted({max(1, round(curve.n * share)) for share in (0.25, 0.5, 1.0, 3.0)})
    out: list[dict[str, Any]] = []
    for more in steps:
        out.append({"more": more})
        for name, one in (("score", curve), ("cosine", cosine_curve)):
            room, most = max(0.0, 1.0 - one.at(one.n)), one.most(more)
            out[-1] |= {name: min(one.gain(more), room), f"{name}_at_most": most if most < room else None}
    return out
