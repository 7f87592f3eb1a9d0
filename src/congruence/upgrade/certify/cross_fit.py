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
    alone = np.arange(len(tables.ids[recipe.fitted[0]])) if groups is None else groups
    folds = min(folds, len(np.unique(alone)))
    fold = deal(alone, folds, np.random.default_rng(items.random_state))
    of_store, of_other = _unseen(tables, recipe.fitted, fold, folds)
    ahead = (folds / (folds - 1) - 1) / (folds / (folds - 2) - folds / (folds - 1))
    out = Measured(ahead=ahead)
    pulls: dict[str, np.ndarray | float] = {}
    models = []
    for part in range(folds):
        away = [np.flatnonzero(fold != part), np.flatnonzero((fold != part) & (fold != (part + 1) % folds))]
        choice = recipe.choose(tables, away[0])
        out.maps.append(choice.name)
        models.append([recipe.fit(tables, train, choice) for train in away])
    seen: list[np.ndarray | None] = [None, None]
    if not tables.by_class and tables.query_modality in tables.target:
        for which in (0, 1):
            whole = np.empty((tables.n, models[0][0].d_source))
            for part in range(folds):
                rows = np.flatnonzero(of_store == part)
                whole[rows] = part_seen(models[part][which], items, rows)
            seen[which] = whole
    corrections = [
        _unseen_corrections([pair[which] for pair in models], of_store, items, seen[which]) for which in (0, 1)
    ]
    fixed = vectors_of(models[0][0], items, ("keep", "re-embed"))
    out.mapped = np.empty((tables.n, models[0][0].d_target))
    out.mapped_by_fewer = np.empty_like(out.mapped)
    for part in range(folds):
        model, short = models[part]
        test = np.flatnonzero(of_store == part)
        for one, whole in ((model, out.mapped), (short, out.mapped_by_fewer)):
            whole[test] = one.to_target(tables.store_modality).transform(tables.source[tables.store_modality][test])
        more, less = (
            score(vectors, items, test, corrections=hubs) if len(test) else {}
            for vectors, hubs in zip(_vectors(models[part], items, fixed, seen), corrections, strict=True)
        )
        for name, hits in more.items():
            values = out.scores.setdefault(name, np.zeros(tables.n))
            fewer = less[name] if name.split("/")[1] in _MAPPED else hits  # the others are the same for either map
            values[test] = hits.score + ahead * (hits.score - fewer.score)
            pulls[name] = pulls.get(name, 0.0) + (0.0 if hits.pull is None else hits.pull)
        for modality in tables.target:
            where = of_store if modality == tables.store_modality else of_other
            rows = np.flatnonzero(where == part)
            if not len(rows):  # fewer prompts than folds
                continue
            values = out.scores.setdefault(f"cosine/{modality}", np.zeros(len(where)))
            here = cosines(model, tables, modality, rows)
            values[rows] = here + ahead * (here - cosines(short, tables, modality, rows))
        if callback:
            callback(1)
    for name, values in out.scores.items():
        influence = SHARED_FOLDS * (values - values.mean()) if name not in pulls else values - PULL * pulls[name]
        out.add(name, values, influence, groups)
    return out


def _vectors(
    models: Sequence[TwoWay], items: EvaluationSet, fixed: Mapping[str, Vectors], seen: Sequence[np.ndarray | None]
) -> Iterator[dict[str, Vectors]]:
    """Yield the vectors that strategies compare with the first map of a fold, and those that change with the second, which was fitted on fewer anchors."""
    for k, model in enumerate(models):
        mapped = vectors_of(model, items, _MAPPED)
        whole = seen[k]
        if whole is not None and "queries" in mapped:
            mapped["queries"] = mapped["queries"][0], whole
        yield mapped if k else {name: mapped.get(name) or fixed[name] for name in strategies_of(items.tables)}


def _unseen_corrections(
    models: Sequence[TwoWay], fold: np.ndarray, items: EvaluationSet, seen: np.ndarray | None
) -> dict[str, Correction] | None:
    """Return each strategy's correction for hubs, computed from rows mapped by maps that were not fitted on them.

    Mapped anchors are closer to their own queries than other rows are, so they would look like hubs.

    Parameters
    ----------
    models : sequence of TwoWay
        One per fold, not fitted on that fold.
    fold : ndarray of int, shape (n,)
        Fold of each item.
    items : EvaluationSet
    seen : ndarray, shape (n, d_source), or None
        The components of the store that mapped queries can match.

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
        found = correction(items, queries, store if strategy != "queries" or seen is None else seen)
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
