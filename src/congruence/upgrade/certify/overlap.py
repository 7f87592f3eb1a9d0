"""Overlap of result lists: do mapped and re-embedded stores return the same neighbors? Measured for every query, without captions or labels.

Whether an item finds itself says little about a store of near-duplicates, where a twin is as good, and little about a store of very
different items, where it is easy. What matters are the lists a user sees: the k nearest rows of the mapped store, judged by the target model.
"""

from __future__ import annotations

import numpy as np

from congruence._utils.top_k import top_k
from congruence.metrics import Hubness
from congruence.upgrade.certify.evaluation_set import EvaluationSet, Search
from congruence.upgrade.certify.scoring import PULL, Hits
from congruence.upgrade.certify.strategies import similarities
from congruence.upgrade.certify.two_way import TwoWay

__all__ = ["compare_lists", "influence_of", "list_hits", "overlap_of", "ranked", "with_texts"]


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
        Role of the :class:`~congruence.upgrade.certify.evaluation_set.Search`: items do not find themselves, and items and captions are removed from a sample together with their row.
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
    return table if hubness is None else hubness.of_matrix(table).correct(table)


def list_hits(
    search: Search, near: np.ndarray, judge: np.ndarray, k: int, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare the result lists of a search (:func:`compare_lists`), by measure: ``"overlap@10"``, ``"graded_text_overlap@10"`` or alike."""
    found = compare_lists(near, judge, k, search.role, hubness)
    return {f"{name.replace('overlap', search.name)}@{k}": hits for name, hits in found.items()}


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


def overlap_of(model: TwoWay, items: EvaluationSet, measure: str, rows: np.ndarray) -> float:
    """Return one measure of mapped stored vectors, using some rows both as items and as the store.

    Parameters
    ----------
    model : TwoWay
    items : EvaluationSet
    measure : str
        As for :func:`list_hits`, of any number of results.
    rows : ndarray of int, shape (r,)

    Returns
    -------
    float
        NaN if there are too few rows.
    """
    k = items.list_length(len(rows))
    if k <= 0:
        return float("nan")
    search = items.search_of(measure)
    near, judge = (similarities(strategy, model, items, search, rows) for strategy in ("stored", "re-embed"))
    hits = list_hits(search, near, judge, k, items.ranking.hubness)
    return float(hits[f"{measure.split('@')[0]}@{k}"].score.mean())


def with_texts(model: TwoWay, items: EvaluationSet) -> TwoWay:
    """Return the map with the means of texts that are not anchors."""
    for search in items.searches:
        if search.role == "apart" and search.source is not None:
            model = model.recentered(search.source, search.target, search.modality)
    return model
