"""Files of vectors as databases: new vectors are stored by row number in a hidden folder next to the file; the switch exchanges two names."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_choice
from congruence.databases._base import BATCH, Block, Cursor, Database, PairedBlock, Side, Stage
from congruence.databases._file_pieces import Piece, among, cut, hashes, only
from congruence.databases._file_place import FilePlace, Record, fingerprint
from congruence.databases._file_rows import RowVectors
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import MigrationError, ParameterError, StorageError

__all__ = ["FileDatabase"]

#: Number of recently read blocks whose ids and row numbers are cached, so that writing such a block needs no search.
_RECENT = 64

#: Bytes of vectors that :meth:`FileDatabase.fetch` reads at a time.
_FETCH_BYTES = 8 * 2**20


class FileDatabase(Database):
    """Base class for file formats; a subclass reads the rows of the original and builds the complete new file.

    Parameters
    ----------
    path : str
        Path that readers open.
    shown : str
        Name of the file for messages and journals.

    Attributes
    ----------
    n : int
        Number of rows of the original, including those without a vector.
    dim : int
        Width of the original's vectors.
    """

    n: int
    dim: int

    def __init__(self, path: str, shown: str) -> None:
        self._place, self._shown = FilePlace(path), shown
        self._stage = self._place.stage()
        self._new: RowVectors | None = None
        self._recent: deque[tuple[pa.Array, np.ndarray]] = deque(maxlen=_RECENT)
        self._lock = Lock()
        self._counted: int | None = None
        self._options: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open files; another process with access to the same files opens them again."""
        return {**self.__dict__, "_new": None, "_recent": deque(maxlen=_RECENT), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def _remember(self, ids: str | None, modality_column: str | None) -> tuple[str | None, str | None]:
        """Return and remember these two options; those that are None get the values with which the migration was started."""
        record = self._place.record()
        known = {} if record is None else record.options
        columns = {"ids": ids or known.get("ids"), "modality_column": modality_column or known.get("modality_column")}
        self._options = {name: value for name, value in columns.items() if value}
        return columns["ids"], columns["modality_column"]

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[Piece]:
        """Yield the rows of the original (:attr:`_original`) from row number ``after`` on, with vectors only if ``vectors`` is True."""

    @abstractmethod
    def _build(self, new: RowVectors) -> None:
        """Write the complete new file to ``self._place.other`` atomically."""

    @abstractmethod
    def _needed_bytes(self, dim: int, size: int) -> int:
        """Return the bytes of disk space that a migration to ``dim`` components of ``size`` bytes needs."""

    def _count_old(self) -> int:
        """Return how many rows of the original have a vector."""
        return self.n

    def _reopen(self) -> None:
        """Update the subclass after the original has moved (switch or rollback) or a migration has ended."""

    # ---- paths and state ---------------------------------------------------------------------------------------------

    @property
    def _original(self) -> Path:
        """Current path of the original."""
        return self._place.other if self._stage is Stage.SWITCHED else self._place.path

    @property
    def _vectors_path(self) -> Path:
        """Path of the new vectors."""
        return self._place.folder / "vectors.npy"

    def _new_vectors(self) -> RowVectors:
        """Return the new vectors. Raises MigrationError if there are none."""
        if self._stage is Stage.UNTOUCHED:
            raise no_new_vectors(self._shown)
        if self._new is None:
            marks = self._place.folder / "written.bin"
            self._new = RowVectors(self._vectors_path, marks, writable=self._stage is Stage.PREPARED)
        return self._new

    def _record(self) -> Record:
        record = self._place.record()
        if record is None:
            raise no_new_vectors(self._shown)
        return record

    def stage(self) -> Stage:
        """Return the state of the migration, read from the hidden folder; see :meth:`Database.stage`."""
        self._stage = self._place.stage()
        return self._stage

    def note(self) -> Mapping[str, str]:
        """Return the note from the record in the hidden folder."""
        record = self._place.record()
        return {} if record is None else record.note

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._place.path.parent).free

    # ---- reading -----------------------------------------------------------------------------------------------------

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows in file order; the cursor is the number of the next row."""
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
            ids, modalities = only(piece.ids, has_vector), only(piece.modalities, has_vector)
            with self._lock:
                self._recent.append((ids, piece.start + np.flatnonzero(has_vector)))
            yield Block(ids, vectors, modalities, stop)

    def scan_pairs(self, *, batch: int = BATCH, after: int = 0, stop: int | None = None) -> Iterator[PairedBlock]:
        """Yield old and new vectors in file order, from row number ``after`` to ``stop``."""
        new = self._new_vectors()
        for piece in cut(self._pieces(after, batch, True), stop):
            rows = piece.start + np.flatnonzero(piece.valid)
            if not len(rows):
                continue
            assert piece.vectors is not None
            has_vector = new.written(piece.start, piece.start + len(piece.ids))[piece.valid]
            ids = only(piece.ids, piece.valid)
            with self._lock:
                self._recent.append((ids, rows))
            vectors = new.read(rows)
            vectors[~has_vector] = 0.0
            yield PairedBlock(ids, piece.vectors, vectors, has_vector, only(piece.modalities, piece.valid))

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield nothing: a file that was changed during the migration is rejected instead of repaired."""
        return iter(())

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids, found in one pass over the file."""
        blocks = []
        remaining = len(ids)
        for piece in self._pieces(0, max(64, _FETCH_BYTES // (4 * self.dim)), side == "old"):
            wanted = among(piece.ids, ids) >= 0
            if not wanted.any():
                continue
            remaining -= int(wanted.sum())
            if side == "old":
                has_vector = wanted & piece.valid
                assert piece.vectors is not None
                vectors = piece.vectors[wanted[piece.valid]]
            else:
                new = self._new_vectors()
                has_vector = wanted & new.written(piece.start, piece.start + len(piece.ids))
                vectors = new.read(piece.start + np.flatnonzero(has_vector))
            blocks.append(Block(only(piece.ids, has_vector), vectors, only(piece.modalities, has_vector), 0))
            if remaining <= 0:
                break
        width = self.dim if side == "old" or self._stage is Stage.UNTOUCHED else self._new_vectors().dim
        if not blocks:
            return Block(ids.slice(0, 0), np.empty((0, width), np.float32), None, 0)
        modalities = [block.modalities for block in blocks if block.modalities is not None]
        return Block(
            pa.concat_arrays([block.ids for block in blocks]),
            np.concatenate([block.vectors for block in blocks]),
            pa.concat_arrays(modalities) if modalities else None,
            0,
        )

    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""
        if side == "new":
            return 0 if self._stage is Stage.UNTOUCHED else int(self._new_vectors().written().sum())
        if self._counted is None:
            self._counted = self._count_old()
        return self._counted

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have, found by comparing 64-bit hashes."""
        parts = [hashes(piece.ids) for piece in self._pieces(0, 65_536, False)]
        distinct, counts = np.unique(np.concatenate(parts), return_counts=True)
        repeated = distinct[counts > 1]
        if not len(repeated):
            return []
        occurrences: Counter[int | str] = Counter()  # different ids may have the same hash
        for piece in self._pieces(0, 65_536, False):
            ids = piece.ids.filter(pa.array(np.isin(hashes(piece.ids), repeated[:1000])))
            occurrences.update(ids.to_pylist())
        return [str(id_) for id_, count in occurrences.items() if count > 1][:10]

    def _rows_of(self, ids: pa.Array) -> np.ndarray:
        """Return the row number of each id, or -1 if it does not exist; ids of recently read blocks need no search."""
        with self._lock:
            recent = list(self._recent)
        for known, rows in reversed(recent):
            if ids.equals(known):
                return np.asarray(rows)
        for known, rows in reversed(recent):
            if known.type == ids.type and among(ids.slice(0, 1), known)[:1] >= 0:
                places = among(ids, known)
                if (places >= 0).all():
                    return np.asarray(rows[places])
        out = np.full(len(ids), -1, np.int64)
        for piece in self._pieces(0, 65_536, False):
            places = among(ids, piece.ids)
            out = np.where(places >= 0, piece.start + places, out)
            if (out >= 0).all():
                break
        return out

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the hidden folder next to the file, atomically; see :meth:`Database.prepare`."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        wanted = (int(dim), element_type, {str(key): str(value) for key, value in (note or {}).items()})
        record = self._place.record()
        if record is not None:
            existing = (record.dim, record.element_type, record.note)
            if existing != wanted:
                raise MigrationError(
                    f"Got new vectors in {self._shown} with dimension, type and note {existing}; expected {wanted}. Discard the new vectors first (discard)."
                )
            if self._stage is Stage.PREPARED:
                self._place.check_unchanged(record)
            return
        needed = self._needed_bytes(wanted[0], np.dtype(element_type).itemsize)
        if (free := self._free_bytes()) < needed:
            raise StorageError(
                f"Got {free:,} bytes free on the disk of {self._shown}; expected at least {needed:,} for the new vectors and the complete new file. "
                "Free disk space, or pass element_type='float16'."
            )
        record = Record(*wanted, rows=self.n, original=fingerprint(self._place.path), options=self._options)
        folder = self._place.begin(record)
        try:
            vectors = folder / self._vectors_path.relative_to(self._place.folder)
            RowVectors.create(vectors, folder / "written.bin", self.n, wanted[0], element_type)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._place.publish(folder)
        self._stage = Stage.PREPARED

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store new vectors by row number; see :meth:`Database.write`."""
        new = self._new_vectors()
        if vectors.shape != (len(ids), new.dim):
            raise ParameterError(
                f"Got vectors of shape {vectors.shape}; expected {(len(ids), new.dim)}. Pass one row per id."
            )
        self._invalidate_built()
        rows = self._rows_of(ids)
        known = rows >= 0
        new.write(rows[known], vectors if known.all() else vectors[known])

    def delete(self, ids: pa.Array) -> None:
        """Mark rows as not written; see :meth:`Database.delete`."""
        new = self._new_vectors()
        self._invalidate_built()
        rows = self._rows_of(ids)
        new.forget(rows[rows >= 0])

    def _invalidate_built(self) -> None:
        """Record that the complete new file, if any, is outdated. Raises MigrationError after the switch."""
        if self._stage is Stage.SWITCHED:
            raise already_switched(self._shown)
        record = self._record()
        if record.built is not None:
            record.built = None
            self._place.keep(record)

    def flush(self) -> None:
        """Make everything written so far durable."""
        if self._new is not None:
            self._new.flush()

    def build_index(self) -> str | None:
        """Write the complete new file to the hidden folder, so that the switch only exchanges names; return a description of its index, if any."""
        if self._stage is Stage.PREPARED:
            record = self._record()
            if record.built is None or not self._place.other.exists() or fingerprint(self._place.other) != record.built:
                self._place.check_unchanged(record)
                new = self._new_vectors()
                missing = self.count("old") - self.count("new")
                if missing:
                    raise MigrationError(
                        f"Got {missing:,} rows of {self._shown} without a new vector; expected none. Finish the run first (resume=True)."
                    )
                new.flush()
                self._build(new)
                record.built = fingerprint(self._place.other)
                self._place.keep(record)
        return self._describe_index()

    def _describe_index(self) -> str | None:
        return None

    # ---- switch ------------------------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Exchange the complete new file and the original; see :meth:`Database.switch`."""
        if self.stage() is Stage.UNTOUCHED:
            raise no_new_vectors(self._shown)
        if self._stage is Stage.PREPARED:
            self.build_index()
            self._place.check_unchanged(self._record())
            self._exchange(True)

    def rollback(self) -> None:
        """Exchange both files again, which restores the original file itself; see :meth:`Database.rollback`."""
        if self.stage() is Stage.SWITCHED:
            record = self._record()
            # Others may have changed the new file since the switch; a second switch restores exactly this state of it.
            record.built = fingerprint(self._place.path)
            self._place.keep(record)
            self._exchange(False)

    def _exchange(self, switched: bool) -> None:
        self.close()
        self._place.swap(switched)
        self._stage = Stage.SWITCHED if switched else Stage.PREPARED
        self._reopen()

    def drop_old(self) -> None:
        """Remove the hidden folder and the original in it; see :meth:`Database.drop_old`."""
        if self.stage() is not Stage.SWITCHED:
            raise not_switched(self._shown)
        self._end_migration()

    def discard(self) -> None:
        """Remove the hidden folder; see :meth:`Database.discard`."""
        if self.stage() is Stage.SWITCHED:
            raise already_switched(self._shown)
        self._end_migration()

    def _end_migration(self) -> None:
        self.close()
        self._place.remove()
        self._stage = Stage.UNTOUCHED
        self._recent.clear()
        self._counted = None
        self._reopen()

    def close(self) -> None:
        """Close the files of the new vectors."""
        if self._new is not None:
            self._new.close()
            self._new = None
