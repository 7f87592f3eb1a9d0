"""Chroma: the contract on a folder of its client and on its own server, and interrupted renames."""

import shutil
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from database_contract import BETWEEN, DIM, DIM_NEW, FAULTS, DatabaseContract, RenamesContract, UserRow, make_rows, run
from lazy_module import LazyModule

from congruence.databases import Stage, open_database
from congruence.errors import DatabaseError, DatabaseUnavailableError, FileError, MigrationError, ParameterError

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:legacy embedding function config")]

chromadb = LazyModule("chromadb")


@cache
def server_client(port):
    return chromadb.HttpClient(host="127.0.0.1", port=port)


def client_of(where):
    if where.startswith("chroma+http://"):
        return server_client(int(where.rpartition(":")[2]))
    return chromadb.PersistentClient(path=where.removeprefix("chroma://"))


def make_collection(folder, ids, vectors, others, table="items", where=None, **options):
    where = where or f"chroma://{folder}/db"
    config = {"hnsw": {"space": "ip", "ef_construction": 150}}
    made = client_of(where).create_collection(table, configuration=config, embedding_function=None, **options)
    metadatas = [{"kind": kind} for kind in others["kind"]]
    made.add(ids=ids, embeddings=vectors, metadatas=metadatas, documents=others["title"])
    return where


class TestFolder(RenamesContract, DatabaseContract):
    """Other processes cannot write at the same time; tests below cover repairs by a later pass."""

    kind = "chroma"
    slow = True
    id_types = ("text",)
    any_names = False
    rows_without = False

    def make(self, folder, ids, vectors, others, **names):
        return make_collection(folder, [str(one) for one in ids], vectors, others)

    def user_rows(self, where, **names):
        found = client_of(where).get_collection("items").get(include=["embeddings", "metadatas", "documents"])
        keys = ("ids", "embeddings", "metadatas", "documents")
        return {
            one: UserRow(np.asarray(vector, np.float32).tobytes(), {"metadata": metadata, "document": document})
            for one, vector, metadata, document in zip(*(found[key] for key in keys), strict=True)
        }

    def user_add(self, where, one, vector, others, **names):
        metadata = others.get("metadata") or {"kind": others["kind"]}
        document = others.get("document") or others["title"]
        found = client_of(where).get_collection("items")
        found.upsert(ids=[one], embeddings=[vector], metadatas=[metadata], documents=[document])

    def user_delete(self, where, one, **names):
        client_of(where).get_collection("items").delete(ids=[one])

    needed = (*RenamesContract.needed, "items__congruence_tag")

    def traces(self, where):
        found = [(one.name, one.metadata, one.configuration_json) for one in client_of(where).list_collections()]
        return sorted(found, key=str)

    between = BETWEEN["chroma"]

    def make_between(self, where, what):
        found = client_of(where).get_collection("items")
        if what == "metadata":
            found.modify(metadata={"team": "search"})
        elif what == "configuration":
            found.modify(configuration={"hnsw": {"ef_search": 77}})
        else:
            self.create(where, what)

    def unmake(self, where, what):
        """Make it in the hidden collection too, or remove it."""
        if what.startswith("items"):
            client_of(where).delete_collection(what)
            return
        (hidden,) = [one for one in self.collections(where) if one.endswith(("_new", "_old"))]
        found = client_of(where).get_collection(hidden)
        if what == "metadata":
            found.modify(metadata={"team": "search"})
        else:
            found.modify(configuration={"hnsw": {"ef_search": 77}})

    def holds(self, where, what):
        found = client_of(where).get_collection("items")
        if what in ("metadata", "configuration"):
            ours = found.metadata == {"team": "search"}
            return ours if what == "metadata" else found.configuration_json["hnsw"]["ef_search"] == 77
        return what in self.collections(where)

    def renaming(self):
        return chromadb.Collection, "modify"

    def collections(self, where):
        return [one.name for one in client_of(where).list_collections()]

    def create(self, where, name):
        client_of(where).create_collection(name, embedding_function=None)

    def change(self, where, ids):
        old = client_of(where).get_collection("items")
        old.delete(ids=[ids[0], ids[1]])
        old.add(ids=[ids[1], "later"], embeddings=np.eye(2, DIM, dtype=np.float32), metadatas=[{"other": 1}, None])
        kept = old.get(ids=[ids[2]], include=["embeddings"])["embeddings"]
        old.update(ids=[ids[2]], embeddings=kept, documents=["another title"])
        return {ids[1], ids[2], "later"}, ids[1], {"metadata": {"other": 1}, "document": None}

    def filter_of_images(self):
        return '{"kind": "image"}'

    def test_describes_what_is_there(self, made, id_type):
        with self.open(made[0]) as database:
            info = database.info()
            assert (info.rows, info.dim, info.distance, info.id_type) == (len(made[1]), DIM, "dot", "text")
            assert info.index == "HNSW (m=16, ef_construction=150)"
            assert database.stage() is Stage.UNTOUCHED


PROGRAM = shutil.which("chroma", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run the server that the package contains, and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("chroma")
    command = [PROGRAM, "run", "--host", "127.0.0.1", "--port", str(port), "--path", str(folder / "db")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"chroma+http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="needs the program chroma beside this Python")
class TestServer(TestFolder):
    """A server, to which other processes write at the same time."""

    # What does not depend on who answers is tested on the folder.
    test_a_map_of_another_width_is_refused_before_anything_is_written = None
    test_rows_of_another_model_are_refused = None
    test_names_that_are_not_there_are_refused = None
    test_names_are_quoted = None
    test_the_plan_says_of_each_step_what_then_happens = None
    test_every_element_type = None
    test_the_rules_of_a_column_hold_or_the_plan_refuses = None
    test_a_partial_run_keeps_the_vectors_of_all_other_rows = None
    test_a_condition_chooses_rows = None
    test_rows_of_any_norm_are_found_by_the_distance_of_the_search = None
    test_a_store_is_the_same_by_every_path_to_it = None
    test_what_a_killed_last_step_left_is_removed = None
    test_a_discard_that_was_killed_at_its_end_is_completed = None
    test_one_of_several_collections_must_be_named = None
    test_a_file_that_the_application_emptied = None
    test_a_file_that_was_written_to_since_the_run_can_only_be_discarded = None
    test_writing_twice_is_writing_once = None
    test_a_kill_between_the_renames = None

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_step_that_fails_on_the_way_is_done_or_not(self, tmp_path, fault):
        super().test_a_step_that_fails_on_the_way_is_done_or_not(tmp_path, fault, every=False)

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.where = server

    def make(self, folder, ids, vectors, others, **names):
        client = client_of(self.where)
        for one in client.list_collections():
            client.delete_collection(one.name)
        return make_collection(folder, [str(one) for one in ids], vectors, others, where=self.where)


@pytest.fixture
def items(tmp_path):
    ids, vectors, others = make_rows("text", 25)
    metadata = {"team": "search", "congruence.space": '{"model": "open_clip:a", "dim": 8}'}
    return make_collection(tmp_path, ids, vectors, others, metadata=metadata)


def test_the_new_collection_is_configured_as_the_old_one(items):
    with open_database(items) as database:
        assert database.info().space.model == "open_clip:a"
        run(database)
        assert dict(database.note()) == {"map": "abc"}
        new, old = (client_of(items).get_collection(name) for name in ("items__congruence_new", "items"))
        assert new.configuration_json == old.configuration_json
        assert new.metadata["team"] == "search"
        assert "congruence.space" not in new.metadata  # it told of the old vectors
        with pytest.raises(MigrationError, match="already has new vectors"):
            database.prepare(DIM_NEW, "float32", {"map": "another"})


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"rows": "kind = 'image'"}, ParameterError, "not JSON"),
        ({"rows": "[]"}, ParameterError, "a JSON object"),
        ({"rows": '{"$nope": 1}'}, DatabaseError, "Got an error from"),
        ({"ids": "id"}, ParameterError, "Leave ids=… out"),
        ({"modality_column": "nope"}, ParameterError, "'kind', 'document'"),
    ],
)
def test_options_that_cannot_be(items, options, error, said):
    with pytest.raises(error, match=said):
        open_database(items, **options)


def test_addresses(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="no chroma.sqlite3"):
        open_database(f"chroma://{tmp_path}")
    assert not list(tmp_path.iterdir())  # the client would have made a new database
    with pytest.raises(ParameterError, match="Set the environment variable CHROMA_API_KEY") as caught:
        open_database("chroma+http://me:hunter22@localhost:9")
    assert "hunter22" not in str(caught.value)
    monkeypatch.setenv("CHROMA_API_KEY", "a-token-of-mine")
    with pytest.raises(DatabaseUnavailableError, match="Got no answer from chroma") as caught:
        open_database("chroma+http://127.0.0.1:9")
    assert "a-token-of-mine" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"), [("x" * 500, "one of 516 letters, more than 512"), ("x__congruence_old", "Rename")]
)
def test_names_that_leave_no_room_for_ours_are_refused(tmp_path, table, said):
    where = make_collection(tmp_path, *make_rows("text", 5), table=table)
    with open_database(where) as database, pytest.raises(DatabaseError, match=said):
        database.prepare(DIM_NEW)
    assert [one.name for one in client_of(where).list_collections()] == [table]
