"""Scores of items on which maps were evaluated, and the estimates of their means."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.upgrade._estimate import Estimate
from congruence.upgrade.certify.intervals import draw_scores, mean_interval, rate_interval, ratio_interval

__all__ = ["STRATEGIES", "Measured"]

#: Which vectors are compared: queries and store of the source model; the target's queries with mapped stored vectors; mapped queries with the
#: source's stored vectors; queries and store of the target model.
STRATEGIES = ("keep", "stored", "queries", "re-embed")


@dataclass
class Measured:
    """Scores of items on which maps were evaluated.

    Attributes
    ----------
    scores : dict of str to ndarray, shape (n,)
        By name, ``"<task>/<strategy>"`` or ``"cosine/<modality>"``; the mean is the estimate.
    influence : dict of str to ndarray, shape (n,)
        The scores including each item's effect on the others; their spread gives the uncertainty of the estimate.
    groups : dict of str to ndarray of int, shape (n,)
        Items whose errors depend on each other, if any.
    maps : list of str
        The map chosen in each fold, if items were scored in folds.
    mapped : ndarray, shape (n, d_target), or None
        The stored items, each mapped by a map that has not seen it.
    mapped_by_fewer : ndarray, shape (n, d_target), or None
        The same with maps fitted on one fold less, if items were scored in folds.
    ahead : float
        Factor by which the difference between these two is extrapolated to a map fitted on all anchors.
    """

    scores: dict[str, np.ndarray] = field(default_factory=dict)
    influence: dict[str, np.ndarray] = field(default_factory=dict)
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    maps: list[str] = field(default_factory=list)
    mapped: np.ndarray | None = None
    mapped_by_fewer: np.ndarray | None = None
    ahead: float = 0.0

    def add(self, name: str, score: np.ndarray, influence: np.ndarray, groups: np.ndarray | None = None) -> None:
        """Add the scores of items and their influence; groups are ignored if they are those of other items."""
        self.scores[name], self.influence[name] = score, influence
        if groups is not None and len(groups) == len(score):
            self.groups[name] = groups

    def __or__(self, other: Measured) -> Measured:
        """Return the scores of both."""
        first = other if self.mapped is None else self
        return Measured(
            self.scores | other.scores,
            self.influence | other.influence,
            self.groups | other.groups,
            self.maps + other.maps,
            first.mapped,
            first.mapped_by_fewer,
            first.ahead,
        )

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
        """Return the ratios that show how much quality mapping retains, and joint draws of all strategies' scores.

        Parameters
        ----------
        task : str
        strategies : list of str
            The strategies that were measured.
        draws : int
        rng : numpy.random.Generator

        Returns
        -------
        ratios : dict of str to Estimate
            By ``"<strategy>/<strategy>"``: mapping divided by re-embedding, and by keeping the old model.
        drawn : dict of str to ndarray, shape (draws,)
            By strategy, from :func:`draw_scores`.
        """
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
