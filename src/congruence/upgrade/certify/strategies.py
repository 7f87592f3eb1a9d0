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
from congruence.upgrade.certify.tables import Tables

__all__ = [
    "PLAIN",
    "Search",
    "Side",
    "TwoWay",
    "Vectors",
    "compared",
    "cosines",
    "part_seen",
    "searches_of",
    "sides_in",
    "similarity_in",
    "strategies_of",
    "unit_rows",
    "vectors_of",
]

#: Cosine similarity, without centering or a correction for hubs.
PLAIN = Ranking()

#: The vectors that a strategy compares: the store, shape (n, d), and the queries, shape (m, d).
Vectors: TypeAlias = tuple[np.ndarray, np.ndarray]


#: Largest number of text queries that are used.
_MOST_TEXTS = 2000


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
            return self.forward.for_modality(modality).probed_energy(rows)
        assert self._anchors is not None
        anchors = self._anchors() - self.forward.source_mean_
        _, s, basis = np.linalg.svd(anchors, full_matrices=False)
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis[s > 1e-8 * s[0]].T).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))


def strategies_of(tables: Tables) -> list[str]:
    """Return the strategies that the available vectors allow."""
    if tables.asked not in tables.target:
        return ["keep"]
    return ["keep", "stored", "queries"] + (["re-embed"] if tables.stored in tables.target else [])


def compared(strategy: str, model: TwoWay, tables: Tables, ranking: Ranking) -> Vectors:
    """Return the vectors that a strategy compares.

    Parameters
    ----------
    strategy : str
        One of :data:`~congruence.upgrade.certify.STRATEGIES`.
    model : TwoWay
        With the means of all modalities.
    tables : Tables
    ranking : Ranking
        If it is centered, the mean of all rows of a side is subtracted from it.

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


def vectors_of(
    model: TwoWay, tables: Tables, ranking: Ranking = PLAIN, only: Collection[str] | None = None
) -> dict[str, Vectors]:
    """Return the vectors that each strategy compares (:func:`compared`).

    Parameters
    ----------
    model : TwoWay
        With the means of all modalities.
    tables : Tables
    ranking : Ranking, optional
    only : collection of str, optional
        Return only these strategies; by default all that the vectors allow.

    Returns
    -------
    dict of str to (ndarray, ndarray)
        By strategy: the store, shape (n, d), and the queries, shape (m, d).
    """
    strategies = [strategy for strategy in strategies_of(tables) if only is None or strategy in only]
    return {strategy: compared(strategy, model, tables, ranking) for strategy in strategies}


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
    whole = tables.source[tables.stored]
    store = unit_rows(whole[rows], ranking, whole.mean(axis=0) if ranking.center else None)
    back = model.to_source(tables.asked)
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


@dataclass(frozen=True)
class Search:
    """Queries whose result lists over two stores are compared.

    Attributes
    ----------
    name : str
        Prefix of its measures: ``"overlap"`` or ``"text_overlap"``.
    modality : str
        Modality of the queries.
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


@dataclass(frozen=True, eq=False)
class Side:
    """Queries or a store, in the form in which a strategy compares them.

    Attributes
    ----------
    whole : ndarray, shape (n, d)
        All rows, before mapping.
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
        Numbers of the search's queries and of the stored rows.
    ranking : Ranking, optional
        If it is centered, the means of all queries and of the whole store are subtracted. Hubs are corrected for later, by
        :func:`~congruence.upgrade.certify.overlap.compare_lists`, which has all lists.

    Returns
    -------
    ndarray or None
    """
    sides = sides_in(strategy, model, tables, search)
    if sides is None:
        return None
    return np.asarray(sides[0].unit(queries, ranking) @ sides[1].unit(rows, ranking).T)
