import numpy as np
import pytest

from congruence.linalg.moments import CrossMoments


def data(n=200, d=5, e=7, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) + offset, rng.standard_normal((n, e)) - offset


def test_moments_match_numpys_covariance():
    X, Y = data()
    m = CrossMoments.of(X, Y, gram=True)
    joint = np.cov(np.hstack([X, Y]).T) * (len(X) - 1)
    np.testing.assert_allclose(m.cross, joint[:5, 5:], atol=1e-10)
    np.testing.assert_allclose(m.gram, joint[:5, :5], atol=1e-10)
    assert m.source_scatter == pytest.approx(np.trace(joint[:5, :5]))
    assert m.target_scatter == pytest.approx(np.trace(joint[5:, 5:]))


def test_a_large_common_offset_costs_no_digits():
    X, Y = data()
    far = CrossMoments.of(X + 1e6, Y - 1e6)
    near = CrossMoments.of(X, Y)
    # Naive Σxy − nμν would be wrong from about the fourth digit on.
    np.testing.assert_allclose(far.cross, near.cross, atol=1e-6)


def test_half_precision_is_summed_in_double():
    X, Y = data(5000)
    X, Y = X.astype(np.float16), Y.astype(np.float16)
    exact = CrossMoments.of(X.astype(np.float64), Y.astype(np.float64))
    np.testing.assert_array_equal(CrossMoments.of(X, Y).cross, exact.cross)
