"""The interface of every database for a migration: read in a stable order, write new vectors, switch, roll back."""

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

#: Default number of rows per block of a scan.
BATCH = 4096

#: Which vectors: those from before the migration ("old"), or the mapped ones ("new"). The switch does not change the meaning of the two words.
Side: TypeAlias = Literal["old", "new"]

#: Position of a scan: plain data that JSON can represent, meaningful only to the database that returned it.
Cursor: TypeAlias = "int | str | list[int | str]"


class Stage(StrEnum):
    """State of the migration of a column, as shown by the database itself."""

    UNTOUCHED = "untouched"
    """There are only old vectors."""
    PREPARED = "prepared"
    """Some or all new vectors are stored next to the old ones; readers see the old ones."""
    SWITCHED = "switched"
    """Readers see the new vectors; the old ones are kept."""


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a kind of database.

    Attributes
    ----------
    container : {"column", "named vector", "table", "collection", "file"}
        Where the new vectors are written.
    atomic_switch : bool
        Whether a reader sees either all old or all new vectors, so that killing the process cannot leave an intermediate state.
    concurrent_writes : bool
        Whether other clients may add, change and delete rows while the new vectors are written.
    follows_deletes : bool
        Whether deleting a row also deletes its new vector, because both are in the same row.
    searches : bool
        Whether the database can search (:meth:`Database.search`).
    writes_after_switch : bool
        Whether new vectors can be written while readers see them, as when rows are re-embedded batch by batch.
    filters : str
        Language of the condition that selects rows (``rows``); empty if partial runs are not possible.
    element_types : tuple of str
        The types, among float32, float16, int8 and binary, in which new vectors can be stored.
    """

    container: str
    atomic_switch: bool
    concurrent_writes: bool
    follows_deletes: bool
    searches: bool
    writes_after_switch: bool = True
    filters: str = ""
    element_types: tuple[str, ...] = ("float32",)


@dataclass(frozen=True)
class DatabaseInfo:
    """Description of the vectors to be migrated.

    Attributes
    ----------
    place : str
        The database and table, without credentials.
    rows : int
        Number of rows with a vector that satisfy the condition (``rows``).
    rows_without : int
        Number of rows without a vector; nothing is written for them.
    dim : int
    element_type : str
        float32, float16, int8 or binary.
    distance : {"cosine", "dot", "l2"} or None
        Distance of the index, or of the column if it declares one.
    index : str or None
        Short description of the index over the old vectors: kind and parameters.
    id_type : str
        "int", "text" or "uuid".
    columns : tuple of str
        Other columns of the rows.
    space : Space
        Model, modality and norm, as far as the database stores them.
    free_bytes : int or None
        Free bytes on the database's disk, if the disk is on this machine.
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
    """A block of rows from a scan.

    Attributes
    ----------
    ids : pyarrow.Array of int64, uint64 or large_string, shape (b,)
        UUIDs are given as text.
    vectors : ndarray of float32, shape (b, dim)
        C-contiguous. Half precision is converted; int8 values are whole numbers from -128 to 127, and bits are 1 and -1.
    modalities : pyarrow.Array of large_string, shape (b,), or None
        From the column that was passed when the database was opened.
    cursor : Cursor
        Pass it as ``after`` to continue a scan after this block.
    """

    ids: pa.Array
    vectors: np.ndarray
    modalities: pa.Array | None
    cursor: Cursor


class PairedBlock(NamedTuple):
    """A block of rows with their old and new vectors.

    Attributes
    ----------
    ids : pyarrow.Array, shape (b,)
    old : ndarray of float32, shape (b, dim)
    new : ndarray of float32, shape (b, dim_new)
        Zeros for rows without a new vector.
    has_new : ndarray of bool, shape (b,)
    modalities : pyarrow.Array of large_string, shape (b,), or None
    """

    ids: pa.Array
    old: np.ndarray
    new: np.ndarray
    has_new: np.ndarray
    modalities: pa.Array | None


class Database(ABC):
    """Vectors in a database that is open for a migration; a context manager.

    Subclasses guarantee the following, which ``tests/databases/database_contract.py`` checks for each:

    - The old vectors, the other columns and the ids are not changed before, during or after the switch, until :meth:`drop_old`.
    - :meth:`write` and :meth:`prepare` are idempotent.
    - If the process is killed at any point, :meth:`stage` then reports the true state, and each method can be called again.
    - No message and no attribute contains a password or key; names of tables and columns are always quoted in statements.

    Attributes
    ----------
    kind : str
        Name in :data:`congruence.databases.DATABASES`.
    capabilities : Capabilities
    transient : tuple of exception types
        Types of the client's errors that are worth a retry after a pause.
    """

    kind: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)

    @abstractmethod
    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors. Raises DatabaseError, CorruptFileError."""

    @abstractmethod
    def stage(self) -> Stage:
        """Return the state of the migration, read from the database now."""

    @abstractmethod
    def note(self) -> Mapping[str, str]:
        """Return the note that :meth:`prepare` stored with the new vectors; empty if there is none or it cannot be stored."""

    @abstractmethod
    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows that have a vector, each once, in an order that is stable while no client writes.

        Rows that other clients add or change during the scan may or may not be included. On the new side, only rows that were written are included.
        """

    @abstractmethod
    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist and have a vector, in any order."""

    @abstractmethod
    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have; empty if the database itself prevents repeated ids."""
        return []

    @abstractmethod
    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the column, table, collection or file for the new vectors, next to the old ones.

        Raises
        ------
        MigrationError
            If there are already new vectors with another width, element type or note.
        """

    @abstractmethod
    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store the new vectors of rows; rows that other clients have deleted in the meantime are skipped.

        Parameters
        ----------
        ids : pyarrow.Array, shape (b,)
            Ids from a block of :meth:`scan`.
        vectors : ndarray of float32, shape (b, dim)
            Stored in the type given to :meth:`prepare`; int8 values are whole numbers from -128 to 127, and bits are 1 and -1.
        """

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Return the seconds that it takes to write these vectors to a temporary copy; nothing that readers see is changed.

        Parameters
        ----------
        vectors : ndarray of float32, shape (b, dim)
        element_type : str

        Returns
        -------
        float or None
            None if the database cannot create a temporary table.
        """
        return None

    @abstractmethod
    def delete(self, ids: pa.Array) -> None:
        """Remove the new vectors of rows that other clients have deleted from the old side."""

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        """Return new vectors as they will be read back, up to rounding: some databases store only vectors of unit norm.

        Parameters
        ----------
        vectors : ndarray of float32, shape (b, dim)

        Returns
        -------
        ndarray of float32, shape (b, dim)
        """
        return vectors

    def flush(self) -> None:
        """Make everything written so far durable, so that killing the process loses none of it. Does nothing if :meth:`write` is durable."""
        return

    def build_index(self) -> str | None:
        """Build an index over the new vectors like the one over the old vectors; return a short description, or None if there is none."""
        return None

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query, best first, found by the database's own search.

        Queries have the same form as the vectors in a block of that side: integers for int8, 1 and -1 for bits.

        Raises
        ------
        ParameterError
            If the database cannot search (:attr:`Capabilities.searches`).
        """
        raise ParameterError(
            f"Got a search of {self.kind}, which has no index; expected a database that can search. Read its vectors with scan, and search those."
        )

    @abstractmethod
    def switch(self) -> None:
        """Make readers see the new vectors under the name of the old ones. Does nothing if readers already see them."""

    @abstractmethod
    def rollback(self) -> None:
        """Make readers see the old vectors again, bit for bit; the new ones are kept. Does nothing if readers already see the old ones."""

    @abstractmethod
    def drop_old(self) -> None:
        """Remove the old vectors after the switch. This cannot be undone.

        Raises
        ------
        MigrationError
            If the database is not switched.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove the new vectors before the switch, restoring the original state.

        Raises
        ------
        MigrationError
            If the database is switched.
        """

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors, in a single read if the database stores both in the same row."""
        for block in self.scan("old", batch=batch):
            found = self.fetch(block.ids, "new")
            new = np.zeros((len(block.ids), found.vectors.shape[1]), np.float32)
            rows = rows_of(found.ids, block.ids)
            new[rows] = found.vectors
            has_new = np.zeros(len(block.ids), bool)
            has_new[rows] = True
            yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows were deleted."""
        if self.capabilities.follows_deletes:
            return
        for block in self.scan("new", batch=batch):
            existing = self.fetch(block.ids, "old").ids
            deleted = np.ones(len(block.ids), bool)
            deleted[rows_of(existing, block.ids)] = False
            if deleted.any():
                yield block.ids.filter(pa.array(deleted))

    def reader(self) -> Self:
        """Return an object that can scan in another thread while this one writes: this object if the client allows it, otherwise a new connection."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Release connections and files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows_of(ids: pa.Array, among: pa.Array) -> np.ndarray:
    """Return the position of each id in ``among``, which must contain all of them.

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
    positions = pc.index_in(ids.cast(among.type), value_set=among)
    return np.asarray(positions.to_numpy(zero_copy_only=False), np.int64)


def owned(ids: pa.Array) -> pa.Array:
    """Return a copy of the ids that keeps nothing else in memory; a column from a client would keep its whole batch in memory, vectors included.

    Parameters
    ----------
    ids : pyarrow.Array, shape (b,)

    Returns
    -------
    pyarrow.Array, shape (b,)
    """
    return ids.take(pa.array(np.arange(len(ids))))
