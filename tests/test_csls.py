"""Cross-domain similarity local scaling is computed in one place, and every use of it agrees with the definition."""

import numpy as np
import pytest

from congruence.linalg.csls import mean_of_largest, mutual_neighbors
from congruence.metrics import CSLS


def dense_csls(A, B, k):
    """2 cos(a, b) − r(a) − r(b) of Conneau et al. (2018), all at once."""
    S = A.astype(np.float64) @ B.T.astype(np.float64)
    r_a = np.sort(S, axis=1)[:, -k:].mean(axis=1)
    r_b = np.sort(S, axis=0)[-k:].mean(axis=0)
    return 2 * S - r_a[:, None] - r_b


def unit(rng, n):
    Z = rng.standard_normal((n, 6))
    return (Z / np.linalg.norm(Z, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=[(70, 50, 10), (9, 40, 4), (3, 4, 10)], ids=str)
def case(request):
    n, m, k = request.param
    rng = np.random.default_rng(n)
    return unit(rng, n), unit(rng, m), k


def test_every_use_of_csls_orders_rows_as_the_definition_does(case):
    A, B, k = case
    expected = dense_csls(A, B, k)
    first, back = expected.argmax(axis=1), expected.argmax(axis=0)
    # retrieval with hubs corrected for
    np.testing.assert_array_equal(CSLS(k).of(A, B).correct(A @ B.T).argmax(axis=1), first)
    # pairs for refinement and for maps without pairs
    mutual = np.flatnonzero(back[first] == np.arange(len(A)))
    for block_rows in (None, 1, 7):
        i, j, score = mutual_neighbors(A, B, k, block_rows=block_rows)
        np.testing.assert_array_equal(i, mutual)
        np.testing.assert_array_equal(j, first[mutual])
        np.testing.assert_allclose(score, expected[mutual, first[mutual]], atol=2e-6)


def test_a_mean_of_the_largest_leaves_out_what_is_not_there():
    S = np.array([[0.5, -np.inf, 0.1], [-np.inf, -np.inf, 0.3], [0.7, -np.inf, 0.2]], np.float32)
    np.testing.assert_allclose(mean_of_largest(S, 2, axis=0), [0.6, 0.0, 0.25], atol=1e-7)
    np.testing.assert_allclose(mean_of_largest(S, 2, axis=1), [0.3, 0.3, 0.45], atol=1e-7)
    np.testing.assert_array_equal(mean_of_largest(S.T, 9, axis=1), mean_of_largest(S, 9, axis=0))
