"""The vectors that each strategy compares: queries and stored vectors, with or without mapping, for a search variant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.linalg

from congruence.embeddings import normalize_rows
from congruence.evaluation import Ranking
from congruence.maps import AffineMap
from congruence.upgrade.certify.evaluation_set import EvaluationSet, Search
from congruence.upgrade.certify.tables import Tables
from congruence.upgrade.certify.two_way import TwoWay

__all__ = [
    "Side",
    "Vectors",
    "cosines",
    "part_seen",
    "sides",
    "similarities",
    "strategies_of",
    "unit_rows",
    "vectors_of",
]

#: The vectors that a strategy compares: the queries, shape (m, d), and the store, shape (n, d).
Vectors: TypeAlias = tuple[np.ndarray, np.ndarray]


def unit_rows(rows: np.ndarray, ranking: Ranking, mean: np.ndarray | None = None) -> np.ndarray:
    """Return rows of unit norm, minus a mean (by default their own) if the ranking is centered."""
    if ranking.center:
        rows = rows - (rows.mean(axis=0) if mean is None else mean)
    return np.asarray(normalize_rows(rows))


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or the store, as a strategy compares them.

    Attributes
    ----------
    rows : ndarray, shape (n, d)
        All rows, before mapping.
    map : AffineMap or None
        None if they are compared without mapping.
    """

    rows: np.ndarray
    map: AffineMap | None = None

    def unit(self, ranking: Ranking, some: np.ndarray | None = None) -> np.ndarray:
        """Return all rows, or some, mapped and scaled to unit norm; a centered ranking subtracts the mean of all."""
        rows = self.rows if some is None else self.rows[some]
        mapped = rows if self.map is None else self.map.transform(rows)
        if some is None or not ranking.center:
            return unit_rows(mapped, ranking)
        mean = self.rows.mean(axis=0, keepdims=True)
        return unit_rows(mapped, ranking, mean if self.map is None else self.map.transform(mean))  # the map is affine


def strategies_of(tables: Tables) -> list[str]:
    """Return the strategies that the available vectors allow."""
    return ["keep", "stored", "queries"] + (["re-embed"] if tables.store_modality in tables.target else [])


def sides(strategy: str, model: TwoWay, tables: Tables, search: Search | None = None) -> tuple[Side, Side]:
    """Return what a strategy compares.

    Parameters
    ----------
    strategy : str
        One of :data:`~congruence.upgrade.certify.STRATEGIES` that the tables and the search allow.
    model : TwoWay
        With the means of all modalities.
    tables : Tables
    search : Search, optional
        By default, the rows of the queries' modality search the store.

    Returns
    -------
    (Side, Side)
        The queries, and the store.
    """
    store_modality, query_modality = tables.store_modality, tables.query_modality
    if search is not None:
        query_modality, ours, theirs = search.modality, search.source, search.target
    else:
        ours, theirs = tables.source[query_modality], tables.target[query_modality]
    if strategy == "re-embed":
        return Side(theirs), Side(tables.target[store_modality])
    if strategy == "stored":
        return Side(theirs), Side(tables.source[store_modality], model.to_target(store_modality))
    if strategy == "queries":
        return Side(theirs, model.to_source(query_modality)), Side(tables.source[store_modality])
    assert ours is not None  # else the search does not allow "keep"
    return Side(ours), Side(tables.source[store_modality])


def vectors_of(model: TwoWay, items: EvaluationSet, only: Collection[str] | None = None) -> dict[str, Vectors]:
    """Return the vectors that each strategy compares if the rows of the queries' modality search the store.

    Parameters
    ----------
    model : TwoWay
        With the means of all modalities.
    items : EvaluationSet
        If its ranking is centered, the mean of each side is subtracted from it.
    only : collection of str, optional
        Return only these strategies; by default all that the vectors allow.

    Returns
    -------
    dict of str to (ndarray, ndarray)
        By strategy: the queries, shape (m, d), and the store, shape (n, d).
    """
    out = {}
    for strategy in strategies_of(items.tables):
        if only is None or strategy in only:
            queries, store = sides(strategy, model, items.tables)
            out[strategy] = queries.unit(items.ranking), store.unit(items.ranking)
    return out


def similarities(
    strategy: str, model: TwoWay, items: EvaluationSet, search: Search, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return the similarities by which a strategy ranks stored rows for the queries of a search.

    Parameters
    ----------
    strategy : str
        One of those that the search allows.
    model : TwoWay
    items : EvaluationSet
        If its ranking is centered, the means of all queries and of the whole store are subtracted. Hubs are corrected for later, by
        :func:`~congruence.upgrade.certify.overlap.compare_lists`, which has all lists.
    search : Search
    rows : ndarray of int, shape (r,), optional
        Stored rows; by default those whose result lists are compared.

    Returns
    -------
    ndarray, shape (queries, rows)
    """
    rows = items.compared if rows is None else rows
    queries, store = sides(strategy, model, items.tables, search)
    return np.asarray(queries.unit(items.ranking, search.queries_of(rows)) @ store.unit(items.ranking, rows).T)


def part_seen(model: TwoWay, items: EvaluationSet, rows: np.ndarray) -> np.ndarray:
    """Return the component of stored rows, scaled to unit norm, that mapped queries can match.

    A mapped query is q B + b, with B the matrix of the reverse map and b its offset, so its product with x depends only on the projection of x on the
    rows of B and on b; centered queries lie in the span of the rows of B alone. Anchors lie entirely in this subspace, other rows do not, because
    anchors are in-sample. Each row is therefore scored by the component covered by a map fitted without it.

    Parameters
    ----------
    model : TwoWay
        With the means of the queries' modality.
    items : EvaluationSet
    rows : ndarray of int, shape (r,)
        Stored rows.

    Returns
    -------
    ndarray, shape (len(rows), d_source)
    """
    tables, ranking = items.tables, items.ranking
    whole = tables.source[tables.store_modality]
    store = unit_rows(whole[rows], ranking, whole.mean(axis=0) if ranking.center else None)
    back = model.to_source(tables.query_modality)
    met = back.matrix.T if ranking.center else np.column_stack([back.matrix.T, back.offset])
    # Pivoted QR determines the rank as well as a singular value decomposition, in a tenth of the time.
    basis, remains, _ = scipy.linalg.qr(met, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diagonal(remains))
    basis = basis[:, : len(size)][:, size > 1e-8 * size[0]]
    return np.asarray((store @ basis) @ basis.T)


def cosines(model: TwoWay, tables: Tables, modality: str, rows: np.ndarray) -> np.ndarray:
    """Return the cosine of each mapped row and the target's own row."""
    mapped = normalize_rows(model.to_target(modality).transform(tables.source[modality][rows]))
    own = normalize_rows(tables.target[modality][rows])
    return np.asarray(np.einsum("ij,ij->i", mapped, own, dtype=np.float64))
