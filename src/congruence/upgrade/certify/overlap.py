"""Overlap of result lists: do mapped and re-embedded stores return the same neighbors? Measured for every query, without captions or labels.

Whether an item finds itself says little about a store of near-duplicates, where a twin is as good, and little about a store of very
different items, where it is easy. What matters are the lists a user sees: the k nearest rows of the mapped store, judged by the target model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.top_k import top_k
from congruence.evaluation import Ranking
from congruence.maps import AffineMap
from congruence.metrics import Hubness
from congruence.upgrade.certify.ranking import PLAIN, unit_rows
from congruence.upgrade.certify.recipe import TwoWay
from congruence.upgrade.certify.scoring import Hits
from congruence.upgrade.certify.tables import Tables

__all__ = [
    "Search",
    "Side",
    "compare_lists",
    "depth",
    "overlap_of",
    "ranked",
    "searches_of",
    "sides_in",
    "similarity_in",
]

#: Text queries, at most.
_MOST_TEXTS = 2000


@dataclass(frozen=True)
class Search:
    """Queries whose result lists over two stores are compared.

    Attributes
    ----------
    name : str
        Prefix of its measures: ``"overlap"`` or ``"text_overlap"``.
    modality : str
    source : ndarray, shape (m, d_source), or None
        The queries in the source model, if available.
    target : ndarray, shape (m, d_target)
    store : str
        Modality that is searched.
    role : {"items", "captions", "classes", "apart"}
        The stored items themselves, each excluded from its own list; a caption for each item; a description for each class; or texts of
        other items.
    """

    name: str
    modality: str
    source: np.ndarray | None
    target: np.ndarray
    store: str
    role: str


def searches_of(tables: Tables, texts: tuple[np.ndarray | None, np.ndarray] | None) -> list[Search]:
    """Return the searches that are possible in a store with vectors from both models.

    Parameters
    ----------
    tables : Tables
    texts : (ndarray or None, ndarray), optional
        Text queries of other items in the source model (if available) and in the target model, paired by row.

    Returns
    -------
    list of Search
        Empty if the target model has no vectors of the store.
    """
    stored, asked = tables.stored, tables.asked
    if stored not in tables.target:
        return []
    out = [Search("overlap", stored, tables.source[stored], tables.target[stored], stored, "items")]
    if asked != stored and asked in tables.target:
        role = "classes" if tables.by_class else "captions"
        out.append(Search("text_overlap", asked, tables.source[asked], tables.target[asked], stored, role))
    elif texts is not None:
        source, target = (None if rows is None else rows[:_MOST_TEXTS] for rows in texts)
        assert target is not None
        out.append(Search("text_overlap", "text", source, target, stored, "apart"))
    return out


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
        Role of the :class:`Search`: items do not find themselves, and items and captions are removed from a sample together with their row.
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


def similarity_in(
    strategy: str,
    model: TwoWay,
    tables: Tables,
    search: Search,
    queries: np.ndarray,
    rows: np.ndarray,
    ranking: Ranking = PLAIN,
) -> np.ndarray | None:
    """Return the similarities by which a strategy ranks, shape (queries, rows), or None if they cannot be computed.

    Parameters
    ----------
    strategy : str
        One of :data:`~congruence.upgrade.certify.STRATEGIES`.
    model : TwoWay
    tables : Tables
    search : Search
    queries, rows : ndarray of int
        Of the search and of the store.
    ranking : Ranking, optional
        Cosines are centered by the means of all queries and of the whole store. Hubs are corrected later, in :func:`compare_lists`, which has all lists.

    Returns
    -------
    ndarray or None
    """
    sides = sides_in(strategy, model, tables, search)
    if sides is None:
        return None
    return np.asarray(sides[0].unit(queries, ranking) @ sides[1].unit(rows, ranking).T)


@dataclass(frozen=True, eq=False)
class Side:
    """Queries or a store, in the form in which a strategy compares them.

    Attributes
    ----------
    whole : ndarray, shape (n, d)
    mapped : AffineMap or None
        None if the rows are compared without mapping.
    """

    whole: np.ndarray
    mapped: AffineMap | None = None

    def unit(self, some: np.ndarray, ranking: Ranking) -> np.ndarray:
        """Return some rows, mapped and scaled to unit norm."""
        moved = self.whole[some] if self.mapped is None else self.mapped.transform(self.whole[some])
        mean = self.whole.mean(axis=0, keepdims=True) if ranking.center else None
        if mean is not None and self.mapped is not None:
            mean = self.mapped.transform(mean)  # the map is affine
        return unit_rows(moved, ranking, mean)


def sides_in(strategy: str, model: TwoWay, tables: Tables, search: Search) -> tuple[Side, Side] | None:
    """Return the queries and the store that a strategy compares, or None if they are not available."""
    ours, theirs = tables.source[search.store], search.target
    if strategy == "re-embed":
        return Side(theirs), Side(tables.target[search.store])
    if strategy == "stored":
        return Side(theirs), Side(ours, model.to_target(search.store))
    if search.source is None:
        return None
    if strategy == "keep":
        return Side(search.source), Side(ours)
    return Side(theirs, model.to_source(search.modality)), Side(ours)


def overlap_of(
    model: TwoWay,
    tables: Tables,
    measure: str,
    rows: np.ndarray,
    n_neighbors: int,
    texts: tuple[np.ndarray | None, np.ndarray] | None,
    ranking: Ranking = PLAIN,
) -> float:
    """Return one measure of mapped stored vectors, using some rows both as items and as the store.

    Parameters
    ----------
    model : TwoWay
    tables : Tables
    measure : str
        As for :func:`overlap_on`.
    rows : ndarray of int
    n_neighbors : int
    texts : (ndarray or None, ndarray), optional
    ranking : Ranking, optional

    Returns
    -------
    float
        NaN if there are too few rows.
    """
    kind = measure.split("@")[0]
    search = next(s for s in searches_of(tables, texts) if s.name == kind.removeprefix("graded_"))
    queries = rows if search.role in ("items", "captions") else np.arange(len(search.target))
    k = depth(len(rows), n_neighbors)
    near, judge = (
        similarity_in(strategy, model, tables, search, queries, rows, ranking) for strategy in ("stored", "re-embed")
    )
    if k <= 0 or near is None or judge is None:
        return float("nan")
    found = compare_lists(near, judge, k, search.role, ranking.hubness)
    return float(found[kind.replace("text_", "")].score.mean())
