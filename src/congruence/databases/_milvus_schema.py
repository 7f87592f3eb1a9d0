"""The schema of a Milvus collection, and creating a collection with the same schema for other vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from congruence._utils.optional import require
from congruence.databases._metadata import MARK_KEY, SPACE_KEY
from congruence.databases._milvus_client import Connection
from congruence.databases._milvus_place import Place
from congruence.errors import DatabaseError, ParameterError

__all__ = ["Schema", "copy_indexes", "create", "describe_index", "schema_of"]

#: Keys in Milvus's description of an index that are not parameters.
_STATE = ("field_name", "index_name", "index_type", "total_rows", "indexed_rows", "pending_index_rows", "state")


@dataclass(frozen=True)
class Schema:
    """The fields of a collection.

    Attributes
    ----------
    description : mapping
        Milvus's description of the collection.
    key, text_key : str, bool
        Primary key, and whether it is a string.
    column, dim : str, int
        Field of the vectors, and their width.
    fields : tuple of str
        The other fields, except those that Milvus computes from others.
    json_fields : tuple of str
        Other fields of type JSON. The client parses a string in such a field as JSON.
    dynamic : bool
        Whether rows may have further fields.
    """

    description: Mapping[str, Any]
    key: str
    text_key: bool
    column: str
    dim: int
    fields: tuple[str, ...]
    json_fields: tuple[str, ...]
    dynamic: bool

    @property
    def without_vector(self) -> list[str]:
        """Fields to request for a complete row without its vector."""
        return [self.key, *self.fields, *(["$meta"] if self.dynamic else [])]


def schema_of(connection: Connection, collection: str, column: str | None) -> Schema:
    """Read the schema of a collection, and find its field of vectors.

    Raises
    ------
    ParameterError
        If the column does not exist, must be specified, or does not hold float32 vectors.
    DatabaseError
        If the collection cannot be copied row by row.
    """
    description = connection.call("describe_collection", collection)
    fields = description["fields"]
    kinds = {field["name"]: field["type"].name for field in fields}
    computed = {
        name for function in description.get("functions") or () for name in function.get("output_field_names", ())
    }
    key = next(field["name"] for field in fields if field.get("is_primary"))
    dense = [name for name, kind in kinds.items() if kind.endswith("VECTOR") and kind != "SPARSE_FLOAT_VECTOR"]
    if column is None and len(dense) == 1:
        column = dense[0]
    if column not in dense:
        names = ", ".join(map(repr, dense)) or "none"
        raise ParameterError(
            f"Got column={column!r} for {collection!r} with {len(dense)} fields of dense vectors ({names}); expected one of them. "
            "Pass column=…."
        )
    field = next(field for field in fields if field["name"] == column)
    if kinds[column] != "FLOAT_VECTOR":
        raise ParameterError(
            f"Got {column!r} of type {kinds[column]}; expected FLOAT_VECTOR. Migrate a collection that has the vectors as float32."
        )
    partitions = connection.call("list_partitions", collection)
    for unsupported, what, expected, advice in (
        (
            description.get("auto_id") or any(field.get("auto_id") for field in fields),
            "automatic ids",
            "ids set by the application, since Milvus would assign new ids to the copied rows, or their ids to later rows",
            "Copy the collection into one without auto_id",
        ),
        (
            field.get("nullable"),
            f"{column!r} nullable",
            "a vector in every row, since Milvus cannot be asked for rows without one",
            "Copy the collection into one whose vectors are not nullable",
        ),
        (
            column in computed,
            f"{column!r} computed by a function of the collection",
            "vectors that were inserted",
            "Change the model of that function instead",
        ),
        (
            len(partitions) > 1 and not any(field.get("is_partition_key") for field in fields),
            f"{len(partitions)} partitions",
            "one partition or a partition key, since a row does not record its partition",
            "Copy the collection into one with a partition key",
        ),
    ):
        if unsupported:
            raise DatabaseError(f"Got {collection!r} with {what}; expected {expected}. {advice}.")
    others = tuple(name for name in kinds if name not in (key, column) and name not in computed)
    json_fields = tuple(name for name in others if kinds[name] == "JSON")
    dynamic, dim = bool(description.get("enable_dynamic_field")), int(field["params"]["dim"])
    return Schema(description, key, kinds[key] == "VARCHAR", str(column), dim, others, json_fields, dynamic)


def create(connection: Connection, place: Place, schema: Schema, dim: int, note: Mapping[str, str]) -> None:
    """Create the new collection with the old one's fields, functions and properties, except for the width of one vector field."""
    description = dict(schema.description)
    description["fields"] = [
        {**field, "params": {**field["params"], "dim": dim}} if field["name"] == schema.column else field
        for field in description["fields"]
    ]
    properties = description.get("properties") or {}
    kept = {key: value for key, value in properties.items() if key not in (SPACE_KEY, MARK_KEY)}
    mark = {"of": place.old, "column": schema.column, "dim": dim, "note": dict(note)}
    options: dict[str, object] = {"num_shards": description.get("num_shards") or 1}
    if any(field.get("is_partition_key") for field in description["fields"]) and not connection.lite:
        options["num_partitions"] = description.get("num_partitions")
    if connection.file is not None:
        remnant = connection.file / "collections" / place.new_name
        if remnant.is_dir() and not (remnant / "schema.json").exists():  # left by a kill; the client would fail on it
            shutil.rmtree(remnant)
    connection.call(
        "create_collection",
        place.new_name,
        schema=require("pymilvus", extra="milvus").CollectionSchema.construct_from_dict(description),
        properties={**kept, MARK_KEY: json.dumps(mark)},
        consistency_level=description.get("consistency_level", "Bounded"),
        **options,
    )


def _indexes(connection: Connection, collection: str) -> dict[str, dict[str, Any]]:
    """Return the description of each field's index, by field."""
    names = connection.call("list_indexes", collection)
    indexes = [connection.call("describe_index", collection, name) for name in names]
    return {index["field_name"]: index for index in indexes if index}


def _params(index: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in index.items() if key not in _STATE}


def describe_index(connection: Connection, collection: str, column: str) -> tuple[str | None, str | None]:
    """Return the metric and a short description of the index over a field; both None if there is no index."""
    index = _indexes(connection, collection).get(column)
    if index is None:
        return None, None
    params = {key: value for key, value in _params(index).items() if key != "metric_type"}
    nested = params.pop("params", None)
    params |= json.loads(nested) if isinstance(nested, str) else nested or {}
    text = ", ".join(f"{key}={value}" for key, value in sorted(params.items()))
    return index.get("metric_type"), f"{index['index_type']} ({text})" if text else str(index["index_type"])


def copy_indexes(connection: Connection, old: str, new: str) -> None:
    """Index the fields of the new collection like those of the old one, keeping existing indexes, and load the collection."""
    existing = _indexes(connection, new)
    missing = require("pymilvus", extra="milvus").MilvusClient.prepare_index_params()
    for field, index in _indexes(connection, old).items():
        if field not in existing:
            params = {key: value for key, value in _params(index).items() if value not in ("", "NONE")}
            missing.add_index(field, index["index_type"], index["index_name"], params=params)
    if len(missing):
        # Waiting here would take half a second per index; build_index waits for all of them.
        connection.call("create_index", new, missing, sync=False)
    connection.load(new)
