"""Elasticsearch and OpenSearch: the contract, with the official clients and a stand-in for the servers."""

import base64
import io
import logging
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from database_contract import BETWEEN, DIM, DIM_NEW, DatabaseContract, UserRow, make_rows, run
from elastic_server import KEY, Server, flat

from congruence import OrthogonalMap, errors
from congruence.databases import Stage, open_database

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


def rotation(rows):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(DIM + 2, DIM + 2)))[0][:DIM]
    return OrthogonalMap(center=False).fit(rows, (rows @ turn).astype(np.float32))


def documents(server, name):
    index = server.find(name)
    return {one: (doc["_source"], doc.get("_routing")) for one, doc in index.docs.items()}


class TestServer(DatabaseContract):
    """Readers use the alias ``items``, which points to the index ``items_v1``."""

    kind = "elasticsearch"
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
                    index=shown, meta=self.server.indexes[shown].mapping.get("_meta", {}) | {"team": "a"}
                )
            elif what == "setting":
                client.indices.put_settings(index=shown, settings={"index.refresh_interval": "1s"})
            else:
                add = {"index": hidden if what == "hidden" else shown, "alias": what}
                client.indices.update_aliases(actions=[{"add": add}])

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
        if what == "setting":
            return index.settings["index.refresh_interval"] == "1s"
        return any(what in one.aliases for one in self.server.indexes.values())

    def filter_of_images(self):
        return '{"term": {"kind": "image"}}'


@pytest.fixture(
    params=[
        pytest.param(("elasticsearch", "8.15.0"), marks=pytest.mark.long),
        ("elasticsearch", "9.2.1"),
        pytest.param(("opensearch", "2.19.0"), marks=pytest.mark.long),
    ]
)
def docs(request, monkeypatch):
    """30 documents behind the alias ``docs``: vectors in an object or under a name with a dot, and a second field."""
    product, version = request.param
    monkeypatch.setenv("ELASTIC_API_KEY", KEY)
    for server in serving(product=product, version=version):
        vector = {**(KNN if product == "opensearch" else VECTOR)}
        text = {"properties": {"vector": vector, "lang": {"type": "keyword"}}}
        known = {"text": text, "other": {**vector}, "n": {"type": "long"}}
        rows = make_rows("text", 30)[1].tolist()
        with client_of(server) as client:
            body = {"mappings": {"properties": known}, "settings": {"index.default_pipeline": "p"}}
            client.indices.create(index="docs-v1", body=body)
            add = {"index": "docs-v1", "alias": "docs", "filter": {"exists": {"field": "n"}}, "is_write_index": True}
            client.indices.update_aliases(body={"actions": [{"add": add}]})
            for k, row in enumerate(rows):
                lang, value = "en" if k % 2 else "de", row if k else None
                nested = (
                    {"text": {"vector": value, "lang": lang}} if k % 3 else {"text.vector": value, "text.lang": lang}
                )
                write(server, client, "docs", f"d{k}", {**nested, "other": row, "n": k}, routing=f"r{k % 4}")
        yield server


def test_documents_of_every_shape_are_kept(docs, here, tmp_path, monkeypatch):
    """From plan to finish, with rows that change meanwhile."""
    before = documents(docs, "docs")
    assert {source["piped"] for source, _ in before.values()} == {1}
    old = {one: dict(flat(source)).get("text.vector") for one, (source, _) in before.items()}
    mapping = rotation(np.array([row for row in old.values() if row], np.float32))
    mapping.save(tmp_path / "map")
    options = ["--column", "text.vector", "--modality", "text", "--yes"]
    here("migrate", docs.address, "run", "--map", "map", *options).ends(0)
    assert documents(docs, "docs") == before
    with client_of(docs) as client:
        later = {"text": {"vector": old["d1"], "lang": "fr"}, "other": old["d1"], "n": 99, "color": "red"}
        write(docs, client, "docs", "later", later, routing="r1")
        client.delete(index="docs", id="d2", routing="r2")
    here("migrate", docs.address, "switch").ends(0)
    shown = docs.find("docs")
    assert shown.name == "docs-v1__congruence_new"
    assert shown.aliases["docs"] == {"filter": {"exists": {"field": "n"}}, "is_write_index": True}
    after = documents(docs, "docs")
    assert after.keys() == (before.keys() | {"later"}) - {"d2"}
    for one, (source, routing) in after.items():
        was, wanted = (later | {"piped": 1}, "r1") if one == "later" else before[one]
        assert routing == wanted
        vector, given = dict(flat(source)).get("text.vector"), dict(flat(was)).get("text.vector")
        assert (vector is None) == (given is None)
        if vector:
            np.testing.assert_allclose(vector, mapping.transform(np.array([given]), role="store")[0], atol=1e-5)
        assert {**dict(flat(source)), "text.vector": 0} == {**dict(flat(was)), "text.vector": 0}
        assert source.keys() == was.keys()
    here("migrate", docs.address, "rollback", "--new-rows", "map-back").ends(0)
    now = documents(docs, "docs")
    assert {one: row for one, row in now.items() if one in before} == {
        one: before[one] for one in before if one != "d2"
    }
    for step in (["verify"], ["switch"], ["finish", "--yes"]):
        here("migrate", docs.address, *step).ends(0)
    assert list(docs.indexes) == ["docs-v1__congruence_new"]
    assert not docs.scrolls  # each is closed
    with open_database(docs.address, column="text.vector", modality_column="text.lang") as database:
        assert database.stage() is Stage.UNTOUCHED
        assert {*next(database.scan()).modalities.to_pylist()} == {"en", "de", "fr"}


def test_a_lost_connection_a_busy_server_and_a_part_of_the_shards(docs):
    with open_database(docs.address, column="text.vector") as database:
        docs.faults += [("_search", 429), ("_search", "drop"), ("_refresh", 503)]
        assert database.count() == 29  # the client asks again
        for fault, said in ((("_search", "part"), "not of all shards"), (("_search", 500), "injected")):
            docs.faults.append(fault)
            with pytest.raises(errors.DatabaseUnavailableError, match=f"no answer.*{said}"):
                database.count()
        database.prepare(DIM_NEW, "float32", {"map": "abc"})
        docs.faults.append(("_bulk", "item"))
        with pytest.raises(errors.DatabaseUnavailableError, match="rejected execution"):
            run(database)
        docs.faults.append(("_refresh", 403))
        with pytest.raises(errors.DatabaseError, match="no access.*ELASTIC_API_KEY"):
            database.count()
        with pytest.raises(errors.DatabaseError, match="different number of dimensions"):
            database._store("docs-v1__congruence_new", database._others("docs-v1", ["d1"]), np.ones((1, 3)))


def test_what_cannot_be_migrated_is_refused_before_anything_is_written(docs):
    with pytest.raises(errors.ParameterError, match=r"2 fields of vectors \('other', 'text.vector'\)"):
        open_database(docs.address)
    with (
        open_database(docs.address, table="docs-v1", column="other") as database,
        pytest.raises(errors.MigrationError, match="names the index itself.*pass `?table='docs'"),
    ):
        database.prepare(DIM_NEW)
    with open_database(docs.address, column="other") as database, client_of(docs) as client:
        for key, said in (("index.final_pipeline", "final pipeline"), ("index.lifecycle.name", "lifecycle")):
            docs.indexes["docs-v1"].settings[key] = "p"
            with pytest.raises(errors.DatabaseError, match=said):
                database.prepare(DIM_NEW)
            del docs.indexes["docs-v1"].settings[key]
        docs.indexes["docs-v1"].mapping["properties"]["s"] = {"type": "semantic_text"}
        with pytest.raises(errors.DatabaseError, match="semantic_text"):
            database.prepare(DIM_NEW)
        del docs.indexes["docs-v1"].mapping["properties"]["s"]
        client.indices.create(index="docs-v0")
        client.indices.update_aliases(
            body={"actions": [{"add": {"index": name, "alias": "both"}} for name in ("docs-v0", "docs-v1")]}
        )
        with pytest.raises(errors.DatabaseError, match="the alias 'both', which stays"):
            database.prepare(DIM_NEW)
    assert list(docs.indexes) == ["docs-v1", "docs-v0"]
    for rows in ("kind = 1", "[]", "{}"):
        with pytest.raises(errors.ParameterError, match="not a query"):
            open_database(docs.address, table="docs", column="other", rows=rows)
    with pytest.raises(errors.ParameterError, match="expected one of those"):
        open_database(docs.address, table="both", column="other")


def test_no_message_has_the_key(docs, monkeypatch, here):
    wrong = "s3cret-word"
    handler, root = logging.StreamHandler(log := io.StringIO()), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(root, "level", logging.DEBUG)
    monkeypatch.setenv("ELASTIC_API_KEY", wrong)
    said = here("migrate", docs.address, "status").refused("no access")
    assert wrong not in said.err + said.out
    user = docs.address.replace("//", "//me@")
    monkeypatch.setenv("ELASTIC_PASSWORD", wrong)
    said = here("migrate", user, "status").refused("ELASTIC_PASSWORD")
    assert wrong not in said.err + said.out
    monkeypatch.setenv("ELASTIC_PASSWORD", KEY)
    with open_database(user, column="other") as database:
        assert KEY not in repr(vars(database))
    with pytest.raises(errors.ParameterError, match="ELASTIC_PASSWORD"):
        open_database(docs.address.replace("//", f"//me:{wrong}@"))
    docs.faults += [("", "drop")] * 9
    with pytest.raises(errors.DatabaseUnavailableError, match="no answer"):
        open_database(user, column="other")
    assert log.getvalue()
    for secret in (wrong, KEY, *(base64.b64encode(f"me:{one}".encode()).decode() for one in (wrong, KEY))):
        assert secret not in log.getvalue()


def test_another_server_is_no_elasticsearch(monkeypatch):
    monkeypatch.setenv("ELASTIC_API_KEY", KEY)
    for server in serving(product="opensearch"):
        with pytest.raises(errors.DatabaseError, match="not Elasticsearch"):
            open_database(server.address.replace("opensearch", "elasticsearch"))


def test_what_was_written_since_the_last_refresh_is_deleted_too(docs):
    with open_database(docs.address, column="other") as database, client_of(docs) as client:
        run(database)
        new = docs.find("docs").name + "__congruence_new"
        write(docs, client, new, "d2", {"n": 5}, routing="r2")
        database.delete(pa.array(["d1", "d2"]))
        assert docs.find(new).docs.keys() == {f"d{k}" for k in range(30)} - {"d1", "d2"}


@pytest.mark.parametrize("host", ["127.0.0.1:x", "127.0.0.1:99999", ""])
@pytest.mark.parametrize("scheme", ["elasticsearch+http", "opensearch+https", "chroma+http", "milvus+http"])
def test_an_address_that_is_none_is_refused(scheme, host):
    with pytest.raises(errors.CongruenceError):
        open_database(f"{scheme}://{host}")
