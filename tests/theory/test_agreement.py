"""Agreement of kernels: the minimax line against linear programming, streams against whole arrays."""

import json

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.stats import linregress

from congruence.synthetic import dual_problem
from congruence.theory import agreement, gram_agreement, kernel_agreement
from congruence.theory.agreement import Envelope


def models(problem):
    return problem.F, problem.G, problem.F_target, problem.G_target


def minimax(x, y):
    """The smallest e with |y − a x − b| ≤ e for all points, by linear programming."""
    one = np.ones_like(x)
    rows = np.block([[np.c_[-x, -one, -one]], [np.c_[x, one, -one]]])
    found = linprog([0, 0, 1], A_ub=rows, b_ub=np.r_[-y, y], bounds=[(None, None), (None, None), (0, None)])
    assert found.success
    return found.fun


def envelope_of(x, y, cuts=()):
    points = Envelope()
    for part in np.split(np.arange(len(x)), cuts):
        points.add(x[part], y[part])
    return points


def half_width(points):
    low, high = points.span(points.best_slope())
    return (high - low) / 2


CLOUDS = {
    "gaussian": lambda rng, n: rng.standard_normal((2, n)),
    "line with noise": lambda rng, n: (x := rng.standard_normal(n), 2 * x + 1 + 1e-3 * rng.standard_normal(n)),
    "circle": lambda rng, n: (np.cos(t := rng.uniform(0, 7, n)), np.sin(t)),
    "parabola": lambda rng, n: (x := rng.uniform(-1, 1, n), x**2),
    "lattice": lambda rng, n: rng.integers(0, 4, (2, n)).astype(float),
    "two points": lambda rng, n: (k := rng.integers(0, 2, n).astype(float), -k),
    "flat and steep": lambda rng, n: (1e-3 * rng.standard_normal(n), rng.standard_normal(n)),
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("n", [2, 3, 7, 200])
def test_the_line_is_the_minimax_line(cloud, n):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y = map(np.asarray, CLOUDS[cloud](rng, n))
        expected = minimax(x, y) if np.ptp(x) else np.ptp(y) / 2
        whole, pieces = envelope_of(x, y), envelope_of(x, y, sorted(rng.integers(1, n, min(n - 1, 5))))
        assert half_width(whole) == pytest.approx(expected, abs=1e-7)  # linprog's tolerance
        assert half_width(pieces) == pytest.approx(half_width(whole), abs=1e-13)


def test_the_corners_are_those_of_qhull():
    rng = np.random.default_rng(0)
    for kind in ("gaussian", "circle", "parabola"):
        x, y = map(np.asarray, CLOUDS[kind](rng, 30_000))
        corners = ConvexHull(np.c_[x, y]).vertices
        pieces, whole = envelope_of(x, y, [100, 3000]), envelope_of(x, y)
        for slope in rng.standard_normal(50):
            residual = y[corners] - slope * x[corners]
            for ours in (pieces, whole):
                assert ours.span(slope) == pytest.approx((residual.min(), residual.max()), abs=1e-12)


@pytest.mark.parametrize("relation", ["raw", "constant", "affine"])
def test_against_the_whole_kernels(relation):
    p = dual_problem(40, 30, 6, 9, noise=0.4, random_state=1)
    k, k_target = (p.F @ p.G.T).ravel(), (p.F_target @ p.G_target.T).ravel()
    found = kernel_agreement(*models(p), relation)
    assert found.pairs == 1200
    fit = linregress(k_target, k)
    assert found.correlation == pytest.approx(fit.rvalue)
    slope, intercept, epsilon = {
        "raw": (1.0, 0.0, np.abs(k - k_target).max()),
        "constant": (1.0, (k - k_target).mean(), np.ptp(k - k_target) / 2),
        "affine": (fit.slope, fit.intercept, minimax(k_target, k)),
    }[relation]
    assert (found.least_squares.slope, found.least_squares.intercept) == pytest.approx((slope, intercept))
    assert found.epsilon == pytest.approx(epsilon, abs=1e-7)
    at_minimax = np.abs(k - found.minimax.slope * k_target - found.minimax.intercept)
    assert at_minimax.max() == pytest.approx(found.epsilon, abs=1e-12)
    residual = np.abs(k - slope * k_target - intercept)
    assert found.rmse == pytest.approx(np.sqrt((residual**2).mean()))
    for level, value in found.quantiles.items():
        assert value == pytest.approx(np.quantile(residual, level, method="inverted_cdf"))
    assert found.resolution == 0
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["minimax"].keys() == {"slope", "intercept"}
    assert plain["quantiles"].keys() == {"0.5", "0.9", "0.99"}


def test_each_relation_is_wider_than_the_one_before():
    p = dual_problem(50, 50, 5, noise=0.3, shear=0.3, random_state=2)
    raw, constant, affine = (kernel_agreement(*models(p), r).epsilon for r in ("raw", "constant", "affine"))
    assert raw > constant > affine


def test_a_hidden_line_is_found():
    # Two more dimensions turn a kernel K into a K + b on the sphere: f̃ = (√a f, √b, rest), g̃ = (√a g, √b, rest).
    p = dual_problem(30, 40, 5, random_state=3)
    a, b, rest = 0.5, 0.3, np.sqrt(0.2)
    F = np.c_[np.sqrt(a) * p.F, np.full(30, np.sqrt(b)), np.full(30, rest), np.zeros(30)]
    G = np.c_[np.sqrt(a) * p.G, np.full(40, np.sqrt(b)), np.zeros(40), np.full(40, rest)]
    found = kernel_agreement(p.F, p.G, F, G, "affine")
    assert found.epsilon < 1e-12
    assert (found.minimax.slope, found.minimax.intercept) == pytest.approx((1 / a, -b / a))
    assert (found.least_squares.slope, found.least_squares.intercept) == pytest.approx((1 / a, -b / a))
    assert found.correlation == pytest.approx(1)
    assert kernel_agreement(p.F, p.G, F, G).epsilon > 0.3


@pytest.mark.parametrize("relation", ["raw", "constant", "affine"])
def test_tiles_and_histogram_change_nothing(relation, monkeypatch):
    p = dual_problem(100, 80, 4, 6, noise=0.5, random_state=4)
    whole, gram = kernel_agreement(*models(p), relation), gram_agreement(p.F, p.F_target, relation)
    monkeypatch.setattr(agreement, "_TILE", 17)
    monkeypatch.setattr(agreement, "_EXACT_PAIRS", 0)
    for before, after in (
        (whole, kernel_agreement(*models(p), relation)),
        (gram, gram_agreement(p.F, p.F_target, relation)),
    ):
        for name in ("epsilon", "rmse", "correlation"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-13)
        assert 0 < after.resolution < 1e-4
        for level, value in before.quantiles.items():
            assert -1e-13 <= after.quantiles[level] - value <= after.resolution + 1e-13


def test_gram_is_over_pairs_of_different_items():
    p = dual_problem(20, 5, 4, 6, noise=0.4, random_state=5)
    upper = np.triu_indices(20, 1)
    k, k_target = (p.F @ p.F.T)[upper], (p.F_target @ p.F_target.T)[upper]
    found = gram_agreement(p.F, p.F_target, "affine")
    assert found.pairs == 190
    assert found.epsilon == pytest.approx(minimax(k_target, k), abs=1e-7)
    assert found.least_squares.slope == pytest.approx(np.polyfit(k_target, k, 1)[0])


@pytest.mark.parametrize("relation", ["raw", "constant", "affine"])
@pytest.mark.parametrize(("d", "d_target"), [(5, 5), (5, 8)])
def test_a_rotation_leaves_no_disagreement(relation, d, d_target):
    p = dual_problem(40, 50, d, d_target, random_state=6)
    for found in (kernel_agreement(*models(p), relation), gram_agreement(p.F, p.F_target, relation)):
        assert found.epsilon < 1e-14
        assert max(found.quantiles.values()) < 1e-12
        assert (found.minimax.slope, found.minimax.intercept) == pytest.approx((1, 0), abs=1e-9)


def test_constant_kernels_have_no_slope():
    X = np.tile([0.6, 0.8], (6, 1))
    Y = dual_problem(6, 6, 2, random_state=7).F
    found = kernel_agreement(Y, Y, X, X, "affine")
    assert (found.minimax.slope, found.least_squares.slope, found.correlation) == (0, 0, None)
    assert found.epsilon == pytest.approx(np.ptp(Y @ Y.T) / 2)
    same = kernel_agreement(X, X, X, X, "constant")
    assert (same.epsilon, same.rmse, same.quantiles[0.5]) == (0, 0, 0)
    two = gram_agreement(X[:2], Y[:2], "affine")  # one pair only
    assert (two.pairs, two.epsilon) == (1, 0)


def test_half_precision_and_the_callers_arrays():
    p = dual_problem(20, 20, 8, random_state=10)
    half = [Z.astype(np.float16) for Z in models(p)]
    kept = [Z.copy() for Z in half]
    assert 0 < kernel_agreement(*half).epsilon < 2e-3
    for before, after in zip(kept, half, strict=True):
        np.testing.assert_array_equal(before, after)
