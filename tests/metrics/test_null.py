"""Re-paired scores equal those of re-paired rows, and unrelated spaces are called alike as often as the level says."""

import numpy as np
import pytest

from congruence.compare.spaces import chance
from congruence.metrics import BETWEEN_SPACES, METRICS
from congruence.metrics._base import nuclear_norm


def pair(n, d, e, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.linspace(2, 0.2, d) + 0.3
    return rng, X, X[:, : min(d, e)] @ rng.standard_normal((min(d, e), e)) + rng.standard_normal((n, e))


@pytest.mark.parametrize("shape", [(60, 8, 12), (40, 70, 55), (120, 64, 30)])
@pytest.mark.parametrize("name", BETWEEN_SPACES)
def test_it_is_the_score_of_the_repaired_rows(name, shape):
    rng, X, Y = pair(*shape)
    metric = METRICS[name]
    first, second = metric.prepare(X, "X"), metric.prepare(Y, "Y")
    for order in (np.arange(shape[0]), rng.permutation(shape[0]), rng.permutation(shape[0])):
        moved = metric.reorder(second, order)
        assert metric.compare(first, moved) == pytest.approx(metric.fn(X, Y[order]), abs=1e-7)
        both = metric.compare(metric.reorder(first, order), moved)
        assert both == pytest.approx(metric.compare(first, second), abs=1e-9)


@pytest.mark.parametrize("name", ["procrustes_distance", "svcca"])
def test_rows_of_many_directions_are_compared_in_single_precision(name):
    rng, X, Y = pair(600, 340, 340)
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    metric = METRICS[name]
    first, second = metric.prepare(X, "X"), metric.prepare(Y, "Y")
    assert (first if name != "svcca" else first.basis).dtype == np.float32
    order = rng.permutation(600)
    expected = metric.fn(X.astype(float), Y[order].astype(float))
    assert metric.compare(first, metric.reorder(second, order)) == pytest.approx(expected, abs=3e-6)


@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0, 5.0])
def test_nuclear_norm_in_single_precision(decay):
    """Of principal coordinates, whose Gram may or may not show the smallest singular values."""
    rng = np.random.default_rng(3)
    A, B = (np.linalg.qr(rng.standard_normal((500, d)))[0] * np.arange(1.0, d + 1) ** -decay for d in (300, 280))
    C = A.T @ B[rng.permutation(500)]
    expected = np.linalg.svd(C, compute_uv=False).sum()
    assert nuclear_norm(C.astype(np.float32)) == pytest.approx(expected, rel=1e-5)


def test_chance_by_hand():
    """Two scores, four re-pairings: the second is closer when smaller."""
    null = np.array([[1.0, 4.0], [2.0, 3.0], [3.0, 2.0], [2.0, 3.0]])
    found = chance(np.array([2.5, 1.0]), null, np.array([True, False]))
    np.testing.assert_allclose(found.mean, [2, 3])
    np.testing.assert_allclose(found.sd, np.sqrt(2 / 3))
    np.testing.assert_allclose(found.p_value, [2 / 5, 1 / 5])  # 3 reaches 2.5; nothing reaches 1
    # Standardized over all five pairings: 0.60 and 1.57 beside the best of each re-pairing, −1.37, −0.15, 1.36 and
    # −0.15.
    np.testing.assert_allclose(found.adjusted_p_value, [2 / 5, 1 / 5])


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "draws", "runs"), [((5,), 19, 4000), ((5,), 200, 2000), ((27, 13), 19, 1000), ((27, 13), 200, 300)]
)
def test_family_wise_error_is_the_level(shape, draws, runs):
    """Scores of unrelated rows, at 0.05: rejected in 0.05 of runs, within three binomial standard deviations."""
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(runs):
        scores = rng.standard_normal((draws + 1, *shape), dtype=np.float32)
        rejected += chance(scores[0], scores[1:], True).adjusted_p_value.min() <= 0.05
    assert rejected / runs == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / runs) ** 0.5)


@pytest.mark.parametrize("draws", [4, 19, 200])
@pytest.mark.parametrize("shape", [(5,), (27, 13)])  # five metrics, and 27 × 13 layers
def test_each_pairing_in_turn_as_the_actual_one(shape, draws):
    """Of any draws + 1 pairings, as skewed and dependent as one likes, at most α (draws + 1) reach p ≤ α: exactly as
    many without ties.
    """
    rng = np.random.default_rng(1)
    scores = np.exp(2 * rng.standard_normal((draws + 1, *shape)) + rng.standard_normal((draws + 1, *[1] * len(shape))))
    scores *= np.exp(rng.standard_normal(shape))
    every = np.arange(draws + 1)
    p = np.array([chance(scores[k], scores[every != k], True).adjusted_p_value.min() for k in every])
    np.testing.assert_allclose(np.sort(p), (every + 1) / (draws + 1))


def test_ties_count_as_close():
    """Shares of common neighbors take few values: p is never too small then, though it may be too large."""
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 3, (40, 4)) / 10
    scores[:, 3] = 0.1  # a score that cannot vary tells nothing
    every = np.arange(40)
    found = [chance(scores[k], scores[every != k] + 1e-17, True) for k in every]
    p = np.array([one.adjusted_p_value.min() for one in found])
    for level in (0.025, 0.1, 0.5):
        assert (p <= level).mean() <= level
    assert min(p.min(), *(one.p_value.min() for one in found)) >= 1 / 40
    assert all(one.adjusted_p_value[3] == one.p_value[3] == 1 for one in found)
    assert all((one.adjusted_p_value >= one.p_value - 1e-12).all() for one in found)
