"""Search with bridged queries: what is found, in which order, and what an index may be."""

import numpy as np
import pytest
from bridge_data import two_models, unit

from congruence import Bridge, Embeddings, OrthogonalMap, Space, fit
from congruence.errors import DirectionError, InputError, ParameterError, ShapeError, SpaceMismatchError
from congruence.metrics import class_retrieval

NEW, OLD = two_models(260, 8, 12, noise=0.1, random_state=1)
BRIDGE = Bridge(OrthogonalMap().fit(NEW[:200], OLD[:200]))
QUERIES, ITEMS = NEW[200:], NEW[60:]
INDEX = OLD[60:]


def brute(vectors, rows, k):
    cosines = unit(vectors).astype(np.float64) @ unit(rows).astype(np.float64).T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosines, order, axis=1)


def test_the_first_stage_is_the_cosine_with_bridged_queries():
    found = BRIDGE.search(QUERIES, INDEX, k=5)
    order, cosines = brute(BRIDGE.transform(QUERIES), INDEX, 5)
    assert np.array_equal(found.ids, order)
    np.testing.assert_allclose(found.scores, cosines, atol=1e-6)
    assert not found.reranked.any()


def test_ids_are_the_indexs_own_and_one_query_gives_one_row():
    names = np.array([f"item {i}" for i in range(len(INDEX))])
    found = BRIDGE.search(QUERIES[0], Embeddings(INDEX, ids=names.tolist()), k=3)
    assert found.ids.tolist() == names[brute(BRIDGE.transform(QUERIES[:1]), INDEX, 3)[0][0]].tolist()
    assert found.scores.shape == found.reranked.shape == (3,)


def test_two_stages_give_the_new_models_own_order_of_the_candidates():
    found = BRIDGE.search(QUERIES, INDEX, k=4, candidates=30, rerank=ITEMS)
    candidates = brute(BRIDGE.transform(QUERIES), INDEX, 30)[0]
    for row in range(len(QUERIES)):
        cosines = ITEMS[candidates[row]].astype(np.float64) @ QUERIES[row]
        assert found.ids[row].tolist() == candidates[row][np.argsort(-cosines, kind="stable")][:4].tolist()
        np.testing.assert_allclose(found.scores[row], np.sort(cosines)[::-1][:4], atol=1e-6)
    assert found.reranked.all()
    found = BRIDGE.search(QUERIES, INDEX, k=10, candidates=len(INDEX), rerank=ITEMS)
    assert np.array_equal(found.ids, brute(QUERIES, ITEMS, 10)[0])


def test_every_form_of_rerank_is_the_same():
    names = [str(i) for i in range(len(INDEX))]
    index = Embeddings(INDEX, ids=names)
    expected = BRIDGE.search(QUERIES, INDEX, k=7, rerank=ITEMS)
    shuffled = np.random.default_rng(0).permutation(len(ITEMS))
    for rerank in (
        Embeddings(ITEMS[shuffled], ids=[names[i] for i in shuffled]),
        lambda ids: [ITEMS[int(i)] for i in ids],
        lambda ids: ITEMS[np.array(ids, dtype=int)],
    ):
        found = BRIDGE.search(QUERIES, index, k=7, rerank=rerank)
        assert np.array_equal(found.ids.astype(int), expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("form", ["array", "embeddings", "callable"])
def test_items_without_a_new_vector_follow_in_the_order_of_the_first_stage(form):
    has = np.arange(len(ITEMS)) % 2 == 0
    index = Embeddings(INDEX, ids=np.arange(len(INDEX)))
    rerank = {
        "array": np.where(has[:, None], ITEMS, np.nan),
        "embeddings": Embeddings(ITEMS[has], ids=np.flatnonzero(has)),
        "callable": lambda ids: [ITEMS[i] if has[i] else None for i in ids],
    }[form]
    found = BRIDGE.search(QUERIES, index, k=20, candidates=20, rerank=rerank)
    first = BRIDGE.search(QUERIES, index, k=20)
    for row in range(len(QUERIES)):
        candidates = first.ids[row]
        n = int(has[candidates].sum())
        assert found.reranked[row].tolist() == [True] * n + [False] * (20 - n)
        assert found.ids[row, n:].tolist() == candidates[~has[candidates]].tolist()
        assert found.scores[row, n:].tolist() == first.scores[row][~has[candidates]].tolist()
        assert (np.diff(found.scores[row, :n]) <= 0).all()


def test_a_faiss_index_and_a_callable_give_what_the_array_gives():
    faiss = pytest.importorskip("faiss")
    flat, l2 = faiss.IndexFlatIP(12), faiss.IndexFlatL2(12)
    flat.add(INDEX)
    l2.add(INDEX)
    expected = BRIDGE.search(QUERIES, INDEX, k=5, rerank=ITEMS)
    for index in (flat, l2, lambda vectors, n: brute(vectors, INDEX, n)[::-1]):
        assert np.array_equal(BRIDGE.search(QUERIES, index, k=5, rerank=ITEMS).ids, expected.ids)
    assert (np.diff(BRIDGE.search(QUERIES, l2, k=5).scores, axis=1) <= 0).all()
    with pytest.raises(ShapeError, match="width 8"):
        BRIDGE.search(QUERIES, faiss.IndexFlatIP(8))
    with pytest.raises(ShapeError, match="without rows"):
        BRIDGE.search(QUERIES, faiss.IndexFlatIP(12))


def test_an_index_that_found_fewer_rows_than_asked_for():
    def index(vectors, n):
        scores, ids = np.full((len(vectors), n), -np.inf), np.full((len(vectors), n), -1)
        order, cosines = brute(vectors, INDEX, 3)
        scores[:, :3], ids[:, :3] = cosines, order
        return scores, ids

    for rerank in (ITEMS, lambda ids: ITEMS[ids]):
        found = BRIDGE.search(QUERIES, index, k=5, rerank=rerank)
        assert (found.ids[:, 3:] == -1).all()
        assert found.reranked[:, :3].all()
        assert not found.reranked[:, 3:].any()


@pytest.mark.parametrize("options", [{"hubness": "csls"}, {"hubness": "qb_norm"}])
def test_corrections_are_those_of_the_retrieval_measures(options):
    own = np.arange(len(INDEX))[140:]
    found = BRIDGE.search(QUERIES, INDEX, k=1, **options).ids[:, 0]
    bridged = BRIDGE.transform(QUERIES)
    assert np.mean(found == own) == class_retrieval(bridged, INDEX, own, np.arange(len(INDEX)), **options)
    other = BRIDGE.search(QUERIES, INDEX, k=1, bank=NEW[:100], **options).ids[:, 0]
    measured = class_retrieval(bridged, INDEX, own, np.arange(len(INDEX)), bank=BRIDGE.transform(NEW[:100]), **options)
    assert np.mean(other == own) == measured


def test_what_a_search_cannot_be_is_refused():
    for options, error, says in (
        ({"k": 0}, ParameterError, "k=0"),
        ({"candidates": 50}, ParameterError, "without rerank"),
        ({"candidates": 5, "rerank": ITEMS}, ParameterError, "for k=10"),
        ({"bank": NEW}, ParameterError, "bank is used only with hubness"),
        ({"metric": "near"}, ParameterError, "near"),
        ({"metric": "inner", "hubness": "csls"}, ParameterError, "needs cosines"),
        ({"rerank": OLD}, ShapeError, "rerank has 12 dimensions"),
        ({"rerank": ITEMS[:5]}, InputError, "not row numbers of rerank, which has 5 rows"),
        ({"rerank": lambda ids: []}, InputError, "0 vectors"),
        ({"rerank": lambda ids: [[1.0]] * len(ids)}, ShapeError, r"shape \(1,\)"),
    ):
        with pytest.raises(error, match=says):
            BRIDGE.search(QUERIES, INDEX, **options)
    with pytest.raises(ShapeError, match=r"width 8, that of the other model; expected 12.*old model"):
        BRIDGE.search(QUERIES, ITEMS)
    for found, options, error, says in (
        (None, {"hubness": "csls"}, ParameterError, "search index takes"),
        (None, {}, InputError, "Return .scores, ids."),
        ((np.ones(3), np.ones(3)), {}, InputError, "shape"),
    ):
        with pytest.raises(error, match=says):
            BRIDGE.search(QUERIES, lambda v, n, found=found: found, **options)


@pytest.mark.parametrize(
    ("model", "error"), [("b", DirectionError), ("c", SpaceMismatchError), ("a", None), (None, None)]
)
def test_an_index_of_another_model_than_the_old_one_is_refused(model, error):
    named = (Embeddings(rows, space=Space(name)) for rows, name in ((ITEMS, "b"), (INDEX, "a")))
    bridge = Bridge(fit(*named, check=False))
    index = Embeddings(INDEX, ids=np.arange(len(INDEX)), space=Space(model))
    asked = Embeddings(QUERIES, ids=np.arange(len(QUERIES)))
    calls = (
        lambda: bridge.search(QUERIES, index),
        lambda: bridge.evaluate(asked, index),
        lambda: bridge.fit_thresholds(asked, Embeddings(INDEX[: len(QUERIES)], ids=asked.ids), index),
    )
    for call in calls:
        if error is None:
            call()
        else:
            with pytest.raises(error, match="expected those of 'a'"):
                call()
