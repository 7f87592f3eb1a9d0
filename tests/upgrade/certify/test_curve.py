"""A power law is found again, and what it says of more anchors is what it is."""

import numpy as np
import pytest
from scipy.stats import t

from congruence.upgrade.certify.estimates import LearningCurve

SIZES = np.array([10, 20, 40, 80, 160, 320])


def law(n, best=0.8, drop=2.0, exponent=0.9):
    return best - drop * np.asarray(n, float) ** -exponent


def test_an_exact_law_is_recovered_and_most_is_one_last_rise_a_doubling():
    curve = LearningCurve.through(SIZES, np.stack([law(SIZES)] * 3), 400)
    assert curve.exponent == pytest.approx(0.9)
    assert curve.best == pytest.approx(0.8, abs=1e-6)
    assert curve.at(1000) == pytest.approx(law(1000), abs=1e-6)
    assert curve.gain(600) == pytest.approx(law(1000) - law(400), abs=1e-6)
    curve = LearningCurve.through(SIZES, np.stack([law(SIZES)] * 3), 320)
    rise = float(law(320) - law(160))
    assert curve.most(320) == pytest.approx(rise)
    assert curve.most(3 * 320) == pytest.approx(2 * rise)
    assert curve.most(320) > curve.gain(320)


def test_most_counts_that_repeats_share_their_anchors():
    rng = np.random.default_rng(0)
    scores = law(SIZES) + 0.02 * rng.standard_normal((8, 6))
    rise = scores[:, -1] - scores[:, -2]
    # With queries apart all 320 anchors are fitted on; without, 80 of 400 are held out in each repeat.
    for n, shared in ((320, 0.0), (400, 80 / 320)):
        error = t.ppf(0.95, 7) * rise.std(ddof=1) * np.sqrt(1 / 8 + shared)
        assert LearningCurve.through(SIZES, scores, n).most(n) == pytest.approx(rise.mean() + error)


def test_a_curve_rises_if_its_last_doubling_is_beyond_the_error():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((200, 8, 6))
    rising = [LearningCurve.through(SIZES, law(SIZES) + 0.002 * one, 400).rises for one in noise]
    flat = [LearningCurve.through(SIZES, 0.5 + 0.02 * one, 400).rises for one in noise]
    assert np.mean(rising) > 0.95
    assert np.mean(flat) < 0.1


def test_lifting_and_redrawing():
    rng = np.random.default_rng(0)
    curve = LearningCurve.through(SIZES, law(SIZES) + 0.01 * rng.standard_normal((8, 6)), 320)
    assert curve.lifted(0.1).at(500) == pytest.approx(curve.at(500) + 0.1)
    gains = [curve.redraw(rng).gain(320) for _ in range(30)]
    assert np.std(gains) > 0
    assert abs(np.mean(gains) - curve.gain(320)) < 0.02

    # Redrawn curves differ in shape where the scores do not.
    curve = LearningCurve.through(SIZES, np.stack([law(SIZES)] * 8), 320)
    gains = [curve.redraw(rng).gain(640) for _ in range(40)]
    assert min(gains) < 0.6 * curve.gain(640) < 1.2 * curve.gain(640) < max(gains)


def test_noise_and_a_steep_start_promise_no_more_than_comes():
    """Scores level off faster than any power from 0.5 on: what the first sizes gain is not what the last ones will."""
    sizes = np.array([6, 10, 17, 30, 51, 87, 147, 250])
    rng = np.random.default_rng(0)

    def score(n):
        return 0.8 - 0.5 * np.exp(-n / 20.0) - 0.5 / n

    scores = [score(sizes) + 0.03 * rng.standard_normal((10, 8)) for _ in range(50)]
    expected = [LearningCurve.through(sizes, one, 250).gain(250) for one in scores]
    assert np.mean(expected) - (score(500) - score(250)) < 0.008


def test_noise_that_falls_is_a_flat_curve():
    curve = LearningCurve.through(SIZES, np.array([[0.5, 0.5, 0.5, 0.49, 0.48, 0.47]]), 320)
    assert curve.gain(1000) == 0
    assert not curve.rises
