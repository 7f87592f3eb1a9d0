"""The vectors that each strategy compares under a search variant: centered or not, corrected for hubs or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from congruence.embeddings import normalize_rows
from congruence.evaluation import Ranking
from congruence.metrics.hubness import Correction
from congruence.upgrade.certify.recipe import TwoWay
from congruence.upgrade.certify.tables import Tables

__all__ = ["PLAIN", "compared", "correction", "part_seen", "strategies_of", "unit_rows", "unseen_corrections"]

#: Cosines as they are.
PLAIN = Ranking()


def unit_rows(rows: np.ndarray, ranking: Ranking, mean: np.ndarray | None = None) -> np.ndarray:
    """Return rows of unit norm, minus a mean (by default their own) if the ranking is centered."""
    if ranking.center:
        rows = rows - (rows.mean(axis=0) if mean is None else mean)
    return np.asarray(normalize_rows(rows))


def strategies_of(tables: Tables) -> list[str]:
    """Return the strategies that the available vectors allow."""
    if tables.asked not in tables.target:
        return ["keep"]
    return ["keep", "stored", "queries"] + (["re-embed"] if tables.stored in tables.target else [])


def compared(strategy: str, model: TwoWay, tables: Tables, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors that a strategy compares.

    Parameters
    ----------
    strategy : str
        One of :data:`~congruence.upgrade.certify.STRATEGIES`.
    model : TwoWay
        With the means of all modalities.
    tables : Tables
    ranking : Ranking
        If centered, each side is centered at the mean of all its rows here.

    Returns
    -------
    ndarray, shape (n, d)
        The store.
    ndarray, shape (m, d)
        The queries.
    """
    stored, asked = tables.stored, tables.asked
    if strategy == "stored":
        store = model.to_target(stored).transform(tables.source[stored])
    else:
        store = (tables.target if strategy == "re-embed" else tables.source)[stored]
    if strategy == "queries":
        queries = model.to_source(asked).transform(tables.target[asked])
    else:
        queries = (tables.source if strategy == "keep" else tables.target)[asked]
    return unit_rows(store, ranking), unit_rows(queries, ranking)


def part_seen(model: TwoWay, tables: Tables, rows: np.ndarray, ranking: Ranking = PLAIN) -> np.ndarray:
    """Return the component of stored rows, scaled to unit norm, that mapped queries can match.

    A mapped query is q B + b, with B the matrix of the reverse map and b its offset, so its product with x depends only on the projection of x on the
    rows of B and on b; centered queries lie in the span of the rows of B alone. Anchors lie entirely in this subspace, other rows do not, because
    anchors are in-sample. Each row is therefore scored by the component covered by a map fitted without it.

    Parameters
    ----------
    model : TwoWay
        With means of the asked modality.
    tables : Tables
    rows : ndarray of int
    ranking : Ranking, optional

    Returns
    -------
    ndarray, shape (len(rows), d_source)
    """
    whole = tables.source[tables.stored]
    store = unit_rows(whole[rows], ranking, whole.mean(axis=0) if ranking.center else None)
    back = model.to_source(tables.asked)
    met = back.matrix.T if ranking.center else np.column_stack([back.matrix.T, back.offset])
    # As good as a singular value decomposition at telling which directions there are, in a tenth of the time.
    basis, remains, _ = scipy.linalg.qr(met, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diagonal(remains))
    basis = basis[:, : len(size)][:, size > 1e-8 * size[0]]
    return np.asarray((store @ basis) @ basis.T)


def unseen_corrections(
    models: Sequence[TwoWay], fold: np.ndarray, tables: Tables, seen: np.ndarray | None, ranking: Ranking
) -> dict[str, Correction] | None:
    """Return each strategy's correction for hubs, computed from rows mapped by maps that were not fitted on them.

    Mapped anchors are closer to their own queries than other rows are, so they would look like hubs.

    Parameters
    ----------
    models : sequence of TwoWay
        One per fold, not fitted on that fold.
    fold : ndarray of int, shape (n,)
        Fold of each item.
    tables : Tables
        Paired items, not classes.
    seen : ndarray, shape (n, d_source), or None
        The components of the store that mapped queries can match.
    ranking : Ranking

    Returns
    -------
    dict of str to Correction, or None
        None if hubs are not corrected for.
    """
    if ranking.hubness is None or tables.by_class:
        return None
    out = {}
    for strategy in strategies_of(tables):
        store, queries = (side.copy() for side in compared(strategy, models[0], tables, ranking))
        for part, model in enumerate(models[1:] if strategy in ("stored", "queries") else (), 1):
            rows = np.flatnonzero(fold == part)
            here = compared(strategy, model, tables, ranking)
            store[rows], queries[rows] = here[0][rows], here[1][rows]
        if strategy == "queries" and seen is not None:
            store = seen
        found = correction(ranking, queries, store, tables)
        assert found is not None
        out[strategy] = found
    return out


def correction(ranking: Ranking, queries: np.ndarray, store: np.ndarray, tables: Tables) -> Correction | None:
    """Return the correction for hubs computed from the paired queries of a store; an item that must not find itself is excluded."""
    if ranking.hubness is None:
        return None
    find_own = tables.classes is None
    return ranking.hubness.of(queries, store, exclude_self=not find_own)
