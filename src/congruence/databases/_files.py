"""Files of vectors as databases: new vectors are in a hidden folder next to the file; the switch exchanges both."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence._utils.atomic import atomic_path, exchange, locked, sync
from congruence._utils.refusals import describe_refusal, refusing
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, Block, NewBlock, NewVectors, RowRange, Stage, VectorSide, rows_of
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DtypeError,
    FileError,
    IdError,
    MigrationError,
    ParameterError,
    StorageError,
)
from congruence.io import read_column
from congruence.io.npy import check_size, read_header, write_header
from congruence.io.reading import read_exactly, runs_of, write_all

#: Whether the operating system can exchange two names in one call; some file systems still do not support it.
EXCHANGES = sys.platform in ("linux", "darwin")

_FORMAT, _FORMAT_VERSION = "congruence-migration", 1
_NAME = "migration.json"

#: Everything in a hidden folder, apart from temporary files, whose names begin with a dot.
_PARTS = {_NAME, "other", "aside", "vectors.npy", "written.bin", "space.json"}

_SAMPLE = 16 * 1024  # bytes read at the beginning, in the middle and at the end of a file for its fingerprint

#: Bytes of vectors that ``FileDatabase.fetch`` reads at a time, and rows whose ids are.
_FETCH_BYTES, _ID_ROWS = 8 * 2**20, 65_536


#: Capabilities of most kinds of files.
FILES = base.Capabilities(
    container="file",
    atomic_switch=EXCHANGES,
    concurrent_writes=False,
    searches=False,
    writes_after_switch=False,
    element_types=("float32", "float16"),
)


class FilePiece(NamedTuple):
    """Consecutive rows of the original file."""

    start: int  # number of the first row
    ids: pa.Array  # int64, uint64 or large_string, shape (b,)
    valid: np.ndarray  # bool, shape (b,): which rows have a vector; undefined if no vectors were requested
    vectors: np.ndarray | None  # float32, shape (valid.sum(), dim)
    modalities: pa.Array | None  # large_string, shape (b,)

    @classmethod
    def full(cls, start: int, ids: pa.Array, vectors: np.ndarray | None, labels: pa.Array | None) -> FilePiece:
        """Return rows that all have a vector, given the modalities of all rows of the file."""
        modalities = None if labels is None else labels.slice(start, len(ids))
        return cls(start, ids, np.ones(len(ids), bool), vectors, modalities)

    def until(self, stop: int | None) -> FilePiece:
        """Return the rows with numbers below ``stop``."""
        rows = len(self.ids) if stop is None else max(0, min(len(self.ids), stop - self.start))
        valid = self.valid[:rows]
        vectors = None if self.vectors is None else self.vectors[: int(valid.sum())]
        modalities = None if self.modalities is None else self.modalities.slice(0, rows)
        return FilePiece(self.start, self.ids.slice(0, rows), valid, vectors, modalities)


class FileDatabase(base.Database):
    """Base class for file formats, of ``n`` rows; a subclass reads the original and builds the complete new file."""

    by_ranges = True
    n: int
    dim: int

    def _open_path(self, path: str) -> None:
        self._place, self._subject = HiddenFolder(path), path
        self._folder = self._place.path.parent
        self._stage = self._place.stage()
        self._new: RowVectors | None = None
        self._counted: int | None = None
        self._options: dict[str, str] = {}
        #: Ids and modalities that are in files of their own, by the option that names the file.
        self._beside: dict[str, pa.Array] = {}

    def _translate(self, error: Exception) -> CongruenceError | None:
        if not isinstance(error, OSError):
            return None
        return StorageError(describe_refusal(error, f"from the disk at {error.filename or self._subject}"))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open files; another process with access to the same files opens them again."""
        return {**self.__dict__, "_new": None, "engine": None}

    def _remember(self, ids: str | None, modality_column: str | None) -> tuple[str | None, str | None]:
        """Return and remember two options, by default with the values with which the migration was started."""
        record = self._place.record()
        given = {"ids": ids, "modality_column": modality_column}
        self._options = (record.options if record else {}) | {name: value for name, value in given.items() if value}
        return self._options.get("ids"), self._options.get("modality_column")

    def _check_at_first(self) -> None:
        """Refuse files of ids or modalities that do not fit, unless others wrote rows, which may then be discarded."""
        record = self._place.record()
        if record is None or (self._stage is Stage.PREPARED and fingerprint(self._place.path) == record.original):
            self._check_beside()

    def _check_beside(self) -> None:
        """Raise an error if the ids or modalities in other files are not those of as many rows."""
        for option, entries in self._beside.items():
            if len(entries) == self.n:
                continue
            what, kind = ("ids", IdError) if option == "ids" else ("modalities", ParameterError)
            words = f"There are {len(entries)} {what} for {self.n} rows of {self._subject}"
            if self._stage is Stage.PREPARED or self._place.record() is None:
                raise kind(f"{words}.", f"Pass `{option}=…` of the same rows.")
            raise MigrationError(
                f"{words}: one of both was written to since the run.",
                "Restore it, or stay with the vectors that readers see.",
            )

    @abstractmethod
    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[FilePiece]:
        """Yield the rows of the original (``_original``) from row number ``after`` on, with or without vectors."""

    @abstractmethod
    def _build(self, new: RowVectors) -> None:
        """Write the complete new file to ``self._place.other`` atomically."""

    @abstractmethod
    def _needed_bytes(self, dim: int, element_type: str) -> int:
        """Return the bytes of disk space that a migration to ``dim`` components of a type needs."""

    def _count_old(self) -> int:
        """Return how many rows of the original have a vector."""
        return self.n

    @abstractmethod
    def _reopen(self) -> None:
        """Update the subclass after the original has moved (switch or rollback) or a migration has ended."""

    def _open_rows(self) -> None:
        """Open the rows; if others have written what cannot be read, say how to go on."""
        try:
            self._reopen()
        except CongruenceError as error:
            record = self._place.record()
            if record is None or self._stage is Stage.SWITCHED or fingerprint(self._place.path) == record.original:
                raise
            since, fix = "switch", "Restore it."
            if self._place.stage() is Stage.PREPARED:
                since, fix = "run began", f"Restore it; or remove {self._place.folder}, which holds the new vectors."
            raise MigrationError(
                f"{self._subject} was written to since the {since}, and cannot be read: {error.problem}", fix
            ) from error

    @property
    def _original(self) -> Path:
        return self._place.other if self._stage is Stage.SWITCHED else self._place.path

    @property
    def _vectors_path(self) -> Path:
        return self._place.folder / "vectors.npy"

    def check_unchanged(self) -> None:
        """Raise MigrationError if the file that readers see was written to since the run began, or since the switch."""
        if self._stage is Stage.PREPARED:
            self._place.check_unchanged(self._record())
        elif self._stage is Stage.SWITCHED and self.changed_since_switch():
            raise MigrationError(
                f"{self._subject} was written to since the switch, so that its rows are no longer those of the run.",
                "Keep it by `drop_old`, or undo these writes.",
            )

    def changed_since_switch(self) -> bool:
        return fingerprint(self._place.path) != self._record().built

    def _new_vectors(self) -> RowVectors:
        refusals.refuse(self._stage is Stage.UNTOUCHED, "untouched", self._subject)
        if self._new is None:
            marks = self._place.folder / "written.bin"
            self._new = RowVectors(self._vectors_path, marks, writable=self._stage is Stage.PREPARED)
        return self._new

    def _record(self) -> MigrationRecord:
        record = self._place.record()
        refusals.refuse(record is None, "untouched", self._subject)
        assert record is not None
        return record

    def stage(self) -> Stage:
        self._stage = self._place.stage()
        return self._stage

    def _made(self) -> NewVectors:
        record = self._record()
        return NewVectors(record.dim, record.element_type, record.note)

    def scan(
        self, side: VectorSide = "old", *, after: base.Cursor | None = None, batch: int = BATCH
    ) -> Iterator[Block]:
        if side == "new" and self._stage is Stage.UNTOUCHED:
            return
        for piece in self._pieces(int(after or 0), batch, side == "old"):  # type: ignore[arg-type]
            stop = piece.start + len(piece.ids)
            if side == "old":
                has_vector, vectors = piece.valid, piece.vectors
            else:
                has_vector = self._new_vectors().written(piece.start, stop)
                vectors = self._new_vectors().read(piece.start + np.flatnonzero(has_vector))
            if not has_vector.any():
                continue
            assert vectors is not None
            yield Block(masked(piece.ids, has_vector), vectors, masked(piece.modalities, has_vector), stop)

    def ranges(self, most: int) -> Iterator[RowRange]:
        for start in range(0, self.n, most):
            yield RowRange.numbered("rows", start, min(start + most, self.n))

    def revise(self, rows: RowRange, batch: int, change: base.Change) -> list[base.WrittenFile]:
        new = self._new_vectors()

        def changed() -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]]:
            for numbers, block in run_ahead(self._numbered_pairs(rows, batch)):
                yield numbers, change(block)

        with self._errors():
            for numbers, result in run_ahead(changed()):
                if result is not None:
                    self._invalidate_built()
                    which, vectors = result
                    new.write(numbers[which], self.as_stored(vectors))
        self.flush()
        return []

    def _numbered_pairs(self, rows: RowRange, batch: int) -> Iterator[tuple[np.ndarray, base.PairedBlock]]:
        new = self._new_vectors()
        for whole in self._pieces(rows.start, batch, True):
            piece = whole.until(rows.stop)
            if not len(piece.ids):
                return
            numbers = piece.start + np.flatnonzero(piece.valid)
            if not len(numbers):
                continue
            assert piece.vectors is not None
            has_vector = new.written(piece.start, piece.start + len(piece.ids))[piece.valid]
            vectors = new.read(numbers)
            vectors[~has_vector] = 0.0
            ids, modalities = masked(piece.ids, piece.valid), masked(piece.modalities, piece.valid)
            yield numbers, base.PairedBlock(ids, piece.vectors, vectors, has_vector, modalities)

    def _shown_rows(self) -> Self:
        """Return the rows of the file that readers see after the switch, which others may have replaced."""
        shown = copy(self)
        shown._stage, shown._new, shown._counted = Stage.UNTOUCHED, None, None
        shown._open_rows()
        return shown

    def _all_ids(self) -> pa.Array:
        ids = [piece.ids for piece in self._pieces(0, _ID_ROWS, False)]
        return pa.concat_arrays(ids or [pa.array([], pa.int64())])

    def _other_fields(self) -> np.ndarray:
        return np.zeros(self.n)

    def scan_new(self, *, batch: int = BATCH) -> Iterator[NewBlock]:
        """Yield the rows of the new file, after the switch as readers see it."""
        if self._stage is not Stage.SWITCHED:
            for block in self.scan("new", batch=batch):
                every = np.ones(len(block.ids), bool)
                yield NewBlock(block.ids, block.vectors, every, every)
            return
        shown = self._shown_rows()
        known, ids = self._all_ids(), shown._all_ids()
        before, now = self._other_fields(), shown._other_fields()
        for block in shown.scan("old", batch=batch):
            old, new = rows_of(block.ids, known), rows_of(block.ids, ids)
            yield NewBlock(block.ids, block.vectors, old >= 0, before[old] == now[new])

    def without_new(self, *, batch: int = BATCH) -> Iterator[tuple[pa.Array, np.ndarray]]:
        shown = self._shown_rows()
        ids = shown._all_ids()
        full = pa.concat_arrays([ids.slice(0, 0), *(block.ids for block in shown.scan("old", batch=batch))])
        for block in self.scan("old", batch=batch):
            lacking = rows_of(block.ids, full) < 0
            if lacking.any():
                missing = block.ids.filter(pa.array(lacking))
                yield missing, rows_of(missing, ids) >= 0

    def _missing(self) -> int:
        return self.count("old") - self.count("new")

    def _losing(self) -> int:
        return 0  # in most kinds of files, each row has a vector

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        return iter(())  # a file that was changed during the migration is rejected instead of repaired

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        width = self.dim if side == "old" or self._stage is Stage.UNTOUCHED else self._record().dim
        found, remaining = [Block(ids.slice(0, 0), np.empty((0, width), np.float32), None, 0)], len(ids)
        for block in self.scan(side, batch=max(64, _FETCH_BYTES // (4 * self.dim))) if remaining else ():
            wanted = rows_of(block.ids, ids) >= 0
            if wanted.any():
                labels = masked(block.modalities, wanted)
                found.append(Block(masked(block.ids, wanted), block.vectors[wanted], labels, 0))
                remaining -= int(wanted.sum())
            if remaining <= 0:
                break
        names, vectors, labels, _ = zip(*(found[1:] or found), strict=True)
        modalities = None if labels[0] is None else pa.concat_arrays(labels)
        return Block(pa.concat_arrays(names), np.concatenate(vectors), modalities, 0)

    def count(self, side: VectorSide = "old") -> int:
        if side == "new":
            return 0 if self._stage is Stage.UNTOUCHED else int(self._new_vectors().written().sum())
        if self._counted is None:
            self._counted = self._count_old()
        return self._counted

    def repeated_ids(self) -> list[str]:
        return base.repeated(self._all_ids())

    def _rows_of(self, ids: pa.Array) -> np.ndarray:
        out = np.full(len(ids), -1, np.int64)
        for piece in self._pieces(0, _ID_ROWS, False):
            places = rows_of(ids, piece.ids)
            out = np.where(places >= 0, piece.start + places, out)
            if (out >= 0).all():
                break
        return out

    def check(self, new: NewVectors) -> None:
        super().check(new)
        self._place.check_names()
        check_owner(self._place.path)
        needed = self._needed_bytes(new.dim, new.element_type)
        if (free := self.free_bytes() or 0) < needed:
            raise StorageError(
                f"There are {free:,} bytes free on the disk of {self._subject}, and the new vectors and the complete "
                f"new file need {needed:,}.",
                "Free disk space, or pass `element_type='float16'`.",
            )

    def rehearse(self, ids: pa.Array, vectors: np.ndarray, element_type: str) -> Iterator[tuple[str, str, str]]:
        """Announce further names of the file, whose readers no exchange reaches."""
        path = self._place.path
        if path.is_file() and (names := path.stat().st_nlink) > 1:
            yield "links", "unknown", f"the file has {names} names (hard links); the others keep the old vectors"

    def _create(self, new: NewVectors) -> None:
        record = MigrationRecord(*new, rows=self.n, original=fingerprint(self._place.path), options=self._options)
        with self._place.begin(record) as folder:
            vectors = folder / self._vectors_path.relative_to(self._place.folder)
            RowVectors.create(vectors, folder / "written.bin", self.n, new.dim, self._stored_as(new.element_type))
        self._stage = Stage.PREPARED

    def _stored_as(self, element_type: str) -> np.dtype:
        """Return the number type in which new vectors are kept by row."""
        return np.dtype(element_type)

    def _complete(self) -> None:
        self._place.check_unchanged(self._record())

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        refusals.check_shape(vectors, (len(ids), self._new_vectors().dim))
        self._set(ids, vectors)

    def delete(self, ids: pa.Array) -> None:
        self._set(ids, None)

    def _set(self, ids: pa.Array, vectors: np.ndarray | None) -> None:
        new, rows = self._new_vectors(), self._rows_of(ids)
        self._call(self._invalidate_built)
        known = rows >= 0
        self._call(new.write, rows[known], None if vectors is None else self.as_stored(vectors[known]))

    def _invalidate_built(self) -> None:
        """Record that the complete new file, if any, is outdated."""
        refusals.refuse(self._stage is Stage.SWITCHED, "switched", self._subject)
        record = self._record()
        if record.built is not None:
            record.built = None
            self._place.keep(record)

    def flush(self) -> None:
        if self._new is not None:
            self._call(self._new.flush)

    def build_index(self) -> str | None:
        """Write the complete new file to the hidden folder, so that the switch only exchanges names."""
        if self._stage is Stage.PREPARED:
            with self._errors():
                record, other = self._record(), self._place.other
                if record.built is None or not other.exists() or fingerprint(other) != record.built:
                    self._place.check_unchanged(record)
                    new = self._new_vectors()
                    refusals.refuse(n := self._missing(), "missing", self._subject, n=n)
                    new.flush()
                    self._build(new)
                    record.built = fingerprint(other)
                    self._place.keep(record)
        return self._describe_index()

    def _describe_index(self) -> str | None:
        return None

    def _show_new(self) -> None:
        self.build_index()
        self._place.check_unchanged(self._record())
        self._exchange(True)

    def _show_old(self) -> None:
        """Exchange both files again, which restores the original file itself."""
        record = self._record()
        # Others may have changed the new file since the switch; a second switch restores exactly this state of it.
        record.built = fingerprint(self._place.path)
        self._place.keep(record)
        self._exchange(False)

    def _exchange(self, switched: bool) -> None:
        self.close()
        shown, hidden = self._place.path, self._place.other
        for path in (hidden, *(hidden.rglob("*") if hidden.is_dir() else ())):
            if (like := shown / path.relative_to(hidden)).exists() and not path.is_symlink():
                copy_mode(like, path)  # rights may have changed since it was written
        self._place.swap(switched)
        self._stage = Stage.SWITCHED if switched else Stage.PREPARED
        self._reopen()

    def _remove_old(self) -> None:
        self._remove_new()  # the folder, in which the original is now

    def _remove_new(self) -> None:
        self.close()
        self._place.remove()
        self._stage = Stage.UNTOUCHED
        self._counted = None
        with suppress(CongruenceError):  # what others have written meanwhile need not be readable
            self._reopen()

    def close(self) -> None:
        if self._new is not None:
            self._new.close()
            self._new = None


# ---- rows of a file --------------------------------------------------------------------------------------------------


def path_of(address: base.Address, schemes: tuple[str, ...]) -> str:
    """Return the path in an address: the part after ``scheme://``, or the whole address."""
    text = re.sub(rf"^({'|'.join(schemes)})://", "", address.text, flags=re.IGNORECASE)
    return text.rstrip("/") or text


def copy_mode(source: Path, target: Path | int) -> None:
    """Copy owner, group and permissions of a file or folder to the one that replaces it, or that is open."""
    old, new = source.stat(), os.stat(target)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(target, old.st_uid, old.st_gid)
    os.chmod(target, old.st_mode & 0o7777)


def check_owner(path: Path) -> None:
    """Raise StorageError if a new file beside a file or folder cannot have its owner and group."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            copy_mode(path, probe.fileno())
    except OSError as error:
        if not isinstance(error, PermissionError):
            raise StorageError(describe_refusal(error, f"while creating a file beside {path}")) from error
        old = path.stat()
        raise StorageError(
            f"{path} belongs to user {old.st_uid} and group {old.st_gid}, which the new file could not have ({error}).",
            "Run it as that user, or change the owner or group.",
        ) from error


def number_type(old: np.dtype, element_type: str) -> np.dtype:
    """Return the number type of a new file: double like the old one, unless the caller chose float16."""
    return np.dtype(np.float64 if element_type == "float32" and old == np.float64 else element_type)


def masked(column: pa.Array | None, mask: np.ndarray) -> pa.Array | None:
    """Return the entries of a column for which the mask is true; None if the column is None."""
    if column is None or mask.all():
        return column
    return column.filter(pa.array(mask))


def read_labels(spec: str) -> pa.Array:
    """Return a column of modalities, one per row."""
    return pa.array(read_column(spec), pa.large_string())


class RowVectors:
    """New vectors by row number in an ``.npy`` file, read and written in any order, also by several threads.

    ``marks`` is a file with one byte per row, 1 if the row is written. Both are opened for writing unless readers may
    have them open, after the switch.
    """

    def __init__(self, path: Path, marks: Path, *, writable: bool) -> None:
        self._path, self._lock = path, Lock()
        try:
            if writable and not os.access(path, os.W_OK):  # a switch gave it the permissions of the original
                path.chmod(path.stat().st_mode | 0o200)
            self._file, self._marks = (FileIO(one, "r+" if writable else "r") for one in (path, marks))
            shape, _, self.dtype = read_header(self._file, str(path))
            self._offset = self._file.tell()
            check_size(shape, self.dtype, os.fstat(self._file.fileno()).st_size - self._offset, str(path))
            if len(shape) != 2 or min(shape) < 1 or self.dtype.kind != "f" or self.dtype.itemsize > 8:
                raise ValueError("not a matrix of floats")
            self.rows, self.dim = shape
            if (marked := os.fstat(self._marks.fileno()).st_size) != self.rows:
                raise ValueError(f"of {self.rows:,} rows, of which the migration knows {marked:,}")
        except (CorruptFileError, ValueError) as error:
            raise _damaged_vectors(path, error) from error
        except OSError as error:
            raise FileError(describe_refusal(error, f"while opening {path}")) from error

    @staticmethod
    def create(path: Path, marks: Path, rows: int, dim: int, dtype: np.dtype) -> None:
        with open(path, "wb") as stream:
            write_header(stream, (rows, dim), dtype)
            stream.truncate(stream.tell() + rows * dim * dtype.itemsize)
        with open(marks, "wb") as stream:
            stream.truncate(rows)

    def write(self, rows: np.ndarray, vectors: np.ndarray | None) -> None:
        try:
            with np.errstate(over="raise"):
                stored = None if vectors is None else np.ascontiguousarray(vectors, self.dtype)
        except FloatingPointError:
            raise DtypeError(
                f"The vectors have numbers beyond the range of {self.dtype}.", "Pass `element_type='float32'`."
            ) from None
        with self._lock:  # of the position in both files
            for start, stop in runs_of(rows):
                if stored is not None:
                    self._file.seek(self._at(rows[start]))
                    write_all(self._file, stored[start:stop])
                self._marks.seek(int(rows[start]))
                write_all(self._marks, np.full(stop - start, vectors is not None))

    def _at(self, row: int) -> int:
        """Return the position of a row in the file of vectors."""
        return self._offset + int(row) * self.dim * self.dtype.itemsize

    def written(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        out = np.empty((self.rows if stop is None else stop) - start, np.uint8)
        with self._lock:
            self._read_into(self._marks, start, out)
        return out.view(bool)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows in ascending order, ndarray of float32, shape (b, dim)."""
        out = np.empty((len(rows), self.dim), self.dtype)
        with self._lock:
            for start, stop in runs_of(rows):
                self._read_into(self._file, self._at(rows[start]), out[start:stop])
        return out.astype(np.float32, copy=False)

    def _read_into(self, stream: FileIO, position: int, out: np.ndarray) -> None:
        with refusing(f"while reading {stream.name}", FileError):
            stream.seek(position)
            try:
                read_exactly(stream, out, str(stream.name))
            except CorruptFileError as error:
                raise _damaged_vectors(stream.name, error) from error

    def flush(self) -> None:
        if self._file.writable():
            for stream in (self._file, self._marks):
                os.fsync(stream.fileno())

    def close(self) -> None:
        self._file.close()
        self._marks.close()


def _damaged_vectors(path: object, error: Exception) -> CorruptFileError:
    why = getattr(error, "problem", error)
    return CorruptFileError(
        f"The new vectors, {path}, are damaged ({why}).", "Discard them, and run the migration again."
    )


# ---- the hidden folder -----------------------------------------------------------------------------------------------


def fingerprint(path: Path) -> str:
    """Return a digest that identifies a file or folder of files, from names, sizes and samples of the contents."""
    digest = hashlib.sha256()
    with refusing(f"while reading {path}", FileError):
        for file in sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]:
            size = file.stat().st_size
            name = file.relative_to(path).as_posix() if file is not path else ""
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            with open(file, "rb", buffering=0) as stream:
                for start in sorted({0, max(0, size // 2 - _SAMPLE), max(0, size - _SAMPLE)}):
                    stream.seek(start)
                    digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


def _is_ours(folder: Path) -> bool:
    """Return whether a path is a folder with nothing in it that a migration does not create."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return all(name in _PARTS or name.startswith(".") for name in os.listdir(folder))


@dataclass
class MigrationRecord:
    """State of a migration of a file, stored in the hidden folder next to it."""

    dim: int
    element_type: str
    note: dict[str, str]
    rows: int  # number of rows of the original, including those without a vector
    original: str  # fingerprint of the file that readers saw when the migration began
    options: dict[str, str] = field(default_factory=dict)  # sources of ids and modalities, for later steps
    built: str | None = None  # fingerprint of the complete new file; None while it is not built or is out of date
    switched: bool = False  # by the last exchange; used only if the new file and the old one have the same fingerprint
    format: str = field(default=_FORMAT)
    format_version: int = field(default=_FORMAT_VERSION)


class HiddenFolder:
    """A file or folder of vectors, ``path``, and the hidden folder next to it that contains the new vectors.

    The hidden folder is ``.NAME.congruence``. In it, ``other/NAME`` is the complete new file before the switch and the
    original after it; which of the two it is determines the state of the migration. Symbolic links are followed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self.folder = self.path.with_name(f".{self.path.name}.congruence")
        self.other = self.folder / "other" / self.path.name
        #: Path of the original while files are exchanged by several renames.
        self._renamed = self.folder / "aside"
        self._begun, self._dropped = (
            self.path.with_name(f".{self.path.name}.congruence-{state}") for state in ("begun", "dropped")
        )
        self._recover()
        if not self.path.exists():
            record = self.record()  # before the switch, the other file is the new one
            hint = f", or put back {self.other}" if record and record.switched and self.other.exists() else ""
            raise FileError(f"No file or folder at {path}.", f"Check the path{hint}.")

    def _locked(self) -> Any:
        return locked(self.folder, f"Another process is switching {self.path}. Try again when it has finished.")

    def _recover(self) -> None:
        """Complete an interrupted removal, and undo or complete an exchange that was several renames."""
        with refusing(f"while repairing an interrupted switch or removal of {self.path}", StorageError):
            if _is_ours(self._dropped):
                shutil.rmtree(self._dropped)
            if os.path.lexists(self._renamed):
                with self._locked():
                    os.rename(self._renamed, self.other if self.path.exists() else self.path)

    def record(self) -> MigrationRecord | None:
        """Return the record, or None if there is no migration."""
        path = self.folder / _NAME
        try:
            facts = json.loads(path.read_bytes())
            record = MigrationRecord(**facts)
            values = [*record.note.values(), *record.options.values()]
            good = (record.format, record.format_version) == (_FORMAT, _FORMAT_VERSION)
            good &= all(type(size) is int and size > 0 for size in (record.dim, record.rows))
            good &= record.element_type in ("float32", "float16") and all(isinstance(text, str) for text in values)
            if not good:
                raise ValueError("another format, or invalid values")
            return record
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FileError(describe_refusal(error, f"while reading {path}")) from error
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise CorruptFileError(
                f"The record of a migration, {path}, is damaged ({error}).",
                f"Restore it from a backup; {self.path} and the vectors next to it are intact.",
            ) from error

    def check_names(self) -> None:
        """Raise FileError if files or folders of others have a name that a migration needs."""
        for path in (self.folder, self._begun, self._dropped):
            if os.path.lexists(path) and not _is_ours(path):
                raise FileError(f"{path} was not created by a migration, which needs this name.", "Rename it.")

    def keep(self, record: MigrationRecord) -> None:
        with atomic_path(self.folder / _NAME, force=True) as temporary:
            temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    @contextmanager
    def begin(self, record: MigrationRecord) -> Iterator[Path]:
        """Yield the new folder under a temporary name, and then rename it to its final one, atomically."""
        folder = self._begun
        if folder.exists():  # left by a process that was killed here; ``check_names`` refuses that of others
            shutil.rmtree(folder)
        (folder / self.other.parent.name).mkdir(parents=True)
        (folder / _NAME).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        os.rename(folder, self.folder)

    def stage(self) -> Stage:
        """Return the state of the migration: switched if the original is in the hidden folder."""
        record = self.record()
        if record is None:
            return Stage.UNTOUCHED
        if not self.other.exists() or fingerprint(self.other) != record.original:
            return Stage.PREPARED
        if fingerprint(self.path) != record.original:
            return Stage.SWITCHED
        if record.switched and record.built != record.original:  # else the map changes nothing
            raise MigrationError(
                f"{self.path} is the original again, which was put back after the switch; the new vectors are gone.",
                f"Remove {self.folder} and the journal's folder, and begin again.",
            )
        return Stage.SWITCHED if record.switched else Stage.PREPARED

    def check_unchanged(self, record: MigrationRecord) -> None:
        """Raise MigrationError if the original has changed since the migration began."""
        if fingerprint(self.path) != record.original:
            raise MigrationError(
                f"{self.path} was written to since the run began.",
                "Remove the new vectors by `discard`, then run again.",
            )

    def swap(self, switched: bool) -> None:
        """Exchange the file that readers open, then the new one if ``switched``, and the one in the hidden folder.

        A single system call does this if the operating system and the file system support it (Linux, macOS, local
        disks). Otherwise readers find no file for a moment; if the process is killed then, the next ``HiddenFolder``
        for the path repairs this.
        """
        # Before the exchange, so that a full disk is noticed while nothing has changed.
        record = self.record()
        assert record is not None
        record.switched = switched
        self.keep(record)
        if not exchange(self.path, self.other):
            with self._locked():
                os.rename(self.path, self._renamed)
                os.rename(self.other, self.path)
                os.rename(self._renamed, self.other)
        for folder in (self.path.parent, self.other.parent):
            with suppress(OSError):  # some systems cannot sync a folder
                sync(folder)

    def remove(self) -> None:
        """Remove the hidden folder and its contents; it is renamed first, which ends the migration atomically."""
        if self.folder.is_dir():
            os.rename(self.folder, self._dropped)
            shutil.rmtree(self._dropped)
