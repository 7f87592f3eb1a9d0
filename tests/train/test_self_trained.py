"""The map that self-training finds: against plain NumPy, better than its teacher where it says so, and what it does
without pairs or pools to learn from.
"""

import copy
from functools import cache

import numpy as np
import pytest

import congruence
from congruence import errors
from congruence.evaluation import search
from congruence.synthetic import unimodal_problem
from congruence.train import SelfTrainedMap
from congruence.train.retrieval import mean_recall

pytestmark = [
    pytest.mark.filterwarnings("error::congruence.errors.AlignmentWarning"),
    pytest.mark.filterwarnings("default::congruence.errors.PairingWarning"),
]


def world(n=1600, pairs=40, pool=600, overlap=False, seed=0):
    """Return pairs, pools, and unseen test rows of two encoders of one latent."""
    made = unimodal_problem(n, 48, 32, latent=20, noise=0.1, classes=40, random_state=seed)
    order = np.random.default_rng(seed).permutation(n)
    paired, rest, test = order[:pairs], order[pairs:-300], order[-300:]
    u, v = rest[:pool], rest[::-1][:pool]
    v = rest[:pool][::-1] if overlap else v
    return [(made.images[rows], made.texts[other]) for rows, other in ((paired, paired), (u, v), (test, test))]


@cache
def fitted(hubness):
    """Return a map of the world, which must not be changed."""
    pairs, pools, _ = world()
    return SelfTrainedMap(hubness=hubness, matches="soft", max_rounds=2).fit(*pairs, unpaired=pools)


def quality(mapping, test, csls=False):
    banks = mapping.banks_ if csls else None
    return mean_recall(mapping.transform(test[0]), mapping.transform_target(test[1]), banks=banks)


@pytest.mark.parametrize(("matches", "rounds"), [("soft", 3), ("hard", 1)])
def test_the_rounds_equal_plain_numpy(matches, rounds):
    pairs, pools, test = world(overlap=True)
    mapping = SelfTrainedMap(matches=matches, max_rounds=rounds, hubness="none").fit(*pairs, unpaired=pools)
    choice = mapping.choice_
    assert choice.matches == matches
    rows, pool, means = [], [], []
    for a, u in zip(pairs, pools, strict=True):
        both = np.concatenate([a, u]).astype(float)
        both /= np.linalg.norm(both, axis=1, keepdims=True)
        means.append(both.mean(axis=0))
        rows.append((both - means[-1])[: len(a)])
        pool.append((both - means[-1])[len(a) :])
    (A, B), (U, V) = rows, pool
    left, right, w = A, B, np.ones(len(A))
    for number in range(choice.rounds + 1):
        gram = [(side * w[:, None]).T @ side for side in (left, right)]
        roots = []
        for g in gram:
            values, vectors = np.linalg.eigh(g + choice.ridge * np.trace(g) * np.eye(len(g)))
            roots.append(vectors / np.sqrt(values) @ vectors.T)
        P, rho, Qt = np.linalg.svd(roots[0] @ ((left * w[:, None]).T @ right) @ roots[1], full_matrices=False)
        W, Z = roots[0] @ P * np.sqrt(rho), roots[1] @ Qt.T * np.sqrt(rho)
        if number == choice.rounds:
            break
        u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (U @ W, V @ Z))
        near = u @ v.T
        r_u, r_v = np.sort(near, axis=1)[:, -10:].mean(axis=1), np.sort(near, axis=0)[-10:].mean(axis=0)
        scaled = 2 * near - r_u[:, None] - r_v
        if matches == "soft":
            forth, back = np.exp(scaled / 0.1), np.exp(scaled.T / 0.1)
            of_u = forth / forth.sum(axis=1, keepdims=True) @ V
            of_v = back / back.sum(axis=1, keepdims=True) @ U
            left, right = np.concatenate([A, U, of_v]), np.concatenate([B, of_u, V])
        else:
            i = np.flatnonzero(scaled.argmax(axis=0)[scaled.argmax(axis=1)] == np.arange(len(U)))
            left, right = np.concatenate([A, U[i]]), np.concatenate([B, V[scaled.argmax(axis=1)[i]]])
        extra = len(left) - len(A)
        w = np.concatenate([np.full(len(A), max(1, extra / (2 * len(A)))), np.ones(extra)])
    X, Y = (side / np.linalg.norm(side, axis=1, keepdims=True) - mean for side, mean in zip(test, means, strict=True))
    expected = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (X @ W, Y @ Z)]
    got = [mapping.transform(test[0]), mapping.transform_target(test[1])]
    got = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in got]
    np.testing.assert_allclose(got[0] @ got[1].T, expected[0] @ expected[1].T, atol=2e-3)


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_unpaired_rows_raise_retrieval_of_unseen_rows(runs):
    gains = []
    for seed in range(runs):
        pairs, pools, test = world(seed=seed)
        mapping = SelfTrainedMap(max_rounds=2).fit(*pairs, unpaired=pools)
        gains.append(quality(mapping, test) - quality(SelfTrainedMap(matches="none").fit(*pairs, unpaired=pools), test))
        facts = mapping.scores_["self_training"]
        assert mapping.choice_.matches != "none"
        assert facts["gain"] > facts["gain_error"]
        assert f"gain {facts['gain']:+.0%}" in facts["sentence"]
    assert np.mean(gains) > 0.03
    assert min(gains) > 0


def test_pools_without_a_counterpart_are_not_used():
    pairs, pools, _ = world(pairs=60, pool=400)
    noise = np.random.default_rng(1).normal(size=pools[1].shape)
    with pytest.warns(errors.AlignmentWarning, match="not better on pairs left out"):
        mapping = SelfTrainedMap(hubness="none", max_rounds=2).fit(*pairs, unpaired=(pools[0], noise))
    assert mapping.choice_.matches == "none"


@pytest.mark.parametrize(
    ("pairs", "pool", "why"),
    [(3, 600, "3 different pairs cannot"), (30, 8, "8 and 8 new unpaired rows"), (30, 0, "0 and 0 new")],
)
def test_too_few_pairs_or_rows_give_the_teacher_with_the_reason(pairs, pool, why):
    pairs, pools, test = world(pairs=pairs, pool=pool)
    with pytest.warns(errors.AlignmentWarning, match=why):
        mapping = SelfTrainedMap().fit(*pairs, unpaired=pools if pool else None)
    assert mapping.choice_.matches == "none"
    assert quality(mapping, test) > 0.005  # by chance 0.003


def test_rows_of_the_pairs_among_the_pools_count_once():
    pairs, pools, _ = world(pool=300)
    again = tuple(np.concatenate([pool, pool[:50], side[:10]]) for pool, side in zip(pools, pairs, strict=True))
    mapping = SelfTrainedMap(max_rounds=1).fit(*pairs, unpaired=pools)
    with pytest.warns(errors.PairingWarning, match="10 of 40 pairs are listed as unpaired"):
        more = SelfTrainedMap(max_rounds=1).fit(*pairs, unpaired=again)
    assert more.facts_["used_rows"] == mapping.facts_["used_rows"]
    np.testing.assert_allclose(mapping.transform(pairs[0]), more.transform(pairs[0]), atol=1e-5)


def test_the_saved_map_searches_alike(tmp_path):
    pairs, pools, test = world(pool=200)
    mapping = SelfTrainedMap(hubness="csls", max_rounds=1).fit(*pairs, unpaired=pools, validation=test)
    loaded = congruence.load(mapping.save(tmp_path / "map"))
    np.testing.assert_array_equal(loaded.transform(test[0]), mapping.transform(test[0]))
    for ours, theirs in zip(loaded.banks_, mapping.banks_, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert mapping.scores_["validation_mean_recall_at_1"] == quality(loaded, test, csls=True)


@pytest.mark.parametrize(("side", "hubness"), [("source", "csls"), ("target", "none")])
def test_faiss_searches_unmapped_queries_as_search_does(side, hubness, tmp_path):
    faiss = pytest.importorskip("faiss")
    from congruence.integrations import export_faiss

    mapping, test = fitted(hubness), world()[2]
    asked, others = test if side == "source" else test[::-1]
    np.save(tmp_path / "others.npy", others)
    path = export_faiss(mapping, tmp_path / "joint.index", index=tmp_path / "others.npy", side=side)
    scores, rows = faiss.read_index(str(path)).search(np.asarray(asked, np.float32), 5)
    want_rows, want = search(mapping, asked, others, 5, side=side)
    np.testing.assert_allclose(scores, want, atol=1e-5)
    assert (rows == want_rows).mean() > 0.995  # float32 on both sides may exchange neighbors
    with pytest.raises(errors.ParameterError, match="without rows to search"):
        export_faiss(mapping, tmp_path / "more.index")


@pytest.mark.parametrize("side", ["source", "target"])
def test_search_corrects_for_hubs_as_the_score_does(side):
    mapping, test = copy.copy(fitted("csls")), world()[2]
    asked, others = test if side == "source" else test[::-1]
    rows, near = search(mapping, asked, others, 3, side=side)
    one = search(mapping, asked[:1], others, 3, side=side)
    np.testing.assert_array_equal(one[0][0], rows[0])
    assert (np.diff(near, axis=1) <= 1e-6).all()
    plain = search(mapping, asked, others, 1, side=side, hubness="none")[0]
    correct = np.arange(len(asked))
    assert not np.array_equal(rows[:, :1], plain)
    scores = [
        (found[:, 0] == correct).mean()
        for found in (
            search(mapping, *two, 1, side=name)[0] for name, two in (("source", test), ("target", test[::-1]))
        )
    ]
    assert np.mean(scores) == pytest.approx(mapping.score(*test), abs=1e-9)
    mapping.banks_ = None
    with pytest.raises(errors.ParameterError, match="without rows to compute densities"):
        search(mapping, asked, others, side=side)


def test_rows_beyond_the_sample_take_part_in_the_last_round():
    pairs, pools, _ = world(pool=300)
    once = SelfTrainedMap(max_rounds=1, matches="soft").fit(*pairs, unpaired=pools)
    assert once.choice_.rounds == 1
    twice = SelfTrainedMap(max_rounds=1, matches="soft", max_rows=300)
    twice.fit(*pairs, unpaired=tuple(np.repeat(pool, 2, axis=0) for pool in pools))  # one of each two is sampled
    assert twice.facts_["used_rows"] == [300, 300]
    assert twice.facts_["n_unpaired_source"] == 600
    near = [mapping.transform(pairs[0]) @ mapping.transform_target(pairs[1]).T for mapping in (once, twice)]
    np.testing.assert_allclose(near[1] / np.abs(near[1]).max(), near[0] / np.abs(near[0]).max(), atol=1e-4)
    more = [np.concatenate([np.repeat(pool[:300], 2, axis=0), pool[300:]]) for pool in world()[1]]
    changed = SelfTrainedMap(max_rounds=1, matches="soft", max_rows=300).fit(*pairs, unpaired=more)
    assert not np.allclose(changed.transform(pairs[0]), once.transform(pairs[0]), atol=1e-3)


def test_a_sample_of_rows_that_repeat_in_order_has_most_of_them():
    pairs, pools, _ = world(pool=300)
    four_times = tuple(np.tile(pool, (4, 1)) for pool in pools)
    mapping = SelfTrainedMap(max_rounds=1, matches="soft", max_rows=300).fit(*pairs, unpaired=four_times)
    assert min(mapping.facts_["used_rows"]) > 150  # of the same 300; every fourth row would be one of 75


def test_rows_written_as_lists_are_rows():
    pairs, pools, test = world()
    arrays = SelfTrainedMap(max_rounds=1).fit(*pairs, unpaired=pools)
    lists = SelfTrainedMap(max_rounds=1).fit(
        *(side.tolist() for side in pairs), unpaired=tuple(pool.tolist() for pool in pools), validation=np.int64(20)
    )
    np.testing.assert_array_equal(lists.transform(test[0]), arrays.transform(test[0]))
    assert 0 < lists.scores_["folds"]["score"] < 1
