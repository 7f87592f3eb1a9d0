"""From a linear map to a rotation and on to texts: every promise is kept, and no constant can be smaller."""

import json

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from congruence import OrthogonalMap
from congruence.linalg.procrustes import procrustes
from congruence.synthetic import dual_problem, random_rotation
from congruence.theory import (
    anchor_map,
    kernel_agreement,
    orthogonal_bound,
    polar_rotation,
    projected_text_bound,
    rank_trade_off,
    text_bound,
)

INF = float("inf")


def models(p):
    return p.F, p.G, p.F_target, p.G_target


def draw(rng, *, full=False):
    d = int(rng.integers(1, 7))
    d_target = d + int(rng.integers(0, 4))
    noise, shear = rng.choice([0, 1e-6, 1e-3, 0.1, 0.8, 10], 2)
    n = int(rng.integers(d if full else 1, 4 * d + 1))
    rank = int(rng.integers(1, d + 1)) if not full and rng.random() < 0.4 else None
    seed = int(rng.integers(2**31))
    return dual_problem(
        n, int(rng.integers(1, 12)), d, d_target, noise=noise, shear=min(shear, 0.9), rank=rank, random_state=seed
    )


def kappa_above(F):
    """A number no smaller than κ of these rows: √n over the least singular value of M ↦ (uᵀMu)."""
    d = F.shape[1]
    i, j = np.triu_indices(d)
    least = np.linalg.svd(F[:, i] * F[:, j] * np.where(i == j, 1, np.sqrt(2)), compute_uv=False)
    spans = len(least) == len(i) and least[-1] > 1e-9
    return np.sqrt(len(F)) / least[-1] if spans else INF


def kept(bound, key="value"):
    promise = bound.value if key == "value" else bound.conditions[key]
    sigma = bound.conditions.get("sigma_min", 1.0) or 1.0
    return bound.measured <= promise * (1 + 1e-9) + 1e-12 / sigma


def test_polar_factor_against_scipy():
    rng = np.random.default_rng(0)
    for d, d_target in ((1, 1), (4, 4), (3, 7)):
        A = rng.standard_normal((d, d_target))
        found = polar_rotation(A)
        np.testing.assert_allclose(found.rotation.T, scipy.linalg.polar(A.T)[0], atol=1e-12)
        assert found.distance == pytest.approx(np.linalg.norm(A - found.rotation, 2))
        assert found.gram_distance == pytest.approx(np.linalg.norm(A @ A.T - np.eye(d), 2))
        assert found.distance <= found.gram_distance
        assert found.unique
    flat = polar_rotation(np.diag([1.0, 0]))
    np.testing.assert_allclose(flat.rotation @ flat.rotation.T, np.eye(2), atol=1e-12)
    assert (flat.unique, flat.distance) == (False, 1)
    assert not polar_rotation(np.diag([1.0, 1e-4]), rtol=1e-3).unique


def test_images_stay_inside_the_bound_in_hundreds_of_models():
    rng = np.random.default_rng(1)
    counts = {"finite": 0, "useful": 0}
    for _ in range(200):
        p = draw(rng, full=True)
        A = procrustes(p.F, p.F_target) + rng.choice([0, 1e-4, 0.1]) * rng.standard_normal(p.rotation.shape)
        bound = orthogonal_bound(p.F, p.F_target, A, kappa_above(p.F))
        assert kept(bound)
        assert kept(bound, "sharp")
        if np.isfinite(bound.value):
            delta, kappa = bound.conditions["delta"], bound.conditions["kappa"]
            assert bound.conditions["gram_distance"] <= kappa * (2 + delta) * delta + 1e-12
            assert bound.conditions["sharp"] <= bound.value + 1e-12
            counts["finite"] += 1
            counts["useful"] += not bound.vacuous
    assert counts["finite"] > 40
    assert counts["useful"] > 8


def test_texts_stay_inside_the_bound_in_hundreds_of_models():
    rng = np.random.default_rng(2)
    useful = 0
    for _ in range(200):
        p = draw(rng, full=True)
        Q = p.rotation if rng.random() < 0.5 else procrustes(p.F, p.F_target)
        bound = text_bound(*models(p), Q)
        assert kept(bound)
        assert kept(bound, "sharp")
        assert bound.conditions["sharp"] <= bound.value * (1 + 1e-9)
        useful += not bound.vacuous
    assert 24 < useful < 200


@pytest.mark.long
def test_projected_texts_stay_inside_the_bound_in_hundreds_of_models():
    rng = np.random.default_rng(3)
    useful = 0
    for _ in range(500):
        p = draw(rng)
        Q = procrustes(p.F, p.F_target)
        # An image span of rank r leaves d − r singular values that are rounding, which rtol takes for zero.
        trade = rank_trade_off(*models(p), Q, rtol=1e-9)
        r = int(rng.integers(1, len(trade.ranks) + 1))
        bound = projected_text_bound(*models(p), Q, r, rtol=1e-9)
        assert kept(bound)
        assert kept(bound, "sharp")
        assert (trade.rho[r - 1], trade.sharp[r - 1]) == pytest.approx((bound.value, bound.conditions["sharp"]))
        assert trade.measured[r - 1] == pytest.approx(bound.measured)
        whole = np.linalg.norm(p.G - p.G_target @ Q.T, axis=1).max()
        assert (whole <= trade.whole * (1 + 1e-9) + 1e-9).all()
        assert trade.whole.min() == trade.whole[trade.best - 1]
        assert (np.diff(trade.rho) >= 0).all()
        assert (np.diff(trade.outside) <= 1e-12).all()
        useful += not bound.vacuous
    assert 75 < useful < 500


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(0, 3), st.sampled_from([1e-5, 0.02, 0.3]))
def test_the_parts_are_what_they_are_said_to_be(seed, d, more, noise):
    p = dual_problem(2 * d, 7, d, d + more, noise=noise, random_state=seed)
    Q = random_rotation(d, d + more, random_state=seed) if noise == 0.3 else p.rotation
    bound = text_bound(*models(p), Q)
    n, parts = 2 * d, bound.conditions
    assert parts["epsilon"] == pytest.approx(kernel_agreement(*models(p)).epsilon)
    assert parts["delta_f"] == pytest.approx(np.linalg.norm(p.F_target - p.F @ Q, axis=1).max())
    assert parts["sigma_min"] == pytest.approx(np.linalg.svd(p.F)[1][-1])
    assert bound.value == pytest.approx(np.sqrt(n) * (parts["epsilon"] + parts["delta_f"]) / parts["sigma_min"])
    assert bound.measured == pytest.approx(np.linalg.norm(p.G_target @ Q.T - p.G, axis=1).max())
    # The two ways the theorem writes its left-hand side.
    assert bound.measured == pytest.approx(np.linalg.norm(p.G_target @ Q.T @ Q - p.G @ Q, axis=1).max())
    full = projected_text_bound(*models(p), Q)
    assert full.value == pytest.approx(bound.value)
    assert full.measured == pytest.approx(bound.measured)


@pytest.mark.parametrize(("d", "d_target"), [(4, 4), (4, 7)])
def test_one_rotation_leaves_nothing(d, d_target):
    p = dual_problem(50, 20, d, d_target, random_state=4)
    assert text_bound(*models(p), p.rotation).value < 1e-12
    assert orthogonal_bound(p.F, p.F_target, p.rotation, kappa_above(p.F)).value < 1e-10
    if d == d_target:
        A = anchor_map(p.G, p.G_target).matrix
        np.testing.assert_allclose(polar_rotation(A).rotation, p.rotation, atol=1e-12)


def test_images_in_a_subspace_say_nothing_of_the_rest_of_a_text():
    p = dual_problem(50, 20, 6, 8, rank=3, random_state=5)
    assert kernel_agreement(*models(p)).epsilon < 1e-12
    whole = text_bound(*models(p), p.rotation, rtol=1e-9)
    assert (whole.value, whole.conditions["rank"], whole.conditions["sigma_min"]) == (INF, 3, 0)
    assert whole.measured > 0.3
    assert "does not apply" in whole.in_words()
    within = projected_text_bound(*models(p), p.rotation, rtol=1e-9)
    assert within.conditions["rank"] == 3
    assert within.value < 1e-11
    assert within.measured < 1e-12
    trade = rank_trade_off(*models(p), p.rotation, rtol=1e-9)
    assert trade.best == 3
    assert trade.whole[2] == pytest.approx(trade.outside[2])
    assert trade.whole[2] >= whole.measured


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("d", [2, 6, 40])
def test_the_constant_of_the_text_bound_cannot_be_smaller(d, more):
    # Orthonormal anchors, carried exactly, and a text that is off by c along each of them: every step is an equality,
    # in any number of target dimensions. √d̃ is then loose by √(d̃/d), and anything below √n too small.
    c = 0.4 / np.sqrt(d)
    across = scipy.linalg.null_space(np.ones((1, d)))[:, 0] * np.sqrt(1 - d * c * c / 4)
    g, g_target = across - c / 2, across + c / 2
    Q = random_rotation(d, d + more, random_state=6)
    one = text_bound(np.eye(d), g[None], Q, (g_target @ Q)[None], Q)
    assert one.looseness == pytest.approx(1)
    thrice = np.tile(np.eye(d), (3, 1))
    three = text_bound(thrice, g[None], thrice @ Q, (g_target @ Q)[None], Q)
    assert three.value == pytest.approx(one.value)
    with_d = np.sqrt(d) * (three.conditions["epsilon"] + three.conditions["delta_f"]) / three.conditions["sigma_min"]
    assert with_d < 0.6 * three.measured


def test_without_kappa_the_image_bound_would_be_false():
    # Images around e₁ hardly see that A shrinks e₂: the norms of A f are 1 to second order, the rotation is off to
    # first.
    angle = np.linspace(-0.05, 0.05, 21)
    F = np.c_[np.cos(angle), np.sin(angle)]
    A = np.diag([1.0, 0.2])
    F_target = F @ A / np.linalg.norm(F @ A, axis=1, keepdims=True)
    assert not kept(orthogonal_bound(F, F_target, A, 1.0))
    bound = orthogonal_bound(F, F_target, A, kappa_above(F))
    assert kept(bound)
    assert bound.vacuous
    assert kept(orthogonal_bound(F, F_target, A, INF))
    assert not orthogonal_bound(F, F @ np.eye(2), np.eye(2), INF).value < INF  # even with Δ = 0


def test_the_rotation_of_a_fitted_map():
    p = dual_problem(100, 30, 5, 8, noise=0.05, random_state=7)
    Q = OrthogonalMap(center=False, shrinkage="full").fit(p.F, p.F_target).rotation_
    bound = text_bound(*models(p), Q)
    assert kept(bound)
    assert not bound.vacuous
    json.dumps(bound.to_dict())


def test_half_precision_keeps_the_promise():
    # Rounded norms are made exact, so that ‖g̃‖ = 1 holds where the proof uses it.
    for seed in range(20):
        p = dual_problem(12, 9, 4, 6, random_state=seed)
        half = [Z.astype(np.float16) for Z in models(p)]
        assert kept(text_bound(*half, p.rotation))
        assert kept(orthogonal_bound(half[0], half[2], p.rotation, kappa_above(p.F)))
