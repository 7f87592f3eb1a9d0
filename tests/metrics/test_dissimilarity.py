import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import recipe
from scipy.spatial.distance import pdist
from scipy.stats import kendalltau, pearsonr, spearmanr

import congruence.metrics.dissimilarity as module
from congruence import errors
from congruence.metrics.dissimilarity import rsa

RDMS = ("correlation", "cosine", "euclidean", "sqeuclidean")
COMPARE = {
    "spearman": lambda a, b: spearmanr(a, b).statistic,
    "pearson": lambda a, b: pearsonr(a, b).statistic,
    "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
    "kendall": lambda a, b: kendalltau(a, b).statistic,
}


X, Y = recipe()


@pytest.fixture(params=[None, 1], ids=["one block", "tiny blocks"])
def block_size(request, monkeypatch):
    if request.param:
        real = module.blocks
        monkeypatch.setattr(module, "blocks", lambda n, size, budget=0: real(n, 1, budget=7, minimum=1))


@pytest.mark.parametrize(
    ("rdm", "compare", "expected"),
    [  # rsatoolbox 0.3.2: compare(calc_rdm(Dataset(X), method=rdm), calc_rdm(Dataset(Y), method=rdm), method=compare)
        ("correlation", "spearman", 0.28582725379991647),
        ("correlation", "corr", 0.28879218675398555),
        ("correlation", "cosine", 0.8644938098261175),
        ("correlation", "tau-b", 0.1902439024390244),
        ("euclidean", "spearman", 0.15429391162454498),
        ("euclidean", "corr", 0.08222453879591497),
        ("euclidean", "cosine", 0.7443126325093403),
        ("euclidean", "tau-b", 0.10081959119186336),
    ],
)
def test_values_of_rsatoolbox(rdm, compare, expected):
    rdm = {"euclidean": "sqeuclidean"}.get(rdm, rdm)  # what rsatoolbox means by the word
    compare = {"corr": "pearson", "tau-b": "kendall"}.get(compare, compare)
    assert rsa(X, Y, rdm=rdm, compare=compare) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("rdm", RDMS)
@pytest.mark.parametrize("compare", COMPARE)
def test_it_is_scipys(rdm, compare, block_size):
    expected = COMPARE[compare](pdist(X, rdm), pdist(Y, rdm))
    assert rsa(X, Y, rdm=rdm, compare=compare) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("rdm", RDMS)
@pytest.mark.parametrize("compare", COMPARE)
@given(seed=st.integers(0, 10**6))
def test_ties_and_copies(rdm, compare, seed):
    """Small whole numbers and repeated rows: SciPy on distances rounded to where equal ones are equal."""
    rng = np.random.default_rng(seed)
    A, B = rng.integers(0, 3, (14, 5)).astype(float), rng.integers(0, 3, (14, 4)).astype(float)
    for M in (A, B):
        M[:, 0], M[:, 1] = 0, rng.integers(1, 3, 14)  # no row of zeros or of equal entries
    A[9:], B[11:] = A[:5], B[:3]
    expected = COMPARE[compare](*(np.round(pdist(M, rdm), 10) for M in (A, B)))
    assert rsa(A, B, rdm=rdm, compare=compare) == pytest.approx(expected, abs=1e-8)


def test_copies_tie_whatever_the_rounding(block_size):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((30, 300)).astype(np.float32)
    A, B = np.repeat(A, 4, axis=0), rng.standard_normal((120, 20))
    once = pdist(A[::4], "correlation")
    square = np.zeros((30, 30))
    square[np.triu_indices(30, 1)] = once
    square = np.kron(square + square.T, np.ones((4, 4)))
    expected = spearmanr(square[np.triu_indices(120, 1)], pdist(B, "correlation")).statistic
    assert rsa(A, B) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    "values",
    [
        lambda rng: rng.random(3000),
        lambda rng: np.round(rng.random(3000), 2),
        lambda rng: np.append(1e-15 * rng.random(100), rng.random(5000)),  # fewer than all have the same first digits
        lambda rng: np.append(1e-15 * rng.random(3000), 1e6),
        lambda rng: 1e-300 * rng.random(100),
        lambda rng: np.ones(50),
    ],
)
def test_numbers_are_sorted(values):
    values = values(np.random.default_rng(0))
    order = module._argsort(values)
    np.testing.assert_array_equal(values[order], np.sort(values))
    np.testing.assert_array_equal(np.sort(order), np.arange(len(values)))


def test_close_pairs_far_from_the_origin_keep_their_digits():
    rng = np.random.default_rng(4)
    A = np.repeat(rng.standard_normal((10, 5)), 2, axis=0) + 1e-7 * rng.standard_normal((20, 5)) + 1e3
    B = np.repeat(rng.standard_normal((10, 4)), 2, axis=0) + 1e-7 * rng.standard_normal((20, 4))
    for compare, fn in COMPARE.items():
        expected = fn(pdist(A, "euclidean"), pdist(B, "euclidean"))
        assert rsa(A, B, rdm="euclidean", compare=compare) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_precision_tensors_and_extreme_scales(dtype):
    A, B = X.astype(dtype), Y.astype(dtype)
    value = rsa(A, B)
    assert type(value) is float
    assert value == pytest.approx(rsa(A.astype(float), B.astype(float)), abs=1e-10)
    assert rsa(torch.tensor(A, requires_grad=True), torch.tensor(B)) == value
    for scale in (1e-170, 1e160):
        for rdm in ("correlation", "euclidean"):
            scaled = rsa(X * scale, Y, rdm=rdm, compare="pearson")
            assert scaled == pytest.approx(rsa(X, Y, rdm=rdm, compare="pearson"), abs=1e-10)


def test_constant_columns_are_no_matter_to_a_distance():
    wide = np.column_stack([X, np.full(40, 0.1)])
    assert rsa(wide, Y, rdm="euclidean") == pytest.approx(rsa(X, Y, rdm="euclidean"), abs=1e-12)


def test_many_rows_are_sampled_only_when_asked(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 30)
    with pytest.raises(errors.ShapeError, match="max_rows=30"):
        rsa(X, Y)
    assert rsa(X, Y, max_rows=40) == pytest.approx(0.28582725379991647, abs=1e-10)
    rows = np.sort(np.random.default_rng(5).choice(40, 20, replace=False))
    assert rsa(X, Y, max_rows=20, random_state=5) == rsa(X[rows], Y[rows])
    assert rsa(X, Y, max_rows=20, random_state=5) != rsa(X, Y, max_rows=20, random_state=6)


@pytest.mark.long
@pytest.mark.parametrize("compare", ["spearman", "pearson", "cosine"])
def test_memory_is_three_condensed_vectors_and_a_block(compare):
    n = 3000
    A, B = np.random.default_rng(0).standard_normal((2, n, 8))
    tracemalloc.start()
    rsa(A, B, compare=compare)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * n * (n - 1) // 2 + 40 * 2**20


@pytest.mark.parametrize("side", [0, 1])
def test_rows_without_a_dissimilarity_are_refused(side):
    def call(bad, **options):
        pair = [X, Y]
        pair[side] = bad
        return rsa(*pair, **options)

    zero, flat = X.copy(), X.copy()
    zero[3], flat[3] = 0, 0.1
    with pytest.raises(errors.InputError):
        call(np.tile([0.1, 0.2], (40, 1)))
    with pytest.raises(errors.ZeroRowError, match="Row 3"):
        call(zero, rdm="cosine")
    with pytest.raises(errors.ZeroRowError, match="equal entries"):
        call(flat)
    for compare in COMPARE:
        with pytest.raises(errors.InputError, match="All pairs"):
            call(np.full((40, 3), 0.1), rdm="euclidean", compare=compare)
        if compare != "cosine":  # all at one distance
            with pytest.raises(errors.InputError, match="All pairs"):
                call(np.eye(40), rdm="euclidean", compare=compare)
    assert 0 < call(np.eye(40), rdm="euclidean", compare="cosine") < 1
    with pytest.raises(errors.TooFewAnchorsError):
        rsa(X[:2], Y[:2])
    for options in ({"rdm": "crossnobis"}, {"compare": "tau-a"}, {"max_rows": 2}, {"max_rows": 3.5}):
        with pytest.raises(errors.ParameterError):
            rsa(X, Y, **options)
