"""Scores by maps that have not seen the items: held out, by cross-fitting, and along a learning curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import t

from congruence.metrics.hubness import HubnessCorrection
from congruence.upgrade.certify.design import Design, EvaluationSet, ListSearch, PairedTables, deal, shuffle
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.scoring import (
    PULL,
    ComparedSide,
    Hits,
    MapRecipe,
    TwoWay,
    correction,
    cosines,
    influence_of,
    list_hits,
    overlap_of,
    part_seen,
    score,
    sides,
    similarities,
    strategies_of,
    vectors_of,
    with_texts,
)
from congruence.upgrade.choose import Choice


def score_heldout(model: TwoWay, items: EvaluationSet) -> Measured:
    """Score items that are not anchors: tasks, cosines, and the overlap of result lists."""
    tables, groups = items.tables, items.groups
    out = Measured(mapped=model.to_target(tables.store_modality).transform(tables.source[tables.store_modality]))
    for name, hits in score(vectors_of(model, items), items, np.arange(tables.n)).items():
        out.add(name, hits.score, hits.influence, groups)
    for modality in tables.target:
        values = cosines(model, tables, modality, np.arange(len(tables.ids[modality])))
        out.add(f"cosine/{modality}", values, values, groups)
    k = items.list_length(len(items.compared))
    model = with_texts(model, items)
    for search in items.searches if k > 0 else ():
        inside = groups[items.compared] if search.paired and groups is not None else None
        judge = similarities("re-embed", model, items, search)
        for strategy in search.strategies:
            near = similarities(strategy, model, items, search)
            for measure, hits in list_hits(search, near, judge, k, items.ranking.hubness).items():
                out.add(f"{measure}/{strategy}", hits.score, influence_of(hits, search), inside)
    return out


#: What the deviation of a cross-validated mean of cosines, or of overlaps, is to that of its items: folds share
#: anchors, so their errors do not average out like independent ones (Bates, Hastie and Tibshirani 2023). By the same
#: simulation.
SHARED_FOLDS = 1.2

_MAPPED = ("stored", "queries")  # strategies whose scores depend on the map


def cross_fit(
    items: EvaluationSet, recipe: MapRecipe, *, folds: int, callback: Callable[[int], None] | None = None
) -> Measured:
    """Score every item with a map that has not seen it.

    Each fold's items are scored with maps fitted without that fold and without two folds. The difference estimates what
    the left-out anchors would have added, and corrects the score. The map is chosen again for each fold without its
    items, and both maps are of the chosen kind, so that the optimism of choosing on the same rows is not included.
    """
    tables, groups = items.tables, items.groups_of(recipe.fitted)
    units = np.arange(len(tables.ids[recipe.fitted[0]])) if groups is None else groups
    folds = min(folds, len(np.unique(units)))
    fold = deal(units, folds, np.random.default_rng(items.random_state))
    of_store, of_other = _unseen(tables, recipe.fitted, fold, folds)
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 1/f) without one of f folds, 1/(1 −
    # 2/f) without two, 1 with all.
    ahead = (folds / (folds - 1) - 1) / (folds / (folds - 2) - folds / (folds - 1))
    models: tuple[list[TwoWay], list[TwoWay]] = ([], [])  # fitted without each fold, and without two
    kinds = []
    for part in range(folds):
        outside = fold != part
        choice = recipe.choose(tables, np.flatnonzero(outside))
        kinds.append(choice.name)
        for maps, train in zip(models, (outside, outside & (fold != (part + 1) % folds)), strict=True):
            maps.append(recipe.fit(tables, np.flatnonzero(train), choice))
        if callback:
            callback(1)
    mapped, more = _score_unseen(models[0], items, of_store, of_other, strategies_of(tables))
    mapped_by_fewer, fewer = _score_unseen(models[1], items, of_store, of_other, _MAPPED)
    out = Measured(maps=kinds, mapped=mapped, mapped_by_fewer=mapped_by_fewer, ahead=ahead)
    for name, hits in more.items():  # strategies without a map score the same with fewer anchors
        values = hits.score + ahead * (hits.score - fewer.get(name, hits).score)
        influence = SHARED_FOLDS * (values - values.mean()) if hits.pull is None else values - PULL * hits.pull
        out.add(name, values, influence, groups)
    return out


def _score_unseen(
    models: Sequence[TwoWay],
    items: EvaluationSet,
    of_store: np.ndarray,
    of_other: np.ndarray,
    strategies: Sequence[str],
) -> tuple[np.ndarray, dict[str, Hits]]:
    """Return the mapped store, and all scores by task and strategy or cosine: of each row by its fold's map."""
    tables, stored = items.tables, items.tables.store_modality
    covered = None  # the part of each stored row that mapped queries can match
    if not tables.by_class and tables.query_modality in tables.target:
        covered = _by_fold(models, of_store, lambda model, rows: part_seen(model, items, rows))
    corrections = _unseen_corrections(models, covered, of_store, items)
    fixed = vectors_of(models[0], items, [name for name in strategies if name not in _MAPPED])
    found: dict[str, Hits] = {}
    for part, model in enumerate(models):
        test = np.flatnonzero(of_store == part)
        if not len(test):
            continue
        vectors = fixed | vectors_of(model, items, _MAPPED)
        if covered is not None:
            vectors["queries"] = vectors["queries"][0], covered
        ordered = {name: vectors[name] for name in strategies}
        for name, hits in score(ordered, items, test, corrections=corrections).items():
            whole = found.setdefault(name, Hits(np.zeros(tables.n), np.zeros(tables.n)))
            whole.score[test] = hits.score
            if whole.pull is not None and hits.pull is not None:
                whole.pull[:] += hits.pull

    def cosine(modality: str) -> Hits:
        fold = of_store if modality == stored else of_other
        return Hits(_by_fold(models, fold, lambda model, rows: cosines(model, tables, modality, rows)))

    found |= {f"cosine/{name}": cosine(name) for name in tables.target}
    source = tables.source[stored]
    return _by_fold(models, of_store, lambda model, rows: model.to_target(stored).transform(source[rows])), found


def _by_fold(
    models: Sequence[TwoWay], fold: np.ndarray, make: Callable[[TwoWay, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return each row as ``make`` returns it for the map that has not seen it."""
    parts = [(model, np.flatnonzero(fold == part)) for part, model in enumerate(models)]
    parts = [(model, rows) for model, rows in parts if len(rows)]  # there may be fewer prompts than folds
    made = np.concatenate([make(model, rows) for model, rows in parts])
    return np.asarray(made[np.argsort(np.concatenate([rows for _, rows in parts]))], np.float64)


def _unseen_corrections(
    models: Sequence[TwoWay], covered: np.ndarray | None, fold: np.ndarray, items: EvaluationSet
) -> dict[str, HubnessCorrection] | None:
    """Return each strategy's correction for hubs, computed from rows mapped by maps that were not fitted on them.

    Mapped anchors are closer to their own queries than other rows are, so they would look like hubs. None if hubs are
    not corrected for, or by each fold's own rows because these search for their class.
    """
    tables, ranking = items.tables, items.ranking
    if ranking.hubness is None or tables.by_class:
        return None
    out = {}
    for strategy in strategies_of(tables):
        parts = [(models[0], np.arange(tables.n))]
        if strategy in _MAPPED:
            parts = [(model, np.flatnonzero(fold == part)) for part, model in enumerate(models)]
        back = np.argsort(np.concatenate([rows for _, rows in parts]))
        units = [[side.unit(ranking, rows) for side in sides(strategy, model, tables)] for model, rows in parts]
        queries, store = (np.concatenate(pieces)[back] for pieces in zip(*units, strict=True))
        found = correction(items, queries, store if strategy != "queries" or covered is None else covered)
        assert found is not None
        out[strategy] = found
    return out


def _unseen(tables: PairedTables, fitted: Sequence[str], fold: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the fold whose map may score each row of the store, and of the other modality."""
    if not tables.by_class:
        return fold, fold
    assert tables.classes is not None
    if tables.store_modality in fitted:
        return fold, np.arange(len(tables.ids[tables.query_modality])) % folds
    return fold[tables.classes], fold


#: Number of parts into which the anchors are divided. A query and a row are compared by a map that was fitted on
#: neither, so each map leaves out two parts. The same with half as many parts estimates what the left-out anchors would
#: have added. The kind of map is chosen once for each pair of coarse parts, without them: six choices, each on half of
#: the anchors, serve the maps of both divisions. Choosing for each of the 28 fine maps would cost as much as fitting
#: them.
_PARTS, _COARSE = 8, 4


def cross_fit_lists(items: EvaluationSet, recipe: MapRecipe, out: Measured) -> None:
    """Add the overlap on the anchors, by cross-fitting: a query and a row are compared by a map fitted on neither."""
    tables, rows = items.tables, items.compared
    k = items.list_length(len(rows))
    if k <= 0 or not items.searches:
        return
    groups = items.groups_of(recipe.fitted)
    units = np.arange(len(tables.ids[recipe.fitted[0]])) if groups is None else groups
    fine = deal(units, _PARTS, np.random.default_rng(items.random_state))
    coarse = fine // (_PARTS // _COARSE)
    choices = {
        pair: recipe.choose(tables, np.flatnonzero(~np.isin(coarse, pair))) for pair in combinations(range(_COARSE), 2)
    }
    more, less = (
        _unseen_similarities(items, recipe, part, parts, choices) for part, parts in ((fine, _PARTS), (coarse, _COARSE))
    )
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 2/p) with two of p parts left out, 1
    # with none.
    errors = [1 / (1 - 2 / parts) for parts in (_PARTS, _COARSE)]
    ahead = (errors[0] - 1) / (errors[1] - errors[0])
    for search, near, near_by_fewer in zip(items.searches, more, less, strict=True):
        for strategy in search.strategies:
            by_more, by_fewer = (
                list_hits(search, similarity[strategy], near["re-embed"], k, items.ranking.hubness)
                for similarity in (near, near_by_fewer)
            )
            for measure, hits in by_more.items():
                score = hits.score + ahead * (hits.score - by_fewer[measure].score)
                influence = influence_of(Hits(score, hits.pull), search)
                inside = groups[rows] if search.paired and groups is not None else None
                out.add(f"{measure}/{strategy}", score, SHARED_FOLDS * (influence - influence.mean()), inside)


def _unseen_similarities(
    items: EvaluationSet, recipe: MapRecipe, part: np.ndarray, parts: int, choices: Mapping[tuple[int, int], Choice]
) -> list[dict[str, np.ndarray]]:
    """Return similarities of queries and rows by search and strategy, by maps fitted without this query and row."""
    tables, rows = items.tables, items.compared
    of_store = part
    if tables.by_class and tables.store_modality not in recipe.fitted:
        assert tables.classes is not None
        of_store = part[tables.classes]
    found = []
    for search in items.searches:
        fitted_on = search.role == "classes" and search.modality in recipe.fitted
        of_query = of_store[rows] if search.paired else part if fitted_on else np.full(len(search.target), -1)
        found.append(_Unseen(items, search, of_query, of_store[rows]))
    for model, cells in _leave_two_out(tables, recipe, part, parts, choices):
        model = with_texts(model, items)
        for unseen in found:
            unseen.add(model, cells)
    return [unseen.near for unseen in found]


def _leave_two_out(
    tables: PairedTables, recipe: MapRecipe, part: np.ndarray, parts: int, choices: Mapping[tuple[int, int], Choice]
) -> Iterator[tuple[TwoWay, list[tuple[int, int]]]]:
    """Yield maps fitted without two parts, with the pairs (part of the query, −1 for no anchor, part of the row)."""
    for a, b in combinations(range(parts), 2):
        one, other = a * _COARSE // parts, b * _COARSE // parts
        if one == other:  # both are in one coarse part: use a choice made without it
            other = (one + 1) % _COARSE
        choice = choices[min(one, other), max(one, other)]
        # If both are in the same part, or the query is not an anchor, use the map fitted without the row's part and the
        # next one.
        cells = [(a, b), (b, a)]
        for row, next_ in ((a, b), (b, a)):
            if (row + 1) % parts == next_:
                cells += [(row, row), (-1, row)]
        yield recipe.fit(tables, np.flatnonzero((part != a) & (part != b)), choice), cells


class _Unseen:
    """The similarities of a search's queries and rows, each by a map fitted without both; part −1 is no anchor."""

    def __init__(self, items: EvaluationSet, search: ListSearch, of_query: np.ndarray, of_row: np.ndarray) -> None:
        self._items, self._search = items, search
        self._numbers, self._parts = (search.queries_of(items.compared), items.compared), (of_query, of_row)
        self._unmapped: dict[tuple[str, int], np.ndarray] = {}
        self.near: dict[str, np.ndarray] = {}

    def add(self, model: TwoWay, cells: Sequence[tuple[int, int]]) -> None:
        """Compare queries and rows of some pairs of parts by a map."""
        some = [np.isin(side, parts) for side, parts in zip(self._parts, zip(*cells, strict=True), strict=True)]
        for strategy in ("re-embed", *self._search.strategies):
            if strategy in ("keep", "re-embed"):  # independent of the map
                if strategy not in self.near:
                    self.near[strategy] = similarities(strategy, model, self._items, self._search)
            elif all(which.any() for which in some):
                compared = sides(strategy, model, self._items.tables, self._search)
                queries, store = (self._unit(strategy, k, side, some[k]) for k, side in enumerate(compared))
                near = self.near.setdefault(strategy, np.empty((len(queries), len(store))))
                for of_query, of_row in cells:
                    i, j = np.flatnonzero(self._parts[0] == of_query), np.flatnonzero(self._parts[1] == of_row)
                    near[np.ix_(i, j)] = queries[i] @ store[j].T

    def _unit(self, strategy: str, k: int, side: ComparedSide, some: np.ndarray) -> np.ndarray:
        """Return unit rows of the queries or of the store, of which only some are set if they are mapped."""
        numbers = self._numbers[k]
        if side.map is None:
            if (strategy, k) not in self._unmapped:
                self._unmapped[strategy, k] = side.unit(self._items.ranking, numbers)
            return self._unmapped[strategy, k]
        mapped = side.unit(self._items.ranking, numbers[some])
        out = np.empty((len(numbers), mapped.shape[1]), mapped.dtype)
        out[some] = mapped
        return out


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
    design: Design,
    recipe: MapRecipe,
    measured: Measured,
    task: str,
    *,
    repeats: int,
    callback: Callable[[int], None] | None = None,
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
    curves = (LearningCurve.through(sizes, of_score, n) for of_score in points)
    # The shape of a curve is measured on few items; its level is set by the score on all of them.
    levels = (measured.estimates(task)[task]["stored"].value, measured.cosines()[shown].value)
    score_curve, cosine_curve = (curve.lifted(level - curve.at(n)) for curve, level in zip(curves, levels, strict=True))
    return score_curve, cosine_curve


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
