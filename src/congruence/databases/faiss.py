"""FAISS index files: a new index of the same kind is written next to the old one; the switch exchanges both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence._utils.optional import require
from congruence.databases import _refusals as refusals
from congruence.databases._base import Address, DatabaseInfo, Name, Stage, VectorSide
from congruence.databases._files import FILES, FileDatabase, FilePiece, RowVectors, copy_mode, path_of, read_labels
from congruence.embeddings import normalize_rows
from congruence.errors import DatabaseError, MigrationError, ParameterError, ShapeError
from congruence.io.faiss_file import StoredVectors, read_index

if TYPE_CHECKING:
    import faiss

#: Training vectors per inverted list: FAISS uses at most this many, and warns below the least.
_TRAIN, _LEAST_TRAIN = 256, 39


class Faiss(FileDatabase):
    """An index of exact, half-precision or unit vectors written by ``faiss.write_index``, whose address is its path or ``faiss://PATH``.

    ``modality_column`` is a file with one entry per row, in the order in which rows were added; inverted files keep no
    order. The index is in memory, as FAISS requires; while the new one is built, both are. An inverted file gets new
    centroids.
    """

    kind = "faiss"
    capabilities = replace(FILES, searches=True)

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        path = path_of(address, ("faiss",))
        what = "a FAISS index, which holds one matrix with its own ids"
        refusals.check_options(what, table=table, column=column, ids=ids, rows=rows)
        self._open_path(path)
        _, modality = self._remember(None, modality)
        self._open_rows()
        if modality is not None:
            if self._stored.by_lists:
                problem = f"Got `modality_column={modality!r}` for an inverted file, which keeps no order of rows."
                raise ParameterError(problem, "Pass `modality=…` for all rows.")
            self._beside = {"modality_column": read_labels(modality)}
            self._check_at_first()

    def _reopen(self) -> None:
        self._new_index: faiss.Index | None = None
        self._index = read_index(self._original)
        self._stored = StoredVectors(self._index, self._subject)
        self.n, self.dim = self._stored.n, self._stored.dim
        self.capabilities = replace(FILES, searches=True, element_types=(self._stored.dtype.name,))
        if not self.n and self._place.record() is None:  # else others have emptied it
            raise ShapeError(f"The index {self._subject} is empty.", "Check the path.")

    def info(self) -> DatabaseInfo:
        return DatabaseInfo(
            place=self._subject,
            rows=self.n,
            dim=self.dim,
            distance="cosine" if self._stored.unit else "l2" if self._stored.inner.metric_type == 1 else "dot",
            element_type=self._stored.dtype.name,
            index=self._stored.describe(),
            id_type="int",
        )

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[FilePiece]:
        self._check_beside()
        for start in range(after, self.n, batch):
            stop = min(start + batch, self.n)
            rows = self._stored.read(start, stop) if vectors else None
            yield FilePiece.full(
                start, pa.array(self._stored.ids[start:stop]), rows, self._beside.get("modality_column")
            )

    def _needed_bytes(self, dim: int, element_type: str) -> int:
        # Ids and graph are as large as in the old index.
        size = self._stored.dtype.itemsize
        others = self._place.path.stat().st_size - self.n * self.dim * size
        return 2 * self.n * dim * size + max(others, 0)

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        return normalize_rows(vectors) if self._stored.unit else vectors

    def _build(self, new: RowVectors) -> None:
        def blocks(size: int) -> Iterator[np.ndarray]:
            for start in range(0, self.n, size):
                yield new.read(np.arange(start, min(start + size, self.n)))

        index = index_like(self._stored, new.dim, blocks, max(64, 8 * 2**20 // (4 * new.dim)))
        with atomic_path(self._place.other, force=True) as temporary:
            write_index(index, temporary)
            copy_mode(self._place.path, temporary)
        self._new_index = None

    def _describe_index(self) -> str:
        return self._stored.describe()

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        switched = self._stage is Stage.SWITCHED
        if side == "new" and self._new_index is None:
            if self._record().built is None and not switched:
                raise MigrationError(f"There is no new index beside {self._subject}.", "Build it first (build_index).")
            self._new_index = read_index(self._place.path if switched else self._place.other)
        index: faiss.Index = self._index if side == "old" else self._new_index
        _, ids = index.search(np.ascontiguousarray(queries, np.float32), k, params=_search_parameters(index))
        return [pa.array(row[row >= 0]) for row in ids]


def write_index(index: faiss.Index, path: Path) -> None:
    """Write an index, raising OSError if the disk is full, for which FAISS itself would raise a RuntimeError."""
    faiss = require("faiss", extra="faiss")
    with open(path, "wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def _inner(index: faiss.Index) -> faiss.Index:
    """Return an index without its id map and what is done to vectors before they are added."""
    faiss = require("faiss", extra="faiss")
    index = faiss.downcast_index(index)
    return index if not isinstance(index, (faiss.IndexIDMap, faiss.IndexPreTransform)) else _inner(index.index)


def _search_parameters(index: faiss.Index) -> Any:
    """Return None, or parameters to search all lists of an inverted file whose few rows tell nothing of its lists."""
    faiss, inner = require("faiss", extra="faiss"), _inner(index)
    if not isinstance(inner, faiss.IndexIVF) or inner.ntotal >= _LEAST_TRAIN * inner.nlist:
        return None
    return faiss.SearchParametersIVF(nprobe=inner.nlist)


def index_like(
    stored: StoredVectors, dim: int, blocks: Callable[[int], Iterator[np.ndarray]], size: int
) -> faiss.Index:
    """Build an index of the same kind and parameters over other vectors, given by position in blocks of ``size``."""
    faiss, old = require("faiss", extra="faiss"), stored.inner
    whole = faiss.index_factory(dim, stored.factory, old.metric_type)
    new, start = _inner(whole), 0
    if hasattr(new, "hnsw"):
        new.hnsw.efConstruction, new.hnsw.efSearch = old.hnsw.efConstruction, old.hnsw.efSearch
    if stored.by_lists:
        kinds = [type(faiss.downcast_index(one.quantizer)) for one in (old, new)]
        if kinds[0] is not kinds[1] and not issubclass(kinds[0], faiss.IndexFlat):
            problem = f"The inverted file has a quantizer of {kinds[0].__name__}, which is neither flat nor HNSW."
            raise DatabaseError(problem, "Migrate the vectors it was built from.")
        new.nprobe = old.nprobe
        for name in ("niter", "seed", "spherical"):
            setattr(new.cp, name, getattr(old.cp, name))
        # Each inverted list holds similar rows, so taking every step-th row samples all lists.
        step = max(1, stored.n // (_TRAIN * new.nlist))
        rows = []
        for block in blocks(size):
            rows.append(block[-start % step :: step])
            start += len(block)
        sample = np.concatenate(rows)
        whole.train(np.resize(sample, (max(len(sample), new.nlist), dim)))  # FAISS needs a row for each list
        start = 0
    for block in blocks(size):
        ids = [np.ascontiguousarray(stored.ids[start : start + len(block)])] if stored.has_ids else []
        (whole.add_with_ids if ids else whole.add)(block, *ids)
        start += len(block)
    if stored.by_lists:
        new.set_direct_map_type(old.direct_map.type)
    return whole
