"""Re-paired scores without looking at the rows again equal the scores of re-paired rows."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.errors import ShapeError
from congruence.metrics import BETWEEN_SPACES, METRICS
from congruence.metrics.null import chance


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
        score = metric.compare(first, metric.reorder(second, order))
        assert score == pytest.approx(metric.fn(X, Y[order]), abs=1e-7)


@pytest.mark.parametrize("name", BETWEEN_SPACES)
def test_reordering_is_preparing_reordered_rows(name):
    rng, X, Y = pair(50, 12, 9)
    steps, order = METRICS[name], rng.permutation(50)
    first, second = steps.prepare(X, "X"), steps.prepare(Y, "Y")
    again = steps.compare(first, steps.prepare(Y[order], "Y"))
    assert steps.compare(first, steps.reorder(second, order)) == pytest.approx(again, abs=1e-9)
    assert steps.compare(steps.reorder(first, order), steps.reorder(second, order)) == pytest.approx(
        steps.compare(first, second), abs=1e-9
    )


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


@pytest.mark.parametrize("name", ["rbf_cka", "rsa"])
def test_whole_matrices_are_not_asked_for_many_rows(name):
    with pytest.raises(ShapeError, match="5000"):
        METRICS[name].prepare(np.ones((5001, 2)), "X")
