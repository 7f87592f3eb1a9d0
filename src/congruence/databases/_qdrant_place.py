"""Find the old and the new collection in Qdrant, and create the new one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from congruence._utils.optional import require
from congruence.databases._metadata import MARK_KEY, SPACE_KEY
from congruence.databases._qdrant_client import Connection
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

__all__ = ["Place", "copy_payload_indexes", "create", "describe_index", "find_place", "only_table"]

#: Suffix of a new collection; a later migration of that collection writes ``…_new2``, and so on.
_NEW_SUFFIX = re.compile(r"__congruence_new(\d*)$")


@dataclass(frozen=True)
class Place:
    """The collections of a migration.

    Attributes
    ----------
    alias : str or None
        Alias that readers use; None if the database was opened by a collection's own name.
    old, new : str
        Names of the old and the new collection.
    exists : bool
        Whether the new collection exists.
    switched : bool
        Whether the alias (any alias, if ``alias`` is None) points to the new collection.
    mark : mapping
        Data that :func:`create` stored in the metadata of the new collection; empty if there is none.
    old_info, new_info : CollectionInfo
        The server's descriptions of both; None if the new collection does not exist.
    """

    alias: str | None
    old: str
    new: str
    exists: bool
    switched: bool
    mark: Mapping[str, Any]
    old_info: CollectionInfo
    new_info: CollectionInfo | None


def find_place(connection: Connection, table: str) -> Place:
    """Find the collections of a migration by the name that readers use.

    Raises
    ------
    ParameterError
        If there is no such collection or alias, or the name is the collection that a migration writes.
    DatabaseError
        If the collection with the reserved name was not created by a migration.
    """
    aliases = _aliases(connection)
    names = {collection.name for collection in connection.call("get_collections").collections}
    target = aliases.get(table, table)
    if target not in names:
        known = ", ".join(map(repr, sorted({*aliases, *names})[:20])) or "none"
        raise ParameterError(
            f"Got no collection or alias {table!r} in {connection.address.shown}; expected one of {known}. Choose one with table=…."
        )
    alias = table if table in aliases else None
    info = connection.call("get_collection", target)
    mark = _mark_of(target, info)
    old = str(mark.get("of"))
    if old in names and old != target:
        if alias is None:
            raise ParameterError(
                f"Got {table!r}, which a migration of {old!r} writes; expected the collection {old!r} or an alias. Pass table={old!r}."
            )
        return Place(alias, old, target, True, True, mark, connection.call("get_collection", old), info)
    new = _new_name(target)
    if new not in names:
        return Place(alias, target, new, False, False, {}, info, None)
    new_info = connection.call("get_collection", new)
    mark = _mark_of(new, new_info)
    if mark.get("of") != target:
        raise DatabaseError(
            f"Got a collection {new!r} that was not created by a migration; expected this name to be free. Rename or delete that collection."
        )
    # If the database was opened by the collection's name, its alias is unknown: any alias that points to the new collection counts.
    switched = alias is None and new in aliases.values()
    return Place(alias, target, new, True, switched, mark, info, new_info)


def only_table(connection: Connection) -> str:
    """Return the only alias, or the only collection without one. Raises ParameterError if there are none or several."""
    aliases = _aliases(connection)
    names: dict[str, str] = {}
    for name in sorted(collection.name for collection in connection.call("get_collections").collections):
        names.setdefault(_NEW_SUFFIX.sub("", name), name)  # of an old collection and its new one, keep the old one
    for target in aliases.values():
        names.pop(_NEW_SUFFIX.sub("", target), None)
    tables = sorted([*aliases, *names.values()])
    if len(tables) != 1:
        shown = ", ".join(map(repr, tables[:20])) or "none"
        raise ParameterError(
            f"Got {connection.address.shown} with {len(tables)} aliases and collections ({shown}); expected exactly one, or the name of one. Pass table=…."
        )
    return str(tables[0])


def _aliases(connection: Connection) -> dict[str, str]:
    """Return the collection of each alias."""
    return {alias.alias_name: alias.collection_name for alias in connection.call("get_aliases").aliases}


def _new_name(name: str) -> str:
    suffix = _NEW_SUFFIX.search(name)
    if suffix is None:
        return f"{name}__congruence_new"
    return f"{name[: suffix.start()]}__congruence_new{int(suffix[1] or 1) + 1}"


def _mark_of(name: str, info: CollectionInfo) -> Mapping[str, object]:
    """Return the data that :func:`create` stored in the metadata of a collection; empty for other collections."""
    mark = (info.config.metadata or {}).get(MARK_KEY) if _NEW_SUFFIX.search(name) else None
    return mark if isinstance(mark, dict) else {}


def create(
    connection: Connection, place: Place, column: str, dim: int, element_type: str, note: Mapping[str, str]
) -> None:
    """Create the new collection, configured like the old one except for the width and the element type of one vector."""
    models = require("qdrant_client.models", extra="qdrant")
    config = place.old_info.config
    params = config.params
    if getattr(params.sharding_method, "value", None) == "custom":
        raise DatabaseError(
            f"Got {place.old!r} with custom sharding; expected automatic sharding, since a point's shard key cannot be read back. "
            "Copy the collection into one without shard keys first."
        )
    datatype = models.Datatype.FLOAT16 if element_type == "float16" else models.Datatype.FLOAT32
    vectors = params.vectors
    if column:
        vectors = {**vectors, column: vectors[column].model_copy(update={"size": dim, "datatype": datatype})}
    elif isinstance(vectors, dict):
        vectors = {**vectors, "": vectors[""].model_copy(update={"size": dim, "datatype": datatype})}
    else:
        vectors = vectors.model_copy(update={"size": dim, "datatype": datatype})
    metadata = {key: value for key, value in (config.metadata or {}).items() if key not in (SPACE_KEY, MARK_KEY)}
    metadata[MARK_KEY] = {"of": place.old, "column": column, "note": dict(note)}
    settings = {
        "sparse_vectors_config": params.sparse_vectors,
        "shard_number": params.shard_number,
        "replication_factor": params.replication_factor,
        "write_consistency_factor": params.write_consistency_factor,
        "on_disk_payload": params.on_disk_payload,
        "payload": getattr(params, "payload", None),
        "id_tracker": getattr(params, "id_tracker", None),
        "hnsw_config": _copied(models.HnswConfigDiff, config.hnsw_config),
        "optimizers_config": _copied(models.OptimizersConfigDiff, config.optimizer_config),
        "wal_config": _copied(models.WalConfigDiff, config.wal_config),
        "quantization_config": config.quantization_config,
        "strict_mode_config": _copied(models.StrictModeConfig, getattr(config, "strict_mode_config", None)),
    }
    connection.call(
        "create_collection",
        place.new,
        vectors_config=vectors,
        metadata=metadata,
        **{key: value for key, value in settings.items() if value is not None},
    )
    if not _mark_of(place.new, connection.call("get_collection", place.new)):
        connection.call("delete_collection", place.new)
        raise DatabaseError(
            f"Got {connection.address.shown}, which keeps no metadata of a collection; expected Qdrant 1.16 or newer. Update the server."
        )


def _copied(model: Any, value: Any) -> Any:
    """Convert a part of a collection's description to the model that its creation accepts, which lacks some of the fields."""
    if value is None:
        return None
    fields = value.model_dump(exclude_none=True)
    return model(**{key: field for key, field in fields.items() if key in model.model_fields})


def copy_payload_indexes(connection: Connection, place: Place) -> None:
    """Index the payload of the new collection like that of the old one, keeping existing indexes."""
    indexed = place.old_info.payload_schema
    existing: Iterable[str] = connection.call("get_collection", place.new).payload_schema if indexed else ()
    for field, index in indexed.items():
        if field not in existing:
            kind = index.data_type if index.params is None else index.params
            connection.call("create_payload_index", place.new, field_name=field, field_schema=kind, wait=True)


def describe_index(config: Any, params: Any) -> str:
    """Return a short description of the index over a vector, and of its quantization."""
    own, general = params.hnsw_config, config.hnsw_config
    m = general.m if own is None or own.m is None else own.m
    ef = general.ef_construct if own is None or own.ef_construct is None else own.ef_construct
    description = f"HNSW (m={m}, ef_construct={ef})" if m else "no graph"
    quantization = params.quantization_config or config.quantization_config
    if quantization is not None:
        description += f", {next(iter(quantization.model_dump(exclude_none=True)))} quantization"
    return description
