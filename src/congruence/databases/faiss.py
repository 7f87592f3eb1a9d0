"""FAISS index files: a new index of the same kind is written next to the old one, and the switch exchanges both files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence.databases._address import Address
from congruence.databases._base import Capabilities, DatabaseInfo, Side, Stage
from congruence.databases._faiss_index import StoredVectors, describe_index, index_like, read_index, write_index
from congruence.databases._file_pieces import Piece, copy_mode, label_array, path_of, refuse_options
from congruence.databases._file_place import EXCHANGES
from congruence.databases._file_rows import RowVectors
from congruence.databases._files import FileDatabase
from congruence.errors import MigrationError, ParameterError, ShapeError

if TYPE_CHECKING:
    import faiss

__all__ = ["Faiss"]


class Faiss(FileDatabase):
    """An index of exact vectors written by ``faiss.write_index``.

    Parameters
    ----------
    address : Address
        Path of the file, or ``faiss://PATH``.
    table, column, ids, rows : None
        Not supported: an index holds one matrix, its own ids, and nothing else.
    modality_column : str, optional
        File or column with the modality of each row, as for :func:`congruence.stores.read_column`, in the order in which rows were added. Not for
        inverted files, which do not preserve the order.

    Raises
    ------
    ParameterError, FileError, CorruptFileError, ShapeError, MissingExtraError
        If a parameter has an invalid value; a file cannot be read; a file is damaged; the index is empty; or an optional dependency is not
        installed.
    DatabaseError
        If the index stores its vectors approximately, e.g. by product quantization, or not at all.

    Notes
    -----
    The index is kept in memory, as FAISS requires; while the new one is built, both are. An inverted file gets centroids of the new vectors.
    """

    kind = "faiss"
    capabilities = Capabilities(
        container="file",
        atomic_switch=EXCHANGES,
        concurrent_writes=False,
        follows_deletes=False,
        searches=True,
        writes_after_switch=False,
    )

    def __init__(
        self,
        address: Address,
        *,
        table: str | None = None,
        column: str | None = None,
        ids: str | None = None,
        modality_column: str | None = None,
        rows: str | None = None,
    ) -> None:
        path = path_of(address, ("faiss",))
        options = {"table": table, "column": column, "ids": ids, "rows": rows}
        refuse_options(options, "a FAISS index, which holds one matrix with its own ids")
        super().__init__(path, path)
        _, modality_column = self._remember(None, modality_column)
        self._reopen()
        self._labels = None
        if modality_column is not None:
            if describe_index(self._stored.inner, "").startswith("IVF"):
                raise ParameterError(
                    f"Got modality_column={modality_column!r} for an inverted file, which keeps no order of rows; expected none. Pass modality= for all rows."
                )
            self._labels = label_array(modality_column, self.n)

    def _reopen(self) -> None:
        self._new_index: faiss.Index | None = None
        self._index = read_index(self._original)
        self._stored = StoredVectors(self._index, self._shown)
        self.n, self.dim = self._stored.n, self._stored.dim
        if not self.n:
            raise ShapeError(f"Got an empty index in {self._shown}; expected at least one vector. Check the path.")

    def info(self) -> DatabaseInfo:
        """Return a description of the index; FAISS stores nothing about a model."""
        return DatabaseInfo(
            place=self._shown,
            rows=self.n,
            dim=self.dim,
            distance="l2" if self._stored.inner.metric_type == 1 else "dot",
            index=describe_index(self._stored.inner, self._stored.id_map),
            id_type="int",
            free_bytes=self._free_bytes(),
        )

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[Piece]:
        for start in range(after, self.n, batch):
            stop = min(start + batch, self.n)
            yield Piece(
                start,
                pa.array(self._stored.ids[start:stop]),
                np.ones(stop - start, bool),
                self._stored.read(start, stop) if vectors else None,
                None if self._labels is None else self._labels.slice(start, stop - start),
            )

    def _needed_bytes(self, dim: int, size: int) -> int:
        # Ids and graph are as large as in the old index.
        others = self._place.path.stat().st_size - self.n * self.dim * 4
        return 2 * self.n * dim * size + max(others, 0)

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
        return describe_index(self._stored.inner, self._stored.id_map)

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query; the new side must have an index. Raises MigrationError."""
        index = self._index
        if side == "new":
            if self._new_index is None:
                switched = self._stage is Stage.SWITCHED
                if self._record().built is None and not switched:
                    raise MigrationError(
                        f"Got no new index beside {self._shown}; expected one. Build it first (build_index)."
                    )
                self._new_index = read_index(self._place.path if switched else self._place.other)
            index = self._new_index
        _, ids = index.search(np.ascontiguousarray(queries, np.float32), k)
        return [pa.array(row[row >= 0]) for row in ids]
