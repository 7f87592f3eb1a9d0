"""FAISS indexes that store their vectors exactly: read their contents, and build new ones of the same kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.optional import require
from congruence.errors import CorruptFileError, DatabaseError, FileError

if TYPE_CHECKING:
    import faiss

__all__ = ["StoredVectors", "describe_index", "index_like", "read_index", "write_index"]

#: Training vectors per inverted list; FAISS uses at most this many.
_TRAIN = 256


def read_index(path: Path) -> faiss.Index:
    """Read an index; FAISS memory-maps the vectors of some kinds. Raises FileError, CorruptFileError."""
    faiss = require("faiss", extra="faiss")
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected a FAISS index. Check the path.")
    try:
        return faiss.read_index(os.fspath(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    except RuntimeError as error:
        raise CorruptFileError(
            f"Got {path}, which FAISS does not read as an index of float vectors ({str(error)[:300]}); expected an intact one. "
            "Write it again with faiss.write_index."
        ) from error


def write_index(index: faiss.Index, path: Path) -> None:
    """Write an index, raising OSError if the disk is full, for which FAISS itself would raise a RuntimeError."""
    faiss = require("faiss", extra="faiss")
    with open(path, "wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


class StoredVectors:
    """Vectors of an index, by position, with their ids.

    Parameters
    ----------
    index : faiss.Index
        ``IndexFlat``, ``IndexHNSWFlat`` or ``IndexIVFFlat``, or one of these in an ``IndexIDMap`` or ``IndexIDMap2``.
    place : str
        Path of the index, for error messages.

    Raises
    ------
    DatabaseError
        If the index is of another kind, or its metric is neither the inner product nor L2.

    Attributes
    ----------
    n, dim : int
    ids : ndarray of int64, shape (n,)
        Ids that a search returns: from the id map or the inverted lists, otherwise the positions.
    inner : faiss.Index
        The index without its id map.
    id_map : str
        Class name of the id map; empty if there is none.
    """

    def __init__(self, index: faiss.Index, place: str) -> None:
        faiss = require("faiss", extra="faiss")
        index = faiss.downcast_index(index)
        self.id_map, self.n, self.dim = "", int(index.ntotal), int(index.d)
        ids: np.ndarray | None = None
        if isinstance(index, faiss.IndexIDMap):  # also true for IndexIDMap2
            self.id_map = "IndexIDMap2" if isinstance(index, faiss.IndexIDMap2) else "IndexIDMap"
            ids = faiss.vector_to_array(index.id_map).astype(np.int64)
            self._outer = index  # keeps the inner index alive
            index = faiss.downcast_index(index.index)
        self.inner = index
        #: For an inverted file: number of each list, and position of its first vector.
        self._lists: list[tuple[int, int]] | None = None
        if type(index) not in (
            faiss.IndexFlat,
            faiss.IndexFlatIP,
            faiss.IndexFlatL2,
            faiss.IndexHNSWFlat,
            faiss.IndexIVFFlat,
        ):
            raise DatabaseError(
                f"Got {type(index).__name__} in {place}; expected IndexFlat, IndexHNSWFlat or IndexIVFFlat, with or without a map of ids: other kinds "
                "give back approximations of their vectors, or none. Migrate the vectors it was built from (a .npy or .parquet), and build it again."
            )
        if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise DatabaseError(
                f"Got metric {index.metric_type} in {place}; expected the inner product or L2. Migrate the vectors it was built from."
            )
        if isinstance(index, faiss.IndexIVFFlat):
            list_ids = self._read_lists(index)
            ids = list_ids if ids is None else ids[list_ids]
        self.ids = np.arange(self.n) if ids is None else ids

    def _read_lists(self, index: faiss.Index) -> np.ndarray:
        """Find the position at which each inverted list starts, and return the ids in the order of the lists."""
        faiss = require("faiss", extra="faiss")
        self._lists, parts, start = [], [np.empty(0, np.int64)], 0
        for k in range(index.nlist):
            size = index.invlists.list_size(k)
            if size:
                parts.append(faiss.rev_swig_ptr(index.invlists.get_ids(k), size).copy())
                self._lists.append((k, start))
                start += size
        return np.concatenate(parts)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the vectors of a range of positions, ndarray of float32, shape (stop - start, dim)."""
        if self._lists is None:
            return np.asarray(self.inner.reconstruct_n(start, stop - start), np.float32)
        return np.concatenate([np.empty((0, self.dim), np.float32), *self._from_lists(start, stop)])

    def _from_lists(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the vectors of a range of positions from each inverted list that overlaps it."""
        faiss = require("faiss", extra="faiss")
        for k, first in self._lists or []:
            size = self.inner.invlists.list_size(k)
            if first < stop and first + size > start:
                codes = faiss.rev_swig_ptr(self.inner.invlists.get_codes(k), size * self.dim * 4)
                rows = codes.view(np.float32).reshape(size, self.dim)
                yield rows[max(start - first, 0) : stop - first].copy()


def describe_index(index: faiss.Index, id_map: str) -> str:
    """Return a short description of an index, in the notation of ``faiss.index_factory``."""
    faiss = require("faiss", extra="faiss")
    if isinstance(index, faiss.IndexHNSWFlat):
        description = f"HNSW{_n_links(index)},Flat"
    elif isinstance(index, faiss.IndexIVFFlat):
        description = f"IVF{index.nlist},Flat, nprobe {index.nprobe}"
    else:
        description = "Flat"
    return description + (f", {id_map}" if id_map else "")


def _n_links(index: faiss.Index) -> int:
    """Return the number of links per node of an HNSW graph."""
    return int(index.hnsw.nb_neighbors(1))


def index_like(
    stored: StoredVectors, dim: int, blocks: Callable[[int], Iterator[np.ndarray]], size: int
) -> faiss.Index:
    """Build an index of the same kind, metric and parameters over other vectors.

    Parameters
    ----------
    stored : StoredVectors
    dim : int
    blocks : callable
        Function from the maximum number of rows per block to an iterator over the new vectors, in order of position.
    size : int
        Maximum number of rows per block.

    Returns
    -------
    faiss.Index
    """
    faiss = require("faiss", extra="faiss")
    new = _empty_like(stored.inner, dim)
    new.metric_arg, new.verbose = stored.inner.metric_arg, False
    if not new.is_trained:
        # Each inverted list holds similar rows, so taking every step-th row samples all lists.
        step = max(1, stored.n // (_TRAIN * new.nlist))
        rows, start = [], 0
        for block in blocks(size):
            rows.append(block[-start % step :: step])
            start += len(block)
        new.train(np.concatenate(rows))
    whole = getattr(faiss, stored.id_map)(new) if stored.id_map else new
    by_id, start = bool(stored.id_map) or isinstance(new, faiss.IndexIVFFlat), 0
    for block in blocks(size):
        if by_id:
            whole.add_with_ids(block, np.ascontiguousarray(stored.ids[start : start + len(block)]))
        else:
            whole.add(block)
        start += len(block)
    if stored.id_map:
        whole.own_fields = True
        new.this.disown()
    elif isinstance(new, faiss.IndexIVFFlat):
        new.set_direct_map_type(stored.inner.direct_map.type)
    return whole


def _empty_like(index: faiss.Index, dim: int) -> faiss.Index:
    faiss = require("faiss", extra="faiss")
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexHNSWFlat):
        new = faiss.IndexHNSWFlat(dim, _n_links(index), index.metric_type)
        new.hnsw.efConstruction, new.hnsw.efSearch = index.hnsw.efConstruction, index.hnsw.efSearch
        return new
    if isinstance(index, faiss.IndexIVFFlat):
        quantizer = _empty_like(index.quantizer, dim)
        new = faiss.IndexIVFFlat(quantizer, dim, index.nlist, index.metric_type)
        new.nprobe, new.own_fields = index.nprobe, True
        quantizer.this.disown()
        new.cp.niter, new.cp.seed, new.cp.spherical = index.cp.niter, index.cp.seed, index.cp.spherical
        return new
    if type(index) in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2):
        return faiss.IndexFlat(dim, index.metric_type) if type(index) is faiss.IndexFlat else type(index)(dim)
    raise DatabaseError(
        f"Got an inverted file with a quantizer of {type(index).__name__}; expected a flat one or HNSW. Migrate the vectors it was built from."
    )
