"""Maps that go on: batches against one fit, forgetting against weights, means of unpaired rows against all rows."""

import json

import numpy as np
import pytest

import congruence
from arrays import spoiled
from congruence import OrthogonalMap, persist
from congruence.errors import CorruptFileError
from congruence.synthetic import rigid_problem


@pytest.fixture(scope="module")
def problem():
    return rigid_problem(90, 12, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def images():
    draw = np.random.default_rng(1)
    return draw.standard_normal((50, 12)) + 2, draw.standard_normal((40, 12)) - 1


def batches(X, Y):
    return [(X[rows], Y[rows]) for rows in (slice(30), slice(30, 31), slice(31, 90))]


def same(one, two):
    for name in ("rotation_", "source_mean_", "target_mean_", "singular_values_"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-12)
    assert set(one.modality_means_) == set(two.modality_means_)
    for name, pair in one.modality_means_.items():
        np.testing.assert_allclose(pair, two.modality_means_[name], atol=1e-12)


@pytest.mark.parametrize("forgetting", [1.0, 0.5, 0.01])
def test_forgetting_is_a_weight_that_falls_with_age(problem, forgetting):
    mapping = OrthogonalMap()
    for X, Y in batches(problem.X, problem.Y):
        mapping.partial_fit(X, Y, modality="text", forgetting=forgetting)
    weights = forgetting ** np.repeat([2.0, 1.0, 0.0], [30, 1, 59])
    same(mapping, OrthogonalMap().fit(problem.X, problem.Y, sample_weight=weights, modality="text"))
    assert mapping.n_pairs_ == 90


def test_forgetting_follows_a_target_that_changed(problem):
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((12, 12)))[0]
    errors = {}
    for forgetting in (1.0, 0.1):
        mapping = OrthogonalMap().partial_fit(problem.X[:60], problem.Y[:60])
        mapping.partial_fit(problem.X[60:], problem.Y[60:] @ turn, forgetting=forgetting)
        errors[forgetting] = np.square(mapping.transform(problem.X) - problem.Y @ turn).mean()
    assert errors[0.1] < 0.5 * errors[1.0]


def test_a_loaded_map_goes_on_as_the_one_that_was_saved(problem, images, tmp_path):
    first, second, third = batches(problem.X, problem.Y)
    mapping = OrthogonalMap().partial_fit(*first, modality="text").partial_fit(*second, modality="text", forgetting=0.7)
    mapping = mapping.recenter(*images, modality="image")
    loaded = congruence.load(mapping.save(tmp_path / "map"))
    same(
        loaded.partial_fit(*third, modality="text", forgetting=0.7),
        mapping.partial_fit(*third, modality="text", forgetting=0.7),
    )


def test_a_mean_from_the_gap_follows_the_rotation(problem, images):
    X, Y = problem.X, problem.Y
    mapping = OrthogonalMap().fit(X[:40], Y[:40], modality="text").recenter(images[0], modality="image")
    mapping.partial_fit(X[40:], Y[40:], modality="text")
    same(mapping, OrthogonalMap().fit(X, Y, modality="text").recenter(images[0], modality="image"))


def test_more_pairs_do_not_change_maps_made_before(problem, images):
    mapping = OrthogonalMap().fit(problem.X[:40], problem.Y[:40], modality="text")
    other = mapping.recenter(*images, modality="image")
    before = {name: moments.state() for name, moments in other.moments_.items()}
    mapping.partial_fit(problem.X[40:], problem.Y[40:], modality="text")
    for name, moments in other.moments_.items():
        np.testing.assert_array_equal(moments.state()["cross"], before[name]["cross"])


@pytest.mark.parametrize("through_disk", [False, True])
def test_means_of_unpaired_rows_are_sums_too(problem, images, tmp_path, through_disk):
    A, B = images
    fitted = OrthogonalMap().fit(problem.X, problem.Y, modality="text")
    mapping = fitted.recenter(A[:10], B[:5], modality="image")
    if through_disk:
        mapping = congruence.load(mapping.save(tmp_path / "map"))
    mapping = mapping.update_means(A[10:30], modality="image").update_means(A[30:], B[5:], modality="image")
    whole = fitted.recenter(A, B, modality="image")
    same(mapping, whole)
    assert mapping.facts_["mean_rows"] == whole.facts_["mean_rows"] == {"image": [50, 40]}
    halved = fitted.recenter(A[:10], B[:10], modality="image").update_means(A[10:], modality="image", forgetting=0.5)
    weights = np.repeat([0.5, 1.0], [10, 40])
    np.testing.assert_allclose(halved.source_mean_, np.average(A, axis=0, weights=weights))


def test_more_source_rows_move_a_mean_that_is_taken_from_the_gap(problem, images):
    A, B = images
    fitted = OrthogonalMap().fit(problem.X, problem.Y, modality="text")
    mapping = fitted.recenter(A[:10], modality="image").update_means(A[10:], modality="image")
    same(mapping, fitted.recenter(A, modality="image"))
    np.testing.assert_allclose(mapping.update_means(target=B, modality="image").target_mean_, B.mean(axis=0))


def test_an_inverse_keeps_the_rows_behind_its_means(problem, images):
    A, B = images
    mapping = OrthogonalMap().fit(problem.X, problem.Y, modality="text").recenter(A[:9], B, modality="image").inverse()
    np.testing.assert_allclose(mapping.update_means(target=A[9:], modality="image").target_mean_, A.mean(axis=0))


def test_a_refused_batch_ages_nothing(problem):
    X, Y = problem.X, problem.Y
    mapping, odd = OrthogonalMap(), spoiled(X, 3, np.nan)
    with pytest.raises(congruence.errors.InputError):
        mapping.partial_fit(odd, Y)
    mapping.partial_fit(X[:40], Y[:40])
    for bad in ((X, Y[:, :3]), (odd, Y)):
        with pytest.raises(congruence.errors.InputError):
            mapping.partial_fit(*bad, forgetting=0.1)
    mapping.partial_fit(X[40:], Y[40:], forgetting=0.5)
    same(mapping, OrthogonalMap().fit(X, Y, sample_weight=np.repeat([0.5, 1.0], [40, 50])))


@pytest.mark.parametrize("rows", [3, {"audio": [1, 1]}, {"image": [1]}, {"image": [-1, 2]}, {"image": ["1", 2]}])
def test_damaged_counts_are_refused(problem, images, tmp_path, rows):
    mapping = OrthogonalMap().fit(problem.X, problem.Y, modality="text").recenter(*images, modality="image")
    arrays, config = persist.read_folder(mapping.save(tmp_path / "map"))
    config = json.loads(json.dumps(config))
    config["facts"]["mean_rows"] = rows
    keep = ("kind", "parameters", "source_space", "target_space", "facts", "scores")
    persist.write_folder(tmp_path / "bad", arrays, {key: config[key] for key in keep}, "")
    with pytest.raises(CorruptFileError):
        congruence.load(tmp_path / "bad")
