"""Read and write rows of Milvus collections."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.databases._base import BATCH, Block, Cursor
from congruence.databases._milvus_client import Connection
from congruence.databases._milvus_schema import Schema

__all__ = ["Rows", "same_fields"]

#: Maximum number of ids per response (a server returns no more), of rows per write request, and of bytes of vectors per request or response.
_IDS, _ROWS, _BYTES = 16_384, 1000, 16 * 2**20

#: Number of queries per request.
_QUERIES = 64

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})

Id = int | str


class Rows:
    """Reads and writes rows of the old and the new collection.

    Attributes
    ----------
    rows : str or None
        Filter that selects the rows; None for all.
    modality : str or None
        Field that holds the modality.
    """

    def __init__(self, connection: Connection, schema: Schema, rows: str | None, modality: str | None) -> None:
        self.connection, self.schema = connection, schema
        self.rows, self.modality = rows, modality
        self.type = pa.large_string() if schema.text_key else pa.int64()

    def query(self, collection: str, condition: str, fields: list[str], **options: object) -> list[dict[str, Any]]:
        """Return the current rows that match a filter, as plain data."""
        self.connection.load(collection)
        rows: list[dict[str, Any]] = self.connection.call(
            "query", collection, filter=condition, output_fields=fields, consistency_level="Strong", **options
        )
        return rows

    def ids(self, collection: str, *, condition: str | None = None, after: Cursor | None = None) -> Iterator[list[Id]]:
        """Yield pages of row ids, in ascending order.

        Milvus Lite scans all rows for every query, whatever its limit, so all ids are requested at once. A server returns one page at a time.
        """
        key, condition = self.schema.key, self.rows if condition is None else condition
        if self.connection.lite:
            ids = sorted(row[key] for row in self.query(collection, condition or "", [key]))
            yield ids[0 if after is None else bisect.bisect_right(ids, after) :]
            return
        while True:
            parts = [f"({condition})"] if condition else []
            parts += [] if after is None else [f"{key} > {self._literal(after)}"]
            options = {"limit": _IDS, "iterator": "True", "reduce_stop_for_best": "True"}
            page = [row[key] for row in self.query(collection, " and ".join(parts), [key], **options)]
            if not page:
                return
            yield page
            after = page[-1]

    def _literal(self, id_: object) -> str:
        """Return an id as a literal in a filter expression."""
        return f'"{str(id_).translate(_ESCAPES)}"' if self.schema.text_key else str(int(str(id_)))

    def count(self, collection: str, condition: str | None = None) -> int:
        """Return the number of rows that match a filter."""
        if condition and self.connection.lite:  # Milvus Lite would load every row, with its vector, to count them
            return sum(map(len, self.ids(collection, condition=condition)))
        return int(self.query(collection, condition or "", ["count(*)"])[0]["count(*)"])

    def get(self, collection: str, ids: Sequence[object], fields: list[str]) -> list[dict[str, Any]]:
        """Return the rows of these ids that exist, in the order of the ids."""
        found: dict[Id, dict[str, Any]] = {}
        size = max(1, _BYTES // (4 * self.schema.dim))
        for start in range(0, len(ids), size):
            literals = ",".join(map(self._literal, ids[start : start + size]))
            for row in self.query(collection, f"{self.schema.key} in [{literals}]", fields):
                found[row[self.schema.key]] = row
        return [found[id_] for id_ in ids if id_ in found]

    @property
    def block_fields(self) -> list[str]:
        """Fields to request for ids, vectors and modalities."""
        return list(dict.fromkeys([self.schema.key, self.schema.column, *([self.modality] if self.modality else [])]))

    def block(self, rows: list[dict[str, Any]], width: int) -> Block:
        """Convert rows with vectors of this width to a block."""
        ids = [row[self.schema.key] for row in rows]
        vectors = np.array([row[self.schema.column] for row in rows], np.float32).reshape(len(rows), width)
        modalities = None
        if self.modality is not None:
            values = [row.get(self.modality) for row in rows]
            modalities = pa.array([None if value is None else str(value) for value in values], pa.large_string())
        return Block(pa.array(ids, self.type), vectors, modalities, ids[-1] if ids else 0)

    def pages(
        self, collection: str, fields: list[str], *, after: Cursor | None = None, batch: int = BATCH
    ) -> Iterator[list[dict[str, object]]]:
        """Yield the selected rows in the order of their ids, starting after the id ``after``, which need not exist anymore."""
        for ids in self.ids(collection, after=after):
            for start in range(0, len(ids), batch):
                if found := self.get(collection, ids[start : start + batch], fields):
                    yield found

    def store(self, collection: str, rows: Sequence[Mapping[str, object]], vectors: np.ndarray) -> None:
        """Store complete rows, replacing existing rows with the same ids."""
        # In Milvus Lite an upsert merges with the existing row, which would keep removed fields; an insert replaces the row.
        method = "insert" if self.connection.lite else "upsert"
        size = min(_ROWS, max(1, _BYTES // (4 * vectors.shape[1])))
        for start in range(0, len(rows), size):
            new = np.asarray(vectors[start : start + size], np.float32)
            complete = [
                {**row, self.schema.column: vector} for row, vector in zip(rows[start : start + size], new, strict=True)
            ]
            for name in self.schema.json_fields:
                for row in complete:
                    if isinstance(row.get(name), str):
                        row[name] = json.dumps(row[name])
            self.connection.call(method, collection, complete)

    def delete(self, collection: str, ids: Sequence[object]) -> None:
        """Delete rows by id."""
        for start in range(0, len(ids), _IDS):
            literals = ",".join(map(self._literal, ids[start : start + _IDS]))
            self.connection.call("delete", collection, filter=f"{self.schema.key} in [{literals}]")

    def search(self, collection: str, queries: np.ndarray, k: int) -> list[pa.Array]:
        """Return the ids of the ``k`` nearest selected rows for each query; queries have shape (q, dim)."""
        self.connection.load(collection)
        found: list[pa.Array] = []
        for start in range(0, len(queries), _QUERIES):
            answers = self.connection.call(
                "search",
                collection,
                data=list(np.asarray(queries[start : start + _QUERIES], np.float32)),
                anns_field=self.schema.column,
                limit=k,
                filter=self.rows or "",
                consistency_level="Strong",
            )
            found += [pa.array(list(answer.ids), self.type) for answer in answers]
        return found


def same_fields(row: Mapping[str, object], copy: Mapping[str, object]) -> bool:
    """Return whether a row and its copy, both without the vector, are equal; NaN equals NaN."""
    return row == copy or repr(sorted(row.items())) == repr(sorted(copy.items()))
