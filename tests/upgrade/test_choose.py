"""The map that fit chooses: by evidence, and among rotations where nothing is known of other modalities."""

import json

import numpy as np
import pytest

import congruence
from congruence import Embeddings, LinearMap, OrthogonalMap
from congruence.errors import CongruenceError, ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.maps.evidence import choice_rows
from congruence.metrics import class_retrieval
from congruence.synthetic import random_rotation
from congruence.upgrade.choose import LINEAR, ROTATIONS, CandidatePairs, Other, choose_map, moves

RNG = np.random.default_rng(0)


def rotated(n, d=16, *, noise=0.3, offset=0.0, seed=0):
    """Rows of two models that differ by a rotation, noise and, on the source side, an offset of this length."""
    rng = np.random.default_rng(seed)
    mean, other = rng.standard_normal((2, d)) * offset / np.sqrt(d)
    z = rng.standard_normal((n, d))
    return z + mean, z @ random_rotation(d, random_state=seed) + other + noise * rng.standard_normal((n, d))


def sheared(n, d=16, *, seed=0):
    """Texts that differ by no rotation, and images that the rotation in it maps to the target's texts."""
    rng = np.random.default_rng(seed)
    R = random_rotation(d, random_state=seed)
    text = rng.standard_normal((n, d))
    target = text * np.geomspace(10, 0.1, d) @ R + 0.3 * rng.standard_normal((n, d))
    return text, target, target @ R.T


@pytest.mark.parametrize(
    ("n", "d_source", "d_target"), [(12, 16, 16), (12, 20, 16), (60, 16, 20), (60, 20, 16), (60, 8, 8)]
)
@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
def test_candidates_are_the_maps_themselves(n, d_source, d_target):
    X, Y = RNG.standard_normal((n, d_source)) + 1, RNG.standard_normal((n, d_target)) + 1
    Y[:, :8] += X[:, :8]
    test = np.arange(0, n, 3)
    kept = CandidatePairs(X, Y).without(test)
    train = np.delete(np.arange(n), test)
    new, means = RNG.standard_normal((5, d_source)), (RNG.standard_normal(d_source), RNG.standard_normal(d_target))
    for candidate in ROTATIONS:
        own, other = moves(candidate, kept)
        mapping = OrthogonalMap(**candidate.parameters).fit(X[train], Y[train], modality="text")
        np.testing.assert_allclose(own(new), mapping.transform(new), atol=1e-6, err_msg=candidate.name)
        for known in (means[1], None):
            there = mapping.recenter(means[0], known, modality="image", offset=0.5)
            np.testing.assert_allclose(other(new, means[0], known), there.transform(new), atol=1e-6)
    for candidate in LINEAR[:2]:
        own, other = moves(candidate, kept)
        mapping = LinearMap(**candidate.parameters).fit(X[train], Y[train])
        np.testing.assert_allclose(own(new), mapping.transform(new), atol=1e-6, err_msg=candidate.name)
        np.testing.assert_array_equal(other(new, *means), own(new))


def test_moments_less_some_rows_are_those_of_the_others():
    X, Y = RNG.standard_normal((40, 5)) + 3, RNG.standard_normal((40, 4)) - 2
    left = CrossMoments.of(X, Y).without(CrossMoments.of(X[:15], Y[:15]))
    expected = CrossMoments.of(X[15:], Y[15:])
    assert left.rows == 25
    for name, value in expected.state().items():
        np.testing.assert_allclose(left.state()[name], value, atol=1e-10)


def test_the_first_candidate_stays_unless_another_is_ahead():
    X, Y = rotated(80, offset=2.0)
    choice = choose_map(X, Y)
    assert (choice.name, choice.method, choice.parameters) == (ROTATIONS[0].name, "orthogonal", {})
    assert choice.lead == 0
    assert [one["name"] for one in choice.tried] == [one.name for one in ROTATIONS]
    best = min(choice.tried, key=lambda one: one["behind"])
    assert best["behind"] == 0 == best["error"]
    assert "other modality" in choice.not_tried


def test_centering_is_left_out_where_the_mean_is_what_few_pairs_know():
    """A shared rotation about the origin and a mean that is most of the signal: with few pairs the means waste it."""
    rng = np.random.default_rng(1)
    d, n = 64, 24
    R = random_rotation(d, random_state=0)
    z = np.abs(rng.standard_normal((n, d))) ** 2  # rows of one cone, of very different length
    X, Y = z, z @ R + 0.02 * rng.standard_normal((n, d))
    choice = choose_map(X, Y)
    scores = {one["name"]: one["score"] for one in choice.tried}
    first = scores[ROTATIONS[0].name]
    assert choice.lead == pytest.approx(scores[choice.name] - first)
    assert choice.name == ROTATIONS[0].name or choice.lead > max(choice.lead_error, 0) > 0


def test_linear_maps_are_tried_only_where_something_pays_for_the_other_modality():
    X, Y, images = sheared(150)
    alone = choose_map(X, Y)
    assert alone.method == "orthogonal"
    single = choose_map(X, Y, single_modality=True)
    assert single.method == "linear"
    assert single.lead > 5 * single.lead_error > 0
    lost = choose_map(X, Y, others=[Other("image", np.arange(150), images)])
    by_name = {one["name"]: one for one in lost.tried}
    ridge, rotation = by_name["ridge regression"], by_name[ROTATIONS[0].name]
    assert ridge["score"] > rotation["score"]
    assert ridge["other"]["image"] < rotation["other"]["image"]
    assert lost.method == "orthogonal"
    kept = choose_map(X, Y, others=[Other("image", np.arange(150), X)])  # which such a map serves as well
    assert kept.method == "linear"


def test_the_choice_repeats_and_depends_on_its_seed():
    X, Y = rotated(30, noise=1.0)
    assert choose_map(X, Y) == choose_map(X, Y)
    scores = [choose_map(X, Y, random_state=seed).tried[0]["score"] for seed in (0, 1)]
    assert scores[0] != scores[1]
    assert choose_map(X, Y).repeats == 8
    assert choose_map(*rotated(420)).repeats == 1


def test_scores_are_retrieval_of_pairs_that_were_not_fitted():
    X, Y = rotated(60, d=8, noise=0.5)
    tried = choose_map(X, Y, fixed={"center": True}).tried[0]
    rng, first = np.random.default_rng(0), []
    for _ in range(4):
        fold = rng.permutation(np.arange(60) % 3)
        for part in range(3):
            test, train = fold == part, fold != part
            mapping = OrthogonalMap().fit(X[train], Y[train])
            own = np.arange(test.sum())
            moved = mapping.transform(X[test])
            first += [class_retrieval(moved, Y[test], own), class_retrieval(Y[test], moved, own)]
    assert tried["retrieval_at_1"] == pytest.approx(np.mean(first))


def test_copies_share_a_fold_and_are_one_item():
    X, Y = rotated(40, d=30, noise=1.0)
    once, copies = choose_map(X, Y), (np.repeat(X, 3, axis=0), np.repeat(Y, 3, axis=0))
    # Were a copy fitted on, its twin would be found; were it another item, twins would take each other's place.
    for one, again in zip(once.tried, choose_map(*copies).tried, strict=True):
        assert (again["score"], again["retrieval_at_1"]) == pytest.approx((one["score"], one["retrieval_at_1"]))
    captions = copies[1] + 1e-3 * RNG.standard_normal(copies[1].shape)  # several of each photo
    for one, again in zip(once.tried, choose_map(copies[0], captions).tried, strict=True):
        assert again["retrieval_at_1"] == pytest.approx(one["retrieval_at_1"], abs=0.01)


def test_too_few_pairs_are_not_compared():
    choice = choose_map(*rotated(11))
    assert (choice.tried, choice.folds, choice.method) == ([], 0, "orthogonal")
    assert "11 different pairs are too few" in choice.evidence


def test_fit_chooses_and_says_so(tmp_path):
    X, Y, images = sheared(150)
    names = [f"item {k}" for k in range(150)]
    both = Embeddings(X, ids=names), Embeddings(Y, ids=names)
    plain = congruence.fit(*both, modality="text")
    assert isinstance(plain, OrthogonalMap)
    single = congruence.fit(*both, modality="text", single_modality=True)
    assert isinstance(single, LinearMap)
    seen = congruence.fit(*both, modality="text", means={"image": (Embeddings(images, ids=names), None)})
    assert isinstance(seen, OrthogonalMap)
    assert set(seen.scores_["choice"]["tried"][0]["other"]) == {"image"}
    kept = congruence.fit(*both, modality="text", means={"image": (Embeddings(X, ids=names), None)}, holdout=30)
    assert isinstance(kept, LinearMap)
    assert "held_out_retrieval_at_1" in kept.scores_
    np.testing.assert_allclose(kept.for_modality("image").transform(X[:3]), kept.transform(X[:3]))
    path = single.save(tmp_path / "map")
    choice = congruence.load(path).scores_["choice"]
    assert choice == json.loads(json.dumps(single.scores_["choice"]))
    lines = dict(choice_rows(choice))
    assert lines["chosen"] == "ridge regression"
    assert "against rotation about the means" in lines["chosen by"]
    assert {f"  {one['name']}" for one in choice["tried"]} <= set(lines)


def test_held_out_pairs_choose_nothing():
    X, Y = rotated(60, noise=0.5)
    names = np.array([f"item {k}" for k in range(60)])
    split = congruence.fit(Embeddings(X, ids=names), Embeddings(Y, ids=names), holdout=20)
    heldout = congruence.splits.Split.from_dict(split.scores_["holdout"]).held_out(names)
    other = Y.copy()
    other[heldout] = RNG.standard_normal((int(heldout.sum()), 16))
    again = congruence.fit(Embeddings(X, ids=names), Embeddings(other, ids=names), holdout=20)
    assert again.scores_["choice"] == split.scores_["choice"]


def test_given_parameters_are_not_chosen():
    X, Y = rotated(60, offset=1.0)
    assert not congruence.fit(X, Y, center=False).center
    for parameters in ({"shrinkage": "full"}, {"allow_reflection": False}):
        mapping = congruence.fit(X, Y, **parameters)
        assert mapping.get_params() | parameters == mapping.get_params()
        assert not mapping.scores_["choice"]["tried"]
    assert "choice" not in congruence.fit(X, Y, "orthogonal").scores_
    with pytest.raises(ParameterError, match="Pass method='linear'"):
        congruence.fit(X, Y, ridge=1.0)
    with pytest.raises(ParameterError, match="single_modality"):
        congruence.fit(X, Y, "linear", single_modality=True)
    with pytest.raises(CongruenceError, match="'auto', 'orthogonal'"):
        congruence.fit(X, Y, "best")


def test_half_the_offset_where_the_targets_mean_is_unknown():
    X, Y = rotated(60, offset=3.0)
    Z = RNG.standard_normal((20, 16)) + 2
    means = {"image": (Z, None)}
    chosen, fixed = (congruence.fit(X, Y, method, modality="text", means=means) for method in ("auto", "orthogonal"))
    R, a, b = fixed.rotation_, fixed.source_mean_, fixed.target_mean_
    np.testing.assert_allclose(chosen.rotation_, R)
    np.testing.assert_allclose(fixed.for_modality("image").transform(Z), (Z - a) @ R + b)
    np.testing.assert_allclose(chosen.for_modality("image").transform(Z), Z @ R + 0.5 * (b - a @ R))
    np.testing.assert_allclose(chosen.transform(Z, modality="text"), fixed.transform(Z, "text"))


def test_the_command_shows_the_choice(here, tmp_path):
    X, Y, _ = sheared(100)
    np.savez(tmp_path / "a.npz", X=X, Y=Y)
    out = here("fit", "a.npz:X", "a.npz:Y", "-o", "map").out
    assert "rotation about the means" in out
    assert "cross-validated retrieval of 100 pairs (3 folds, 4 times)" in out
    single = here("fit", "a.npz:X", "a.npz:Y", "-o", "other", "--single-modality", "--json")
    assert json.loads(single.out)["scores"]["choice"]["method"] == "linear"
    assert "ridge regression" in here("inspect", "other").out
    assert here("fit", "a.npz:X", "a.npz:Y", "-o", "third", "--set", "ridge=1").code == 2
