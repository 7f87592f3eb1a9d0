"""The vectors that each strategy compares: queries and stored vectors, with or without mapping, for a search variant."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.linalg

from congruence.embeddings import normalize_rows
from congruence.evaluation import Ranking
from congruence.maps import AffineMap, LinearMap, OrthogonalMap
from congruence.upgrade.certify.tables import Search, Tables

__all__ = [
    "PLAIN",
    "Side",
    "TwoWay",
    "Vectors",
    "cosines",
    "part_seen",
    "sides",
    "similarities",
    "strategies_of",
    "unit_rows",
    "vectors_of",
]

#: Cosine similarity, without centering or a correction for hubs.
PLAIN = Ranking()

#: The vectors that a strategy compares: the queries, shape (m, d), and the store, shape (n, d).
Vectors: TypeAlias = tuple[np.ndarray, np.ndarray]


def unit_rows(rows: np.ndarray, ranking: Ranking, mean: np.ndarray | None = None) -> np.ndarray:
    """Return rows of unit norm, minus a mean (by default their own) if the ranking is centered."""
    if ranking.center:
        rows = rows - (rows.mean(axis=0) if mean is None else mean)
    return np.asarray(normalize_rows(rows))


class TwoWay:
    """A fitted map and its reverse: the inverse or, if there is none, the same method fitted in the other direction.

    Parameters
    ----------
    forward : OrthogonalMap or LinearMap
    backward : callable, optional
        Fits the map from the target to the source, on first use. By default ``forward.inverse()`` is used.
    anchors : callable, optional
        Returns the source rows that were fitted on, for :meth:`covered_share` of maps that do not store it.
    """

    def __init__(
        self,
        forward: OrthogonalMap | LinearMap,
        backward: Callable[[], LinearMap] | None = None,
        anchors: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.forward = forward
        self._backward, self._anchors = backward, anchors
        self._fitted_backward: LinearMap | None = None
        self._inverses: dict[str | None, AffineMap] = {}

    @property
    def d_source(self) -> int:
        """Width of the source model's vectors."""
        return self.forward.n_features_in_

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self.forward.d_target

    def to_target(self, modality: str | None) -> AffineMap:
        """Return the map for stored vectors of a modality."""
        found = self.forward.for_modality(modality)
        assert isinstance(found, AffineMap)
        return found

    def to_source(self, modality: str | None) -> AffineMap:
        """Return the map for the target model's queries of a modality."""
        if isinstance(self.forward, OrthogonalMap):
            if modality not in self._inverses:
                self._inverses[modality] = self.forward.for_modality(modality).inverse()
            return self._inverses[modality]
        if self._fitted_backward is None:
            assert self._backward is not None
            self._fitted_backward = self._backward()
        return self._fitted_backward

    def recentered(self, source: np.ndarray, target: np.ndarray, modality: str) -> TwoWay:
        """Return the map with the means of a further modality, computed from rows; the same map if it keeps no means."""
        if isinstance(self.forward, OrthogonalMap):
            return TwoWay(self.forward.recenter(source.mean(axis=0), target.mean(axis=0), modality=modality))
        return self

    def covered_share(self, modality: str | None, rows: np.ndarray) -> np.ndarray:
        """Return the share of each row's variance (norm²) in directions the anchors cover, shape (m,)."""
        if isinstance(self.forward, OrthogonalMap):
            return self.forward.for_modality(modality).covered_share(rows)
        assert self._anchors is not None
        anchors = self._anchors() - self.forward.source_mean_
        _, s, basis = np.linalg.svd(anchors, full_matrices=False)
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis[s > 1e-8 * s[0]].T).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))


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


def vectors_of(
    model: TwoWay, tables: Tables, ranking: Ranking = PLAIN, only: Collection[str] | None = None
) -> dict[str, Vectors]:
    """Return the vectors that each strategy compares if the rows of the queries' modality search the store.

    Parameters
    ----------
    model : TwoWay
        With the means of all modalities.
    tables : Tables
    ranking : Ranking, optional
        If it is centered, the mean of each side is subtracted from it.
    only : collection of str, optional
        Return only these strategies; by default all that the vectors allow.

    Returns
    -------
    dict of str to (ndarray, ndarray)
        By strategy: the queries, shape (m, d), and the store, shape (n, d).
    """
    out = {}
    for strategy in strategies_of(tables):
        if only is None or strategy in only:
            queries, store = sides(strategy, model, tables)
            out[strategy] = queries.unit(ranking), store.unit(ranking)
    return out


def similarities(
    strategy: str,
    model: TwoWay,
    tables: Tables,
    search: Search,
    rows: np.ndarray,
    ranking: Ranking = PLAIN,
) -> np.ndarray:
    """Return the similarities by which a strategy ranks some stored rows for the queries that are asked of them.

    Parameters
    ----------
    strategy : str
        One of those that the search allows.
    model : TwoWay
    tables : Tables
    search : Search
    rows : ndarray of int
        Stored rows.
    ranking : Ranking, optional
        If it is centered, the means of all queries and of the whole store are subtracted. Hubs are corrected for later, by
        :func:`~congruence.upgrade.certify.overlap.compare_lists`, which has all lists.

    Returns
    -------
    ndarray, shape (queries, rows)
    """
    queries, store = sides(strategy, model, tables, search)
    return np.asarray(queries.unit(ranking, search.queries_of(rows)) @ store.unit(ranking, rows).T)


def part_seen(model: TwoWay, tables: Tables, rows: np.ndarray, ranking: Ranking = PLAIN) -> np.ndarray:
    """Return the component of stored rows, scaled to unit norm, that mapped queries can match.

    A mapped query is q B + b, with B the matrix of the reverse map and b its offset, so its product with x depends only on the projection of x on the
    rows of B and on b; centered queries lie in the span of the rows of B alone. Anchors lie entirely in this subspace, other rows do not, because
    anchors are in-sample. Each row is therefore scored by the component covered by a map fitted without it.

    Parameters
    ----------
    model : TwoWay
        With the means of the queries' modality.
    tables : Tables
    rows : ndarray of int
    ranking : Ranking, optional

    Returns
    -------
    ndarray, shape (len(rows), d_source)
    """
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
