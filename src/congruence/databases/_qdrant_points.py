"""Read and write points of Qdrant collections as rows with one vector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.databases._base import BATCH, Block, Cursor
from congruence.databases._qdrant_client import Connection
from congruence.databases._qdrant_place import Place
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from types import ModuleType

    from qdrant_client.models import CollectionInfo, Filter, Record, VectorParams

#: Maximum bytes of a request that writes points; servers refuse more than 32 MiB by default.
_REQUEST_BYTES = 8 * 2**20

#: Maximum bytes of a number in a request: a float32, written as the shortest text of a float64.
_NUMBER_BYTES = 22

#: Number of queries per request.
_QUERIES = 64

#: Number of points from which the names of payload fields are determined.
_SAMPLE = 100

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FIRST_UUID = "00000000-0000-0000-0000-000000000000"


def dense_column(info: CollectionInfo, collection: str, column: str | None) -> str:
    """Return the name of a collection's dense vector, ``""`` for the unnamed one.

    Raises ParameterError if it does not exist, must be specified, or is stored in another type than float32 or float16.
    """
    dense = {name: config for name, config in _configs(info).items() if config.multivector_config is None}
    if column is None and len(dense) == 1:
        column = next(iter(dense))
    if column is None:
        names = ", ".join(map(repr, dense)) or "none"
        raise ParameterError(
            f"Got {collection!r} with {len(dense)} dense vectors per point ({names}); expected exactly one, or the name of one. Pass column=…."
        )
    check_choice(column, list(dense), "column")
    datatype = getattr(dense[column].datatype, "value", None)
    if datatype not in (None, "float32", "float16"):
        raise ParameterError(
            f"Got {collection!r}, whose vectors are stored as {datatype}; expected float32 or float16. "
            "Migrate a collection that stores them unquantized."
        )
    return str(column)


def _configs(info: CollectionInfo) -> dict[str, VectorParams]:
    vectors = info.config.params.vectors
    return dict(vectors) if isinstance(vectors, dict) else {} if vectors is None else {"": vectors}


class Points:
    """Reads and writes points of collections that have a vector of this name.

    Attributes
    ----------
    column : str
        Name of the vector; empty for the unnamed one.
    rows : Filter or None
        Filter that selects the rows; None for all.
    modality : str or None
        Payload field that holds the modality; dots separate nested fields.
    id_type : str
        "int", "uuid", or "text" if there are both.
    """

    def __init__(
        self, connection: Connection, place: Place, column: str, rows: str | None, modality: str | None
    ) -> None:
        self.connection = connection
        self.models = require("qdrant_client.models", extra="qdrant")
        self.column = column
        self.rows = None if rows is None else _filter_of(self.models, rows)
        self.id_type = self._find_id_type(place.old)
        self.modality = modality
        if modality is not None:
            self._check_field(place, modality)

    # ---- description -------------------------------------------------------------------------------------------------

    def params(self, info: CollectionInfo) -> VectorParams:
        """Return the parameters of the vector, such as size, distance and datatype."""
        return _configs(info)[self.column]

    def element_type(self, info: CollectionInfo) -> str:
        """Return the type in which the vector is stored."""
        return getattr(self.params(info).datatype, "value", None) or "float32"

    def others(self, info: CollectionInfo) -> list[str]:
        """Return the names of the points' other vectors, which are copied with the payload."""
        names = [*_configs(info), *(info.config.params.sparse_vectors or {})]
        return [name for name in names if name != self.column]

    def fields(self, place: Place) -> tuple[str, ...]:
        """Return the payload fields of the first points, and those with an index."""
        records = self.scroll(place.old, limit=_SAMPLE, with_payload=True)[0]
        return tuple(
            dict.fromkeys(
                [*(key for record in records for key in record.payload or {}), *place.old_info.payload_schema]
            )
        )

    def _find_id_type(self, collection: str) -> str:
        """Return the type of the ids, from the first point and the first UUID; numbers are sorted before UUIDs."""
        first = self.scroll(collection, limit=1)[0]
        if not first or isinstance(first[0].id, str):
            return "uuid" if first else "int"
        return "text" if self.scroll(collection, limit=1, offset=_FIRST_UUID)[0] else "int"

    def _check_field(self, place: Place, field: str) -> None:
        models = self.models
        has_field = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=field))])
        if not self.scroll(place.old, limit=1, scroll_filter=has_field)[0]:
            fields = ", ".join(map(repr, self.fields(place))) or "none"
            raise ParameterError(
                f"Got modality_column={field!r}, which no point of {place.old!r} has; expected a field of the payload, one of {fields}. "
                "Pass another modality_column=…."
            )

    # ---- reading -----------------------------------------------------------------------------------------------------

    def having(self, *, all_rows: bool = False) -> Filter:
        """Return a filter for points that have the vector, among the selected rows or, if ``all_rows``, among all."""
        has = self.models.HasVectorCondition(has_vector=self.column)
        return self.models.Filter(must=[has] if self.rows is None or all_rows else [self.rows, has])

    def lacking(self) -> Filter:
        """Return a filter for all points without the vector."""
        return self.models.Filter(must_not=[self.models.HasVectorCondition(has_vector=self.column)])

    def count(self, collection: str, condition: object) -> int:
        """Return the exact number of points that match a filter."""
        return int(self.connection.call("count", collection, count_filter=condition, exact=True).count)

    def scroll(self, collection: str, **options: object) -> tuple[list[Record], int | str | None]:
        """Return a page of points, and the first id of the next page, or None."""
        found: tuple[list[Record], int | str | None] = self.connection.call(
            "scroll", collection, **{"with_payload": False, "with_vectors": False, **options}
        )
        return found

    def pages(
        self, collection: str, condition: object, *, after: Cursor | None = None, batch: int = BATCH, **options: object
    ) -> Iterator[list[Record]]:
        """Yield pages of points in the order of their ids, starting after the id ``after``, which need not exist anymore."""
        more = True
        while more:
            limit = batch if after is None else batch + 1  # the result includes the point at the offset, if it exists
            records, following = self.scroll(collection, scroll_filter=condition, limit=limit, offset=after, **options)
            if records and records[0].id == after:
                del records[0]
            more = following is not None or len(records) > batch
            records = records[:batch]
            if records:
                after = records[-1].id
                yield records

    def retrieve(self, collection: str, ids: Iterable[object], **options: object) -> list[Record]:
        """Return the points of these ids that exist, ignoring None."""
        known = [id_ for id_ in ids if id_ is not None]
        records: list[Record] = self.connection.call("retrieve", collection, ids=known, **options) if known else []
        return records

    def block_fields(self) -> dict[str, object]:
        """Return the options that request the vector and the modality; the unnamed vector cannot be requested by name."""
        return {
            "with_payload": [self.modality] if self.modality else False,
            "with_vectors": [self.column] if self.column else True,
        }

    def vector(self, record: Record) -> object:
        """Return the vector of a point, or None if it has none."""
        vector = record.vector
        return (vector.get(self.column) if isinstance(vector, dict) else vector) or None

    def block(self, records: list[Record], width: int) -> Block:
        """Convert points that all have the vector to a block."""
        vectors = np.array([self.vector(record) for record in records], np.float32).reshape(len(records), width)
        modalities = None
        if self.modality is not None:
            path = self.modality.split(".")
            modalities = pa.array([_text_at(record.payload, path) for record in records], pa.large_string())
        cursor = records[-1].id if records else 0
        return Block(self.arrow_ids([record.id for record in records]), vectors, modalities, cursor)

    def arrow_ids(self, ids: list[int | str]) -> pa.Array:
        """Convert point ids to an Arrow array."""
        try:
            if self.id_type == "text":
                return pa.array([str(id_) for id_ in ids], pa.large_string())
            return pa.array(ids, pa.uint64() if self.id_type == "int" else pa.large_string())
        except (TypeError, ValueError) as error:
            raise DatabaseError(
                "Got both numbers and UUIDs as ids since the collection was opened; expected one kind. Open the database again."
            ) from error

    def point_ids(self, ids: pa.Array) -> list[int | str | None]:
        """Convert ids to point ids; None for strings that cannot be one."""
        if not pa.types.is_integer(ids.type):
            return [int(id_) if id_.isdecimal() else id_ if _UUID.fullmatch(id_) else None for id_ in ids.to_pylist()]
        return list(ids.to_pylist())

    def search(self, collection: str, queries: np.ndarray, k: int) -> list[pa.Array]:
        """Return the ids of the ``k`` nearest selected rows for each query; queries have shape (q, dim)."""
        found: list[pa.Array] = []
        for start in range(0, len(queries), _QUERIES):
            requests = [
                self.models.QueryRequest(query=query, using=self.column or None, filter=self.rows, limit=k)
                for query in queries[start : start + _QUERIES].tolist()
            ]
            answers = self.connection.call("query_batch_points", collection, requests=requests)
            found += [self.arrow_ids([point.id for point in answer.points]) for answer in answers]
        return found

    def same_others(self, record: Record, copy: Record) -> bool:
        """Return whether a point and its copy have the same payload and the same other vectors."""
        if (record.payload or {}) != (copy.payload or {}):
            return False
        ours, theirs = self._other_vectors(record), self._other_vectors(copy)
        return ours.keys() == theirs.keys() and all(_same_vector(ours[name], theirs[name]) for name in ours)

    def _other_vectors(self, record: Record) -> dict[str, object]:
        if not isinstance(record.vector, dict):
            return {}
        return {name: vector for name, vector in record.vector.items() if name != self.column}

    # ---- writing -----------------------------------------------------------------------------------------------------

    def upsert(self, collection: str, records: list[Record], vectors: np.ndarray | None) -> None:
        """Store points with the payloads and other vectors of ``records`` and, unless None, the new vectors, shape (b, dim)."""
        start = 0
        for part in _requests(records, 0 if vectors is None else vectors.shape[1]):
            rows = None if vectors is None else vectors[start : start + len(part)].tolist()
            self.connection.call("upsert", collection, points=self._as_points(part, rows), wait=True)
            start += len(part)

    def replace(self, collection: str, records: list[Record], vectors: np.ndarray) -> None:
        """Replace the vector of existing points by the new ones, shape (b, dim), keeping payloads and other vectors."""
        models, start = self.models, 0
        for part in _requests(records, vectors.shape[1]):
            rows = vectors[start : start + len(part)].tolist()
            points = [
                models.PointVectors(id=record.id, vector={self.column: row} if self.column else row)
                for record, row in zip(part, rows, strict=True)
            ]
            self.connection.call("update_vectors", collection, points=points, wait=True)
            start += len(part)

    def _as_points(self, records: list[Record], vectors: list[object] | None) -> object:
        models = self.models
        ids, payloads = [record.id for record in records], [record.payload for record in records]
        others = [record.vector if isinstance(record.vector, dict) else {} for record in records]
        if vectors is not None and not any(others):
            rows = {self.column: vectors} if self.column else vectors
            # Without validation, which would visit every number again.
            return models.Batch.model_construct(ids=ids, vectors=rows, payloads=payloads)
        new: list[dict[str, object]] = [{} for _ in ids] if vectors is None else [{self.column: row} for row in vectors]
        return [
            models.PointStruct(id=id_, payload=payload, vector={**other, **vector})
            for id_, payload, other, vector in zip(ids, payloads, others, new, strict=True)
        ]


def _filter_of(models: ModuleType, text: str) -> Filter:
    try:
        return models.Filter.model_validate_json(text)
    except ValueError as error:
        raise ParameterError(
            f"Got rows={text!r}, which is not a Qdrant filter ({str(error).splitlines()[0]}); expected JSON such as "
            '{"must": [{"key": "kind", "match": {"value": "image"}}]}. Write the filter as for the REST API of Qdrant.'
        ) from error


def _text_at(payload: object, path: list[str]) -> str | None:
    """Return the value of a nested payload field as text, or None if it is missing."""
    for key in path:
        payload = payload.get(key) if isinstance(payload, dict) else None
    return payload if payload is None or isinstance(payload, str) else str(payload)


def _same_vector(vector: Any, copy: Any) -> bool:
    """Return whether the dense, multi- or sparse vectors of a point and its copy are equal, up to rounding by a second normalization."""
    if hasattr(vector, "indices"):
        ours, theirs = (dict(zip(v.indices, v.values, strict=True)) for v in (vector, copy))
        return ours.keys() == theirs.keys() and all(np.isclose(ours[key], theirs[key], atol=1e-6) for key in ours)
    left, right = np.asarray(vector, np.float32), np.asarray(copy, np.float32)
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-5, atol=1e-6))


def _requests(records: list[Record], width: int) -> Iterator[list[Record]]:
    """Divide points into requests of a size that a server accepts."""
    part: list[Record] = []
    part_bytes = 0
    for record in records:
        size = _NUMBER_BYTES * width + 2 * len(str(record.payload)) + 64
        if record.vector:
            size += len(str(record.vector))
        if part and part_bytes + size > _REQUEST_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += size
    if part:
        yield part
