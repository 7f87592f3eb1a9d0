"""Qdrant, a server or a folder of its client: new vectors are in a second collection; the switch moves an alias."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, MARK_KEY, UUID, Address, Block, Cursor, DatabaseInfo, Name, NewVectors
from congruence.databases._collections import CollectionDatabase, Collections
from congruence.embeddings import normalize_rows
from congruence.errors import CongruenceError, DatabaseError, FileError, ParameterError

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo, Filter, Record, VectorParams

API_KEY = "QDRANT_API_KEY"  # environment variable with the server's API key, which is not allowed in an address
TIMEOUT = 60  # timeout of a request, in seconds
_REQUEST_BYTES = 8 * 2**20  # maximum bytes of a request that writes points; servers refuse more than 32 MiB by default
_NUMBER_BYTES = 22  # maximum bytes of a number in a request: a float32, written as the shortest text of a float64
_SAMPLE = 100  # number of points from which the names of payload fields are determined

_FIRST_UUID = "00000000-0000-0000-0000-000000000000"

_DISTANCES = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}


class Qdrant(CollectionDatabase):
    """The vectors of a Qdrant collection, on a server or in a folder of the Qdrant client (local mode).

    Payloads and other vectors are copied. ``switch`` moves an alias; readers of a collection's own name cannot be
    switched. Vectors of a collection with cosine distance have unit norm.

    The address is ``http://host:6333``, ``https://…`` or ``qdrant://host:port``, with the key in the environment
    variable ``QDRANT_API_KEY``, or a folder, ``qdrant:///path``, which the client unpickles: open only one that you
    trust. ``table`` is an alias or a collection, ``column`` the name of a vector (``""`` if it has none),
    ``modality_column`` a field of the payload with dots between nested ones, ``rows`` a filter as JSON, such as
    ``{"must": [{"key": "kind", "match": {"value": "image"}}]}``.
    """

    kind = "qdrant"
    bare_rows = True
    alias_only = "update_collection_aliases"
    capabilities = base.Capabilities(
        container="collection", filters="a Qdrant filter as JSON", element_types=("float32", "float16")
    )

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        refusals.check_options("Qdrant, whose points have exactly one id, which is not a payload field", ids=ids)
        self._address, self._key_of_server = base.with_key(address, API_KEY)
        self._models = require("qdrant_client.models", extra="qdrant")
        local = address.scheme == "qdrant" and urlsplit(address.text).netloc in ("", ".", "..", "~")
        self._folder = base.folder_in(address) if local else None
        if self._folder is not None:
            self.capabilities = replace(self.capabilities, concurrent_writes=False)
        self._client = self._open_server() if self._folder is None else self._open_folder(self._folder)
        self._table = self._find_table(table)
        self._column = self._find_column(self._find().old, column)
        place = self._place()
        if rows is not None:
            try:
                self._rows = self._models.Filter.model_validate_json(rows)
            except ValueError as error:
                example = 'JSON, for example {"must": [{"key": "kind", "match": {"value": "image"}}]}'
                raise refusals.refusal("condition", rows, str(error).splitlines()[0], example=example) from error
        self._id_type = self._find_id_type(place.old)
        if place.exists and not self._count(place.old, condition=self._models.Filter()):  # others emptied it
            self._id_type = self._find_id_type(place.new)
        self._modality = modality
        if modality is not None:
            self._check_field(place.old, modality)

    def _open_server(self) -> Any:
        url = re.sub(r"^qdrant://", "http://", self._address.text, flags=re.IGNORECASE)
        client = require("qdrant_client", extra="qdrant").QdrantClient
        try:
            return client(url=url, api_key=self._key_of_server, timeout=TIMEOUT, check_compatibility=False)
        except ValueError as error:
            raise ParameterError(
                f"{self._address.shown} is no address of a server ({error}).",
                "Pass one with host and port, such as http://localhost:6333.",
            ) from error

    def _open_folder(self, folder: Path) -> Any:
        shown = self._address.shown
        if not (folder / "meta.json").is_file():  # the client would create a new folder
            raise FileError(f"{shown} has no meta.json.", "Pass a folder that QdrantClient(path=…) created.")
        client = require("qdrant_client", extra="qdrant").QdrantClient
        try:
            return client(path=str(folder), force_disable_check_same_thread=True)
        except RuntimeError as error:
            if "already accessed" not in str(error):
                raise
            raise refusals.refusal(
                "in use", shown, "only one client at a time can open a folder; a server takes several"
            ) from error
        except OSError as error:
            raise FileError(
                f"{shown} cannot be opened ({error}).", "Change its permissions, or pass another path."
            ) from error
        except Exception as error:  # JSON, SQLite, pickle and pydantic each raise their own exceptions
            raise refusals.refusal("damaged", shown, f"{type(error).__name__}: {error}") from error

    def _translate(self, error: Exception) -> CongruenceError | None:
        where, source = self._address.shown, getattr(error, "source", None)
        message = self._address.hide(str(source if source is not None else error) or type(error).__name__)
        if type(error).__name__ == "ResourceExhaustedResponse":
            return refusals.refusal("no answer", where, f"too many requests: {message}")
        if source is not None:
            if isinstance(source, ValueError):
                return DatabaseError(
                    f"The response from {where} is not Qdrant's ({message}).",
                    "Pass the host and port of Qdrant's REST API.",
                )
            return refusals.refusal("no answer", where, f"{type(source).__name__}: {message}")
        status = getattr(error, "status_code", None)
        if status in (408, 425, 429, 500, 502, 503, 504) or isinstance(error, sqlite3.OperationalError):
            return refusals.refusal("no answer", where, message)
        if status in (401, 403):
            return refusals.refusal("no access", where, message, variable=API_KEY)
        if status is not None or isinstance(error, (ValueError, sqlite3.Error, OSError)):
            return refusals.refusal("rejected", where, message)
        return None

    def _aliases(self) -> dict[str, str]:
        return {alias.alias_name: alias.collection_name for alias in self._call(self._client.get_aliases).aliases}

    def _names(self) -> set[str]:
        return {collection.name for collection in self._call(self._client.get_collections).collections}

    def _info_of(self, collection: str) -> CollectionInfo:
        return self._call(self._client.get_collection, collection)

    def _mark_of(self, collection: str) -> Mapping[str, Any]:
        mark = (self._info_of(collection).config.metadata or {}).get(MARK_KEY)
        return mark if isinstance(mark, dict) else {}

    def _width(self, collection: str) -> int:
        return self._params(self._info_of(collection)).size

    def _find_column(self, collection: str, column: str | None) -> str:
        configs = _configs(self._info_of(collection))
        dense = {name: vector for name, vector in configs.items() if vector.multivector_config is None}
        if column is None:
            column = refusals.only_name(dense, "dense vectors per point", repr(collection), "column")
        check_choice(column, list(dense), "column")
        datatype = getattr(dense[column].datatype, "value", None)
        if datatype not in (None, "float32", "float16"):
            raise ParameterError(
                f"{collection!r} stores vectors as {datatype}, not as float32 or float16.",
                "Migrate a collection that stores them unquantized.",
            )
        return column

    def _params(self, info: CollectionInfo) -> VectorParams:
        return _configs(info)[self._column]

    def _fields(self, collection: str) -> tuple[str, ...]:
        records = self._scroll(collection, limit=_SAMPLE, with_payload=True)[0]
        fields = [key for record in records for key in record.payload or {}]
        return tuple(dict.fromkeys([*fields, *self._info_of(collection).payload_schema]))

    def _find_id_type(self, collection: str) -> str:
        """Return the type of the ids, from the first point and the first UUID; numbers are sorted before UUIDs."""
        first = self._scroll(collection, limit=1)[0]
        if not first or isinstance(first[0].id, str):
            return "uuid" if first else "int"
        return "text" if self._scroll(collection, limit=1, offset=_FIRST_UUID)[0] else "int"

    def _check_field(self, collection: str, field: str) -> None:
        models = self._models
        has_field = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=field))])
        if not self._scroll(collection, limit=1, scroll_filter=has_field)[0]:
            names = (name for name in self._fields(collection) if name != field)
            refusals.check_name(field, names, collection, "modality_column")

    def _having(self, *, all_rows: bool = False) -> Filter:
        """Return a filter for points that have the vector, among the selected rows or, if ``all_rows``, among all."""
        has = self._models.HasVectorCondition(has_vector=self._column)
        return self._models.Filter(must=[has] if self._rows is None or all_rows else [self._rows, has])

    def _count(self, collection: str, *, all_rows: bool = False, condition: object = None) -> int:
        condition = condition or self._having(all_rows=all_rows)
        return int(self._call(self._client.count, collection, count_filter=condition, exact=True).count)

    def _scroll(self, collection: str, **options: object) -> Any:
        return self._call(self._client.scroll, collection, **{"with_payload": False, "with_vectors": False, **options})

    def _pages(
        self,
        collection: str,
        *,
        after: Cursor | None = None,
        batch: int = BATCH,
        whole: bool = False,
        condition: object = None,
    ) -> Iterator[list[Record]]:
        """Yield pages of points, by default those that have the vector."""
        options, more = self._fields_of(whole), True
        condition = self._having() if condition is None else condition
        while more:
            limit = batch if after is None else batch + 1  # the result includes the point at the offset, if it exists
            records, following = self._scroll(collection, scroll_filter=condition, limit=limit, offset=after, **options)
            if records and records[0].id == after:
                del records[0]
            more = following is not None or len(records) > batch
            records = records[:batch]
            if records:
                after = records[-1].id
                yield records

    def _retrieve(self, collection: str, ids: Iterable[object], **options: object) -> list[Record]:
        known = [id_ for id_ in ids if id_ is not None]
        return list(self._call(self._client.retrieve, collection, ids=known, **options)) if known else []

    def _fields_of(self, whole: bool) -> dict[str, object]:
        if whole:
            return {"with_payload": True, "with_vectors": True}
        return {  # the unnamed vector cannot be requested by name
            "with_payload": [self._modality] if self._modality else False,
            "with_vectors": [self._column] if self._column else True,
        }

    def _records(self, collection: str, ids: list[Any], *, whole: bool = False) -> list[Record]:
        records = self._retrieve(collection, map(_point_id, ids), **self._fields_of(whole))
        return [record for record in records if self._vector(record)]

    def _others(self, collection: str, ids: list[Any]) -> list[Record]:
        info = self._info_of(collection)
        vectors = [*_configs(info), *(info.config.params.sparse_vectors or {})]
        others = [name for name in vectors if name != self._column]
        return self._retrieve(collection, ids, with_payload=True, with_vectors=others or False)

    def _key(self, id_: int | str) -> int | str | None:
        return _point_id(id_)

    def _id_of(self, record: Record) -> object:
        return record.id

    def _vector(self, record: Record) -> object:
        vector = record.vector
        return (vector.get(self._column) if isinstance(vector, dict) else vector) or None

    def _others_of(self, record: Record) -> dict[str, object]:
        vectors = record.vector if isinstance(record.vector, dict) else {}
        return {name: vector for name, vector in vectors.items() if name != self._column}

    def _block(self, collection: str | None, records: list[Record], width: int) -> Block:
        vectors = np.array([self._vector(record) for record in records], np.float32).reshape(len(records), width)
        modalities = None
        if self._modality is not None:
            modalities = base.texts(_value_at(record.payload, self._modality) for record in records)
        cursor = records[-1].id if records else 0
        return Block(self._arrow_ids([record.id for record in records]), vectors, modalities, cursor)

    def _arrow_ids(self, ids: list[int | str]) -> pa.Array:
        try:
            if self._id_type == "text":
                return pa.array([str(id_) for id_ in ids], pa.large_string())
            return pa.array(ids, pa.uint64() if self._id_type == "int" else pa.large_string())
        except (TypeError, ValueError) as error:
            raise DatabaseError(
                "There are both numbers and UUIDs as ids since the collection was opened.", "Open the database again."
            ) from error

    def _same(self, record: Record, copy: Record) -> bool:
        ours, theirs = self._others_of(record), self._others_of(copy)
        same = (record.payload or {}) == (copy.payload or {}) and ours.keys() == theirs.keys()
        return same and all(_same_vector(ours[name], theirs[name]) for name in ours)

    def _store(self, collection: str, records: list[Record], vectors: np.ndarray | None) -> None:
        for part, rows in _requests(records, vectors):
            self._call(self._client.upsert, collection, points=self._as_points(part, rows), wait=True)

    def _replace(self, collection: str, records: list[Record], vectors: np.ndarray) -> None:
        for part, rows in _requests(records, vectors):
            points = [
                self._models.PointVectors(id=record.id, vector={self._column: row} if self._column else row)
                for record, row in zip(part, rows or (), strict=True)
            ]
            self._call(self._client.update_vectors, collection, points=points, wait=True)

    def _as_points(self, records: list[Record], vectors: list[object] | None) -> object:
        models = self._models
        ids, payloads = [record.id for record in records], [record.payload for record in records]
        others = [record.vector if isinstance(record.vector, dict) else {} for record in records]
        if vectors is not None and not any(others):
            rows = {self._column: vectors} if self._column else vectors
            # Without validation, which would visit every number again.
            return models.Batch.model_construct(ids=ids, vectors=rows, payloads=payloads)
        if vectors is not None:
            others = [{**other, self._column: row} for other, row in zip(others, vectors, strict=True)]
        points = zip(ids, payloads, others, strict=True)
        return [models.PointStruct(id=id_, payload=payload, vector=vector) for id_, payload, vector in points]

    def info(self) -> DatabaseInfo:
        place = self._place()
        info = self._info_of(place.old)
        config, params = info.config, self._params(info)
        rows = self._count(place.old)
        return DatabaseInfo(
            place=f"{self._address.shown} {self._table}",
            rows=rows,
            rows_without=self._count(place.old, condition=self._rows or self._models.Filter()) - rows,
            dim=params.size,
            element_type=getattr(params.datatype, "value", None) or "float32",
            distance=_DISTANCES.get(params.distance.value),
            index=_describe_index(config, params),
            id_type=self._id_type,
            space=base.space_in(config.metadata, place.old),
        )

    def _nearest(self, collection: str, queries: np.ndarray, k: int) -> list[pa.Array]:
        options = {"using": self._column or None, "filter": self._rows, "limit": k}
        requests = [self._models.QueryRequest(query=query, **options) for query in queries.tolist()]
        answers = self._call(self._client.query_batch_points, collection, requests=requests)
        return [self._arrow_ids([point.id for point in answer.points]) for answer in answers]

    def check(self, new: NewVectors) -> None:
        collection = self._place().old
        if getattr(self._info_of(collection).config.params.sharding_method, "value", None) == "custom":
            raise DatabaseError(
                f"{collection!r} has custom sharding, and a point's shard key cannot be read back.",
                "Copy the collection into one without shard keys first.",
            )
        super().check(new)

    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        models, config = self._models, self._info_of(place.old).config
        params = config.params
        changed: dict[str, object] = {"size": new.dim}
        if new.element_type != (getattr(self._params(self._info_of(place.old)).datatype, "value", None) or "float32"):
            changed["datatype"] = models.Datatype(new.element_type)
        if isinstance(vectors := params.vectors, dict):
            vectors = {**vectors, self._column: vectors[self._column].model_copy(update=changed)}
        else:
            vectors = vectors.model_copy(update=changed)
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
        self._call(
            self._client.create_collection,
            place.new,
            vectors_config=vectors,
            metadata=base.metadata_for_new(config.metadata, mark),
            **{key: value for key, value in settings.items() if value is not None},
        )
        if not self._mark_of(place.new):
            self._call(self._client.delete_collection, place.new)
            raise DatabaseError(
                f"{self._address.shown} keeps no metadata of a collection, as Qdrant 1.16 and newer do.",
                "Update the server.",
            )

    def _settings(self, collection: str) -> Mapping[str, object]:
        return {"metadata": base.own_metadata(self._info_of(collection).config.metadata)}

    def _index_like(self, like: str, collection: str) -> None:
        indexed = self._info_of(like).payload_schema
        existing: Iterable[str] = self._info_of(collection).payload_schema if indexed else ()
        for field, index in indexed.items():
            if field not in existing:
                kind = index.data_type if index.params is None else index.params
                options = {"field_name": field, "field_schema": kind, "wait": True}
                self._call(self._client.create_payload_index, collection, **options)

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        """Return new vectors as they will be read back, up to rounding: with unit norm if the distance is cosine."""
        if self._params(self._info_of(self._place().old)).distance.value != "Cosine":
            return vectors
        scaled: np.ndarray = normalize_rows(vectors)
        return scaled

    def _write(self, place: Collections, ids: pa.Array, vectors: np.ndarray) -> None:
        if place.mark.get("element_type") == "float16":
            vectors = vectors.astype(np.float16).astype(np.float32)  # servers round to float16, folders do not
        super()._write(place, ids, vectors)

    def _delete(self, collection: str, ids: list[Any]) -> None:
        points = [point for id_ in ids if (point := _point_id(id_)) is not None]
        if points:
            selector = self._models.PointIdsList(points=points)
            self._call(self._client.delete, collection, points_selector=selector, wait=True)

    def build_index(self) -> str | None:
        """Create the payload indexes, and wait until the server has indexed the vectors by itself."""
        place = self._place_with_new()
        self._complete()

        def pending() -> bool:
            info = self._info_of(place.new)
            if info.status.value == "red":
                raise DatabaseError(
                    f"{place.new!r} is in status red ({info.optimizer_status}).", "See the server's log."
                )
            return bool(info.status.value == "yellow")

        base.wait_until_indexed(pending, repr(place.new))
        info = self._info_of(place.new)
        return _describe_index(info.config, self._params(info))

    def _bare(self, collection: str) -> Iterator[list[Record]]:
        lacking = self._models.HasVectorCondition(has_vector=self._column)
        return self._pages(collection, condition=self._models.Filter(must_not=[lacking]), whole=True)

    def _move_alias(self, collection: str) -> None:
        models, alias = self._models, self._table
        create = models.CreateAlias(alias_name=alias, collection_name=collection)
        operations = [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))]
        operations.append(models.CreateAliasOperation(create_alias=create))
        self._call(self._client.update_collection_aliases, change_aliases_operations=operations)

    def _drop(self, collection: str) -> None:
        self._call(self._client.delete_collection, collection)

    def _unmark(self, collection: str) -> None:
        if self._mark_of(collection):
            self._call(self._client.update_collection, collection, metadata={MARK_KEY: None})

    def close(self) -> None:
        self._client.close()


def _configs(info: CollectionInfo) -> dict[str, VectorParams]:
    vectors = info.config.params.vectors
    return dict(vectors) if isinstance(vectors, dict) else {"": vectors} if vectors else {}


def _copied(model: Any, value: Any) -> Any:
    """Convert a part of a collection's description to the model for its creation, which lacks some of the fields."""
    if value is None:
        return None
    fields = value.model_dump(exclude_none=True)
    return model(**{key: field for key, field in fields.items() if key in model.model_fields})


def _describe_index(config: Any, params: Any) -> str:
    """Return a short description of the index over a vector, and of its quantization."""
    own, general = params.hnsw_config, config.hnsw_config
    m = general.m if own is None or own.m is None else own.m
    ef = general.ef_construct if own is None or own.ef_construct is None else own.ef_construct
    description = f"HNSW (m={m}, ef_construct={ef})" if m else "no graph"
    quantization = params.quantization_config or config.quantization_config
    if quantization is not None:
        description += f", {next(iter(quantization.model_dump(exclude_none=True)))} quantization"
    return description


def _point_id(id_: int | str) -> int | str | None:
    """Return the id of a point; None for a string that cannot be one."""
    if isinstance(id_, int):
        return id_
    return int(id_) if id_.isdecimal() else id_ if UUID.fullmatch(id_) else None


def _value_at(payload: object, field: str) -> object:
    """Return the value of a nested payload field, or None if it is missing."""
    for key in field.split("."):
        payload = payload.get(key) if isinstance(payload, dict) else None
    return payload


def _same_vector(vector: Any, copy: Any) -> bool:
    """Return whether the dense, multi- or sparse vectors of a point and its copy are equal, up to rounding."""
    if hasattr(vector, "indices"):
        ours, theirs = (dict(zip(v.indices, v.values, strict=True)) for v in (vector, copy))
        return ours.keys() == theirs.keys() and all(np.isclose(ours[key], theirs[key], atol=1e-6) for key in ours)
    left, right = np.asarray(vector, np.float32), np.asarray(copy, np.float32)
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-5, atol=1e-6))


def _requests(records: list[Record], vectors: np.ndarray | None) -> Iterator[tuple[list[Record], list[object] | None]]:
    """Divide points, and their new vectors (b, dim) if there are any, into requests of a size that a server accepts."""
    width, start, size = 0 if vectors is None else vectors.shape[1], 0, 0
    for stop, record in enumerate([*records, None]):
        own = 0 if record is None else _NUMBER_BYTES * width + 2 * len(str(record.payload)) + 64
        if record is not None and record.vector:
            own += len(str(record.vector))
        if stop > start and (record is None or size + own > _REQUEST_BYTES):
            yield records[start:stop], None if vectors is None else vectors[start:stop].tolist()
            start, size = stop, 0
        size += own
