"""Estimates read from the scores of items: intervals and ratios, and curves by number of anchors.

The intervals are calibrated by ``benchmarks/certify_calibration.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t

from congruence.evaluation.paired_tests import group_sums, wilson
from congruence.upgrade.progressive.meter import Estimate

if TYPE_CHECKING:
    from congruence.upgrade.certify.design import EvaluationSet

#: Factor by which intervals of ratios are wider than the spread of the items: maps of different folds share anchors.
WIDER = 1.05


def covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance (q, q) of means of items whose errors may depend on each other within groups (n,).

    Liang and Zeger (1986), "Longitudinal data analysis using generalized linear models", the robust variance.
    """
    n = len(influence)
    sums, _ = group_sums(influence - influence.mean(axis=0), groups)
    count = len(sums)
    return np.asarray(sums.T @ sums * (count / max(count - 1, 1)) / n**2)


def joint_covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance (q, q) with which several scores of the same items are compared.

    It includes one more item on which the scores disagree: if none does, as near 0 or 1, the sample shows no spread.
    """
    most = len(influence) if groups is None else len(np.unique(groups))
    return WIDER**2 * (covariance(influence, groups) + np.eye(influence.shape[1]) / (2 * most**2))


def draw_scores(
    scores: np.ndarray, influence: np.ndarray, draws: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Draw joint values of the true scores, (draws, q), from the multivariate t-distribution of their intervals.

    Truncated to [0, 1]. A bootstrap of the items would ignore that a few groups estimate the variance badly.
    """
    errors = draw_errors(joint_covariance(influence, groups), freedom(len(influence), groups), draws, rng)
    return np.asarray(np.clip(scores + errors, 0, 1))


def draw_errors(spread: np.ndarray, degrees: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw from the multivariate t-distribution with a covariance (q, q) and degrees of freedom, shape (draws, q)."""
    values, vectors = np.linalg.eigh(spread)
    normal = rng.standard_normal((draws, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return np.asarray(normal * np.sqrt(degrees / rng.chisquare(degrees, draws))[:, None])


def freedom(n: int, groups: np.ndarray | None = None) -> float:
    """Return the degrees of freedom of ``covariance``: n − 1, or groups of equal size minus one, and at least 1.

    Satterthwaite (1946), "An approximate distribution of estimates of variance components", for sums over groups.
    """
    sizes = np.ones(n) if groups is None else np.unique(groups, return_counts=True)[1].astype(float)
    return max(1.0, float(np.sum(sizes**2) ** 2 / np.sum(sizes**4)) - 1)


def mean_interval(
    mean: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return Student's interval of a mean."""
    n = len(influence)
    if n < 2:
        return float("-inf"), float("inf")
    half = float(t.ppf((1 + level) / 2, freedom(n, groups))) * np.sqrt(covariance(influence[:, None], groups)[0, 0])
    return float(mean - half), float(mean + half)


def rate_interval(
    rate: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None, each: int = 1
) -> tuple[float, float]:
    """Return Wilson's interval of a rate, with the number of independent trials that its standard error implies.

    ``each`` is the number of trials over which an item's score is averaged. Wilson (1927), "Probable inference, the law
    of succession, and statistical inference"; Korn and Graubard (1998), "Confidence intervals for proportions with
    small expected number of positive counts".
    """
    n = len(influence)
    variance = float(covariance(influence[:, None], groups)[0, 0]) if n > 1 else 0.0
    spread = rate * (1 - rate)
    # At most as many trials as the groups have: if all are hits, or none, the influence shows no spread.
    most = each * (n if groups is None else len(np.unique(groups)))
    trials = min(most, spread / variance) if variance > 0 and spread > 0 else most
    if groups is not None and n > 1:  # a variance estimated from few groups is itself uncertain
        trials *= float(t.ppf((1 + level) / 2, n - 1) / t.ppf((1 + level) / 2, freedom(n, groups))) ** 2
    low, high = wilson(np.asarray(rate), trials, level)
    return float(low), float(high)


def ratio_interval(
    above: float, below: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return Fieller's interval of the ratio of two scores of the same items; its end is infinite for small ``below``.

    Of the ``joint_covariance``, with Student's quantile. Fieller (1954), "Some problems in interval estimation".
    """
    z = float(t.ppf((1 + level) / 2, freedom(len(influence), groups)))
    spread = joint_covariance(influence, groups)
    square = below**2 - z**2 * spread[1, 1]
    middle = above * below - z**2 * spread[0, 1]
    rest = above**2 - z**2 * spread[0, 0]
    inside = middle**2 - square * rest
    if square <= 0 or inside < 0:
        return 0.0, float("inf")
    half = np.sqrt(inside)
    return max(0.0, float((middle - half) / square)), float((middle + half) / square)


#: Which vectors are compared: queries and store of the source model; the target's queries with the source's stored
#: vectors; with mapped stored vectors; mapped queries with the source's stored vectors; queries and store of the target
#: model.
STRATEGIES = ("keep", "leave", "stored", "queries", "re-embed")


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of items."""

    value: np.ndarray  # (n,)
    influence: np.ndarray  # (n,), with each item's effect on others
    groups: np.ndarray | None  # (n,), of items whose errors depend on each other
    each: int = 1  # results over which the score of a query is averaged

    def mean(self) -> float:
        """Return the mean over the items."""
        return float(self.value.mean())


@dataclass
class Measured:
    """Scores of items on which maps were evaluated."""

    scores: dict[str, Scores] = field(default_factory=dict)  # by "<task>/<strategy>" or "cosine/<modality>"
    maps: list[str] = field(default_factory=list)  # chosen in each fold
    mapped: np.ndarray | None = None  # (n, d_target), by maps that have not seen the row
    mapped_by_fewer: np.ndarray | None = None  # the same, of maps fitted on fewer anchors
    compared: EvaluationSet | None = None  # the items, in the coordinates in which they were mapped, if in others
    ahead: float = 0.0  # how far their difference is extrapolated to all anchors
    lists: np.ndarray | None = None  # (m, SHOWN), the rows that each query of the decisive search finds first
    #: Shares of the anchors that maps were fitted on, and scores by them: of parts of the items, or of several maps.
    points: list[tuple[float, dict[str, list[float]]]] = field(default_factory=list)

    def curve(self, name: str, n: int, level: float) -> LearningCurve:
        """Return the curve of a score through its level with all n anchors, which all items determine."""
        sizes = np.array([share for share, _ in self.points]) * n
        curve = LearningCurve.through(sizes, np.array([found[name] for _, found in self.points]).T, n)
        return curve.lifted(level - curve.at(n))

    def estimates(self, first: str) -> dict[str, dict[str, Estimate]]:
        """Return the score of each strategy by task, with this task first."""
        found: dict[str, dict[str, Estimate]] = {first: {}}
        for name, scores in self.scores.items():
            task, strategy = name.split("/")
            if task != "cosine":
                value = float(np.clip(scores.mean(), 0, 1))  # the correction for left-out anchors can leave [0, 1]
                ends = rate_interval(value, scores.influence, groups=scores.groups, each=scores.each)
                found.setdefault(task, {})[strategy] = Estimate(value, *ends, len(scores.value))
        return {task: {key: ways[key] for key in STRATEGIES if key in ways} for task, ways in found.items()}

    def cosines(self) -> dict[str, Estimate]:
        """Return the mean cosine of mapped and target rows by modality."""
        found = {}
        for name, scores in self.scores.items():
            if name.startswith("cosine/"):
                low, high = mean_interval(scores.mean(), scores.influence, groups=scores.groups)
                ends = max(low, -1.0), min(high, 1.0)
                found[name.split("/")[1]] = Estimate(scores.mean(), *ends, len(scores.value))
        return found

    def retention(
        self, task: str, strategies: list[str], draws: int, rng: np.random.Generator
    ) -> tuple[dict[str, Estimate], dict[str, np.ndarray]]:
        """Return the ratios of mapping to re-embedding and to keeping the old model, and joint draws of all scores."""
        scores = [self.scores[f"{task}/{strategy}"] for strategy in strategies]
        groups, means = scores[0].groups, np.array([one.mean() for one in scores])
        influence = np.stack([one.influence for one in scores], axis=1)
        drawn = dict(zip(strategies, draw_scores(means, influence, draws, rng, groups).T, strict=True))
        ratios = {}
        for over in ("re-embed", "keep"):
            for strategy in ("leave", "stored", "queries"):
                if over in strategies and strategy in strategies and means[strategies.index(over)] > 0:
                    both = [strategies.index(strategy), strategies.index(over)]
                    above, below = means[both].tolist()
                    ends = ratio_interval(above, below, influence[:, both], groups=groups)
                    ratios[f"{strategy}/{over}"] = Estimate(above / below, *ends, len(influence))
        return ratios, drawn


#: Exponents tried for score(n) = a − b·n^−c. The error of a rotation falls as n^−1/2, and its effect on the score as
#: the square of that. Slower laws predicted larger gains than further anchors brought.
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

    def _last_rise(self) -> tuple[float, float, float]:
        """Return the rise over the last doubling, its one-sided 95 % error, and the ratio of the two sizes.

        Parts share anchors, so the variance of their mean is s² (1/parts + held out/fitted on): Nadeau and Bengio
        (2003), "Inference for the generalization error".
        """
        half = int(np.abs(self.sizes - self.sizes[-1] / 2).argmin())
        rise = self.scores[:, -1] - self.scores[:, half]
        parts, fitted_on = len(rise), self.sizes[-1]
        error = 0.0
        if parts > 1:
            shared = (self.n - fitted_on) / fitted_on
            error = float(t.ppf(0.95, parts - 1) * rise.std(ddof=1) * np.sqrt(1 / parts + shared))
        return float(rise.mean()), error, float(self.sizes[-1] / self.sizes[half])

    @property
    def rises(self) -> bool:
        """Whether the last doubling of the anchors has added more than its statistical error."""
        rise, error, _ = self._last_rise()
        return rise > error

    def most(self, more: int) -> float:
        """Return an upper bound on the gain from further anchors: no doubling adds more than the previous one, with its
        error, times the number of doublings to come.
        """
        rise, error, ratio = self._last_rise()
        return max(self.gain(more), (rise + error) * float(np.log1p(more / self.n) / np.log(ratio)))

    def redraw(self, rng: np.random.Generator) -> LearningCurve:
        """Return the curve through a bootstrap sample of the parts, with a random exponent from ``SHAPES``."""
        sample = self.scores[rng.integers(len(self.scores), size=len(self.scores))]
        return LearningCurve.through(self.sizes, sample, self.n, [float(rng.choice(SHAPES))])

    def lifted(self, by: float) -> LearningCurve:
        """Return the curve shifted vertically, so that it passes through a score measured more accurately."""
        return replace(self, scores=self.scores + by, best=self.best + by)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {
            "anchors": self.sizes.tolist(),
            "mean": self.scores.mean(axis=0).tolist(),
            "error": (self.scores.std(axis=0) / np.sqrt(max(len(self.scores) - 1, 1))).tolist(),
            "law": {"best": self.best, "drop": self.drop, "exponent": self.exponent},
        }


def gains(curve: LearningCurve, cosine_curve: LearningCurve) -> list[dict[str, Any]]:
    """Return the expected gain in score and cosine by number of further anchors, and its upper bound, or None if that
    says nothing, since no score exceeds 1.
    """
    steps = sorted({max(1, round(curve.n * share)) for share in (0.25, 0.5, 1.0)})
    out: list[dict[str, Any]] = []
    for more in steps:
        out.append({"more": more})
        for name, one in (("score", curve), ("cosine", cosine_curve)):
            room, most = max(0.0, 1.0 - one.at(one.n)), one.most(more)
            out[-1] |= {name: min(one.gain(more), room), f"{name}_at_most": most if most < room else None}
    return out
