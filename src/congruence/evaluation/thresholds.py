"""Translate thresholds on the old model's scores to thresholds on scores of mapped vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_positive, check_seed
from congruence.errors import ParameterError, TooFewAnchorsError
from congruence.evaluation.judgments import Judgments
from congruence.evaluation.paired_tests import wilson

#: Maximum numbers of queries and of pairs; if there are more, queries and rows of the index are sampled.
MOST_QUERIES, MOST_PAIRS = 2000, 4_000_000

#: Number of pairs above the highest point of the translation, and numbers of points above and below the median score.
TAIL_PAIRS, HIGH_POINTS, LOW_POINTS = 5, 192, 64

#: Number of bootstrap samples of queries, and confidence level of the intervals.
RESAMPLES, LEVEL = 500, 0.95

#: Rows of the table of thresholds.
COLUMNS = (
    *("old", "new", "fpr_old", "fpr_unchanged", "fpr", "fpr_low", "fpr_high"),
    *("recall_old", "recall_unchanged", "recall", "recall_low", "recall_high"),
)


@dataclass(frozen=True)
class Translation(PlainData):
    """A threshold on the old model's scores, and the ``value`` to use instead when vectors are mapped. False-positive
    rates (the share of irrelevant pairs above the threshold) and recall (of relevant pairs; None if none is known) are
    measured on queries that the translation was not fitted on: with the old model, with mapped vectors and the old
    threshold (``_unchanged``), and with mapped vectors and ``value``, whose 95 % interval is from resampled queries.
    ``unmapped`` is the same for vectors that are left as they are, where the widths agree.
    """

    threshold: float
    value: float
    fpr_old: float
    fpr_unchanged: float
    fpr: float
    fpr_interval: tuple[float, float]
    recall_old: float | None
    recall_unchanged: float | None
    recall: float | None
    recall_interval: tuple[float, float] | None
    unmapped: Translation | None = None

    @property
    def leave(self) -> bool:
        """Whether unmapped vectors find more at this rate of false positives: the intervals of recall are apart."""
        mapped, left = self.recall_interval, None if self.unmapped is None else self.unmapped.recall_interval
        return mapped is not None and left is not None and left[0] > mapped[1]


@dataclass(frozen=True, eq=False)
class Thresholds:
    """A monotone translation of scores, with its error rates: ``table`` (12, points) has the rows ``COLUMNS``, and
    (24, points) the same twice, for mapped and for unmapped vectors.
    """

    table: np.ndarray
    n_queries: int
    n_pairs: int
    n_relevant: int

    def translate(self, threshold: float) -> Translation:
        """Return the translation of a cosine threshold of the old model."""
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            raise ParameterError(argument="threshold", got=threshold, expected="a number", fix="Pass `threshold=0.28`.")
        old = self.table[0]
        if not old[0] <= threshold <= old[-1]:
            problem = f"Got `threshold={threshold:g}`; expected one from {old[0]:.4f} to {old[-1]:.4f}."
            raise ParameterError(problem, "Pass a `threshold=…` of this range.")
        found: Translation | None = None
        for table in reversed(self._tables()):
            _, value, *at = (float(np.interp(threshold, old, row)) for row in table)
            recall = (*at[5:8], (at[8], at[9])) if self.n_relevant else (None, None, None, None)
            rates: Any = (*at[:3], (at[3], at[4]), *recall, found)
            found = Translation(float(threshold), value, *rates)
        assert found is not None
        return found

    def _tables(self) -> list[np.ndarray]:
        return np.split(self.table, len(self.table) // len(COLUMNS))

    def at_rates(self, rates: Sequence[float]) -> list[tuple[float, Translation]]:
        """Translate the thresholds at which the old model has these false-positive rates, as far as there are such."""
        fpr, old = self.table[COLUMNS.index("fpr_old")][::-1], self.table[0][::-1]  # rates ascending
        return [(rate, self.translate(float(np.interp(rate, fpr, old)))) for rate in rates if fpr[0] <= rate <= fpr[-1]]

    def describe(self) -> dict[str, float]:
        """Return the counts, and the range of thresholds that can be translated, as plain data."""
        return {**self.facts(), "lowest": float(self.table[0, 0]), "highest": float(self.table[0, -1])}

    def facts(self) -> dict[str, int]:
        """Return the facts that are saved with the table."""
        return {"n_queries": self.n_queries, "n_pairs": self.n_pairs, "n_relevant": self.n_relevant}

    @classmethod
    def restore(cls, table: np.ndarray, facts: Mapping[str, Any]) -> Thresholds:
        """Build the translation from saved data, after checking it."""
        counts = [facts[name] for name in ("n_queries", "n_pairs", "n_relevant")]
        if set(facts) != {"n_queries", "n_pairs", "n_relevant"} or any(type(n) is not int or n < 0 for n in counts):
            raise TypeError("invalid counts of queries or pairs")
        forms = (len(COLUMNS), 2 * len(COLUMNS))
        if table.ndim != 2 or table.shape[0] not in forms or table.shape[1] < 2 or table.dtype != np.float64:
            raise ValueError("a table of thresholds of another form")
        fitted = cls(table, *counts)
        for old, new, *rates in fitted._tables():
            if not np.isfinite([old, new]).all() or not ((np.diff(old) > 0) & (np.diff(new) >= 0)).all():
                raise ValueError("thresholds that are not monotone")
            if not (np.isfinite(rates).all() and 0 <= np.min(rates) <= np.max(rates) <= 1):
                raise ValueError("rates outside 0 to 1")
        return fitted


def match_quantiles(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return corresponding scores (p,) of two models, with the same share of the sorted scores (n,) above them."""
    n = len(old)
    tail = min(TAIL_PAIRS / n, 0.5)
    above = np.concatenate([[0], np.geomspace(tail, 0.5, HIGH_POINTS), np.linspace(0.5, 1, LOW_POINTS + 1)[1:]])
    place = (1 - above[::-1]) * (n - 1)
    points = [np.interp(place, np.arange(n), scores) for scores in (old, new)]
    first, at = np.unique(points[0], return_index=True)  # scores that repeat, as of identical rows, are one point
    return first, points[1][at]


def fit_thresholds(
    new: tuple[np.ndarray, np.ndarray],
    old: tuple[np.ndarray, np.ndarray],
    judgments: Judgments | None,
    *,
    folds: int,
    random_state: int,
) -> Thresholds:
    """Fit and cross-validate a translation; without ``judgments`` all pairs are irrelevant."""
    check_positive(folds, "folds", integer=True)
    check_seed(random_state)
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(new[0]))[:MOST_QUERIES]
    size = len(new[1])
    if folds < 2 or len(order) < 2 * folds:
        raise TooFewAnchorsError(
            f"Got {len(order)} queries for {folds} folds; expected two queries per fold.", "Pass more, or `folds=2`."
        )
    sides = [normalize_rows(queries[order]) for queries, _ in (old, new)]
    sampled = np.arange(size)
    if len(order) * size > MOST_PAIRS:
        sampled = np.sort(rng.choice(size, max(MOST_PAIRS // len(order), 100), replace=False))
    same = new[1] is old[1]  # a bridge leaves the index as it is
    galleries = [normalize_rows(old[1][sampled])]
    galleries.append(galleries[0] if same else normalize_rows(new[1][sampled]))
    relevant = [judgments.rows[q] if judgments else np.empty(0, np.intp) for q in order]
    # Relevant pairs are left out of the irrelevant ones by a score that lies below every cosine.
    scores = [side @ rows.T for side, rows in zip(sides, galleries, strict=True)]
    for q, rows in enumerate(relevant):
        excluded = np.isin(sampled, rows)
        for side in scores:
            side[q, excluded] = -2
    for side in scores:
        side.sort(axis=1)
    n_irrelevant = np.array([int(np.count_nonzero(row > -2)) for row in scores[0]])
    true = [
        [np.sort(normalize_rows(gallery[rows]) @ side[q]) for q, rows in enumerate(relevant)]
        for side, gallery in zip(sides, (old[1], new[1]), strict=True)
    ]
    n_relevant = np.array([len(rows) for rows in relevant])
    pooled = [_pool(side) for side in scores]
    points, values = match_quantiles(*pooled)
    if len(points) < 2:
        raise ParameterError(f"All {len(pooled[0])} irrelevant pairs have one score.", "Pass other `queries=…`.")
    fold_of = np.arange(len(order)) % folds  # the order is random already
    passed = np.zeros((2, 3, len(order), len(points)))  # irrelevant and relevant pairs: old, unchanged, new
    for fold in range(folds):
        training = fold_of != fold
        cut = np.interp(points, *match_quantiles(*(_pool(side[training]) for side in scores)))
        for q in np.flatnonzero(~training).tolist():
            for k, (side, at) in enumerate(((0, points), (1, points), (1, cut))):
                passed[:, k, q] = [_above(pairs[side][q], at) for pairs in (scores, true)]
    weights = rng.multinomial(len(order), np.full(len(order), 1 / len(order)), size=RESAMPLES).astype(np.float64)

    def rates(above: np.ndarray, total: np.ndarray) -> list[np.ndarray]:
        """Return the three rates at each point, and the interval of the last one."""
        if not total.sum():
            return [np.zeros(len(points))] * 5
        plain = above.sum(axis=1) / total.sum()
        drawn = (weights @ above[2]) / np.maximum(weights @ total, 1)[:, None]
        return [*plain, *_intervals(plain[2], drawn.var(axis=0), total)]

    table = np.stack([points, values, *rates(passed[0], n_irrelevant), *rates(passed[1], n_relevant)])
    return Thresholds(table.astype(np.float64), len(order), int(n_irrelevant.sum()), int(n_relevant.sum()))


def _intervals(rates: np.ndarray, variance: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's intervals of rates, at the numbers of independent pairs that their variances imply.

    Where all pairs pass, or none, the sample shows no variance: there the pairs of a query count as they do at the
    threshold where they depend on each other most, or as one if no threshold shows it.
    """
    spread = rates * (1 - rates)
    known = (variance > 0) & (spread > 0)
    trials = np.divide(spread, variance, out=np.full(len(rates), float(np.count_nonzero(total))), where=known)
    if known.any():
        trials[~known] = trials[known].min()
    return wilson(rates, np.minimum(trials, float(total.sum())), LEVEL)


def _pool(scores: np.ndarray) -> np.ndarray:
    """Return the scores of all irrelevant pairs, ascending."""
    pooled = scores[scores > -2].astype(np.float64)
    pooled.sort()
    return pooled


def _above(ascending: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Count the scores at or above each threshold."""
    return len(ascending) - np.searchsorted(ascending, at.astype(ascending.dtype), side="left")
