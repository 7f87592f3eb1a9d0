"""Intervals against SciPy's and against repeated draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from congruence.upgrade.certify.intervals import (
    covariance,
    percentile_interval,
    rate_interval,
    ratio_interval,
    replicate,
    resamples,
)


@pytest.mark.parametrize(("hits", "n"), [(0, 30), (30, 30), (1, 50), (20, 40), (199, 200)])
def test_independent_hits_have_wilsons_interval(hits, n):
    influence = np.r_[np.ones(hits), np.zeros(n - hits)]
    low, high = rate_interval(hits / n, influence)
    known = binomtest(hits, n).proportion_ci(method="wilson")
    # The sample variance counts n − 1, so it amounts to slightly fewer trials.
    assert low == pytest.approx(known.low, abs=0.01)
    assert high == pytest.approx(known.high, abs=0.01)
    assert 0 <= low <= hits / n <= high <= 1


def test_hits_that_come_together_have_a_wider_interval():
    rng = np.random.default_rng(0)
    influence = (rng.random(200) < 0.5).astype(float)
    narrow = rate_interval(0.5, influence)
    wide = rate_interval(0.5, 3 * (influence - 0.5) + 0.5)
    assert wide[1] - wide[0] > 2.5 * (narrow[1] - narrow[0])


def test_bootstrap_of_several_means_keeps_their_correlation():
    rng = np.random.default_rng(0)
    common = rng.standard_normal(300)
    values = np.stack([common, common + 0.1 * rng.standard_normal(300)], axis=1)
    weights = resamples(300, 4000, rng)
    assert (weights.sum(axis=1) == 300).all()
    draws = replicate(values.mean(axis=0), values, weights)
    error = values.std(axis=0, ddof=1) / np.sqrt(300)
    np.testing.assert_allclose(draws.std(axis=0), error, rtol=0.05)
    assert np.std(draws[:, 0] - draws[:, 1]) == pytest.approx(0.1 / np.sqrt(300), rel=0.1)
    low, high = percentile_interval(draws[:, 0])
    assert low == pytest.approx(values[:, 0].mean() - 1.96 * error[0], abs=0.15 * error[0])
    assert high == pytest.approx(values[:, 0].mean() + 1.96 * error[0], abs=0.15 * error[0])


def test_undefined_ratios_are_left_out():
    low, high = percentile_interval(np.array([np.nan, 1.0, 2.0, np.inf]))
    assert 1 <= low <= high <= 2
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()


def test_groups_widen_as_repeats_of_one_item_do():
    rng = np.random.default_rng(0)
    hits = (rng.random(100) < 0.6).astype(float)
    groups = np.repeat(np.arange(100), 4)
    fourfold = np.repeat(hits, 4)
    np.testing.assert_allclose(covariance(fourfold[:, None], groups), covariance(hits[:, None]))
    assert rate_interval(0.6, fourfold, groups=groups) == pytest.approx(rate_interval(0.6, hits))
    draws = replicate(np.array([0.6]), fourfold[:, None], resamples(400, 4000, rng, groups), groups)
    assert draws.std() == pytest.approx(hits.std(ddof=1) / 10, rel=0.05)


@pytest.mark.parametrize(
    ("above", "below", "n"), [(0.45, 0.5, 100), (0.97, 0.98, 60), (0.9, 0.999, 100), (0.1, 0.15, 80)]
)
def test_intervals_of_a_ratio_hold_the_ratio(above, below, n):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        easy = rng.random(n)  # the same items: easy for one way, easy for the other
        other = np.where(rng.random(n) < 0.7, easy, rng.random(n))
        hits = np.stack([easy < above, other < below], axis=1).astype(float)
        if hits[:, 1].any():
            low, high = ratio_interval(*hits.mean(axis=0), hits)
            held += low <= above / below <= high
    assert held >= 0.95 * 400 - 2 * np.sqrt(400 * 0.05 * 0.95)


def test_scores_at_one_leave_the_ratio_some_room():
    low, high = ratio_interval(1.0, 1.0, np.ones((50, 2)))
    assert 0.9 < low < 0.97
    assert 1.03 < high < 1.1
    assert ratio_interval(0.0, 0.02, np.eye(50)[:, :2]) == (0.0, float("inf"))
