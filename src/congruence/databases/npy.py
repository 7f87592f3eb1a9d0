"""Vectors in an ``.npy`` file: a second file is written next to it, and the switch exchanges both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence.databases import _refusals as refusals
from congruence.databases._base import Address, DatabaseInfo, Name, Stage
from congruence.databases._files import FILES, FileDatabase, FilePiece, RowVectors, number_type, path_of, read_labels
from congruence.embeddings import Space
from congruence.io import read_ids
from congruence.io.npy import NpySource, write_header
from congruence.io.reading import write_all

_COLUMN_BYTES = 64 * 2**20  # bytes of vectors that are turned into parts of columns at a time


class Npy(FileDatabase):
    """A matrix of vectors in a NumPy file, whose address is its path or ``npy://PATH``.

    ``ids`` and ``modality_column`` are files with one entry per row, such as ``ids.txt`` or ``items.parquet:name``. The
    new file has the order (C or Fortran) and the byte order of the old one. The description of the space,
    ``NAME.npy.space.json``, is removed before the exchange and written again after it, so that readers never find that
    of the other model.
    """

    kind = "npy"
    capabilities = FILES

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        path = path_of(address, ("npy",))
        what = "an .npy file, which is a single matrix that is mapped as a whole"
        refusals.check_options(what, table=table, column=column, rows=rows)
        self._open_path(path)
        self._space_file = self._place.path.with_name(self._place.path.name + ".space.json")
        self._kept_space_file = self._place.folder / "space.json"
        ids, modality = self._remember(ids, modality)
        self._open_rows()
        self._beside = {} if ids is None else {"ids": read_ids(ids)}
        self._beside |= {} if modality is None else {"modality_column": read_labels(modality)}
        self._check_at_first()

    def _reopen(self) -> None:
        self._write_space_file()
        self._source = NpySource(self._original, ids=False)
        self.n, self.dim = self._source.n, self._source.dim

    @property
    def _vectors_path(self) -> Path:
        if self._source.fortran:
            return super()._vectors_path
        return self._place.path if self._stage is Stage.SWITCHED else self._place.other

    def info(self) -> DatabaseInfo:
        ids = self._beside.get("ids")
        text = ids is not None and not pa.types.is_integer(ids.type)
        return DatabaseInfo(
            place=self._subject,
            rows=self.n,
            dim=self.dim,
            element_type="float16" if self._source.dtype == np.float16 else "float32",
            id_type="text" if text else "int",
            space=self._old_space(),
        )

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[FilePiece]:
        self._check_beside()
        known = self._beside.get("ids")
        blocks = (block for _, block in self._source.scan(after, batch)) if vectors else None
        for start in range(after, self.n, batch):
            ids = pa.array(np.arange(start, min(start + batch, self.n)))
            ids = ids if known is None else known.slice(start, len(ids))
            rows = None if blocks is None else next(blocks).astype(np.float32, copy=False)
            yield FilePiece.full(start, ids, rows, self._beside.get("modality_column"))

    def _stored_as(self, element_type: str) -> np.dtype:
        order = self._source.stored.byteorder
        return number_type(self._source.dtype, element_type).newbyteorder("=" if order == "|" else order)

    def _needed_bytes(self, dim: int, element_type: str) -> int:
        return self.n * dim * self._stored_as(element_type).itemsize * (2 if self._source.fortran else 1)

    def rehearse(self, ids: pa.Array, vectors: np.ndarray, element_type: str) -> Iterator[tuple[str, str, str]]:
        yield from super().rehearse(ids, vectors, element_type)
        if (old := self._source.stored.newbyteorder("=")) != self._source.dtype:
            yield "type", "unknown", f"the file stores {old}, and the new vectors are {self._stored_as(element_type)}"

    def _build(self, new: RowVectors) -> None:
        """Write a file by columns; by rows, that of the new vectors already is the complete new file."""
        if not self._source.fortran:
            return
        dtype, step = new.dtype, max(1, _COLUMN_BYTES // (new.dim * new.dtype.itemsize))
        with atomic_path(self._place.other, force=True) as temporary, open(temporary, "wb", buffering=0) as stream:
            write_header(stream, (self.n, new.dim), dtype, fortran=True)
            begin = stream.tell()
            for start in range(0, self.n, step):
                rows = new.read(np.arange(start, min(start + step, self.n)))
                for j, column in enumerate(np.ascontiguousarray(rows.T, dtype)):
                    stream.seek(begin + (j * self.n + start) * dtype.itemsize)
                    write_all(stream, column)

    def _old_space(self) -> Space:
        if self._stage is not Stage.SWITCHED:
            return self._source.space
        try:
            return Space.from_dict(json.loads(self._kept_space_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return Space()

    def _exchange(self, switched: bool) -> None:
        if switched and self._space_file.is_file():
            with atomic_path(self._kept_space_file, force=True) as temporary:
                temporary.write_bytes(self._space_file.read_bytes())
        if self._kept_space_file.is_file():
            self._space_file.unlink(missing_ok=True)
        super()._exchange(switched)

    def _remove_new(self) -> None:
        self._write_space_file()
        super()._remove_new()

    def _write_space_file(self) -> None:
        kept = self._kept_space_file
        if self._stage is Stage.UNTOUCHED or self._space_file.exists() or not kept.is_file():
            return
        text = kept.read_bytes()
        if self._stage is Stage.SWITCHED:
            text = (json.dumps(self._made().space(self._old_space()).to_dict()) + "\n").encode()
        with suppress(OSError), atomic_path(self._space_file) as temporary:
            temporary.write_bytes(text)
