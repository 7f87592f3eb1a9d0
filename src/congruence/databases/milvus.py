"""Milvus, a file or a server: new vectors are in a second collection; the switch moves an alias or renames both."""

from __future__ import annotations

import bisect
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import MARK_KEY, Address, Block, Capabilities, Cursor, DatabaseInfo, Name, NewVectors
from congruence.databases._collections import CollectionDatabase, Collections
from congruence.errors import CongruenceError, DatabaseError, DatabaseUnavailableError, FileError, ParameterError

#: Environment variable with the server's token, which is not allowed in an address.
TOKEN = "MILVUS_TOKEN"  # the variable's name, not a secret

#: Timeouts in seconds: of most requests, and of those that load, index or flush a collection.
_TIMEOUT, _LONG_TIMEOUT = 60.0, 3600.0
_LONG = ("load_collection", "create_index", "flush")

#: Maximum number of ids per response (a server returns no more), of rows per write, and of bytes of vectors per
#: request.
_IDS, _ROWS, _BYTES = 16_384, 1000, 16 * 2**20

_SAMPLE = 1000  # number of rows read to find the names of dynamic fields

_DISTANCES = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})

_BUSY = re.compile(r"rate limit|not ready|unavailable|deadline|timeout|too many requests", re.IGNORECASE)

#: Keys in Milvus's description of an index that are not parameters.
_STATE = ("field_name", "index_name", "index_type", "total_rows", "indexed_rows", "pending_index_rows", "state")

#: Logs of the client with a traceback of each error that it also raises.
_LOGS = ("pymilvus.decorators", "pymilvus.client.connection_manager", "milvus_lite.server_manager")

RowId = int | str


@dataclass(frozen=True)
class MilvusSchema:
    """The fields of a collection, with Milvus's description of it."""

    description: Mapping[str, Any]
    key: str
    text_key: bool
    column: str
    dim: int
    fields: tuple[str, ...]  # the other fields, except those that Milvus computes from others
    json_fields: tuple[str, ...]  # those of type JSON, in which the client parses a string as JSON
    dynamic: bool  # whether rows may have further fields
    without_vector: list[str]  # fields to request for a complete row without its vector


class Milvus(CollectionDatabase):
    """The vectors of a Milvus collection, in a file of Milvus Lite or on a server.

    All other fields are copied. If readers use an alias, ``switch`` moves it; if not, it renames both collections.

    The address is ``milvus:///path/file.db``, which only one process may have open, or ``milvus+http://host:19530``,
    with ``?database=…`` if need be and the token in the environment variable ``MILVUS_TOKEN``. ``rows`` is a trusted
    filter expression, such as ``kind == "image"``. A collection that is not loaded is loaded, because Milvus reads no
    others.
    """

    kind = "milvus"
    capabilities = Capabilities(container="collection", atomic_switch=False, filters="a Milvus filter expression")

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        if rows is not None and not rows.strip():
            raise ParameterError(
                argument="rows", got=rows, expected="a filter expression", fix='Pass `rows=…` such as kind == "image".'
            )
        self._address, self._token = base.with_key(address, TOKEN)
        self._folder = base.folder_in(address) if address.scheme == "milvus" else None  # of Milvus Lite
        if self._folder is not None:
            self.capabilities = replace(self.capabilities, concurrent_writes=False)
        self._client = self._open_client()
        self._lite = str(self._ask("get_server_version")).startswith("milvus_lite")
        self._table = self._find_table(table)
        place = self._find()
        self.capabilities = replace(self.capabilities, atomic_switch=place.alias)
        self._schema = self._schema_of(place.old, column)
        refusals.check_name(ids, [self._schema.key], f"the primary key of {place.old!r}", "ids")
        self._column = self._schema.column
        self._id_type = pa.large_string() if self._schema.text_key else pa.int64()
        self._rows, self._modality = rows, modality
        if rows is not None:
            self._query(place.old, rows, [self._schema.key], limit=1)
        if modality is not None:
            refusals.check_name(modality, self._fields(place.old), self._table, "modality_column")

    def _open_client(self) -> Any:
        file = self._folder
        if file is not None:
            self._check_file(file)
        pymilvus = require("pymilvus", extra="milvus")
        if file is not None:
            require("milvus_lite", extra="milvus")
            options: dict[str, object] = {"uri": str(file)}
        else:
            parts = urlsplit(self._address.text)
            scheme = "https" if self._address.scheme.endswith("https") else "http"
            database = parse_qs(parts.query).get("database", [""])[0]
            options = {
                "uri": f"{scheme}://{parts.netloc}",
                "token": self._token or "",
                "db_name": database,
                "timeout": _TIMEOUT,
            }
        for name in _LOGS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with self._errors():
            try:
                return pymilvus.MilvusClient(**options)
            except Exception as error:
                if file is None:
                    raise
                raise self._open_error(file) from error

    def _check_file(self, file: Path) -> None:
        shown = self._address.shown
        if file.suffix != ".db":
            raise ParameterError(
                f"{shown} is neither a path that ends in .db (Milvus Lite), nor milvus+http:// and a server.",
                "Pass the path that the application passes to MilvusClient.",
            )
        if file.is_file():
            raise FileError(
                f"{shown} is one file, not the folder that Milvus Lite 3 writes.",
                "Export it with the release that wrote it (milvus-lite dump), and load the export into a new database.",
            )
        if not (file / "collections").is_dir():  # the client would create a new database
            raise FileError(
                f"{shown} is not a Milvus Lite database.", "Pass the path of one that MilvusClient created."
            )

    def _open_error(self, file: Path) -> CongruenceError:
        """Return why a file could not be opened, by opening it without the client, which only says that it failed."""
        shown = self._address.shown
        try:
            require("milvus_lite.db", extra="milvus").MilvusLite(str(file)).close()
        except Exception as error:
            if type(error).__name__ == "DataDirLockedError":
                return refusals.refusal("in use", shown, "only one process can open it")
            if isinstance(error, PermissionError):
                return FileError(f"{shown} cannot be read and written ({error}).", "Change its permissions.")
            return refusals.refusal("damaged", shown, f"{type(error).__name__}: {error}")
        return DatabaseUnavailableError(f"{shown} could not be opened.", "Try again.")

    def _translate(self, error: Exception) -> CongruenceError | None:
        where, name = self._address.shown, type(error).__name__
        module = type(error).__module__.partition(".")[0]
        message = " ".join(self._address.hide(str(getattr(error, "message", "") or error) or name).split())
        if name in ("ConnectError", "MilvusUnavailableException") or module == "grpc" or _BUSY.search(message):
            return refusals.refusal("no answer", where, message)
        if getattr(error, "code", None) == 65535 and "auth" in message:
            return refusals.refusal("no access", where, message, variable=TOKEN)
        if module == "pymilvus" or isinstance(error, (ValueError, TypeError, OSError)):
            return refusals.refusal("rejected", where, message)
        return None

    def _ask(self, name: str, *args: object, **kwargs: object) -> Any:
        if self._folder is None:
            kwargs.setdefault("timeout", _LONG_TIMEOUT if name in _LONG else _TIMEOUT)
        with self._errors():
            result = getattr(self._client, name)(*args, **kwargs)
            # The client returns a lazy sequence: read it here, where errors are translated.
            return [dict(row) for row in result] if name == "query" else result

    def _aliases(self) -> dict[str, str]:
        names = self._ask("list_aliases")["aliases"]
        return {name: self._ask("describe_alias", name)["collection_name"] for name in names}

    def _load(self, collection: str) -> None:
        """Load a collection into memory unless it is loaded; Milvus can only read loaded collections."""
        state = self._ask("get_load_state", collection)["state"]
        if getattr(state, "name", str(state)) != "Loaded":
            self._ask("load_collection", collection)

    def _mark_of(self, collection: str) -> dict[str, Any]:
        return base.mark_in(self._ask("describe_collection", collection)["properties"].get(MARK_KEY, "null"))

    def _names(self) -> list[str]:
        return list(self._ask("list_collections"))

    def _find(self) -> Collections:
        place, table = super()._find(), self._table
        readers = sorted({*self._aliases_of(place.old), *self._aliases_of(place.new)})
        if readers and not place.alias:
            fix = f"Pass `table={readers[0]!r}`."
            if place.exists:  # a migration that was begun without the alias cannot go on with it
                fix = "Drop that alias until the migration is finished or discarded."
            raise ParameterError(
                f"{table!r} is read by the alias {readers[0]!r}, and the switch moves what readers use.", fix
            )
        return place

    def _rename(self, collection: str, name: str) -> None:
        self._ask("rename_collection", collection, name)
        self._load(name)  # Milvus Lite drops a collection from memory when it renames it

    def _move_alias(self, collection: str) -> None:
        self._ask("alter_alias", collection_name=collection, alias=self._table)

    def _drop(self, collection: str) -> None:
        self._ask("drop_collection", collection)

    def _unmark(self, collection: str) -> None:
        if self._mark_of(collection):
            self._ask("drop_collection_properties", collection, [MARK_KEY])
        self._schema = self._schema_of(collection, self._schema.column)

    def _width(self, collection: str) -> int:
        return self._schema.dim

    def _schema_of(self, collection: str, column: str | None) -> MilvusSchema:
        """Read the schema of a collection, and find its field of vectors."""
        description = self._ask("describe_collection", collection)
        fields = description["fields"]
        kinds = {field["name"]: field["type"].name for field in fields}
        computed = {
            name for function in description.get("functions") or () for name in function.get("output_field_names", ())
        }
        key = next(field["name"] for field in fields if field.get("is_primary"))
        dense = [name for name, kind in kinds.items() if kind.endswith("VECTOR") and kind != "SPARSE_FLOAT_VECTOR"]
        if column is None:
            column = refusals.only_name(dense, "fields of dense vectors", repr(collection), "column")
        refusals.check_name(column, dense, repr(collection), "column")
        field = next(field for field in fields if field["name"] == column)
        if kinds[column] != "FLOAT_VECTOR":
            raise ParameterError(
                f"{column!r} is of type {kinds[column]}, not FLOAT_VECTOR.",
                "Migrate a collection that has the vectors as float32.",
            )
        partitions = self._ask("list_partitions", collection)
        partitioned = len(partitions) > 1 and not any(field.get("is_partition_key") for field in fields)
        automatic = description.get("auto_id") or any(field.get("auto_id") for field in fields)
        copy = "Copy the collection into one"
        for unsupported, problem, fix in (
            (automatic, "automatic ids, which Milvus would assign anew to copied rows", f"{copy} without auto_id."),
            (field.get("nullable"), f"{column!r} nullable, but no filter for null", f"{copy} whose vectors are not."),
            (column in computed, f"{column!r} computed by a function", "Change the model of that function instead."),
            (partitioned, f"{len(partitions)} partitions without a partition key", f"{copy} with a partition key."),
        ):
            if unsupported:
                raise DatabaseError(f"{collection!r} has {problem}.", fix)
        others = tuple(name for name in kinds if name not in (key, column) and name not in computed)
        json_fields = tuple(name for name in others if kinds[name] == "JSON")
        dynamic, dim = bool(description.get("enable_dynamic_field")), int(field["params"]["dim"])
        facts = str(column), dim, others, json_fields, dynamic, [key, *others, *(["$meta"] if dynamic else [])]
        return MilvusSchema(description, key, kinds[key] == "VARCHAR", *facts)

    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        """Create the new collection with the old one's fields, functions and properties, but another width."""
        schema = self._schema
        description = dict(schema.description)
        description["fields"] = [
            {**field, "params": {**field["params"], "dim": new.dim}} if field["name"] == schema.column else field
            for field in description["fields"]
        ]
        options: dict[str, object] = {"num_shards": description.get("num_shards") or 1}
        if any(field.get("is_partition_key") for field in description["fields"]) and not self._lite:
            options["num_partitions"] = description.get("num_partitions")
        if self._folder is not None:
            remnant = self._folder / "collections" / place.new
            if remnant.is_dir() and not (remnant / "schema.json").exists():
                shutil.rmtree(remnant)  # left by a kill; the client would fail on it
        self._ask(
            "create_collection",
            place.new,
            schema=require("pymilvus", extra="milvus").CollectionSchema.construct_from_dict(description),
            properties=base.metadata_for_new(description.get("properties"), json.dumps(mark)),
            consistency_level=description.get("consistency_level", "Bounded"),
            **options,
        )

    def _indexes(self, collection: str) -> dict[str, dict[str, Any]]:
        names = self._ask("list_indexes", collection)
        indexes = [self._ask("describe_index", collection, name) for name in names]
        return {index["field_name"]: index for index in indexes if index}

    def _describe_index(self, collection: str, column: str) -> tuple[str | None, str | None]:
        index = self._indexes(collection).get(column)
        if index is None:
            return None, None
        params = {key: value for key, value in _params(index).items() if key != "metric_type"}
        nested = params.pop("params", None)
        params |= json.loads(nested) if isinstance(nested, str) else nested or {}
        text = ", ".join(f"{key}={value}" for key, value in sorted(params.items()))
        return index.get("metric_type"), f"{index['index_type']} ({text})" if text else str(index["index_type"])

    def _settings(self, collection: str) -> Mapping[str, object]:
        return {"properties": base.own_metadata(self._ask("describe_collection", collection)["properties"])}

    def _complete(self) -> None:
        """Also load the new collection."""
        super()._complete()
        self._load(self._place().new)

    def _index_like(self, like: str, collection: str) -> None:
        existing = self._indexes(collection)
        missing = require("pymilvus", extra="milvus").MilvusClient.prepare_index_params()
        for column, index in self._indexes(like).items():
            if column not in existing:
                params = {key: value for key, value in _params(index).items() if value not in ("", "NONE")}
                missing.add_index(column, index["index_type"], index["index_name"], params=params)
        if len(missing):
            # Waiting here would take half a second per index; build_index waits for all of them.
            self._ask("create_index", collection, missing, sync=False)

    def _query(self, collection: str, condition: str, fields: list[str], **options: object) -> list[dict[str, Any]]:
        self._load(collection)
        rows: list[dict[str, Any]] = self._ask(
            "query", collection, filter=condition, output_fields=fields, consistency_level="Strong", **options
        )
        return rows

    def _ids(self, collection: str, *, after: Cursor | None = None) -> Iterator[list[RowId]]:
        """Yield pages of row ids.

        Milvus Lite scans all rows for every query, whatever its limit, so all ids are requested at once. A server
        returns one page at a time.
        """
        key, condition = self._schema.key, self._rows
        if self._lite:
            ids = sorted(row[key] for row in self._query(collection, condition or "", [key]))
            yield ids[0 if after is None else bisect.bisect_right(ids, after) :]
            return
        while True:
            parts = [f"({condition})"] if condition else []
            parts += [] if after is None else [f"{key} > {self._literal(after)}"]
            options = {"limit": _IDS, "iterator": "True", "reduce_stop_for_best": "True"}
            page = [row[key] for row in self._query(collection, " and ".join(parts), [key], **options)]
            if not page:
                return
            yield page
            after = page[-1]

    def _literal(self, id_: object) -> str:
        return f'"{str(id_).translate(_ESCAPES)}"' if self._schema.text_key else str(int(str(id_)))

    def _count(self, collection: str, *, all_rows: bool = False) -> int:
        condition = None if all_rows else self._rows
        if condition and self._lite:  # Milvus Lite would load every row, with its vector, to count them
            return sum(map(len, self._ids(collection)))
        return int(self._query(collection, condition or "", ["count(*)"])[0]["count(*)"])

    def _get(self, collection: str, ids: Sequence[object], fields: list[str]) -> list[dict[str, Any]]:
        """Return the rows of these ids that exist, in the order of the ids."""
        found: dict[RowId, dict[str, Any]] = {}
        size = max(1, _BYTES // (4 * self._schema.dim))
        for start in range(0, len(ids), size):
            literals = ",".join(map(self._literal, ids[start : start + size]))
            for row in self._query(collection, f"{self._schema.key} in [{literals}]", fields):
                found[row[self._schema.key]] = row
        return [found[id_] for id_ in ids if id_ in found]

    def _records(self, collection: str, ids: list[Any], *, whole: bool = False) -> list[dict[str, Any]]:
        schema = self._schema
        fields = [schema.key, *([self._modality] if self._modality else [])]
        return self._get(
            collection, ids, [*dict.fromkeys([*(schema.without_vector if whole else fields), schema.column])]
        )

    def _others(self, collection: str, ids: list[Any]) -> list[dict[str, Any]]:
        return self._get(collection, ids, self._schema.without_vector)

    def _id_of(self, record: dict[str, Any]) -> object:
        return record[self._schema.key]

    def _same(self, record: dict[str, Any], copy: dict[str, Any]) -> bool:
        ours, theirs = ({**row, self._schema.column: None} for row in (record, copy))
        # NaN equals NaN in the second form.
        return ours == theirs or repr(sorted(ours.items())) == repr(sorted(theirs.items()))

    def _block(self, collection: str | None, records: list[dict[str, Any]], width: int) -> Block:
        ids = [row[self._schema.key] for row in records]
        vectors = np.array([row[self._schema.column] for row in records], np.float32).reshape(len(records), width)
        modalities = None if self._modality is None else base.texts(row.get(self._modality) for row in records)
        return Block(pa.array(ids, self._id_type), vectors, modalities, ids[-1] if ids else 0)

    def _store(self, collection: str, records: list[dict[str, Any]], vectors: np.ndarray) -> None:
        # In Milvus Lite an upsert merges with the existing row, which would keep removed fields; an insert replaces the
        # row.
        method = "insert" if self._lite else "upsert"
        size = min(_ROWS, max(1, _BYTES // (4 * vectors.shape[1])))
        for start in range(0, len(records), size):
            new = np.asarray(vectors[start : start + size], np.float32)
            complete = [
                {**row, self._schema.column: vector}
                for row, vector in zip(records[start : start + size], new, strict=True)
            ]
            for name in self._schema.json_fields:
                for row in complete:
                    if isinstance(row.get(name), str):
                        row[name] = json.dumps(row[name])
            self._ask(method, collection, complete)

    def info(self) -> DatabaseInfo:
        place = self._place()
        metric, index = self._describe_index(place.old, self._schema.column)
        description = self._ask("describe_collection", place.old)
        return DatabaseInfo(
            place=f"{self._address.shown} {self._table}",
            rows=self._count(place.old),
            dim=self._schema.dim,
            distance=_DISTANCES.get(str(metric)),
            index=index,
            id_type="text" if self._schema.text_key else "int",
            space=base.space_in(description.get("properties"), place.old),
        )

    def _fields(self, collection: str) -> tuple[str, ...]:
        if not self._schema.dynamic:
            return self._schema.fields
        rows = self._query(collection, "", ["$meta"], limit=_SAMPLE)
        return (*self._schema.fields, *dict.fromkeys(key for row in rows for key in row if key != self._schema.key))

    def _nearest(self, collection: str, queries: np.ndarray, k: int) -> list[pa.Array]:
        self._load(collection)
        options = {"anns_field": self._schema.column, "limit": k, "filter": self._rows or ""}
        answers = self._ask("search", collection, data=list(queries), consistency_level="Strong", **options)
        return [pa.array(list(answer.ids), self._id_type) for answer in answers]

    def _delete(self, collection: str, ids: list[Any]) -> None:
        for start in range(0, len(ids), _IDS):
            literals = ",".join(map(self._literal, ids[start : start + _IDS]))
            self._ask("delete", collection, filter=f"{self._schema.key} in [{literals}]")

    def build_index(self) -> str | None:
        """Create the indexes of the old collection, and wait until the new vectors are indexed."""
        new = self._place_with_new().new
        self._ask("flush", new)
        self._complete()
        description = self._describe_index(new, self._schema.column)[1]
        if description:
            base.wait_until_indexed(lambda: self._pending(new), repr(new))
        return description

    def _pending(self, collection: str) -> int:
        pending = 0
        for name in self._ask("list_indexes", collection, field_name=self._schema.column):
            description = self._ask("describe_index", collection, name)
            if description.get("state") == "Failed":
                reason = description.get("index_state_fail_reason")
                raise DatabaseError(f"The index of {collection!r} could not be built ({reason}).", "See Milvus's log.")
            pending += int(description.get("pending_index_rows") or 0)
        return pending

    def _show(self, collection: str, hidden: str) -> None:
        self._load(collection)
        super()._show(collection, hidden)

    def close(self) -> None:
        """Close the connection to a server. A file stays open until the process ends: all clients share it."""
        self._client.close()


def _params(index: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in index.items() if key not in _STATE}
