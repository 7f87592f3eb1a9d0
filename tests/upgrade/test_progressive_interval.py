"""Intervals from small random samples: exact where that is known, and kept by skewed populations."""

import numpy as np
import pytest
from scipy.stats import binomtest

from congruence.upgrade.progressive.meter import rest_interval

MANY = 10**9


@pytest.mark.parametrize(("m", "weighted"), [(5, False), (12, True), (40, False), (40, True)])
def test_the_ends_are_quantiles_of_the_mean_with_exponential_weights(m, weighted):
    """The saddlepoint approximation against 100,000 draws."""
    rng = np.random.default_rng(m)
    x, w = rng.beta(8, 2, m), rng.lognormal(0, 1, m) if weighted else np.ones(m)
    rest = rng.lognormal(0, 1, 1000)
    extra = np.square(rest).sum() / rest.sum() if weighted else 1.0
    given = {"weights": w, "rest_weights": rest} if weighted else {}
    _, low, high = rest_interval(x, MANY, (0.2, 1.0), **given)
    drawn = rng.exponential(size=(100_000, m + 1)) * np.append(w, extra)
    drawn /= drawn.sum(axis=1, keepdims=True)
    assert low == pytest.approx(np.quantile(drawn @ np.append(x, 0.2), 0.025), abs=0.006)
    assert high == pytest.approx(np.quantile(drawn @ np.append(x, 1.0), 0.975), abs=0.006)


@pytest.mark.parametrize(("hits", "m"), [(0, 10), (9, 10), (20, 60), (300, 300)])
def test_rates_of_an_endless_population_have_clopper_and_pearsons_interval(hits, m):
    x = np.repeat([0.0, 1.0], [m - hits, hits])
    exact = binomtest(hits, m).proportion_ci(method="exact")
    assert rest_interval(x, 10**6)[1:] == pytest.approx((exact.low, exact.high), abs=1e-4)
    by_saddlepoint = rest_interval(x, MANY, weights=np.ones(m), rest_weights=np.ones(1))[1:]
    assert by_saddlepoint == pytest.approx((exact.low, exact.high), abs=0.002)


@pytest.mark.parametrize(("hits", "m", "rest"), [(7, 10, 30), (29, 30, 30), (20, 60, 300), (90, 100, 50), (36, 40, 5)])
def test_the_approximation_for_finite_populations_is_near_the_hypergeometric_interval(hits, m, rest):
    x = np.repeat([0.0, 1.0], [m - hits, hits])
    exact = rest_interval(x, rest)[1:]
    near = rest_interval(x, rest, weights=np.ones(m), rest_weights=np.ones(rest))[1:]
    assert near == pytest.approx(exact, abs=1.5 / rest)


def rare(rng, n):
    """Tenths: five rows in a hundred are lost, the others are well kept."""
    x = np.where(rng.random(n) < 0.05, rng.beta(1, 6, n), rng.beta(30, 2, n))
    return np.round(10 * x) / 10


def lumped(rng, n):
    """Nine rows in ten are kept whole."""
    return np.where(rng.random(n) < 0.9, 1.0, np.round(10 * rng.beta(2, 4, n)) / 10)


@pytest.mark.parametrize(("draw", "m", "rest"), [(rare, 20, 300), (lumped, 25, 300), (lumped, 60, 20)])
def test_intervals_hold_of_skewed_shares(draw, m, rest):
    """Wilson's interval with the sample's variance does not."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(100):
        x = draw(rng, m + rest)
        _, low, high = rest_interval(x[:m], rest)
        inside.append(low <= x[m:].mean() <= high)
    assert np.mean(inside) >= 0.93


@pytest.mark.parametrize("lift", [-0.3, 0.0, 0.2])
def test_weighted_intervals_hold(lift):
    """Rows that are asked for often are kept less often, as often, or more often."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(100):
        w = rng.lognormal(0, 1, 320)
        x = np.where(rng.random(320) < 0.8 + lift * (w > 1.5), 1.0, 0.3)
        _, low, high = rest_interval(x[:20], 300, weights=w[:20], rest_weights=w[20:])
        inside.append(low <= np.average(x[20:], weights=w[20:]) <= high)
    assert np.mean(inside) >= 0.93


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_values_leave_room_for_others(value):
    """About 3.7/m of the support, as a rate of none has, and none at all says nothing."""
    _, low, high = rest_interval(np.full(50, value), 10**6)
    assert high - low > 0.9 * (1 - 0.025 ** (1 / 50))
    assert low <= value <= high
    _, low, high = rest_interval(np.full(50, 0.9), 10**6, (-1.0, 1.0))
    assert low < 0.9 - 0.1


def test_a_single_row_may_be_anything():
    x = np.array([0.5, 0.6, 0.7])
    assert rest_interval(x, 1)[1:] == pytest.approx((0.0, 1.0))
    assert rest_interval(x[:1], 50) == (0.5, 0.0, 1.0)
    assert np.isnan(rest_interval(x[:0], 50)[0])
    nothing = rest_interval(x, 50, weights=np.zeros(3), rest_weights=np.ones(50))
    assert np.isnan(nothing[0])
    assert nothing[1:] == (0.0, 1.0)


def test_units_do_not_matter():
    x = np.random.default_rng(0).beta(8, 2, 30)
    first = np.array(rest_interval(x, 500))
    for scale, shift in ((1e-9, 1.0), (1e6, -3e6)):
        moved = rest_interval(shift + scale * x, 500, (shift, shift + scale))
        np.testing.assert_allclose((np.array(moved) - shift) / scale, first, atol=1e-5)
