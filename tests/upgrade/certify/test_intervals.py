"""Intervals against SciPy's and against repeated draws."""

import numpy as np
import pytest
from scipy.stats import binomtest, t, ttest_1samp

from congruence.upgrade.certify import estimates as intervals


@pytest.mark.parametrize(("hits", "n"), [(0, 30), (30, 30), (1, 50), (20, 40), (199, 200)])
def test_independent_hits_have_wilsons_interval(hits, n):
    influence = np.r_[np.ones(hits), np.zeros(n - hits)]
    low, high = intervals.rate_interval(hits / n, influence)
    known = binomtest(hits, n).proportion_ci(method="wilson")
    # The sample variance counts n − 1, so it amounts to slightly fewer trials.
    assert low == pytest.approx(known.low, abs=0.01)
    assert high == pytest.approx(known.high, abs=0.01)
    assert 0 <= low <= hits / n <= high <= 1


def test_draws_have_the_covariance_and_the_tails_of_the_intervals():
    rng = np.random.default_rng(0)
    common = rng.random(300)
    hits = np.stack([common < 0.5, (common + 0.1 * rng.standard_normal(300)) < 0.5], axis=1).astype(float)
    draws = intervals.draw_scores(hits.mean(axis=0), hits, 40_000, rng)
    expected = intervals.WIDER**2 * (np.cov(hits.T) / 300 + np.eye(2) / (2 * 300**2))
    np.testing.assert_allclose(np.cov(draws.T), expected * 299 / 297, rtol=0.05)
    # Fourteen degrees of freedom: quantiles are Student's, not the normal distribution's.
    few = np.repeat(hits[:15], 4, axis=0)
    groups = np.repeat(np.arange(15), 4)
    draws = intervals.draw_scores(few.mean(axis=0), few, 40_000, rng, groups)
    scale = np.sqrt(intervals.joint_covariance(few, groups)[0, 0])
    assert np.quantile(draws[:, 0], 0.95) == pytest.approx(few[:, 0].mean() + t.ppf(0.95, 14) * scale, abs=0.05 * scale)


def test_draws_of_scores_that_never_disagreed_do_disagree():
    """A bootstrap of fifty items that both ways find says with certainty that there is no difference."""
    rng = np.random.default_rng(0)
    draws = intervals.draw_scores(np.ones(2), np.ones((50, 2)), 2000, rng)
    assert 0.005 < np.abs(draws[:, 0] - draws[:, 1]).mean() < 0.03
    assert draws.max() == 1.0


def test_degrees_of_freedom_are_those_of_independent_deviations():
    assert intervals.freedom(60) == 59
    assert intervals.freedom(60, np.repeat(np.arange(15), 4)) == pytest.approx(14)
    one_large = np.r_[np.zeros(20, dtype=int), np.arange(1, 41)]
    # Variances 20² and forty times 1², by Satterthwaite: (400 + 40)² / (400² + 40) less one.
    assert intervals.freedom(60, one_large) == pytest.approx(max(1.0, 440**2 / (160_000 + 40) - 1))


def test_the_interval_of_a_mean_is_students_of_the_groups_means():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 5)
    values = rng.standard_normal(12)[groups] + 0.2 * rng.standard_normal(60)
    means = values.reshape(12, 5).mean(axis=1)
    known = ttest_1samp(means, 0).confidence_interval(0.95)
    assert intervals.mean_interval(values.mean(), values, groups=groups) == pytest.approx((known.low, known.high))
    known = ttest_1samp(values, 0).confidence_interval(0.9)
    assert intervals.mean_interval(values.mean(), values, level=0.9) == pytest.approx((known.low, known.high))


def test_few_groups_with_heavy_tails_have_wide_enough_intervals():
    """Fifteen groups of four: 1.96 standard errors hold the mean in nine of ten cases only."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(15), 4)
    heldout = []
    for _ in range(1500):
        values = rng.standard_t(5, 15)[groups] + 0.3 * rng.standard_normal(60)
        low, high = intervals.mean_interval(values.mean(), values, groups=groups)
        half = 1.96 * np.sqrt(intervals.covariance(values[:, None], groups)[0, 0])
        heldout.append((low <= 0 <= high, abs(values.mean()) <= half))
    student, normal = np.mean(heldout, axis=0)
    error = np.sqrt(0.05 * 0.95 / len(heldout))
    assert student >= 0.95 - 2 * error
    assert normal < 0.95 - 2 * error


def test_groups_widen_as_repeats_of_one_item_do():
    rng = np.random.default_rng(0)
    hits = (rng.random(100) < 0.6).astype(float)
    groups = np.repeat(np.arange(100), 4)
    fourfold = np.repeat(hits, 4)
    np.testing.assert_allclose(intervals.covariance(fourfold[:, None], groups), intervals.covariance(hits[:, None]))
    # Wilson's, at the number of groups and with Student's tails of as many.
    assert intervals.rate_interval(0.6, fourfold, groups=groups) == pytest.approx(
        intervals.rate_interval(0.6, hits), abs=0.002
    )
    assert intervals.mean_interval(0.6, fourfold, groups=groups) == pytest.approx(intervals.mean_interval(0.6, hits))


@pytest.mark.parametrize(
    ("above", "below", "n"), [(0.45, 0.5, 100), (0.97, 0.98, 60), (0.9, 0.999, 100), (0.1, 0.15, 80)]
)
def test_intervals_of_a_ratio_hold_the_ratio(above, below, n):
    rng = np.random.default_rng(0)
    heldout = 0
    for _ in range(400):
        easy = rng.random(n)  # the same items: easy for one way, easy for the other
        other = np.where(rng.random(n) < 0.7, easy, rng.random(n))
        hits = np.stack([easy < above, other < below], axis=1).astype(float)
        if hits[:, 1].any():
            low, high = intervals.ratio_interval(*hits.mean(axis=0), hits)
            heldout += low <= above / below <= high
    assert heldout >= 0.95 * 400 - 2 * np.sqrt(400 * 0.05 * 0.95)


def test_scores_at_one_leave_the_ratio_some_room():
    low, high = intervals.ratio_interval(1.0, 1.0, np.ones((50, 2)))
    assert 0.9 < low < 0.97
    assert 1.03 < high < 1.1
    assert intervals.ratio_interval(0.0, 0.02, np.eye(50)[:, :2]) == (0.0, float("inf"))


def test_hits_that_come_together_have_a_wider_interval():
    rng = np.random.default_rng(0)
    influence = (rng.random(200) < 0.5).astype(float)
    narrow = intervals.rate_interval(0.5, influence)
    wide = intervals.rate_interval(0.5, 3 * (influence - 0.5) + 0.5)
    assert wide[1] - wide[0] > 2.5 * (narrow[1] - narrow[0])
