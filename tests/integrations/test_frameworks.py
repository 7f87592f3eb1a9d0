"""LangChain, LlamaIndex, Chroma and LanceDB: a store of old vectors answers a new model's queries as NumPy does."""

import asyncio
import importlib
import json
import shutil
import sys

import numpy as np
import pytest
from toy_models import TEXTS, Toy, new_model

from congruence.errors import DirectionError, FileError, MissingExtraError, ModalityError, ParameterError, ShapeError
from congruence.integrations.texts import TextVectors

pytestmark = pytest.mark.heavy
QUERIES = ["a cat sleeps in a tree", "the owl that sings at night", "frogs by the river"]


# ------------------------------------------------------------------ what all share


def test_texts_become_vectors_of_the_index(bridge, mapping, folder, new_rows, toy):
    want = bridge.transform(new_rows[:40], "text")
    for encoder in (new_model, Toy(), toy):
        for given in (bridge, mapping, folder, str(folder)):
            vectors = TextVectors(encoder, given, batch_size=7)
            np.testing.assert_allclose(vectors(TEXTS[:40]), want, atol=1e-6)
            assert vectors(TEXTS[:3]).dtype == np.float32
            assert vectors.dim == 24
    np.testing.assert_allclose(TextVectors(new_model)(TEXTS[:40]), new_rows[:40], atol=1e-6)
    assert TextVectors(new_model, bridge)([]).shape == (0, 24)


def test_what_does_not_fit_is_refused_when_it_is_built(bridge, tmp_path):
    with pytest.raises(DirectionError, match="24-d"):
        TextVectors(lambda texts: np.ones((len(texts), 24)) / 24**0.5, bridge)
    with pytest.raises(ShapeError, match="5-d"):
        TextVectors(lambda texts: np.ones((len(texts), 5)), bridge)
    with pytest.raises(ShapeError, match=r"shape \(16,\) from the encoder for 1 texts"):
        TextVectors(lambda texts: np.ones(16), bridge)
    pictures = Toy()
    pictures.space = type(pictures.space)("toy:new", "1", "image", 16, True)
    with pytest.raises(ModalityError, match="expected an encoder of texts"):
        TextVectors(pictures, bridge)
    with pytest.raises(ParameterError, match=r"Pass encoder=model\.encode"):
        TextVectors(3, bridge)
    with pytest.raises(FileError):
        TextVectors(new_model, tmp_path / "nothing")
    other = Toy()
    other.space = type(other.space)("toy:other", "1", "text", 16, True)
    with pytest.raises(ValueError, match="expected vectors of 'toy:new'"):
        TextVectors(other, bridge)
    assert TextVectors(other, bridge, check=False).dim == 24


def test_only_texts_are_taken(bridge):
    vectors = TextVectors(new_model, bridge)
    with pytest.raises(TypeError, match=r"Pass \[text\]"):
        vectors("a cat")
    with pytest.raises(TypeError, match="Got int as text 1"):
        vectors(["a cat", 3])


NEEDS = {"langchain": "langchain_core", "llama_index": "llama_index.core", "chroma": "chromadb", "lancedb": "lancedb"}


@pytest.mark.parametrize("module", NEEDS)
def test_a_missing_package_says_which_extra(module, monkeypatch):
    monkeypatch.delitem(sys.modules, f"congruence.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, NEEDS[module], None)
    with pytest.raises(MissingExtraError, match=rf"congruence\[{module.replace('_', '-')}\]"):
        importlib.import_module(f"congruence.integrations.{module}")


# ------------------------------------------------------------------ LangChain


def test_langchain_searches_old_vectors(bridge, old_rows, nearest):
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from congruence.integrations.langchain import CongruenceEmbeddings

    embeddings = CongruenceEmbeddings(new_model, bridge)
    assert isinstance(embeddings, Embeddings)
    store = InMemoryVectorStore(embeddings)
    for k, text in enumerate(TEXTS):  # as the old model left it
        store.store[str(k)] = {"id": str(k), "vector": old_rows[k].tolist(), "text": text, "metadata": {}}
    for query, want in zip(QUERIES, nearest(QUERIES), strict=True):
        assert [int(found.id) for found in store.similarity_search(query, k=5)] == want.tolist()
    ids = store.add_documents([Document(QUERIES[0])])  # new documents are mapped as well
    assert store.similarity_search(QUERIES[0], k=1)[0].id == ids[0]


# ------------------------------------------------------------------ LlamaIndex


@pytest.mark.long
def test_llama_index_searches_old_vectors(bridge, old_rows, nearest):
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    from congruence.integrations.llama_index import CongruenceEmbedding

    nodes = [TextNode(id_=str(k), text=text, embedding=old_rows[k].tolist()) for k, text in enumerate(TEXTS)]
    model = CongruenceEmbedding(new_model, bridge)
    retriever = VectorStoreIndex(nodes, embed_model=model).as_retriever(similarity_top_k=5)
    for query, want in zip(QUERIES, nearest(QUERIES), strict=True):
        assert [int(found.node.node_id) for found in retriever.retrieve(query)] == want.tolist()
    found = asyncio.run(retriever.aretrieve(QUERIES[1]))
    assert [int(one.node.node_id) for one in found] == nearest(QUERIES)[1].tolist()


def test_llama_index_writes_itself_down_and_tells_bridges_apart(bridge, folder, toy):
    from llama_index.core.ingestion.pipeline import get_transformation_hash
    from llama_index.core.schema import TextNode

    from congruence.integrations.llama_index import CongruenceEmbedding

    model = CongruenceEmbedding(toy, folder, embed_batch_size=3)
    again = CongruenceEmbedding.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again.get_text_embedding_batch(QUERIES) == model.get_text_embedding_batch(QUERIES)
    assert again.embed_batch_size == 3
    assert model.model_name == "old-model"
    plain, mapped = CongruenceEmbedding(new_model), CongruenceEmbedding(new_model, bridge)
    nodes = [TextNode(id_="1", text="a cat")]
    assert plain.fingerprint != mapped.fingerprint
    assert get_transformation_hash(nodes, plain) != get_transformation_hash(nodes, mapped)
    assert mapped.fingerprint == model.fingerprint


# ------------------------------------------------------------------ Chroma


@pytest.fixture
def chroma(tmp_path):
    chromadb = pytest.importorskip("chromadb")
    from chromadb.api.client import SharedSystemClient

    settings = chromadb.Settings(anonymized_telemetry=False)
    yield lambda: chromadb.PersistentClient(str(tmp_path / "chroma"), settings=settings)
    SharedSystemClient.clear_system_cache()


def test_chroma_searches_old_vectors_and_remembers_the_function(chroma, folder, toy, old_rows, nearest):
    from chromadb.api.client import SharedSystemClient

    from congruence.integrations.chroma import CongruenceEmbeddingFunction

    function = CongruenceEmbeddingFunction(toy, folder)
    made = chroma().create_collection("texts", embedding_function=function)
    made.add([str(k) for k in range(len(TEXTS))], embeddings=old_rows, documents=TEXTS)
    want = [[str(k) for k in row] for row in nearest(QUERIES)]
    assert made.query(query_texts=QUERIES, n_results=5)["ids"] == want
    del made
    SharedSystemClient.clear_system_cache()  # as another process would
    opened = chroma().get_collection("texts")
    assert opened.query(query_texts=QUERIES, n_results=5)["ids"] == want
    remembered = opened.configuration["embedding_function"]
    assert remembered.get_config() == {"encoder": "toy:new", "bridge": str(folder), "modality": "text"}


def test_chroma_collections_of_another_function_are_asked_by_vectors(chroma, bridge, old_rows, nearest):
    from congruence.integrations.chroma import CongruenceEmbeddingFunction

    function = CongruenceEmbeddingFunction(new_model, bridge)  # of objects: Chroma cannot save it, and does not
    made = chroma().create_collection("old", embedding_function=None, metadata={"hnsw:space": "cosine"})
    made.add([str(k) for k in range(len(TEXTS))], embeddings=old_rows)
    found = made.query(query_embeddings=function.embed_query(QUERIES), n_results=5)["ids"]
    assert found == [[str(k) for k in row] for row in nearest(QUERIES)]
    assert function.get_config() is NotImplemented


def test_chroma_builds_from_names_only(folder, toy):
    from congruence.integrations.chroma import CongruenceEmbeddingFunction as Function

    built = Function.build_from_config({"encoder": toy, "bridge": str(folder)})
    assert built(QUERIES[:1])[0].shape == (24,)
    extra = {"encoder": toy, "code": "import os"}
    for bad in ({}, {"bridge": "x"}, {"encoder": 3}, extra, {"encoder": toy, "bridge": ["x"]}):
        with pytest.raises(ParameterError, match="Got a saved embedding function with"):
            Function.build_from_config(bad)
    # A machine without the model can still open the collection, and is told when it asks.
    with pytest.raises(ParameterError, match="nowhere"):
        Function.build_from_config({"encoder": "nowhere:x"})(["a cat"])


@pytest.mark.parametrize("library", ["chroma", "lancedb"])
def test_documents_are_mapped_as_rows_of_the_store_and_queries_as_queries(library, folder, toy, bridge):
    pytest.importorskip(NEEDS[library])
    module = importlib.import_module(f"congruence.integrations.{library}")
    make = getattr(module.CongruenceEmbeddingFunction, "create", module.CongruenceEmbeddingFunction)
    function = make(encoder=toy, bridge=str(folder))
    if library == "chroma":
        documents, query = function(QUERIES), function.embed_query(QUERIES[:1])
    else:
        documents = function.compute_source_embeddings_with_retry(QUERIES)
        query = function.compute_query_embeddings_with_retry(QUERIES[0])
    want = [bridge.transform(new_model(QUERIES), "text", role) for role in ("store", "query")]
    assert np.abs(want[0] - want[1]).max() > 1e-4
    np.testing.assert_allclose(documents, want[0], atol=1e-5)
    np.testing.assert_allclose(query, want[1][:1], atol=1e-5)


# ------------------------------------------------------------------ LanceDB


def test_lancedb_searches_old_vectors_and_remembers_the_function(tmp_path, folder, toy, old_rows, nearest):
    import lancedb
    from lancedb.pydantic import LanceModel, Vector

    from congruence.integrations.lancedb import CongruenceEmbeddingFunction

    function = CongruenceEmbeddingFunction.create(encoder=toy, bridge=str(folder))

    class Row(LanceModel):
        number: int
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()

    table = lancedb.connect(tmp_path / "db").create_table("texts", schema=Row)
    rows = [{"number": k, "text": text, "vector": old_rows[k]} for k, text in enumerate(TEXTS)]
    table.add(rows)
    again = lancedb.connect(tmp_path / "db").open_table("texts")
    for found_in in (table, again):
        for query, want in zip(QUERIES, nearest(QUERIES), strict=True):
            found = found_in.search(query).limit(5).to_list()
            assert [row["number"] for row in found] == want.tolist()
    np.testing.assert_allclose(again.to_arrow()["vector"].to_pylist(), old_rows, atol=1e-6)  # as they were
    again.add([{"number": -1, "text": QUERIES[0]}])  # a new row is mapped
    assert again.search(QUERIES[0]).limit(1).to_list()[0]["number"] == -1


def test_lancedb_failures_are_told_at_once(tmp_path, folder, toy):
    from congruence.integrations.lancedb import CongruenceEmbeddingFunction

    broken = CongruenceEmbeddingFunction.create(encoder=toy, bridge=str(tmp_path / "gone"))
    with pytest.raises(FileError):
        broken.compute_query_embeddings_with_retry("a cat")
    with pytest.raises(FileError):
        broken.compute_source_embeddings_with_retry(["a cat"])
    shutil.copytree(folder, tmp_path / "gone")  # a failed load is tried again
    assert broken.compute_query_embeddings_with_retry("a cat")[0].shape == (24,)
    whole = CongruenceEmbeddingFunction.create(encoder=toy, bridge=str(folder))
    one, none = whole.generate_embeddings(["a cat", None])
    assert none is None
    assert one.shape == (24,)


def test_langchain_async_and_batches(bridge):
    from congruence.integrations.langchain import CongruenceEmbeddings

    embeddings = CongruenceEmbeddings(Toy(), bridge, batch_size=2)

    async def ask():
        return await asyncio.gather(embeddings.aembed_documents(QUERIES), embeddings.aembed_query(QUERIES[0]))

    many, one = asyncio.run(ask())
    np.testing.assert_allclose(many, bridge.transform(new_model(QUERIES), "text", "store"), atol=1e-6)
    np.testing.assert_allclose(one, bridge.transform(new_model(QUERIES), "text")[0], atol=1e-6)
    assert embeddings.embed_documents([]) == []
