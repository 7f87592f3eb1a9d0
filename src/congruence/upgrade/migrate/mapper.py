"""Rows of a database through a map: each modality by its own means, and checked before anything is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.validation import RowNames, check_rows
from congruence.databases import DatabaseInfo
from congruence.embeddings import MODALITIES, Space, check_space, has_unit_rows, normalize_rows
from congruence.errors import ModalityError, ParameterError
from congruence.maps import Map, TwoSidedMap
from congruence.upgrade._blocks import block_function

if TYPE_CHECKING:
    from congruence.upgrade.migrate.native import NativeRows

__all__ = ["RowMapper", "map_digest"]


def map_digest(mapping: Map) -> str:
    """Return the SHA-256 of a map's arrays and of the spaces it leads from and to."""
    config = mapping.config()
    told = {key: config.get(key) for key in ("kind", "source_space", "target_space")}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name, array in sorted(mapping.state().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class RowMapper:
    """Maps blocks of a database.

    Parameters
    ----------
    mapping : Map
        Fitted, from the space of the old vectors.
    modality : str, optional
        Of all rows, where no column says it.
    normalize : {"auto", True, False}, default="auto"
        Unit norm for mapped rows; "auto": if the target's rows had it at the fit.
    allow_zero_rows : bool, default=False

    Attributes
    ----------
    dim : int
        Of mapped rows.
    unit : bool
        Mapped rows are scaled to unit norm.
    scale : bool
        Rows are scaled to unit norm before they are mapped.
    """

    def __init__(
        self,
        mapping: Map,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        allow_zero_rows: bool = False,
    ) -> None:
        if isinstance(mapping, TwoSidedMap):
            raise ParameterError(
                f"Got a {mapping.kind} map, which leads both sides into a space of its own; expected a map from the old model's space "
                "to the new one's. Fit one (congruence fit), or map both sides with transform_file."
            )
        if modality is not None and modality not in MODALITIES:
            raise ParameterError(
                f"Got modality={modality!r}; expected one of {', '.join(MODALITIES)}. Choose one of these."
            )
        self.map = mapping
        self.modality = modality
        self.unit = mapping.gives_unit_rows(normalize)
        self.scale = False
        self.allow_zero_rows = allow_zero_rows
        self.dim = int(mapping.d_out)
        #: Rows that hold the new model's own vectors, and the map as refitted on them.
        self.native: NativeRows | None = None
        self._functions: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {}
        self._function(modality)  # an unknown modality is refused before any work

    def _function(self, modality: str | None) -> Callable[[np.ndarray], np.ndarray]:
        if modality not in self._functions:
            self._functions[modality] = block_function(self.map.for_modality(modality), np.dtype(np.float32))
        return self._functions[modality]

    def check(self, info: DatabaseInfo, sample: np.ndarray) -> None:
        """Refuse a database whose vectors do not come from the map's source space.

        Raises
        ------
        SpaceMismatchError, DirectionError
        """
        given = replace(info.space, dim=info.dim, normalized=None)
        check_space(given, self.map.source_space_, self.map.target_space_, modality=False)
        if len(sample):
            unit = has_unit_rows(sample)
            # Where cosines are compared, norms are whatever the encoder gave: the map was fitted on the rows without them.
            self.scale = bool(self.map.source_space_.normalized) and not unit and info.distance == "cosine"
            if not self.scale:
                check_space(Space(normalized=unit), self.map.source_space_, Space(), modality=False)

    def __call__(self, ids: pa.Array, vectors: np.ndarray, modalities: pa.Array | None) -> np.ndarray:
        """Map a block.

        Parameters
        ----------
        ids : pyarrow.Array, shape (b,)
            Named where a row is refused.
        vectors : ndarray of float32, shape (b, d_source)
        modalities : pyarrow.Array of large_string, shape (b,), or None

        Returns
        -------
        ndarray of float32, shape (b, dim)

        Raises
        ------
        NotFiniteError, ZeroRowError, ModalityError
        """
        check_rows(vectors, "the database", ids=RowNames(ids, 0), allow_zero_rows=self.allow_zero_rows)
        if self.scale:
            vectors = normalize_rows(vectors)
        if modalities is None or self.modality is not None:
            out = self._function(self.modality)(vectors)
        else:
            out = np.empty((len(vectors), self.dim), np.float32)
            codes = modalities.dictionary_encode()
            places = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            if (places < 0).any():
                row = int(np.flatnonzero(places < 0)[0])
                raise ModalityError(
                    f"Got no modality for the row {ids[row].as_py()!r}; expected one of {', '.join(MODALITIES)}. "
                    "Fill the column, or pass modality=… for all rows."
                )
            for code, name in enumerate(codes.dictionary.to_pylist()):
                if name not in MODALITIES:
                    raise ModalityError(
                        f"Got the modality {name!r}; expected one of {', '.join(MODALITIES)}. Pass a column that holds these words, or modality=… for all rows."
                    )
                rows = np.flatnonzero(places == code)
                out[rows] = self._function(name)(np.ascontiguousarray(vectors[rows]))
        out = np.asarray(out, np.float32)
        if self.unit:
            out = normalize_rows(out) if np.may_share_memory(out, vectors) else _to_unit(out)
        return out if self.native is None else self.native.replace(ids, vectors, modalities, out)


def _to_unit(rows: np.ndarray) -> np.ndarray:
    """Scale rows to unit norm in their own array; where a square could overflow or vanish in float32, as :func:`normalize_rows` does."""
    with np.errstate(over="ignore", under="ignore"):
        squared = np.einsum("ij,ij->i", rows, rows)
    if not ((squared > 1e-20) & (squared < 1e20)).all():
        return np.asarray(normalize_rows(rows))
    rows /= np.sqrt(squared)[:, None]
    return rows
