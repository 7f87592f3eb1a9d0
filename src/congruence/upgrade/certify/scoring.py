"""Hits of queries in a gallery, and the influence of each item on them.

A gallery is a sample, as the queries are. Removing item i from the sample removes its query, and also a distractor or a relevant
item of other queries. Both effects together are the item's jackknife pseudo-value h_i − p_i, where h_i is its hit and p_i the number of
hits among the *other* queries that its removal would add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from congruence.metrics import nearest
from congruence.metrics.hubness import Correction
from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.strategies import Vectors

__all__ = ["PULL", "Hits", "correction", "hits_of", "recall", "score"]

#: Share of an item's pull that enters its influence. Jackknife pseudo-values (share 1) count the interplay of two items
#: twice (Efron and Stein 1981), bare hits (share 0) not at all; ``benchmarks/certify_calibration.py`` puts the truth between.
PULL = 0.6


@dataclass(frozen=True)
class Hits:
    """Scores of the queries of one strategy.

    Attributes
    ----------
    score : ndarray, shape (m,)
        For each query: 1 for a hit, else 0, or a value between.
    pull : ndarray, shape (n,), or None
        Amount that removing each gallery item would add to the scores of others; None if the gallery is not a sample.
    """

    score: np.ndarray
    pull: np.ndarray | None = None

    @property
    def influence(self) -> np.ndarray:
        """The pseudo-value of each item, of a gallery whose items are the queries' own."""
        return self.score if self.pull is None else self.score - PULL * self.pull


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
    query_class, gallery_class : ndarray of int, shape (m,) and (n,)
        With a separate class for each item, this is the retrieval of the paired item.
    k : int
    own : ndarray of int, shape (m,), optional
        Gallery row that is the same item as the query, and is removed together with it. If omitted, the gallery is not a sample,
        and there is no ``pull``.
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
    left_out = None if find_own else own
    if correction is not None:
        queries, gallery = correction.as_inner_products(queries, gallery, left_out=left_out)
    near = nearest(queries, depth, gallery, left_out=left_out)
    right = gallery_class[near] == query_class[:, None]
    hit = right[:, :k].any(axis=1)
    if own is None:
        return Hits(hit.astype(np.float64))
    pull = np.zeros(n)
    among = right.sum(axis=1)
    for place in range(min(k, depth)):
        # With this row gone the next one moves up into the first k.
        change = ((among - right[:, place]) > 0).astype(float) - hit
        change[near[:, place] == own] = 0.0
        np.add.at(pull, near[:, place], change)
    return Hits(hit.astype(np.float64), pull)


def correction(items: EvaluationSet, queries: np.ndarray, store: np.ndarray) -> Correction | None:
    """Return the correction for hubs computed from these queries, or from the stored items if they search for their class."""
    hubness, tables = items.ranking.hubness, items.tables
    if hubness is None:
        return None
    if tables.by_class:
        return hubness.of(store, queries)
    return hubness.of(queries, store, exclude_self=tables.classes is not None)


def hits_of(
    vectors: Vectors, items: EvaluationSet, test: np.ndarray, depth: int, correction: Correction | None = None
) -> Hits:
    """Return for each test row of the store whether it is assigned to its class or, without descriptions of classes, found by its query.

    Parameters
    ----------
    vectors : (ndarray, ndarray), shapes (m, d) and (n, d)
        Queries and store.
    items : EvaluationSet
    test : ndarray of int, shape (t,)
        Stored rows.
    depth : int
        Number of results that are considered.
    correction : Correction, optional

    Returns
    -------
    Hits
    """
    queries, store = vectors
    tables = items.tables
    if tables.by_class:
        assert tables.classes is not None
        codes = np.arange(len(queries))
        return recall(
            store[test], queries, tables.classes[test], codes, min(depth, len(queries) - 1), correction=correction
        )
    same = np.arange(tables.n) if tables.classes is None else tables.classes
    return recall(
        queries[test],
        store,
        same[test],
        same,
        min(depth, tables.n - 1),
        own=test,
        find_own=tables.classes is None,
        correction=correction,
    )


def score(
    vectors: Mapping[str, Vectors],
    items: EvaluationSet,
    test: np.ndarray,
    tasks: Mapping[str, int] | None = None,
    corrections: Mapping[str, Correction] | None = None,
) -> dict[str, Hits]:
    """Score test rows of the store (or, by row, their queries) under each strategy.

    Parameters
    ----------
    vectors : mapping of str to (ndarray, ndarray)
        Queries and store by strategy (:func:`~congruence.upgrade.certify.strategies.vectors_of`).
    items : EvaluationSet
    test : ndarray of int, shape (t,)
        Stored rows.
    tasks : mapping of str to int, optional
        Some of the tasks, with the number of results that each considers; by default all.
    corrections : mapping of str to Correction, optional
        Corrections for hubs, by strategy; by default computed from these queries or, if classes are searched, from the test rows.

    Returns
    -------
    dict of str to Hits
        By ``"<task>/<strategy>"``, for test rows. Of one modality without labels an item looks for itself in the other model's vectors, so strategies
        that use one model alone have no score.
    """
    tables = items.tables
    finds_itself = tables.store_modality == tables.query_modality and tables.classes is None
    out = {}
    for strategy, (queries, store) in vectors.items():
        if finds_itself and strategy in ("keep", "re-embed"):
            continue
        if corrections is not None:
            of_hubs: Correction | None = corrections[strategy]
        else:
            of_hubs = correction(items, queries, store[test] if tables.by_class else store)
        for task, depth in (items.tasks if tasks is None else tasks).items():
            out[f"{task}/{strategy}"] = hits_of((queries, store), items, test, depth, of_hubs)
    return out
