"""Intervals against SciPy's and against repeated draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from congruence.upgrade.certify.intervals import percentile_interval, rate_interval, replicate, resamples


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
