"""Scores of the anchors by cross-fitting: each item is scored by a map that was not fitted on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from congruence.metrics.hubness import Correction
from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.groups import deal
from congruence.upgrade.certify.measured import Measured
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.scoring import PULL, correction, score
from congruence.upgrade.certify.strategies import Vectors, cosines, part_seen, sides, strategies_of, vectors_of
from congruence.upgrade.certify.tables import Tables
from congruence.upgrade.certify.two_way import TwoWay

__all__ = ["SHARED_FOLDS", "cross_fit"]

#: What the deviation of a cross-validated mean of cosines, or of overlaps, is to that of its items: folds share anchors, so their errors do not
#: average out like independent ones (Bates, Hastie and Tibshirani 2023). By the same simulation.
SHARED_FOLDS = 1.2

#: Strategies whose scores depend on the map.
_MAPPED = ("stored", "queries")


def cross_fit(
    items: EvaluationSet, recipe: Recipe, *, folds: int, callback: Callable[[int], None] | None = None
) -> Measured:
    """Score every item with a map that has not seen it.

    Each fold's items are scored twice, with maps fitted without that fold and without two folds. The difference estimates what the left-out
    anchors would have added, and is used to correct the score to that of a map fitted on all anchors. The map is chosen again for each fold without
    its items, and both maps are of the chosen kind; the optimism of choosing on the same rows is therefore not included.

    Parameters
    ----------
    items : EvaluationSet
        Anchors. Groups are scored together.
    recipe : Recipe
    folds : int
        At most the number of anchors, or of groups, is used.
    callback : callable, optional
        Called with 1 after each fold.

    Returns
    -------
    Measured
    """
    tables, groups = items.tables, items.groups_of(recipe.fitted)
    units = np.arange(len(tables.ids[recipe.fitted[0]])) if groups is None else groups
    folds = min(folds, len(np.unique(units)))
    fold = deal(units, folds, np.random.default_rng(items.random_state))
    of_store, of_other = _unseen(tables, recipe.fitted, fold, folds)
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 1/f) without one of f folds, 1/(1 − 2/f) without two, 1 with all.
    ahead = (folds / (folds - 1) - 1) / (folds / (folds - 2) - folds / (folds - 1))
    models, kinds = _fit_without(tables, recipe, fold, folds)
    covered = [_covered_store(maps, items, of_store) for maps in models]
    corrections = [_unseen_corrections(*pair, of_store, items) for pair in zip(models, covered, strict=True)]
    mapped, mapped_by_fewer = (_map_store(maps, tables, of_store) for maps in models)
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


def _fit_without(
    tables: Tables, recipe: Recipe, fold: np.ndarray, folds: int
) -> tuple[tuple[list[TwoWay], list[TwoWay]], list[str]]:
    """Return the maps fitted without each fold, those fitted without it and the next one, and the kind that was chosen for each fold."""
    models: tuple[list[TwoWay], list[TwoWay]] = ([], [])
    kinds = []
    for part in range(folds):
        outside = fold != part
        choice = recipe.choose(tables, np.flatnonzero(outside))
        kinds.append(choice.name)
        for maps, train in zip(models, (outside, outside & (fold != (part + 1) % folds)), strict=True):
            maps.append(recipe.fit(tables, np.flatnonzero(train), choice))
    return models, kinds


def _covered_store(models: Sequence[TwoWay], items: EvaluationSet, fold: np.ndarray) -> np.ndarray | None:
    """Return the part of each stored row that mapped queries can match, by the map that has not seen the row; None if no queries are mapped back."""
    tables = items.tables
    if tables.by_class or tables.query_modality not in tables.target:
        return None
    out = np.empty((tables.n, models[0].d_source))
    for part, model in enumerate(models):
        rows = np.flatnonzero(fold == part)
        out[rows] = part_seen(model, items, rows)
    return out


def _map_store(models: Sequence[TwoWay], tables: Tables, fold: np.ndarray) -> np.ndarray:
    """Return each stored row mapped by the map that has not seen it."""
    out = np.empty((tables.n, models[0].d_target))
    for part, model in enumerate(models):
        rows = np.flatnonzero(fold == part)
        out[rows] = model.to_target(tables.store_modality).transform(tables.source[tables.store_modality][rows])
    return out


def _vectors(
    models: Sequence[TwoWay], items: EvaluationSet, fixed: Mapping[str, Vectors], covered: Sequence[np.ndarray | None]
) -> Iterator[dict[str, Vectors]]:
    """Yield the vectors that strategies compare with the first map of a fold, and those that change with the second, which was fitted on fewer anchors."""
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

    Mapped anchors are closer to their own queries than other rows are, so they would look like hubs.

    Parameters
    ----------
    models : sequence of TwoWay
        One per fold, not fitted on that fold.
    covered : ndarray, shape (n, d_source), or None
        From :func:`_covered_store`.
    fold : ndarray of int, shape (n,)
        Fold of each item.
    items : EvaluationSet

    Returns
    -------
    dict of str to Correction, or None
        None if hubs are not corrected for, or by each fold's own rows because these search for their class.
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


def _unseen(tables: Tables, fitted: Sequence[str], fold: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the fold whose map may score each row of the store, and of the other modality."""
    if not tables.by_class:
        return fold, fold
    assert tables.classes is not None
    if tables.store_modality in fitted:
        return fold, np.arange(len(tables.ids[tables.query_modality])) % folds
    return fold[tables.classes], fold
