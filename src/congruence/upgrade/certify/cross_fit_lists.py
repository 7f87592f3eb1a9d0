"""Overlap of the anchors' own result lists by cross-fitting: a query and a row are compared by a map that was fitted on neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from congruence.upgrade.certify.cross_fit import SHARED_FOLDS
from congruence.upgrade.certify.evaluation_set import EvaluationSet, Search
from congruence.upgrade.certify.groups import deal
from congruence.upgrade.certify.measured import Measured
from congruence.upgrade.certify.overlap import influence_of, list_hits, with_texts
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.scoring import Hits
from congruence.upgrade.certify.strategies import Side, sides, similarities
from congruence.upgrade.certify.tables import Tables
from congruence.upgrade.certify.two_way import TwoWay
from congruence.upgrade.choose import Choice

__all__ = ["cross_fit_lists"]

#: Number of parts into which the anchors are divided. A query and a row are compared by a map that was fitted on neither, so each map leaves out two
#: parts. The same with half as many parts estimates what the left-out anchors would have added. The kind of map is chosen once for each pair of coarse
#: parts, without them: six choices, each on half of the anchors, serve the maps of both divisions. Choosing for each of the 28 fine maps would cost
#: as much as fitting them.
_PARTS, _COARSE = 8, 4


def cross_fit_lists(items: EvaluationSet, recipe: Recipe) -> Measured:
    """Measure overlap on the anchors by cross-fitting: a query and a row are compared by a map fitted on neither.

    Parameters
    ----------
    items : EvaluationSet
        Anchors. Groups are never split between parts.
    recipe : Recipe
        Chooses the kind of map on half of the anchors, all of which the map is then fitted on, and fits it.

    Returns
    -------
    Measured
        Corrected for the left-out anchors, as in :func:`~congruence.upgrade.certify.cross_fit.cross_fit`.
    """
    out = Measured()
    tables, rows = items.tables, items.compared
    k = items.list_length(len(rows))
    if k <= 0 or not items.searches:
        return out
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
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 2/p) with two of p parts left out, 1 with none.
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
    return out


def _unseen_similarities(
    items: EvaluationSet,
    recipe: Recipe,
    part: np.ndarray,
    parts: int,
    choices: Mapping[tuple[int, int], Choice],
) -> list[dict[str, np.ndarray]]:
    """Return the similarities of queries and rows by search and strategy, each by a map fitted without this query and row."""
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
    tables: Tables, recipe: Recipe, part: np.ndarray, parts: int, choices: Mapping[tuple[int, int], Choice]
) -> Iterator[tuple[TwoWay, list[tuple[int, int]]]]:
    """Yield maps fitted without two parts, with the pairs (part of the query, part of the row) that each compares; −1 is not an anchor."""
    for a, b in combinations(range(parts), 2):
        one, other = a * _COARSE // parts, b * _COARSE // parts
        if one == other:  # both are in one coarse part: use a choice made without it
            other = (one + 1) % _COARSE
        choice = choices[min(one, other), max(one, other)]
        # If both are in the same part, or the query is not an anchor, use the map fitted without the row's part and the next one.
        cells = [(a, b), (b, a)]
        for row, next_ in ((a, b), (b, a)):
            if (row + 1) % parts == next_:
                cells += [(row, row), (-1, row)]
        yield recipe.fit(tables, np.flatnonzero((part != a) & (part != b)), choice), cells


class _Unseen:
    """The similarities of a search's queries and rows, each by a map fitted without both.

    Parameters
    ----------
    items : EvaluationSet
    search : Search
    of_query, of_row : ndarray of int, shape (q,), (r,)
        Part of each query, −1 if no map is fitted on it, and of each stored row that is compared.
    """

    def __init__(self, items: EvaluationSet, search: Search, of_query: np.ndarray, of_row: np.ndarray) -> None:
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

    def _unit(self, strategy: str, k: int, side: Side, some: np.ndarray) -> np.ndarray:
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
