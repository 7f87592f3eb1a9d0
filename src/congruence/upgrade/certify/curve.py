"""What more anchors would add: a learning curve, its extrapolation, and the most it could be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, overload

import numpy as np
from scipy.stats import t

from congruence.evaluation import Ranking
from congruence.upgrade.certify.groups import shuffle
from congruence.upgrade.certify.overlap import overlap_of
from congruence.upgrade.certify.ranking import PLAIN
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.tables import Tables
from congruence.upgrade.certify.trial import cosines, score
from congruence.upgrade.choose import Choice

__all__ = ["Curve", "CurveRecord", "Law", "gains", "measure_curves"]

#: Exponents tried for score(n) = a − b·n^−c. The rotation's own error falls as n^−1/2 and what it costs as its square; slower laws,
#: which the start of a curve suggests and its end does not, promised more than further anchors then brought (docs/certify.md).
EXPONENTS: Sequence[float] = np.linspace(0.7, 2.0, 27).tolist()

#: Exponents of redrawn curves: eight noisy points hardly tell how a curve goes on.
SHAPES = (0.5, 0.7, 1.0, 1.5)

#: Held-out items a curve is measured on, at most; its level is set by all of them afterwards.
MOST_TESTED = 1000


class Law(TypedDict):
    """The power law ``best − drop·n^−exponent``."""

    best: float
    drop: float
    exponent: float


class CurveRecord(TypedDict):
    """A curve as plain data: numbers of anchors, mean and standard deviation of the scores, repeats, and the law through them."""

    anchors: list[int]
    mean: list[float]
    sd: list[float]
    repeats: int
    law: Law


@dataclass(frozen=True)
class Curve:
    """Held-out scores by number of anchors, and the power law through them.

    Attributes
    ----------
    sizes : ndarray of int, shape (s,)
    scores : ndarray, shape (repeats, s)
        Each repeat is a random order of the anchors, taken from the front.
    n : int
        Anchors at hand: where the extrapolation starts.
    exponent, drop : float
        Of ``a − drop·n^−exponent``.
    best : float
        a: what no number of anchors exceeds, by this curve.
    """

    sizes: np.ndarray
    scores: np.ndarray
    n: int
    exponent: float
    drop: float
    best: float

    @classmethod
    def through(cls, sizes: np.ndarray, scores: np.ndarray, n: int, exponents: Sequence[float] = EXPONENTS) -> Curve:
        """Fit the power law by least squares, larger sizes weighing more.

        Parameters
        ----------
        sizes : ndarray of int, shape (s,)
        scores : ndarray, shape (repeats, s)
        n : int
        exponents : sequence of float, optional
            To choose from.

        Returns
        -------
        Curve
        """
        mean = scores.mean(axis=0)
        # What is asked lies beyond the largest size, so the far end counts most: a law through the first sizes misses the last rise.
        weight = sizes / sizes.max()
        best = (np.inf, 1.0, 0.0, float(mean[-1]))
        for exponent in exponents:
            design = np.stack([np.ones(len(sizes)), -((sizes / sizes.max()) ** -exponent)], axis=1) * weight[:, None]
            (top, drop), *_ = np.linalg.lstsq(design, mean * weight, rcond=None)
            if drop < 0:  # fewer anchors are never better but by chance
                top, drop = float(np.average(mean, weights=weight**2)), 0.0
            error = float(np.sum((design @ (top, drop) - mean * weight) ** 2))
            if error < best[0]:
                best = (error, float(exponent), float(drop), float(top))
        _, exponent, drop, top = best
        return cls(sizes, scores, n, exponent, drop * float(sizes.max()) ** exponent, top)

    @overload
    def at(self, n: float) -> float: ...
    @overload
    def at(self, n: np.ndarray) -> np.ndarray: ...
    def at(self, n: float | np.ndarray) -> float | np.ndarray:
        """Return the curve at n anchors."""
        return self.best - self.drop * np.asarray(n, dtype=float) ** -self.exponent

    def gain(self, more: int) -> float:
        """Return the expected gain of so many more anchors."""
        return float(self.at(self.n + more) - self.at(self.n))

    def most(self, more: int) -> float:
        """Return what so many more anchors add at most, if no doubling adds more than the one before.

        Parameters
        ----------
        more : int

        Returns
        -------
        float
            The rise over the last doubling, its one-sided 95 % error included, once for each doubling to come; and never less
            than what is expected.

        References
        ----------
        Nadeau and Bengio (2003), "Inference for the generalization error": repeats draw from the same anchors, so the variance of their mean is
        s² (1/repeats + held out/fitted on) and not s²/repeats.
        """
        half = int(np.abs(self.sizes - self.sizes[-1] / 2).argmin())
        rise = self.scores[:, -1] - self.scores[:, half]
        repeats, fitted_on = len(rise), self.sizes[-1]
        error = 0.0
        if repeats > 1:
            shared = (self.n - fitted_on) / fitted_on
            error = float(t.ppf(0.95, repeats - 1) * rise.std(ddof=1) * np.sqrt(1 / repeats + shared))
        doublings = np.log1p(more / self.n) / np.log(self.sizes[-1] / self.sizes[half])
        return max(self.gain(more), (float(rise.mean()) + error) * float(doublings))

    def enough(self, wanted: float, most: int) -> int | None:
        """Return how many more anchors bring the curve to a score, or None if not so many do.

        Parameters
        ----------
        wanted : float
        most : int

        Returns
        -------
        int or None
        """
        if wanted >= self.best or self.drop <= 0:
            return None
        more = int(np.ceil((self.drop / (self.best - wanted)) ** (1 / self.exponent))) - self.n
        if more > most:
            return None
        more = max(more, 1)
        step = 10 ** max(0, int(np.log10(more)) - 1)  # two digits say all there is to say
        return min(most, -(-more // step) * step)

    def redraw(self, rng: np.random.Generator) -> Curve:
        """Return the curve through a bootstrap sample of the repeats, with an exponent drawn from :data:`SHAPES`."""
        sample = self.scores[rng.integers(len(self.scores), size=len(self.scores))]
        return Curve.through(self.sizes, sample, self.n, [float(rng.choice(SHAPES))])

    def lifted(self, by: float) -> Curve:
        """Return the curve moved up or down, through a score measured better elsewhere."""
        return Curve(self.sizes, self.scores + by, self.n, self.exponent, self.drop, self.best + by)

    def to_dict(self) -> CurveRecord:
        """Return everything as plain data."""
        return {
            "anchors": self.sizes.tolist(),
            "mean": self.scores.mean(axis=0).tolist(),
            "sd": (self.scores.std(axis=0, ddof=1) if len(self.scores) > 1 else np.zeros(len(self.sizes))).tolist(),
            "repeats": len(self.scores),
            "law": {"best": self.best, "drop": self.drop, "exponent": self.exponent},
        }


def measure_curves(
    tables: Tables,
    queries: Tables | None,
    recipe: Recipe,
    task: str,
    depth: int,
    *,
    texts: tuple[np.ndarray | None, np.ndarray] | None = None,
    groups: np.ndarray | None = None,
    ranking: Ranking = PLAIN,
    repeats: int,
    random_state: int,
    callback: Callable[[int], None] | None = None,
) -> tuple[Curve, Curve]:
    """Score maps fitted on growing random parts of the anchors.

    Parameters
    ----------
    tables : Tables
        Anchors.
    queries : Tables or None
        Items to score; None scores a fifth of the anchors, which is then not fitted on.
    recipe : Recipe
        What is chosen is chosen once a size, on the anchors of the first repeat.
    task : str
    depth : int
    texts : (ndarray or None, ndarray), optional
        Text queries of other items.
    groups : ndarray of int, shape (n,), optional
        Anchors that are fitted on or scored together, such as near-duplicates.
    ranking : Ranking, optional
        The way to search.
    repeats, random_state : int
    callback : callable, optional

    Returns
    -------
    Curve, Curve
        Of the task, mapping the stored vectors, and of the cosine of mapped rows.
    """
    rng = np.random.default_rng(random_state)
    if queries is not None and queries.n > MOST_TESTED:
        queries = queries.take(np.sort(rng.choice(queries.n, MOST_TESTED, replace=False)))
    n = len(tables.ids[recipe.fitted[0]])
    room = n if queries is not None else n - max(n // 5, 1)
    sizes = np.unique(np.geomspace(max(6, room // 32), room, 8).round().astype(int))
    on = tables if queries is None else queries
    shown = on.shown
    choices: list[Choice] = []
    points = np.empty((2, repeats, len(sizes)))
    for repeat in range(repeats):
        order = rng.permutation(n) if groups is None else shuffle(groups, rng)
        test, other = _rows_to_score(tables, queries, recipe.fitted, order[room:], shown, rng)
        for k, size in enumerate(sizes):
            if repeat == 0:
                choices.append(recipe.choose(tables, order[:size]))
            model = recipe.fit(tables, order[:size], choices[k])
            if "overlap@" in task:
                points[0, repeat, k] = overlap_of(model, on, task, test, depth, texts, ranking)
            else:
                hits = score(model, on, test, {task: depth}, only=("stored",), ranking=ranking)
                points[0, repeat, k] = next(iter(hits.values())).score.mean() if hits else np.nan
            points[1, repeat, k] = cosines(model, on, shown, other).mean()
        if callback:
            callback(1)
    return Curve.through(sizes, points[0], n), Curve.through(sizes, points[1], n)


def _rows_to_score(
    tables: Tables,
    queries: Tables | None,
    fitted: Sequence[str],
    left: np.ndarray,
    shown: str,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the store, and of the modality whose cosine is shown, that the map may be scored on."""
    if queries is not None:
        test, other = np.arange(queries.n), np.arange(len(queries.ids[shown]))
    elif not tables.by_class:
        test = other = left
    elif tables.stored in fitted:
        test, other = left, (left if shown == tables.stored else np.arange(len(tables.ids[shown])))
    else:
        assert tables.classes is not None
        test = np.flatnonzero(np.isin(tables.classes, left))
        other = test if shown == tables.stored else left
    pick = [rng.choice(rows, MOST_TESTED, replace=False) if len(rows) > MOST_TESTED else rows for rows in (test, other)]
    return pick[0], pick[1]


def gains(curve: Curve, cosine_curve: Curve) -> list[dict[str, float]]:
    """Return what some numbers of further anchors are expected to add, and the most they could, to the score and to the cosine."""
    steps = sorted({max(1, round(curve.n * share)) for share in (0.25, 0.5, 1.0, 3.0)})
    room = max(0.0, 1.0 - float(curve.at(curve.n)))  # no score exceeds 1
    return [
        {
            "more": more,
            "score": min(curve.gain(more), room),
            "score_at_most": min(curve.most(more), room),
            "cosine": cosine_curve.gain(more),
            "cosine_at_most": cosine_curve.most(more),
        }
        for more in steps
    ]
