"""Qdrant: the contract over its REST API and on a folder, and special cases of collections and aliases."""

import json
import time
import warnings
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from database_contract import BETWEEN, DIM, DIM_NEW, DatabaseContract, UserRow, make_rows, run, without_new
from qdrant_client import QdrantClient, models
from qdrant_client.local.persistence import CollectionPersistence
from qdrant_server import KEY, Server

from congruence import LinearMap, errors
from congruence.databases import Stage, _base, open_database, qdrant
from congruence.upgrade.migrate import Migration

pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")

FULL = "No space left on device: WAL buffer size exceeds available disk space"
IMAGES = '{"must": [{"key": "kind", "match": {"value": "image"}}]}'


@pytest.fixture(scope="module")
def running():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(running, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", KEY)
    running.clear()
    yield running
    running.clear()


def fill_collection(client, name, ids, vectors, others, column="", distance="Dot", **config):
    params = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection(name, {column: params} if column else params, **config)
    rows = vectors.tolist()
    payloads = [{key: values[k] for key, values in others.items()} for k in range(len(ids))]
    batch = models.Batch(ids=ids, vectors={column: rows} if column else rows, payloads=payloads)
    client.upsert(name, batch)


def alias(client, name, collection):
    operation = models.CreateAlias(alias_name=name, collection_name=collection)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=operation)])


def unalias(client, name):
    operation = models.DeleteAlias(alias_name=name)
    client.update_collection_aliases([models.DeleteAliasOperation(delete_alias=operation)])


class Contract(DatabaseContract):
    """Readers use the alias ``items``, which points to the collection ``items_v1``."""

    kind = "qdrant"
    any_names = False
    needed = ("items_v1__congruence_new",)
    named: ClassVar[dict[str, str]] = {"table": "items"}

    def take(self, where, name):
        client = self.client(where)
        client.create_collection(name, models.VectorParams(size=2, distance="Dot"))
        client.close()

    def client(self, where):
        raise NotImplementedError

    def make(self, folder, ids, vectors, others, *, table="items", column="", id_column=None, **config):
        where = self.place(folder)
        client = self.client(where)
        fill_collection(client, f"{table}_v1", ids, vectors, others, column, **config)
        alias(client, table, f"{table}_v1")
        client.close()
        return where

    def user_rows(self, where, *, table="items", column="", id_column=None):
        client = self.client(where)
        records, _ = client.scroll(table, limit=10_000, with_payload=True, with_vectors=True)
        client.close()
        rows = {}
        for one in records:
            vector = one.vector.get(column) if isinstance(one.vector, dict) else one.vector
            bytes_ = np.array(vector, np.float32).tobytes() if vector else None
            rows[one.id] = UserRow(bytes_, one.payload)
        return rows

    def user_add(self, where, one, vector, others, *, table="items", column="", id_column=None):
        client = self.client(where)
        given = {} if vector is None else {column: vector.tolist()}
        client.upsert(table, [models.PointStruct(id=one, vector=given, payload=others)])
        client.close()

    def give(self, where, situation):
        client = self.client(where)
        config = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
        records, _ = client.scroll("items", limit=10_000, with_payload=True, with_vectors=True)
        client.create_collection("named", vectors_config={"embedding": config, "second": config})
        client.upsert(
            "named",
            [
                models.PointStruct(
                    id=one.id, payload=one.payload, vector={"embedding": one.vector, "second": one.vector}
                )
                for one in records
            ],
        )
        unalias(client, "items")
        alias(client, "items", "named")
        client.close()

    def traces(self, where):
        """Return names without the one that the new collection keeps behind the alias."""
        client, found = self.client(where), {}
        for one in client.get_collections().collections:
            info = client.get_collection(one.name)
            found[one.name.replace("items_v1__congruence_new", "items_v1")] = (
                {**info.config.model_dump(), "metadata": info.config.metadata or {}},
                info.payload_schema,
                sorted(alias.alias_name for alias in client.get_collection_aliases(one.name).aliases),
            )
            found["names"] = found.get("names", 0) + 1
        client.close()
        return found

    between = BETWEEN["qdrant"]

    def make_between(self, where, what):
        client = self.client(where)
        shown = next(one.collection_name for one in client.get_aliases().aliases if one.alias_name == "items")
        if what == "field":
            client.create_payload_index(shown, "kind", models.PayloadSchemaType.KEYWORD)
        elif what == "metadata":
            client.update_collection(shown, metadata={"team": "search"})
        else:
            hidden = next(one.name for one in client.get_collections().collections if one.name != shown)
            alias(client, what, hidden if what == "hidden" else shown)
        client.close()

    def unmake(self, where, what):
        client = self.client(where)
        if what == "metadata":
            for one in client.get_collections().collections:
                client.update_collection(one.name, metadata={"team": "search"})
        else:
            unalias(client, what)
        client.close()

    def holds(self, where, what):
        client = self.client(where)
        shown = next(one.collection_name for one in client.get_aliases().aliases if one.alias_name == "items")
        info, aliases = client.get_collection(shown), {one.alias_name for one in client.get_aliases().aliases}
        client.close()
        if what == "metadata":
            return info.config.metadata == {"team": "search"}
        return what in aliases if what == "staging" else "kind" in info.payload_schema or not self.payload_indexes

    payload_indexes = False  # whether the client keeps them

    def user_delete(self, where, one, *, table="items", id_column=None):
        client = self.client(where)
        client.delete(table, models.PointIdsList(points=[one]))
        client.close()

    def filter_of_images(self):
        return IMAGES


class TestServer(Contract):
    slow = True
    payload_indexes = True
    id_types = ("uuid",)

    @pytest.fixture(autouse=True)
    def _serve(self, server):
        self.server = server

    def clear(self):
        self.server.clear()

    def place(self, folder):
        return self.server.url

    def client(self, where):
        return QdrantClient(url=where, api_key=KEY, check_compatibility=False)


class TestFolder(Contract):
    """The logic common with a server is tested by the class above; this one tests folders."""

    slow = True
    id_types = ("int",)

    @pytest.fixture(autouse=True)
    def _no_syncs(self, monkeypatch):
        """Prevent the client from syncing the disk after each point."""
        made = CollectionPersistence._ensure_table

        def make(persistence):
            persistence.storage.execute("PRAGMA synchronous = OFF")
            made(persistence)

        monkeypatch.setattr(CollectionPersistence, "_ensure_table", make)

    def place(self, folder):
        QdrantClient(path=str(folder / "db")).close()
        return f"qdrant://{folder}/db"

    def client(self, where):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return QdrantClient(path=where.removeprefix("qdrant://"))

    def test_one_process_at_a_time(self, tmp_path):
        where = self.make(tmp_path, *make_rows("int", 5))
        with self.open(where) as database:
            assert not database.capabilities.concurrent_writes
            assert database.free_bytes() > 0
            with pytest.raises(errors.DatabaseUnavailableError, match="Another process"):
                self.open(where)

    def test_a_folder_that_is_none_or_broken(self, tmp_path):
        with pytest.raises(errors.FileError, match="no meta.json"):
            self.open(f"qdrant://{tmp_path}")
        assert not list(tmp_path.iterdir())  # the client would have made a new database
        where = self.make(tmp_path, *make_rows("int", 5))
        storage = next((tmp_path / "db" / "collection").glob("*/storage.sqlite"))
        storage.write_bytes(b"no database at all" * 300)
        with pytest.raises(errors.CorruptFileError, match="damaged"):
            self.open(where)
        (tmp_path / "db" / "meta.json").write_text('{"collections": ')
        with pytest.raises(errors.CorruptFileError, match="damaged"):
            self.open(where)


@pytest.fixture
def items(server):
    """Create 30 points in ``items_v1``, and a user's client to add more."""
    client = QdrantClient(url=server.url, api_key=KEY, check_compatibility=False)
    ids, vectors, others = make_rows("int", 30)
    fill_collection(client, "items_v1", ids, vectors, others)
    alias(client, "items", "items_v1")
    yield client
    client.close()


def names(client):
    return {one.name for one in client.get_collections().collections}


def test_readers_of_the_collections_own_name_are_refused_before_anything_is_written(server, items, tmp_path):
    fill_collection(items, "alone", *make_rows("int", 40))
    mapping = LinearMap().fit(np.eye(DIM), np.ones((DIM, DIM_NEW)))
    for table, said in (("alone", "Create an alias of 'alone'.*table=ALIAS"), ("items_v1", "pass table='items'")):
        with Migration(open_database(server.url, table=table), mapping, journal=tmp_path / "journal") as migration:
            for step in (migration.plan, migration.run, lambda: migration.database.prepare(DIM_NEW)):
                with pytest.raises(errors.MigrationError, match=f"itself, and only an alias can be switched.*{said}"):
                    step()
    assert names(items) == {"alone", "items_v1"}
    assert not (tmp_path / "journal").exists()
    with open_database(server.url, table="items") as database:
        run(database)
        database.switch()
    with open_database(server.url, table="items_v1") as database:
        assert database.stage() is Stage.SWITCHED
        for step in (database.rollback, database.drop_old):
            with pytest.raises(errors.MigrationError, match="pass table='items'"):
                step()
        with pytest.raises(errors.MigrationError, match="Roll back first"):
            database.discard()
    with pytest.raises(errors.ParameterError, match=r"a migration of 'items_v1' writes.*Pass table='items_v1'"):
        open_database(server.url, table="items_v1__congruence_new")


def test_the_switch_is_one_request(server, items):
    with open_database(server.url) as database:
        run(database)
        server.seen.clear()
        database.switch()
        assert [one for one in server.seen if one.endswith("/aliases") and one.startswith("POST")] == [
            "POST /collections/aliases"
        ]
        assert server.seen[-1] == "POST /collections/aliases"  # a kill before it leaves all old, one after it all new


def test_a_second_migration_has_names_of_its_own(server, items):
    with open_database(server.url) as database:
        run(database)
        database.switch()
        with pytest.raises(errors.MigrationError, match="Roll back first"):
            database.prepare(DIM_NEW)
        with pytest.raises(errors.MigrationError, match="Roll back first"):
            database.delete(pa.array([1], pa.uint64()))
        database.drop_old()
        assert names(items) == {"items_v1__congruence_new"}
        # A collection that later takes the name of the old one is none of ours.
        fill_collection(items, "items_v1", *make_rows("int", 3))
        assert database.stage() is Stage.UNTOUCHED
        assert dict(database.note()) == {}
        run(database, 4)
        database.switch()
        database.drop_old()
        assert names(items) == {"items_v1", "items_v1__congruence_new2"}
        assert database.info().dim == 4


def test_collections_of_others_are_left_alone(server, items):
    fill_collection(items, "items_v1__congruence_new", *make_rows("int", 3))
    with pytest.raises(errors.DatabaseError, match="not created by a migration"):
        open_database(server.url, table="items")
    items.delete_collection("items_v1__congruence_new")
    alias(items, "staging", "items_v1")
    with pytest.raises(errors.ParameterError, match=r"2 aliases and collections \('items', 'staging'\)"):
        open_database(server.url)
    with open_database(server.url, table="items") as database:
        with pytest.raises(errors.DatabaseError, match="the alias 'staging', which stays.*Remove it"):
            run(database)
        unalias(items, "staging")
        alias(items, "items_v1__congruence_new", "items_v1")
        with pytest.raises(errors.DatabaseError, match="'items_v1__congruence_new' was not created by a migration"):
            run(database)
        unalias(items, "items_v1__congruence_new")
        assert names(items) == {"items_v1"}
        run(database)
        alias(items, "staging", "items_v1")
        with pytest.raises(errors.MigrationError, match="the alias 'staging', which stays"):
            database.switch()
        unalias(items, "staging")
        database.switch()
        alias(items, "staging", "items_v1")
        with pytest.raises(errors.MigrationError, match="alias 'staging' of 'items_v1', which is to be deleted"):
            database.drop_old()
        database.rollback()
    alias(items, "staging", "items_v1__congruence_new")  # somebody looks at the new vectors
    with open_database(server.url, table="items") as database:
        assert database.stage() is Stage.PREPARED
        with pytest.raises(errors.MigrationError, match="alias 'staging' of 'items_v1__congruence_new'"):
            database.discard()
    assert len(names(items)) == 2


def test_the_new_collection_is_configured_as_the_old_one(server, items):
    items.create_collection(
        "tuned",
        {
            "image": models.VectorParams(
                size=DIM, distance="Euclid", on_disk=True, hnsw_config=models.HnswConfigDiff(m=24)
            ),
            "text": models.VectorParams(size=3, distance="Dot"),
        },
        sparse_vectors_config={"words": models.SparseVectorParams(modifier="idf")},
        shard_number=3,
        on_disk_payload=True,
        hnsw_config=models.HnswConfigDiff(m=32, ef_construct=200),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=1234),
        quantization_config=models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type="int8")),
        metadata={"team": "search", "congruence.space": {"model": "open_clip:a", "dim": DIM}},
    )
    items.create_payload_index("tuned", "kind", "keyword")
    items.create_payload_index("tuned", "year", models.IntegerIndexParams(type="integer", lookup=True, range=False))
    alias(items, "finer", "tuned")
    with open_database(server.url, table="finer", column="image") as database:
        info = database.info()
        assert (info.distance, info.dim, info.rows) == ("l2", DIM, 0)
        assert info.index == "HNSW (m=24, ef_construct=200), scalar quantization"
        assert info.space.model == "open_clip:a"
        database.prepare(DIM_NEW, "float16", {"map": "abc"})
        new, old = server.configs["tuned__congruence_new"], server.configs["tuned"]
        assert database.build_index() == info.index
    assert new["vectors"]["image"] == old["vectors"]["image"] | {"size": DIM_NEW, "datatype": "float16"}
    assert new["vectors"]["text"] == old["vectors"]["text"]
    assert new["metadata"]["team"] == "search"
    assert "congruence.space" not in new["metadata"]  # it told of the old vectors
    for key in ("shard_number", "on_disk_payload", "quantization_config", "sparse_vectors"):
        assert new[key] == old[key]
    for key in ("hnsw_config", "optimizers_config"):
        assert old[key].items() <= new[key].items()
    assert server.indexes["tuned__congruence_new"] == server.indexes["tuned"]
    with pytest.raises(errors.ParameterError, match=r"2 dense vectors per point \('image', 'text'\).*Pass column="):
        open_database(server.url, table="tuned")
    with pytest.raises(errors.MigrationError, match="one migration at a time"):
        open_database(server.url, table="tuned", column="text")


def test_a_preparation_that_was_cut_short_is_completed(server, items):
    items.create_payload_index("items_v1", "kind", "keyword")
    with open_database(server.url, table="items") as database:
        server.faults.append(("PUT /collections/items_v1__congruence_new/index", 503))
        with pytest.raises(errors.DatabaseUnavailableError):
            database.prepare(DIM_NEW)
        assert database.stage() is Stage.PREPARED
        database.prepare(DIM_NEW)
    assert server.indexes["items_v1__congruence_new"] == {"kind": "keyword"}


def test_other_vectors_and_later_payloads_are_copied(server, items):
    items.create_collection(
        "many",
        {
            "image": models.VectorParams(size=DIM, distance="Dot"),
            "text": models.VectorParams(size=3, distance="Cosine"),
        },
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    ids, vectors, _ = make_rows("int", 20)
    rng = np.random.default_rng(3)
    points = [
        models.PointStruct(
            id=one,
            payload={"kind": "image", "nested": {"size": [1.5, None, True]}},
            vector={"image": vectors[k].tolist(), "text": rng.normal(size=3).tolist()}
            | ({"words": models.SparseVector(indices=[k, 99], values=[0.5, 1.5])} if k % 2 else {}),
        )
        for k, one in enumerate(ids)
    ]
    points.append(models.PointStruct(id=1000, payload={"kind": "none"}, vector={"text": [1.0, 0.0, 0.0]}))
    items.upsert("many", points)
    alias(items, "shown", "many")
    before = {one.id: one for one in items.scroll("shown", limit=100, with_vectors=True)[0]}
    with open_database(server.url, table="shown", column="image") as database:
        run(database)
        assert not without_new(database)
        items.set_payload("many", {"kind": "text"}, points=[ids[2]])
        items.update_vectors("many", [models.PointVectors(id=ids[5], vector={"text": [0.0, 0.0, 1.0]})])
        assert without_new(database) == {ids[2], ids[5]}
        run(database)
        assert not without_new(database)
        database.switch()
    after = {one.id: one for one in items.scroll("shown", limit=100, with_vectors=True)[0]}
    assert after.keys() == before.keys()
    assert after[ids[2]].payload["kind"] == "text"
    assert after[1000].vector == before[1000].vector
    for one in set(ids) - {ids[2], ids[5]}:
        assert after[one].payload == before[one].payload
        assert after[one].vector["image"] == before[one].vector["image"][:DIM_NEW]
        assert after[one].vector.get("words") == before[one].vector.get("words")
        np.testing.assert_allclose(after[one].vector["text"], before[one].vector["text"], rtol=1e-6)


def test_cosine_collections_hold_unit_vectors(server, items):
    ids, vectors, others = make_rows("int", 30)
    fill_collection(items, "cosine", ids, 3 * vectors, others, distance="Cosine")
    alias(items, "angles", "cosine")
    with open_database(server.url, table="angles") as database:
        assert database.info().distance == "cosine"
        block = next(iter(database.scan()))
        np.testing.assert_allclose(np.linalg.norm(block.vectors, axis=1), 1, rtol=1e-6)
        long = np.ascontiguousarray(5 * block.vectors[:, :DIM_NEW])
        database.prepare(DIM_NEW)
        database.write(block.ids, long)
        found = database.fetch(block.ids, "new")
        assert found.ids.equals(block.ids)
        np.testing.assert_allclose(found.vectors, database.as_stored(long), rtol=1e-6)
        assert np.abs(found.vectors - long).max() > 1
    with open_database(server.url, table="items") as database:
        assert database.as_stored(long) is long


def test_numbers_and_uuids_in_one_collection(server, items):
    uuid = "00000000-0000-4000-8000-000000000001"
    large = 2**64 - 1
    items.upsert(
        "items_v1",
        models.Batch(ids=[uuid, large], vectors=[[1.0] * DIM, [2.0] * DIM], payloads=[{"a": {"b": 7}}, {"a": None}]),
    )
    with open_database(server.url, table="items", modality_column="a.b") as database:
        assert database.info().id_type == "text"
        blocks = list(database.scan(batch=9))
        ids = [one for block in blocks for one in block.ids.to_pylist()]
        assert len(ids) == len(set(ids)) == 32
        assert ids[-2:] == [str(large), uuid]
        assert blocks[-1].modalities.to_pylist()[-2:] == [None, "7"]
        assert json.loads(json.dumps(blocks[-1].cursor)) == uuid
        run(database)
        assert database.count("new") == 32
        assert {str(one.id) for one in items.scroll("items_v1__congruence_new", limit=99)[0]} == set(ids)
    items.delete("items_v1", models.PointIdsList(points=[uuid]))
    with open_database(server.url, table="items") as database:
        assert database.info().id_type == "int"
        assert next(iter(database.scan())).ids.to_pylist()[-1] == large
        items.upsert("items_v1", models.Batch(ids=[uuid], vectors=[[1.0] * DIM]))
        with pytest.raises(errors.DatabaseError, match="both numbers and UUIDs"):
            list(database.scan())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": "kind = 'image'"}, "rejected .*JSON"),
        ({"rows": '{"mustn\'t": []}'}, "rejected .*JSON"),
        ({"ids": "id"}, "Leave ids=… out"),
        ({"modality_column": "nope"}, "items_v1: 'kind', 'title'"),
        ({"table": "nope"}, "'items_v1'"),
        ({"column": "nope"}, "expected one of ''"),
    ],
)
def test_options_that_cannot_be(server, items, options, said):
    with pytest.raises(errors.ParameterError, match=said):
        open_database(server.url, **options)


def test_requests_stay_under_the_servers_limit(server, items, monkeypatch):
    monkeypatch.setattr(qdrant, "_REQUEST_BYTES", 5000)
    monkeypatch.setattr(server, "limit", 5500)
    with open_database(server.url, table="items") as database:
        run(database)
        assert database.count("new") == 30
        assert not without_new(database)


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (503, errors.DatabaseUnavailableError, "Got no answer from"),
        (429, errors.DatabaseUnavailableError, "Got no answer from"),
        (403, errors.DatabaseError, "Set the environment variable QDRANT_API_KEY"),
        (422, errors.DatabaseError, "Got an error from"),
        (FULL, errors.StorageError, "Free disk space"),
    ],
)
def test_faults_of_the_server(server, items, fault, error, said):
    with open_database(server.url, table="items") as database:
        database.prepare(DIM_NEW)
        block = next(iter(database.scan()))
        server.faults.append(("PUT /collections/items_v1__congruence_new/points", fault))
        with pytest.raises(error, match=said) as caught:
            database.write(block.ids, np.ascontiguousarray(block.vectors[:, :DIM_NEW]))
        assert isinstance(caught.value, errors.DatabaseUnavailableError) == (error is errors.DatabaseUnavailableError)
        assert KEY not in str(caught.value)
        database.write(block.ids, np.ascontiguousarray(block.vectors[:, :DIM_NEW]))  # the next attempt does it
        assert database.count("new") == 30


def test_a_server_that_does_not_answer(server, items, monkeypatch):
    monkeypatch.setattr(qdrant, "TIMEOUT", 1)
    with open_database(server.url, table="items") as database:
        server.faults.append(("/points/count", 1.3))
        with pytest.raises(errors.DatabaseUnavailableError, match=r"Timeout"):
            database.count()
        assert database.count() == 30
    with pytest.raises(errors.DatabaseUnavailableError, match=r"Got no answer from http://127\.0\.0\.1:9 \(Connect"):
        open_database("http://127.0.0.1:9")


def test_the_key_comes_from_the_environment_only(server, items, monkeypatch):
    with open_database(server.url.replace("http://", "qdrant://"), table="items_v1") as database:
        assert KEY not in str(database.info())
    host = server.url.removeprefix("http://")
    for address in (f"http://me:hunter22@{host}", f"{server.url}/?api_key=hunter22"):
        with pytest.raises(errors.ParameterError, match="Set the environment variable QDRANT_API_KEY") as caught:
            open_database(address)
        assert "hunter22" not in str(caught.value)
    monkeypatch.setenv("QDRANT_API_KEY", "wrong-key-of-mine")
    with pytest.raises(errors.DatabaseError, match="Got no access") as caught:
        open_database(server.url)
    assert "wrong-key-of-mine" not in str(caught.value)


def test_something_else_than_qdrant(server, monkeypatch):
    monkeypatch.setattr(server, "do", lambda *a: {"hello": "world"})
    with pytest.raises(errors.DatabaseError, match="not Qdrant's"):
        open_database(server.url)


def test_an_index_is_waited_for(server, items, monkeypatch):
    looks = []

    def look(seconds):
        looks.append(seconds)
        server.status = "green" if len(looks) == 3 else "yellow"

    # A clock of its own: other threads of this process sleep too.
    monkeypatch.setattr(_base, "time", SimpleNamespace(sleep=look, monotonic=time.monotonic))
    with open_database(server.url, table="items") as database:
        run(database)
        server.status = "yellow"
        assert database.build_index() == "HNSW (m=16, ef_construct=100)"
        assert len(looks) == 3
        server.status = "red"
        with pytest.raises(errors.DatabaseError, match="status red"):
            database.build_index()
        server.status = "yellow"
        monkeypatch.setattr(_base, "INDEX_SECONDS", -1.0)
        with pytest.raises(errors.DatabaseUnavailableError, match="still being indexed"):
            database.build_index()
