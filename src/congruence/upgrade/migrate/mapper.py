"""Map blocks of a database, each modality with its own means, and check the rows before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.validation import RowNames, bad_rows_error, check_rows, find_bad_rows, name_rows
from congruence.compare.origins import judge
from congruence.databases import Block, Database, DatabaseInfo, rows_of
from congruence.embeddings import MODALITIES, Space, check_space, has_unit_rows, normalize_rows
from congruence.errors import InputError, ModalityError, ParameterError, SpaceMismatchError
from congruence.maps import HeadsMap, Map
from congruence.upgrade.migrate.journal import is_among, pair_digests, row_digests
from congruence.upgrade.migrate.quantize import Quantizer
from congruence.upgrade.transform import BlockMap

if TYPE_CHECKING:
    from congruence.upgrade.migrate.native import NativeRows


class RowMapper:
    """Maps blocks of old vectors to new vectors.

    ``old`` and ``new`` are the types in which the old vectors are stored and the new ones will be, by default float32;
    ``unit``: whether mapped rows are scaled to unit norm, and ``scale``: whether rows are before they are mapped.
    """

    def __init__(
        self,
        mapping: Map,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        allow_zero_rows: bool = False,
        old: Quantizer | None = None,
        new: Quantizer | None = None,
    ) -> None:
        if isinstance(mapping, HeadsMap):
            raise ParameterError(
                f"A {mapping.kind} map maps both models into a joint space.",
                "Fit another map, or map both sides with transform_file.",
            )
        mapping.for_modality(modality)  # raises for an unknown modality before any work is done
        self.map = mapping
        self.modality = modality
        self.unit = mapping.gives_unit_rows(normalize)
        self.scale = False
        self.allow_zero_rows = allow_zero_rows
        self.dim = int(mapping.d_out)
        self.old = old or Quantizer("float32", mapping.n_features_in_)
        self.new = new or Quantizer("float32", self.dim)
        if self.new.element_type == "binary" and self.dim % 8:
            raise ParameterError(
                f"{self.dim} components cannot be stored as bits, in whole bytes.", "Pass another element_type."
            )
        #: Re-embedded rows and the map refitted on them, in a progressive migration.
        self.native: dict[str | None, NativeRows] = {}  # by modality, None for all rows
        #: Ids of the rows to map, in a migration of some rows; the others keep their vectors. None for all rows.
        self.selected: pa.Array | None = None
        self._functions: dict[str | None, BlockMap] = {}
        self._pairs = [np.empty(0, np.uint64)]  # digests of old rows and what this process has mapped them to

    def _map(self, rows: np.ndarray, modality: str | None) -> np.ndarray:
        if modality not in self._functions:
            space = Space(dim=self.map.n_features_in_)
            block_map = BlockMap(self.map, space, np.float32, modality=modality, normalize=self.unit, check=False)
            self._functions[modality] = block_map
        return np.asarray(self._functions[modality](rows), np.float32)

    def check_width(self, vectors: np.ndarray) -> None:
        """Raise SpaceMismatchError if vectors (b, dim) are not as wide as those that the map was fitted on."""
        expected, result = Space(dim=self.map.n_features_in_), Space(dim=self.dim)
        check_space(Space(dim=vectors.shape[1]), expected, result, modality=False)

    def check(self, info: DatabaseInfo, block: Block) -> None:
        """Raise an error if the vectors of a database do not come from the map's source space."""
        sample, wants_unit = block.vectors, bool(self.map.source_space_.normalized)
        space = replace(info.space, dim=info.dim, normalized=None)
        check_space(space, self.map.source_space_, self.map.target_space_, modality=False)
        if self.old.coded:
            self.scale = wants_unit
            if not wants_unit and self.old.element_type == "binary":
                raise SpaceMismatchError(
                    "Binary vectors have no norms, but the map needs them.", "Fit the map on rows scaled to unit norm."
                )
            if not wants_unit and self.old.ranges is None:
                raise ParameterError(
                    "The ranges of the int8 vectors are unknown, and the map was fitted on raw rows.",
                    "Pass `old_ranges=…`, or fit the map on rows scaled to unit norm.",
                )
            return
        unit = has_unit_rows(sample[np.isfinite(sample).all(axis=1)])  # others are refused where they are mapped
        # With cosine distance the stored norms are arbitrary, and the map was fitted on unit rows.
        self.scale = wants_unit and not unit and info.distance == "cosine"
        if not self.scale:
            check_space(Space(normalized=unit), self.map.source_space_, Space(), modality=False)

    def rows(self, vectors: np.ndarray) -> np.ndarray:
        """Return rows of the database as input of the map: decoded, and of unit norm if ``scale`` is True."""
        vectors = self.old.decode(vectors)
        return normalize_rows(vectors) if self.scale else vectors

    def encoded(self, block: Block) -> np.ndarray:
        """Map a block, encode it as it is written, and remember the rows for ``has_mapped``."""
        vectors = self.new.encode(self(block.ids, block.vectors, block.modalities))
        pairs = pair_digests(row_digests(block.ids, block.vectors), row_digests(block.ids, vectors))
        self.remember(pairs, block.modalities)
        return vectors

    def remember(self, pairs: np.ndarray, modalities: pa.Array | None) -> None:
        """Remember old rows and what they are mapped to, by ``pair_digests`` (b,), for ``has_mapped``."""
        if self._depends_on_the_vector_alone(modalities):
            self._pairs.append(pairs)

    def has_mapped(self, pairs: np.ndarray, modalities: pa.Array | None) -> np.ndarray:
        """Return which old and new rows, by ``pair_digests`` (b,), this process mapped before it last settled."""
        if not self._depends_on_the_vector_alone(modalities):
            return np.zeros(len(pairs), bool)
        return is_among(pairs, self._pairs[0])

    def settle(self) -> None:
        """Let ``has_mapped`` know all remembered rows; once a pass, because it sorts them."""
        if len(self._pairs) > 1:
            self._pairs = [np.unique(np.concatenate(self._pairs))]

    def _depends_on_the_vector_alone(self, modalities: pa.Array | None) -> bool:
        return not self.native and self.selected is None and (modalities is None or self.modality is not None)

    def __call__(self, ids: pa.Array, vectors: np.ndarray, modalities: pa.Array | None) -> np.ndarray:
        """Map a block (b, d_source) to (b, dim), which ``new`` encodes before it is written."""
        self.check_width(vectors)
        if self.selected is None:
            return self._mapped(ids, vectors, modalities)
        which, out = self.maps(ids), np.array(vectors, np.float32)
        if which.any():
            chosen = pa.array(which)
            kinds = None if modalities is None else modalities.filter(chosen)
            out[which] = self._mapped(ids.filter(chosen), np.ascontiguousarray(vectors[which]), kinds)
        return out

    def maps(self, ids: pa.Array) -> np.ndarray:
        """Return which rows are mapped, bool of shape (b,); the others keep their vectors."""
        if self.selected is None:
            return np.ones(len(ids), bool)
        return rows_of(ids, self.selected) >= 0

    def _mapped(self, ids: pa.Array, vectors: np.ndarray, modalities: pa.Array | None) -> np.ndarray:
        check_rows(vectors, "the database", ids=RowNames(ids, 0), allow_zero_rows=self.allow_zero_rows)
        stored, vectors = vectors, self.rows(vectors)
        if modalities is None or self.modality is not None:
            out = self._map(vectors, self.modality)
        else:
            out = np.empty((len(vectors), self.dim), np.float32)
            names = np.array(modalities.to_pylist(), object)
            for name in dict.fromkeys(names.tolist()):
                rows = np.flatnonzero(names == name)
                if name not in MODALITIES:
                    raise ModalityError(
                        f"The row {ids[int(rows[0])].as_py()!r} has the modality {name!r}; expected one of "
                        f"{', '.join(MODALITIES)}.",
                        "Correct the column, or pass `modality=…`.",
                    )
                out[rows] = self._map(np.ascontiguousarray(vectors[rows]), name)
        for native in self.native.values():
            out = native.replace(ids, stored, vectors, modalities, out)
        return out


def all_bad_rows(database: Database, allow_zero_rows: bool) -> InputError | None:
    """Return the error for all rows with NaN or infinity or, without any, for all of zeros; None if all are good."""
    ids: dict[type[InputError], list[object]] = {}
    n = 0
    for block in database.scan("old"):
        n += len(block.ids)
        for kind, rows in find_bad_rows(block.vectors, allow_zero_rows=allow_zero_rows).items():
            ids.setdefault(kind, []).extend(block.ids.take(pa.array(rows)).to_pylist())
    for kind, bad in ids.items():
        if bad:
            return bad_rows_error(kind, len(bad), n, "the database", f"ids {name_rows(np.arange(len(bad)), bad)}")
    return None


def judge_rows(
    mapper: RowMapper, blocks: Iterable[Block], allow_unknown: bool, database: Database
) -> Iterator[dict[str, str]]:
    """Yield checks of rows, judged one by one; sets the modality of ``mapper`` if they leave no doubt about it."""
    parts: dict[str | None, list[np.ndarray]] = {}
    ids: dict[bytes, object] = {}  # of rows, by their vector
    for block in blocks:
        usable = np.isfinite(block.vectors).all(axis=1) & block.vectors.any(axis=1)
        rows, names = mapper.rows(block.vectors[usable]), [mapper.modality] * int(usable.sum())
        if mapper.modality is None and block.modalities is not None:
            names = block.modalities.filter(pa.array(usable)).to_pylist()
        for row, id_ in zip(rows, block.ids.filter(pa.array(usable)).to_pylist(), strict=True):
            ids.setdefault(row.tobytes(), id_)
        for name in dict.fromkeys(names):
            parts.setdefault(name, []).append(rows[[name == one for one in names]])
    for modality, rows_of_one in parts.items():
        found, detail = judge(mapper.map, np.concatenate(rows_of_one), modality), ""
        if found.strange is not None and (strange := [ids[row.tobytes()] for row in found.strange]):
            detail = f"; {len(strange):,} unknown: ids {name_rows(np.arange(len(strange)), strange)}"
        doubt = found.outcome in ("unrelated", "unlike")
        fix = found.fix
        if database.capabilities.filters:
            fix += " A condition selects rows: run with `rows=…`."
        fix += " To map them all, run with `allow_unknown=True`." if doubt else ""
        outcome = "unknown" if doubt and allow_unknown else "bad" if doubt or found.outcome == "ask" else found.outcome
        check = {"check": "modality" if found.outcome == "ask" else "origin", "outcome": outcome}
        yield {**check, "detail": found.detail + detail, "fix": fix}
        if mapper.modality is None and modality is None and found.modality and outcome != "bad":
            mapper.modality = found.modality
            yield {"check": "modality", "outcome": "good", "detail": f"the rows are {found.modality}"}


def misfit(rows: str, check: Mapping[str, str]) -> ModalityError | SpaceMismatchError:
    """Return the error for a bad check of ``judge_rows``."""
    kind = ModalityError if check["check"] == "modality" else SpaceMismatchError
    return kind(f"The rows {rows} do not all fit the map: {check['detail']}.", check["fix"])
