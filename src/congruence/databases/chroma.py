"""Chroma, as a folder or a server: new vectors are written to a second collection, and the switch renames both."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import MARK_KEY, Address, Block, Capabilities, Cursor, DatabaseInfo, Name, NewVectors
from congruence.databases._collections import ROLE, CollectionDatabase, Collections
from congruence.errors import CongruenceError, FileError

API_KEY = "CHROMA_API_KEY"  # environment variable with the server's token, which is not allowed in an address
_SAMPLE = 1000  # number of rows from which the metadata keys are determined
_FIELDS = ["metadatas", "documents", "uris"]  # fields of a record besides its id and vector

#: Suffix of the collection whose metadata is the mark: Chroma cannot remove all metadata of a collection.
_MARK = "__congruence_tag"

_ROOM = 2**20  # free bytes with less than which a folder cannot be written

_DISTANCES = {"cosine": "cosine", "ip": "dot", "l2": "l2"}


class Chroma(CollectionDatabase):
    """The vectors of a Chroma collection, in a folder or on a server.

    Documents, metadata and URIs are copied. After a switch, readers must look up the collection by name again.

    The address is ``chroma:///path``, which only one process may have open, or ``chroma+http://host:8000``, with
    ``?tenant=…&database=…`` if need be and the token in the environment variable ``CHROMA_API_KEY``. ``rows`` is a
    ``where`` filter as JSON, such as ``{"kind": "image"}``. All ids are read at once, as Chroma cannot continue a scan.
    """

    kind = "chroma"
    longest_name = 512
    capabilities = Capabilities(container="collection", atomic_switch=False, filters="a Chroma where filter as JSON")

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        refusals.check_options("Chroma, whose records have exactly one embedding and one id", column=column, ids=ids)
        self._address, self._token = base.with_key(address, API_KEY)
        self._folder = base.folder_in(address) if address.scheme == "chroma" else None
        if self._folder is not None:
            self.capabilities = replace(self.capabilities, concurrent_writes=False)
            if not (self._folder / "chroma.sqlite3").is_file():  # the client would create a new folder
                raise FileError(
                    f"{address.shown} has no chroma.sqlite3.", "Pass a folder that chromadb.PersistentClient created."
                )
        with self._errors():
            self._client = self._open_client()
            #: Maximum number of records per request.
            self._most = max(1, int(self._client.get_max_batch_size()))
        if rows is not None:
            example = 'a JSON object such as {"kind": "image"}'
            try:
                self._rows = json.loads(rows)
            except ValueError as error:
                raise refusals.refusal("condition", rows, f"not JSON: {error}", example=example) from error
            if not isinstance(self._rows, dict) or not self._rows:
                raise refusals.refusal("condition", rows, "not a Chroma where filter", example=example)
        self._modality = modality
        self._table = self._find_table(table)
        old = self._open(self._place().old)
        if self._rows is not None:
            self._call(old.get, where=self._rows, limit=1, include=[])
        if modality is not None:
            refusals.check_name(modality, self._fields(old), f"the first rows of {self._table!r}", "modality_column")

    def _open_client(self) -> Any:
        chromadb = require("chromadb", extra="chroma")
        if self._folder is not None:
            return chromadb.PersistentClient(path=str(self._folder))
        parts = urlsplit(self._address.text)
        options: dict[str, object] = {
            name: values[0] for name, values in parse_qs(parts.query).items() if name in ("tenant", "database")
        }
        if self._token is not None:
            options["headers"] = {"x-chroma-token": self._token}
        secure = self._address.scheme == "chroma+https"
        port = parts.port or (443 if secure else 8000)
        return chromadb.HttpClient(host=parts.hostname or "localhost", port=port, ssl=secure, **options)

    def _translate(self, error: Exception) -> CongruenceError | None:
        where, name = self._address.shown, type(error).__name__
        message = self._address.hide(str(error) or name)
        module = type(error).__module__.partition(".")[0]
        if self._folder is not None and (self.free_bytes() or 0) < _ROOM:  # not all of its errors say so
            return refusals.refusal("full disk", where, message)
        unavailable = module in ("httpx", "httpcore") or name in ("RateLimitError", "OperationalError")
        if "Could not connect" in message or unavailable:
            return refusals.refusal("no answer", where, message)
        theirs = module in ("chromadb", "chromadb_rust_bindings")
        if theirs or isinstance(error, (ValueError, TypeError, OSError, sqlite3.Error)):
            return refusals.refusal("rejected", where, message)
        return None

    def _names(self) -> list[str]:
        return [one.name for one in self._call(self._client.list_collections) if not _is_mark(one)]

    def _open(self, collection: str) -> Any:
        return self._call(self._client.get_collection, collection, embedding_function=None)

    def _mark_of(self, collection: str) -> Mapping[str, Any]:
        name, known = ROLE.sub("", collection) + _MARK, self._call(self._client.list_collections)
        found = [one for one in known if one.name == name and _is_mark(one)]
        mark = base.mark_in(found[0].metadata[MARK_KEY]) if found else {}
        ours = [str(one.id) for one in known if one.name == collection]
        return mark if mark.get("id") in (None, *ours) else {}

    def _unmark(self, collection: str) -> None:
        name = ROLE.sub("", collection) + _MARK
        if any(one.name == name and _is_mark(one) for one in self._call(self._client.list_collections)):
            self._call(self._client.delete_collection, name)

    def _settings(self, collection: str) -> Mapping[str, object]:
        found = self._open(collection)
        return {"metadata": base.own_metadata(found.metadata), "configuration": _index_of(found)}

    def check(self, new: NewVectors) -> None:
        super().check(new)
        refusals.refuse(self._table + _MARK in self._names(), "not ours", self._table + _MARK)

    def _width(self, collection: Any) -> int:
        return 0  # a block has the width of its vectors

    def _rename(self, collection: str, name: str) -> None:
        self._call(self._open(collection).modify, name=name)

    def _drop(self, collection: str) -> None:
        self._call(self._client.delete_collection, collection)

    def _remove_new(self) -> None:
        super()._remove_new()
        self._unmark(self._table)

    def _fields(self, collection: Any) -> tuple[str, ...]:
        found = self._call(collection.get, limit=_SAMPLE, include=["metadatas", "documents"])
        keys = dict.fromkeys(key for metadata in found["metadatas"] for key in metadata or {})
        return (*keys, *(["document"] if any(document is not None for document in found["documents"]) else []))

    def _get(self, collection: Any, ids: list[str], include: list[str]) -> dict[str, Any]:
        found: dict[str, list[Any]] = {key: [] for key in ["ids", *include]}
        for start in range(0, len(ids), self._most):
            got = self._call(collection.get, ids=ids[start : start + self._most], include=include)
            for key in found:
                found[key] += list(got[key])
        order = sorted(range(len(found["ids"])), key=found["ids"].__getitem__)
        return {key: [values[k] for k in order] for key, values in found.items()}

    def _records(self, collection: Any, ids: list[Any], *, whole: bool = False) -> list[Any]:
        fields = _FIELDS if whole else ["metadatas"] if self._modality else []
        return _as_records(self._get(collection, ids, ["embeddings", *fields]))

    def _others(self, collection: Any, ids: list[Any]) -> list[Any]:
        return _as_records(self._get(collection, ids, _FIELDS))

    def _id_of(self, record: Any) -> object:
        return record["ids"]

    def _same(self, record: Any, copy: Any) -> bool:
        return all(record[field] == copy[field] for field in _FIELDS)

    def _block(self, collection: Any, records: list[Any], width: int) -> Block:
        ids = [record["ids"] for record in records]
        vectors = [record["embeddings"] for record in records] if records else np.empty((0, width))
        modalities = None
        if self._modality is not None:
            modalities = base.texts((record["metadatas"] or {}).get(self._modality) for record in records)
        rows = np.ascontiguousarray(vectors, np.float32)
        return Block(pa.array(ids, pa.large_string()), rows, modalities, ids[-1] if ids else "")

    def _ids(self, collection: Any, *, after: Cursor | None = None) -> Iterator[list[str]]:
        ids = sorted(self._call(collection.get, where=self._rows, include=[])["ids"])
        yield [name for name in ids if after is None or name > str(after)]

    def _delete(self, collection: str, ids: list[Any]) -> None:
        for start in range(0, len(ids), self._most):
            self._call(self._open(collection).delete, ids=ids[start : start + self._most])

    def info(self) -> DatabaseInfo:
        old = self._open(self._place().old)
        first = self._call(old.get, limit=1, include=["embeddings"])["embeddings"]
        kind = "hnsw" if old.configuration_json.get("hnsw") else "spann"
        config = old.configuration_json.get(kind) or {}
        parameters = f"m={config.get('max_neighbors')}, ef_construction={config.get('ef_construction')}"
        return DatabaseInfo(
            place=f"{self._address.shown} {self._table}",
            rows=self.count(),
            dim=int(np.shape(first)[1]) if len(first) else 0,
            distance=_DISTANCES.get(str(config.get("space"))),
            index=f"{kind.upper()} ({parameters})",
            id_type="text",
            space=base.space_in(old.metadata, self._table),
        )

    def _count(self, collection: Any, *, all_rows: bool = False) -> int:
        if self._rows is not None and not all_rows:
            return sum(map(len, self._ids(collection)))
        return int(self._call(collection.count))

    def _nearest(self, collection: Any, queries: np.ndarray, k: int) -> list[pa.Array]:
        found = self._call(collection.query, query_embeddings=queries, n_results=k, where=self._rows, include=[])
        return [pa.array(ids, pa.large_string()) for ids in found["ids"]]

    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        old = self._open(place.old)
        self._unmark(place.old)  # of a run that was killed here
        metadata = {MARK_KEY: json.dumps(mark)}
        self._call(self._client.create_collection, self._table + _MARK, embedding_function=None, metadata=metadata)
        made = self._call(
            self._client.create_collection,
            place.new,
            embedding_function=None,  # that of the old collection belongs to the old model
            configuration=_index_of(old),
            metadata=base.own_metadata(old.metadata) or None,
        )
        # Names may change, and others may use ours.
        metadata = {MARK_KEY: json.dumps({**mark, "id": str(made.id)})}
        self._call(self._open(self._table + _MARK).modify, metadata=metadata)

    def _store(self, collection: Any, records: list[Any], vectors: np.ndarray) -> None:
        # Delete and add, since an upsert would merge the metadata with the existing one. If the process is killed in
        # between, the next pass writes the missing rows.
        self._delete(collection.name, self._get(collection, [record["ids"] for record in records], [])["ids"])
        for start in range(0, len(records), self._most):
            part = records[start : start + self._most]
            fields = {key: [record[key] for record in part] for key in _FIELDS}
            others = {key: values for key, values in fields.items() if any(value is not None for value in values)}
            embeddings = vectors[start : start + self._most]
            self._call(collection.add, ids=[record["ids"] for record in part], embeddings=embeddings, **others)

    def _replace(self, collection: Any, records: list[Any], vectors: np.ndarray) -> None:
        for start in range(0, len(records), self._most):
            ids = [record["ids"] for record in records[start : start + self._most]]
            self._call(collection.update, ids=ids, embeddings=vectors[start : start + self._most])

    def close(self) -> None:
        """Close the client: a folder's files, with the last of its clients. Some releases cannot."""
        getattr(self._client, "close", lambda: None)()
        if self._folder is None:  # that of a server leaves its connection open
            session = getattr(getattr(self._client, "_server", None), "_session", None)
            getattr(session, "close", lambda: None)()


def _is_mark(collection: Any) -> bool:
    """Return whether a collection is empty and only says what a migration has made."""
    return bool(collection.name.endswith(_MARK) and MARK_KEY in (collection.metadata or {}))


def _index_of(collection: Any) -> dict[str, Any]:
    """Return the settings of a collection's index."""
    return {key: value for key in ("hnsw", "spann") if (value := collection.configuration_json.get(key))}


def _as_records(found: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
