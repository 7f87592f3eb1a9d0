"""Confidence intervals of scores and their ratios, calibrated by ``benchmarks/certify_calibration.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import norm, t

from congruence.upgrade.progressive.meter import Estimate

#: Factor by which the intervals of ratios are wider than the spread of the items suggests: maps of different folds
#: share most of their anchors, so the errors of their items do not average out like independent ones. Found with
#: ``benchmarks/certify_calibration.py``.
WIDER = 1.05


def covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance (q, q) of means of items whose errors may depend on each other within groups (n,).

    Liang and Zeger (1986), "Longitudinal data analysis using generalized linear models", the robust variance.
    """
    n = len(influence)
    centered = influence - influence.mean(axis=0)
    if groups is not None:
        codes = np.unique(groups, return_inverse=True)[1]
        sums = np.zeros((int(codes.max()) + 1, centered.shape[1]))
        np.add.at(sums, codes, centered)
        centered = sums
    count = len(centered)
    return np.asarray(centered.T @ centered * (count / max(count - 1, 1)) / n**2)


def joint_covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance (q, q) of several scores of the same items, used to compare the scores.

    It includes one more item on which the scores disagree: if none does, as near 0 or 1, the sample shows no spread.
    """
    most = len(influence) if groups is None else len(np.unique(groups))
    return WIDER**2 * (covariance(influence, groups) + np.eye(influence.shape[1]) / (2 * most**2))


def draw_scores(
    scores: np.ndarray, influence: np.ndarray, draws: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Draw joint values of the true scores, (draws, q), given the measured ones (q,).

    From the multivariate t-distribution with the covariance and degrees of freedom of their intervals, truncated to [0,
    1]. A bootstrap of the items would ignore that a few groups estimate the variance badly.
    """
    freedom_ = freedom(len(influence), groups)
    values, vectors = np.linalg.eigh(joint_covariance(influence, groups))
    normal = rng.standard_normal((draws, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    scale = np.sqrt(freedom_ / rng.chisquare(freedom_, draws))
    return np.asarray(np.clip(scores + normal * scale[:, None], 0, 1))


def freedom(n: int, groups: np.ndarray | None = None) -> float:
    """Return the degrees of freedom of ``covariance``: its number of independent deviations.

    n − 1, or the number of groups minus one if they have equal sizes, and less if they do not; at least 1.
    Satterthwaite (1946), "An approximate distribution of estimates of variance components", for sums over groups of
    that size.
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
    z = float(norm.ppf((1 + level) / 2))
    variance = float(covariance(influence[:, None], groups)[0, 0]) if n > 1 else 0.0
    spread = rate * (1 - rate)
    # At most as many trials as the groups have: if all are hits, or none, the influence shows no spread.
    most = each * (n if groups is None else len(np.unique(groups)))
    trials = min(most, spread / variance) if variance > 0 and spread > 0 else most
    if groups is not None and n > 1:  # a variance estimated from few groups is itself uncertain
        trials *= float(t.ppf((1 + level) / 2, n - 1) / t.ppf((1 + level) / 2, freedom(n, groups))) ** 2
    middle = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(spread / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return float(min(max(0.0, middle - half), rate)), float(max(min(1.0, middle + half), rate))


def ratio_interval(
    above: float, below: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return Fieller's interval of the ratio of two scores of the same items, with infinite end for ``below`` near
    zero.

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


#: Which vectors are compared: queries and store of the source model; the target's queries with mapped stored vectors;
#: mapped queries with the source's stored vectors; queries and store of the target model.
STRATEGIES = ("keep", "stored", "queries", "re-embed")


@dataclass
class Measured:
    """Scores of items on which maps were evaluated."""

    scores: dict[str, np.ndarray] = field(default_factory=dict)  # (n,), by "<task>/<strategy>" or "cosine/<modality>"
    influence: dict[str, np.ndarray] = field(default_factory=dict)  # scores with each item's effect on others
    groups: dict[str, np.ndarray] = field(default_factory=dict)  # items whose errors depend on each other
    maps: list[str] = field(default_factory=list)  # chosen in each fold
    mapped: np.ndarray | None = None  # (n, d_target), by maps that have not seen the row
    mapped_by_fewer: np.ndarray | None = None  # the same, of maps fitted on fewer anchors
    ahead: float = 0.0  # how far their difference is extrapolated to all anchors
    sizes: list[float] = field(default_factory=list)  # shares of the anchors that maps were fitted on
    #: Scores (parts, s) by maps of these sizes, on parts of the items or by maps of different anchors.
    curves: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, score: np.ndarray, influence: np.ndarray, groups: np.ndarray | None = None) -> None:
        """Add the scores of items and their influence."""
        self.scores[name], self.influence[name] = score, influence
        if groups is not None:
            self.groups[name] = groups

    def add_size(self, share: float, scores: Mapping[str, Sequence[float]]) -> None:
        """Add scores of maps fitted on this share of the anchors to the curves."""
        self.sizes.append(share)
        for name, values in scores.items():
            column = np.array(values)[:, None]
            self.curves[name] = np.hstack([self.curves[name], column]) if name in self.curves else column

    def estimates(self, first: str) -> dict[str, dict[str, Estimate]]:
        """Return the score of each strategy by task, with this task first."""
        tasks = dict.fromkeys(name.split("/")[0] for name in self.scores if not name.startswith("cosine/"))
        return {
            task: {
                strategy: self._rate(f"{task}/{strategy}")
                for strategy in STRATEGIES
                if f"{task}/{strategy}" in self.scores
            }
            for task in sorted(tasks, key=lambda task: task != first)
        }

    def cosines(self) -> dict[str, Estimate]:
        """Return the mean cosine of mapped and target rows by modality."""
        return {name.split("/")[1]: self._mean(name) for name in self.scores if name.startswith("cosine/")}

    def retention(
        self, task: str, strategies: list[str], draws: int, rng: np.random.Generator
    ) -> tuple[dict[str, Estimate], dict[str, np.ndarray]]:
        """Return the ratios of mapping to re-embedding and to keeping the old model, and joint draws of all scores."""
        n, groups = len(self.scores[f"{task}/{strategies[0]}"]), self.groups.get(f"{task}/{strategies[0]}")
        means = np.array([self.scores[f"{task}/{strategy}"].mean() for strategy in strategies])
        influence = np.stack([self.influence[f"{task}/{strategy}"] for strategy in strategies], axis=1)
        drawn = dict(zip(strategies, draw_scores(means, influence, draws, rng, groups).T, strict=True))
        ratios = {}
        for over in ("re-embed", "keep"):
            for strategy in ("stored", "queries"):
                if over in strategies and strategy in strategies and means[strategies.index(over)] > 0:
                    both = [strategies.index(strategy), strategies.index(over)]
                    value = float(means[both[0]] / means[both[1]])
                    low, high = ratio_interval(
                        float(means[both[0]]), float(means[both[1]]), influence[:, both], groups=groups
                    )
                    ratios[f"{strategy}/{over}"] = Estimate(value, low, high, n)
        return ratios, drawn

    def _rate(self, name: str) -> Estimate:
        # The correction for left-out anchors can leave [0, 1].
        value = float(np.clip(self.scores[name].mean(), 0, 1))
        # Number of results over which a query's score is averaged.
        each = int(name.split("/")[0].split("@")[1]) if "overlap@" in name else 1
        interval = rate_interval(value, self.influence[name], groups=self.groups.get(name), each=each)
        return Estimate(value, *interval, len(self.scores[name]))

    def _mean(self, name: str) -> Estimate:
        values, influence, groups = self.scores[name], self.influence[name], self.groups.get(name)
        low, high = mean_interval(float(values.mean()), influence, groups=groups)
        return Estimate(float(values.mean()), max(low, -1.0), min(high, 1.0), len(values))
