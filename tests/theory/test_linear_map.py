"""The linear map that kernels determine: exact where they agree, and inside its bound where they do not."""

import json

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from congruence.synthetic import dual_problem, random_rotation
from congruence.theory import Bound, anchor_map, kernel_agreement, linear_bound, linear_text_error, text_bound


def models(p):
    return p.F, p.G, p.F_target, p.G_target


def draw(rng):
    d = int(rng.integers(1, 7))
    d_target = d + int(rng.integers(0, 4))
    m = int(rng.integers(d_target, 4 * d_target + 1))
    noise, shear = rng.choice([0, 1e-6, 1e-3, 0.1, 0.8, 10], 2)
    rank = int(rng.integers(1, d + 1)) if rng.random() < 0.3 else None
    n, seed = int(rng.integers(1, 20)), int(rng.integers(2**31))
    return dual_problem(n, m, d, d_target, noise=noise, shear=min(shear, 0.9), rank=rank, random_state=seed)


def leftover(bound):
    """How far the measured error is above the bound, beyond what rounding divided by σ_min explains."""
    return bound.measured - bound.value * (1 + 1e-9) - 1e-12 / bound.conditions["sigma_min"]


def tight(d):
    """Two models whose images differ by c in every coordinate, seen through orthonormal texts: every step is an
    equality.
    """
    c = 0.4 / np.sqrt(d)
    across = scipy.linalg.null_space(np.ones((1, d)))[:, 0]
    w = across * np.sqrt(1 - d * c * c / 4)
    f, f_target = w - c / 2, w + c / 2
    return f[None], f_target[None], c


def test_hundreds_of_models_stay_inside_the_bound():
    rng = np.random.default_rng(0)
    useful = 0
    for _ in range(200):
        bound = linear_bound(*models(draw(rng)))
        if np.isfinite(bound.value):
            assert leftover(bound) <= 0
            assert bound.conditions["sharp"] <= bound.value * (1 + 1e-9)
            assert bound.measured <= bound.conditions["sharp"] * (1 + 1e-9) + 1e-12 / bound.conditions["sigma_min"]
        useful += not bound.vacuous
    assert 24 < useful < 200  # both the useful and the vacuous are among them


@given(st.integers(0, 2**31), st.sampled_from([1e-4, 0.05, 0.5]))
def test_bound_from_measured_agreement(seed, noise):
    p = dual_problem(30, 12, 4, 6, noise=noise, random_state=seed)
    bound = linear_bound(*models(p))
    assert bound.conditions["epsilon"] == pytest.approx(kernel_agreement(*models(p)).epsilon, abs=1e-14)
    assert leftover(bound) <= 0
    A = anchor_map(p.G, p.G_target)
    assert bound.measured == pytest.approx(np.linalg.norm(p.F_target - p.F @ A.matrix, axis=1).max())
    assert bound.conditions["sigma_min"] == A.sigma_min == pytest.approx(np.linalg.svd(p.G_target)[1][-1])
    assert bound.conditions["n_anchors"] == 12


def test_the_papers_square_case():
    p = dual_problem(10, 5, 4, 5, noise=0.3, random_state=1)
    A = np.linalg.inv(p.G_target.T).T @ p.G  # G̃^{-⊤} Gᵀ, with the paper's columns for our rows
    np.testing.assert_allclose(anchor_map(p.G, p.G_target).matrix, A.T, atol=1e-10)


def test_more_anchors_are_least_squares():
    p = dual_problem(10, 40, 4, 6, noise=0.3, random_state=2)
    found = anchor_map(p.G, p.G_target)
    np.testing.assert_allclose(found.matrix, np.linalg.lstsq(p.G_target, p.G)[0].T, atol=1e-12)
    assert (found.rank, found.full_column_rank, found.n_anchors) == (6, True, 40)


def test_a_rotation_is_recovered_from_texts_alone():
    for d, d_target in ((5, 5), (5, 8)):
        p = dual_problem(30, 20, d, d_target, random_state=3)
        found = anchor_map(
            p.G, p.G_target, allow_rank_deficient=True
        )  # in more dimensions exact texts leave some uncovered
        np.testing.assert_allclose(p.F @ found.matrix, p.F_target, atol=1e-12)
        assert found.rank == d
        assert linear_text_error(p.G, p.G_target, found.matrix).largest < 1e-12
    p = dual_problem(30, 20, 5, random_state=3)
    bound = linear_bound(*models(p))
    assert bound.value < 1e-12
    assert not bound.vacuous


def test_a_map_that_is_no_rotation_is_recovered():
    # Texts on the plane where A^{-⊤} is a reflection; what A does across it they cannot tell.
    A = np.array([[1.0, 0, 0], [0, -1, 0], [0, 0, 0.5]])
    angle = np.random.default_rng(4).uniform(0, 7, 20)
    flat = np.c_[np.cos(angle), np.sin(angle), 0 * angle]
    found = anchor_map(flat, flat @ np.linalg.inv(A), allow_rank_deficient=True)
    np.testing.assert_allclose(found.matrix, np.diag([1, -1, 0]), atol=1e-12)
    assert (found.rank, found.full_column_rank) == (2, False)


@pytest.mark.parametrize("d", [2, 5, 30])
def test_the_constant_cannot_be_smaller(d):
    f, f_target, c = tight(d)
    one = linear_bound(f, np.eye(d), f_target, np.eye(d))
    assert one.conditions["epsilon"] == pytest.approx(c)
    assert one.looseness == pytest.approx(1)
    # Each anchor three times: √m over σ_min is the same, and √d in its place would be violated.
    thrice = np.tile(np.eye(d), (3, 1))
    three = linear_bound(f, thrice, f_target, thrice)
    assert three.value == pytest.approx(one.value)
    assert np.sqrt(d) * three.conditions["epsilon"] / three.conditions["sigma_min"] < 0.6 * three.measured


def test_narrower_targets_are_welcome():
    p = dual_problem(10, 20, 4, 7, noise=0.2, random_state=5)
    bound = linear_bound(p.F_target, p.G_target, p.F, p.G)
    assert leftover(bound) <= 0
    assert not anchor_map(p.G_target, p.G).full_column_rank


def test_an_error_of_one_is_that_of_the_map_to_zero_and_not_true_of_any_two_models():
    p = dual_problem(20, 7, 6, 6, noise=0.8, random_state=1)
    bound = linear_bound(*models(p))
    assert (bound.trivial, bound.vacuous) == (1, True)
    assert bound.measured > 1.5
    assert np.linalg.norm(p.F_target - p.F @ np.zeros((6, 6)), axis=1).max() == pytest.approx(1)
    assert "map A = 0" in bound.in_words()
    assert "any two models" not in bound.in_words()
    assert "any rotation" in text_bound(*models(p), random_rotation(6, 6, 0)).in_words()


def test_uncovered_targets_promise_nothing():
    p = dual_problem(10, 5, 4, 6, noise=0.2, random_state=6)
    bound = linear_bound(*models(p))
    assert (bound.value, bound.conditions["sigma_min"], bound.conditions["rank"]) == (float("inf"), 0, 5)
    assert bound.vacuous
    json.dumps(bound.to_dict())
    found = anchor_map(p.G, p.G_target, allow_rank_deficient=True)
    span = np.linalg.qr(p.G_target.T)[0]
    np.testing.assert_allclose(found.matrix @ span @ span.T, found.matrix, atol=1e-12)
    # Within the span of the anchors the theorem still holds.
    gap = np.linalg.norm((p.F_target - p.F @ found.matrix) @ span, axis=1).max()
    assert gap <= np.sqrt(5) * bound.conditions["epsilon"] / found.sigma_min * (1 + 1e-9)


def test_a_lost_direction_is_told_from_rounding():
    # Source texts lie in a plane, target texts so nearly that 1/σ_min lifts rounding in A far above machine precision.
    rng = np.random.default_rng(9)
    lost = 0
    for _ in range(20):
        plane = rng.standard_normal((6, 2))
        G = np.c_[plane, np.zeros(6)] @ random_rotation(3, random_state=int(rng.integers(1000)))
        G_target = np.c_[plane, 1e-9 * rng.standard_normal(6)]
        G, G_target = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (G, G_target))
        found = anchor_map(G, G_target)
        assert (found.rank, found.full_column_rank) == (3, False)
        lost += np.linalg.matrix_rank(found.matrix) == 3
    assert lost  # asked of A itself the answer would have been wrong


def test_text_error_against_the_formula():
    p = dual_problem(10, 30, 4, 6, noise=0.3, random_state=7)
    A = anchor_map(p.G, p.G_target).matrix.T  # the paper's, on columns
    project = A @ np.linalg.inv(A.T @ A) @ A.T
    errors = np.linalg.norm(project @ p.G_target.T - A @ np.linalg.inv(A.T @ A) @ p.G.T, axis=0)
    found = linear_text_error(p.G, p.G_target, A.T)
    assert found.largest == pytest.approx(errors.max())
    assert found.mean == pytest.approx(errors.mean())
    assert found.quantiles[0.5] == pytest.approx(np.quantile(errors, 0.5, method="inverted_cdf"))
    assert (found.sigma_max, found.sigma_min) == pytest.approx(tuple(np.linalg.svd(A)[1][[0, -1]]))
    assert json.loads(json.dumps(found.to_dict()))["quantiles"].keys() == {"0.5", "0.9", "0.99"}


def bound(value, measured=0.1):
    return Bound("Thm C.21", "‖f̃ − Af‖", value, measured, 2.0, {"epsilon": 0.01})


def test_vacuous_is_said_in_words():
    assert not bound(0.5).vacuous
    assert "vacuous" not in bound(0.5).in_words()
    assert bound(2.0).vacuous
    assert "vacuous" in bound(3.0).in_words()
    assert "does not apply" in bound(float("inf")).in_words()
    assert bound(0.5).looseness == pytest.approx(5)
    assert bound(0.0, 0.0).looseness == 1
    assert bound(0.5, 0.0).looseness == float("inf")
    assert json.loads(json.dumps(bound(0.5).to_dict()))["vacuous"] is False
