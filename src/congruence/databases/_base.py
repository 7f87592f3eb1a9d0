"""What every database of vectors offers to a migration: read in a stable order, write beside, switch, roll back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.errors import ParameterError

__all__ = ["BATCH", "Block", "Capabilities", "Cursor", "Database", "DatabaseInfo", "PairedBlock", "Side", "Stage"]

#: Rows that a scan yields at a time unless told otherwise.
BATCH = 4096

#: Which vectors: those that stood there before the migration, or the mapped ones. The words do not change their meaning at the switch.
Side: TypeAlias = Literal["old", "new"]

#: Where a scan stands: plain data that JSON can hold, of meaning to the database that gave it only.
Cursor: TypeAlias = "int | str | list[int | str]"


class Stage(StrEnum):
    """How far the migration of a column is, as the database itself shows it."""

    UNTOUCHED = "untouched"
    """There are only the old vectors."""
    BESIDE = "beside"
    """New vectors stand beside the old ones, in part or all; readers see the old ones."""
    SWITCHED = "switched"
    """Readers see the new vectors; the old ones stand beside."""


@dataclass(frozen=True)
class Capabilities:
    """What a kind of database can do.

    Attributes
    ----------
    beside : {"column", "named vector", "table", "collection", "file"}
        Where the new vectors are written.
    atomic_switch : bool
        A reader sees either all old or all new vectors, and a kill cannot leave anything between.
    concurrent_writes : bool
        Others may add, change and delete rows while the new vectors are written.
    follows_deletes : bool
        A row that others delete takes its new vector with it, since both stand in one row.
    searches : bool
        :meth:`Database.search` uses an index of the database's own.
    writes_after_switch : bool
        New vectors may be written while readers see them: rows re-embedded one batch after the other.
    filters : str
        The language of ``where``; empty where partial runs are not possible.
    element_types : tuple of str
        Of float32, float16, int8 and binary, those the new vectors may be stored as.
    """

    beside: str
    atomic_switch: bool
    concurrent_writes: bool
    follows_deletes: bool
    searches: bool
    writes_after_switch: bool = True
    filters: str = ""
    element_types: tuple[str, ...] = ("float32",)


@dataclass(frozen=True)
class DatabaseInfo:
    """What a database says about the vectors to be migrated.

    Attributes
    ----------
    place : str
        The database and table, without credentials.
    rows : int
        Rows that have a vector, after ``where``.
    rows_without : int
        Rows without one; nothing is written for them.
    dim : int
    element_type : str
        float32, float16, int8 or binary.
    distance : {"cosine", "dot", "l2"} or None
        Of the index, or of the column where it says so.
    index : str or None
        The index over the old vectors in a few words: kind and parameters.
    id_type : str
        "int", "text" or "uuid".
    columns : tuple of str
        What else the rows hold.
    space : Space
        Model, modality and norm, as far as the database tells.
    free_bytes : int or None
        Room on the disk it stands on, where that is this machine's.
    """

    place: str
    rows: int
    dim: int
    element_type: str = "float32"
    rows_without: int = 0
    distance: str | None = None
    index: str | None = None
    id_type: str = "text"
    columns: tuple[str, ...] = ()
    space: Space = field(default_factory=Space)
    free_bytes: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the description as plain data."""
        return {**asdict(self), "columns": list(self.columns), "space": self.space.to_dict()}


class Block(NamedTuple):
    """Some rows of a scan.

    Attributes
    ----------
    ids : pyarrow.Array of int64, uint64 or large_string, shape (b,)
        A UUID is text here.
    vectors : ndarray of float32, shape (b, dim)
        C-contiguous. Halves are converted, int8 are whole numbers from -128 to 127, and bits 1 and -1.
    modalities : pyarrow.Array of large_string, shape (b,), or None
        From the column that the database was opened with.
    cursor : Cursor
        Passed as ``after``, it makes a scan go on behind this block.
    """

    ids: pa.Array
    vectors: np.ndarray
    modalities: pa.Array | None
    cursor: Cursor


class PairedBlock(NamedTuple):
    """Some rows with both their vectors.

    Attributes
    ----------
    ids : pyarrow.Array, shape (b,)
    old : ndarray of float32, shape (b, dim)
    new : ndarray of float32, shape (b, dim_new)
        Zeros where a row has none.
    has_new : ndarray of bool, shape (b,)
    modalities : pyarrow.Array of large_string, shape (b,), or None
    """

    ids: pa.Array
    old: np.ndarray
    new: np.ndarray
    has_new: np.ndarray
    modalities: pa.Array | None


class Database(ABC):
    """Vectors in a database, open for a migration; a context manager.

    A subclass keeps these promises, which ``tests/databases/contract.py`` checks for each:

    - The old vectors, the other columns and the ids are never written, before, at and after the switch, until :meth:`drop_old`.
    - :meth:`write` and :meth:`prepare` may be repeated: what is there already is replaced by the same.
    - After a kill at any instant, :meth:`stage` says the truth and each method can be called again.
    - No message and no attribute shows a password or key; names of tables and columns are quoted, never pasted into a statement.

    Attributes
    ----------
    kind : str
        Name in :data:`congruence.databases.DATABASES`.
    capabilities : Capabilities
    transient : tuple of exception types
        Of the client's errors, those after which it helps to wait and try again.
    """

    kind: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)

    @abstractmethod
    def info(self) -> DatabaseInfo:
        """Describe the old vectors. Raises DatabaseError, CorruptFileError."""

    @abstractmethod
    def stage(self) -> Stage:
        """Return how far the migration is, read from the database now."""

    @abstractmethod
    def note(self) -> Mapping[str, str]:
        """Return what :meth:`prepare` was given to keep with the new vectors; empty where there is none or no room for it."""

    @abstractmethod
    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows that have a vector, each once, in an order that does not change while nobody writes.

        Rows that others add or change meanwhile may come or not. Of the new side only rows that were written come.
        """

    @abstractmethod
    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist and have a vector, in any order."""

    @abstractmethod
    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""

    def repeated_ids(self) -> list[str]:
        """Return some ids that several rows have, at most ten; none where the database itself forbids it."""
        return []

    @abstractmethod
    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Make room for the new vectors beside the old ones.

        Raises
        ------
        MigrationError
            There are new vectors of another width, element type or note.
        """

    @abstractmethod
    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store new vectors of rows; rows that others have deleted meanwhile are passed over.

        Parameters
        ----------
        ids : pyarrow.Array, shape (b,)
            Of a block of :meth:`scan`.
        vectors : ndarray of float32, shape (b, dim)
            Stored as :meth:`prepare` was told; int8 are whole numbers from -128 to 127, and bits 1 and -1.
        """

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Return the seconds that writing so many rows takes, without a change to what readers see or keep.

        Parameters
        ----------
        vectors : ndarray of float32, shape (b, dim)
        element_type : str

        Returns
        -------
        float or None
            None where there is no room for a table of its own that is gone afterwards.
        """
        return None

    @abstractmethod
    def delete(self, ids: pa.Array) -> None:
        """Remove the new vectors of rows, those that others have deleted from the old side."""

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        """Return new vectors as they will be given back, but for rounding: some databases store vectors of unit norm only.

        Parameters
        ----------
        vectors : ndarray of float32, shape (b, dim)

        Returns
        -------
        ndarray of float32, shape (b, dim)
        """
        return vectors

    def flush(self) -> None:
        """Make what was written so far last: after it, a kill loses nothing of it. Does nothing where :meth:`write` does it."""
        return

    def build_index(self) -> str | None:
        """Index the new vectors as the old ones are, and return the index in a few words; None where there is none."""
        return None

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query, best first, by the database's own index.

        Queries are as a block of that side has vectors: whole numbers for int8, 1 and -1 for bits.

        Raises
        ------
        ParameterError
            The database cannot search (:attr:`Capabilities.searches`).
        """
        raise ParameterError(
            f"Got a search of {self.kind}, which has no index; expected a database that searches. Read its vectors with scan, and search those."
        )

    @abstractmethod
    def switch(self) -> None:
        """Make readers see the new vectors under the name of the old ones. Does nothing if they do."""

    @abstractmethod
    def rollback(self) -> None:
        """Make readers see the old vectors again, bit for bit; the new ones stay beside. Does nothing if they do."""

    @abstractmethod
    def drop_old(self) -> None:
        """Remove the old vectors after the switch: no way back.

        Raises
        ------
        MigrationError
            The database is not switched.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove the new vectors before the switch: as if nothing had been.

        Raises
        ------
        MigrationError
            The database is switched.
        """

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors; a database that holds both in one row does it in one read."""
        for block in self.scan("old", batch=batch):
            found = self.fetch(block.ids, "new")
            new = np.zeros((len(block.ids), found.vectors.shape[1]), np.float32)
            rows = rows_of(found.ids, block.ids)
            new[rows] = found.vectors
            has = np.zeros(len(block.ids), bool)
            has[rows] = True
            yield PairedBlock(block.ids, block.vectors, new, has, block.modalities)

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows are gone."""
        if self.capabilities.follows_deletes:
            return
        for block in self.scan("new", batch=batch):
            there = self.fetch(block.ids, "old").ids
            gone = np.ones(len(block.ids), bool)
            gone[rows_of(there, block.ids)] = False
            if gone.any():
                yield block.ids.filter(pa.array(gone))

    def reader(self) -> Self:
        """Return what scans in another thread while this writes: itself where the client allows that, else a further connection."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows_of(ids: pa.Array, among: pa.Array) -> np.ndarray:
    """Return for each id its row in ``among``, which holds all of them.

    Parameters
    ----------
    ids : pyarrow.Array, shape (a,)
    among : pyarrow.Array, shape (b,)

    Returns
    -------
    ndarray of int64, shape (a,)
    """
    import pyarrow.compute as pc

    if not len(ids):
        return np.empty(0, np.int64)
    found = pc.index_in(ids.cast(among.type), value_set=among)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def owned(ids: pa.Array) -> pa.Array:
    """Return a copy of ids that keeps nothing else in memory: a column that a client gave keeps its whole batch, with all vectors.

    Parameters
    ----------
    ids : pyarrow.Array, shape (b,)

    Returns
    -------
    pyarrow.Array, shape (b,)
    """
    return ids.take(pa.array(np.arange(len(ids))))
