"""Vectors in an ``.npy`` file: a second file is written next to it, and the switch exchanges both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence.databases._address import Address
from congruence.databases._base import Capabilities, DatabaseInfo, Stage
from congruence.databases._file_pieces import Piece, copy_mode, path_of
from congruence.databases._file_place import EXCHANGES
from congruence.databases._file_rows import RowVectors
from congruence.databases._files import FileDatabase
from congruence.embeddings import Space
from congruence.errors import IdError, ParameterError
from congruence.stores import open_source, read_column, read_ids

__all__ = ["Npy", "label_array", "refuse"]


class Npy(FileDatabase):
    """A matrix of vectors in a NumPy file.

    Parameters
    ----------
    address : Address
        Path of the file, or ``npy://PATH``.
    table, column, rows : None
        Not supported: the file is a single matrix, and all of its rows are mapped.
    ids : str, optional
        Path of the ids, as for :func:`congruence.stores.read_ids`: ``ids.txt``, ``ids.npy``, ``items.parquet:name``. By default row
        numbers from 0.
    modality_column : str, optional
        Path of the modality of each row, in the same form.

    Raises
    ------
    ParameterError, FileError, CorruptFileError, IdError
        If a parameter has an invalid value; a file cannot be read; a file is damaged; or ids are missing, repeated or without a partner.

    Notes
    -----
    The description of the vectors' space, ``NAME.npy.space.json``, is removed before the exchange and written again after it. In between, or if
    the process is killed there, readers find no description instead of that of the other model.
    """

    kind = "npy"
    capabilities = Capabilities(
        container="file",
        atomic_switch=EXCHANGES,
        concurrent_writes=False,
        follows_deletes=False,
        searches=False,
        writes_after_switch=False,
        element_types=("float32", "float16"),
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
        path = path_of(address, ("npy",))
        for name, value in (("table", table), ("column", column), ("rows", rows)):
            if value is not None:
                refuse(name, value, "an .npy file, which is a single matrix that is mapped as a whole")
        super().__init__(path, path)
        ids, modality_column = self._remember(ids, modality_column)
        self._moved()
        self._ids = None if ids is None else read_ids(ids)
        self._labels = None if modality_column is None else label_array(modality_column, self.n)
        if self._ids is not None and len(self._ids) != self.n:
            raise IdError(
                f"Got {len(self._ids)} ids for {self.n} rows of {path}; expected one per row. Pass ids=… of the same rows."
            )

    def _moved(self) -> None:
        self._write_sidecar()
        self._source = open_source(self._original, ids=False)
        self.n, self.dim = self._source.n, self._source.dim

    @property
    def _vectors_path(self) -> Path:
        return self._place.path if self._stage is Stage.SWITCHED else self._place.other

    def info(self) -> DatabaseInfo:
        """Return a description of the matrix."""
        text = self._ids is not None and not pa.types.is_integer(self._ids.type)
        return DatabaseInfo(
            place=self._shown,
            rows=self.n,
            dim=self.dim,
            element_type="float16" if self._source.dtype == np.float16 else "float32",
            id_type="text" if text else "int",
            space=self._old_space(),
            free_bytes=self._free(),
        )

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[Piece]:
        blocks = (block for _, block in self._source.scan(after, batch)) if vectors else None
        for start in range(after, self.n, batch):
            stop = min(start + batch, self.n)
            yield Piece(
                start,
                pa.array(np.arange(start, stop)) if self._ids is None else self._ids.slice(start, stop - start),
                np.ones(stop - start, bool),
                None if blocks is None else next(blocks).astype(np.float32, copy=False),
                None if self._labels is None else self._labels.slice(start, stop - start),
            )

    def _room(self, dim: int, size: int) -> int:
        return self.n * dim * size

    def _build(self, new: RowVectors, note: Mapping[str, str]) -> None:
        return  # the file of new vectors already is the complete new file

    # ---- description of the space ------------------------------------------------------------------------------------

    @property
    def _description(self) -> Path:
        return self._place.path.with_name(self._place.path.name + ".space.json")

    @property
    def _kept_description(self) -> Path:
        return self._place.folder / "space.json"

    def _old_space(self) -> Space:
        """Return the space of the original; after the switch, from the copy of its description in the hidden folder."""
        if self._stage is not Stage.SWITCHED:
            return self._source.space
        try:
            return Space.from_dict(json.loads(self._kept_description.read_bytes()))
        except (OSError, ValueError, TypeError):
            return Space()

    def _exchange(self, switched: bool) -> None:
        if switched and self._description.is_file():
            with atomic_path(self._kept_description, force=True) as temporary:
                temporary.write_bytes(self._description.read_bytes())
        if self._kept_description.is_file():
            self._description.unlink(missing_ok=True)
        if switched:
            copy_mode(self._place.path, self._place.other)
        super()._exchange(switched)

    def _end(self) -> None:
        self._write_sidecar()
        super()._end()

    def _write_sidecar(self) -> None:
        """Write the description of the file that readers now see, if the original had one and it is missing."""
        kept = self._kept_description
        if self._stage is Stage.UNTOUCHED or self._description.exists() or not kept.is_file():
            return
        text = kept.read_bytes()
        if self._stage is Stage.SWITCHED:
            space = Space(model=self._record().note.get("model") or None, dim=self._opened().dim)
            text = (json.dumps(space.to_dict()) + "\n").encode()
        with suppress(OSError), atomic_path(self._description) as temporary:
            temporary.write_bytes(text)


def label_array(spec: str, n: int) -> pa.Array:
    """Return a column of modalities, one per row. Raises ParameterError, and the errors of reading the file."""
    labels = read_column(spec)
    if len(labels) != n:
        raise ParameterError(
            f"Got {len(labels)} modalities in {spec} for {n} rows; expected one per row. Pass modality_column=… of the same rows."
        )
    return pa.array(labels, pa.large_string())


def refuse(name: str, value: str, what: str) -> NoReturn:
    """Raise ParameterError for an argument that a file format does not support."""
    raise ParameterError(f"Got {name}={value!r} for {what}; expected none. Leave {name}= out.")
