"""KLOT and its explicit gradient against autograd through the solver, finite differences, and POT's plans."""

import math

import numpy as np
import ot
import pytest
import torch
from torch.nn.functional import normalize

from congruence import errors
from congruence.transport import klot, klot_features, sinkhorn, solve_teacher

EXACT = {"max_iter": 20_000, "tol": 1e-13}


def unit(n, d, seed):
    return normalize(torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=1)


def problem(n, m, d=6):
    """Student's and teacher's vectors, more alike where rows have one number."""
    X, Y, TX, TY = (unit(size, d, seed) for seed, size in enumerate((n, m, n, m)))
    k = min(n, m)
    Y[:k], TY[:k] = normalize(X[:k] + 0.7 * Y[:k]), normalize(TX[:k] + 0.7 * TY[:k])
    return X.requires_grad_(), Y.requires_grad_(), TX, TY


def log_plan(A, epsilon, max_iter):
    n, m = A.shape
    v = torch.zeros(m, dtype=A.dtype)
    for _ in range(max_iter):
        u = -math.log(n) - torch.logsumexp(A / epsilon + v, dim=1)
        v = -math.log(m) - torch.logsumexp(A / epsilon + u[:, None], dim=0)
    return A / epsilon + u[:, None] + v


def unrolled(A, T, epsilon, epsilon_teacher, max_iter, n_iter_teacher):
    student = log_plan(A, epsilon, max_iter)
    with torch.no_grad():
        teacher = log_plan(T, epsilon_teacher, n_iter_teacher)
    return (teacher.exp() * (teacher - student)).sum()


def pot_plan(A, epsilon):
    n, m = A.shape
    r, c = np.full(n, 1 / n), np.full(m, 1 / m)
    return ot.bregman.sinkhorn_log(r, c, -A.detach().numpy(), epsilon, numItermax=50_000, stopThr=1e-14, warn=False)


@pytest.mark.parametrize(
    ("n", "m", "epsilon", "epsilon_teacher"),  # which converge within 600 iterations
    [(30, 30, 0.1, 0.1), (30, 30, 0.1, 0.07), (40, 25, 0.05, 0.05), (40, 25, 0.1, 0.07)],
)
def test_against_autograd_through_the_converged_solver(n, m, epsilon, epsilon_teacher, small_strips):
    X, Y, TX, TY = problem(n, m)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    expected = unrolled(A, T, epsilon, epsilon_teacher, 600, 600)
    (slope,) = torch.autograd.grad(expected, A)
    assert expected > 0.1
    value = klot(A, T, epsilon, epsilon_teacher, **EXACT)
    (gradient,) = torch.autograd.grad(value, A)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0, check_dtype=True)
    torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-10 * slope.abs().max().item())
    for memory in (0, 20 * m * 8, 2**30):
        value = klot_features(X, Y, TX, TY, epsilon, epsilon_teacher, **EXACT, memory=memory)
        dX, dY = torch.autograd.grad(value, (X, Y))
        torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
        torch.testing.assert_close(dX, slope @ Y.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(dY, slope.T @ X.detach(), rtol=0, atol=1e-10)


def test_the_defaults_against_autograd():
    X, Y, TX, TY = problem(40, 40)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    expected = unrolled(A, T, 0.05, 0.01, 100, 100)
    (slope,) = torch.autograd.grad(expected, A)
    value = klot(A, T)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (A.grad - slope).abs().sum() < 2e-2 * slope.abs().sum()  # 100 iterations are not convergence


def test_against_pots_plans():
    X, Y, TX, TY = problem(50, 35)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    P, Q = pot_plan(A, 0.05), pot_plan(T, 0.02)
    value = klot(A, T, 0.05, 0.02, **EXACT)
    value.backward()
    assert value.item() == pytest.approx((Q * np.log(Q / P)).sum(), rel=1e-10)
    np.testing.assert_allclose(A.grad.numpy(), (P - Q) / 0.05, atol=1e-11)
    assert np.abs(A.grad.numpy() - (P - Q) / 0.02).max() > 0.01  # equation 13 as printed


def test_against_finite_differences():
    X, Y, TX, TY = problem(5, 4, d=2)
    T = TX @ TY.T
    exact = {"max_iter": 3000, "tol": 1e-12}
    A = (X @ Y.T).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda A: klot(A, T, 0.8, 0.4, **exact), A, atol=1e-6)
    assert torch.autograd.gradcheck(lambda A: klot(A, T, 0.8, 0.4, mass="bistochastic", **exact), A, atol=1e-6)
    for memory in (0, 2**30):
        assert torch.autograd.gradcheck(
            lambda X, Y, memory=memory: klot_features(X, Y, TX, TY, 0.8, 0.4, **exact, memory=memory), (X, Y), atol=1e-6
        )


def test_the_gradient_goes_on_into_what_made_the_affinities():
    X, Y, TX, TY = problem(30, 30)
    W = torch.eye(6, dtype=torch.float64, requires_grad=True)
    scaled = 3 * klot(normalize(X @ W) @ Y.T, TX @ TY.T)
    (dense,) = torch.autograd.grad(scaled, W)
    (streamed,) = torch.autograd.grad(3 * klot_features(normalize(X @ W), Y, TX, TY, memory=0), W)
    torch.testing.assert_close(streamed, dense, rtol=1e-9, atol=1e-12)
    assert dense.abs().max() > 1e-3


def test_only_what_asks_for_a_gradient_gets_one():
    X, Y, TX, TY = problem(20, 20)
    TX.requires_grad_()
    klot_features(X, Y.detach(), TX, TY).backward()
    assert X.grad is not None
    assert TX.grad is None
    T = (TX @ TY.T).detach().requires_grad_()
    A = (X @ Y.T).detach().requires_grad_()
    klot(A, T).backward()
    assert T.grad is None
    assert not klot(A.detach(), T).requires_grad


def test_backward_twice_through_a_kept_graph():
    A = unit(10, 10, 0).requires_grad_()
    value = klot(A, torch.eye(10, dtype=torch.float64))
    value.backward(retain_graph=True)
    once = A.grad.clone()
    value.backward()
    torch.testing.assert_close(A.grad, 2 * once)


def test_affinities_changed_in_place_are_noticed():
    A = torch.randn(10, 10, requires_grad=True)
    B = A * 1
    value = klot(B, torch.eye(10))
    B.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_what_changes_nothing():
    X, Y, TX, TY = problem(20, 15)
    A, T = (X @ Y.T).detach(), TX @ TY.T
    value = klot(A, T, **EXACT)
    shifts = [0.7, torch.randn(20, 1, dtype=torch.float64), torch.randn(15, dtype=torch.float64)]
    for shift in shifts:
        assert klot(A + shift, T, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
        assert klot(A, T + shift, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    assert klot(10 * A, T, 0.5, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    assert klot(A.T, T.T, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    assert klot(T, T, 0.01).item() == 0


def test_masses():
    X, Y, TX, TY = problem(25, 25)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    values = {mass: klot(A, T, mass=mass) for mass in ("unit", "bistochastic")}
    slopes = {mass: torch.autograd.grad(value, A)[0] for mass, value in values.items()}
    torch.testing.assert_close(values["bistochastic"], 25 * values["unit"])
    torch.testing.assert_close(slopes["bistochastic"], 25 * slopes["unit"])
    P, Q = (sinkhorn(side, epsilon, mass="bistochastic").plan() for side, epsilon in ((A, 0.05), (T, 0.01)))
    torch.testing.assert_close(values["bistochastic"].detach(), (Q * (Q / P).log()).sum(), rtol=1e-9, atol=0)
    torch.testing.assert_close(slopes["bistochastic"], (P - Q) / 0.05, rtol=0, atol=1e-12)
    value = klot_features(X, Y, TX, TY, mass="bistochastic", memory=0)
    torch.testing.assert_close(value, values["bistochastic"], rtol=1e-9, atol=0)


def test_strips_are_the_matrix_in_either_precision(small_strips):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        # Eight strips of 16 rows.
        X, Y, TX, TY = (side.detach().to(dtype).requires_grad_() for side in problem(120, 80, d=32))
        A = X @ Y.T
        dense = klot(A, (TX @ TY.T).detach(), epsilon_teacher=0.05)
        dX, dY = torch.autograd.grad(dense, (X, Y))
        for memory in (0, 40 * 80 * 8):
            value = klot_features(X, Y, TX, TY, epsilon_teacher=0.05, memory=memory)
            found = torch.autograd.grad(value, (X, Y))
            assert value.dtype == dtype
            assert value.item() == pytest.approx(dense.item(), rel=tolerance)
            for side, expected in zip(found, (dX, dY), strict=True):
                assert side.dtype == dtype
                assert (side - expected).norm() < tolerance * expected.norm()


def test_float32_against_float64():
    X, Y, TX, TY = problem(300, 300, d=32)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    exact, _ = klot(A, T, return_info=True)  # 100 iterations are too few here
    (slope,) = torch.autograd.grad(exact, A)
    single = A.detach().float().requires_grad_()
    value, _ = klot(single, T.float(), return_info=True)
    (found,) = torch.autograd.grad(value, single)
    assert (value.dtype, found.dtype) == (torch.float32, torch.float32)
    assert value.item() == pytest.approx(exact.item(), rel=1e-5)
    assert (found - slope).norm() < 1e-5 * sinkhorn(A, 0.05).plan().norm() / 0.05  # the plans nearly cancel in it
    assert klot(single, T, return_info=True)[0].dtype == torch.float64  # the wider of the two


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    X, Y, TX, TY = (side.detach().to(dtype).requires_grad_() for side in problem(40, 40))
    value = klot_features(X, Y, TX, TY)
    dX, dY = torch.autograd.grad(value, (X, Y))
    wide = [side.detach().float().requires_grad_() for side in (X, Y, TX, TY)]
    expected = klot_features(*wide)
    slopes = torch.autograd.grad(expected, wide[:2])
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(dX, slopes[0].to(dtype))
    torch.testing.assert_close(dY, slopes[1].to(dtype))
    A, T = (X @ Y.T).detach().requires_grad_(), (TX @ TY.T).detach()
    (found,) = torch.autograd.grad(klot(A, T), A)
    B = A.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(klot(B, T.float()), B)
    torch.testing.assert_close(found, expected.to(dtype))


def test_arrays_and_a_mask_of_pairs_are_taken_too():
    A, T = np.random.default_rng(0).random((2, 9, 9))
    assert klot(A, T).item() == pytest.approx(klot(torch.tensor(A), torch.tensor(T)).item())
    A = unit(9, 9, 0).float()
    assert klot(A, torch.eye(9, dtype=torch.bool)).item() == pytest.approx(klot(A, torch.eye(9)).item(), rel=1e-5)


E3 = torch.eye(3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((E3, E3 * torch.nan), {}, errors.NotFiniteError, "Got NaN or inf in 3 of 3 rows of teacher"),
        ((E3 / 0, E3), {}, errors.NotFiniteError, "student"),
        ((E3, torch.eye(4)), {}, errors.ShapeError, r"student of shape \(3, 3\) and teacher of shape \(4, 4\)"),
        ((E3[0], E3), {}, errors.ShapeError, "2 axes"),
        ((torch.empty(0, 3), torch.empty(0, 3)), {}, errors.ShapeError, "0 rows"),
        ((E3, E3.numpy()), {}, errors.DtypeError, "as a tensor"),
        ((E3 * 1j, E3), {}, errors.DtypeError, "[Cc]omplex"),
        ((E3, E3), {"epsilon": 0}, errors.ParameterError, "Got epsilon=0"),
        ((E3, E3), {"epsilon_teacher": -1}, errors.ParameterError, "Got epsilon_teacher=-1"),
        ((E3, E3), {"epsilon_teacher": 1e-5}, errors.ParameterError, "epsilon_teacher=1e-05 .* float32"),
        ((E3, E3), {"max_iter": 0}, errors.ParameterError, "Got max_iter=0"),
        ((E3, E3), {"tol": -1}, errors.ParameterError, "Got tol=-1"),
        ((E3, E3), {"mass": "n"}, errors.ParameterError, "'unit', 'bistochastic'"),
    ],
)
def test_bad_affinities(arguments, options, error, message):
    with pytest.raises(error, match=message):
        klot(*arguments, **options)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        ({"X": torch.eye(4)[:, :3]}, {}, errors.ShapeError, "4 rows of X and 3 rows of TX"),
        ({"TY": torch.eye(4)[:, :3]}, {}, errors.ShapeError, "3 rows of Y and 4 rows of TY"),
        ({"Y": E3[:, :2]}, {}, errors.ShapeError, "widths 3 of X and 2 of Y"),
        ({"TX": E3[:, :2]}, {}, errors.ShapeError, "widths 2 of TX and 3 of TY"),
        ({"TX": E3 * torch.nan}, {}, errors.NotFiniteError, "TX"),
        ({}, {"memory": -1}, errors.ParameterError, "memory"),
        ({}, {"epsilon": 1e-6}, errors.ParameterError, "epsilon=1e-06"),
        ({}, {"mass": 3}, errors.ParameterError, "mass"),
    ],
)
def test_bad_vectors(change, options, error, message):
    sides = {"X": E3, "Y": E3, "TX": E3, "TY": E3} | change
    with pytest.raises(error, match=message):
        klot_features(**sides, **options)


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[train\]"):
        klot(np.eye(3), np.eye(3))


def test_a_teacher_that_was_solved_before():
    X, Y, TX, TY = (unit(n, d, seed) for n, d, seed in ((30, 6, 0), (40, 6, 1), (30, 5, 2), (40, 5, 3)))
    teacher = solve_teacher(TX, TY)
    X.requires_grad_()
    values = [klot_features(X, Y, TX, TY, teacher=known) for known in (teacher, None)]
    assert values[0] == values[1]
    assert torch.equal(*(torch.autograd.grad(value, X)[0] for value in values))
    with pytest.raises(errors.ShapeError, match="TX"):
        klot_features(X[:-1], Y, TX, TY, teacher=teacher)
    with pytest.raises(errors.DtypeError, match="teacher solved in"):
        klot_features(X.float(), Y.float(), TX, TY, teacher=teacher)
    with pytest.raises(errors.ParameterError, match="epsilon_teacher"):
        solve_teacher(TX.float(), TY.float(), 1e-8)


def both_ways(X, Y, TX, TY, **options):
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    value, info = klot(A, T, **options, return_info=True)
    again, same = klot_features(X.detach(), Y.detach(), TX, TY, **options, return_info=True)
    assert again.item() == pytest.approx(value.item(), rel=1e-9)
    for name in ("marginal_error", "marginal_error_teacher", "difference", "gradient_error"):
        assert getattr(same, name) == pytest.approx(getattr(info, name), rel=1e-6, abs=1e-14)
    return A, T, torch.autograd.grad(value, A)[0], info


@pytest.mark.parametrize("max_iter", [1, 2, 7, 40])
def test_marginal_errors_are_those_of_the_plans(max_iter):
    """What is reported was measured one iteration before the end: it is the error of that plan, and a bound on the last
    one's.
    """
    A, T, slope, info = both_ways(*problem(60, 60), max_iter=max_iter)
    for affinity, epsilon, found in ((A, 0.05, info.marginal_error), (T, 0.01, info.marginal_error_teacher)):
        before = sinkhorn(affinity, epsilon, max(max_iter - 1, 1)).marginal_error
        assert found == pytest.approx(before, rel=1e-6, abs=1e-12)
        assert found >= sinkhorn(affinity, epsilon, max_iter).marginal_error - 1e-12
    assert (info.n_iter, info.n_iter_teacher) == (max_iter, max_iter)
    assert info.difference == pytest.approx(0.05 * slope.abs().sum().item(), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("d", "noise"), [(4, 0.7), (32, 0.7), (32, 2.0)])
def test_the_gradient_is_off_by_one_to_five_times_what_is_said(d, noise):
    """At 300 rows and the defaults: by 1.6, 18 and 0.3 percent, of which only the second is warned of."""
    X, Y, TX, TY = (unit(300, d, seed) for seed in range(4))
    Y, TY = normalize(X + noise * Y), normalize(TX + noise * TY)
    A, T, slope, info = both_ways(X, Y, TX, TY)
    exact = torch.autograd.grad(klot(A, T, max_iter=5000, return_info=True)[0], A)[0]
    off = ((slope - exact).abs().sum() / exact.abs().sum()).item()
    assert info.gradient_error <= 1.01 * off <= 1.01 * 5 * info.gradient_error
    assert info.converged == ((d, noise) != (32, 0.7))
    if info.converged:
        klot(A, T)
        return
    assert off > 0.1
    said = r"off by 0\.1\d of ‖P − P\*‖₁ after 100 iterations"
    for call in (lambda: klot(A, T), lambda: klot_features(X, Y, TX, TY)):
        with pytest.warns(errors.ConvergenceWarning, match=said) as caught:
            call()
        assert [one.filename for one in caught] == [__file__]


def test_a_tolerance_and_rounding_count_as_converged():
    X, Y, TX, TY = problem(60, 60)
    _, _, _, info = both_ways(X, Y, TX, TY, max_iter=3, tol=1.0)
    assert (info.converged, info.gradient_error) == (True, 0)
    single = [side.detach().float() for side in (X, Y, TX, TY)]
    value, info = klot_features(*single, max_iter=5000, return_info=True)
    assert info.converged
    assert klot_features(*single, max_iter=5000) == value
    solved = solve_teacher(*single[2:], max_iter=2)
    _, info = klot_features(*single[:2], None, None, teacher=solved, return_info=True)
    assert (info.n_iter_teacher, info.converged) == (2, False)
