"""Chroma, as a folder or a server: new vectors are written to a second collection, and the switch renames both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_choice
from congruence.databases._address import Address
from congruence.databases._base import (
    BATCH,
    Block,
    Capabilities,
    Cursor,
    Database,
    DatabaseInfo,
    PairedBlock,
    Side,
    Stage,
    rows_of,
)
from congruence.databases._chroma_client import (
    Place,
    connect,
    describe_index,
    folder_of,
    mark_of,
    only_table,
    parse_where,
    settings_of,
)
from congruence.databases._chroma_records import SAMPLE, Records
from congruence.databases._metadata import space_in
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import (
    DatabaseError,
    MigrationError,
    ParameterError,
)

if TYPE_CHECKING:
    from congruence.databases._client_types import Collection

__all__ = ["Chroma", "ChromaFolder", "open_chroma"]

_DISTANCES = {"cosine": "cosine", "ip": "dot", "l2": "l2"}


class Chroma(Database):
    """The vectors of a Chroma collection.

    The new vectors are in a new collection, ``<collection>__congruence_new``, with the same configuration and copies of documents, metadata
    and URIs. :meth:`switch` renames the old collection to ``…__congruence_old`` and then the new one to the old name. Between the two steps,
    readers find no collection of that name. If the process is killed there, :meth:`stage` recognizes the state by the names, and the next
    :meth:`switch` or :meth:`rollback` completes it. After the switch, readers must look up the collection by name again: an existing collection
    object still refers to the old one.

    Parameters
    ----------
    address : Address
        ``chroma:///path`` or ``chroma://./folder``; ``chroma+http://host:8000`` or ``chroma+https://…``, with ``?tenant=…&database=…`` if
        they are not the defaults. The server's token is read from the environment variable ``CHROMA_API_KEY``.
    table : str, optional
        Name of the collection; may be omitted if there is only one.
    column, ids : None
        Not supported: a Chroma record has exactly one embedding and one id, a string.
    modality_column : str, optional
        Metadata key.
    rows : str, optional
        A Chroma ``where`` filter as JSON, e.g. ``{"kind": "image"}``.

    Raises
    ------
    ParameterError, DatabaseError, DatabaseUnavailableError, FileError, MissingExtraError
        If a parameter has an invalid value; the database rejects the request; the database does not answer; a file cannot be read; or an
        optional dependency is not installed.

    Notes
    -----
    Chroma cannot continue a scan after a given id, so the ids of all rows are read at once and sorted, which needs a few hundred bytes of
    memory per row.
    """

    kind = "chroma"
    capabilities: ClassVar[Capabilities] = Capabilities(
        container="collection",
        atomic_switch=False,
        concurrent_writes=True,
        follows_deletes=False,
        searches=True,
        filters="a Chroma where filter as JSON",
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
        for name, value in (("column", column), ("ids", ids)):
            if value is not None:
                raise ParameterError(
                    f"Got {name}={value!r}; expected none, since a Chroma record has exactly one embedding and one id. Leave {name} out."
                )
        self._connection = connect(address)
        where = None if rows is None else parse_where(rows)
        self._table = only_table(self._connection.names(), self._connection.address) if table is None else table
        self._records = Records(self._connection, where, modality_column)
        place = self._place()
        if where is not None:
            self._connection.call(place.old.get, where=where, limit=1, include=[])
        if modality_column is not None and modality_column not in (fields := self._records.fields(place.old)):
            raise ParameterError(
                f"Got modality_column={modality_column!r}, which none of the first {SAMPLE:,} rows of {self._table!r} has; "
                f"expected a metadata key, one of {', '.join(map(repr, fields)) or 'none'}. Pass another modality_column=…."
            )

    # ---- collections -------------------------------------------------------------------------------------------------

    def _name(self, role: str) -> str:
        return f"{self._table}__congruence_{role}"

    def _place(self) -> Place:
        current = self._connection.get(self._table)
        named_old, named_new, named_back = (self._connection.get(self._name(role)) for role in ("old", "new", "back"))
        old = current if named_old is None else named_old
        if old is None:
            names = ", ".join(map(repr, self._connection.names()[:20])) or "none"
            raise ParameterError(
                f"Got no collection {self._table!r} in {self._connection.address.shown}; expected one of {names}. Pass the name of one (table=…)."
            )
        place = Place(old, current, named_old, named_new, named_back)
        if place.new is not None and not mark_of(place.new):
            raise DatabaseError(
                f"Got collections {self._table!r} and {self._table}__congruence_…, which were not created by a migration; expected these names to be free. "
                "Rename or delete the other collection."
            )
        return place

    def _new(self, place: Place) -> Collection:
        """Return the collection of the new vectors. Raises MigrationError if there is none."""
        if place.new is None:
            raise no_new_vectors(repr(self._table))
        return place.new

    def _refuse_switched(self, place: Place) -> None:
        """Raise MigrationError if readers already see the new vectors."""
        if place.switched:
            raise already_switched(repr(self._table))

    def _side(self, side: Side) -> Collection | None:
        place = self._place()
        return place.old if side == "old" else place.new

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors."""
        old = self._place().old
        first = self._connection.call(old.get, limit=1, include=["embeddings"])["embeddings"]
        space, index = describe_index(old)
        folder = folder_of(self._connection.address)
        return DatabaseInfo(
            place=f"{self._connection.address.shown} {self._table}",
            rows=self._records.count(old),
            dim=int(np.shape(first)[1]) if len(first) else 0,
            distance=_DISTANCES.get(space),
            index=index,
            id_type="text",
            columns=self._records.fields(old),
            space=space_in(old.metadata, self._table),
            free_bytes=None if folder is None else shutil.disk_usage(folder).free,
        )

    def stage(self) -> Stage:
        """Return the state of the migration, according to the names of the collections."""
        place = self._place()
        return Stage.SWITCHED if place.switched else Stage.UNTOUCHED if place.new is None else Stage.PREPARED

    def note(self) -> Mapping[str, str]:
        """Return the note in the new collection's metadata."""
        new = self._place().new
        return {} if new is None else dict(mark_of(new)["note"])

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows in the order of their ids."""
        collection = self._side(side)
        if collection is None:
            return
        ids = self._records.ids(collection)
        if after is not None:
            ids = [name for name in ids if name > str(after)]
        for start in range(0, len(ids), batch):
            block = self._records.block(
                self._records.get(collection, ids[start : start + batch], self._records.include)
            )
            if len(block.ids):
                yield block

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist."""
        collection = self._side(side)
        wanted = [] if collection is None else ids.to_pylist()
        return self._records.block(self._records.get(collection, wanted, self._records.include))

    def count(self, side: Side = "old") -> int:
        """Return how many rows there are."""
        collection = self._side(side)
        return 0 if collection is None else self._records.count(collection)

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors; rows whose document, metadata or URI has changed count as rows without."""
        place, everything = self._place(), ["embeddings", "metadatas", "documents", "uris"]
        ids = self._records.ids(place.old)
        width = 0 if place.new is None else int(mark_of(place.new)["dim"])
        for start in range(0, len(ids), batch):
            originals = self._records.get(place.old, ids[start : start + batch], everything)
            block = self._records.block(originals)
            copies = self._records.get(place.new, originals["ids"], everything)
            mapped = self._records.block(copies)
            new = np.zeros((len(block.ids), width), np.float32)
            has_new = np.zeros(len(block.ids), bool)
            for j, k in enumerate(rows_of(mapped.ids, block.ids).tolist()):
                new[k] = mapped.vectors[j]
                has_new[k] = all(originals[key][k] == copies[key][j] for key in everything[1:])
            if len(block.ids):
                yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query, best first."""
        place = self._place()
        collection = place.old if side == "old" else self._new(place)
        found = self._connection.call(
            collection.query, query_embeddings=queries, n_results=k, where=self._records.where, include=[]
        )
        return [pa.array(ids, pa.large_string()) for ids in found["ids"]]

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the new collection."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        place = self._place()
        self._refuse_switched(place)
        mark = {"dim": dim, "note": dict(note or {})}
        if place.new is None:
            settings = settings_of(place.old, mark)
            self._connection.call(
                self._connection.client.create_collection, self._name("new"), embedding_function=None, **settings
            )
        elif (existing := mark_of(place.new)) != mark:
            raise MigrationError(
                f"Got new vectors of width {existing.get('dim')} for {self._table!r}, made with other settings or another map; "
                f"expected width {dim} with this map and these settings. Discard them first."
            )

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store the new vectors of rows, with a copy of their current document, metadata and URI; after the switch, only the vectors."""
        place, fields = self._place(), ["metadatas", "documents", "uris"]
        new, most = self._new(place), self._connection.max_records
        row = {name: k for k, name in enumerate(ids.to_pylist())}
        if place.switched:  # readers and writers use the new collection by now, so its other fields are current
            existing = self._records.get(new, list(row), [])["ids"]
            for start in range(0, len(existing), most):
                part = existing[start : start + most]
                self._connection.call(new.update, ids=part, embeddings=vectors[[row[name] for name in part]])
            return
        found = self._records.get(place.old, list(row), fields)
        # Delete and add, since an upsert would merge the metadata with the existing one. If the process is killed in between, the next pass
        # writes the missing rows.
        self._records.remove(new, self._records.get(new, found["ids"], [])["ids"])
        for start in range(0, len(found["ids"]), most):
            records = {key: values[start : start + most] for key, values in found.items()}
            others = {key: records[key] for key in fields if any(value is not None for value in records[key])}
            embeddings = vectors[[row[name] for name in records["ids"]]]
            self._connection.call(new.add, ids=records["ids"], embeddings=embeddings, **others)

    def delete(self, ids: pa.Array) -> None:
        """Remove records from the new collection."""
        place = self._place()
        new = self._new(place)
        self._refuse_switched(place)
        self._records.remove(new, ids.to_pylist())

    # ---- switch and rollback -----------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Rename the old collection, then the new one; complete an interrupted switch. Raises MigrationError if rows are missing."""
        place = self._place()
        if place.switched and place.current is not None:
            return
        new = self._new(place)
        if place.named_old is None:
            rows, expected = int(self._connection.call(new.count)), int(self._connection.call(place.old.count))
            if rows < expected:
                raise MigrationError(
                    f"Got {rows:,} of {expected:,} rows with a new vector in {self._table!r}; expected all, since readers would lose the others. "
                    "Stop all writers, migrate the missing rows, then switch."
                )
            if place.named_new is None:  # a rollback was interrupted before its last step
                self._connection.call(new.modify, name=self._name("new"))
            self._connection.call(place.old.modify, name=self._name("old"))
        self._connection.call(new.modify, name=self._table)

    def rollback(self) -> None:
        """Rename the new collection, then the old one; complete an interrupted rollback or switch."""
        place = self._place()
        if place.named_old is not None:
            if place.current is not None:
                self._connection.call(place.current.modify, name=self._name("back"))
            self._connection.call(place.named_old.modify, name=self._table)
            place = self._place()
        if place.named_back is not None:
            self._connection.call(place.named_back.modify, name=self._name("new"))

    def drop_old(self) -> None:
        """Delete the old collection."""
        place = self._place()
        if not place.switched or place.current is None:
            raise not_switched(repr(self._table))
        self._connection.call(self._connection.client.delete_collection, self._name("old"))

    def discard(self) -> None:
        """Delete the new collection."""
        place = self._place()
        if place.new is None:
            return
        self._refuse_switched(place)
        self.rollback()  # completes an interrupted switch or rollback
        self._connection.call(self._connection.client.delete_collection, self._name("new"))

    def close(self) -> None:
        """Do nothing: the clients of a process share a folder and cannot be closed individually."""


class ChromaFolder(Chroma):
    """A folder of the Chroma client: ``chroma:///path`` or ``chroma://./folder``. Only one process may have it open."""

    capabilities: ClassVar[Capabilities] = replace(Chroma.capabilities, concurrent_writes=False)


def open_chroma(address: Address, **options: str | None) -> Chroma:
    """Open a folder or a server; the parameters are those of :class:`Chroma`."""
    return (Chroma if folder_of(address) is None else ChromaFolder)(address, **options)
