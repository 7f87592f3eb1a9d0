"""The effect of more anchors: a learning curve, its extrapolation, and an upper bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

from congruence.upgrade.certify.design import Design, EvaluationSet, shuffle
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import cosines, overlap_of, score, vectors_of
from congruence.upgrade.choose import Choice

#: Exponents tried for score(n) = a − b·n^−c. The error of a rotation falls as n^−1/2, and its effect on the score as
#: the square of that. Slower laws fit the beginning of some curves but not their end, and predicted larger gains than
#: further anchors brought (docs/certify.md).
EXPONENTS: Sequence[float] = np.linspace(0.7, 2.0, 27).tolist()

SHAPES = (0.5, 0.7, 1.0, 1.5)  # exponents of redrawn curves: eight noisy points hardly determine how to extrapolate

#: Largest number of held-out items on which a curve is measured; all of them determine its level afterwards
#: (``Curve.lifted``).
MOST_TESTED = 1000


@dataclass(frozen=True)
class LearningCurve:
    """Held-out scores by number of anchors, and a power law fitted to them."""

    sizes: np.ndarray  # (s,), numbers of anchors
    scores: np.ndarray  # (repeats, s), over random orders of the anchors
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

        The rise over the last doubling, with its one-sided 95 % error, times the number of doublings to come. Repeats
        use the same anchors, so the variance of their mean is s² (1/repeats + held out/fitted on): Nadeau and Bengio
        (2003), "Inference for the generalization error".
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
        """Return the curve through a bootstrap sample of the repeats, with a random exponent from ``SHAPES``."""
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
            "sd": (self.scores.std(axis=0, ddof=1) if len(self.scores) > 1 else np.zeros(len(self.sizes))).tolist(),
            "repeats": len(self.scores),
            "law": {"best": self.best, "drop": self.drop, "exponent": self.exponent},
        }


def measure_curves(
    design: Design, recipe: MapRecipe, task: str, *, repeats: int, callback: Callable[[int], None] | None = None
) -> tuple[LearningCurve, LearningCurve]:
    """Return the curves of the score with mapped stored vectors, and of their cosine, over subsets of the anchors."""
    items, anchors, n = design.items, design.anchors, design.n_anchors
    rng = np.random.default_rng(items.random_state)
    if design.heldout and items.tables.n > MOST_TESTED:
        items = items.take(np.sort(rng.choice(items.tables.n, MOST_TESTED, replace=False)))
    groups = None if design.heldout else items.groups_of(design.fitted)
    room = n if design.heldout else n - max(n // 5, 1)
    sizes = np.unique(np.geomspace(max(6, room // 32), room, 8).round().astype(int))
    shown = items.tables.shown
    choices: list[Choice] = []
    points = np.empty((2, repeats, len(sizes)))
    for repeat in range(repeats):
        order = rng.permutation(n) if groups is None else shuffle(groups, rng)
        test, other = _rows_to_score(items, design.fitted, None if design.heldout else order[room:], rng)
        for k, size in enumerate(sizes):
            if repeat == 0:
                choices.append(recipe.choose(anchors, order[:size]))
            model = recipe.fit(anchors, order[:size], choices[k])
            if "overlap@" in task:
                points[0, repeat, k] = overlap_of(model, items, task, test)
            else:
                hits = score(vectors_of(model, items, ("stored",)), items, test, {task: items.tasks[task]})
                points[0, repeat, k] = next(iter(hits.values())).score.mean() if hits else np.nan
            points[1, repeat, k] = cosines(model, items.tables, shown, other).mean()
        if callback:
            callback(1)
    return LearningCurve.through(sizes, points[0], n), LearningCurve.through(sizes, points[1], n)


def _rows_to_score(
    items: EvaluationSet, fitted: Sequence[str], left_out: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the store, and of the modality whose cosine is shown, on which the map may be scored."""
    tables, shown = items.tables, items.tables.shown
    if left_out is None:
        test, other = np.arange(tables.n), np.arange(len(tables.ids[shown]))
    elif not tables.by_class:
        test = other = left_out
    elif tables.store_modality in fitted:
        test, other = left_out, (left_out if shown == tables.store_modality else np.arange(len(tables.ids[shown])))
    else:
        assert tables.classes is not None
        test = np.flatnonzero(np.isin(tables.classes, left_out))
        other = test if shown == tables.store_modality else left_out
    few = [rng.choice(rows, MOST_TESTED, replace=False) if len(rows) > MOST_TESTED else rows for rows in (test, other)]
    return few[0], few[1]


def gains(curve: LearningCurve, cosine_curve: LearningCurve) -> list[dict[str, float]]:
    """Return the expected gain in score and cosine from several numbers of further anchors, and its upper bound."""
    steps = sorted({max(1, round(curve.n * share)) for share in (0.25, 0.5, 1.0, 3.0)})
    room = max(0.0, 1.0 - curve.at(curve.n))  # no score exceeds 1
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
