"""Qdrant, as a server or a folder of its client: new vectors are written to a second collection, and the switch moves an alias."""

from __future__ import annotations

import shutil
import time
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
)
from congruence.databases._metadata import MARK_KEY, space_in
from congruence.databases._qdrant_client import connect, folder_of
from congruence.databases._qdrant_place import (
    Place,
    copy_payload_indexes,
    create,
    describe_index,
    find_place,
    only_table,
)
from congruence.databases._qdrant_points import Points, dense_column
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.embeddings import normalize_rows
from congruence.errors import DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

__all__ = ["Qdrant", "QdrantFolder", "open_qdrant"]

#: Maximum time to build an index, and interval between checks of its status, in seconds.
_INDEX_SECONDS, _LOOK_SECONDS = 3600.0, 0.5

_DISTANCES = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}


class Qdrant(Database):
    """The vectors of a Qdrant collection.

    The new vectors are in a new collection, ``<collection>__congruence_new``, configured like the old one (distance, HNSW, quantization,
    storage, shards, payload indexes), with copies of the points' payloads and other vectors. :meth:`switch` moves an alias to it
    atomically; readers that use the collection's own name cannot be switched.

    Parameters
    ----------
    address : Address
        ``http://host:6333``, ``https://…`` or ``qdrant://host:port``. The server's key is read from the environment variable
        ``QDRANT_API_KEY``.
    table : str, optional
        Alias that the application uses, or name of a collection; may be omitted if there is only one.
    column : str, optional
        Name of the vector; ``""`` is the unnamed one.
    ids : None
        A point in Qdrant has one id, a number or a UUID.
    modality_column : str, optional
        Field of the payload; dots separate nested fields.
    rows : str, optional
        A Qdrant filter as JSON, e.g. ``{"must": [{"key": "kind", "match": {"value": "image"}}]}``. Until all rows are migrated,
        :meth:`switch` raises MigrationError, since readers would lose the other rows.

    Raises
    ------
    ParameterError
        If a name does not exist or must be specified, the filter is invalid, or the address contains a key.
    DatabaseError, DatabaseUnavailableError, FileError, CorruptFileError, MissingExtraError
        If the database rejects the request; the database does not answer; a file cannot be read; a file is damaged; or an optional
        dependency is not installed.

    Notes
    -----
    A collection with cosine distance stores vectors of unit norm: old vectors are read as the collection stores them, and new ones are stored with
    unit norm (:meth:`as_stored`). Since Qdrant 1.18, named vectors can be added to an existing collection; this is not used here, because readers
    would have to use another vector name after the switch.
    """

    kind = "qdrant"
    capabilities: ClassVar[Capabilities] = Capabilities(
        container="collection",
        atomic_switch=True,
        concurrent_writes=True,
        follows_deletes=False,
        searches=True,
        filters="a Qdrant filter as JSON",
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
        if ids is not None:
            raise ParameterError(
                f"Got ids={ids!r}; expected none, since a Qdrant point has exactly one id, which is not a payload field. Leave ids out."
            )
        self._connection = connect(address)
        try:
            self._table = only_table(self._connection) if table is None else table
            place = find_place(self._connection, self._table)
            self._column = dense_column(place.old_info, place.old, column)
            self._check(place)
            self._points = Points(self._connection, place, self._column, rows, modality_column)
        except BaseException:
            self.close()
            raise

    def _place(self) -> Place:
        place = find_place(self._connection, self._table)
        self._check(place)
        return place

    def _check(self, place: Place) -> None:
        if place.exists and place.mark.get("column") != self._column:
            other = place.mark.get("column")
            raise MigrationError(
                f"Got column={self._column!r} while a migration of column {other!r} is in progress; expected one migration of a collection at a time. "
                f"Finish or discard that migration first (column={other!r})."
            )

    def _side(self, side: Side) -> tuple[str, CollectionInfo]:
        """Return the name of a side's collection and the server's description of it, or None as the description if it does not exist."""
        place = self._place()
        return (place.old, place.old_info) if side == "old" else (place.new, place.new_info)

    def _place_with_new(self) -> Place:
        """Return the old and the new collection. Raises MigrationError if there are no new vectors."""
        place = self._place()
        if not place.exists:
            raise no_new_vectors(repr(place.old))
        return place

    def _refuse_switched(self, place: Place) -> None:
        """Raise MigrationError if readers already see the new vectors."""
        if place.switched:
            raise already_switched(repr(self._table))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors."""
        place, points = self._place(), self._points
        config, params = place.old_info.config, points.params(place.old_info)
        rows = points.count(place.old, points.having())
        alias = f" (read as {place.alias})" if place.alias else ""
        folder = self._connection.folder
        return DatabaseInfo(
            place=f"{self._connection.address.shown} {place.old}{alias}",
            rows=rows,
            rows_without=points.count(place.old, points.rows) - rows,
            dim=params.size,
            element_type=points.element_type(place.old_info),
            distance=_DISTANCES.get(params.distance.value),
            index=describe_index(config, params),
            id_type=points.id_type,
            columns=points.fields(place),
            space=space_in(config.metadata, place.old),
            free_bytes=None if folder is None else shutil.disk_usage(folder).free,
        )

    def stage(self) -> Stage:
        """Return the state of the migration: whether there is a new collection, and whether the alias points to it."""
        place = self._place()
        return Stage.SWITCHED if place.switched else Stage.PREPARED if place.exists else Stage.UNTOUCHED

    def note(self) -> Mapping[str, str]:
        """Return the note in the new collection's metadata."""
        place = self._place()
        return dict(place.mark.get("note") or {}) if place.exists else {}

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows that have a vector in the order of their ids, numbers before UUIDs."""
        collection, info = self._side(side)
        if info is None:
            return
        points, width = self._points, self._points.params(info).size
        for records in points.pages(collection, points.having(), after=after, batch=batch, **points.block_fields()):
            yield points.block(records, width)

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist and have a vector."""
        collection, info = self._side(side)
        if info is None:
            return self._points.block([], 0)
        records = self._points.retrieve(collection, self._points.point_ids(ids), **self._points.block_fields())
        return self._points.block(
            [record for record in records if self._points.vector(record)], self._points.params(info).size
        )

    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""
        collection, info = self._side(side)
        return 0 if info is None else self._points.count(collection, self._points.having())

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors; rows whose payload or other vectors have changed count as rows without."""
        place, points = self._place(), self._points
        width, everything = points.params(place.old_info).size, {"with_payload": True, "with_vectors": True}
        width_new = points.params(place.new_info).size if place.exists else width
        for records in points.pages(place.old, points.having(), batch=batch, **everything):
            block = points.block(records, width)
            ids = [record.id for record in records] if place.exists else []
            copies = {copy.id: copy for copy in points.retrieve(place.new, ids, **everything)}
            new = np.zeros((len(records), width_new), np.float32)
            has_new = np.zeros(len(records), bool)
            for k, record in enumerate(records):
                copy = copies.get(record.id)
                if copy is not None and points.vector(copy):
                    new[k] = points.vector(copy)
                    has_new[k] = points.same_others(record, copy)
            yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query, best first."""
        return self._points.search(self._place().old if side == "old" else self._place_with_new().new, queries, k)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the new collection."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        place = self._place()
        self._refuse_switched(place)
        if not place.exists:
            create(self._connection, place, self._column, dim, element_type, note or {})
        else:
            info, points = place.new_info, self._points
            existing = (points.params(info).size, points.element_type(info), place.mark.get("note"))
            if existing != (dim, element_type, dict(note or {})):
                raise MigrationError(
                    f"Got new vectors of {existing[0]} × {existing[1]} in {place.new!r}, made with other settings or another map; "
                    f"expected {dim} × {element_type} with this map and these settings. Discard them first."
                )
        copy_payload_indexes(self._connection, place)

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        """Return new vectors as they will be read back, up to rounding: with unit norm if the distance is cosine."""
        if self._points.params(self._place().old_info).distance.value != "Cosine":
            return vectors
        scaled: np.ndarray = normalize_rows(vectors)
        return scaled

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store the new vectors of rows, with a copy of their current payload and other vectors; after the switch, only the vectors."""
        place, points = self._place_with_new(), self._points
        if points.element_type(place.new_info) == "float16":
            vectors = vectors.astype(np.float16).astype(np.float32)  # servers round to float16, folders do not
        row = {id_: k for k, id_ in enumerate(points.point_ids(ids))}
        if place.switched:  # readers and writers use the new collection by now, so its payload is current
            existing = points.retrieve(place.new, row, with_payload=False, with_vectors=False)
            points.replace(place.new, existing, vectors[[row[record.id] for record in existing]])
            return
        others = points.others(place.old_info)
        records = points.retrieve(place.old, row, with_payload=True, with_vectors=others or False)
        points.upsert(place.new, records, vectors[[row[record.id] for record in records]])

    def delete(self, ids: pa.Array) -> None:
        """Remove points from the new collection."""
        place = self._place_with_new()
        self._refuse_switched(place)
        points = [id_ for id_ in self._points.point_ids(ids) if id_ is not None]
        if points:
            selector = self._points.models.PointIdsList(points=points)
            self._connection.call("delete", place.new, points_selector=selector, wait=True)

    def build_index(self) -> str | None:
        """Create the payload indexes of the old collection, and wait until the server has indexed the vectors, which it does by itself."""
        place = self._place_with_new()
        copy_payload_indexes(self._connection, place)
        until = time.monotonic() + _INDEX_SECONDS
        while (info := self._connection.call("get_collection", place.new)).status.value == "yellow":
            if time.monotonic() > until:
                raise DatabaseUnavailableError(
                    f"Got {place.new!r} still indexing after {_INDEX_SECONDS / 60:g} minutes; expected its status to turn green. "
                    "Wait until it is green, then run this step again."
                )
            time.sleep(_LOOK_SECONDS)
        if info.status.value == "red":
            raise DatabaseError(
                f"Got {place.new!r} in status red ({info.optimizer_status}); expected green. See the server's log."
            )
        return describe_index(info.config, self._points.params(info))

    # ---- switch and rollback -----------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Copy the points without a vector unchanged, then move the alias to the new collection atomically.

        Raises
        ------
        MigrationError
            If readers do not use an alias, or the new collection has fewer rows than the old one.
        """
        place, points = self._place_with_new(), self._points
        if place.switched:
            return
        alias, lacking = self._alias_of(place), points.lacking()
        stale = points.models.FilterSelector(filter=lacking)
        self._connection.call("delete", place.new, points_selector=stale, wait=True)
        others = points.others(place.old_info)
        for records in points.pages(place.old, lacking, with_payload=True, with_vectors=others or False):
            points.upsert(place.new, records, None)
        having = points.having(all_rows=True)
        rows, expected = points.count(place.new, having), points.count(place.old, having)
        if rows < expected:
            raise MigrationError(
                f"Got {rows:,} of {expected:,} rows with a new vector in {place.new!r}; expected all, since readers would lose the others. "
                "Stop all writers, migrate the missing rows, then switch."
            )
        copy_payload_indexes(self._connection, place)
        self._move_alias(alias, place.new)

    def _alias_of(self, place: Place) -> str:
        if place.alias is None:
            raise MigrationError(
                f"Got {self._table!r}, which readers address by its own name; expected an alias, since Qdrant can switch only aliases atomically. "
                f"Create an alias of {self._table!r} (update_collection_aliases), let the application read through it, and pass table=ALIAS."
            )
        return place.alias

    def _move_alias(self, alias: str, collection: str) -> None:
        models = self._points.models
        operations = [
            models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)),
            models.CreateAliasOperation(create_alias=models.CreateAlias(alias_name=alias, collection_name=collection)),
        ]
        self._connection.call("update_collection_aliases", change_aliases_operations=operations)

    def rollback(self) -> None:
        """Move the alias back to the old collection, atomically."""
        place = self._place()
        if place.switched:
            self._move_alias(self._alias_of(place), place.old)

    def drop_old(self) -> None:
        """Delete the old collection. The alias continues to point to the new one, which keeps its name."""
        place = self._place()
        if not place.switched:
            raise not_switched(repr(self._table))
        self._alias_of(place)
        self._refuse_readers(place.old)
        self._connection.call("delete_collection", place.old)
        self._connection.call("update_collection", place.new, metadata={MARK_KEY: {}})

    def discard(self) -> None:
        """Delete the new collection."""
        place = self._place()
        self._refuse_switched(place)
        if place.exists:
            self._refuse_readers(place.new)
            self._connection.call("delete_collection", place.new)

    def _refuse_readers(self, collection: str) -> None:
        """Raise MigrationError if an alias points to a collection that is to be deleted; the server would delete the alias with it."""
        aliases = [alias.alias_name for alias in self._connection.call("get_collection_aliases", collection).aliases]
        if aliases:
            raise MigrationError(
                f"Got the alias {aliases[0]!r} on {collection!r}, which is to be deleted; expected no alias on it. Move or delete that alias first."
            )

    def close(self) -> None:
        """Close the connection, or release the folder's lock."""
        self._connection.close()


class QdrantFolder(Qdrant):
    """A folder of the Qdrant client (local mode): ``qdrant:///path`` or ``qdrant://./folder``.

    The client reads the whole folder into memory and unpickles its content: open only folders that you trust. Local mode has no index, and only
    one client at a time can open a folder.
    """

    capabilities: ClassVar[Capabilities] = replace(Qdrant.capabilities, concurrent_writes=False)


def open_qdrant(address: Address, **options: str | None) -> Qdrant:
    """Open a server or a folder (local mode); the parameters are those of :class:`Qdrant`."""
    return (Qdrant if folder_of(address) is None else QdrantFolder)(address, **options)
