"""Milvus: the contract on files of Milvus Lite, both ways to switch, and the state after a kill."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from database_contract import (
    BETWEEN,
    DIM,
    DIM_NEW,
    DatabaseContract,
    RenamesContract,
    UserRow,
    kill_after,
    make_rows,
    run,
)
from lazy_module import LazyModule

from congruence import errors
from congruence.databases import Stage, open_database

pytestmark = pytest.mark.heavy

pymilvus = LazyModule("pymilvus")
lite = LazyModule("milvus_lite.server_manager")

LABELS = [{"a": "text"}, {"b": [1, None]}, None, {"c": {}}, {"d": "ü"}]


def client_of(where):
    return pymilvus.MilvusClient(where.removeprefix("milvus://"))


@pytest.fixture(autouse=True)
def _stopped():
    yield
    lite.server_manager_instance.release_all()


def make_collection(folder, ids, vectors, others, *, table="items", metric="IP", key=None, vector=None, **options):
    """A collection with an indexed scalar field, a JSON field, a second vector field and a dynamic field."""
    where, kinds = f"milvus://{folder}/my.db", pymilvus.DataType
    client = client_of(where)
    schema = client.create_schema(enable_dynamic_field=True)
    text = isinstance(ids[0], str)
    kind = {"datatype": kinds.VARCHAR, "max_length": 99} if text else {"datatype": kinds.INT64}
    schema.add_field("id", is_primary=True, **kind, **(key or {}))
    schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=vectors.shape[1], **(vector or {}))
    schema.add_field("kind", kinds.VARCHAR, max_length=9, default_value="image")
    schema.add_field("label", kinds.JSON, nullable=True)
    schema.add_field("words", kinds.SPARSE_FLOAT_VECTOR)
    index = client.prepare_index_params()
    index.add_index(
        "embedding", index_type="HNSW", metric_type=metric, params={"params": {"M": 12, "efConstruction": 90}}
    )
    index.add_index("kind", index_type="INVERTED")
    client.create_collection(table, schema=schema, **options)
    client.create_index(table, index, sync=False)
    client.load_collection(table)
    rows = [row_of(*one) for one in zip(ids, vectors, others["kind"], others["title"], strict=True)]
    client.insert(table, [one if not (key or {}).get("auto_id") else {**one, "id": None} for one in rows])
    return where


def row_of(one, vector, kind, title):
    number = sum(map(ord, str(one)))
    words = {number: 0.5, number + 7: 0.25}
    return {"id": one, "embedding": vector, "kind": kind, "title": title, "label": LABELS[number % 5], "words": words}


def rows_shown(where, table="items", column="embedding"):
    client = client_of(where)
    client.load_collection(table)
    found = [dict(one) for one in client.query(table, filter="", output_fields=["*"])]
    return {one["id"]: UserRow(np.asarray(one.pop(column), np.float32).tobytes(), one) for one in found}


class TestFile(RenamesContract, DatabaseContract):
    """Other processes cannot write at the same time; tests below cover repairs by a later pass."""

    kind = "milvus"
    slow = True
    any_names = False
    rows_without = False

    def make(self, folder, ids, vectors, others, **names):
        return make_collection(folder, ids, vectors, others)

    def user_rows(self, where, *, column="embedding", **names):
        return rows_shown(where, column=column)

    def give(self, where, situation):
        client = client_of(where)
        rows = [dict(one) for one in client.query("items", filter="", output_fields=["*"])]
        schema = client.create_schema(enable_dynamic_field=True)
        schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
        index = client.prepare_index_params()
        for name in ("embedding", "second"):
            schema.add_field(name, pymilvus.DataType.FLOAT_VECTOR, dim=DIM)
            index.add_index(name, index_type="FLAT", metric_type="IP")
        client.drop_collection("items")
        client.create_collection("items", schema=schema, index_params=index)
        vectors = [(row["id"], row["embedding"]) for row in rows]
        client.insert("items", [{"id": one, "embedding": vector, "second": vector} for one, vector in vectors])

    def user_add(self, where, one, vector, others, **names):
        row = row_of(one, vector, others["kind"], others["title"])
        client_of(where).upsert("items", [row])

    def user_delete(self, where, one, **names):
        client_of(where).delete("items", ids=[one])

    def restart(self):
        lite.server_manager_instance.release_all()

    def traces(self, where):
        client, found = client_of(where), []
        changing = ("collection_id", "created_timestamp", "update_timestamp")
        for name in client.list_collections():
            facts = client.describe_collection(name)
            indexes = sorted(client.list_indexes(name))
            found.append((name, {key: facts[key] for key in facts if key not in changing}, indexes))
        return sorted(found, key=str), sorted(client.list_aliases()["aliases"])

    between = BETWEEN["milvus"]

    def make_between(self, where, what):
        if what == "properties":
            client_of(where).alter_collection_properties("items", {"team": "search"})
        else:
            self.create(where, what)

    def unmake(self, where, what):
        client = client_of(where)
        if what == "properties":
            (hidden,) = [one for one in client.list_collections() if one.endswith(("_new", "_old"))]
            client.alter_collection_properties(hidden, {"team": "search"})
        else:
            client.drop_collection(what)

    def holds(self, where, what):
        if what == "properties":
            return client_of(where).describe_collection("items")["properties"].get("team") == "search"
        return what in self.collections(where)

    def renaming(self):
        return pymilvus.MilvusClient, "rename_collection"

    def collections(self, where):
        return client_of(where).list_collections()

    def create(self, where, name):
        client_of(where).create_collection(name, dimension=4)

    def change(self, where, ids):
        client = client_of(where)
        kept = np.frombuffer(rows_shown(where)[ids[2]].vector, np.float32)
        client.delete("items", ids=[ids[0]])
        client.upsert("items", [row_of("later \"'\\", np.eye(1, DIM, dtype=np.float32)[0], "image", "new")])
        changed = {"id": ids[2], "kind": "text", "label": None, "words": {1: 1.0}, "more": 1}  # without a title
        client.insert("items", [{**changed, "embedding": kept}])
        return {ids[2], "later \"'\\"}, ids[2], changed

    def filter_of_images(self):
        return 'kind == "image"'


@pytest.fixture
def items(tmp_path):
    ids, vectors, others = make_rows("text", 25)
    space = {"congruence.space": '{"model": "open_clip:a", "dim": 8}', "team": "search"}
    return make_collection(tmp_path, ids, vectors, others, metric="COSINE", properties=space)


def test_an_alias_moves_in_one_step(items):
    client = client_of(items)
    client.create_alias(collection_name="items", alias="photos")
    with pytest.raises(errors.ParameterError, match="read by the alias 'photos'.*Pass table='photos'"):
        open_database(items, table="items")
    client.create_alias(collection_name="items", alias="another")
    with (
        open_database(items, table="photos") as database,
        pytest.raises(errors.DatabaseError, match="the alias 'another', which stays"),
    ):
        run(database)
    client.drop_alias("another")
    names = {}
    for migration in (1, 2):
        with open_database(items) as database:
            assert database.capabilities.atomic_switch
            run(database)
            with pytest.MonkeyPatch.context() as patch:
                kill_after(patch, pymilvus.MilvusClient, "rename_collection", 0)
                database.switch()
                names[migration] = client.describe_alias("photos")["collection_name"]
                assert database.stage() is Stage.SWITCHED
                database.rollback()
                assert database.stage() is Stage.PREPARED
                database.switch()
            client.create_alias(collection_name=database._place().old, alias="another")
            with pytest.raises(errors.MigrationError, match="alias 'another' of 'items.*in the way of drop-old"):
                database.drop_old()
            client.drop_alias("another")
            database.drop_old()
            assert database.stage() is Stage.UNTOUCHED
    assert names == {1: "items__congruence_new", 2: "items__congruence_new2"}
    assert client.list_collections() == ["items__congruence_new2"]
    assert [len(one.vector) // 4 for one in rows_shown(items, "photos").values()] == 25 * [DIM_NEW]


def test_an_alias_that_comes_in_the_middle_of_a_migration_by_name_goes_for_its_time(items):
    with open_database(items) as database:
        assert not database.capabilities.atomic_switch
        run(database)
    client_of(items).create_alias(collection_name="items", alias="photos")
    with pytest.raises(errors.ParameterError, match="alias 'photos'.*Drop that alias until the migration is finished"):
        open_database(items, table="items")
    client_of(items).drop_alias("photos")
    with open_database(items) as database:
        database.switch()
        assert database.stage() is Stage.SWITCHED


def test_the_new_collection_is_made_like_the_old_one(items):
    client = client_of(items)
    with open_database(items) as database:
        info = database.info()
        assert (info.distance, info.index) == ("cosine", "HNSW (M=12, efConstruction=90)")
        assert info.space.model == "open_clip:a"
        run(database)
        assert database.build_index() == info.index
        assert dict(database.note()) == {"map": "abc"}
        old, new = (client.describe_collection(one) for one in ("items", "items__congruence_new"))
        assert [one.pop("params") for one in new["fields"] if one["name"] == "embedding"] == [{"dim": DIM_NEW}]
        assert [one.pop("params") for one in old["fields"] if one["name"] == "embedding"] == [{"dim": DIM}]
        assert new["fields"] == old["fields"]
        assert new["enable_dynamic_field"]
        assert new["properties"]["team"] == "search"
        assert "congruence.space" not in new["properties"]  # it told of the old vectors
        assert sorted(client.list_indexes("items__congruence_new")) == ["embedding", "kind"]
        with pytest.raises(errors.MigrationError, match="already has new vectors"):
            database.prepare(DIM_NEW, "float32", {"map": "another"})
        with pytest.raises(errors.MigrationError, match="column"):
            client.alter_collection_properties(
                "items__congruence_new", {"congruence.migration": json.dumps({"column": "other", "note": {}})}
            )
            database.stage()


def test_writing_after_the_switch_keeps_what_others_changed(items):
    """Rows that are re-embedded batch by batch keep the other fields that readers see at that time."""
    client = client_of(items)
    with open_database(items) as database:
        run(database)
        database.switch()
        ids = sorted(rows_shown(items))[:3]
        edited = {**row_of(ids[0], np.ones(DIM_NEW, np.float32), "text", "edited"), "words": {3: 1.0}}
        client.insert("items", [edited])
        client.delete("items", ids=[ids[2]])
        native = np.eye(3, DIM_NEW, dtype=np.float32)
        database.write(pa.array(ids, pa.large_string()), native)
        assert database.search(native[:2], 1)[1].to_pylist() == [ids[1]]
        shown = rows_shown(items)
        assert (shown[ids[0]].vector, shown[ids[0]].others["title"]) == (native[0].tobytes(), "edited")
        assert shown[ids[1]].vector == native[1].tobytes()
        assert ids[2] not in shown  # deleted since: not written again
        assert database.stage() is Stage.SWITCHED


def test_what_was_written_outlives_a_kill(items, tmp_path):
    """A copy of the open files simulates a kill: nothing was closed or flushed."""
    with open_database(items) as database:
        run(database)
    shutil.copytree(tmp_path / "my.db", tmp_path / "killed.db")
    remnant = tmp_path / "killed.db" / "collections" / "items__congruence_new"
    with open_database(f"milvus://{tmp_path}/killed.db") as database:
        assert (database.stage(), database.count("old"), database.count("new")) == (Stage.PREPARED, 25, 25)
        database.discard()
        remnant.mkdir()  # as a kill within the client's creation or deletion leaves it
        (remnant / "manifest.json").touch()
        assert database.stage() is Stage.UNTOUCHED
        run(database)
        assert database.count("new") == 25


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": {"auto_id": True}}, "automatic ids.*Copy the collection into one without auto_id"),
        ({"vector": {"nullable": True}}, "'embedding' nullable"),
        ({}, "2 partitions without a partition key"),
    ],
)
def test_collections_that_cannot_be_copied_row_for_row(tmp_path, options, said):
    where = f"milvus://{tmp_path}/my.db"
    client = client_of(where)
    schema = client.create_schema()
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True, **options.get("key", {}))
    schema.add_field("embedding", pymilvus.DataType.FLOAT_VECTOR, dim=DIM, **options.get("vector", {}))
    client.create_collection("items", schema=schema)
    if not options:
        client.create_partition("items", "of a tenant")
    with pytest.raises(errors.DatabaseError, match=said):
        open_database(where)


def test_partition_keys_and_fields_that_milvus_computes(tmp_path):
    where, kinds = f"milvus://{tmp_path}/my.db", pymilvus.DataType
    client = client_of(where)
    schema = client.create_schema()
    schema.add_field("id", kinds.INT64, is_primary=True)
    schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=DIM)
    schema.add_field("tenant", kinds.VARCHAR, max_length=9, is_partition_key=True)
    schema.add_field("text", kinds.VARCHAR, max_length=99, enable_analyzer=True)
    schema.add_field("words", kinds.SPARSE_FLOAT_VECTOR)
    bm25 = pymilvus.FunctionType.BM25
    schema.add_function(pymilvus.Function("bm25", bm25, input_field_names=["text"], output_field_names=["words"]))
    client.create_collection("items", schema=schema)
    vectors = np.eye(6, DIM, dtype=np.float32)
    rows = [{"id": k, "embedding": vectors[k], "tenant": f"t{k % 2}", "text": f"cat {k}"} for k in range(6)]
    client.insert("items", rows)
    with open_database(where) as database:
        run(database)
        assert all(block.has_new.all() for block in database.scan_pairs())
        database.switch()
    assert client.describe_collection("items")["functions"][0]["name"] == "bm25"
    found = client.search("items", data=["cat"], anns_field="words", limit=9, filter='tenant == "t1"')
    assert sorted(found[0].ids) == [1, 3, 5]


def test_options_that_cannot_be(items, capfd):
    for options, error, said in (
        ({"rows": " "}, errors.ParameterError, "a filter expression"),
        ({"rows": "kind = 'image'"}, errors.DatabaseError, "Got an error from milvus.*did you mean '=='"),
        ({"ids": "title"}, errors.ParameterError, "the primary key"),
        ({"column": "words"}, errors.ParameterError, "column='words'.*'embedding'"),
        ({"modality_column": "nope"}, errors.ParameterError, "'kind', 'label', 'words', 'title'"),
    ):
        with pytest.raises(error, match=said):
            open_database(items, **options)
    assert "Traceback" not in capfd.readouterr().err  # the client would log one
    with open_database(items, modality_column="title") as database:  # dynamic
        block = next(iter(database.scan()))
        assert block.modalities[0].as_py().startswith(f"title of {block.ids[0].as_py()}")


def test_a_server_by_url(items, monkeypatch):
    """Milvus Lite at a URL, which answers like a server, and paging as on a server."""
    client_of(items)
    url = lite.server_manager_instance.start_and_get_uri(items.removeprefix("milvus://"))
    monkeypatch.setenv("MILVUS_TOKEN", "root:a-token-of-mine")
    where = f"milvus+{url}"
    with open_database(where, table="items") as database:
        assert database.capabilities.concurrent_writes
        assert database.free_bytes() is None
        assert "a-token-of-mine" not in str(database.info())
        run(database)
        database.switch()
        expected = [one for block in database.scan("new") for one in block.ids.to_pylist()]
        database._lite = False
        monkeypatch.setattr("congruence.databases.milvus._IDS", 4)
        for after, start in ((None, 0), (expected[6], 7)):
            paged = [one for block in database.scan("new", after=after, batch=3) for one in block.ids.to_pylist()]
            assert paged == expected[start:]
        database.rollback()
    assert TestFile().shown(items) == (25, DIM)


def test_addresses(tmp_path, monkeypatch):
    with pytest.raises(errors.FileError, match="not a Milvus Lite database"):
        open_database(f"milvus://{tmp_path}/my.db")
    assert not list(tmp_path.iterdir())  # the client would have made a new database
    (tmp_path / "old.db").write_bytes(b"SQLite format 3")
    with pytest.raises(errors.FileError, match="one file, not the folder that Milvus Lite 3 writes"):
        open_database(f"milvus://{tmp_path}/old.db")
    with pytest.raises(errors.ParameterError, match=r"a path that ends in \.db"):
        open_database(f"milvus://{tmp_path}")
    with pytest.raises(errors.ParameterError, match="Set the environment variable MILVUS_TOKEN") as caught:
        open_database("milvus+http://me:hunter22@localhost:9")
    assert "hunter22" not in str(caught.value)
    monkeypatch.setenv("MILVUS_TOKEN", "a-token-of-mine")
    monkeypatch.setattr("congruence.databases.milvus._TIMEOUT", 0.5)
    with pytest.raises(errors.DatabaseUnavailableError, match="Got no answer from milvus") as caught:
        open_database("milvus+http://127.0.0.1:9")
    assert "a-token-of-mine" not in str(caught.value)


def test_a_file_that_another_process_has_open(items, tmp_path, capfd):
    import fcntl

    lite.server_manager_instance.release_all()
    with open(tmp_path / "my.db" / "LOCK") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(errors.DatabaseUnavailableError, match="Another process uses"):
            open_database(items)
    assert "Traceback" not in capfd.readouterr().err
    (tmp_path / "my.db" / "aliases.json").write_text("[")
    with pytest.raises((errors.CorruptFileError, errors.DatabaseError), match=r"my\.db"):
        open_database(items)
