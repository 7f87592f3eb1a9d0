"""Overlap is what comparing lists by hand gives, and says what finding the same item does not."""

from itertools import permutations

import numpy as np
import pytest

from congruence import Embeddings, Space
from congruence.errors import InputError, ModalityError
from congruence.synthetic import random_rotation, upgrade_problem
from congruence.upgrade.certify import certify
from congruence.upgrade.certify.scoring import compare_lists, recall

QUICK = {"method": "orthogonal"}


def by_hand(near, judge, k, role, gone=None):
    """Both measures of every query, by sorting; one row may be gone from both stores."""
    m, n = near.shape
    out = np.zeros((2, m))
    for i in range(m):
        rows = [j for j in range(n) if j != gone and not (role == "items" and j == i)]
        listed, best = (sorted(rows, key=lambda j: -table[i, j])[:k] for table in (near, judge))
        mean = judge[i, [j for j in range(n) if not (role == "items" and j == i)]].mean()
        last = judge[i, best[-1]]
        out[0, i] = len(set(listed) & set(best)) / k
        out[1, i] = np.mean([1 if j in best else max((judge[i, j] - mean) / (last - mean), -1) for j in listed])
    return out


@pytest.mark.parametrize("role", ["items", "captions", "apart"])
@pytest.mark.parametrize("k", [1, 4])
def test_lists_and_pulls_are_those_found_by_hand(role, k):
    rng = np.random.default_rng(0)
    m = 14 if role == "apart" else 20
    judge = rng.standard_normal((m, 20))
    near = judge + 0.7 * rng.standard_normal(judge.shape)
    got = compare_lists(near, judge, k, role)
    whole = by_hand(near, judge, k, role)
    others = np.ones((20, m), bool) if role == "apart" else ~np.eye(20, dtype=bool)
    for which, name in enumerate(("overlap", "graded_overlap")):
        np.testing.assert_allclose(got[name].score, whole[which])
        for gone in range(20):
            change = by_hand(near, judge, k, role, gone)[which] - whole[which]
            assert got[name].pull[gone] == pytest.approx(change[others[gone]].sum(), abs=1e-9)
    assert (got["graded_overlap"].score >= got["overlap"].score - 2).all()
    assert 0 < whole[0].mean() < 1


def test_copies_in_a_store_count_as_found_and_ties_with_their_probability():
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((6, 5)), 8, axis=0)  # every list of 4 is one of many that are as good
    similarity = rows @ rows.T
    shuffled = similarity + 1e-9 * rng.standard_normal(similarity.shape)
    assert compare_lists(shuffled, similarity, 4, "items")["overlap"].score.mean() == 1
    near = np.ones((1, 40))
    judge = -np.arange(40.0)[None]
    for order in (judge, judge[:, ::-1]):
        assert compare_lists(near, order, 5, "apart")["overlap"].score == pytest.approx(5 / 40)


@pytest.mark.parametrize("find_own", [True, False])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_hits_and_lists_with_ties_are_means_over_their_orders(find_own, k, seed):
    rng = np.random.default_rng(seed)
    n = 6
    near, judge = rng.integers(0, 3, (n, n)).astype(float), rng.standard_normal((n, n))
    codes = rng.integers(0, 3, n)
    table = near.copy()
    if not find_own:
        np.fill_diagonal(table, -np.inf)
    orders = [np.array(order) for order in permutations(range(n))]
    lists = np.array(
        [[sorted(range(n), key=lambda j, i=i, o=o: (-table[i, j], o[j]))[:k] for i in range(n)] for o in orders]
    )
    hits = (codes[lists] == codes[None, :, None]).any(axis=2).mean(axis=0)
    relevant = codes[:, None] == codes
    np.testing.assert_allclose(recall(table, relevant, k, find_own=find_own).score, hits, atol=1e-12)
    if find_own:
        right = np.argsort(-judge, axis=1)[:, :k]
        shares = [[len({*a} & {*b}) / k for a, b in zip(one, right, strict=True)] for one in lists.tolist()]
        expected = np.mean(shares, axis=0)
        np.testing.assert_allclose(compare_lists(near, judge, k, "apart")["overlap"].score, expected, atol=1e-12)


def images(*models):
    return [{"image": Embeddings(rows, ids=[f"item {i}" for i in range(len(rows))])} for rows in models]


def test_a_store_of_near_duplicates_does_not_mislead():
    """Items do not find themselves but a twin, which is as good: not a reason to encode everything again."""
    rng = np.random.default_rng(0)
    items = np.repeat(rng.standard_normal((30, 48)), 8, axis=0)
    items += 0.1 * rng.standard_normal(items.shape)
    # The models differ by a rotation and by noise larger than what tells twins apart.
    source, target = (items + 0.15 * rng.standard_normal(items.shape) for _ in range(2))
    certificate = certify(*images(source, target @ random_rotation(48, 48, random_state=0)), **QUICK)
    assert certificate.strategies["own@1"]["stored"].value < 0.8
    assert certificate.strategies["graded_overlap@10"]["stored"].value > 0.96
    assert certificate.verdict.action in ("map", "keep") or certificate.verdict.between == ["keep", "map"]
    assert certificate.verdict.confidence.get("re-embed", 0) < 0.1
    assert any("near-duplicates" in note for note in certificate.notes)


def test_finding_each_item_does_not_mean_finding_its_neighbors():
    """Items far apart find themselves through almost any map, while the rest of the list is another."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((200, 48))
    source, target = (items + 0.65 * rng.standard_normal(items.shape) for _ in range(2))
    certificate = certify(*images(source, target), **QUICK)
    assert certificate.strategies["own@1"]["stored"].value > 0.97
    assert certificate.strategies["overlap@10"]["stored"].value < 0.6
    assert certificate.verdict.action not in ("map", "queries"), certificate.verdict
    assert "are those of a re-embedded store" in certificate.verdict.reason


def test_a_rotation_returns_the_same_lists_and_a_random_one_chance():
    rng = np.random.default_rng(0)
    source = rng.standard_normal((120, 16))
    certificate = certify(*images(source, source @ random_rotation(16, 16, random_state=1)), **QUICK)
    for name in ("overlap@10", "graded_overlap@10"):
        assert certificate.strategies[name]["stored"].value == pytest.approx(1, abs=0.01)
        assert certificate.strategies[name]["keep"].value == pytest.approx(1, abs=1e-6)
    assert certificate.verdict.action == "keep"  # the old model returns these very lists
    control = certificate.controls["overlap@10"]
    assert control["chance"] == pytest.approx(10 / 119)
    assert control["random_rotation"] == pytest.approx(10 / 119, abs=0.05)


@pytest.mark.long
def test_texts_of_other_items_search_both_stores():
    p = upgrade_problem(160, 24, source_noise=0.6, target_noise=0.4, shared=0.9, random_state=0)
    source, target = images(p.source_images[:120], p.target_images[:120])
    texts = [Embeddings(side[120:], ids=[f"query {i}" for i in range(40)]) for side in (p.source_texts, p.target_texts)]
    certificate = certify(source, target, text_queries=tuple(texts), **QUICK)
    assert certificate.task == "graded_text_overlap@10"
    found = certificate.strategies["text_overlap@10"]
    assert set(found) == {"keep", "leave", "stored", "queries"}
    assert found["stored"].n == 40
    assert found["stored"].value > 4 * certificate.controls["text_overlap@10"]["chance"]
    # The same, told by ids alone; and by the target's texts alone, which say nothing of the other ways.
    named = Embeddings(texts[0].vectors, ids=texts[0].ids, space=Space("of texts", modality="text"))
    by_id = certify({"text": named} | source, target | {"text": texts[1]}, **QUICK)
    assert by_id.strategies == certificate.strategies
    assert by_id.facts == certificate.facts  # which name the models of the store
    alone = certify(source, target, text_queries=(None, texts[1]), **QUICK)
    assert set(alone.strategies["text_overlap@10"]) == {"leave", "stored"}
    with pytest.raises(ModalityError, match="captions"):
        ids = {"text": Embeddings(p.source_texts[:120], ids=source["image"].ids)}
        certify(source | ids, target | ids, text_queries=tuple(texts), **QUICK)
    with pytest.raises(InputError, match="width 5"):
        certify(source, target, text_queries=(None, p.target_texts[:, :5]), **QUICK)


def test_lists_without_a_near_result_give_no_credit():
    """Where the last right result is no nearer than a random row, its distance is no scale."""
    judge = np.array([[3.0, 2.0, -8.0, 1.0, 1.0, 1.0]] * 4)
    judge[:, 5] -= 1e-12
    found = compare_lists(-judge, judge, 5, "apart")
    assert ((found["graded_overlap"].score >= -1) & (found["graded_overlap"].score <= 1)).all()
