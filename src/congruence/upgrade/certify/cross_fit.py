"""Scores of held-out items, and of the anchors by cross-fitting: each by a map that was fitted without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from congruence.metrics.hubness import Correction
from congruence.upgrade.certify.design import EvaluationSet, ListSearch, PairedTables, deal
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.recipe import MapRecipe, TwoWay
from congruence.upgrade.certify.scoring import (
    PULL,
    ComparedSide,
    Hits,
    Vectors,
    correction,
    cosines,
    influence_of,
    list_hits,
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
    # The part of each stored row that mapped queries can match, by the map that has not seen the row.
    covered: list[np.ndarray | None] = [None, None]
    if not tables.by_class and tables.query_modality in tables.target:
        covered = [_by_fold(maps, of_store, lambda model, rows: part_seen(model, items, rows)) for maps in models]
    corrections = [_unseen_corrections(*pair, of_store, items) for pair in zip(models, covered, strict=True)]
    stored, source = tables.store_modality, tables.source[tables.store_modality]
    mapped, mapped_by_fewer = (
        _by_fold(maps, of_store, lambda model, rows: model.to_target(stored).transform(source[rows])) for maps in models
    )
    out = Measured(maps=kinds, mapped=mapped, mapped_by_fewer=mapped_by_fewer, ahead=ahead)
    pulls: dict[str, np.ndarray | float] = {}
    fixed = vectors_of(models[0][0], items, ("keep", "re-embed"))
    for part, (model, model_of_fewer) in enumerate(zip(*models, strict=True)):
        test = np.flatnonzero(of_store == part)
        more, less = (
            score(vectors, items, test, corrections=hubs) if len(test) else {}
            for vectors, hubs in zip(_vectors((model, model_of_fewer), items, fixed, covered), corrections, strict=True)
        )
        for name, hits in more.items():
            values = out.scores.setdefault(name, np.zeros(tables.n))
            fewer = less[name] if name.split("/")[1] in _MAPPED else hits  # the others are the same for either map
            values[test] = hits.score + ahead * (hits.score - fewer.score)
            pulls[name] = pulls.get(name, 0.0) + (0.0 if hits.pull is None else hits.pull)
        for modality in tables.target:
            fold_of_row = of_store if modality == tables.store_modality else of_other
            rows = np.flatnonzero(fold_of_row == part)
            if not len(rows):  # fewer prompts than folds
                continue
            values = out.scores.setdefault(f"cosine/{modality}", np.zeros(len(fold_of_row)))
            cosine = cosines(model, tables, modality, rows)
            values[rows] = cosine + ahead * (cosine - cosines(model_of_fewer, tables, modality, rows))
        if callback:
            callback(1)
    for name, values in out.scores.items():
        influence = SHARED_FOLDS * (values - values.mean()) if name not in pulls else values - PULL * pulls[name]
        out.add(name, values, influence, groups)
    return out


def _by_fold(
    models: Sequence[TwoWay], fold: np.ndarray, make: Callable[[TwoWay, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return each stored row as ``make`` returns it for the map that has not seen it."""
    parts = [np.flatnonzero(fold == part) for part in range(len(models))]
    made = np.concatenate([make(model, rows) for model, rows in zip(models, parts, strict=True)])
    return np.asarray(made[np.argsort(np.concatenate(parts))], np.float64)


def _vectors(
    models: Sequence[TwoWay], items: EvaluationSet, fixed: Mapping[str, Vectors], covered: Sequence[np.ndarray | None]
) -> Iterator[dict[str, Vectors]]:
    """Yield the vectors that strategies compare, by the first map of a fold and by the second, of fewer anchors."""
    for k, model in enumerate(models):
        mapped = vectors_of(model, items, _MAPPED)
        store = covered[k]
        if store is not None and "queries" in mapped:
            mapped["queries"] = mapped["queries"][0], store
        yield mapped if k else {name: mapped.get(name) or fixed[name] for name in strategies_of(items.tables)}


def _unseen_corrections(
    models: Sequence[TwoWay], covered: np.ndarray | None, fold: np.ndarray, items: EvaluationSet
) -> dict[str, Correction] | None:
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
