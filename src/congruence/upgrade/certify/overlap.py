"""Overlap of result lists: do mapped and re-embedded stores return the same neighbors? Measured for every query, without captions or labels.

Whether an item finds itself says little about a store of near-duplicates, where a twin is as good, and little about a store of very
different items, where it is easy. What matters are the lists a user sees: the k nearest rows of the mapped store, judged by the target model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from congruence._utils.top_k import top_k
from congruence.evaluation import Ranking
from congruence.metrics import Hubness
from congruence.upgrade.certify.groups import deal
from congruence.upgrade.certify.heldout import SHARED_FOLDS
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.scoring import PULL, Hits
from congruence.upgrade.certify.strategies import PLAIN, Side, TwoWay, sides, similarities
from congruence.upgrade.certify.tables import Search, Tables
from congruence.upgrade.choose import Choice

__all__ = ["compare_lists", "cross_fit_overlap", "depth", "heldout_overlap"]
__all__ += ["influence_of", "list_hits", "overlap_of", "ranked", "search_for", "some_rows"]

#: Number of parts into which the anchors are divided. A query and a row are compared by a map that was fitted on neither, so each map leaves out two
#: parts. The same with half as many parts estimates what the left-out anchors would have added. The kind of map is chosen once for each pair of coarse
#: parts, without them: six choices, each on half of the anchors, serve the maps of both divisions. Choosing for each of the 28 fine maps would cost
#: as much as fitting them.
_PARTS, _COARSE = 8, 4

#: Largest number of stored rows that are used: every one of them is compared with all others.
MOST = 2000


def compare_lists(
    near: np.ndarray, judge: np.ndarray, k: int, role: str, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare each query's k nearest rows of a store with those of the re-embedded store.

    Parameters
    ----------
    near : ndarray, shape (m, n)
        Similarities of queries and rows in the store under test.
    judge : ndarray, shape (m, n)
        Similarities in the target model.
    k : int
        At most n − 1, or n − 2 if own rows are excluded.
    role : str
        Role of the :class:`~congruence.upgrade.certify.tables.Search`: items do not find themselves, and items and captions are removed from a sample together with their row.
    hubness : Hubness, optional
        Correct both for hubs, with these queries as the bank.

    Returns
    -------
    dict of str to Hits
        ``"overlap"``: share of the results that are among the k nearest of the re-embedded store. ``"graded_overlap"``: the same, but a
        result that is not among them has partial credit, from 0 for a random row to 1 for the last of these k, by its target similarity.
        Exact ties count as found; within a list the lowest row comes first, as in :func:`congruence.metrics.nearest`.

    Notes
    -----
    The pull of row j is the amount that removing it from both stores adds to the scores of all queries, as in
    :mod:`~congruence.upgrade.certify.scoring`: the next row moves up in every list that contained it.
    """
    m, n = near.shape
    own = np.arange(m)
    leave_out_own, paired = role == "items", role in ("items", "captions")
    near, judge = (ranked(table, leave_out_own, hubness) for table in (near, judge))
    mean = judge.mean(axis=1, where=judge > -np.inf)
    found, right = (top_k(table, k + 1) for table in (near, judge))
    worth, best = (np.take_along_axis(judge, rows, axis=1) for rows in (found, right))

    def graded(worth: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hit = worth >= last[:, None]
        scale = np.maximum(last - mean, 1e-12)[:, None]
        return hit.mean(axis=1), np.where(hit, 1.0, np.minimum((worth - mean[:, None]) / scale, 1.0)).mean(axis=1)

    scores = graded(worth[:, :k], best[:, k - 1])
    pulls = np.zeros((2, n))
    place = np.arange(k)
    for at in range(k):
        gone = found[:, at]
        kept = np.take_along_axis(worth, np.where(place < at, place, place + 1)[None].repeat(m, 0), axis=1)
        listed = (right[:, :k] == gone[:, None]).any(axis=1)
        after = graded(kept, np.where(listed, best[:, k], best[:, k - 1]))
        # A row that is in the right list alone: the list under test stays, unless the row is the next in line.
        missed = right[:, at]
        alone = ~(found[:, :k] == missed[:, None]).any(axis=1)
        easier = graded(worth[:, :k], best[:, k])
        for which in (0, 1):
            for row, change, here in (
                (gone, after[which] - scores[which], slice(None)),
                (missed, easier[which] - scores[which], alone),
            ):
                if paired:
                    change = np.where(row == own, 0.0, change)
                np.add.at(pulls[which], row[here], change[here])
    return {name: Hits(scores[i], pulls[i]) for i, name in enumerate(("overlap", "graded_overlap"))}


def ranked(table: np.ndarray, leave_out_own: bool, hubness: Hubness | None) -> np.ndarray:
    """Return the values by which lists are ranked, in float64: −inf for an excluded own item, corrected for hubs if requested."""
    table = table.astype(np.float64)
    if leave_out_own:
        np.fill_diagonal(table, -np.inf)
    return table if hubness is None else hubness.of_matrix(table).apply(table)


def depth(n: int, n_neighbors: int) -> int:
    """Return how many results are compared in a store of n rows; below 1, nothing can be compared."""
    return min(n_neighbors, n - 2)


def list_hits(
    search: Search, near: np.ndarray, judge: np.ndarray, k: int, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare the result lists of a search (:func:`compare_lists`), by measure: ``"overlap@10"``, ``"graded_text_overlap@10"`` or alike."""
    found = compare_lists(near, judge, k, search.role, hubness)
    return {f"{name.replace('overlap', search.name)}@{k}": hits for name, hits in found.items()}


def search_for(searches: Sequence[Search], measure: str) -> Search:
    """Return the search of a measure."""
    return next(search for search in searches if search.name == measure.split("@")[0].removeprefix("graded_"))


def influence_of(hits: Hits, search: Search) -> np.ndarray:
    """Return the pseudo-value of each query, which includes the uncertainty due to the rows it may find."""
    if search.paired or hits.pull is None:
        return hits.influence
    # Queries and rows are two samples: scale the queries' deviations so that their variance includes that of the rows.
    m, n = len(hits.score), len(hits.pull)
    of_queries = float(np.var(hits.score, ddof=1)) / m if m > 1 else 0.0
    of_rows = float(np.var(PULL * hits.pull, ddof=1)) * n / m**2
    scale = np.sqrt(1 + of_rows / of_queries) if of_queries > 0 else 1.0
    return np.asarray(hits.score.mean() + scale * (hits.score - hits.score.mean()))


def some_rows(n: int, random_state: int) -> np.ndarray:
    """Return the numbers of the stored rows that are used: all, or a random sample of :data:`MOST`."""
    return np.arange(n) if n <= MOST else np.sort(np.random.default_rng(random_state).choice(n, MOST, replace=False))


def overlap_of(
    model: TwoWay,
    tables: Tables,
    search: Search,
    measure: str,
    rows: np.ndarray,
    n_neighbors: int,
    ranking: Ranking = PLAIN,
) -> float:
    """Return one measure of mapped stored vectors, using some rows both as items and as the store.

    Parameters
    ----------
    model : TwoWay
    tables : Tables
    search : Search
        The search of this measure (:func:`search_for`).
    measure : str
        As for :func:`heldout_overlap`, of any number of results.
    rows : ndarray of int
    n_neighbors : int
    ranking : Ranking, optional

    Returns
    -------
    float
        NaN if there are too few rows.
    """
    k = depth(len(rows), n_neighbors)
    if k <= 0:
        return float("nan")
    near, judge = (similarities(strategy, model, tables, search, rows, ranking) for strategy in ("stored", "re-embed"))
    return float(list_hits(search, near, judge, k, ranking.hubness)[f"{measure.split('@')[0]}@{k}"].score.mean())


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
    for search in searches if k > 0 else ():
        judge = similarities("re-embed", model, tables, search, rows, ranking)
        for strategy in search.strategies:
            near = similarities(strategy, model, tables, search, rows, ranking)
            for measure, hits in list_hits(search, near, judge, k, ranking.hubness).items():
                inside = groups[rows] if search.paired and groups is not None else None
                out.add(f"{measure}/{strategy}", hits.score, influence_of(hits, search), inside)
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
    fine = deal(np.arange(n) if groups is None else groups, _PARTS, np.random.default_rng(random_state))
    coarse = fine // (_PARTS // _COARSE)
    choices = {
        pair: recipe.choose(tables, np.flatnonzero(~np.isin(coarse, pair))) for pair in combinations(range(_COARSE), 2)
    }
    more, less = (
        _unseen_similarities(tables, recipe, searches, part, parts, choices, rows, ranking)
        for part, parts in ((fine, _PARTS), (coarse, _COARSE))
    )
    # The error is roughly inversely proportional to the number of anchors: 1/(1 − 2/p) with two of p parts left out, 1 with none.
    errors = [1 / (1 - 2 / parts) for parts in (_PARTS, _COARSE)]
    ahead = (errors[0] - 1) / (errors[1] - errors[0])
    for search, near, near_by_fewer in zip(searches, more, less, strict=True):
        for strategy in search.strategies:
            found, fewer = (
                list_hits(search, one[strategy], near["re-embed"], k, ranking.hubness) for one in (near, near_by_fewer)
            )
            for measure, hits in found.items():
                score = hits.score + ahead * (hits.score - fewer[measure].score)
                influence = influence_of(Hits(score, hits.pull), search)
                inside = groups[rows] if search.paired and groups is not None else None
                out.add(f"{measure}/{strategy}", score, SHARED_FOLDS * (influence - influence.mean()), inside)
    return out


def _with_texts(model: TwoWay, searches: Sequence[Search]) -> TwoWay:
    """Return the map with the means of texts that are not anchors."""
    for search in searches:
        if search.role == "apart" and search.source is not None:
            model = model.recentered(search.source, search.target, search.modality)
    return model


def _unseen_similarities(
    tables: Tables,
    recipe: Recipe,
    searches: Sequence[Search],
    part: np.ndarray,
    parts: int,
    choices: Mapping[tuple[int, int], Choice],
    rows: np.ndarray,
    ranking: Ranking,
) -> list[dict[str, np.ndarray]]:
    """Return the similarities of queries and rows by search and strategy, each by a map fitted without this query and row."""
    of_store = part
    if tables.by_class and tables.store_modality not in recipe.fitted:
        assert tables.classes is not None
        of_store = part[tables.classes]
    found = []
    for search in searches:
        fitted_on = search.role == "classes" and search.modality in recipe.fitted
        of_query = of_store[rows] if search.paired else part if fitted_on else np.full(len(search.target), -1)
        found.append(_Unseen(tables, search, rows, of_query, of_store[rows], ranking))
    for model, cells in _leave_two_out(tables, recipe, part, parts, choices):
        model = _with_texts(model, searches)
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
    tables : Tables
    search : Search
    rows : ndarray of int, shape (r,)
        Stored rows.
    of_query, of_row : ndarray of int, shape (q,), (r,)
        Part of each query that is asked of these rows, −1 if no map is fitted on it, and of each row.
    ranking : Ranking
    """

    def __init__(
        self,
        tables: Tables,
        search: Search,
        rows: np.ndarray,
        of_query: np.ndarray,
        of_row: np.ndarray,
        ranking: Ranking,
    ) -> None:
        self._tables, self._search, self._ranking = tables, search, ranking
        self._numbers, self._parts = (search.queries_of(rows), rows), (of_query, of_row)
        self._unmapped: dict[tuple[str, int], np.ndarray] = {}
        self.near: dict[str, np.ndarray] = {}

    def add(self, model: TwoWay, cells: Sequence[tuple[int, int]]) -> None:
        """Compare queries and rows of some pairs of parts by a map."""
        rows = self._numbers[1]
        some = [np.isin(side, parts) for side, parts in zip(self._parts, zip(*cells, strict=True), strict=True)]
        for strategy in ("re-embed", *self._search.strategies):
            if strategy in ("keep", "re-embed"):  # independent of the map
                if strategy not in self.near:
                    self.near[strategy] = similarities(strategy, model, self._tables, self._search, rows, self._ranking)
            elif all(which.any() for which in some):
                compared = sides(strategy, model, self._tables, self._search)
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
                self._unmapped[strategy, k] = side.unit(self._ranking, numbers)
            return self._unmapped[strategy, k]
        mapped = side.unit(self._ranking, numbers[some])
        out = np.empty((len(numbers), mapped.shape[1]), mapped.dtype)
        out[some] = mapped
        return out
