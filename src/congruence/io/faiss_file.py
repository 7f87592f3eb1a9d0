"""FAISS index files, of the kinds that keep exact vectors (extra ``faiss``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.optional import require
from congruence.errors import CorruptFileError, DatabaseError, FileError
from congruence.io._base import Source
from congruence.io.reading import damaged, reading

if TYPE_CHECKING:
    import faiss


#: Size from which the file of an index is mapped instead of read.
_MAPPED_BYTES = 2**30


class FaissSource(Source):
    """Vectors of an index, in memory, with the ids that its searches return, if it has ids of its own."""

    streams = False

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        self._set_file(path, key, ids)
        self._index = read_index(Path(path))
        self._stored = StoredVectors(self._index, self.path)
        self._set_matrix((self._stored.n, self._stored.dim), np.dtype(np.float32))
        if ids is None and self._stored.has_ids:
            self._ids = pa.array(self._stored.ids)

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        for start in range(after, self.n, batch):
            yield self._stored.read(start, min(start + batch, self.n))


def read_index(path: Path) -> faiss.Index:
    """Read an index; of large ones, FAISS memory-maps the vectors of some kinds."""
    if not path.is_file():
        raise FileError(f"No FAISS index at {path}.", "Check the path.")
    faiss = require("faiss", extra="faiss")
    try:
        # FAISS checks the length of what it reads, but ends the process where a file that it maps is cut.
        mapped = path.stat().st_size > _MAPPED_BYTES
        with reading(path):
            return faiss.read_index(os.fspath(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if mapped else 0)
    except RuntimeError as error:
        problem = f"Got {path}, which FAISS cannot read as an index of float vectors ({short(str(error), 300)})."
        raise CorruptFileError(problem, "Write it again with faiss.write_index.") from error


class StoredVectors:
    """Vectors of an index, by position, with the ids that a search returns.

    The index is flat, HNSW, an inverted file of flat ones, or of half precision (SQfp16), also in an id map or behind
    a scaling to unit norm (L2norm), each at most once; vectors are read as they are kept. ``inner`` is the index
    without these two, ``wraps`` their names from the outside, ``IDMap``, ``IDMap2`` or ``L2norm``. ``ids`` are from the
    id map or the inverted lists (``has_ids``), otherwise the positions, int64 of shape (n,).
    """

    def __init__(self, index: faiss.Index, place: str) -> None:
        faiss = require("faiss", extra="faiss")
        self._whole, index = index, faiss.downcast_index(index)  # keeps the inner index alive
        self.n, self.dim, self._place, self.wraps = int(index.ntotal), int(index.d), place, list[str]()
        ids: np.ndarray | None = None
        while True:
            if isinstance(index, faiss.IndexIDMap) and ids is None:  # also true for IndexIDMap2
                self.wraps.append("IDMap2" if isinstance(index, faiss.IndexIDMap2) else "IDMap")
                ids = faiss.vector_to_array(index.id_map).astype(np.int64)
            elif isinstance(index, faiss.IndexPreTransform) and not self.unit and _only_scales(index):
                self.wraps.append("L2norm")
            else:
                break
            index = faiss.downcast_index(index.index)
        exact = faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2, faiss.IndexHNSWFlat, faiss.IndexIVFFlat
        half = type(index) is faiss.IndexScalarQuantizer and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
        self.inner, self.dtype = index, np.dtype(np.float16 if half else np.float32)
        #: For an inverted file: number of each list, and position of its first vector.
        self._lists: list[tuple[int, int]] | None = None
        if type(index) not in exact and not half:
            problem = f"{place} is {type(index).__name__}, which gives back approximations of its vectors, or none."
            raise DatabaseError(problem, "Take the vectors it was built from (a .npy or .parquet), and build it again.")
        if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            problem = f"{place} has metric {index.metric_type}, neither the inner product nor L2."
            raise DatabaseError(problem, "Take the vectors it was built from.")
        codes = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSWFlat) else index
        lists = getattr(index, "invlists", codes)  # which have a size of their own, in a damaged file
        sizes = (int(codes.d), int(codes.ntotal), int(codes.code_size), int(lists.code_size))
        if sizes != (self.dim, self.n, *[self.dtype.itemsize * self.dim] * 2) or not index.is_trained:
            raise damaged(place, f"its parts disagree on {self.n} vectors of {self.dim} numbers")
        if isinstance(index, faiss.IndexIVFFlat):
            listed = self._read_lists(index)
            ids = listed if ids is None else ids[listed[(listed >= 0) & (listed < len(ids))]]
        if ids is not None and len(ids) != self.n:
            raise damaged(place, f"its ids are not those of {self.n} vectors")
        self.has_ids = ids is not None
        self.ids = np.arange(self.n) if ids is None else ids

    @property
    def unit(self) -> bool:
        """Whether vectors are scaled to unit norm when they are added or searched with."""
        return "L2norm" in self.wraps

    @property
    def by_lists(self) -> bool:
        """Whether the index is an inverted file, which keeps no order of rows."""
        return self._lists is not None

    @property
    def factory(self) -> str:
        """The text from which ``faiss.index_factory`` makes an empty index of this kind."""
        kind = "Flat" if self.dtype == np.float32 else "SQfp16"
        if hasattr(self.inner, "hnsw"):
            kind = f"HNSW{_links(self.inner)},Flat"
        elif self.by_lists:
            quantizer = require("faiss", extra="faiss").downcast_index(self.inner.quantizer)
            graph = f"_HNSW{_links(quantizer)}" if hasattr(quantizer, "hnsw") else ""
            kind = f"IVF{self.inner.nlist}{graph},Flat"
        return ",".join([*self.wraps, kind])

    def describe(self) -> str:
        """Return a short description."""
        return self.factory + (f", nprobe {self.inner.nprobe}" if self.by_lists else "")

    def _read_lists(self, index: faiss.Index) -> np.ndarray:
        faiss = require("faiss", extra="faiss")
        self._lists, parts, start = [], [np.empty(0, np.int64)], 0
        for k in range(index.nlist):
            size = index.invlists.list_size(k)
            if size:
                parts.append(faiss.rev_swig_ptr(index.invlists.get_ids(k), size).copy())
                self._lists.append((k, start))
                start += size
        if start != self.n:
            raise damaged(self._place, f"its lists hold {start} of {self.n} vectors")
        return np.concatenate(parts)

    def read(self, start: int, stop: int) -> np.ndarray:
        if self._lists is None:
            return np.asarray(self.inner.reconstruct_n(start, stop - start), np.float32)
        faiss = require("faiss", extra="faiss")
        parts = [np.empty((0, self.dim), np.float32)]
        for k, first in self._lists:
            size = self.inner.invlists.list_size(k)
            if first < stop and first + size > start:
                codes = faiss.rev_swig_ptr(self.inner.invlists.get_codes(k), size * self.dim * 4)
                rows = codes.view(np.float32).reshape(size, self.dim)
                parts.append(rows[max(start - first, 0) : stop - first])
        return np.concatenate(parts)


def _links(index: faiss.Index) -> int:
    return int(index.hnsw.nb_neighbors(1))


def _only_scales(index: faiss.IndexPreTransform) -> bool:
    """Return whether vectors are scaled to unit norm, and nothing else, before they are added."""
    faiss = require("faiss", extra="faiss")
    steps = [faiss.downcast_VectorTransform(index.chain.at(k)) for k in range(index.chain.size())]
    return bool(steps) and all(isinstance(one, faiss.NormalizationTransform) and one.norm == 2 for one in steps)
