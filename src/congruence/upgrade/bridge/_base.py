"""Check queries of a new model and map them into the space of an old one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import normalize_rows
from congruence._utils.typing import Array, ArrowStream, RowsLike, Tensor, TensorT
from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES, Embeddings, Space, check_space
from congruence.errors import DirectionError, ModalityError, ParameterError, ZeroRowError
from congruence.evaluation.thresholds import Thresholds
from congruence.maps import AffineMap, HeadsMap, Map, OrthogonalMap
from congruence.upgrade.bridge._queries import Folded, as_rows, check_queries, wrong_direction

if TYPE_CHECKING:
    import torch

    from congruence.maps.torch_module import TorchMap


class BridgedQueries:
    """Base class of :class:`congruence.Bridge`: checks queries and maps them."""

    def __init__(self, mapping: Map, *, normalize: bool | str = "auto", modality: str | None = None) -> None:
        if not isinstance(mapping, Map):
            raise ParameterError(
                f"Got {type(mapping).__name__} for mapping; expected a fitted map from the queries' model to the index's. Pass "
                "congruence.fit(new, old), or use Bridge.load(path)."
            )
        if isinstance(mapping, HeadsMap):
            raise ParameterError(
                f"Got {type(mapping).__name__}, which maps both models into a joint space; expected a map into the index's space, whose rows "
                "stay as they are. Fit a rotation or a linear map: congruence.fit(new, old)."
            )
        self._unit = mapping.gives_unit_rows(normalize)
        self.map, self.normalize, self.modality = mapping, normalize, modality
        self.thresholds: Thresholds | None = None
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
        """Space of the index and of bridged queries."""
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
            Modality whose means are used; by default the modality the embeddings declare, else the bridge's ``modality``.

        Returns
        -------
        Embeddings, ndarray or tensor, shape (m, d_target) or (d_target,)
            Unit rows if the index's rows have unit norm. float16 and float32 give float32, float64 gives float64. A tensor stays on its device
            and in its autograd graph; embeddings keep their ids.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError
            If the queries cannot be used.
        DirectionError
            If the vectors belong to the index's model.
        SpaceMismatchError
            If the vectors belong to another model, or are raw although the map was fitted on unit rows, or the reverse.
        ModalityError
            If the map does not know the modality, or knows several and none was given.

        Notes
        -----
        The matrix and offset of an affine map are cached in float32 after first use; a query then costs one product with them, plus the sums of
        squares used to check it.
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
        rows, single = as_rows(queries)
        out: Array = self._mapped(check_queries(rows, self.map), modality)
        return out[0] if single else out

    def _quick(self, queries: np.ndarray, modality: str | None) -> np.ndarray | None:
        """Map float32 rows with the cached product, or return None for rows that need a full check."""
        if queries.ndim > 2 or not queries.size or not isinstance(self.map, AffineMap):
            return None
        folded = self._folded.get(modality)
        if folded is None or folded.solved is not self.map.matrix:  # a refitted map has a new matrix
            mapped = self._for(modality)
            assert isinstance(mapped, AffineMap)
            folded = self._folded[modality] = Folded.of(mapped)
        return folded.transform(queries, unit_in=self.map.source_space_.normalized, unit_out=self._unit)

    def _mapped(self, rows: np.ndarray | Tensor, modality: str | None) -> Array:
        """Map checked queries, and scale them to unit norm if required. Raises ZeroRowError."""
        out: Array = self._for(modality).transform(rows)
        if not self._unit:
            return out
        if isinstance(out, np.ndarray) and not out.any(axis=1).all():
            raise ZeroRowError(
                "Got queries that the map maps to zero, which have no direction in the index's space; expected queries like the anchors of "
                "the fit. Pass normalize=False, or fit with more anchors."
            )
        return normalize_rows(out)

    def _transform_embeddings(self, queries: Embeddings, modality: str | None) -> Embeddings:
        declared = queries.space.modality
        if None not in (modality, declared) and modality != declared:
            raise ModalityError(
                f"Got {declared} queries with modality={modality!r}; expected them to agree. Leave modality out."
            )
        wanted = modality or declared or self.modality
        try:
            # Norms are compared row by row below, and each modality has means of its own.
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
                f"Got queries without a modality for a map with means of {', '.join(known)}; expected one of these modalities, since each has its own offset. "
                f"Pass modality={known[-1]!r}; if all queries have one modality, pass it to Bridge."
            )
        fitted = self.map.source_space_.modality
        if not isinstance(self.map, OrthogonalMap) and None not in (modality, fitted) and modality != fitted:
            raise ModalityError(
                f"Got {modality} queries; expected {fitted}, the one modality that this {self.map.kind} map was fitted on. Fit a rotation, which "
                f"modalities share: congruence.fit(new, old, method='orthogonal', means={{{modality!r}: (…, …)}})."
            )
        return self.map.for_modality(modality)

    # ------------------------------------------------------------------ export

    def for_modality(self, modality: str | None = None) -> Map:
        """Return the map applied to queries of a modality, which exports write.

        Parameters
        ----------
        modality : str, optional
            By default the bridge's modality.

        Returns
        -------
        Map

        Raises
        ------
        ModalityError
            If the map does not know the modality, or knows several and none was given.
        """
        return self._for(modality or self.modality)

    def to_torch(
        self, modality: str | None = None, *, trainable: bool = False, dtype: torch.dtype | None = None
    ) -> TorchMap:
        """Return the bridge as a ``torch.nn.Module``, for queries of one modality (extra ``train``).

        Parameters
        ----------
        modality : str, optional
            By default the bridge's modality.
        trainable, dtype
            As for :meth:`congruence.maps.Map.to_torch`.

        Returns
        -------
        TorchMap
            Does what :meth:`transform` does, without its checks.

        Raises
        ------
        MissingExtraError, ModalityError
            If an optional dependency is not installed, or the modality does not fit.
        """
        return self.for_modality(modality).to_torch(normalize=self._unit, trainable=trainable, dtype=dtype)
