"""Chroma folders as langchain-chroma 1.1, llama-index-vector-stores-chroma 0.6 and open-webui fill them.

All three call the client that these tests call: open-webui with a cosine distance in the metadata and an own
collection per file and knowledge base, LangChain without metadata, LlamaIndex with the client's default function.
"""

import json
import uuid

import numpy as np
import pytest
from lazy_module import LazyModule
from test_framework_tables import NEW, OLD, rotation, unit

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:legacy embedding function config")]

chromadb = LazyModule("chromadb")
MADE = {
    "open-webui": {"metadata": {"hnsw:space": "cosine"}},
    "langchain": {"embedding_function": None},
    "llamaindex": {},
}
SIZES = {"file-1": (30, OLD), "file-2": (20, OLD), "knowledge": (40, OLD), "empty": (0, OLD), "before": (20, 12)}


def client_of(folder):
    return chromadb.PersistentClient(str(folder / "db"))


def content(folder):
    """Return every collection's metadata and records, with the bits of the vectors."""
    found = {}
    for one in client_of(folder).list_collections():
        got = one.get(include=["embeddings", "metadatas", "documents"])
        rows = zip(got["ids"], got["embeddings"], got["metadatas"], got["documents"], strict=True)
        records = {key: (np.asarray(vector, np.float32).tobytes(), *rest) for key, vector, *rest in rows}
        found[one.name] = one.metadata, records
    return found


@pytest.mark.parametrize(
    "maker", [pytest.param(name, marks=[pytest.mark.long] * (name != "langchain")) for name in MADE]
)
def test_all_collections_of_a_folder_in_one_command(here, tmp_path, maker):
    client = client_of(tmp_path)
    for seed, (name, (n, dim)) in enumerate(SIZES.items()):
        made = client.get_or_create_collection(name, **MADE[maker])
        facts = [{"file_id": name, "start_index": k} for k in range(n)]
        keys = [str(uuid.UUID(int=100 * seed + k)) for k in range(n)]
        if n:
            made.add(keys, unit(n, dim, seed), metadatas=facts, documents=[f"text {k}" for k in range(n)])
    mapping, before = rotation(), content(tmp_path)
    mapping.save(tmp_path / "map")
    url = f"chroma://{tmp_path}/db"
    words = ("--table", "*", "--map", "map", "--modality", "text")
    planned = here("migrate", url, "plan", *words).ends(1)
    assert content(tmp_path) == before
    ran = here("migrate", url, "run", *words, "--yes").ends(1)
    for done in (planned, ran):
        refused = [line for line in done.err.splitlines() if line.startswith("refused: ")]
        assert [line.split(": ")[1] for line in refused] == ["before", "empty"]
        assert "12-d" in refused[0]
    assert {name: facts for name, facts in content(tmp_path).items() if name in SIZES} == before
    here("migrate", url, "switch").refused("--journal '*'")
    told = json.loads(here("migrate", url, "status", "--journal", "*", "--json").ends(0).out)
    assert [one["state"] for one in told.values()] == ["verified"] * 3
    here("migrate", url, "switch", "--journal", "*").ends(0)
    after = content(tmp_path)
    for name in ("file-1", "file-2", "knowledge"):
        assert after[name][0] == before[name][0]
        for key, (old, *others) in before[name][1].items():
            new, *same = after[name][1][key]
            wanted = mapping.transform(np.frombuffer(old, np.float32)[None], role="store")[0]
            np.testing.assert_allclose(np.frombuffer(new, np.float32), wanted, atol=1e-6)
            assert same == others
        found = client_of(tmp_path).get_or_create_collection(name, **MADE[maker])  # as the framework opens it
        assert len(found.query(query_embeddings=unit(1, NEW, 9), n_results=3)["ids"][0]) == 3
    assert {name: after[name] for name in ("empty", "before")} == {name: before[name] for name in ("empty", "before")}
    here("migrate", url, "rollback", "--journal", "*").ends(0)
    here("migrate", url, "finish", "--journal", "*", "--yes").ends(0)
    assert content(tmp_path) == before


def test_a_pattern_that_fits_nothing_and_a_journal_for_several_are_refused(here, tmp_path):
    client = client_of(tmp_path)
    for name in ("file-1", "file-2"):
        client.create_collection(name).add(["a"], unit(1, OLD, 1))
    rotation().save(tmp_path / "map")
    url = f"chroma://{tmp_path}/db"
    here("migrate", url, "plan", "--table", "docs-*", "--map", "map").refused("docs-*", "file-1, file-2")
    here("migrate", url, "plan", "--table", "*", "--map", "map", "--journal", "j").refused("--journal")
    here("migrate", url, "status", "--journal", "*").refused("*")
    here("migrate", url, "plan", "--table", "*", "--map", "nomap").refused("nomap")  # once, as it is of no collection
    assert sorted(one.name for one in client.list_collections()) == ["file-1", "file-2"]
