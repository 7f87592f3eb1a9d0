"""Overlap of result lists on items that the map has not seen, and its values for chance and a random rotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence.evaluation import Ranking
from congruence.maps import OrthogonalMap
from congruence.synthetic import random_rotation
from congruence.upgrade.certify.groups import deal
from congruence.upgrade.certify.heldout import PULL, SHARED_FOLDS
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.overlap import compare_lists, depth, ranked
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.strategies import PLAIN, Search, TwoWay, sides_in, similarity_in, unit_rows
from congruence.upgrade.certify.tables import Tables
from congruence.upgrade.choose import Choice

__all__ = ["controls", "cross_fit_overlap", "heldout_overlap", "record", "some_rows"]

#: Number of parts into which the anchors are divided. A query and a row are compared by a map that was fitted on neither, so each map leaves out two
#: parts. The same with half as many parts estimates what the left-out anchors would have added. The kind of map is chosen once for each pair of coarse
#: parts, without them: six choices, each on half of the anchors, serve the maps of both divisions. Choosing for each of the 28 fine maps would cost
#: as much as fitting them.
_PARTS, _COARSE = 8, 4

#: Largest number of stored rows that are used: every one of them is compared with all others.
MOST = 2000


def _with_texts(model: TwoWay, searches: Sequence[Search]) -> TwoWay:
    """Return the map with the means of texts that are not anchors."""
    for search in searches:
        if search.role == "apart" and search.source is not None:
            model = model.recentered(search.source, search.target, search.modality)
    return model


def heldout_overlap(
    model: TwoWay,
    tables: Tables,
    searches: Sequence[Search],
    n_neighbors: int,
    random_state: int,
    groups: np.ndarray | None = None,
    ranking: Ranking = PLAIN,
) -> Measured:
    """Measure overlap on items that are not anchors.

    Parameters
    ----------
    model : TwoWay
        Fitted on all anchors.
    tables : Tables
        The items.
    searches : sequence of Search
        Searches among these items.
    n_neighbors : int
    random_state : int
        Determines the sample of rows if there are more than :data:`MOST`.
    groups : ndarray of int, shape (n,), optional
        Items whose errors depend on each other, such as near-duplicates.
    ranking : Ranking, optional
        Search variant, for both stores.

    Returns
    -------
    Measured
        Scores by ``"<measure>@<k>/<strategy>"``.
    """
    out = Measured()
    rows = some_rows(tables.n, random_state)
    k = depth(len(rows), n_neighbors)
    model = _with_texts(model, searches)
    groups = None if groups is None else groups[rows]
    for search in searches if k > 0 else ():
        queries = rows if search.role in ("items", "captions") else np.arange(len(search.target))
        judge = similarity_in("re-embed", model, tables, search, queries, rows, ranking)
        for strategy in ("keep", "stored", "queries"):
            near = similarity_in(strategy, model, tables, search, queries, rows, ranking)
            if near is None or judge is None:
                continue
            for name, hits in compare_lists(near, judge, k, search.role, ranking.hubness).items():
                record(
                    out,
                    f"{name.replace('overlap', search.name)}@{k}/{strategy}",
                    hits.score,
                    hits.pull,
                    search.role,
                    groups,
                )
    return out


def cross_fit_overlap(
    tables: Tables,
    recipe: Recipe,
    searches: Sequence[Search],
    n_neighbors: int,
    *,
    random_state: int,
    groups: np.ndarray | None = None,
    ranking: Ranking = PLAIN,
) -> Measured:
    """Measure overlap on the anchors by cross-fitting: a query and a row are compared by a map fitted on neither.

    Parameters
    ----------
    tables : Tables
        Anchors.
    recipe : Recipe
        Chooses the kind of map on half of the anchors, all of which the map is then fitted on, and fits it.
    searches : sequence of Search
        Searches among these anchors.
    n_neighbors : int
    random_state : int
    groups : ndarray of int, shape (n,), optional
        Anchors that are never split between parts, such as near-duplicates.
    ranking : Ranking, optional
        Search variant, for both stores.

    Returns
    -------
    Measured
        Corrected for the left-out anchors, as in :func:`~congruence.upgrade.certify.heldout.cross_fit`.
    """
    out = Measured()
    rows = some_rows(tables.n, random_state)
    k = depth(len(rows), n_neighbors)
    if k <= 0 or not searches:
        return out
    n = len(tables.ids[recipe.fitted[0]])
    part = deal(np.arange(n) if groups is None else groups, _PARTS, np.random.default_rng(random_state))
    of_store, inside = part, None if groups is None else groups[rows]
    if tables.by_class and tables.stored not in recipe.fitted:
        assert tables.classes is not None
        of_store = part[tables.classes]
    coarse = part // (_PARTS // _COARSE)
    choices = {
        (a, b): recipe.choose(tables, np.flatnonzero((coarse != a) & (coarse != b)))
        for a in range(_COARSE)
        for b in range(a + 1, _COARSE)
    }
    tries = [
        _unseen(
            tables,
            recipe,
            searches,
            part // (_PARTS // parts),
            of_store // (_PARTS // parts),
            parts,
            choices,
            rows,
            ranking,
        )
        for parts in (_PARTS, _COARSE)
    ]
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 2/p) with two of p parts left out, 1 with none.
    more, less = (1 / (1 - 2 / parts) for parts in (_PARTS, _PARTS // 2))
    ahead = (more - 1) / (less - more)
    for number, search in enumerate(searches):
        for strategy in ("keep", "stored", "queries"):
            if strategy not in tries[0][number]:
                continue
            judge = tries[0][number]["re-embed"]
            good, fewer = (
                compare_lists(attempt[number][strategy], judge, k, search.role, ranking.hubness) for attempt in tries
            )
            for name, hits in good.items():
                score = hits.score + ahead * (hits.score - fewer[name].score)
                whole = f"{name.replace('overlap', search.name)}@{k}/{strategy}"
                record(out, whole, score, hits.pull, search.role, inside)
                out.influence[whole] = SHARED_FOLDS * (out.influence[whole] - out.influence[whole].mean())
    return out


def _unseen(
    tables: Tables,
    recipe: Recipe,
    searches: Sequence[Search],
    part: np.ndarray,
    of_store: np.ndarray,
    parts: int,
    choices: Mapping[tuple[int, int], Choice],
    rows: np.ndarray,
    ranking: Ranking,
) -> list[dict[str, np.ndarray]]:
    """Return the similarities of queries and rows by search and strategy, each from a map fitted without this query and row."""
    asked = [rows if search.role in ("items", "captions") else np.arange(len(search.target)) for search in searches]
    seen = []  # the part of each query, −1 if no map is fitted on it
    for search, queries in zip(searches, asked, strict=True):
        fitted_on = search.role in ("items", "captions") or (
            search.role == "classes" and search.modality in recipe.fitted
        )
        where = of_store if search.role in ("items", "captions") else part
        seen.append(where[queries] if fitted_on else np.full(len(queries), -1))
    out: list[dict[str, np.ndarray]] = [{} for _ in searches]
    places = of_store[rows]
    still: dict[tuple[int, str, int], np.ndarray] = {}  # unit rows of sides that are compared without mapping
    for a in range(parts):
        for b in range(a + 1, parts):
            train = np.flatnonzero((part != a) & (part != b))
            one, other = a * _COARSE // parts, b * _COARSE // parts
            if one == other:  # both are in one coarse part: use a choice made without it
                other = (one + 1) % _COARSE
            choice = choices[min(one, other), max(one, other)]
            model = _with_texts(recipe.fit(tables, train, choice), searches)
            # If both are in the same part, or the query is not an anchor, use the map fitted without the row's part and the next one.
            cells = [(a, b), (b, a)]
            cells += [
                (which, one) for one, next_ in ((a, b), (b, a)) if (one + 1) % parts == next_ for which in (one, -1)
            ]
            for number, search in enumerate(searches):
                for strategy in ("keep", "re-embed"):  # independent of the map: computed once
                    if strategy not in out[number]:
                        near = similarity_in(strategy, model, tables, search, asked[number], rows, ranking)
                        if near is not None:
                            out[number][strategy] = near
                wanted = np.isin(seen[number], [cell[0] for cell in cells]), np.isin(places, (a, b))
                if not all(some.any() for some in wanted):
                    continue
                for strategy in ("stored", "queries"):
                    sides = sides_in(strategy, model, tables, search)
                    if sides is None:
                        continue
                    whole = out[number].setdefault(strategy, np.empty((len(asked[number]), len(rows))))
                    units = []
                    for which, (side, numbers, some) in enumerate(
                        zip(sides, (asked[number], rows), wanted, strict=True)
                    ):
                        if side.mapped is None:
                            key = (number, strategy, which)
                            if key not in still:
                                still[key] = side.unit(numbers, ranking)
                            units.append(still[key])
                        else:
                            moved = side.unit(numbers[some], ranking)
                            units.append(np.empty((len(numbers), moved.shape[1]), moved.dtype))
                            units[-1][some] = moved
                    for of_query, of_row in cells:
                        queries, columns = np.flatnonzero(seen[number] == of_query), np.flatnonzero(places == of_row)
                        whole[np.ix_(queries, columns)] = units[0][queries] @ units[1][columns].T
    return out


def some_rows(n: int, random_state: int) -> np.ndarray:
    """Return the numbers of the stored rows that are used: all, or a random sample of :data:`MOST`."""
    return np.arange(n) if n <= MOST else np.sort(np.random.default_rng(random_state).choice(n, MOST, replace=False))


def record(out: Measured, name: str, score: np.ndarray, pull: np.ndarray, role: str, groups: np.ndarray | None) -> None:
    """Add scores to ``out``, with the influence of each query and, through their pull, of the rows it may find."""
    out.scores[name] = score
    if role in ("items", "captions"):
        out.influence[name] = score - PULL * pull
        if groups is not None:
            out.groups[name] = groups
        return
    # Queries and rows are two samples: scale the queries' deviations so that their variance includes that of the rows.
    m, n = len(score), len(pull)
    of_queries = float(np.var(score, ddof=1)) / m if m > 1 else 0.0
    of_rows = float(np.var(PULL * pull, ddof=1)) * n / m**2
    scale = np.sqrt(1 + of_rows / of_queries) if of_queries > 0 else 1.0
    out.influence[name] = score.mean() + scale * (score - score.mean())


def controls(
    model: TwoWay,
    rotation: OrthogonalMap,
    tables: Tables,
    searches: Sequence[Search],
    n_neighbors: int,
    random_state: int,
    ranking: Ranking = PLAIN,
) -> dict[str, dict[str, float]]:
    """Return the scores of chance and of a random rotation about the correct means, by measure.

    Parameters
    ----------
    model : TwoWay
    rotation : OrthogonalMap
        A rotation about the means; the random rotation uses the same means.
    tables : Tables
    searches : sequence of Search
    n_neighbors : int
    random_state : int
    ranking : Ranking, optional

    Returns
    -------
    dict of str to dict of str to float
        By measure: ``"chance"`` (a random list) and ``"random_rotation"``.
    """
    rows = some_rows(tables.n, random_state)
    k = depth(len(rows), n_neighbors)
    out: dict[str, dict[str, float]] = {}
    for search in searches if k > 0 else ():
        queries = rows if search.role in ("items", "captions") else np.arange(len(search.target))
        own = search.role == "items"
        there = rotation.for_modality(search.store)
        turn = random_rotation(model.d_source, model.d_target, random_state=random_state)
        store = (tables.source[search.store][rows] - there.source_mean_) @ turn + there.target_mean_
        judge = similarity_in("re-embed", model, tables, search, queries, rows, ranking)
        assert judge is not None
        mean = search.target.mean(axis=0) if ranking.center else None
        near = unit_rows(search.target[queries], ranking, mean) @ unit_rows(store, ranking).T
        found = compare_lists(near, judge, k, search.role, ranking.hubness)
        chance = {
            "overlap": k / (len(rows) - own),
            "graded_overlap": _graded_chance(ranked(judge, own, ranking.hubness), k, own),
        }
        for name, hits in found.items():
            out[f"{name.replace('overlap', search.name)}@{k}"] = {
                "chance": float(chance[name]),
                "random_rotation": float(hits.score.mean()),
            }
    return out


def _graded_chance(judge: np.ndarray, k: int, own: bool) -> float:
    """Return the expected graded overlap of a list of random rows."""
    n = judge.shape[1]
    mean = judge.mean(axis=1, where=judge > -np.inf)
    last = np.partition(judge, -k, axis=1)[:, -k]
    worth = np.minimum((judge - mean[:, None]) / np.maximum(last - mean, 1e-12)[:, None], 1.0)
    if own:
        np.fill_diagonal(worth, 0.0)
    return float(worth.sum() / (n - own) / len(judge))
