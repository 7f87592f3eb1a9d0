"""Orders of rows, each step against its definition written out."""

import numpy as np
import pytest

from congruence.linalg import selection


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6)) * [4, 3, 2, 1, 0.5, 0.1] + rng.standard_normal((4, 6))[rng.integers(4, size=60)]
    return X - X.mean(0)


def greedy(X, n, loss):
    """Take whatever row lowers a loss of the rows taken most, one after the other."""
    taken = []
    for _ in range(n):
        rest = [k for k in range(len(X)) if k not in taken]
        taken.append(min(rest, key=lambda k: loss(X[[*taken, k]])))
    return taken


def test_variance_lowers_the_ridge_error_over_all_rows_most(X):
    scale = 0.3 * (X**2).sum(1).mean()

    def error(A):
        return np.trace(np.linalg.inv(A.T @ A + scale * np.eye(6)) @ X.T @ X)

    assert selection.greedy_variance(X, 20, 0.3).tolist() == greedy(X, 20, error)


def test_volume_raises_the_determinant_most(X):
    scale = 0.3 * (X**2).sum(1).mean()
    order = selection.greedy_volume(X, 20, 0.3)
    assert order.tolist() == greedy(X, 20, lambda A: -np.linalg.slogdet(A.T @ A + scale * np.eye(6))[1])


def test_volume_without_much_ridge_is_pivoted_qr(X):
    from scipy.linalg import qr

    assert selection.greedy_volume(X, 6, 1e-9).tolist() == qr(X.T, pivoting=True)[2][:6].tolist()


@pytest.mark.parametrize("lazy", [1, 7, 1000])
def test_facility_location_is_lazy_and_greedy(X, lazy, monkeypatch):
    monkeypatch.setattr(selection, "_LAZY", lazy)

    def apart(A):
        centers = np.vstack([A, np.zeros(6)])
        return ((X[:, None] - centers) ** 2).sum(2).min(1).sum()

    assert selection.facility_location(X, 20).tolist() == greedy(X, 20, apart)


def test_kmeans_plus_plus_draws_by_squared_distance():
    X = np.array([[0.0], [1.0], [3.0]])
    second = {0: {1: 0.1, 2: 0.9}, 1: {0: 0.2, 2: 0.8}, 2: {0: 9 / 13, 1: 4 / 13}}
    rng = np.random.default_rng(0)
    drawn = np.array([selection.kmeans_plus_plus(X, 3, rng) for _ in range(3000)])
    assert (np.sort(drawn, axis=1) == [0, 1, 2]).all()
    for first, shares in second.items():
        own = drawn[drawn[:, 0] == first, 1]
        assert len(own) == pytest.approx(1000, abs=110)
        assert all(np.mean(own == k) == pytest.approx(share, abs=0.06) for k, share in shares.items())


def test_leverage_draws_by_leverage():
    X = np.diag([3.0, 2.0, 1.0])
    X = np.vstack([X, X[[2]] * 2, -X[[0]]])  # leverages .5, 1, .2, .8, .5
    rng = np.random.default_rng(0)
    first = [selection.leverage(X, 2, rng, 1e-9)[0] for _ in range(3000)]
    shares = np.bincount(first, minlength=5) / 3000
    np.testing.assert_allclose(shares, np.array([0.5, 1, 0.2, 0.8, 0.5]) / 3, atol=0.035)


def test_covered_share_is_the_variance_inside_of_the_span(X):
    order = np.array([5, 9, 9, 1, 40, 41, 42, 43, 44])  # the third adds nothing
    shares = selection.covered_share(X, order)
    for k in range(1, 10):
        Q = np.linalg.svd(X[order[:k]], full_matrices=False)
        basis = Q[2][Q[1] > 1e-9]
        assert shares[k - 1] == pytest.approx(((X @ basis.T) ** 2).sum() / (X**2).sum())
    assert shares[-1] == pytest.approx(1)


@pytest.mark.parametrize(
    "name", ["greedy_variance", "greedy_volume", "facility_location", "kmeans_plus_plus", "leverage"]
)
def test_every_row_is_taken_once_however_many(name):
    rng = np.random.default_rng(1)
    X = np.vstack([1e-9 * rng.standard_normal((10, 3)), rng.standard_normal((20, 1)) * [1.0, 0, 0], np.eye(3)])
    more = {"greedy_variance": (0.3,), "greedy_volume": (0.3,), "kmeans_plus_plus": (rng,), "leverage": (rng, 0.3)}
    order = getattr(selection, name)(X - X.mean(0), 33, *more.get(name, ()))
    assert sorted(order.tolist()) == list(range(33))
