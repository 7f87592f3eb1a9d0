"""Tensors are compared where they live, and the answer is NumPy's. No GPU is needed: see pretend_gpu.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.errors import DtypeError, NotFiniteError, ShapeError, TooFewAnchorsError
from congruence.metrics import (
    METRICS,
    cca,
    cknna,
    cross_kernel_cka,
    linear_cka,
    mutual_knn,
    nearest,
    pwcca,
    rbf_cka,
    rsa,
)

torch = pytest.importorskip("torch")
from pretend_gpu import GPU, PretendGPU  # noqa: E402 - needs torch
from samples import in_blocks  # noqa: E402

N, D, K = 400, 120, 10
KINDS = ["inner", "cosine", "euclidean"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def sample(seed=0, n=N, d=D):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, d)) + 0.3
    A[7] = A[3]
    return A, A @ rng.standard_normal((d, d)) / d**0.5 + rng.standard_normal((n, d))


#: What a measure may fetch, in bytes, of two sides with `data` bytes together.
TABLES = {"cknna", "mutual_knn", "cycle_knn", "lcs_knn", "edit_knn"}


def allowance(name, data):
    if name.startswith("paired"):  # as many operations as numbers: done on the host
        return data
    # Beside one copy of the data a row's proposals, which are two indices each, its count and a bound.
    return data + 2 * N * (4 * K * 16 + 16) if name in TABLES else 0.01 * data


@pytest.mark.parametrize("name", METRICS)
def test_only_little_leaves_the_device(name):
    A, B = sample()
    expected = METRICS[name].fn(A, B)
    with PretendGPU() as gpu:
        value = METRICS[name].fn(gpu.put(A), gpu.put(B))
        fetched = gpu.fetched
        assert float(value) == pytest.approx(expected, abs=1e-12 if name in TABLES | {"rsa"} else 1e-9)
    assert fetched <= allowance(name, A.nbytes + B.nbytes)


@pytest.mark.parametrize(
    "fn",
    [
        lambda A, B: linear_cka(A, B, estimator="minibatch", batch_size=64),
        lambda A, B: linear_cka(A[:50], B[:50], estimator="biased"),
        lambda A, B: rbf_cka(A, B, bandwidth=2.0, estimator="biased"),
        lambda A, B: cross_kernel_cka(A, A, B, B),
        lambda A, B: cca(A, B, reduce=None),
        lambda A, B: cca(A, B, reduce="kernel", ridge=0.1),
        lambda A, B: pwcca(A, B, rank=5),
        lambda A, B: rsa(A, B, rdm="cosine", max_rows=200),
        lambda A, B: rsa(A, B, rdm="euclidean", compare="pearson"),
        lambda A, B: rsa(A, B, rdm="sqeuclidean", compare="cosine"),
    ],
)
def test_nor_with_other_options(fn):
    A, B = sample()
    with PretendGPU() as gpu:
        value = float(fn(gpu.put(A), gpu.put(B)))
        fetched = gpu.fetched
    assert value == pytest.approx(fn(A, B), abs=1e-9)
    assert fetched <= 0.01 * (A.nbytes + B.nbytes)


def test_what_kendall_fetches_is_its_ranks():
    A, B = sample(n=60)
    with PretendGPU() as gpu:
        assert rsa(gpu.put(A), gpu.put(B), compare="kendall") == pytest.approx(rsa(A, B, compare="kendall"), abs=1e-12)
        assert gpu.fetched <= 2 * 8 * 60 * 59 / 2 + 200


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", KINDS)
@settings(settings.get_profile("costly"), max_examples=5)  # of each metric and precision, with four kinds of rows each
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), d=st.integers(1, 30), block_rows=st.integers(1, 50))
def test_tables_are_numpys_to_the_bit(metric, dtype, seed, n, d, block_rows):
    rng = np.random.default_rng(seed)
    for A in (
        rng.standard_normal((n, d)) + 1,
        rng.integers(1, 4, (n, d)).astype(float),  # ties
        rng.standard_normal((n, d))[rng.integers(0, max(1, n // 3), n)],  # copies
        1 + 1e-5 * rng.standard_normal((n, d)),  # differences that a float32 product does not see
    ):
        T = torch.tensor(A, dtype=DTYPES[dtype], requires_grad=True)
        host = T.detach().float().numpy() if dtype == "bfloat16" else T.detach().numpy()
        k = 1 + seed % (n - 1)
        expected = nearest(host, k, metric=metric)
        np.testing.assert_array_equal(nearest(T, k, metric=metric), expected)
        with PretendGPU() as gpu, in_blocks(block_rows):
            np.testing.assert_array_equal(nearest(gpu.put(T), k, metric=metric), expected)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("metric", KINDS)
def test_a_gallery_is_searched_on_its_device(metric, exact):
    A, B = sample(1)
    B[9] = B[4]
    left = np.arange(len(A))
    for left_out in (None, left):
        expected = nearest(A, 5, B, metric=metric, left_out=left_out)
        with PretendGPU() as gpu:
            Q, G = gpu.put(A), gpu.put(B)
            found = nearest(Q, 5, G, metric=metric, left_out=left_out, exact=exact)
            np.testing.assert_array_equal(found, expected)
            assert gpu.fetched <= A.nbytes + B.nbytes + 2 * len(A) * (4 * 5 * 16 + 16)


@pytest.mark.parametrize("metric", KINDS)
def test_grouped_maxima_of_long_rows(metric):
    A = np.repeat(np.random.default_rng(1).standard_normal((700, 20)), 2, axis=0).astype(np.float32)
    with PretendGPU() as gpu:
        T, U = gpu.put(torch.tensor(A).T.contiguous().T), gpu.put(A[::-1].copy())
        np.testing.assert_array_equal(nearest(T, 9, metric=metric), nearest(A, 9, metric=metric))
        for definition in ("huh", "jam"):
            assert cknna(T, U, definition=definition) == cknna(A, A[::-1], definition=definition)


@pytest.fixture
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def cut(A, bits):
    """Drop all but ``bits`` of the 23 bits behind the point, as a GPU may where it is allowed to."""
    return (A.contiguous().view(torch.int32) & (-1 << (23 - bits))).view(torch.float32)


@pytest.mark.parametrize(("precision", "bits"), [("high", 10), ("medium", 7)])
@pytest.mark.parametrize("metric", KINDS)
def test_products_of_shortened_factors_change_nothing(metric, precision, bits, monkeypatch, matmul_precision):
    A = np.random.default_rng(2).standard_normal((2000, 3)).astype(np.float32)
    A /= np.linalg.norm(A, axis=1, keepdims=True)  # so close that short factors confuse them
    expected = nearest(A, 5, metric=metric)
    real = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: real(cut(a, bits), cut(b, bits), out=out))
    matmul_precision(precision)
    with PretendGPU() as gpu:
        np.testing.assert_array_equal(nearest(gpu.put(A), 5, metric=metric), expected)
        # The table would differ, had the margin not been widened.
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
        assert (nearest(gpu.put(A), 5, metric=metric) != expected).any()


def test_one_side_may_be_numpys():
    A, B = sample()
    with PretendGPU() as gpu:
        for fn in (mutual_knn, cknna, rsa):
            assert fn(gpu.put(A), B) == pytest.approx(fn(A, B), abs=1e-12)
        assert float(linear_cka(gpu.put(A[:6]), B[:6].tolist())) == pytest.approx(linear_cka(A[:6], B[:6]), abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", METRICS)
def test_a_real_gpu_agrees(name, dtype):
    A, B = (side.astype(dtype) for side in sample())
    value = float(METRICS[name].fn(torch.tensor(A, device=GPU), torch.tensor(B, device=GPU)))
    assert value == pytest.approx(METRICS[name].fn(A, B), abs=1e-9)


@pytest.mark.parametrize("fn", [linear_cka, METRICS["procrustes_distance"].fn, cca, rsa])
def test_tensors_are_refused_where_they_live(fn):
    A, B = sample(n=30, d=20)
    bad = A.copy()
    bad[[2, 5], 1] = np.nan, np.inf
    with PretendGPU() as gpu:
        with pytest.raises(NotFiniteError, match="2 of 30 rows of X .rows 2, 5"):
            fn(gpu.put(bad), gpu.put(B))
        with pytest.raises(DtypeError, match="complex"):
            fn(gpu.put(A + 0j), gpu.put(B))
        with pytest.raises(ShapeError, match="1 axes"):
            fn(gpu.put(A[0]), gpu.put(B))
        with pytest.raises(ShapeError, match="0 rows"):
            fn(gpu.put(A[:0]), gpu.put(B[:0]))
        with pytest.raises(TooFewAnchorsError):
            fn(gpu.put(A[:1]), gpu.put(B[:1]))
        whole = (10 * A).round()
        assert float(fn(gpu.put(whole.astype(int)), gpu.put(B))) == pytest.approx(fn(whole, B), abs=1e-9)
        assert float(fn(gpu.put(whole > 3), gpu.put(B))) == pytest.approx(fn((whole > 3) * 1.0, B), abs=1e-9)


def test_two_devices_are_refused():
    A, B = sample(n=30, d=4)
    with PretendGPU() as gpu, pytest.raises(DtypeError, match="on cuda:0 and Y on cpu"):
        linear_cka(gpu.put(A), torch.tensor(B))
