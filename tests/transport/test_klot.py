"""KLOT and its explicit gradient against autograd through the solver, finite differences, and POT's plans."""

import math
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import ot
import pytest
import torch
from plan_problems import clouds
from torch.nn.functional import normalize

from congruence import errors
from congruence.datasets import load_sample
from congruence.maps import CCAMap
from congruence.transport import _kernel, klot, klot_features, sinkhorn, solve_teacher
from congruence.transport.divergence import warn_unconverged

EXACT = {"max_iter": 20_000, "tolerance": 1e-11}


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
    for memory in (0, 20 * m * 8, 2 * n * m * 8, 2**30):  # nothing, half a kernel, a kernel, and affinities too
        value = klot_features(X, Y, TX, TY, epsilon, epsilon_teacher, **EXACT, memory=memory)
        dX, dY = torch.autograd.grad(value, (X, Y))
        torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
        torch.testing.assert_close(dX, slope @ Y.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(dY, slope.T @ X.detach(), rtol=0, atol=1e-10)


def test_the_defaults_against_autograd():
    X, Y, TX, TY = problem(40, 40)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    expected = unrolled(A, T, 0.05, 0.01, 1000, 5000)
    (slope,) = torch.autograd.grad(expected, A)
    value = klot(A, T)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-3)
    assert (A.grad - slope).abs().sum() < 1e-3 * slope.abs().sum()


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
    exact = {"max_iter": 3000, "tolerance": 1e-11}
    A = (X @ Y.T).detach().requires_grad_()
    for mass in ("unit", "bistochastic"):  # a second backward pass computes the gradient again: equal up to rounding
        assert torch.autograd.gradcheck(
            lambda A, mass=mass: klot(A, T, 0.8, 0.4, mass=mass, **exact), A, atol=1e-6, nondet_tol=1e-12
        )
    for memory in (0, 2**30):
        assert torch.autograd.gradcheck(
            lambda X, Y, memory=memory: klot_features(X, Y, TX, TY, 0.8, 0.4, **exact, memory=memory), (X, Y), atol=1e-6
        )


def test_the_gradient_goes_on_into_what_made_the_affinities():
    X, Y, TX, TY = problem(30, 30)
    W = torch.eye(6, dtype=torch.float64, requires_grad=True)
    options = {**EXACT, "epsilon_teacher": 0.05}
    scaled = 3 * klot(normalize(X @ W) @ Y.T, TX @ TY.T, **options)
    (dense,) = torch.autograd.grad(scaled, W)
    (streamed,) = torch.autograd.grad(3 * klot_features(normalize(X @ W), Y, TX, TY, **options, memory=0), W)
    torch.testing.assert_close(streamed, dense, rtol=1e-8, atol=1e-10)
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
    value = klot(A, T, 0.05, 0.05, **EXACT)
    shifts = [0.7, torch.randn(20, 1, dtype=torch.float64), torch.randn(15, dtype=torch.float64)]
    for shift in shifts:
        assert klot(A + shift, T, 0.05, 0.05, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
        assert klot(A, T + shift, 0.05, 0.05, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    assert klot(10 * A, T, 0.5, 0.05, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    assert klot(A.T, T.T, 0.05, 0.05, **EXACT).item() == pytest.approx(value.item(), rel=1e-9)
    with pytest.warns(errors.ConvergenceWarning, match="off by up to"):  # equal plans have no gradient to compare with
        assert klot(T, T, 0.01).item() == pytest.approx(0, abs=1e-9)


def test_masses():
    X, Y, TX, TY = problem(25, 25)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    values = {mass: klot(A, T, 0.05, 0.04, **EXACT, mass=mass) for mass in ("unit", "bistochastic")}
    slopes = {mass: torch.autograd.grad(value, A)[0] for mass, value in values.items()}
    torch.testing.assert_close(values["bistochastic"], 25 * values["unit"])
    torch.testing.assert_close(slopes["bistochastic"], 25 * slopes["unit"])
    P, Q = (sinkhorn(side, e, **EXACT, mass="bistochastic").plan() for side, e in ((A, 0.05), (T, 0.04)))
    torch.testing.assert_close(values["bistochastic"].detach(), (Q * (Q / P).log()).sum(), rtol=1e-9, atol=0)
    torch.testing.assert_close(slopes["bistochastic"], (P - Q) / 0.05, rtol=0, atol=1e-9)
    value = klot_features(X, Y, TX, TY, 0.05, 0.04, **EXACT, mass="bistochastic", memory=0)
    torch.testing.assert_close(value, values["bistochastic"], rtol=1e-9, atol=0)


def test_strips_are_the_matrix_in_either_precision(small_strips):
    for dtype, rel, tolerance in ((torch.float32, 3e-5, 1e-4), (torch.float64, 1e-9, 1e-11)):
        # Eight strips of 16 rows.
        X, Y, TX, TY = (side.detach().to(dtype).requires_grad_() for side in problem(120, 80, d=32))
        A = X @ Y.T
        dense = klot(A, (TX @ TY.T).detach(), epsilon_teacher=0.05, tolerance=tolerance)
        dX, dY = torch.autograd.grad(dense, (X, Y))
        for memory in (0, 40 * 80 * 8):
            value = klot_features(X, Y, TX, TY, epsilon_teacher=0.05, tolerance=tolerance, memory=memory)
            found = torch.autograd.grad(value, (X, Y))
            assert value.dtype == dtype
            assert value.item() == pytest.approx(dense.item(), rel=rel)
            for side, expected in zip(found, (dX, dY), strict=True):
                assert side.dtype == dtype
                assert (side - expected).norm() < 3 * max(tolerance, rel / 10) * expected.norm()


def test_float32_against_float64():
    X, Y, TX, TY = problem(300, 300, d=32)
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    exact, _ = klot(A, T, epsilon_teacher=0.05, tolerance=1e-9, return_info=True)
    (slope,) = torch.autograd.grad(exact, A)
    single = A.detach().float().requires_grad_()
    value, _ = klot(single, T.float(), epsilon_teacher=0.05, tolerance=1e-4, return_info=True)
    (found,) = torch.autograd.grad(value, single)
    assert (value.dtype, found.dtype) == (torch.float32, torch.float32)
    assert value.item() == pytest.approx(exact.item(), rel=1e-5)
    assert (found - slope).norm() < 1e-4 * sinkhorn(A, 0.05).plan().norm() / 0.05  # the plans nearly cancel in it
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
        ((E3, E3), {"tolerance": -1}, errors.ParameterError, "Got tolerance=-1"),
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


def test_a_teacher_that_was_solved_before():
    X, Y, TX, TY = (unit(n, d, seed) for n, d, seed in ((30, 6, 0), (40, 6, 1), (30, 5, 2), (40, 5, 3)))
    teacher = solve_teacher(TX, TY, **EXACT)
    X.requires_grad_()
    values = [klot_features(X, Y, TX, TY, **EXACT, teacher=known) for known in (teacher, None)]
    assert values[0].item() == pytest.approx(values[1].item(), rel=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(value, X)[0] for value in values), rtol=1e-8, atol=1e-10)
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
    assert again.item() == pytest.approx(value.item(), rel=1e-4, abs=1e-6)
    assert same.difference == pytest.approx(info.difference, rel=1e-3)
    return A, T, torch.autograd.grad(value, A)[0], info


@pytest.mark.parametrize("max_iter", [1, 2, 7, 1000])
def test_what_is_said_of_the_plans_is_true(max_iter):
    A, T, slope, info = both_ways(*problem(60, 60), max_iter=max_iter)
    for affinity, epsilon, side in ((A, 0.05, info.student), (T, 0.01, info.teacher)):
        P = torch.exp(affinity / epsilon + side.u[:, None] + side.v)
        off = (P.sum(1) - 1 / 60).abs().sum() + (P.sum(0) - 1 / 60).abs().sum()
        assert off <= side.marginal_error + 1e-12
        assert side.marginal_error <= side.error
        assert side.n_iter <= max_iter
    assert info.difference == pytest.approx(0.05 * slope.abs().sum().item(), rel=1e-9)
    assert info.converged == (max_iter == 1000)
    if max_iter < 1000:
        for call in (lambda: klot(A, T, max_iter=max_iter), lambda: klot_features(*problem(60, 60), max_iter=max_iter)):
            with pytest.warns(errors.ConvergenceWarning, match=rf"off by up to .* after {max_iter} iterations") as told:
                call()
            assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize(("d", "noise"), [(4, 0.7), (16, 0.7), (32, 0.7), (64, 2.0), (256, 1.0)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_the_error_of_the_gradient_is_at_most_three_times_what_is_promised(d, noise, seed):
    X, Y, TX, TY = (unit(80, d, 4 * seed + number) for number in range(4))
    Y, TY = normalize(X + noise * Y), normalize(TX + noise * TY)
    A, T = X @ Y.T, TX @ TY.T
    solved = [sinkhorn(side, epsilon, 10_000, 1e-6) for side, epsilon in ((A, 0.05), (T, 0.01))]
    assert max(side.marginal_error for side in solved) < 1e-5
    exact = (solved[0].plan() - solved[1].plan()) / 0.05
    for dtype, tolerance in ((torch.float64, 1e-2), (torch.float64, 1e-3), (torch.float32, 1e-3)):
        given = A.clone().to(dtype).requires_grad_()
        value, info = klot(given, T.to(dtype), tolerance=tolerance, return_info=True)
        (slope,) = torch.autograd.grad(value, given)
        off = ((slope - exact).abs().sum() / exact.abs().sum()).item()
        assert off <= 3 * info.gradient_error
        assert info.converged or info.difference < 0.2


@pytest.mark.parametrize("noise", [0.05, pytest.param(0.2, marks=pytest.mark.long)])
def test_promises_on_real_vectors(noise):
    """A CCA teacher of images, heads near it, and the raw images as a student; with a kept teacher too."""
    sample = load_sample("emoji")
    X, Y = (side["image"].vectors.astype(np.float64) for side in (sample.source, sample.target))
    teacher = CCAMap(ridge=1.0).fit(X[:100], Y[:100])
    TX, TY = (torch.tensor(side[100:400]) for side in (teacher.transform(X), teacher.transform_target(Y)))
    TX, TY = normalize(TX), normalize(TY)
    near = [normalize(side + noise * unit(*side.shape, seed)) for seed, side in enumerate((TX, TY))]
    raw = [normalize(torch.tensor(side[100:400] - side[100:400].mean(0))) for side in (X, Y)]
    for A, B in (near, raw):
        student = (A @ B.T).requires_grad_()
        (exact,) = torch.autograd.grad(klot(student, TX @ TY.T, max_iter=20_000, tolerance=1e-6), student)
        value, info = klot(student, TX @ TY.T, return_info=True)
        (slope,) = torch.autograd.grad(value, student)
        assert info.converged
        assert (slope - exact).abs().sum() <= 3 * info.gradient_error * exact.abs().sum()
        kept = klot_features(A, B, None, None, teacher=solve_teacher(TX, TY), return_info=True)[1]
        assert kept.converged
        assert kept.difference == pytest.approx(info.difference, rel=2e-3)


def test_a_student_near_its_teacher_is_where_the_teacher_starts():
    X, Y = clouds(120, 120, d=3)
    T = torch.tensor(X @ (X + 0.3 * Y).T)
    near, far = (klot(A, T, return_info=True)[1].teacher.n_iter for A in (T + 0.01 * unit(120, 120, 5), 0 * T))
    assert near < far


def test_a_kept_teacher_is_accurate_enough_for_students_that_come_near_it():
    TX, TY = unit(60, 8, 0), unit(60, 8, 1)
    teacher = solve_teacher(TX, TY, 0.05)
    X, Y = (normalize(side + 0.05 * unit(60, 8, seed)) for seed, side in ((2, TX), (3, TY)))
    info = klot_features(X, Y, None, None, teacher=teacher, return_info=True)[1]
    assert 0.02 < info.difference < 0.3
    assert info.converged


@pytest.mark.long
def test_plans_that_nearly_agree_are_solved_until_their_difference_is_known():
    TX, TY = unit(60, 8, 0), unit(60, 8, 1)
    T = TX @ TY.T
    A = (T + 1e-3 * unit(60, 60, 2) * 60**0.5).requires_grad_()
    value, info = klot(A, T, 0.05, 0.05, return_info=True)
    (slope,) = torch.autograd.grad(value, A)
    exact = torch.exp(log_plan(A.detach(), 0.05, 5000)) - torch.exp(log_plan(T, 0.05, 5000))
    assert info.difference < 0.1
    assert info.converged
    assert (0.05 * slope - exact).abs().sum() < 3e-3 * exact.abs().sum()


def test_a_start_saves_iterations_and_changes_nothing_else():
    X, Y, TX, TY = problem(80, 70)
    teacher = solve_teacher(TX, TY)
    first, info = klot_features(X, Y, None, None, 0.01, teacher=teacher, return_info=True)
    again, warm = klot_features(X, Y, None, None, 0.01, teacher=teacher, start=info.student.v, return_info=True)
    assert warm.student.n_iter <= 4 < info.student.n_iter
    assert again.item() == pytest.approx(first.item(), rel=1e-3)
    with pytest.raises(errors.ShapeError, match="start"):
        klot_features(X, Y, None, None, teacher=teacher, start=info.student.u)
    with pytest.raises(errors.NotFiniteError, match="start"):
        klot_features(X, Y, None, None, teacher=teacher, start=info.student.v * torch.nan)
    wild = klot_features(X, Y, None, None, 0.01, teacher=teacher, start=50 * unit(1, 70, 9)[0] * 70**0.5)
    assert wild.item() == pytest.approx(first.item(), rel=1e-3)


def test_what_an_array_looks_like_in_memory_changes_nothing():
    A, T = (unit(40, 60, seed) for seed in range(2))
    expected = klot(A[::2, ::3].clone(), T[::2, ::3].clone())
    assert klot(A[::2, ::3], T[::2, ::3]) == expected
    assert klot(A[::2, ::3].T, T[::2, ::3].T).item() == pytest.approx(expected.item(), rel=1e-3)
    B = A.clone().requires_grad_()
    klot(B[::2, ::3], T[::2, ::3]).backward()
    C = A[::2, ::3].clone().requires_grad_()
    klot(C, T[::2, ::3]).backward()
    torch.testing.assert_close(B.grad[::2, ::3], C.grad)
    assert (B.grad != 0).sum() == C.numel()
    with torch.inference_mode():
        assert klot(A[::2, ::3], T[::2, ::3]) == expected
    with torch.no_grad():
        assert not klot(B, T).requires_grad


@pytest.mark.parametrize(("off", "said"), [(0.0014, "0.002"), (0.031, "0.04"), (0.2, "0.2"), (1.0, "1")])
def test_the_warning_says_the_error_with_one_digit(off, said):
    with pytest.warns(errors.ConvergenceWarning, match=rf"off by up to {said} of its"):
        warn_unconverged(off, "here", "", 1)


HOSTILE = {
    "constant": lambda A: torch.zeros_like(A),
    "constant rows": lambda A: A[:, :1].expand(A.shape),
    "duplicates": lambda A: A[torch.arange(len(A)) // 3],
    "one row far away": lambda A: A - 3.0 * (torch.arange(len(A)) == 2)[:, None] * (torch.arange(A.shape[1]) != 4),
    "one row": lambda A: A[:1],
    "one column": lambda A: A[:, :1],
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("side", [0, 1])
def test_degenerate_affinities_have_the_plans_of_the_log_domain(kind, side):
    X, Y, TX, TY = (z.detach() for z in problem(30, 20))
    given = [X @ Y.T, TX @ TY.T]
    given[side] = HOSTILE[kind](given[side])
    n, m = given[side].shape
    A, T = (Z[:n, :m].contiguous() for Z in given)
    A.requires_grad_()
    P, Q = (torch.from_numpy(pot_plan(Z, 0.05)) for Z in (A, T))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ConvergenceWarning)  # where the plans agree
        value = klot(A, T, 0.05, 0.05, tolerance=1e-9)
    value.backward()
    assert value.item() == pytest.approx((Q * (Q / P).log()).sum().item(), rel=1e-6, abs=1e-9)
    torch.testing.assert_close(A.grad, (P - Q) / 0.05, rtol=1e-6, atol=1e-7)


def peak(run):
    """Return the largest growth of resident memory during a call, in bytes."""
    counters = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")

    def read(name):
        return 1024 * int(re.search(rf"{name}:\s*(\d+)", counters.read_text())[1])

    before = read("VmRSS")
    run()
    return read("VmHWM") - before


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are counted by Linux")
def test_memory(monkeypatch):
    n = 3000
    X, Y, TX, TY = (unit(n, 16, seed).float().requires_grad_(seed < 2) for seed in range(4))
    A, T = (X @ Y.T).detach().requires_grad_(), TX @ TY.T
    klot(A[:200, :200], T[:200, :200]).backward()
    A.grad = None
    assert peak(lambda: klot(A, T).backward()) < 1.2 * 4 * n * n
    # From vectors: both sides' affinities and one kernel where they fit.
    assert peak(lambda: klot_features(X, Y, TX, TY, return_info=True)[0].backward()) < 3.3 * 4 * n * n
    monkeypatch.setattr(_kernel, "COMPUTED_BYTES", 2**20)
    assert peak(lambda: klot_features(X, Y, TX, TY, max_iter=3, memory=0, return_info=True)[0].backward()) < n * n
