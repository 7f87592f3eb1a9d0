"""Unbalanced plans against POT, their conditions of optimality, and the balanced plans they tend to; KLOT with such a
teacher.
"""

import math

import numpy as np
import ot
import pytest
import torch
from plan_problems import WAYS, clouds, drawn_marginals
from torch.nn.functional import normalize

from congruence.errors import NotFiniteError, ParameterError, ShapeError
from congruence.transport import (
    _strip_pool,
    entropic,
    klot,
    klot_features,
    sinkhorn,
    sinkhorn_unbalanced,
    solve_teacher,
)

EXACT = {"max_iter": 20_000, "tolerance": 1e-13}


def log_plan(A, rho, epsilon, r, c):
    lam, L, g = rho / (rho + epsilon), A.astype(float) / epsilon, np.zeros(A.shape[1])
    for _ in range(100_000):
        f = -lam * np.logaddexp.reduce(L + g + np.log(c), axis=1)
        before, g = g, -lam * np.logaddexp.reduce(L + f[:, None] + np.log(r)[:, None], axis=0)
        if np.abs(g - before).max() < 1e-13:
            return L + f[:, None] + g + np.log(r)[:, None] + np.log(c)
    raise AssertionError("the reference has not converged")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("n", "m", "epsilon", "rho"), [(50, 40, 0.05, 0.1), (30, 60, 0.5, 0.05), (40, 40, 0.05, 3.0), (40, 30, 0.02, 0.02)]
)
def test_plans_are_pots(way, n, m, epsilon, rho, small_strips):
    X, Y = clouds(n, m)
    r, c = drawn_marginals(n, m)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        r, c, -X @ Y.T, epsilon, rho, reg_type="kl", numItermax=50_000, stopThr=1e-15
    )
    found = sinkhorn_unbalanced(rho=rho, epsilon=epsilon, marginals=(r, c), **EXACT, **WAYS[way](X, Y))
    P = np.asarray(found.plan())
    assert found.converged
    assert found.n_iter < EXACT["max_iter"]
    assert found.log_mass == pytest.approx(math.log(expected.sum()), abs=1e-9)
    np.testing.assert_allclose(P, expected / expected.sum(), atol=1e-10 * P.max())
    np.testing.assert_allclose(np.asarray(found.row_marginal), P.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(found.column_marginal), P.sum(axis=0), rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("way", ["dense", "strips", "half held"])
@pytest.mark.parametrize(("epsilon", "rho"), [(0.05, 0.1), (0.02, 1.0), (0.05, 50.0)])
def test_float32(way, epsilon, rho):
    X, Y = clouds(50, 40)
    r, c = np.full(50, 1 / 50), np.full(40, 1 / 40)
    L = log_plan(X @ Y.T, rho, epsilon, r, c)
    mass = np.exp(L).sum()
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    found = sinkhorn_unbalanced(rho=rho, epsilon=epsilon, max_iter=2000, **WAYS[way](X, Y))
    assert found.plan().dtype == np.float32
    assert found.log_mass == pytest.approx(math.log(mass), abs=2e-5)
    np.testing.assert_allclose(found.plan(), np.exp(L) / mass, atol=2e-5 * np.exp(L).max() / mass)


def test_the_conditions_of_optimality_hold_and_the_error_says_by_how_much():
    """ε log(P/rcᵀ) − A + ρ log(P1/r) + ρ log(Pᵀ1/c) = 0 at every entry."""
    X, Y = clouds(30, 20)
    A, (r, c), epsilon, rho = X @ Y.T, drawn_marginals(30, 20), 0.05, 0.2
    found = sinkhorn_unbalanced(A, rho, epsilon, marginals=(r, c), **EXACT)
    P = found.plan() * math.exp(found.log_mass)
    slope = epsilon * np.log(P / np.outer(r, c)) - A
    slope += rho * (np.log(P.sum(axis=1) / r)[:, None] + np.log(P.sum(axis=0) / c))
    np.testing.assert_allclose(slope, 0, atol=1e-11)
    early = sinkhorn_unbalanced(A, rho, epsilon, max_iter=2, marginals=(r, c))
    assert not early.converged
    P, mass = early.plan(), math.exp(early.log_mass)
    u, v = (np.asarray(side) + early.log_mass / 2 for side in (early.u, early.v))
    wanted = r * np.exp(-epsilon / rho * (u - np.log(r))), c * np.exp(-epsilon / rho * (v - np.log(c)))
    error = sum(np.abs(P.sum(axis=1 - axis) - wanted[axis] / mass).sum() for axis in (0, 1))
    assert early.marginal_error == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize(("rho", "epsilon", "d"), [(0.05, 0.05, 8), (0.5, 0.02, 3), (5.0, 0.01, 8), (0.02, 0.05, 64)])
def test_the_error_that_is_said_is_that_of_the_plan(rho, epsilon, d, shift):
    """Whatever the mass of the plan is, to which a constant adds hundreds of orders of magnitude."""
    X, Y = clouds(60, 50, d=d, seed=1)
    A, marginals = X @ Y.T + shift, drawn_marginals(60, 50)
    exact = sinkhorn_unbalanced(A, rho, epsilon, marginals=marginals, max_iter=20_000, tolerance=1e-9)
    assert exact.marginal_error < 1e-8
    for tolerance in (1e-2, 1e-3, 1e-5):
        found = sinkhorn_unbalanced(A, rho, epsilon, marginals=marginals, tolerance=tolerance)
        assert found.converged
        assert np.abs(found.plan() - exact.plan()).sum() <= 3 * found.error + 1e-8


def test_no_small_change_of_the_plan_is_better():
    """Against the objective itself, which shares nothing with the iteration."""
    X, Y = clouds(12, 9)
    A, (r, c), epsilon, rho = X @ Y.T, drawn_marginals(12, 9), 0.1, 0.3

    def kl(p, q):
        return (p * np.log(p / q) - p + q).sum()

    def value(P):
        return (P * A).sum() - epsilon * kl(P, np.outer(r, c)) - rho * (kl(P.sum(axis=1), r) + kl(P.sum(axis=0), c))

    found = sinkhorn_unbalanced(A, rho, epsilon, marginals=(r, c), **EXACT)
    P, rng = found.plan() * math.exp(found.log_mass), np.random.default_rng(0)
    best = value(P)
    for size in (1e-1, 1e-2, 1e-3):
        assert all(value(P * np.exp(size * rng.standard_normal(P.shape))) < best for _ in range(20))
        assert value(P * (1 + size)) < best


def test_infinite_strength_is_the_balanced_solver_and_large_ones_tend_to_it():
    X, Y = clouds(30, 40)
    r, c = drawn_marginals(30, 40)
    balanced = sinkhorn(X @ Y.T, 0.05, 5000, 1e-13, marginals=(r, c))
    same = sinkhorn_unbalanced(X @ Y.T, math.inf, 0.05, 5000, 1e-13, marginals=(r, c))
    assert (same.u == balanced.u).all()
    assert (same.v == balanced.v).all()
    assert (same.marginal_error, same.n_iter) == (balanced.marginal_error, balanced.n_iter)
    off = [np.abs(sinkhorn_unbalanced(X @ Y.T, rho, 0.05, marginals=(r, c), **EXACT).plan() - balanced.plan()).sum()
           for rho in (10.0, 100.0, 1000.0)]  # fmt: skip
    np.testing.assert_allclose(np.array(off[:-1]) / off[1:], 10, rtol=0.2)  # of order 1/ρ
    assert off[-1] < 1e-3


def test_a_weak_strength_leaves_the_product_with_the_exponential():
    """At ρ → 0 nothing holds the marginals: P = r cᵀ exp(A/ε)."""
    X, Y = clouds(20, 25)
    r, c = drawn_marginals(20, 25)
    free = np.outer(r, c) * np.exp(X @ Y.T / 0.2)
    found = sinkhorn_unbalanced(X @ Y.T, 1e-9, 0.2, marginals=(r, c), **EXACT)
    np.testing.assert_allclose(found.plan(), free / free.sum(), rtol=1e-6)
    assert found.log_mass == pytest.approx(math.log(free.sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_scales_the_plan_only(dtype):
    """Masses far beyond what float32 can hold are only in ``log_mass``."""
    X, Y = clouds(30, 20, dtype=dtype)
    A, epsilon, rho = X @ Y.T, 0.1, 0.05
    here = sinkhorn_unbalanced(A, rho, epsilon, 1000)
    for constant in (-32, 32):  # a sum of A and a power of two loses no more than its last bits
        there = sinkhorn_unbalanced(A + dtype(constant), rho, epsilon, 1000)
        assert there.log_mass - here.log_mass == pytest.approx(constant / (epsilon + 2 * rho), rel=1e-5)
        np.testing.assert_allclose(there.plan(), here.plan(), atol=(1e-3 if dtype == np.float32 else 1e-10) / 30)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rho", [0.1, 0.5])
def test_potentials_that_leap(dtype, rho, monkeypatch):
    """Affinities thousands of ε apart move potentials by more in one iteration than exp can hold."""
    counted = []
    true = entropic._log_domain_iteration
    monkeypatch.setattr(entropic, "_log_domain_iteration", lambda *given: counted.append(1) or true(*given))
    A = (np.random.default_rng(1).standard_normal((30, 40)) * 7.5).astype(dtype)
    L = log_plan(A, rho, 0.02, np.full(30, 1 / 30), np.full(40, 1 / 40))
    log_mass = np.logaddexp.reduce(L.ravel())
    found = sinkhorn_unbalanced(A, rho, 0.02, 2000, 1e-6 if dtype == np.float32 else 1e-12)
    assert len(counted) > 1
    assert found.log_mass == pytest.approx(log_mass, abs=1e-3 if dtype == np.float32 else 1e-9)
    P = np.exp(L - log_mass)
    np.testing.assert_allclose(found.plan(), P, atol=(1e-3 if dtype == np.float32 else 1e-9) * P.max())


def test_a_strong_preference_takes_no_more_iterations_than_a_fixed_marginal():
    """The plain iteration needs some ρ/ε for the balance between the two potentials."""
    X, Y = clouds(40, 40)
    balanced = sinkhorn(X @ Y.T, 0.1, 5000, 1e-10)
    assert sinkhorn_unbalanced(X @ Y.T, 1000.0, 0.1, 5000, 1e-10).n_iter <= balanced.n_iter + 2


def test_rows_without_a_partner_have_little_of_the_plan():
    X, Y = clouds(40, 40, d=32)
    Y[:20] = X[:20]
    r = sinkhorn_unbalanced(X @ Y.T, 0.05, 0.05).row_marginal
    assert r[:20].min() > 10 * r[20:].max()


def test_threads_share_strips(monkeypatch):
    monkeypatch.setattr(_strip_pool, "LEAST", 0)
    X, Y = (torch.tensor(side) for side in clouds(200, 150))
    kept = torch.get_num_threads()
    try:
        found = []
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(sinkhorn_unbalanced(X=X, Y=Y, rho=0.1))
    finally:
        torch.set_num_threads(kept)
    assert torch.equal(found[0].u, found[1].u)
    assert torch.equal(found[0].v, found[1].v)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rho": 0}, ParameterError, "Got rho=0; expected a number > 0"),
        ({"rho": -1.0}, ParameterError, "rho=-1"),
        ({"rho": math.nan}, ParameterError, "rho=nan"),
        ({"rho": -math.inf}, ParameterError, "rho=-inf"),
        ({"rho": "strong"}, ParameterError, "rho='strong'"),
        ({"epsilon": 0}, ParameterError, "epsilon=0"),
        ({"max_iter": 0}, ParameterError, "max_iter"),
        ({"marginals": (np.ones(3) / 3, None)}, ShapeError, r"shape \(3,\)"),
        ({"affinity": np.full((4, 5), np.nan)}, NotFiniteError, "NaN"),
        ({"X": np.ones((4, 2))}, ParameterError, "affinity and X"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        sinkhorn_unbalanced(**{"affinity": np.zeros((4, 5)), **options})


def problem(n=20, m=25, d=6):
    sides = [normalize(torch.tensor(Z), dim=1) for seed in (0, 1) for Z in clouds(n, m, d, seed)]
    return sides[0].requires_grad_(), sides[1].requires_grad_(), sides[2], sides[3]


def test_the_divergence_is_that_of_pots_plans():
    X, Y, TX, TY = problem()
    A, T = (X @ Y.T).detach().numpy(), (TX @ TY.T).numpy()
    r, c = np.full(20, 1 / 20), np.full(25, 1 / 25)
    Q = ot.unbalanced.sinkhorn_unbalanced(r, c, -T, 0.05, 0.1, reg_type="kl", numItermax=50_000, stopThr=1e-15)
    Q /= Q.sum()
    P = ot.bregman.sinkhorn_log(Q.sum(axis=1), Q.sum(axis=0), -A, 0.1, numItermax=50_000, stopThr=1e-15)
    value = klot(X @ Y.T, TX @ TY.T, 0.1, 0.05, rho_teacher=0.1, **EXACT)
    assert value.item() == pytest.approx((Q * np.log(Q / P)).sum(), rel=1e-8)


def test_the_gradient_is_that_of_finite_differences():
    X, Y, TX, TY = problem(5, 6, 3)
    T, options = TX @ TY.T, {"epsilon": 0.4, "epsilon_teacher": 0.2, "tolerance": 1e-12, "rho_teacher": 0.1}
    A = (X @ Y.T).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda A: klot(A, T, **options), (A,), atol=1e-6)
    klot(X @ Y.T, T, **options).backward()
    expected = X.grad.clone(), Y.grad.clone()
    X.grad = Y.grad = None
    klot_features(X, Y, TX, TY, memory=0, **options).backward()
    for side, slope in zip((X, Y), expected, strict=True):
        torch.testing.assert_close(side.grad, slope, rtol=1e-9, atol=1e-12)


def test_a_solved_teacher_keeps_its_marginals():
    X, Y, TX, TY = problem()
    teacher = solve_teacher(TX, TY, 0.05, rho_teacher=0.05)
    once = klot_features(X, Y, TX, TY, 0.1, 0.05, rho_teacher=0.05)
    assert once.item() == pytest.approx(klot_features(X, Y, TX, TY, 0.1, teacher=teacher).item(), rel=1e-3)
    balanced = klot_features(X, Y, TX, TY, 0.1, 0.05)
    assert once != balanced
    assert balanced == klot_features(X, Y, TX, TY, 0.1, 0.05, rho_teacher=math.inf)
    # The student that is its teacher has nothing to learn, whatever the marginals.
    own, _ = klot_features(TX, TY, TX, TY, 0.05, 0.05, rho_teacher=0.05, **EXACT, return_info=True)
    assert own.item() == pytest.approx(0, abs=1e-12)


def test_rows_that_hardly_count_in_float32():
    """The teacher gives them less than the student's solver can hold: they are raised to what it can."""
    TX = normalize(torch.tensor(clouds(20, 20, 4)[0], dtype=torch.float32), dim=1)
    TY = TX.clone()
    TY[10:] = -TX[10:]
    value, info = klot_features(TX, TY, TX, TY, 0.05, 0.01, rho_teacher=0.002, return_info=True)
    assert torch.isfinite(value)
    assert info.student.marginal_error < 1e-3


@pytest.mark.parametrize("bad", [0, -1.0, math.nan])
def test_bad_strength_of_a_teacher(bad):
    X, Y, TX, TY = problem()
    for call in (
        lambda: klot(X @ Y.T, TX @ TY.T, rho_teacher=bad),
        lambda: klot_features(X, Y, TX, TY, rho_teacher=bad),
        lambda: solve_teacher(TX, TY, rho_teacher=bad),
    ):
        with pytest.raises(ParameterError, match="rho_teacher"):
            call()
