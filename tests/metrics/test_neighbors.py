import tracemalloc
from contextlib import nullcontext
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import KINDS, in_blocks, sample, similarities
from scipy.stats import kstest
from sklearn.neighbors import NearestNeighbors

from congruence.errors import NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence.metrics import METRICS as ALL
from congruence.metrics import cycle_knn, edit_knn, lcs_knn, mutual_knn, nearest, search
from congruence.metrics.search import neighbor_overlap

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 8)), RNG.standard_normal((60, 5))
METRICS = ["inner", "cosine", "euclidean"]
MEASURES = [mutual_knn, cycle_knn, lcs_knn, edit_knn]


def full_search(Q, G, k, metric="inner", left_out=None):
    S = similarities(Q, G, metric)
    if left_out is not None:
        S[np.arange(len(Q)), left_out] = -np.inf
    return np.argsort(-S, axis=1, kind="stable")[:, :k]


def full_nearest(A, k, metric="inner"):
    return full_search(A, A, k, metric, np.arange(len(A)))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), d=st.integers(1, 30), share=st.floats(0, 1))
def test_inner_tables_are_a_stable_sort_of_all_similarities(kind, seed, n, d, share):
    A = sample(seed, n, d, kind)
    k = 1 + round(share * (n - 2))
    np.testing.assert_array_equal(nearest(A, k), full_nearest(A, k))


@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), d=st.integers(2, 30), block_rows=st.integers(1, 50))
def test_other_metrics_are_a_stable_sort_too(seed, n, d, block_rows):
    for kind in ("smooth", "half", "copies", "near copies", "strided"):
        A = sample(seed, n, d, kind)
        k = 1 + seed % (n - 1)
        # Near copies have cosines that differ in float64 by their own rounding only.
        for metric in ("euclidean", "cosine") if kind != "near copies" else ("euclidean",):
            with in_blocks(block_rows):
                np.testing.assert_array_equal(nearest(A, k, metric=metric), full_nearest(A, k, metric))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_scikit_learn_finds_the_same_neighbors(metric):
    big = RNG.standard_normal((2000, 16))
    found = (
        NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(big).kneighbors(return_distance=False)
    )
    np.testing.assert_array_equal(nearest(big, 10, metric=metric), found)


@pytest.mark.parametrize("metric", METRICS)
def test_block_size_and_precision_of_the_product_do_not_matter(metric):
    big = (RNG.standard_normal((300, 96)) + 2).astype(np.float32)
    big[::7] = big[3]
    table = nearest(big, 12, metric=metric)
    for block_rows in (1, 7, 64, 5000):
        with in_blocks(block_rows):
            np.testing.assert_array_equal(nearest(big, 12, metric=metric), table)
    np.testing.assert_array_equal(nearest(big.astype(np.float64), 12, metric=metric), table)
    np.testing.assert_array_equal(nearest(np.asfortranarray(big), 12, metric=metric), table)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("ties", [False, True])
def test_half_of_the_products_are_enough(metric, ties, monkeypatch):
    """Each product serves both of its rows; where very many rows tie, all are computed after all."""
    big = (np.random.default_rng(0).standard_normal((700, 24)) + 2).astype(np.float32)
    big[::7] = big[3]
    if ties:
        big[::2] = big[3]
    tables = {k: nearest(big, k, metric=metric) for k in (1, 12)}
    used = []
    whole = search._by_symmetry
    monkeypatch.setattr(search, "_by_symmetry", lambda *given: used.append(whole(*given)) or used[-1])
    for name in ("_MANY", "_COSTLY"):
        monkeypatch.setattr(search, name, 0)
    for block_rows in (7, 64, 5000):
        for k, table in tables.items():
            with in_blocks(block_rows):
                np.testing.assert_array_equal(nearest(big, k, metric=metric), table)
    assert len(used) == 6
    assert any(half is None for half in used) == ties


@pytest.mark.parametrize("scale", [np.float32(1e30), np.float32(1e-30), 1e200, 1e-200])
@pytest.mark.parametrize("metric", METRICS)
def test_extreme_scales_change_nothing(scale, metric):
    A = RNG.standard_normal((50, 6)).astype(np.asarray(scale).dtype)
    np.testing.assert_array_equal(nearest(A * scale, 5, metric=metric), nearest(A, 5, metric=metric))


def test_no_square_array_is_built():
    n = 6000
    big = RNG.standard_normal((n, 4)).astype(np.float32)
    calls = (
        (64, lambda: nearest(big, 5), 10),
        (None, lambda: nearest(big, 5), 55),
        (None, lambda: mutual_knn(big, big), 55),
    )
    for block_rows, call, limit in calls:
        tracemalloc.start()
        with in_blocks(block_rows) if block_rows else nullcontext():
            call()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert peak < limit < n * n * 4 / 2**20  # the square array has 137 MB


def longest_common(a, b):
    @cache
    def solve(i, j):
        if not (i and j):
            return 0
        return solve(i - 1, j - 1) + 1 if a[i - 1] == b[j - 1] else max(solve(i - 1, j), solve(i, j - 1))

    return solve(len(a), len(b))


def edits(a, b):
    @cache
    def solve(i, j):
        if not (i and j):
            return i + j
        return min(solve(i - 1, j) + 1, solve(i, j - 1) + 1, solve(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return solve(len(a), len(b))


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 30),
    d=st.integers(1, 8),
    kind=st.sampled_from(KINDS),
    neighbors=st.sampled_from(METRICS),
)
def test_measures_are_their_definitions(seed, n, d, kind, neighbors):
    k = 1 + seed % (n - 1)
    if kind in ("near copies", "copies", "integers") or neighbors != "inner":  # ties are below
        kind, d = "smooth", d + 1
    A, B = sample(seed, n, d, kind), sample(seed + 1, n, d + 2, "smooth")
    P, Q = full_nearest(A, k, neighbors), full_nearest(B, k, neighbors)
    pairs = list(zip(P.tolist(), Q.tolist(), strict=True))
    expected = {
        mutual_knn: np.mean([len(set(p) & set(q)) / k for p, q in pairs]),
        cycle_knn: np.mean([any(i in P[j] for j in Q[i]) for i in range(n)]),
        lcs_knn: np.mean([longest_common(tuple(p), tuple(q)) for p, q in pairs]),
        edit_knn: 1 - np.mean([edits(tuple(p), tuple(q)) for p, q in pairs]) / k,
    }
    for measure, value in expected.items():
        got = measure(A, B, k, metric=neighbors)
        assert type(got) is float
        assert got == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_what_cannot_be_is_refused(measure):
    for k in (60, 61):
        with pytest.raises(ParameterError, match="n_neighbors ≤ 59"):
            measure(X, Y, k)
    for k in (0, -1, 2.5, True):
        with pytest.raises(ParameterError, match="n_neighbors="):
            measure(X, Y, k)
    with pytest.raises(ParameterError, match="'inner', 'cosine', 'euclidean'"):
        measure(X, Y, metric="manhattan")
    with pytest.raises(ShapeError, match="60 rows of X and 59"):
        measure(X, Y[:59])
    with pytest.raises(ShapeError):
        measure(X[:0], Y[:0])
    bad = Y.copy()
    bad[3, 1] = np.nan
    with pytest.raises(NotFiniteError, match="of Y"):
        measure(X, bad)
    bad[3] = 0
    with pytest.raises(ZeroRowError, match="of Y"):
        measure(X, bad, metric="cosine")
    assert measure(X, bad) >= 0


def test_the_callers_arrays_stay_as_they_are():
    before = X.copy()
    for metric in METRICS:
        nearest(X, 3, metric=metric)
    np.testing.assert_array_equal(X, before)


@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 30),
    n=st.integers(2, 40),
    kind=st.sampled_from(KINDS),
    leave=st.booleans(),
    block_rows=st.sampled_from([1, 7, 1000]),
)
def test_a_gallery_is_searched_as_a_stable_sort_does(seed, m, n, kind, leave, block_rows):
    G = sample(seed, n, 7, kind)
    Q = sample(seed + 1, m, 7, "integers" if kind == "integers" else "smooth")
    Q[: m // 2] = G[np.random.default_rng(seed).integers(0, n, m // 2)]  # so that queries are found themselves
    left = np.random.default_rng(seed).integers(0, n, m) if leave else None
    k = 1 + seed % (n - leave)
    for metric in METRICS:
        if metric == "cosine" and (kind in ("near copies", "integers")):  # ties by rounding only, and rows of zeros
            continue
        expected = full_search(Q, G, k, metric, left)
        with in_blocks(block_rows):
            np.testing.assert_array_equal(nearest(Q, k, G, metric=metric, left_out=left), expected)
        if kind == "smooth":  # without near ties the product's own precision decides alike
            quick = nearest(Q, k, G, metric=metric, left_out=left, exact=False)
            np.testing.assert_array_equal(quick, expected)


def test_without_exactness_ties_of_the_product_come_lowest_number_first():
    G = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [0, 1]], np.float32)
    Q = np.array([[2, 1], [1, 3]], np.float32)
    for k in range(1, 6):
        expected = np.array([[0, 2, 3, 1, 4], [1, 4, 0, 2, 3]])[:, :k]
        np.testing.assert_array_equal(nearest(Q, k, G, exact=False), expected)
        np.testing.assert_array_equal(nearest(Q, k, G), expected)
    wide = np.tile(G, (2000, 1))  # more columns than are compared one by one
    assert nearest(Q, 7, wide, exact=False)[0].tolist() == [0, 2, 3, 5, 7, 8, 10]


def test_a_scale_that_overflows_is_no_matter_in_a_gallery_either():
    Q, G = RNG.standard_normal((20, 5)).astype(np.float32), RNG.standard_normal((30, 5)).astype(np.float32)
    for metric in METRICS:
        expected = nearest(Q, 4, G, metric=metric)
        scale = np.float32(1e30)
        np.testing.assert_array_equal(nearest(Q * scale, 4, G * scale, metric=metric), expected)
        if metric != "euclidean":
            np.testing.assert_array_equal(nearest(Q * scale, 4, G / scale, metric=metric), expected)


def test_what_a_search_cannot_give_is_refused():
    G = RNG.standard_normal((5, 8))
    with pytest.raises(ParameterError, match="'inner', 'cosine', 'euclidean'"):
        nearest(X, 3, metric="angle")
    with pytest.raises(ParameterError, match="n_neighbors ≤ 59"):
        nearest(X, 60)
    with pytest.raises(ParameterError, match="n_neighbors=6 for 5 gallery rows to choose from"):
        nearest(X, 6, G)
    with pytest.raises(ParameterError, match="n_neighbors=5 for 4 gallery rows to choose from"):
        nearest(X, 5, G, left_out=np.zeros(60, int))
    with pytest.raises(ParameterError, match="left_out from 0 to 5"):
        nearest(X, 1, G, left_out=np.arange(60) % 6)
    with pytest.raises(ShapeError, match="left_out of shape"):
        nearest(X, 1, G, left_out=[0])
    with pytest.raises(ShapeError, match="widths 8 and 7"):
        nearest(X, 1, G[:, :7])


def expectation(measure, A, B, k):
    """Mean over all orders of ties on both sides, by enumeration."""
    n = len(A)

    def tables(A):
        S = similarities(A, A, "inner")
        np.fill_diagonal(S, -np.inf)
        # One order of all rows for each row of the table would be n! to the n-th: the measures are sums over rows i
        # that use one row of each table (and for cycles one more), so orders are enumerated for single rows.
        found = []
        for i in range(n):
            lists = {tuple(sorted(range(n), key=lambda j, o=o: (-S[i, j], o[j]))[:k]) for o in permutations(range(n))}
            found.append(sorted(lists))
        return found

    ours, theirs = tables(A), tables(B)
    total = 0.0
    for i in range(n):
        if measure is cycle_knn:
            hits = [1 - np.prod([np.mean([i not in p for p in ours[j]]) for j in q]) for q in theirs[i]]
            total += np.mean(hits) / n
            continue
        values = {
            mutual_knn: lambda p, q: len(set(p) & set(q)) / k,
            lcs_knn: longest_common,
            edit_knn: lambda p, q: 1 - edits(p, q) / k,
        }[measure]
        total += np.mean([values(p, q) for p in ours[i] for q in theirs[i]]) / n
    return total


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(3))
def test_ties_count_with_the_mean_over_their_orders(measure, seed):
    rng = np.random.default_rng(seed)
    A, B = np.eye(2)[rng.integers(0, 2, 6)], np.eye(3)[rng.integers(0, 3, 6)]
    k = 1 + seed % 3
    expected = expectation(measure, A, B, k)
    if measure is mutual_knn:
        assert measure(A, B, k) == pytest.approx(expected, abs=1e-12)
        return
    orders = (rng.permutation(6) for _ in range(100))  # each is broken by other random orders
    values = [measure(A[order] * (1 + r), B[order], k) for r, order in enumerate(orders)]
    assert np.mean(values) == pytest.approx(expected, abs=5 * np.std(values) / 100**0.5 + 1e-12)


@pytest.mark.parametrize("metric", ["cosine", "inner"])
def test_overlap_of_two_searches_is_the_mean_over_orders_of_ties(metric):
    rng = np.random.default_rng(5)
    queries, rows, others = (
        rng.integers(-1, 2, (4, 3)) + 0.0,
        np.eye(3)[rng.integers(0, 3, 6)],
        rng.integers(1, 3, (6, 3)),
    )
    for k in (1, 2, 4):
        lists = []
        for gallery in (rows, others):
            unit = gallery / (np.linalg.norm(gallery, axis=1, keepdims=True) if metric == "cosine" else 1)
            S = np.round(queries @ unit.T, 12)
            lists.append(
                [
                    [sorted(range(6), key=lambda j, s=s, o=o: (-s[j], o[j]))[:k] for o in permutations(range(6))]
                    for s in S
                ]
            )
        shares = np.array([[np.mean([j in one for one in each]) for j in range(6)] for side in lists for each in side])
        expected = (shares[:4] * shares[4:]).sum(axis=1) / k
        got = neighbor_overlap((queries, rows), (queries, others), k, metric)
        np.testing.assert_allclose(got, expected, atol=1e-12)
    left_out = np.arange(4)
    distinct = rng.standard_normal((2, 9, 5))
    lists = [nearest(side[:4], 3, side, metric="cosine", left_out=left_out) for side in distinct]
    plain = [len(set(a) & set(b)) / 3 for a, b in zip(*map(np.ndarray.tolist, lists), strict=True)]
    got = neighbor_overlap(*((side[:4], side) for side in distinct), 3, left_out=left_out)
    np.testing.assert_allclose(got, plain, atol=1e-12)


TIED = {
    "labels": lambda rng, n: np.eye(10)[rng.integers(0, 10, n)],
    "copies": lambda rng, n: rng.standard_normal((n // 20, 8))[np.arange(n) % (n // 20)],
    "8-bit codes": lambda rng, n: np.round(rng.standard_normal((n, 2))),
    "failed encodes": lambda rng, n: rng.standard_normal((n, 8)) * (rng.random((n, 1)) > 0.3),
}


@pytest.mark.parametrize("kind", TIED)
@pytest.mark.parametrize("ordered", [False, True])
def test_tied_strangers_agree_by_chance(kind, ordered):
    n, k, rng = 400, 10, np.random.default_rng(1)
    values = []
    for _ in range(3):
        A, B = TIED[kind](rng, n), rng.permutation(TIED[kind](rng, n))
        if ordered:
            A = A[np.lexsort(A.T)]
        values.append([measure(A, B, k) for measure in (mutual_knn, cycle_knn)])
    mutual, cycle = np.mean(values, axis=0)
    assert mutual == pytest.approx(k / (n - 1), abs=0.005)
    assert cycle < 0.4  # 1 − (1 − k/n)^k = .22, more where a few rows are in most lists


@pytest.mark.parametrize(
    "name",
    [
        "mutual_knn",
        "cycle_knn",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("cknna", "lcs_knn", "edit_knn")),
    ],
)
@pytest.mark.parametrize(
    "kind", ["labels", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("8-bit codes", "failed encodes"))]
)
def test_p_values_of_tied_strangers_are_uniform(name, kind):
    metric, n, draws = ALL[name], 60, 39
    ps = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sides = [TIED[kind](rng, n) for _ in range(2)]
        sides[0] = sides[0][np.lexsort(sides[0].T)]
        first, second = (metric.prepare(A, "X") for A in sides)
        value = metric.compare(first, second)
        null = [metric.compare(first, metric.reorder(second, rng.permutation(n))) for _ in range(draws)]
        level = np.sum(np.isclose(null, value, rtol=0, atol=1e-12))
        ps.append((np.sum(np.asarray(null) > value + 1e-12) + rng.integers(0, level + 1)) / draws)
    assert kstest(np.asarray(ps) + np.random.default_rng(0).uniform(-0.5, 0.5, 40) / draws, "uniform").pvalue > 0.001


def test_many_ties_take_little_memory():
    n = 700
    ones = np.ones((n, 4), np.float32)
    tracemalloc.start()
    value = mutual_knn(ones, 2 * ones, 1)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert peak < 60
    assert value == pytest.approx(1 / (n - 1), rel=0.3)  # a sample of the ties
