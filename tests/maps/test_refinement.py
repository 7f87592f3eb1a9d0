"""Maps from few pairs and two unpaired pools: what is found, what is refused, and that nothing gets worse."""

import warnings

import numpy as np
import pytest
from scipy.special import softmax

import congruence
from congruence import Embeddings, OrthogonalMap, RefinedMap, errors, refine
from congruence.embeddings import normalize_rows
from congruence.linalg.csls import ScaledSimilarity
from congruence.metrics import class_retrieval
from congruence.synthetic import random_rotation, rigid_problem


def world(n=260, d=16, d_target=20, noise=0.1, seed=0):
    """Items whose spectrum falls, as encoders' do, in two models; test rows come last."""
    return rigid_problem(n, d, d_target, noise=noise, decay=0.4, random_state=seed)


P = world()
PAIRS, POOL, TEST = slice(0, 8), slice(8, 200), slice(200, 260)
ORDER = 8 + np.random.default_rng(1).permutation(192)


def retrieval(mapping, p=P):
    return class_retrieval(mapping.transform(p.X[TEST]), p.Y[TEST], np.arange(60))


@pytest.fixture(scope="module")
def refined():
    return RefinedMap().fit(P.X[PAIRS], P.Y[PAIRS], unpaired=(P.X[POOL], P.Y[ORDER]))


def test_two_pools_do_what_their_pairs_would(refined):
    alone = OrthogonalMap().fit(P.X[PAIRS], P.Y[PAIRS])
    paired = OrthogonalMap().fit(P.X[:200], P.Y[:200])
    assert retrieval(alone) < 0.7 < 0.95 < retrieval(refined)
    assert retrieval(refined) == pytest.approx(retrieval(paired), abs=0.02)
    found = refined.refinement_
    right = ORDER[found.target_rows] == found.source_rows + 8
    assert right.mean() > 0.98
    assert found.improves
    assert found.p_value <= 0.05
    assert found.recall_after > found.recall_before
    assert found.median_rank_after == 1 < found.median_rank_before
    assert refined.n_pairs_ == 8 + found.to_dict()["matches"]
    assert len(np.unique(found.target_rows)) == len(found.target_rows)


def test_pools_of_other_worlds_change_nothing_and_are_reported():
    other = world(seed=5)
    unrelated = (P.X[POOL], np.random.default_rng(0).standard_normal((190, 20)))
    with pytest.warns(errors.AlignmentWarning, match=r"Unpaired rows do not help.*p = .*Pass more pairs"):
        mapping = RefinedMap().fit(P.X[PAIRS], P.Y[PAIRS], unpaired=unrelated)
    assert not mapping.refinement_.improves
    alone = OrthogonalMap().fit(P.X[PAIRS], P.Y[PAIRS])
    np.testing.assert_array_equal(mapping.rotation_, alone.rotation_)
    # Wrong pairs are no start at all, whatever the pools.
    found = refine(P.X[PAIRS], other.Y[PAIRS], (P.X[POOL], P.Y[ORDER]))
    assert not found.improves
    assert found.matched_share > 0.3  # matches are there all the same: their number is no evidence


@pytest.mark.parametrize("seed", range(3))
def test_pools_without_common_items_help_by_their_means(seed):
    p = rigid_problem(800, 32, 36, noise=0.1, decay=0.8, random_state=seed)
    pairs = p.X[:8], p.Y[:8]
    mapping = RefinedMap().fit(*pairs, unpaired=(p.X[260:530], p.Y[530:]))
    found = mapping.refinement_
    assert found.improves
    assert found.kind == "soft"
    assert found.cosine_gain > 0.1
    assert retrieval(mapping, p) > retrieval(OrthogonalMap().fit(*pairs), p) + 0.1


def test_soft_means_are_those_of_the_whole_matrix():
    rng = np.random.default_rng(0)
    A, B = (normalize_rows(rng.standard_normal((n, 6))) for n in (40, 30))
    U, V = rng.standard_normal((40, 5)), rng.standard_normal((30, 4))
    S = A @ B.T
    csls = 2 * S - np.sort(S, axis=1)[:, -10:].mean(axis=1)[:, None] - np.sort(S, axis=0)[-10:].mean(axis=0)
    expected = softmax(csls / 0.3, axis=1) @ V, softmax(csls / 0.3, axis=0).T @ U
    for block_rows in (None, 7):
        found = ScaledSimilarity(A, B, 10, block_rows=block_rows).soft_means(U, V, 0.3)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_half_of_the_items_in_common_are_enough(seed):
    p = world(seed=seed + 10)
    mapping = RefinedMap().fit(p.X[:8], p.Y[:8], unpaired=(p.X[8:136], p.Y[72:200]))
    assert mapping.refinement_.improves
    assert retrieval(mapping, p) > retrieval(OrthogonalMap().fit(p.X[:8], p.Y[:8]), p) + 0.1


def test_the_order_of_the_pools_is_irrelevant(refined):
    rng = np.random.default_rng(3)
    again = RefinedMap().fit(P.X[PAIRS], P.Y[PAIRS], unpaired=(rng.permutation(P.X[POOL]), rng.permutation(P.Y[ORDER])))
    np.testing.assert_allclose(again.rotation_, refined.rotation_, atol=1e-9)


def test_turning_the_source_turns_the_map(refined):
    Q = random_rotation(16, random_state=4)
    again = RefinedMap().fit(P.X[PAIRS] @ Q, P.Y[PAIRS], unpaired=(P.X[POOL] @ Q, P.Y[ORDER]))
    np.testing.assert_allclose(Q @ again.rotation_, refined.rotation_, atol=1e-8)


def test_copies_and_rows_of_the_pairs_are_left_out_of_the_pools(refined):
    X = np.concatenate([P.X[PAIRS], P.X[POOL], P.X[POOL][:50]])
    Y = np.concatenate([P.Y[ORDER], P.Y[ORDER][:70], P.Y[PAIRS]])
    again = RefinedMap().fit(P.X[PAIRS], P.Y[PAIRS], unpaired=(X, Y))
    assert again.refinement_.pool_sizes == refined.refinement_.pool_sizes == (192, 192)
    np.testing.assert_allclose(again.rotation_, refined.rotation_, atol=1e-12)
    assert np.all(again.refinement_.source_rows >= 8)


def test_what_is_saved_is_a_plain_rotation(refined, tmp_path):
    again = congruence.load(refined.save(tmp_path / "map"))
    assert type(again) is OrthogonalMap
    np.testing.assert_array_equal(again.transform(P.X), refined.transform(P.X))
    assert again.n_pairs_ == refined.n_pairs_
    back = refined.inverse().transform(refined.transform(P.X[TEST]))
    assert back.shape == (60, 16)


@pytest.mark.parametrize("options", [{"center": False}, {"shrinkage": "cv"}, {"shrinkage": "full"}])
def test_parameters_of_the_rotation_are_those_of_every_fit(options):
    p = world(seed=2)
    X, Y, pools = p.X[:14], p.Y[:14], (p.X[14:200], p.Y[14:200][::-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CongruenceWarning)  # "full" warns of few pairs
        mapping = RefinedMap(**options).fit(X, Y, unpaired=pools)
    found = mapping.refinement_
    U, V = pools
    matched = np.concatenate([X, U[found.source_rows]]), np.concatenate([Y, V[found.target_rows]])
    expected = OrthogonalMap(**options).fit(*matched)
    np.testing.assert_allclose(mapping.rotation_, expected.rotation_, atol=1e-12)


def test_pools_of_any_precision_give_the_same_matches(refined):
    half = [side.astype(np.float16) for side in (P.X[POOL], P.Y[ORDER])]
    found = refine(P.X[PAIRS], P.Y[PAIRS], (half[0], half[1]))
    same = np.intersect1d(found.source_rows, refined.refinement_.source_rows)
    assert len(same) > 0.95 * len(found.source_rows)


def test_without_pools_it_is_an_orthogonal_map():
    mapping = RefinedMap().fit(P.X[:100], P.Y[:100])
    assert mapping.refinement_ is None
    np.testing.assert_array_equal(mapping.rotation_, OrthogonalMap().fit(P.X[:100], P.Y[:100]).rotation_)


def test_fit_takes_pools_and_leaves_held_out_items_out_of_them():
    ids = [f"i{k}" for k in range(260)]
    source, target = Embeddings(P.X, ids=ids), Embeddings(P.Y, ids=ids)
    rows = np.arange(20)
    pools = (source, target.take(np.arange(260)[::-1]))
    mapping = congruence.fit(source.take(rows), target.take(rows), unpaired=pools, holdout=8, modality="text")
    assert isinstance(mapping, RefinedMap)
    record = mapping.scores_["refinement"]
    assert record["improves"]
    assert record["n_pairs"] == 12
    assert record["pool_sizes"] == [240, 240]  # neither the 12 pairs nor the 8 held out
    assert mapping.scores_["held_out_retrieval_at_1"] == 1
    assert mapping.modality_ == "text"
    plain = congruence.fit(P.X[rows], P.Y[rows], unpaired=(P.X, P.Y[::-1]), holdout=8)
    assert plain.scores_["refinement"]["pool_sizes"] == [240, 240]  # told by their vectors where there are no ids


def test_means_of_another_modality_join_a_refined_map():
    shifted = (P.X + 1, P.Y - 1)
    own = {"unpaired": (P.X[POOL], P.Y[ORDER]), "modality": "text", "means": {"image": shifted}}
    mapping = congruence.fit(P.X[PAIRS], P.Y[PAIRS], **own)
    np.testing.assert_allclose(mapping.for_modality("image").source_mean_, shifted[0].mean(axis=0))


def test_other_methods_refuse_pools():
    with pytest.raises(errors.ParameterError, match=r"method='linear'.*Pass method='orthogonal'"):
        congruence.fit(P.X[PAIRS], P.Y[PAIRS], "linear", unpaired=(P.X[POOL], P.Y[ORDER]))


def test_the_command_refines_and_says_what_it_did(here, tmp_path):
    for name, rows in {"a": P.X[PAIRS], "b": P.Y[PAIRS], "u": P.X[POOL], "v": P.Y[ORDER]}.items():
        np.save(tmp_path / f"{name}.npy", rows)
    command = ["fit", "a.npy", "b.npy", "-o", "map", "--force"]
    result = here(*command, "--unpaired", "u.npy,v.npy").ends(0)
    assert "matches of unpaired rows" in result.out
    assert retrieval(congruence.load(tmp_path / "map")) > 0.95
    lone = here(*command, "--unpaired", "u.npy").ends(2)
    assert "expected OLD,NEW" in lone.err
    wrong = here(*command, "--method", "linear", "--unpaired", "u.npy,v.npy")
    assert "leave out --unpaired" in wrong.err
