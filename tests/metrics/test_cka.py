"""CKA against full matrices written out from the definitions."""

import numpy as np
import pytest

from congruence import errors
from congruence.metrics import METRICS
from congruence.metrics.cka import cross_kernel_cka, linear_cka, rbf_cka
from congruence.metrics.shape import procrustes_distance

SHAPES = [(4, 3, 2), (30, 5, 9), (30, 50, 7), (12, 40, 60), (200, 16, 16)]


def pair(n, d, e, seed=0, mix=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 3
    Y = mix * X @ rng.standard_normal((d, e)) + rng.standard_normal((n, e))
    return X, Y


def biased(K, L):
    H = np.eye(len(K)) - 1 / len(K)
    return np.trace(K @ H @ L @ H)


def unbiased(K, L):
    """Song et al. (2012), equation 5, word for word."""
    n = len(K)
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    one = np.ones(n)
    total = np.trace(K @ L) + one @ K @ one * (one @ L @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ K @ L @ one)
    return total / (n * (n - 3))


def ratio(hsic, K, L):
    return hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))


def gaussian(X, fraction):
    square = ((X[:, None] - X[None]) ** 2).sum(-1)
    median = np.median(square[np.triu_indices(len(X), 1)])
    return np.exp(-square / (2 * median * fraction**2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("estimator", "hsic"), [("biased", biased), ("debiased", unbiased)])
def test_linear_cka_is_the_full_matrix_definition(shape, estimator, hsic):
    X, Y = pair(*shape)
    if shape[0] == 4 and estimator == "debiased":
        X, Y = pair(*shape, seed=3)  # of four items an unbiased self-similarity may come out negative
    assert linear_cka(X, Y, estimator=estimator) == pytest.approx(ratio(hsic, X @ X.T, Y @ Y.T), abs=1e-10)


@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize(("estimator", "hsic"), [("biased", biased), ("debiased", unbiased)])
def test_rbf_cka_is_the_full_matrix_definition(shape, fraction, estimator, hsic):
    X, Y = pair(*shape)
    expected = ratio(hsic, gaussian(X, fraction), gaussian(Y, fraction))
    assert rbf_cka(X, Y, estimator=estimator, fraction=fraction) == pytest.approx(expected, abs=1e-10)
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / (2 * 30.0**2))
    L = np.exp(-((Y[:, None] - Y[None]) ** 2).sum(-1) / (2 * 30.0**2))
    assert rbf_cka(X, Y, estimator=estimator, bandwidth=30.0) == pytest.approx(ratio(hsic, K, L), abs=1e-10)


def test_blocks_change_nothing(monkeypatch):
    from congruence.linalg import kernels

    X, Y = pair(150, 7, 5)
    whole = [linear_cka(X, Y), linear_cka(X, Y, estimator="biased"), rbf_cka(X, Y)]
    real = kernels.blocks
    monkeypatch.setattr(kernels, "blocks", lambda n, row_bytes, *a: real(n, 1, 16))
    parts = [linear_cka(X, Y), linear_cka(X, Y, estimator="biased"), rbf_cka(X, Y)]
    np.testing.assert_allclose(parts, whole, atol=1e-13)


def test_minibatches_sum_before_the_ratio():
    X, Y = pair(103, 6, 8)
    order = np.random.default_rng(5).permutation(103)
    totals = np.zeros(3)
    for start in range(0, 103, 20):
        rows = order[start : start + 20]
        if len(rows) >= 4:
            K, L = X[rows] @ X[rows].T, Y[rows] @ Y[rows].T
            totals += unbiased(K, L), unbiased(K, K), unbiased(L, L)
    expected = totals[0] / np.sqrt(totals[1] * totals[2])
    assert linear_cka(X, Y, estimator="minibatch", batch_size=20, random_state=5) == pytest.approx(expected, abs=1e-12)
    whole = linear_cka(X, Y, estimator="minibatch", batch_size=103)
    assert whole == pytest.approx(linear_cka(X, Y), abs=1e-12)


def test_debiased_is_near_zero_on_noise_where_biased_is_not():
    rng = np.random.default_rng(0)
    values = [
        [
            linear_cka(rng.standard_normal((60, 200)), rng.standard_normal((60, 200)), estimator=e)
            for e in ("debiased", "biased")
        ]
        for _ in range(20)
    ]
    debiased, biased_values = np.array(values).T
    assert abs(debiased.mean()) < 0.02
    assert biased_values.mean() > 0.6


@pytest.mark.parametrize("n", [10, 60])
def test_cross_kernels_by_hand(n):
    rng = np.random.default_rng(n)
    F, G, F2, G2 = (rng.standard_normal((rows, d)) + 1 for rows, d in ((n, 5), (25, 5), (n, 8), (25, 8)))
    F2[:, :5] += F
    G2[:, :5] += G

    def centered(K):
        return K - K.mean(0) - K.mean(1, keepdims=True) + K.mean()

    K, L = centered(F @ G.T), centered(F2 @ G2.T)
    expected = (K * L).sum() / np.linalg.norm(K) / np.linalg.norm(L)
    assert cross_kernel_cka(F, G, F2, G2) == pytest.approx(expected, abs=1e-12)
    Q = np.linalg.qr(rng.standard_normal((8, 8)))[0][:5]
    assert cross_kernel_cka(F, G, F @ Q, G @ Q) == pytest.approx(1)
    assert cross_kernel_cka(F, G, F @ Q, -(G @ Q)) == pytest.approx(-1)
    with pytest.raises(errors.ShapeError, match="of one model"):
        cross_kernel_cka(F, G, F2, G2[:, :5])


@pytest.mark.parametrize("metric", [linear_cka, lambda X, Y: linear_cka(X, Y, estimator="biased"), rbf_cka])
def test_torch_gives_the_same_and_differentiates(metric):
    torch = pytest.importorskip("torch")
    X, Y = pair(10, 4, 3)
    A, B = torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=True)
    value = metric(A, B)
    assert value.ndim == 0
    assert float(value.detach()) == pytest.approx(metric(X, Y), abs=1e-12)
    if metric is not rbf_cka:
        assert torch.autograd.gradcheck(metric, (A, B), fast_mode=True)


def test_torch_differentiates_every_form():
    torch = pytest.importorskip("torch")
    A, B = (torch.tensor(side, requires_grad=True) for side in pair(10, 4, 3))
    fixed = lambda a, b: rbf_cka(a, b, bandwidth=2.0)  # noqa: E731 - the median's own gradient is not followed
    assert torch.autograd.gradcheck(fixed, (A, B), fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda a, b: linear_cka(a, b, estimator="minibatch", batch_size=5), (A, B), fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda a, b: cross_kernel_cka(a, a.flip(0) ** 2, b, b.flip(0) ** 2), (A, B), fast_mode=True
    )
    wide = torch.tensor(pair(6, 9, 8)[0], requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: linear_cka(a, B[:6]), (wide,), fast_mode=True)


def test_far_rows_constant_columns_and_copies():
    X, Y = pair(60, 6, 5)
    X[:, 2] = 7
    # Sums of uncentered products would lose every digit.
    assert linear_cka(X + 1e6, Y) == pytest.approx(linear_cka(X, Y), abs=1e-7)
    twice = linear_cka(np.vstack([X, X]), np.vstack([Y, Y]), estimator="biased")
    assert twice == pytest.approx(linear_cka(X, Y, estimator="biased"), abs=1e-12)


@pytest.mark.parametrize("estimator", ["debiased", "biased", "minibatch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_equal_up_to_rounding_do_not_vary(estimator, dtype):
    rng = np.random.default_rng(0)
    equal = np.tile(rng.standard_normal(7) * 10.0 ** np.arange(-3, 4), (60, 1)).astype(dtype)
    noisy = equal * (1 + np.finfo(dtype).eps * rng.integers(-1, 2, equal.shape).astype(dtype))
    other = rng.standard_normal((60, 5)).astype(dtype)
    for flat in (equal, noisy):
        for sides in ((flat, other), (other, flat)):
            with pytest.raises(errors.InputError, match="are equal"):
                linear_cka(*sides, estimator=estimator)
        for name in ("linear_cka", "rbf_cka"):
            with pytest.raises(errors.InputError, match="are equal"):
                METRICS[name].prepare(flat, "X")


def test_bad_parameters():
    X, Y = pair(20, 3, 4)
    with pytest.raises(errors.ParameterError, match="4 rows"):
        linear_cka(X, Y, estimator="minibatch", batch_size=3)
    for metric in (linear_cka, rbf_cka):
        with pytest.raises(errors.ParameterError):
            metric(X, Y, estimator="exact")
    for options in ({"bandwidth": -1}, {"fraction": 0}, {"bandwidth": "mean"}):
        with pytest.raises(errors.CongruenceError):
            rbf_cka(X, Y, **options)
    with pytest.raises(errors.InputError, match="bandwidth"):  # which isolates every row
        rbf_cka(*pair(20, 30, 30), bandwidth=1e-3)


@pytest.mark.parametrize("shift", [0.0, 3.0, 1e3])
@pytest.mark.parametrize("near", [1.0, 1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("metric", [linear_cka, rbf_cka, procrustes_distance])
def test_single_precision_is_double_precision_of_the_same_rows(metric, near, shift):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((700, 30)) * np.linspace(1, 0.05, 30) + shift).astype(np.float32)
    Y = (X[:, ::-1] + near * rng.standard_normal(X.shape)).astype(np.float32)
    expected = metric(X.astype(np.float64), Y.astype(np.float64))
    assert metric(X, Y) == pytest.approx(expected, rel=2e-5, abs=2e-6 if metric is not procrustes_distance else 1e-7)
