"""Hits of queries in a gallery, and the influence of each item on them.

A gallery is a sample, as the queries are. Removing item i from the sample removes its query, and also a distractor or a relevant
item of other queries. Both effects together are the item's jackknife pseudo-value h_i − p_i, where h_i is its hit and p_i the number of
hits among the *other* queries that its removal would add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from congruence.evaluation import Ranking
from congruence.metrics import nearest
from congruence.metrics.hubness import Correction
from congruence.upgrade.certify.strategies import PLAIN, Vectors
from congruence.upgrade.certify.tables import Tables

__all__ = ["Hits", "correction", "nearest_rows", "recall", "score", "tasks_of"]


@dataclass(frozen=True)
class Hits:
    """Scores of the queries of one strategy.

    Attributes
    ----------
    score : ndarray, shape (m,)
        For each query: 1 for a hit, else 0.
    pull : ndarray, shape (n,)
        Amount that removing each gallery item would add to the scores of others.
    """

    score: np.ndarray
    pull: np.ndarray


def nearest_rows(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    left_out: np.ndarray | None = None,
    correction: Correction | None = None,
) -> np.ndarray:
    """Find each query's k nearest gallery rows by inner product, nearest first; equally near rows are ordered by row number.

    Parameters
    ----------
    queries : ndarray, shape (m, d)
    gallery : ndarray, shape (n, d)
        With unit rows this is the cosine.
    k : int
        At most n, or n − 1 with ``left_out``.
    left_out : ndarray of int, shape (m,), optional
        A gallery row that each query must not find.
    correction : Correction, optional
        Correction for hubs in this gallery.

    Returns
    -------
    ndarray of int, shape (m, k)
    """
    if correction is not None:
        # One more column subtracts the gallery rows' numbers from the cosines of those queries that are corrected.
        led = np.ones(len(queries), bool)
        if correction.hubs is not None:
            led = correction.hubs[nearest(queries, 1, gallery, left_out=left_out)[:, 0]]
        queries = np.column_stack([queries, led.astype(queries.dtype)])
        gallery = np.column_stack([gallery, -correction.shift.astype(gallery.dtype)])
    return nearest(queries, k, gallery, left_out=left_out)


def recall(
    queries: np.ndarray,
    gallery: np.ndarray,
    query_class: np.ndarray,
    gallery_class: np.ndarray,
    k: int,
    *,
    own: np.ndarray | None = None,
    find_own: bool = True,
    correction: Correction | None = None,
) -> Hits:
    """Return for each query whether one of its k nearest gallery rows is of its class.

    Parameters
    ----------
    queries : ndarray, shape (m, d)
    gallery : ndarray, shape (n, d)
        Unit rows, or the components that a map covers.
    query_class, gallery_class : ndarray of int
        With a separate class for each item, this is the retrieval of the paired item.
    k : int
    own : ndarray of int, shape (m,), optional
        Gallery row that is the same item as the query, and is removed together with it. If omitted, the gallery is not a sample,
        and ``pull`` is zero.
    find_own : bool, default=True
        Whether a query may find its own row.
    correction : Correction, optional
        Correction for hubs in this gallery. The effect of removing an item on the correction is not included in ``pull``.

    Returns
    -------
    Hits
    """
    n = len(gallery)
    depth = min(k + 1, n - (not find_own))
    near = nearest_rows(queries, gallery, depth, None if find_own else own, correction)
    right = gallery_class[near] == query_class[:, None]
    hit = right[:, :k].any(axis=1)
    pull = np.zeros(n)
    if own is not None:
        among = right.sum(axis=1)
        for place in range(min(k, depth)):
            # With this row gone the next one moves up into the first k.
            change = ((among - right[:, place]) > 0).astype(float) - hit
            change[near[:, place] == own] = 0.0
            np.add.at(pull, near[:, place], change)
    return Hits(hit.astype(np.float64), pull)


def correction(ranking: Ranking, queries: np.ndarray, store: np.ndarray, tables: Tables) -> Correction | None:
    """Return the correction for hubs computed from the paired queries of a store; an item that must not find itself is excluded."""
    if ranking.hubness is None:
        return None
    find_own = tables.classes is None
    return ranking.hubness.of(queries, store, exclude_self=not find_own)


def tasks_of(tables: Tables, labelled: bool) -> dict[str, int]:
    """Return the tasks that can be measured on these tables, the decisive one first, with the depth of each."""
    if tables.by_class:
        return {"zero_shot": 1, "zero_shot@5": 5}
    if tables.stored != tables.asked:
        return {"recall@1": 1, "recall@10": 10}
    return {"same_class@1": 1} if labelled else {"own@1": 1}


def score(
    vectors: Mapping[str, Vectors],
    tables: Tables,
    test: np.ndarray,
    tasks: Mapping[str, int],
    ranking: Ranking = PLAIN,
    corrections: Mapping[str, Correction] | None = None,
) -> dict[str, Hits]:
    """Score test rows of the store (or, by row, their queries) under each strategy.

    Parameters
    ----------
    vectors : mapping of str to (ndarray, ndarray)
        Store and queries by strategy (:func:`~congruence.upgrade.certify.strategies.vectors_of`).
    tables : Tables
        The items.
    test : ndarray of int
        Stored rows.
    tasks : mapping of str to int
    ranking : Ranking, optional
        Search variant, the same for all strategies.
    corrections : mapping of str to Correction, optional
        Corrections for hubs, by strategy; by default computed from these queries.

    Returns
    -------
    dict of str to Hits
        By ``"<task>/<strategy>"``, for test rows.
    """
    out = {}
    for strategy, (store, queries) in vectors.items():
        if tables.by_class:
            of_hubs = None if ranking.hubness is None else ranking.hubness.of(store[test], queries)
        else:
            of_hubs = correction(ranking, queries, store, tables) if corrections is None else corrections[strategy]
        for task, depth in tasks.items():
            if tables.by_class:
                assert tables.classes is not None
                classes = np.arange(len(queries))
                hits = recall(
                    store[test],
                    queries,
                    tables.classes[test],
                    classes,
                    min(depth, len(queries) - 1),
                    correction=of_hubs,
                )
            else:
                # Of one modality and without labels an item looks for itself in the other model's vectors; for a model
                # alone that is no question.
                if tables.stored == tables.asked and tables.classes is None and strategy in ("keep", "re-embed"):
                    continue
                same = tables.classes if tables.classes is not None else np.arange(tables.n)
                find_own = tables.classes is None
                hits = recall(
                    queries[test],
                    store,
                    same[test],
                    same,
                    min(depth, tables.n - 1),
                    own=test,
                    find_own=find_own,
                    correction=of_hubs,
                )
            out[f"{task}/{strategy}"] = hits
    return out
