"""Elasticsearch and OpenSearch: the contract, with the official clients and a stand-in for the servers."""

from typing import ClassVar

import numpy as np
import pytest
from database_contract import BETWEEN, DIM, DIM_NEW, DatabaseContract, UserRow, make_rows, run
from elastic_server import KEY, Server

from congruence import LinearMap, errors
from congruence.databases import Stage, open_database
from congruence.upgrade.migrate import Migration

elasticsearch = pytest.importorskip("elasticsearch", reason="needs the official client")

VECTOR = {"type": "dense_vector", "dims": DIM, "similarity": "cosine", "index_options": {"type": "int8_hnsw", "m": 12}}
KNN = {"type": "knn_vector", "dimension": DIM, "space_type": "innerproduct", "method": {"name": "hnsw"}}


def serving(**options):
    server = Server(**options)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def running():
    yield from serving()


@pytest.fixture
def server(running, monkeypatch):
    monkeypatch.setenv("ELASTIC_API_KEY", KEY)
    running.clear()
    return running


def client_of(server):
    if server.product == "opensearch":
        return pytest.importorskip("opensearchpy").OpenSearch(server.url, headers={"authorization": f"ApiKey {KEY}"})
    return elasticsearch.Elasticsearch(server.url, api_key=KEY)


def fill_index(server, name, ids, vectors, others, column="embedding", field=None):
    known = {"kind": {"type": "keyword"}, column: {**(field or VECTOR)}}
    with client_of(server) as client:
        client.indices.create(
            index=name, body={"mappings": {"properties": known}, "settings": {"refresh_interval": "9s"}}
        )
        for k, one in enumerate(ids):
            source = {key: values[k] for key, values in others.items()}
            write(server, client, name, one, {**source, column: vectors[k].tolist()})


def write(server, client, name, one, source, **options):
    key = "body" if server.product == "opensearch" else "document"
    client.index(index=name, id=one, **{key: source}, **options)


def documents(server, name):
    index = server.find(name)
    return {one: (doc["_source"], doc.get("_routing")) for one, doc in index.docs.items()}


class TestServer(DatabaseContract):
    """Readers use the alias ``items``, which points to the index ``items_v1``."""

    slow = True
    id_types = ("text",)
    any_names = False
    needed = ("items_v1__congruence_new",)
    named: ClassVar[dict[str, str]] = {"table": "items"}

    @pytest.fixture(autouse=True)
    def _serve(self, server):
        self.server = server

    def clear(self):
        self.server.clear()

    def client(self):
        return client_of(self.server)

    def take(self, where, name):
        with self.client() as client:
            client.indices.create(index=name)

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column=None):
        fill_index(self.server, f"{table}_v1", ids, vectors, others, column)
        with self.client() as client:
            client.indices.update_aliases(actions=[{"add": {"index": f"{table}_v1", "alias": table}}])
        return self.server.address

    def user_rows(self, where, *, table="items", column="embedding", id_column=None):
        rows = {}
        for one, (source, _) in documents(self.server, table).items():
            vector = source.get(column)
            others = {key: value for key, value in source.items() if key != column}
            rows[one] = UserRow(None if vector is None else np.array(vector, np.float32).tobytes(), others)
        return rows

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column=None):
        given = {} if vector is None else {column: vector.tolist()}
        with self.client() as client:
            write(self.server, client, table, one, {**others, **given})

    def user_delete(self, where, one, *, table="items", id_column=None):
        with self.client() as client:
            client.delete(index=table, id=one)

    def give(self, where, situation):
        with self.client() as client:
            client.indices.put_mapping(index="items", properties={"second": VECTOR})
        for one, (source, _) in documents(self.server, "items").items():
            self.user_add(where, one, np.array(source["embedding"]), {**source, "second": source["embedding"]})

    def traces(self, where):
        found = {}
        for name, index in self.server.indexes.items():
            own = {key: value for key, value in index.settings.items() if key.count(".") < 2}
            own = {key: value for key, value in own.items() if key not in ("index.uuid", "index.provided_name")}
            mapping = {**index.mapping, "_meta": index.mapping.get("_meta") or {}}
            found[name.replace("items_v1__congruence_new", "items_v1")] = (mapping, own, index.aliases)
        return found

    between = BETWEEN["elasticsearch"]

    def indexes(self):
        shown = self.server.find("items").name
        return shown, next(name for name in self.server.indexes if name != shown)

    def make_between(self, where, what):
        shown, hidden = self.indexes()
        with self.client() as client:
            if what == "field":
                client.indices.put_mapping(index=shown, properties={"color": {"type": "keyword"}})
            elif what == "metadata":
                client.indices.put_mapping(
                    index=shown, meta=self.server.indexes[shown].mapping["_meta"] | {"team": "a"}
                )
            elif what == "setting":
                client.indices.put_settings(index=shown, settings={"index.refresh_interval": "1s"})
            else:
                client.indices.put_alias(index=hidden if what == "hidden" else shown, name=what)

    def unmake(self, where, what):
        with self.client() as client:
            for name, index in self.server.indexes.items():
                if what == "metadata":
                    client.indices.put_mapping(index=name, meta=index.mapping.get("_meta", {}) | {"team": "a"})
                elif what == "setting":
                    client.indices.put_settings(index=name, settings={"index.refresh_interval": "1s"})
                elif what in index.aliases:
                    client.indices.update_aliases(actions=[{"remove": {"index": name, "alias": what}}])

    def holds(self, where, what):
        index = self.server.find("items")
        if what == "field":
            return "color" in index.mapping["properties"]
        if what == "metadata":
            return index.mapping["_meta"].get("team") == "a"
        return index.settings["index.refresh_interval"] == "1s" if what == "setting" else what in index.aliases

    def filter_of_images(self):
        return '{"term": {"kind": "image"}}'
