"""Milvus, as a Milvus Lite file or a server: new vectors are written to a second collection; the switch moves an alias or renames both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

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
)
from congruence.databases._metadata import MARK_KEY, space_in
from congruence.databases._milvus_client import connect, file_of
from congruence.databases._milvus_place import (
    Place,
    find_place,
    only_table,
    refuse_readers,
    switch_names,
    switch_names_back,
)
from congruence.databases._milvus_rows import Rows, same_fields
from congruence.databases._milvus_schema import copy_indexes, create, describe_index, schema_of
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError

__all__ = ["Milvus", "MilvusLite", "open_milvus"]

#: Number of rows read to find the names of dynamic fields.
_SAMPLE = 1000

#: Maximum time to build an index, and interval between checks of its status, in seconds.
_INDEX_SECONDS, _LOOK_SECONDS = 3600.0, 0.5

_DISTANCES = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}


class Milvus(Database):
    """The vectors of a Milvus collection.

    The new vectors are in a new collection, ``<collection>__congruence_new``, with the same fields, indexes and properties, and copies of all
    other fields, including dynamic ones. If readers use an alias, :meth:`switch` moves it atomically. If they use the collection's own
    name, it renames the old collection to ``…__congruence_old`` and then the new one to that name. Between the two steps, readers find no
    collection. If the process is killed there, :meth:`stage` recognizes the state by the names, and the next :meth:`switch` or
    :meth:`rollback` completes it.

    Parameters
    ----------
    address : Address
        ``milvus:///path/file.db`` or ``milvus://file.db``; ``milvus+http://host:19530`` or ``milvus+https://…``, with ``?database=…`` if it is
        not the default. The server's token is read from the environment variable ``MILVUS_TOKEN``.
    table : str, optional
        Alias that the application uses, or name of a collection; may be omitted if there is only one.
    column : str, optional
        Field of the vectors, if there are several.
    ids : str, optional
        Name of the primary key, the only field that is possible.
    modality_column : str, optional
        Scalar or dynamic field.
    rows : str, optional
        A Milvus filter expression, e.g. ``kind == "image"``; it is trusted. Until all rows are migrated, :meth:`switch` raises
        MigrationError, since readers would lose the other rows.

    Raises
    ------
    ParameterError, DatabaseError, DatabaseUnavailableError, FileError, CorruptFileError, MissingExtraError
        If a parameter has an invalid value; the database rejects the request; the database does not answer; a file cannot be read; a file
        is damaged; or an optional dependency is not installed.

    Notes
    -----
    Collections with automatic ids, with partitions but no partition key, or with nullable vectors are not supported. A collection that is not
    loaded is loaded, because Milvus can only read loaded ones. After the switch, :meth:`write` keeps the current other fields of the new rows
    and skips rows that were deleted from the new collection.
    """

    kind = "milvus"
    capabilities: ClassVar[Capabilities] = Capabilities(
        container="collection",
        atomic_switch=False,
        concurrent_writes=True,
        follows_deletes=False,
        searches=True,
        filters="a Milvus filter expression",
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
        if rows is not None and not rows.strip():
            raise ParameterError(
                f'Got rows={rows!r}; expected a filter expression such as kind == "image". Pass such an expression, or leave rows out.'
            )
        self._connection = connect(address)
        try:
            self._table = only_table(self._connection) if table is None else table
            place = find_place(self._connection, self._table)
            schema = schema_of(self._connection, place.old, column)
            if ids is not None and ids != schema.key:
                raise ParameterError(
                    f"Got ids={ids!r}; expected {schema.key!r}, the primary key of {place.old!r}. Leave ids out."
                )
            self._schema = schema
            self._check(place)
            self._rows = Rows(self._connection, schema, rows, modality_column)
            if rows is not None:
                self._rows.query(place.old, rows, [schema.key], limit=1)
            if modality_column is not None and modality_column not in (names := self._fields(place.old)):
                raise ParameterError(
                    f"Got modality_column={modality_column!r}, which is not a field of {self._table!r}; expected one of "
                    f"{', '.join(map(repr, names)) or 'none'}. Pass another modality_column=…."
                )
        except BaseException:
            self.close()
            raise

    # ---- collections -------------------------------------------------------------------------------------------------

    def _place(self) -> Place:
        place = find_place(self._connection, self._table)
        self._check(place)
        return place

    def _check(self, place: Place) -> None:
        other = place.mark.get("column", self._schema.column)
        if other != self._schema.column:
            raise MigrationError(
                f"Got column={self._schema.column!r} while a migration of column {other!r} is in progress; expected one migration of a collection at a time. "
                f"Finish or discard that migration first (column={other!r})."
            )

    def _place_with_new(self) -> tuple[Place, str]:
        """Return all collections, and the one of the new vectors. Raises MigrationError if there are no new vectors."""
        place = self._place()
        if place.new is None:
            raise no_new_vectors(repr(self._table))
        return place, place.new

    def _refuse_switched(self, place: Place) -> None:
        """Raise MigrationError if readers already see the new vectors."""
        if place.switched:
            raise already_switched(repr(self._table))

    def _side(self, side: Side) -> tuple[str | None, int]:
        """Return the collection of a side, or None if it does not exist, and the width of its vectors."""
        place = self._place()
        return (place.old, self._schema.dim) if side == "old" else (place.new, int(place.mark.get("dim", 0)))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors."""
        place, file = self._place(), self._connection.file
        metric, index = describe_index(self._connection, place.old, self._schema.column)
        description = self._connection.call("describe_collection", place.old)
        # The name must be the same before and after the switch.
        name = f"{place.old} (read as {self._table})" if place.alias else self._table
        return DatabaseInfo(
            place=f"{self._connection.address.shown} {name}",
            rows=self._rows.count(place.old, self._rows.rows),
            dim=self._schema.dim,
            distance=_DISTANCES.get(str(metric)),
            index=index,
            id_type="text" if self._schema.text_key else "int",
            columns=self._fields(place.old),
            space=space_in(description.get("properties"), place.old),
            free_bytes=None if file is None else shutil.disk_usage(file).free,
        )

    def _fields(self, collection: str) -> tuple[str, ...]:
        """Return the names of the other fields, including dynamic fields found in some rows."""
        if not self._schema.dynamic:
            return self._schema.fields
        rows = self._rows.query(collection, "", ["$meta"], limit=_SAMPLE)
        return (*self._schema.fields, *dict.fromkeys(key for row in rows for key in row if key != self._schema.key))

    def stage(self) -> Stage:
        """Return the state of the migration, according to the names of the collections."""
        place = self._place()
        return Stage.SWITCHED if place.switched else Stage.UNTOUCHED if place.new is None else Stage.PREPARED

    def note(self) -> Mapping[str, str]:
        """Return the note in the new collection's properties."""
        return dict(self._place().mark.get("note") or {})

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows in the order of their ids."""
        collection, width = self._side(side)
        if collection is not None:
            for page in self._rows.pages(collection, self._rows.block_fields, after=after, batch=batch):
                yield self._rows.block(page, width)

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist."""
        collection, width = self._side(side)
        found = [] if collection is None else self._rows.get(collection, ids.to_pylist(), self._rows.block_fields)
        return self._rows.block(found, width)

    def count(self, side: Side = "old") -> int:
        """Return how many rows there are."""
        collection, _ = self._side(side)
        return 0 if collection is None else self._rows.count(collection, self._rows.rows)

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors; rows whose other fields have changed count as rows without."""
        place, rows, schema = self._place(), self._rows, self._schema
        width, everything = int(place.mark.get("dim", 0)), [*schema.without_vector, schema.column]
        for page in rows.pages(place.old, everything, batch=batch):
            block = rows.block(page, schema.dim)
            ids = [row[schema.key] for row in page]
            new_rows = [] if place.new is None else rows.get(place.new, ids, everything)
            copies = {row[schema.key]: row for row in new_rows}
            new = np.zeros((len(page), width), np.float32)
            has_new = np.zeros(len(page), bool)
            for k, row in enumerate(page):
                copy = copies.get(row[schema.key])
                if copy is not None:
                    row.pop(schema.column)
                    new[k] = copy.pop(schema.column)
                    has_new[k] = same_fields(row, copy)
            yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query."""
        return self._rows.search(self._place().old if side == "old" else self._place_with_new()[1], queries, k)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the new collection and its indexes, and load it."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        place = self._place()
        self._refuse_switched(place)
        if place.new is None:
            create(self._connection, place, self._schema, dim, note or {})
        elif (place.mark.get("dim"), place.mark.get("note")) != (dim, dict(note or {})):
            raise MigrationError(
                f"Got new vectors of width {place.mark.get('dim')} for {self._table!r}, made with other settings or another map; "
                f"expected width {dim} with this map and these settings. Discard them first."
            )
        copy_indexes(self._connection, place.old, place.new or place.new_name)

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store the new vectors of rows, with a copy of the current other fields from the collection that readers see."""
        place, new = self._place_with_new()
        position = {id_: k for k, id_ in enumerate(ids.to_pylist())}
        source = new if place.switched else place.old
        rows = self._rows.get(source, list(position), self._schema.without_vector)
        self._rows.store(new, rows, vectors[[position[row[self._schema.key]] for row in rows]])

    def delete(self, ids: pa.Array) -> None:
        """Remove rows from the new collection."""
        place, new = self._place_with_new()
        self._refuse_switched(place)
        self._rows.delete(new, ids.to_pylist())

    def build_index(self) -> str | None:
        """Create the indexes of the old collection, and wait until the new vectors are indexed."""
        place, new = self._place_with_new()
        self._connection.call("flush", new)
        copy_indexes(self._connection, place.old, new)
        description = describe_index(self._connection, new, self._schema.column)[1]
        until = time.monotonic() + _INDEX_SECONDS
        while description and (pending := self._pending(new)):
            if time.monotonic() > until:
                raise DatabaseUnavailableError(
                    f"Got {pending:,} rows of {new!r} not indexed after {_INDEX_SECONDS / 60:g} minutes; expected none. "
                    "Wait until Milvus has indexed them, then run this step again."
                )
            time.sleep(_LOOK_SECONDS)
        return description

    def _pending(self, collection: str) -> int:
        """Return the number of rows that are not indexed yet. Raises DatabaseError if the build of the index failed."""
        pending = 0
        for name in self._connection.call("list_indexes", collection, field_name=self._schema.column):
            description = self._connection.call("describe_index", collection, name)
            if description.get("state") == "Failed":
                raise DatabaseError(
                    f"Got a failed build of the index of {collection!r} ({description.get('index_state_fail_reason')}); expected it to succeed. See Milvus's log."
                )
            pending += int(description.get("pending_index_rows") or 0)
        return pending

    # ---- switch and rollback -----------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Make readers see the new collection; complete an interrupted switch. Raises MigrationError if rows are missing."""
        place, new = self._place_with_new()
        if place.switched and not place.interrupted:
            return
        if not place.interrupted:
            rows, expected = self._rows.count(new), self._rows.count(place.old)
            if rows < expected:
                raise MigrationError(
                    f"Got {rows:,} of {expected:,} rows with a new vector in {self._table!r}; expected all, since readers would lose the others. "
                    "Stop all writers, migrate the missing rows, then switch."
                )
            self._connection.load(new)
        switch_names(self._connection, place)
        self._connection.load(self._table)  # Milvus Lite drops a collection from memory when it renames it

    def rollback(self) -> None:
        """Make readers see the old collection again; complete an interrupted rollback or switch."""
        place = self._place()
        self._connection.load(place.old)
        switch_names_back(self._connection, place)
        self._connection.load(self._table)

    def drop_old(self) -> None:
        """Delete the old collection. An alias continues to point to the new one, which keeps its name."""
        place = self._place()
        if not place.switched or place.interrupted or place.new is None:
            raise not_switched(repr(self._table))
        refuse_readers(self._connection, place.old)
        self._connection.call("drop_collection", place.old)
        self._connection.call("drop_collection_properties", place.new, [MARK_KEY])
        self._schema = schema_of(self._connection, place.new, self._schema.column)
        self._rows.schema = self._schema

    def discard(self) -> None:
        """Delete the new collection."""
        place = self._place()
        if place.new is None:
            return
        self._refuse_switched(place)
        switch_names_back(self._connection, place)  # completes an interrupted switch or rollback
        refuse_readers(self._connection, place.new_name)
        self._connection.call("drop_collection", place.new_name)

    def close(self) -> None:
        """Close the connection to a server. A Milvus Lite file stays open until the process ends, because all clients of a process share it."""
        self._connection.client.close()


class MilvusLite(Milvus):
    """A file of Milvus Lite: ``milvus:///path/file.db``. Only one process may have it open."""

    capabilities: ClassVar[Capabilities] = replace(Milvus.capabilities, concurrent_writes=False)


def open_milvus(address: Address, **options: str | None) -> Milvus:
    """Open a file or a server; the parameters are those of :class:`Milvus`."""
    return (Milvus if file_of(address) is None else MilvusLite)(address, **options)
