"""Scores by maps that have seen neither the query nor the row it is compared with; all numbers are read from them.

The anchors are divided into folds, and for every two of them a map is fitted without both: it compares queries of one
with rows of the other. So every similarity of a query and a stored row is one between items that are no anchors. Hits,
overlaps of result lists and cosines are read from these similarities; the same with maps of fewer folds shows what
anchors add, which corrects the scores for the folds left out, and is the learning curve.

A gallery is a sample, as the queries are. Removing item i from it removes its query, and also a distractor or a
relevant item of other queries: its jackknife pseudo-value is h_i − p_i, where h_i is its hit and p_i the number of hits
among the *other* queries that its removal would add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from congruence._utils.top_k import any_drawn, tie_shares, top_k
from congruence.embeddings import normalize_rows
from congruence.errors import TooFewAnchorsError
from congruence.evaluation.controls import cosine_controls
from congruence.maps import AffineMap, OrthogonalMap
from congruence.metrics import Hubness
from congruence.synthetic import random_rotation
from congruence.upgrade.certify.design import Design, EvaluationSet, Others, Search, deal
from congruence.upgrade.certify.estimates import Measured, Scores
from congruence.upgrade.certify.recipe import ROLES, AnchorFolds, MapRecipe, TwoWay
from congruence.upgrade.choose import Choice

#: Folds of the anchors. Pairs of coarse folds, of two each, are left out of the maps fitted on at most half of the
#: anchors; and the kind of map is chosen once for each such pair, without it.
FOLDS, COARSE = 8, 4

#: Numbers of folds that maps are fitted on, for the learning curve; the last two determine the scores.
SIZES = (1, 2, 3, FOLDS - 4, FOLDS - 2)

#: The error is roughly inversely proportional to the number of anchors, so all folds would add this multiple of what
#: the last two sizes differ by.
AHEAD = (1 / SIZES[-1] - 1 / FOLDS) / (1 / SIZES[-2] - 1 / SIZES[-1])

#: Deviation of a cross-validated mean of cosines or overlaps, to that of its items: folds share anchors (Bates, Hastie
#: and Tibshirani 2023).
SHARED_FOLDS = 1.2

#: Largest number of held-out rows on which a curve is measured; all of them determine its level afterwards
#: (``LearningCurve.lifted``).
MOST_TESTED = 1000

FEWEST_FITTED = 6  # fewest anchors that a point of the learning curve is fitted on

STEPS = len(SIZES)  # calls of a callback

LEVELED = 200  # most rows by which the similarities of different maps are brought to one scale

MAPPED = tuple(ROLES)  # strategies whose scores depend on the map


Units = Callable[[np.ndarray], np.ndarray]  # the unit rows of some of the queries, or of the store, by their numbers


def unit_rows(rows: np.ndarray, mapping: AffineMap | None, some: np.ndarray) -> np.ndarray:
    """Return some rows, mapped and scaled to unit norm."""
    return np.asarray(normalize_rows(rows[some] if mapping is None else mapping.transform(rows[some])))


def sides(strategy: str, model: TwoWay | None, items: EvaluationSet, search: Search) -> tuple[Units, Units]:
    """Return what a strategy compares: queries and store."""
    stored = items.tables.store_modality
    queries = search.source if strategy == "keep" else search.target
    store = (items.tables.target if strategy == "re-embed" else items.tables.source)[stored]
    ahead = model.to_target(stored) if model is not None and strategy == "stored" else None
    back = model.to_source(search.modality) if model is not None and strategy == "queries" else None
    assert queries is not None
    return partial(unit_rows, queries, back), partial(unit_rows, store, ahead)


def similarities(strategy: str, items: EvaluationSet, search: Search) -> np.ndarray:
    """Return the similarities (queries, rows) by which a strategy without a map ranks rows; hubs come later."""
    queries, store = sides(strategy, None, items, search)
    return np.asarray(queries(search.queries) @ store(search.rows).T)


def cosines(
    model: TwoWay, items: EvaluationSet, modality: str, rows: np.ndarray, mapped: np.ndarray | None = None
) -> np.ndarray:
    """Return the cosine of each row, which may be ``mapped`` already, and the target's own row."""
    if mapped is None:
        mapped = model.to_target(modality).transform(items.tables.source[modality][rows])
    mapped = normalize_rows(mapped)
    own = normalize_rows(items.tables.target[modality][rows])
    return np.asarray(np.einsum("ij,ij->i", mapped, own, dtype=np.float64))


#: Share of an item's pull that enters its influence: jackknife pseudo-values (1) count the interplay of two items twice
#: (Efron and Stein 1981), bare hits (0) not at all.
PULL = 0.6


@dataclass(frozen=True, eq=False)
class Hits:
    """Scores (m,) of the queries of one strategy; ``pull`` (n,) is what removing each gallery item adds to others."""

    score: np.ndarray
    pull: np.ndarray | None = None
    modality: str | None = None  # of the rows that have these scores; None for texts of other items
    rows: np.ndarray | None = None  # (m,), the numbers of these rows
    paired: bool = True  # whether query and gallery item i are one item, and leave a sample together
    each: int = 1  # results over which a score is averaged

    def influence(self) -> np.ndarray:
        """Return the pseudo-value of each query, which includes the uncertainty due to the rows it may find."""
        if self.pull is None:
            return self.score
        if self.paired:
            return np.asarray(self.score - PULL * self.pull)
        # Queries and rows are two samples: scale the queries' deviations so that their variance includes the rows'.
        m, n = len(self.score), len(self.pull)
        of_queries = float(np.var(self.score, ddof=1)) / m if m > 1 else 0.0
        of_rows = float(np.var(PULL * self.pull, ddof=1)) * n / m**2
        scale = np.sqrt(1 + of_rows / of_queries) if of_queries > 0 else 1.0
        return np.asarray(self.score.mean() + scale * (self.score - self.score.mean()))

    def groups(self, items: EvaluationSet, of_items: np.ndarray | None) -> np.ndarray | None:
        """Return the groups of the rows, given those of the stored items."""
        stored = items.tables.store_modality
        own = self.modality == stored or (self.modality is not None and not items.tables.by_class)
        return of_items[self.rows] if of_items is not None and own else None


def recall(table: np.ndarray, relevant: np.ndarray, k: int, *, find_own: bool = True, paired: bool = True) -> Hits:
    """Return for each query whether one of its k best rows is relevant, given similarities and relevance (m, n).

    If they are ``paired``, query i and row i are one item, and leave the gallery together; without ``find_own`` the row
    is not in the query's list (−inf). The effect of removing an item on a correction for hubs is not included.
    """
    n, own = table.shape[1], np.arange(len(table)) if paired else -1
    depth = min(k + 1, n - (not find_own))
    near = top_k(table, depth)
    right = np.take_along_axis(relevant, near, axis=1)
    hit = np.asarray(right[:, :k].any(axis=1))
    pull = np.zeros(n)
    among = right.sum(axis=1)
    for place in range(min(k, depth)):
        # With this row gone the next one moves up into the first k.
        change = ((among - right[:, place]) > 0).astype(float) - hit
        change[near[:, place] == own] = 0.0
        np.add.at(pull, near[:, place], change)
    return Hits(expected_hits(table, relevant, min(k, depth), near), pull)


#: Similarities that differ by less are ties: copies of a row differ by the rounding of a product.
TIE = 1e-6


def expected_hits(table: np.ndarray, right: np.ndarray, k: int, near: np.ndarray | None = None) -> np.ndarray:
    """Return the probability of each query that one of its k best rows is right, (m,), with ties in random order;
    ``near`` are its best rows, k + 1 or more if there are so many.
    """
    near = top_k(table, min(k + 1, table.shape[1])) if near is None else near
    hit = np.asarray(np.take_along_axis(right, near[:, :k], axis=1).any(axis=1), np.float64)
    unsure = _ties(np.take_along_axis(table, near, axis=1), k)
    table, right = table[unsure], right[unsure]
    kth = np.partition(table, -k, axis=1)[:, -k, None]
    above, level = table > kth + TIE, np.abs(table - kth) <= TIE
    places, tied = k - above.sum(axis=1), level.sum(axis=1)
    hit[unsure] = (above & right).any(axis=1)
    wanted = (level & right).sum(axis=1)
    for at in np.flatnonzero((hit[unsure] == 0) & (wanted > 0)):
        hit[unsure[at]] = any_drawn(int(wanted[at]), int(tied[at]), int(places[at]))
    return hit


def _ties(best: np.ndarray, k: int) -> np.ndarray:
    """Return the queries whose k best rows are not certain, given their best similarities, descending, (m, k + 1)."""
    if best.shape[1] <= k:
        return np.arange(len(best))
    return np.flatnonzero(~(best[:, k] < best[:, k - 1] - TIE))


def task_hits(items: EvaluationSet, search: Search, near: np.ndarray, task: str, depth: int) -> Hits:
    """Return for each stored row whether it is assigned to its class, or for each query whether it finds its item."""
    tables, hubness, most = items.tables, items.hubness, near.shape[1] - 1
    modality = None if search.role == "apart" else search.modality
    if tables.by_class:
        assert tables.classes is not None
        if task.startswith("zero_shot"):
            right = tables.classes[search.rows, None] == np.arange(len(near))
            found = expected_hits(ranked(near.T, False, hubness), right, min(depth, len(near) - 1))
            return Hits(found, None, tables.store_modality, search.rows, False)
        relevant = tables.classes[search.rows] == search.queries[:, None]
        asked = np.flatnonzero(relevant.any(axis=1))
        hits = recall(ranked(near, False, hubness)[asked], relevant[asked], min(depth, most), paired=False)
        return replace(hits, modality=modality, rows=search.queries[asked], paired=False)
    finds_own = tables.classes is None
    if items.relevant is not None:
        relevant = items.relevant[:, search.rows]
    elif finds_own:
        relevant = np.eye(len(near), dtype=bool)
    else:
        codes = cast("np.ndarray", tables.classes)[search.rows]
        relevant = codes[:, None] == codes
    paired = search.paired
    hits = recall(ranked(near, not finds_own, hubness), relevant, min(depth, most), find_own=finds_own, paired=paired)
    return replace(hits, modality=modality, rows=search.queries, paired=paired)


class Judge(NamedTuple):
    """Similarities with the re-embedded store (m, n), by which lists are compared: their means, and the first k + 1."""

    table: np.ndarray
    mean: np.ndarray
    right: np.ndarray
    best: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray, k: int, role: str, hubness: Hubness | None = None) -> Judge:
        """Prepare similarities for lists of k rows."""
        table = ranked(table, role == "items", hubness)
        right = top_k(table, k + 1)
        return cls(table, table.mean(axis=1, where=table > -np.inf), right, np.take_along_axis(table, right, axis=1))


def compare_lists(
    near: np.ndarray, judge: np.ndarray | Judge, k: int, role: str, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare each query's k nearest rows of a store (m, n) with those of the re-embedded store (m, n), the judge.

    ``"overlap"`` is the share of the results that are among the k nearest of the re-embedded store;
    ``"graded_overlap"`` gives others partial credit, from 0 for a random row to 1 for the last of these k, by their
    target similarity. Exact ties count as found. The pull of row j is what removing it from both stores adds to the
    scores of all queries: the next row moves up in every list that contained it.
    """
    m, n = near.shape
    own = np.arange(m)
    paired = role in ("items", "captions")
    table, mean, right, best = judge if isinstance(judge, Judge) else Judge.of(judge, k, role, hubness)
    near = ranked(near, role == "items", hubness)
    found = top_k(near, k + 1)
    worth = np.take_along_axis(table, found, axis=1)

    def graded(worth: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hit = worth >= last[:, None]
        return hit.mean(axis=1), np.where(hit, 1.0, _credit(worth - mean[:, None], (last - mean)[:, None])).mean(axis=1)

    scores = graded(worth[:, :k], best[:, k - 1])
    easier = graded(worth[:, :k], best[:, k])
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
        for which in (0, 1):
            for row, change, here in (
                (gone, after[which] - scores[which], slice(None)),
                (missed, easier[which] - scores[which], alone),
            ):
                if paired:
                    change = np.where(row == own, 0.0, change)
                np.add.at(pulls[which], row[here], change[here])

    # Of rows that tie for the last place of a list each is in it with its probability; of the judge's any is right.
    def credited(worth: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        last, middle = best[rows, k - 1, None], mean[rows, None]
        return np.where(worth >= last - TIE, 1.0, (worth - middle) / np.maximum(last - middle, 1e-12))

    credit = credited(worth[:, :k])
    scores = (credit >= 1).sum(axis=1) / k, credit.sum(axis=1) / k
    unsure = _ties(np.take_along_axis(near, found, axis=1), k)
    shares = tie_shares(near[unsure], k, TIE)
    credit = np.where(shares > 0, credited(table[unsure], unsure), 0.0)
    for score, value in zip(scores, (credit >= 1, credit), strict=True):
        score[unsure] = (shares * value).sum(axis=1) / k
    return {name: Hits(scores[i], pulls[i]) for i, name in enumerate(("overlap", "graded_overlap"))}


def _credit(above: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the credit, −1 to 1, of results this far above a random row, where the last right one is ``scale`` above.

    Where even that one is no nearer than a random row, there is none.
    """
    return np.asarray(np.clip(np.divide(above, scale, out=np.zeros_like(above), where=scale > 1e-9), -1.0, 1.0))


def ranked(table: np.ndarray, leave_out_own: bool, hubness: Hubness | None) -> np.ndarray:
    """Return the values by which lists are ranked, in float64: −inf for an excluded item, corrected for hubs."""
    table = table.astype(np.float64, copy=leave_out_own or hubness is not None)
    if leave_out_own:
        np.fill_diagonal(table, -np.inf)
    return table if hubness is None else hubness.of_matrix(table).correct(table)


def judge_of(items: EvaluationSet, search: Search, near: np.ndarray) -> Judge:
    """Return what compares the lists of a search, from its similarities with the re-embedded store."""
    return Judge.of(near, items.list_length(len(search.rows)), search.role, items.hubness)


def read(
    items: EvaluationSet,
    search: Search,
    strategy: str,
    near: np.ndarray,
    judge: Judge | None,
    only: str | None = None,
) -> dict[str, Hits]:
    """Read all scores of a strategy from similarities (queries, rows), by ``"<measure>/<strategy>"``, or ``only`` one.

    Of one modality without labels an item looks for itself in the other model's vectors, so strategies that use one
    model alone have no such score.
    """
    tables, found = items.tables, {}
    modality = None if search.role == "apart" else search.modality
    asks = search.role == "apart" if items.relevant is not None else modality == tables.query_modality
    if asks and (strategy not in ("keep", "re-embed") or not items.finds_itself):
        for task, depth in items.tasks.items():
            if only in (None, f"{task}/{strategy}"):
                found[f"{task}/{strategy}"] = task_hits(items, search, near, task, depth)
    if judge is not None and strategy != "re-embed" and only not in found:
        k = items.list_length(len(search.rows))
        for name, hits in compare_lists(near, judge, k, search.role, items.hubness).items():
            name = f"{name.replace('overlap', search.name)}@{k}/{strategy}"
            found[name] = replace(hits, modality=modality, rows=search.queries, paired=search.paired, each=k)
    return found


#: The fold of rows by modality; −1 for rows that no map is fitted on.
Folds: TypeAlias = Mapping[str, np.ndarray]


def deal_folds(items: EvaluationSet, recipe: MapRecipe) -> tuple[np.ndarray, Folds]:
    """Divide anchors that are scored themselves, (n,); the rows of an item share its fold, or that of its class."""
    tables, fitted, groups = items.tables, recipe.fitted, items.groups_of(recipe.fitted)
    units = np.arange(len(tables.ids[fitted[0]])) if groups is None else groups
    fold = deal(units, FOLDS, np.random.default_rng(recipe.random_state))
    rows = dict.fromkeys(tables.ids, fold)
    if tables.by_class:
        assert tables.classes is not None
        on_items = tables.store_modality in fitted
        rows[tables.store_modality] = fold if on_items else fold[tables.classes]
        rows[tables.query_modality] = np.full(len(tables.ids[tables.query_modality]), -1) if on_items else fold
    return fold, rows


def folds_of(folds: Folds | None, modality: str | None, rows: np.ndarray) -> np.ndarray:
    """Return the folds of some rows; items that are no anchors, and texts of other items, modality None, have none."""
    return np.full(len(rows), -1) if folds is None or modality is None else folds[modality][rows]


class Sheet:
    """What maps fitted on equally many folds show: similarities by search and strategy, cosines, the mapped store."""

    def __init__(
        self, items: EvaluationSet, folds: Folds | None = None, *, only_task: bool = False, random_state: int = 0
    ) -> None:
        self._items, self._folds, tables = items, folds, items.tables
        searches = items.searches[-1:] if only_task else items.searches
        self._near = {
            (search, strategy): np.zeros((len(search.queries), len(search.rows)))
            for search in searches
            for strategy in (MAPPED[:1] if only_task else MAPPED)
            if strategy in search.strategies
        }
        both = [name for name in tables.target if name in tables.source]
        self._cosines = {name: np.zeros((2, len(tables.ids[name]))) for name in both}  # sums, and their terms
        self.mapped = np.zeros((tables.n, next(iter(tables.target.values())).shape[1]))
        #: Sums over the maps that a query is compared by, (m, 3), of 1 and of mean and deviation of its similarities.
        self._levels = {key: np.zeros((len(near), 3)) for key, near in self._near.items()}
        rng = np.random.default_rng([random_state, 4])
        self._known = {  # positions
            search: np.sort(rng.permutation(len(search.rows))[:LEVELED]) if folds is not None else search.rows[:0]
            for search in searches
        }
        #: The side that a strategy does not map, as unit rows.
        self._units = {
            (search, strategy): unit_rows(search.target, None, search.queries)
            if strategy == "stored"
            else unit_rows(tables.source[tables.store_modality], None, search.rows)
            for search, strategy in self._near
        }

    def add(
        self,
        model: TwoWay,
        cells: Sequence[tuple[int, int]] = ((-1, -1),),
        each: int = 1,
        certified: TwoWay | None = None,
    ) -> None:
        """Compare queries and rows of pairs of folds, ``each`` of which count as one, by a map fitted on neither.

        Cosines are those of ``certified``, if the map was chosen without these folds and is of another kind.
        """
        items, folds, stored = self._items, self._folds, self._items.tables.store_modality
        of_text = items.query_fold
        models, certified = {-1: model}, certified or model
        own = folds_of(folds, stored, np.arange(items.tables.n)) // each
        # Stored rows are mapped once, for all that is read from them.
        rows = np.flatnonzero(np.isin(own, [-1, *(b for _, b in cells)]))
        mapped, place = self.mapped[:0], np.zeros(len(own), int)
        if len(rows):
            mapped = model.to_target(stored).transform(items.tables.source[stored][rows])
        place[rows] = np.arange(len(rows))
        for (search, strategy), near in self._near.items():
            of_row = own[search.rows]
            of_query = folds_of(folds, None if search.role == "apart" else search.modality, search.queries) // each
            apart = of_text is not None and search.role in ("classes", "apart")
            unseen = cast("np.ndarray", of_text) if apart else np.full(len(search.queries), -1)
            levels, known = self._levels[search, strategy], self._known[search]
            units = self._units[search, strategy]
            j = np.flatnonzero(np.isin(of_row, [b for _, b in cells]))
            asks = np.isin(of_query, [a for a, _ in cells])
            for part in np.unique(unseen[asks]).tolist() if len(j) else ():
                i = np.flatnonzero(asks & (unseen == part))
                if part not in models:
                    models[part] = model.without(part)
                queries, store = sides(strategy, models[part], items, search)
                if strategy == "queries":
                    asked, stored_rows, others = queries(search.queries[i]), units[j], units[known]
                else:
                    asked, these = units[i], search.rows[j]
                    stored_rows = store(these) if part >= 0 else np.asarray(normalize_rows(mapped[place[these]]))
                    others = store(search.rows[known]) if len(known) else stored_rows[:0]
                level = asked @ others.T if len(known) else np.zeros((len(i), 1))
                scale = np.stack([np.ones(len(i)), level.mean(axis=1), np.maximum(level.std(axis=1), 1e-12)], axis=1)
                for a, b in cells:
                    these, those = np.flatnonzero(of_query[i] == a), np.flatnonzero(of_row[j] == b)
                    found = asked[these] @ stored_rows[those].T
                    if len(known):
                        found = (found - scale[these, 1:2]) / scale[these, 2:]
                    near[np.ix_(i[these], j[those])] = found
                    levels[i[these]] += len(those) * scale[these]
        for name, (total, terms) in self._cosines.items():
            own_fold = folds_of(folds, name, np.arange(total.shape[-1])) // each
            some = np.flatnonzero(np.isin(own_fold, [-1, *(b for _, b in cells)]))
            described = of_text is not None and items.tables.by_class and name != stored
            unseen = cast("np.ndarray", of_text)[some] if described else np.full(len(some), -1)
            for part in np.unique(unseen).tolist():
                these, given = some[unseen == part], mapped if name == stored and certified is model else None
                total[these] += cosines(certified.without(part), items, name, these, given)
            terms[some] += 1
        last = np.isin(own[rows], [b for a, b in cells if a == -1])
        self.mapped[rows[last]] = mapped[last]

    def lists(self) -> np.ndarray:
        """Return the rows that the queries of the decisive search find first in the mapped store, (m, SHOWN)."""
        search = self._items.searches[-1]
        return _first(self._items, search, self._leveled(search, "stored"))

    def _leveled(self, search: Search, strategy: str) -> np.ndarray:
        """Return similarities (m, n) of one scale.

        Maps of other folds differ in the mean and in the spread of a query's similarities with all rows, so rows of
        different folds would be ranked by these.
        """
        near, levels = self._near[search, strategy], self._levels[search, strategy]
        if not len(self._known[search]):
            return near
        mean, spread = (levels[:, k] / np.maximum(levels[:, 0], 1) for k in (1, 2))
        leveled = near * spread[:, None]
        leveled += mean[:, None]
        return leveled

    def read(self, judges: Mapping[str, Judge]) -> dict[str, Hits]:
        """Return all scores, by ``"<measure>/<strategy>"`` or ``"cosine/<modality>"``."""
        found: dict[str, Hits] = {}
        for search, strategy in self._near:
            near = self._leveled(search, strategy)
            found |= read(self._items, search, strategy, near, judges.get(search.name))
        for name, (total, terms) in self._cosines.items():
            found[f"cosine/{name}"] = Hits(total / terms, None, name, np.arange(len(terms)))
        return found


def read_unmapped(items: EvaluationSet) -> tuple[dict[str, Judge], dict[str, Hits]]:
    """Return the re-embedded store's similarities by search, and the scores of the strategies without a map."""
    judges: dict[str, Judge] = {}
    found: dict[str, Hits] = {}
    for search in items.searches:
        ways = {"re-embed": items.judged, "keep": "keep" in search.strategies, "leave": items.same_width}
        for strategy in (way for way in ways if ways[way]):
            near = similarities(strategy, items, search)
            found |= read(items, search, strategy, near, judges.get(search.name))
            if strategy == "re-embed":
                judges[search.name] = judge_of(items, search, near)
    return judges, found


def score_heldout(model: TwoWay, items: EvaluationSet) -> Measured:
    """Score items that are not anchors."""
    judges, found = read_unmapped(items)
    sheet = Sheet(items)
    sheet.add(model)
    out = Measured(mapped=sheet.mapped, lists=sheet.lists())
    for name, hits in (found | sheet.read(judges)).items():
        out.scores[name] = Scores(hits.score, hits.influence(), hits.groups(items, items.groups), hits.each)
    return out


def measure_heldout(
    design: Design, recipe: MapRecipe, model: TwoWay, choice: Choice, callback: Callable[[int], None] | None = None
) -> Measured:
    """Score items that are not anchors; for the curve, by maps of consecutive folds of the anchors."""
    items = design.items
    out, rng = score_heldout(model, items), np.random.default_rng(recipe.random_state)
    if items.tables.n > MOST_TESTED:
        items = items.take(np.sort(rng.choice(items.tables.n, MOST_TESTED, replace=False)))
    fold = rng.permutation(design.n_anchors) % FOLDS
    anchors = AnchorFolds(recipe, design.anchors, fold, design.others, half=True)
    judges, _ = read_unmapped(items)
    for size in sizes_of(np.arange(len(fold)), fold):
        found = []
        for first in range(FOLDS):
            sheet = Sheet(items, only_task=True)
            sheet.add(anchors.fit([(first + fold) % FOLDS for fold in range(size)], choice))
            found.append(sheet.read(judges))
        scores = {name: [hits[name].score.mean() for hits in found] for name in items.curved}
        out.points.append((size / FOLDS, scores))
        if callback:
            callback(1)
    return out


def sizes_of(units: np.ndarray, fold: np.ndarray) -> list[int]:
    """Return the numbers of folds to fit on, given the unit of each anchor, all of whose rows count as one."""
    fewest = min(len(np.unique(units[fold == part])) for part in range(FOLDS))
    if not fewest:
        raise TooFewAnchorsError(
            f"Got {len(np.unique(units))} pairs that are no near-duplicates; expected at least {FOLDS}, to fit maps "
            "on parts of them.",
            "Encode more items, or fit on the other modality.",
        )
    return [size for size in SIZES if size in SIZES[-2:] or size * fewest >= FEWEST_FITTED]


def cross_fit(
    items: EvaluationSet,
    recipe: MapRecipe,
    choice: Choice,
    callback: Callable[[int], None] | None = None,
    *,
    others: Others | None = None,
) -> Measured:
    """Score anchors by maps that have seen neither them nor what they are compared with.

    The scores of the two largest sizes are extrapolated to all anchors. The kind of map is chosen by retrieval, so for
    hits and lists it is chosen again without the coarse folds that are left out; cosines are those of the kind that is
    certified, since other kinds can have quite different ones.
    """
    tables, groups = items.tables, items.groups_of(recipe.fitted)
    fold, folds = deal_folds(items, recipe)
    anchors = AnchorFolds(recipe, tables, fold, others, half=True)
    sizes = sizes_of(np.arange(len(fold)) if groups is None else groups, fold)
    coarse = fold // (FOLDS // COARSE)
    choices = {
        pair: recipe.choose(tables, np.flatnonzero(~np.isin(coarse, pair))) for pair in combinations(range(COARSE), 2)
    }
    # Read-outs are of a few numbers that all anchors determine, as those of the map that is certified.
    choices = {
        pair: replace(one, quality=choice.quality) if one.name == choice.name else one for pair, one in choices.items()
    }
    judges, unmapped = read_unmapped(items)
    widths = tuple(next(iter(side.values())).shape[1] for side in (tables.source, tables.target))
    if all(one.method == "orthogonal" and not one.parameters for one in (choice, *choices.values())):
        # Such a map takes rows from the span of one model's to that of the other's: their coordinates are enough.
        items, others = items.in_span(others)
        anchors = AnchorFolds(recipe, items.tables, fold, others, widths=widths, half=True)
    out = Measured(maps=[one.name for one in choices.values()], ahead=AHEAD, compared=items)
    more: dict[str, Hits] = {}
    for size in sizes:
        sheet = Sheet(items, folds, only_task=size not in SIZES[-2:], random_state=recipe.random_state)
        for kept, cells, each, pair in _left_out(size):
            model = certified = anchors.fit(kept, choices[pair])
            if choices[pair].name != choice.name:
                certified = anchors.fit(kept, choice)
            sheet.add(model, cells, each, certified)
        fewer, more = more, sheet.read(judges)
        out.mapped_by_fewer, out.mapped = out.mapped, sheet.mapped
        out.points.append((size / FOLDS, {name: _by_fold(folds, more[name]) for name in items.curved}))
        if callback:
            callback(1)
    out.lists = sheet.lists()
    for name, hits in (unmapped | more).items():  # strategies without a map score the same with fewer anchors
        score = hits.score + AHEAD * (hits.score - fewer.get(name, hits).score)
        influence = replace(hits, score=score).influence()
        if name.partition("/")[0] not in items.tasks or hits.pull is None:
            influence = SHARED_FOLDS * (influence - influence.mean())
        out.scores[name] = Scores(score, influence, hits.groups(items, groups), hits.each)
    return out


def _left_out(size: int) -> Iterator[tuple[list[int], list[tuple[int, int]], int, tuple[int, int]]]:
    """Yield the folds to fit a map on, without each two folds, or each two coarse folds if ``size`` leaves so many out.

    With them, the pairs of folds (query, −1 for no anchor, row) that the map compares, of how many folds these consist,
    and the coarse folds whose choice of a map has not seen them. Queries and rows of one fold, and queries that are no
    anchors, are compared by the map fitted without the row's fold and the next one.
    """
    parts = FOLDS if size == SIZES[-1] else COARSE
    each = FOLDS // parts
    for a, b in combinations(range(parts), 2):
        cells = [(a, b), (b, a)]
        for row, following in ((a, b), (b, a)):
            if (row + 1) % parts == following:
                cells += [(row, row), (-1, row)]
        kept = np.flatnonzero(~np.isin(np.arange(FOLDS) // each, (a, b)))
        one, other = (part * COARSE // parts for part in (a, b))
        if one == other:
            other = (one + 1) % COARSE
        yield np.roll(kept, a + b)[:size].tolist(), cells, each, (min(one, other), max(one, other))


def _by_fold(folds: Folds, hits: Hits) -> list[float]:
    """Return the mean score of each fold; rows that are no anchors are divided as well."""
    part = folds_of(folds, hits.modality, cast("np.ndarray", hits.rows))
    part = np.where(part < 0, np.arange(len(part)) % FOLDS, part)
    return [hits.score[part == k].mean() for k in np.unique(part)]


#: Results and queries that are shown.
SHOWN, EXAMPLES = 5, 6


def _first(items: EvaluationSet, search: Search, near: np.ndarray) -> np.ndarray:
    """Return the numbers of the stored rows that each query finds first, (m, SHOWN), given similarities (m, n)."""
    table = ranked(near, search.role == "items", items.hubness)
    return np.asarray(search.rows[top_k(table, min(SHOWN, table.shape[1] - 1))])


def show_searches(items: EvaluationSet, measured: Measured, random_state: int) -> list[dict[str, Any]]:
    """Return some searches with what each store finds first: those that mapping changes most, and random ones."""
    search, tables = items.searches[-1], items.tables
    assert measured.lists is not None
    known = {"keep": "keep" in search.strategies, "stored": False, "re-embed": items.judged}
    lists = {name: _first(items, search, similarities(name, items, search)) for name in known if known[name]}
    lists["stored"] = measured.lists
    order = np.random.default_rng([random_state, 5]).permutation(len(search.queries))
    changed = order[:0]
    if "re-embed" in lists:
        kept = (lists["stored"][:, :, None] == lists["re-embed"][:, None]).any(axis=2).sum(axis=1)
        changed = order[np.argsort(kept[order], kind="stable")][: EXAMPLES // 2]
    chosen = [*changed, *order[~np.isin(order, changed)]][:EXAMPLES]
    names = tables.ids[tables.store_modality]
    asked = items.names if search.role == "apart" else tables.ids[search.modality][search.queries]
    found = []
    for k in chosen:
        here = {name: lists[name][k] for name in known if name in lists}
        rows = np.unique(np.concatenate(list(here.values())))
        right = _right(items, search, k, rows)
        wanted = rows[right] if right is not None else here.get("re-embed", rows[:0])
        found.append(
            {
                "query": str(k if asked is None else asked[k]),
                "changed": bool(k in changed),
                "lists": {name: names[rows].tolist() for name, rows in here.items()},
                "wanted": names[wanted].tolist(),
                "judged": right is not None,
            }
        )
    return found


def _right(items: EvaluationSet, search: Search, query: int, rows: np.ndarray) -> np.ndarray | None:
    """Return which stored rows are right for a query, if that is known."""
    tables = items.tables
    if items.relevant is not None:
        return np.asarray(items.relevant[query, rows])
    if tables.classes is not None:
        own = query if tables.by_class else tables.classes[search.queries[query]]
        return np.asarray(tables.classes[rows] == own)
    return np.asarray(rows == search.queries[query]) if search.role == "captions" else None


def measure_controls(
    model: TwoWay, rotation: OrthogonalMap, items: EvaluationSet, random_state: int
) -> dict[str, dict[str, float]]:
    """Return the scores of chance, of a constant and of a random rotation about the correct means, by measure."""
    tables, hubness, stored = items.tables, items.hubness, items.tables.store_modality
    out: dict[str, dict[str, float]] = {}
    for search in items.searches if items.judged else ():
        k, own = items.list_length(len(search.rows)), search.role == "items"
        there = rotation.for_modality(stored)
        d_source, d_target = rotation.rotation_.shape
        turn = random_rotation(d_source, d_target, random_state=random_state)
        store = (tables.source[stored] - there.source_mean_) @ turn + there.target_mean_
        judge = judge_of(items, search, similarities("re-embed", items, search))
        near = unit_rows(search.target, None, search.queries) @ unit_rows(store, None, search.rows).T
        chance = k / (len(search.rows) - own), _graded_chance(judge, k, own)
        found = compare_lists(near, judge, k, search.role, hubness)
        for (measure, hits), by_chance in zip(found.items(), chance, strict=True):
            name = f"{measure.replace('overlap', search.name)}@{k}"
            out[name] = {"chance": float(by_chance), "random_rotation": float(hits.score.mean())}
    for name in (name for name in tables.source if name in tables.target):
        sides_of = tables.source[name], tables.target[name]
        known = cosine_controls(model.to_target(name), *sides_of, random_state=random_state)
        out[f"cosine/{name}"] = {key: value for key, value in asdict(known).items() if value is not None}
    return out


def _graded_chance(judge: Judge, k: int, own: bool) -> float:
    """Return the expected graded overlap of a list of random rows."""
    n, mean = judge.table.shape[1], judge.mean[:, None]
    worth = _credit(judge.table - mean, judge.best[:, k - 1, None] - mean)
    if own:
        np.fill_diagonal(worth, 0.0)
    return float(worth.sum() / (n - own) / len(worth))
