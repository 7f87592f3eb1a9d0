"""The bridge: queries of a new model in the space of an index that stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import normalize_rows
from congruence._utils.columns import to_rows
from congruence._utils.display import as_html, as_text
from congruence._utils.typing import Array, ArrowStream, RowsLike, Tensor, TensorT
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import MODALITIES, Embeddings, Space, check_space
from congruence.errors import DirectionError, ModalityError, ParameterError, ZeroRowError
from congruence.maps import AffineMap, Map, OrthogonalMap, TwoSidedMap
from congruence.metrics.hubness import Hubness
from congruence.upgrade.bridge._queries import Folded, as_rows, check_queries, wrong_direction
from congruence.upgrade.bridge.saved import read_bridge, write_bridge
from congruence.upgrade.bridge.search import Lookup, SearchResult, find, rerank_rows

__all__ = ["Bridge"]

#: Rows that the first stage of a two-stage search finds, unless ten times k are more.
CANDIDATES = 100


class Bridge:
    """A new model's queries over an index of an old model's vectors, which are not rewritten.

    Parameters
    ----------
    mapping : Map
        Fitted, **from the queries' model to the index's**: ``congruence.fit(new, old)``. A map that was fitted from the index's model to
        the new one has the other direction in ``mapping.inverse()``, if it is a rotation.
    normalize : {"auto", True, False}, default="auto"
        Scale bridged queries to unit norm; "auto" does so if the index's rows had unit norm at the fit, as
        :func:`congruence.transform_file` does.
    modality : str, optional
        Modality of queries that do not say one. A map that knows several has means for each, and no query can do without.

    Attributes
    ----------
    map : Map
    source, target : Space
        Of the queries and of the index.
    normalize, modality
        As given.

    Raises
    ------
    ParameterError
        No fitted map; or one that maps both models into a joint space, in which the index's rows are not.
    ModalityError
        The map does not know ``modality``.

    Warns
    -----
    NormWarning
        ``normalize="auto"``, and the map does not say whether the index's rows had unit norm.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> anchors = rigid_problem(n=200, d_source=8, d_target=12, random_state=0)
    >>> bridge = Bridge(fit(anchors.X, anchors.Y))
    >>> bridge.transform(anchors.X[0]).shape
    (12,)
    """

    def __init__(self, mapping: Map, *, normalize: bool | str = "auto", modality: str | None = None) -> None:
        if not isinstance(mapping, Map):
            raise ParameterError(
                f"Got {type(mapping).__name__} for mapping; expected a fitted map from the queries' model to the index's. Pass "
                "congruence.fit(new, old), or use Bridge.load(path)."
            )
        if isinstance(mapping, TwoSidedMap):
            raise ParameterError(
                f"Got {type(mapping).__name__}, which maps both models into a joint space; expected a map into the index's space, whose rows "
                "stay as they are. Fit a rotation or a linear map: congruence.fit(new, old)."
            )
        self._unit = mapping.gives_unit_rows(normalize)
        self.map, self.normalize, self.modality = mapping, normalize, modality
        self._folded: dict[str | None, Folded] = {}
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
            self._for(modality)

    @property
    def source(self) -> Space:
        """Space of the queries."""
        return replace(self.map.source_space_, dim=self.map.n_features_in_)

    @property
    def target(self) -> Space:
        """Space of the index, in which bridged queries are."""
        return replace(self.map.target_space_, dim=self.map.d_out)

    # ------------------------------------------------------------------ queries

    @overload
    def transform(self, queries: Embeddings, modality: str | None = None) -> Embeddings: ...
    @overload
    def transform(self, queries: TensorT, modality: str | None = None) -> TensorT: ...
    @overload
    def transform(self, queries: ArrayLike | ArrowStream, modality: str | None = None) -> np.ndarray: ...
    def transform(self, queries: RowsLike, modality: str | None = None) -> Array | Embeddings:
        """Map queries of the new model into the index's space.

        Parameters
        ----------
        queries : Embeddings, array_like or tensor, shape (m, d_source) or (d_source,)
        modality : str, optional
            Whose means to use: by default what embeddings say, or else the bridge's ``modality``.

        Returns
        -------
        Embeddings, ndarray or tensor, shape (m, d_target) or (d_target,)
            Unit rows where the index's are. float16 and float32 give float32, float64 gives float64; a tensor stays on its device and
            keeps its graph; embeddings keep their ids.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError
        DirectionError
            Vectors of the index's model.
        SpaceMismatchError
            Another model; or raw rows where the map was fitted on unit rows, or the reverse.
        ModalityError
            The map does not know the modality, or knows several and none was said.

        Notes
        -----
        Of an affine map, matrix and offset are kept in float32 once they were used; a query costs one product with it, and the sums of squares by
        which it is checked.
        """
        if isinstance(queries, Embeddings):
            return self._transform_embeddings(queries, modality)
        modality = modality or self.modality
        if (
            type(queries) is np.ndarray
            and queries.dtype == np.float32
            and queries.shape[-1:] == (self.map.n_features_in_,)
        ):
            quick = self._quick(queries, modality)
            if quick is not None:
                return quick
        rows, one = as_rows(queries)
        out: Array = self._mapped(check_queries(rows, self.map), modality)
        return out[0] if one else out

    def search(
        self,
        queries: RowsLike,
        index: Any,
        k: int = 10,
        *,
        modality: str | None = None,
        candidates: int | None = None,
        rerank: RowsLike | Lookup | None = None,
        metric: str = "cosine",
        center: bool = False,
        hubness: str | Hubness | None = None,
        bank: RowsLike | None = None,
    ) -> SearchResult:
        """Search the untouched index with queries of the new model.

        Parameters
        ----------
        queries : Embeddings, array_like or tensor, shape (m, d_source) or (d_source,)
        index : Embeddings, array_like of shape (n, d_target), FAISS index, or callable
            The old model's vectors, searched block by block; an object with FAISS's ``search(vectors, n)``; or a function of ``(vectors, n)`` that
            returns ``(scores, ids)``, each of shape (m, n), nearest first.
        k : int, default=10
        modality : str, optional
            As for :meth:`transform`.
        candidates : int, optional
            With ``rerank``: how many rows the first stage finds; by default 100, or 10 k if that is more.
        rerank : array_like, shape (n, d_source), Embeddings, or callable, optional
            Vectors of the index's items in the new model, by which candidates are ordered again: by row of the index, by id, or a function of an array
            of ids. Items without a vector (a row of NaN; None from the function; an id that embeddings do not have) follow those that have one, in
            the order of the first stage.
        metric : {"cosine", "inner", "euclidean"}, default="cosine"
            Of the first stage. An index that searches by itself has its own.
        center, hubness, bank
            As for :func:`congruence.metrics.class_retrieval`, in the first stage, for an index given by its vectors; ``bank`` are queries of the new model.

        Returns
        -------
        SearchResult

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, InputError, ParameterError
        DirectionError, SpaceMismatchError, ModalityError
            As :meth:`transform`.
        """
        check_positive(k, "k", integer=True)
        if candidates is not None:
            check_positive(candidates, "candidates", integer=True)
            if rerank is None or candidates < k:
                raise ParameterError(
                    f"Got candidates={candidates} {'without rerank' if rerank is None else f'for k={k}'}; expected k candidates or more, for a second stage. "
                    "Pass rerank=… with the new model's vectors and a larger candidates=…, or leave candidates out."
                )
        if isinstance(queries, Embeddings):
            rows, one, modality = queries.vectors, False, modality or queries.space.modality
            vectors = self.transform(queries, modality).vectors
        else:
            given, one = as_rows(queries)
            rows = to_rows(given, "queries")
            vectors = self.transform(rows, modality)
        scores, ids = find(
            vectors,
            index,
            k if rerank is None else candidates or max(CANDIDATES, 10 * k),
            metric=metric,
            center=center,
            hubness=hubness,
            bank=None if bank is None else np.asarray(self.transform(bank, modality)),
            source_dim=self.map.n_features_in_,
        )
        if rerank is None:
            found = SearchResult(scores, ids, np.zeros(ids.shape, bool))
        else:
            found = rerank_rows(rows, scores, ids, rerank, k)
        return found.one() if one else found

    def _quick(self, queries: np.ndarray, modality: str | None) -> np.ndarray | None:
        """Map float32 rows with the folded product, or return None for what has to be looked at."""
        if queries.ndim > 2 or not queries.size or not isinstance(self.map, AffineMap):
            return None
        folded = self._folded.get(modality)
        if folded is None or folded.solved is not self.map.matrix:  # a map that took in more anchors has a new matrix
            mapped = self._for(modality)
            assert isinstance(mapped, AffineMap)
            folded = self._folded[modality] = Folded.of(mapped)
        return folded.apply(queries, unit_in=self.map.source_space_.normalized, unit_out=self._unit)

    def _mapped(self, rows: np.ndarray | Tensor, modality: str | None) -> Array:
        out: Array = self._for(modality).transform(rows)
        if not self._unit:
            return out
        if isinstance(out, np.ndarray) and not out.any(axis=1).all():
            raise ZeroRowError(
                "Got queries that the map sends to zero, which have no direction in the index's space; expected queries like the anchors of "
                "the fit. Pass normalize=False, or fit with more anchors."
            )
        return normalize_rows(out)

    def _transform_embeddings(self, queries: Embeddings, modality: str | None) -> Embeddings:
        said = queries.space.modality
        if None not in (modality, said) and modality != said:
            raise ModalityError(
                f"Got {said} queries with modality={modality!r}; expected them to agree. Leave modality out."
            )
        wanted = modality or said or self.modality
        try:
            # Norms are compared row by row below, and a modality has means of its own.
            check_space(replace(queries.space, normalized=None), self.source, self.target, modality=False)
        except DirectionError:
            raise wrong_direction(f"vectors of {queries.space}, the index's side of the map", self.map) from None
        out = np.asarray(self._mapped(check_queries(queries.vectors, self.map), wanted))
        space = replace(self.target, modality=wanted, normalized=True if self._unit else None)
        return Embeddings(out, ids=queries.ids if queries.has_ids else None, space=space, allow_zero_rows=True)

    def _for(self, modality: str | None) -> Map:
        """Return the map for queries of a modality. Raises ModalityError."""
        known = sorted(self.map.modality_means_) if isinstance(self.map, OrthogonalMap) else []
        if modality is None and len(known) > 1:
            raise ModalityError(
                f"Got queries without a modality for a map with means of {', '.join(known)}; expected one of these, since each has its own offset. "
                f"Pass modality={known[-1]!r}, or make the bridge with Bridge(mapping, modality={known[-1]!r})."
            )
        fitted = self.map.source_space_.modality
        if not isinstance(self.map, OrthogonalMap) and None not in (modality, fitted) and modality != fitted:
            raise ModalityError(
                f"Got {modality} queries; expected {fitted}, the one modality that this {self.map.kind} map was fitted on. Fit a rotation, which "
                f"modalities share: congruence.fit(new, old, method='orthogonal', means={{{modality!r}: (…, …)}})."
            )
        return self.map.for_modality(modality)

    # ------------------------------------------------------------------ on disk

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the bridge as a folder, in the format of maps: ``model.safetensors``, ``config.json``, ``README.md``.

        Parameters
        ----------
        path : path-like
            The folder to make.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        OutputExistsError, StorageError
        """
        return write_bridge(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a bridge, or a map as a bridge with the usual parameters. Nothing in the folder is executed.

        Parameters
        ----------
        path : path-like
            What :meth:`save`, or :meth:`congruence.maps.Map.save`, wrote.

        Returns
        -------
        Bridge

        Raises
        ------
        FileError, CorruptFileError, VersionError
        ParameterError
            The folder holds a map that no bridge can be made of.
        """
        return read_bridge(cls, path)

    def describe(self) -> dict[str, Any]:
        """Return what is known about the bridge as plain data."""
        return {
            "kind": "bridge",
            "parameters": {"normalize": self.normalize, "modality": self.modality},
            "source": self.source.to_dict(),
            "target": self.target.to_dict(),
            "map": self.map.describe(),
        }

    def _shown(self) -> dict[str, str]:
        facts = {"queries": str(self.source), "index": str(self.target)}
        facts["map"] = f"{self.map.kind}, fitted on {self.map.n_pairs_:,} pairs"
        facts["bridged queries"] = "unit rows" if self._unit else "as the map leaves them"
        return facts

    def __repr__(self) -> str:
        return as_text("Bridge", self._shown())

    def _repr_html_(self) -> str:
        return as_html("Bridge", self._shown())
