"""One query over an index of two models' rows: standardized scores put both parts onto one scale."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from congruence import Bridge, Embeddings, OrthogonalMap, Space, errors
from congruence.embeddings import normalize_rows
from congruence.upgrade.bridge import search_mixed

N, D = 300, 24


@pytest.fixture(scope="module")
def world():
    """Two models of one latent; the new one's vectors lie in a narrow cone, so that its cosines are all near 1."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(N, D))
    old = normalize_rows(latent @ np.linalg.qr(rng.normal(size=(D, D)))[0])
    new = normalize_rows(latent + 12 * np.eye(D)[0])
    bridge = Bridge(OrthogonalMap().fit(new[:100], old[:100]))
    queries = normalize_rows(latent[100:] + 0.1 * rng.normal(size=(N - 100, D)) + 12 * np.eye(D)[0])
    return bridge, queries, old[100:], new[100:]


def test_standardized_scores_let_both_parts_be_found(world):
    bridge, queries, old, new = world
    half = len(old) // 2
    own = np.arange(len(queries))[:, None]
    raw = search_mixed(bridge, queries, old[:half], new[half:], merge="none")
    standardized = search_mixed(bridge, queries, old[:half], new[half:])
    paired = search_mixed(bridge, queries, old[:half], new[half:], background=(old[half:], new[half:]))
    assert raw.new.mean() > 0.9  # what the default is for: hardly an old row is seen
    for result in (standardized, paired):
        assert 0.3 < result.new.mean() < 0.7
        hit = (np.where(result.new, result.ids + half, result.ids) == own).any(axis=1)
        assert hit.mean() > 0.95
        assert (np.diff(result.scores, axis=1) <= 0).all()


def test_scores_are_standard_deviations_above_the_mean_of_the_part(world):
    bridge, queries, old, new = world
    result = search_mixed(bridge, queries[:5], old[:90], new[90:], k=4)
    near = normalize_rows(np.asarray(bridge.transform(queries[:5]))) @ old[:90].T, queries[:5] @ new[90:].T
    both = np.hstack([(s - s.mean(axis=1, keepdims=True)) / s.std(axis=1, keepdims=True) for s in near])
    assert np.allclose(result.scores, -np.sort(-both, axis=1)[:, :4])
    place = np.argsort(-both, axis=1)[:, :4]
    assert np.array_equal(result.new, place >= 90)
    assert np.array_equal(np.where(result.new, result.ids + 90, result.ids), place)


def test_an_item_in_both_parts_counts_as_new(world):
    bridge, queries, old, new = world
    ids = [f"k{k}" for k in range(len(old))]
    sides = Embeddings(old[:120], ids=ids[:120]), Embeddings(new[80:], ids=ids[80:])
    result = search_mixed(bridge, queries[80:120], *sides, k=5)
    assert all(len(set(row)) == 5 for row in result.ids.tolist())
    doubled = np.isin(result.ids, ids[80:120])
    assert result.new[doubled].all()
    assert result.n_in_both == 40
    everything = search_mixed(bridge, queries[:3], Embeddings(old, ids=ids), Embeddings(new, ids=ids), k=2)
    assert everything.new.all()
    assert everything.n_in_both == len(old)
    assert search_mixed(bridge, queries[:3], old, Embeddings(new, ids=ids), k=2).n_in_both == 0


def test_parts_and_queries_that_say_of_which_model_they_are(world):
    bridge, queries, old, new = world
    mapping = copy.copy(bridge.map)
    mapping.source_space_, mapping.target_space_ = (replace(bridge.map.source_space_, model=name) for name in "ba")
    named = Bridge(mapping)
    a, b = (Embeddings(rows, space=Space(name)) for name, rows in (("a", old), ("b", new)))
    asked = Embeddings(queries[:4], space=Space("b"))
    found = search_mixed(named, asked, a, b, k=3)
    assert np.array_equal(found.ids, search_mixed(bridge, queries[:4], old, new, k=3).ids)
    for given, error, said in (
        ((asked, b, a), errors.DirectionError, "old part has vectors of 'b'.*Exchange"),
        ((asked, a, a), errors.DirectionError, "new part has vectors of 'a'.*Exchange"),
        ((asked, Embeddings(old, space=Space("c")), b), errors.SpaceMismatchError, "old part has vectors of 'c'"),
        ((Embeddings(old[:4], space=Space("a")), a, b), errors.DirectionError, "index's side of the map"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            search_mixed(named, *given)


def test_ids_of_one_part_and_row_numbers_of_the_other(world):
    bridge, queries, old, new = world
    named = Embeddings(new[90:], ids=[f"k{k}" for k in range(90, len(new))])
    result = search_mixed(bridge, queries[:20], old[:90], named, k=3)
    assert {type(one) for one in result.ids[result.new].tolist()} == {str}
    assert {type(one) for one in result.ids[~result.new].tolist()} == {int}


def test_parts_that_search_by_themselves(world):
    faiss = pytest.importorskip("faiss")
    bridge, queries, old, new = world
    index = faiss.IndexFlatIP(D)
    index.add(old[:90].astype(np.float32))
    background = old[90:150], new[90:150]
    expected = search_mixed(bridge, queries[:8], old[:90], new[90:], background=background)
    found = search_mixed(bridge, queries[:8], index, new[90:], background=background)
    assert np.array_equal(found.ids, expected.ids)
    assert np.allclose(found.scores, expected.scores, atol=1e-5)
    with pytest.raises(errors.ParameterError, match="old part searches by itself"):
        search_mixed(bridge, queries[:8], index, new[90:])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"old": np.ones((5, D + 1))}, errors.ShapeError, "old part has width 25; expected 24"),
        ({"old": np.eye(D)[:19]}, errors.InputError, "old part has 19 rows"),
        ({"new": np.ones((30, D))}, errors.InputError, "rows of the new part have the same cosine"),
        ({"merge": "mean"}, errors.ParameterError, "merge='mean'"),
        ({"k": 0}, errors.ParameterError, "k=0"),
        ({"background": (np.eye(D), np.ones((30, 3)))}, errors.ShapeError, "3-d background rows for the new part"),
        ({"new": np.full((30, D), np.nan)}, errors.NotFiniteError, "NaN"),
    ],
)
def test_bad_input(world, change, error, said):
    bridge, queries, old, new = world
    with pytest.raises(error, match=said):
        search_mixed(bridge, queries[:4], **{"old": old[:90], "new": new[90:], **change})


def test_one_query_gives_one_list(world):
    bridge, queries, old, new = world
    one, many = (search_mixed(bridge, q, old[:90], new[90:], k=3) for q in (queries[0], queries[:1]))
    assert one.ids.shape == (3,)
    assert np.array_equal(one.ids, many.ids[0])
    assert np.array_equal(one.scores, many.scores[0])
