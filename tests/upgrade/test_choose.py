"""The map that fit chooses, by evidence, and what it says of it."""

import json

import numpy as np
import pytest

import congruence
from congruence import Embeddings, LinearMap, OrthogonalMap
from congruence.errors import CongruenceError, ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.maps.card import choice_rows
from congruence.synthetic import random_rotation
from congruence.upgrade.choose import (
    LINEAR,
    RELATED,
    ROTATION,
    Candidate,
    FittedPairs,
    choose_map,
    count_distinct,
    measure_quality,
    product,
)

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
    ("n", "d_source", "d_target"), [(12, 16, 16), (12, 20, 16), (60, 16, 20), (60, 20, 16), (60, 8, 8), (12, 40, 40)]
)
@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
def test_candidates_are_the_maps_themselves(n, d_source, d_target):
    X, Y = RNG.standard_normal((n, d_source)) + 1, RNG.standard_normal((n, d_target)) + 1
    Y[:, :8] += X[:, :8]
    train = np.arange(n) % 3 > 0
    moments = CrossMoments.of(X[train], Y[train]) if train.sum() > min(d_source, d_target) else None
    kept = FittedPairs(X, Y, train, moments)
    new, back = RNG.standard_normal((5, d_source)), RNG.standard_normal((5, d_target))
    shrunk = Candidate("", "orthogonal", {"shrinkage": "soft"})
    for candidate in [ROTATION, shrunk, *(RELATED if d_source == d_target else ()), *LINEAR[:2]]:
        kind = OrthogonalMap if candidate.method == "orthogonal" else LinearMap
        mapping, found = kind(**candidate.parameters).fit(X[train], Y[train]), product(candidate, kept)
        np.testing.assert_allclose(found.forward(new), new @ mapping.matrix, atol=1e-6, err_msg=candidate.name)
        reverse = mapping.inverse() if kind is OrthogonalMap else kind(**candidate.parameters).fit(Y[train], X[train])
        np.testing.assert_allclose(found.backward(back), back @ reverse.matrix, atol=1e-6, err_msg=candidate.name)


def test_a_rotation_near_the_identity_is_the_nearest_to_the_weighted_sum():
    X, Y = rotated(30, d=24)
    A, B = X - X.mean(0), Y - Y.mean(0)
    for weight in (0.1, 1.0):
        mapping = OrthogonalMap(identity=weight).fit(X, Y)
        cross = A.T @ B
        U, _, Vt = np.linalg.svd(cross + weight * np.linalg.svd(cross)[1][0] * np.eye(24))
        np.testing.assert_allclose(mapping.rotation_, U @ Vt, atol=1e-9)
        assert mapping.rank_ == 24
        np.testing.assert_allclose(mapping.inverse().rotation_, mapping.rotation_.T)
    np.testing.assert_allclose(OrthogonalMap(identity=1e6).fit(X, Y).rotation_, np.eye(24), atol=1e-5)
    for given in ({"identity": -1.0}, {"identity": 0.1, "allow_reflection": False}):
        with pytest.raises(ParameterError):
            OrthogonalMap(**given).fit(X, Y)
    with pytest.raises(ParameterError, match="equal widths"):
        OrthogonalMap(identity=0.1).fit(X, Y[:, :20])


@pytest.mark.parametrize("n", [20, 60])
def test_related_models_keep_what_they_have_in_common(n):
    rng = np.random.default_rng(n)
    d = 64
    z = rng.standard_normal((n + 200, d))
    near = np.linalg.qr(np.eye(d) + 0.02 * rng.standard_normal((d, d)))[0]
    related = z @ near * np.sign(np.diag(near)) + rng.standard_normal(z.shape)
    strange = z @ random_rotation(d, random_state=0) + rng.standard_normal(z.shape)
    chosen = choose_map(z[:n], related[:n])
    assert "identity" in chosen.parameters
    assert chosen.lead > 2 * chosen.lead_error >= 0
    mapping, usual = (OrthogonalMap(**given).fit(z[:n], related[:n]) for given in (chosen.parameters, {}))
    assert mapping.score(z[n:], related[n:]) > usual.score(z[n:], related[n:]) + 0.2
    assert choose_map(z[:n], strange[:n]).parameters == {}


def test_quality_is_what_left_out_pairs_show():
    X, Y = rotated(100, d=8, noise=0.5, offset=3.0)
    found = measure_quality(X, Y, ROTATION)
    new, theirs = rotated(5000, d=8, noise=0.5, offset=3.0)
    mapping = OrthogonalMap().fit(X, Y)
    for k, (rows, other, matrix) in enumerate([(new, theirs, mapping.rotation_), (theirs, new, mapping.rotation_.T)]):
        a, b = (rows - rows.mean(0)) @ matrix, other - other.mean(0)
        sizes = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        assert found.cosine[k] == pytest.approx(np.mean((a * b).sum(1) / sizes[0] / sizes[1]), abs=0.03)
        assert found.length[k] == pytest.approx(np.sqrt((sizes[0] ** 2).mean() / (sizes[1] ** 2).mean()), abs=0.08)
    copies = measure_quality(np.repeat(X, 3, axis=0), np.repeat(Y, 3, axis=0), ROTATION)
    assert copies.cosine == pytest.approx(found.cosine, abs=0.02)  # a copy is not left out while its twin is fitted on
    assert measure_quality(X, RNG.standard_normal(Y.shape), ROTATION).cosine[0] < 0.25
    assert measure_quality(*rotated(2), ROTATION).cosine == (0, 0)


def test_rows_of_few_things_are_few_however_many_they_are():
    kinds = RNG.standard_normal((5, 32))
    few = kinds[RNG.integers(0, 5, 400)] + 0.01 * RNG.standard_normal((400, 32))
    assert 3 < count_distinct(few) < 5
    assert count_distinct(RNG.standard_normal((400, 32))) > 25
    assert count_distinct(np.repeat(few, 10, axis=0)) == pytest.approx(count_distinct(few), rel=0.05)
    # However they are ordered and repeated: in turn, one kind after another, or one of them much more often.
    eleven = RNG.standard_normal((11, 32))
    turns = eleven[np.arange(22_000) % 11]
    often = np.concatenate([eleven, np.repeat(eleven[:2], 700, axis=0)])
    for rows in (turns, np.repeat(eleven, 2000, axis=0), often):
        assert 8 < count_distinct(rows) < 11
    noisy = turns + 0.01 * RNG.standard_normal(turns.shape)
    assert 8 < count_distinct(noisy) < 11


def test_moments_less_some_rows_are_those_of_the_others():
    X, Y = RNG.standard_normal((40, 5)) + 3, RNG.standard_normal((40, 4)) - 2
    left = CrossMoments.of(X, Y).without(CrossMoments.of(X[:15], Y[:15]))
    expected = CrossMoments.of(X[15:], Y[15:])
    assert left.rows == 25
    for name, value in expected.state().items():
        np.testing.assert_allclose(left.state()[name], value, atol=1e-10)


def test_linear_maps_are_tried_only_where_no_other_modality_is_mapped():
    X, Y, _ = sheared(150)
    alone = choose_map(X, Y)
    assert (alone.method, alone.parameters) == ("orthogonal", {})
    assert "other modality" in alone.not_tried
    single = choose_map(X, Y, single_modality=True)
    assert single.method == "linear"
    assert single.lead > 5 * single.lead_error > 0
    assert [one["name"] for one in single.tried][1:] == [one.name for one in LINEAR]
    assert single.quality != alone.quality


def test_the_choice_repeats_and_depends_on_its_seed():
    X, Y = rotated(30, noise=1.0)
    single = {"single_modality": True}
    assert choose_map(X, Y, **single) == choose_map(X, Y, **single)
    scores = [choose_map(X, Y, random_state=seed, **single).tried[0]["score"] for seed in (0, 1)]
    assert scores[0] != scores[1]
    assert choose_map(X, Y, **single).repeats == 8
    assert choose_map(*rotated(420), **single).repeats == 1


@pytest.mark.parametrize("single_modality", [True, False])
def test_copies_share_a_fold_and_are_one_item(single_modality):
    X, Y = rotated(40, d=30, noise=1.0)
    once = choose_map(X, Y, single_modality=single_modality)
    copies = np.repeat(X, 3, axis=0), np.repeat(Y, 3, axis=0)
    # Were a copy fitted on, its twin would be found; were it another item, twins would take each other's place.
    again = choose_map(*copies, single_modality=single_modality).tried[0]  # a penalty depends on the number of rows
    assert again["score"] == pytest.approx(once.tried[0]["score"])


def test_too_few_pairs_are_not_compared():
    choice = choose_map(*rotated(11))
    assert (choice.tried, choice.folds, choice.method) == ([], 0, "orthogonal")
    assert "11 different pairs are too few" in choice.evidence


def test_fit_chooses_and_says_so(tmp_path):
    X, Y, _ = sheared(150)
    names = [f"item {k}" for k in range(150)]
    both = Embeddings(X, ids=names), Embeddings(Y, ids=names)
    plain = congruence.fit(*both, modality="text")
    assert isinstance(plain, OrthogonalMap)
    single = congruence.fit(*both, modality="text", single_modality=True)
    assert isinstance(single, LinearMap)
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
    with pytest.raises(ParameterError, match="for method='auto'"):
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
    np.testing.assert_allclose(fixed.transform(Z, "image", "plain"), (Z - a) @ R + b)
    np.testing.assert_allclose(chosen.transform(Z, "image", "plain"), Z @ R + 0.5 * (b - a @ R))
    np.testing.assert_allclose(chosen.transform(Z, "text"), fixed.transform(Z, "text"))


def test_the_command_shows_the_choice(here, tmp_path):
    X, Y, _ = sheared(100)
    np.savez(tmp_path / "a.npz", X=X, Y=Y)
    assert "rotation about the means" in here("fit", "a.npz:X", "a.npz:Y", "-o", "map").out
    single = here("fit", "a.npz:X", "a.npz:Y", "-o", "other", "--single-modality", "--json")
    assert json.loads(single.out)["scores"]["choice"]["method"] == "linear"


@pytest.mark.parametrize("n", [3, 8, 11])
def test_a_few_pairs_of_related_models_are_not_mapped_away(n):
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n + 200, 64)) + 1
    Y = X + 0.3 * rng.standard_normal(X.shape)
    choice = choose_map(X[:n], Y[:n])
    assert choice.parameters["identity"] > 1e3
    assert "resemble" in choice.evidence
    strangers = choose_map(X[:n], X[:n] @ random_rotation(64, random_state=n))
    assert strangers.name == ROTATION.name


@pytest.mark.parametrize("n", [6, 10, 20, 60])
def test_a_weak_resemblance_is_not_given_for_a_few_larger_cosines(n):
    """Rows of eight common directions, in which a rotation of few pairs has the larger cosines and finds nobody."""
    rng = np.random.default_rng(n)
    shared = 0.9 * rng.standard_normal((n + 300, 8)) @ rng.standard_normal((8, 384)) / 8**0.5
    detail = rng.standard_normal(shared.shape)
    X = detail + shared + 1
    Y = 0.6 * detail + 1.2 * rng.standard_normal(X.shape) + shared @ random_rotation(384, random_state=n)
    choice = choose_map(X[:n], Y[:n])
    assert "identity" in choice.parameters
    best, usual = (OrthogonalMap(**given).fit(X[:n], Y[:n]) for given in (choice.parameters, {}))
    assert best.score(X[n:], Y[n:]) > usual.score(X[n:], Y[n:]) + 0.2


@pytest.mark.parametrize("n", [4, 6, 10, 20])
@pytest.mark.parametrize("d", [16, 64, 384])
def test_strangers_on_a_line_or_in_two_classes_are_not_related(d, n):
    for seed in range(8):
        rng = np.random.default_rng([d, n, seed])
        along = rng.standard_normal(n) if seed % 2 else rng.choice([-1.0, 1.0], n)
        X = np.outer(along, rng.standard_normal(d)) + 0.1 * rng.standard_normal((n, d)) + 0.3
        Y = X @ random_rotation(d, random_state=seed) + 0.02 * rng.standard_normal((n, d))
        assert choose_map(X, Y).name == ROTATION.name


@pytest.mark.parametrize("n", [30, 150, 400])
def test_of_related_models_the_map_with_the_largest_cosines_is_taken(n):
    """Also where all pairs find each other by any map, so that it does not show who finds more."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n + 300, 128)) + 1
    Y = X + 0.2 * rng.standard_normal(X.shape)
    choice = choose_map(X[:n], Y[:n])
    assert "identity" in choice.name
    model = OrthogonalMap(**choice.parameters).fit(X[:n], Y[:n])
    plain = OrthogonalMap().fit(X[:n], Y[:n])
    own = Y[n:] - Y[:n].mean(axis=0)
    cosine = [
        np.mean(np.sum(Z * own, 1) / np.linalg.norm(Z, axis=1) / np.linalg.norm(own, axis=1))
        for Z in (one.transform(X[n:]) - Y[:n].mean(axis=0) for one in (model, plain))
    ]
    assert cosine[0] > cosine[1] - 1e-3
