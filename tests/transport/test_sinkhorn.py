"""Entropic plans against POT and what is known of them."""

import subprocess
import sys
from functools import cache

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plan_problems import WAYS, clouds, drawn_marginals
from scipy.optimize import linear_sum_assignment

from congruence.errors import DtypeError, NotFiniteError, ParameterError, ShapeError
from congruence.transport import _kernel, entropic, sinkhorn


def log_iterations(A, r, c, max_iter, v=None):
    v = np.zeros(A.shape[1]) if v is None else v
    for _ in range(max_iter):
        u = np.log(r) - np.logaddexp.reduce(A + v, axis=1)
        v = np.log(c) - np.logaddexp.reduce(A + u[:, None], axis=0)
    return u, v


@cache
def pots_plan(n, m, epsilon, uniform):
    """Return the marginals and POT's plan of two clouds."""
    X, Y = clouds(n, m)
    r, c = (np.full(n, 1 / n), np.full(m, 1 / m)) if uniform else drawn_marginals(n, m)
    return r, c, ot.bregman.sinkhorn_log(r, c, -X @ Y.T, epsilon, numItermax=50_000, stopThr=1e-14, warn=False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("n", "m", "epsilon", "uniform"), [(50, 50, 0.05, True), (40, 60, 0.02, False), (70, 25, 0.5, False)]
)
def test_plans_are_pots(way, n, m, epsilon, uniform, small_strips):
    X, Y = clouds(n, m)
    r, c, expected = pots_plan(n, m, epsilon, uniform)
    found = sinkhorn(
        epsilon=epsilon, max_iter=20_000, tolerance=1e-13, marginals=None if uniform else (r, c), **WAYS[way](X, Y)
    )
    assert found.converged
    assert found.marginal_error <= 1e-13
    assert found.n_iter < 20_000
    np.testing.assert_allclose(np.asarray(found.plan()), expected, atol=1e-11 * expected.max())
    rows = np.asarray(found.plan(slice(3, 9)))
    np.testing.assert_allclose(rows, np.asarray(found.plan())[3:9], rtol=1e-12)


def test_pots_scaling_form_where_it_can_run():
    X, Y = clouds(30, 45)
    r, c = drawn_marginals(30, 45)
    expected = ot.sinkhorn(r, c, -X @ Y.T, 0.1, stopThr=1e-14, numItermax=10_000)
    np.testing.assert_allclose(sinkhorn(X @ Y.T, 0.1, 5000, 1e-14, marginals=(r, c)).plan(), expected, rtol=1e-10)


def converged(A, epsilon, r, c):
    """Return the plan of the iteration in logarithms, which is not accelerated."""
    v = None
    for _ in range(100):
        u, v = log_iterations(A / epsilon, r, c, 200, v)
        plan = np.exp(A / epsilon + u[:, None] + v)
        if np.abs(plan.sum(axis=1) - r).max() < 1e-14:
            break
    return plan


@pytest.mark.parametrize(
    ("d", "epsilon"),
    [(8, 0.01), *(pytest.param(*case, marks=pytest.mark.long) for case in ((8, 0.05), (2, 0.02), (64, 0.01)))],
)
@pytest.mark.parametrize(
    "start", ["random", *(pytest.param(name, marks=pytest.mark.long) for name in ("blocks", "copies", "far"))]
)
def test_the_error_that_is_said_is_that_of_the_plan(d, epsilon, start):
    """On problems that converge fast and slowly; at least a third of it, and seldom ten times as much."""
    X, Y = clouds(60, 50, d=d, seed=2)
    if start == "blocks":
        X[:, 0], Y[:, 0] = np.repeat([0, 3], 30), np.repeat([0, 3], [20, 30])
    elif start == "copies":
        X, Y = np.repeat(X[:6], 10, axis=0), np.repeat(Y[:5], 10, axis=0)
    elif start == "far":
        X[0], Y[0] = 5 * X[0], 5 * Y[0]
    A, (r, c) = X @ Y.T, drawn_marginals(60, 50)
    exact = converged(A, epsilon, r, c)
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-5):
        found = sinkhorn(A, epsilon, tolerance=tolerance, marginals=(r, c))
        off = np.abs(found.plan() - exact).sum()
        assert found.converged
        assert off <= 3 * found.error + 1e-7
        assert found.error <= tolerance


def test_acceleration_saves_most_of_the_iterations_of_a_slow_problem():
    X, Y = clouds(100, 100, d=3)
    Y = X + 0.3 * Y
    w = np.full(100, 0.01)
    exact = sinkhorn(X @ Y.T, 0.01, tolerance=1e-9).plan()
    found = sinkhorn(X @ Y.T, 0.01, tolerance=1e-3)
    u, v = log_iterations(X @ Y.T / 0.01, w, w, 3 * found.n_iter)
    plain = np.abs(np.exp(X @ Y.T / 0.01 + u[:, None] + v) - exact).sum()
    assert np.abs(found.plan() - exact).sum() < 3e-3 < plain


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("way", ["dense", "strips", "half held"])
def test_affinities_thousands_of_epsilon_apart(dtype, way):
    """exp(A/ε) alone under- and overflows, columns that no row prefers vanish in the first half step, and potentials
    have a long way to go: the plan is as near as that of the logarithmic form."""
    rng = np.random.default_rng(0)
    X = np.abs(rng.standard_normal((40, 3))).astype(dtype)
    Y = np.concatenate([X[:20] * 2, X[:20] - 3]).astype(dtype)
    epsilon = 0.02 if dtype == np.float32 else 0.002
    found = sinkhorn(epsilon=epsilon, max_iter=300, **WAYS[way](X, Y))
    A, w = X.astype(float) @ Y.astype(float).T / epsilon, np.full(40, 1 / 40)
    assert np.ptp(A) > 800
    u, v = log_iterations(A, w, w, 300)
    plain = np.abs(np.exp(A + u[:, None] + v).sum(axis=1) - w).sum()
    assert found.marginal_error <= 1.1 * plain + 1e-3
    P = found.plan()
    assert np.abs(P.sum(axis=0) - w).sum() + np.abs(P.sum(axis=1) - w).sum() < 1.1 * found.marginal_error + 1e-6
    np.testing.assert_allclose(P, np.exp(A + found.u[:, None] + found.v), atol=3e-3 / 40)


def test_scalings_are_absorbed_as_often_as_it_takes(monkeypatch):
    X, Y = clouds(50, 40)
    whole = sinkhorn(X @ Y.T, 0.02, tolerance=1e-9)
    monkeypatch.setattr(entropic, "GROWTH", 1.0)
    np.testing.assert_allclose(sinkhorn(X @ Y.T, 0.02, tolerance=1e-9).plan(), whole.plan(), atol=1e-9)


def test_float32_is_float64_to_its_precision():
    X, Y = clouds(200, 150, d=16)
    exact = sinkhorn(X @ Y.T, 0.01)
    for pair in (X, Y), (torch.tensor(X), torch.tensor(Y)):
        A, B = (side.astype(np.float32) if isinstance(side, np.ndarray) else side.float() for side in pair)
        for found in sinkhorn(A @ B.T, 0.01), sinkhorn(X=A, Y=B, epsilon=0.01, memory=0):
            P = np.asarray(found.plan())
            assert P.dtype == np.float32
            np.testing.assert_allclose(P, exact.plan(), atol=1e-4 * exact.plan().max())


def held(way, X, Y, epsilon, **options):
    """Solve, and say of each base what share of the kernel a sparse matrix holds."""
    shares = []

    class Watched(_kernel.Kernel):
        def rebase(self, *arguments, **options):
            super().rebase(*arguments, **options)
            stop = 0 if self._sparse is None else self._sparse[0].stop
            shares.append(stop / self.affinity.shape[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropic, "Kernel", Watched)
        found = sinkhorn(epsilon=epsilon, **{**WAYS[way](X, Y), **options})
    return found, shares


@pytest.mark.parametrize("way", ["strips", "strips, torch"])
@pytest.mark.parametrize("reach", [0.3, 8.0])
def test_what_a_sparse_kernel_leaves_out_does_not_count(way, reach, small_strips, monkeypatch):
    """Nor when scalings lead out of its reach."""
    X, Y = clouds(120, 100, d=8)
    Y = X[:100] + 0.3 * Y
    r, c = drawn_marginals(120, 100)
    monkeypatch.setattr(_kernel, "GROWTH", reach)
    exact = sinkhorn(X @ Y.T, 0.005, marginals=(r, c), tolerance=1e-6, max_iter=20_000)
    found, shares = held(way, X, Y, 0.005, marginals=(r, c), memory=60_000, tolerance=1e-6, max_iter=20_000)
    assert 0 < shares[0] <= 1
    assert len(shares) > 1 or reach > 1
    assert exact.converged
    np.testing.assert_allclose(np.asarray(found.plan()), exact.plan(), atol=1e-7)


def test_rows_with_many_entries_that_count_are_held_as_they_are():
    assert {*held("all held", *clouds(50, 50), 0.5)[1]} == {0}
    assert {*held("strips", *clouds(50, 50), 0.001)[1]} == {0}  # nothing may be held


@given(st.integers(1, 25), st.integers(1, 25), st.floats(0.02, 5), st.integers(0, 10**6))
def test_plans_are_known_by_marginals_and_form(n, m, epsilon, seed):
    A = np.random.default_rng(seed).uniform(-1, 1, (n, m))
    r, c = drawn_marginals(n, m, seed)
    found = sinkhorn(A, epsilon, 20_000, 1e-10, marginals=(r, c))
    P = found.plan()
    assert found.converged
    assert np.abs(P.sum(axis=1) - r).sum() + np.abs(P.sum(axis=0) - c).sum() == pytest.approx(
        found.marginal_error, abs=1e-14
    )
    np.testing.assert_allclose(np.log(P), found.u[:, None] + A / epsilon + found.v, atol=1e-9)


def test_masses_differ_by_a_factor():
    A = np.random.default_rng(0).random((20, 30))
    unit, whole = (sinkhorn(A, 0.1, mass=mass) for mass in ("unit", "bistochastic"))
    np.testing.assert_allclose(whole.plan(), 20 * unit.plan(), rtol=1e-12)
    np.testing.assert_allclose(
        sinkhorn(A[:, :20], 0.1, 5000, 1e-12, mass="bistochastic").plan().sum(axis=1), 1, rtol=1e-10
    )
    assert whole.marginal_error == unit.marginal_error


@pytest.mark.long
def test_the_limits_of_epsilon():
    A = np.random.default_rng(0).random((6, 6))
    np.testing.assert_allclose(sinkhorn(A, 1e6).plan(), 1 / 36, rtol=1e-5)
    rows, columns = linear_sum_assignment(-A)
    P = sinkhorn(A, 5e-4, 20_000, 1e-8, mass="bistochastic").plan()
    np.testing.assert_allclose(P[rows, columns], 1, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    X, Y = (torch.tensor(side).to(dtype) for side in clouds(30, 20))
    found = sinkhorn(X=X, Y=Y, epsilon=0.05)
    assert found.plan().dtype == torch.float32
    np.testing.assert_allclose(found.plan(), sinkhorn(X=X.double(), Y=Y.double(), epsilon=0.05).plan(), atol=1e-6)


def test_not_converged_is_said():
    X, Y = clouds(50, 50)
    found = sinkhorn(X @ Y.T, 0.005, max_iter=3, tolerance=1e-9)
    assert not found.converged
    assert found.marginal_error > 1e-3
    assert sinkhorn(X @ Y.T, 0.5).converged


def test_callers_arrays_stay_as_they_are():
    X, Y = clouds(20, 20)
    A = X @ Y.T
    kept = A.copy(), X.copy(), Y.copy()
    sinkhorn(A, 0.05)
    sinkhorn(X=X, Y=Y, epsilon=0.05)
    for now, before in zip((A, X, Y), kept, strict=True):
        np.testing.assert_array_equal(now, before)


def test_no_gradient_goes_through_a_plan():
    A = torch.rand(5, 5, requires_grad=True)
    assert not sinkhorn(A, 0.1).plan().requires_grad


def test_numpy_needs_no_torch():
    code = (
        "import sys, numpy as np; sys.modules['torch'] = None; from congruence.transport import sinkhorn; "
        "print(sinkhorn(np.eye(3), 1.0).plan().sum(), sinkhorn(X=np.eye(3), Y=np.eye(3)).converged)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(out[0]) == pytest.approx(1)
    assert out[1] == "True"


E3 = np.eye(3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"affinity": np.where(E3 == 1, np.nan, 0)}, NotFiniteError, "Got NaN or inf"),
        ({"affinity": torch.full((3, 3), torch.inf)}, NotFiniteError, "Got NaN or inf"),
        ({"affinity": np.ones(3)}, ShapeError, "2 axes"),
        ({"affinity": np.empty((0, 3))}, ShapeError, "0 rows"),
        ({"affinity": np.empty((3, 0))}, ShapeError, "at least one dimension"),
        ({"affinity": torch.empty((0, 3))}, ShapeError, "0 rows"),
        ({"affinity": [["a"]]}, DtypeError, "text"),
        ({"affinity": E3 * 1j}, DtypeError, "[Cc]omplex"),
        ({}, ParameterError, "Got nothing instead"),
        ({"X": E3}, ParameterError, "Got X instead"),
        ({"affinity": E3, "X": E3, "Y": E3}, ParameterError, "Got affinity and X and Y"),
        ({"affinity": E3, "Y": E3}, ParameterError, "Got affinity and Y"),
        ({"X": E3, "Y": E3[:, :2]}, ShapeError, "Got widths 3 of X and 2 of Y"),
        ({"X": E3, "Y": torch.eye(3)}, DtypeError, "as a tensor"),
        ({"affinity": E3, "epsilon": 0}, ParameterError, "Got epsilon=0; expected a number > 0"),
        ({"affinity": E3, "epsilon": -0.1}, ParameterError, "Got epsilon=-0.1"),
        ({"affinity": E3, "epsilon": np.nan}, ParameterError, "Got epsilon=nan"),
        (
            {"affinity": E3.astype(np.float32), "epsilon": 1e-5},
            ParameterError,
            r"epsilon=1e-05 .*float32.*at least 0.0001",
        ),
        (
            {"X": 100 * torch.eye(3), "Y": torch.eye(3), "epsilon": 1e-3},
            ParameterError,
            "up to 100 in float32.*float64",
        ),
        ({"affinity": E3, "epsilon": 1e-15}, ParameterError, "in float64.*Scale the affinities down"),
        ({"affinity": E3, "max_iter": 0}, ParameterError, "Got max_iter=0"),
        ({"affinity": E3, "max_iter": 2.5}, ParameterError, "Got max_iter=2.5; expected an integer"),
        ({"affinity": E3, "tolerance": 0}, ParameterError, "Got tolerance=0"),
        ({"affinity": E3, "memory": -1}, ParameterError, "Got memory=-1"),
        ({"affinity": E3, "mass": "three"}, ParameterError, "'unit', 'bistochastic'"),
        ({"affinity": E3, "marginals": ([0, 0.5, 0.5], [1 / 3] * 3)}, ParameterError, "row marginal of 0 at 0"),
        ({"affinity": E3, "marginals": ([1 / 3] * 3, [-1, 1, 1])}, ParameterError, "column marginal of -1 at 0"),
        ({"affinity": torch.eye(3), "marginals": ([1e-12, 0.5, 0.5], [1 / 3] * 3)}, ParameterError, "at least 1e-10"),
        ({"affinity": E3, "marginals": ([1, 1, 1], [1 / 3] * 3)}, ParameterError, "add up to 3; expected 1"),
        ({"affinity": E3, "marginals": ([0.5, 0.5], [1 / 3] * 3)}, ShapeError, r"row marginal of shape \(2,\)"),
        ({"affinity": E3, "marginals": ([np.nan, 0.5, 0.5], [1 / 3] * 3)}, NotFiniteError, "row marginal"),
        ({"affinity": E3, "marginals": [1 / 3] * 3}, ParameterError, "Got 3 marginals; expected those"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        sinkhorn(**options)


def test_a_plan_of_every_other_row_is_refused():
    with pytest.raises(ParameterError, match="step 2"):
        sinkhorn(E3, 0.1).plan(slice(0, 3, 2))


def test_one_row_one_column():
    assert sinkhorn([[0.3]], 0.1).plan() == pytest.approx(1)
    np.testing.assert_allclose(sinkhorn([[0.3, 0.9, -0.2]], 0.1).plan(), [[1 / 3] * 3])
