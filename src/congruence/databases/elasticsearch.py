"""Elasticsearch and OpenSearch: new vectors are in a second index; the switch moves an alias."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import MARK_KEY, Address, Block, Capabilities, Cursor, DatabaseInfo, Name, NewVectors
from congruence.databases._collections import CollectionDatabase, Collections
from congruence.errors import CongruenceError, DatabaseError

#: Most ids per page and rows per answer, the bytes after which a request is sent, and a time-out in seconds.
_IDS, _ROWS, _BYTES, _TIMEOUT = 10_000, 1000, 8 * 2**20, 60

#: Types of fields of vectors, with the names of their width and of the type of their numbers.
_KINDS = {"dense_vector": ("dims", "element_type"), "knn_vector": ("dimension", "data_type")}

_DISTANCES = {"cosine": "cosine", "cosinesimil": "cosine", "dot_product": "dot", "max_inner_product": "dot"}
_DISTANCES |= {"innerproduct": "dot", "l2_norm": "l2", "l2": "l2"}

#: Settings that an index gets when it is created, or that stop writers.
_GIVEN = re.compile(r"index\.(uuid|creation_date|provided_name|version|history|resize|blocks|routing\..*_recovery)\b")

_BUSY = (408, 409, 429, 500, 502, 503, 504)  # statuses after which a request can be repeated


class Elasticsearch(CollectionDatabase):
    """The vectors of an index of Elasticsearch (``dense_vector``) or OpenSearch (``knn_vector``), behind an alias.

    The address is ``elasticsearch+http://host:9200`` or ``opensearch+https://user@host:9200``, with ``?ca_certs=FILE``
    if need be; the environment variable ``ELASTIC_PASSWORD`` has the user's password or, without a user,
    ``ELASTIC_API_KEY`` a key. ``column`` and ``modality_column`` are fields, with dots between nested ones; ``rows`` is
    a query as JSON, such as ``{"term": {"kind": "image"}}``. All ids are read at once, as no server sorts by them.
    """

    kind = "elasticsearch"
    bare_rows = True
    alias_only = "POST _aliases"
    capabilities = Capabilities(container="index", filters="a query as JSON")

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        refusals.check_options("Elasticsearch, whose documents have exactly one id", ids=ids)
        user = urlsplit(address.text).username
        self._variable = "ELASTIC_PASSWORD" if user else "ELASTIC_API_KEY"
        self._address, key = base.with_key(address, self._variable)
        login = b64encode(f"{unquote(user)}:{key}".encode()).decode() if user else key
        self._open_client({"authorization": f"{'Basic' if user else 'ApiKey'} {login}"} if key else {})
        server = self._ask("GET")["version"]
        newest = tuple(map(int, server["number"].split(".")[:2])) >= (9, 2) and "distribution" not in server
        #: Newer servers leave vectors out of documents unless they are asked for, which older ones refuse.
        hides = newest or server.get("build_flavor") == "serverless"
        self._source: dict[str, Any] = {"exclude_vectors": False} if hides else {}
        self._table = self._find_table(table)
        old = self._find().old
        fields = dict(_leaves(self._mapping(old)))
        dense = [name for name in fields if fields[name]["type"] in _KINDS]
        if column is None:
            column = refusals.only_name(dense, "fields of vectors", repr(old), "column")
        refusals.check_name(column, dense, repr(old), "column")
        refusals.check_name(modality, fields, repr(old), "modality_column")
        self._column, self._dense, self._modality, field = column, dense, modality, fields[column]
        self._dims, kind = _KINDS[field["type"]]
        if self._dims not in field or field.get(kind, "float") != "float":
            raise DatabaseError(f"{column!r} of {old!r} has no width, or no float numbers.", "Migrate another field.")
        self.capabilities = replace(self.capabilities, searches=field.get("index", True))
        if rows is not None:
            self._rows = base.json_in(rows)
            if not self._rows:
                example = 'JSON such as {"term": {"kind": "image"}}'
                raise refusals.refusal("condition", rows, "not a query", example=example)
            self._count(old)

    def _open_client(self, headers: dict[str, str]) -> None:
        parts, elastic = urlsplit(self._address.text), self._address.scheme.startswith("elastic")
        host, where = parts.netloc.rpartition("@")[2], parts.scheme.rpartition("+")[2]
        port = self._call(getattr, parts, "port")  # an error if it is no number
        if not parts.hostname:
            raise DatabaseError(f"{self._address.shown} names no host.", f"Write {self._address.scheme}://host:9200.")
        url = f"{where}://{host}{'' if port else ':9200'}{parts.path.rstrip('/')}"
        options = {"headers": headers, "max_retries": 3, "retry_on_timeout": True, "retry_on_status": (429, 502, 503)}
        options |= {name: values[0] for name, values in parse_qs(parts.query).items() if name == "ca_certs"}
        options["request_timeout" if elastic else "timeout"] = _TIMEOUT
        library = require("elasticsearch" if elastic else "opensearchpy", extra="elasticsearch")
        self._client = self._call(library.Elasticsearch if elastic else library.OpenSearch, url, **options)
        self._perform = (self._client if elastic else self._client.transport).perform_request

    def _ask(self, method: str, index: str = "", path: str = "", body: object = None, **params: object) -> Any:
        """Return the answer to a request; an answer of some of the shards is none."""
        kind = "application/x-ndjson" if isinstance(body, str) else "application/json"
        headers = {"accept": "application/json", "content-type": kind}  # known to every version of the server
        path = "/" + "/".join(filter(None, (quote(index, safe=""), path)))
        found = self._call(self._perform, method, path, params=params, headers=headers, body=body)
        answer = getattr(found, "body", found)
        failed = answer.get("timed_out") or answer.get("failures") or (answer.get("_shards") or {}).get("failed")
        refusals.refuse(failed, "no answer", self._address.shown, reason="it was not of all shards")
        return answer

    def _translate(self, error: Exception) -> CongruenceError | None:
        if type(error).__module__.partition(".")[0] not in ("elasticsearch", "elastic_transport", "opensearchpy"):
            return (
                refusals.refusal("rejected", self._address.shown, str(error)[:200])
                if isinstance(error, ValueError)
                else None
            )
        told = getattr(error, "body", None) or getattr(error, "info", None)
        cause = told.get("error") if isinstance(told, dict) else None
        said = (cause.get("reason") if isinstance(cause, dict) else cause) or error
        return self._failure(getattr(error, "status_code", None), str(said), "Product" in type(error).__name__)

    def _failure(self, status: object, said: str, other: bool = False) -> CongruenceError:
        where, message = self._address.shown, self._address.hide(" ".join(said.split()))[:500]
        if "flood-stage" in message:
            return refusals.refusal("full disk", where, message)
        if status in (401, 403):
            return refusals.refusal("no access", where, message, variable=self._variable)
        lost = not isinstance(status, int) and not other
        return refusals.refusal("no answer" if lost or status in _BUSY else "rejected", where, message)

    # ---- indexes and aliases -----------------------------------------------------------------------------------------

    def _indexes(self) -> dict[str, dict[str, Any]]:
        """Return the aliases of each index, with their settings."""
        found = self._ask("GET", path="_alias").items()
        return {name: facts["aliases"] for name, facts in found if not name.startswith(".")}

    def _names(self) -> list[str]:
        return list(self._indexes())

    def _aliases(self) -> dict[str, str]:
        """Return the index of each alias that has only one."""
        found = [(alias, name) for name, aliases in self._indexes().items() for alias in aliases]
        names = [alias for alias, _ in found]
        return {alias: name for alias, name in found if names.count(alias) == 1}

    def _aliases_of(self, collection: str) -> list[str]:
        return list(self._indexes()[collection])

    def _move_alias(self, collection: str) -> None:
        alias, old = self._table, self._aliases()[self._table]
        add = {**self._indexes()[old][alias], "index": collection, "alias": alias}  # with its filter and routing
        self._ask("POST", "_aliases", body={"actions": [{"remove": {"index": old, "alias": alias}}, {"add": add}]})

    def _mapping(self, collection: str) -> dict[str, Any]:
        return dict(self._ask("GET", collection, "_mapping")[collection]["mappings"])

    def _field(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        return dict(_leaves(mapping))[self._column]

    def _settings_of(self, collection: str) -> dict[str, Any]:
        found = self._ask("GET", collection, "_settings", flat_settings="true")[collection]["settings"]
        return {key: value for key, value in found.items() if not _GIVEN.match(key)}

    def _settings(self, collection: str) -> Mapping[str, object]:
        metadata = base.own_metadata(self._mapping(collection).get("_meta"))
        return {"metadata": metadata, "setting": self._settings_of(collection)}

    def _mark_of(self, collection: str) -> Mapping[str, Any]:
        return dict((self._mapping(collection).get("_meta") or {}).get(MARK_KEY) or {})

    def _unmark(self, collection: str) -> None:
        metadata = dict(self._mapping(collection).get("_meta") or {})
        if metadata.pop(MARK_KEY, None):
            self._ask("PUT", collection, "_mapping", {"_meta": metadata})

    def check(self, new: NewVectors) -> None:
        super().check(new)
        old = self._place().old
        settings, mapping = self._settings_of(old), self._mapping(old)
        source, kinds = mapping.get("_source") or {}, {field["type"] for _, field in _leaves(mapping)}
        for wrong, what in (
            (settings.get("index.final_pipeline", "_none") != "_none", "a final pipeline, which would change copies"),
            ("semantic_text" in kinds, "semantic_text, which the server would encode again"),
            (re.search(r"\.lifecycle\.|state_management", " ".join(settings)), "a lifecycle policy"),
            (source.get("enabled") is False or source.keys() & {"includes", "excludes"}, "parts that are not stored"),
        ):
            if wrong:
                raise DatabaseError(f"{old!r} has {what}.", "Copy it into an index without (`POST _reindex`).")

    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        mapping = self._mapping(place.old)
        self._field(mapping)[self._dims] = new.dim
        mapping["_meta"] = base.metadata_for_new(mapping.get("_meta"), mark)
        self._ask("PUT", place.new, body={"settings": self._settings_of(place.old), "mappings": mapping})

    def _index_like(self, like: str, collection: str) -> None:
        """Give an index the fields that another has got since."""
        wanted, have = self._mapping(like), self._mapping(collection)
        self._field(wanted)[self._dims] = self._field(have)[self._dims]
        if wanted["properties"] != have["properties"]:
            self._ask("PUT", collection, "_mapping", {"properties": wanted["properties"]})

    def _drop(self, collection: str) -> None:
        self._ask("DELETE", collection)

    # ---- documents ---------------------------------------------------------------------------------------------------

    def _width(self, collection: str) -> int:
        return int(self._field(self._mapping(collection))[self._dims])

    def _query(self, having: bool | None = True, rows: object = None) -> dict[str, Any]:
        """Return the query of documents with the vector, without it, or of all, that satisfy a condition."""
        query: dict[str, list[object]] = {"filter": [rows] if rows else [], "must_not": []}
        if having is not None:
            query["filter" if having else "must_not"].append({"exists": {"field": self._column}})
        return {"bool": query}

    def _search(self, collection: str, body: dict[str, Any], **params: object) -> Any:
        """Return the answer to a search that finds all that was written before."""
        self._ask("POST", collection, "_refresh")
        return self._ask("POST", collection, "_search", body, **params)["hits"]

    def _count(self, collection: str, *, all_rows: bool = False, having: bool | None = True) -> int:
        query = self._query(having, None if all_rows else self._rows)
        found = self._search(collection, {"query": query, "track_total_hits": True, "size": 0})
        return int(found["total"]["value"])

    def _sorted_ids(self, collection: str, query: dict[str, Any]) -> list[str]:
        ids: list[str] = []
        self._ask("POST", collection, "_refresh")
        body = {"query": query, "size": _IDS, "sort": ["_doc"], "_source": False}
        page = self._ask("POST", collection, "_search", body, scroll="5m")
        while page["hits"]["hits"]:
            ids += [hit["_id"] for hit in page["hits"]["hits"]]
            page = self._ask("POST", "_search", "scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
        self._ask("DELETE", "_search", "scroll", {"scroll_id": page["_scroll_id"]})
        return sorted(ids)

    def _ids(self, collection: str, *, after: Cursor | None = None) -> Iterator[list[str]]:
        ids = self._sorted_ids(collection, self._query(rows=self._rows))
        yield [name for name in ids if after is None or name > str(after)]

    def _others(self, collection: str, ids: list[Any], fields: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the documents of these ids, complete by default; vectors are taken out, with where they were."""
        found: list[Any] = []
        for start in range(0, len(ids), _ROWS):
            query, source = {"ids": {"values": ids[start : start + _ROWS]}}, self._source | dict(fields or {})
            body = {"query": query, "size": _ROWS, "_source": source or True, "seq_no_primary_term": True}
            found += self._search(collection, body)["hits"]
        for hit in found:
            places = {field: _find(hit["_source"], field) for field in self._dense}
            held = {field: (*at, at[0].pop(at[1])) for field, at in places.items() if at[0].get(at[1]) is not None}
            hit["vectors"] = held
        return sorted(found, key=self._id_of)

    def _records(self, collection: str, ids: list[Any], *, whole: bool = False) -> list[Any]:
        fields = {"includes": [self._column, *([self._modality] if self._modality else [])]}
        return [
            hit for hit in self._others(collection, ids, None if whole else fields) if self._column in hit["vectors"]
        ]

    def _bare(self, collection: str) -> Iterator[list[Any]]:
        ids = self._sorted_ids(collection, self._query(having=False))
        for start in range(0, len(ids), _ROWS):
            yield self._others(collection, ids[start : start + _ROWS])

    def _id_of(self, record: Any) -> str:
        return str(record["_id"])

    def _block(self, collection: str | None, records: list[Any], width: int) -> Block:
        modalities = None
        if self._modality is not None:
            places = (_find(hit["_source"], self._modality) for hit in records)
            modalities = base.texts(owner.get(name) for owner, name in places)
        ids, rows = [hit["_id"] for hit in records], [hit["vectors"][self._column][-1] for hit in records]
        vectors = self._call(np.array, rows, np.float32).reshape(len(ids), width)
        return Block(pa.array(ids, pa.large_string()), vectors, modalities, ids[-1] if ids else "")

    def _same(self, record: Any, copy: Any) -> bool:
        ours, theirs = record["vectors"], copy["vectors"]
        others = ours.keys() - {self._column}  # which some servers round
        same = ours.keys() == theirs.keys() and all(record.get(key) == copy.get(key) for key in ("_source", "_routing"))
        return same and all(np.allclose(ours[one][-1], theirs[one][-1], rtol=1e-5, atol=1e-6) for one in others)

    def _store(self, collection: str, records: list[Any], vectors: Any, *, unless_changed: bool = False) -> None:
        lines: list[str] = []
        for k, hit in enumerate(records):
            action = {"_id": hit["_id"], **({"routing": hit["_routing"]} if "_routing" in hit else {})}
            if unless_changed:
                action |= {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
            for field, (owner, name, vector) in hit["vectors"].items():
                if field != self._column:
                    owner[name] = vector
                elif vectors is not None:
                    owner[name] = vectors[k].tolist()
            lines += [json.dumps({"index": action}), json.dumps(hit["_source"])]
            if k + 1 == len(records) or sum(map(len, lines)) > _BYTES:
                # Documents that were read went through the index's pipeline already.
                answer = self._ask("POST", collection, "_bulk", "\n".join([*lines, ""]), pipeline="_none")
                for item in answer["items"] if answer["errors"] else ():
                    if "error" in item["index"]:
                        raise self._failure(item["index"]["status"], str(item["index"]["error"].get("reason")))
                lines = []

    def _replace(self, collection: str, records: list[Any], vectors: np.ndarray) -> None:
        self._store(collection, records, vectors, unless_changed=True)

    def _delete(self, collection: str, ids: list[Any]) -> None:
        for start in range(0, len(ids), _IDS):
            body = {"query": {"ids": {"values": ids[start : start + _IDS]}}}
            self._ask("POST", collection, "_refresh")  # what was written since is not found, or is passed over
            self._ask("POST", collection, "_delete_by_query", body, conflicts="proceed")

    def info(self) -> DatabaseInfo:
        old = self._place().old
        mapping = self._mapping(old)
        field, rows = self._field(mapping), self._count(old)
        options = field.get("index_options") or field.get("method") or {}
        default = options.get("space_type", "cosine" if self._dims == "dims" else "l2")
        return DatabaseInfo(
            place=f"{self._address.shown} {self._table}",
            rows=rows,
            rows_without=self._count(old, having=None) - rows,
            dim=int(field[self._dims]),
            distance=_DISTANCES.get(field.get("similarity") or field.get("space_type") or default),
            index=options.get("type") or options.get("name"),
            space=base.space_in(mapping.get("_meta"), old),
        )

    def _nearest(self, collection: str, queries: np.ndarray, k: int) -> list[pa.Array]:
        found, more = [], {"k": k, **({"filter": self._rows} if self._rows else {})}
        for query in queries.tolist():
            body: dict[str, Any] = {"query": {"knn": {self._column: {**more, "vector": query}}}}
            if self._dims == "dims":
                looked_at = min(10_000, max(100, 4 * k))
                body = {"knn": {**more, "field": self._column, "query_vector": query, "num_candidates": looked_at}}
            hits = self._search(collection, {**body, "size": k, "_source": False})["hits"]
            found.append(pa.array([hit["_id"] for hit in hits], pa.large_string()))
        return found

    def close(self) -> None:
        self._client.close()


def _leaves(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a mapping with their paths, without those of nested documents."""
    for name, field in (mapping.get("properties") or {}).items():
        if field.get("type", "object") == "object":
            yield from _leaves(field, f"{before}{name}.")
        elif field["type"] != "nested":
            yield f"{before}{name}", field


def _find(source: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the object of a document that holds the value at a path, and its name there; or an empty object."""
    for key, inner in source.items():
        if isinstance(inner, dict) and path.startswith(f"{key}."):
            owner, name = _find(inner, path[len(key) + 1 :])
            if name in owner:
                return owner, name
    return (source if path in source else {}), path
