import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import KINDS, sample, shares, similarities

from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.metrics import cknna

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 8)), RNG.standard_normal((50, 5))


def mask(K, k):
    return shares(np.where(np.eye(len(K)), -np.inf, K), k)


def song(K, L):
    """Unbiased HSIC, Song et al. (2012), eq. (5)."""
    n = len(K)
    K, L = K * (1 - np.eye(n)), L * (1 - np.eye(n))
    one = np.ones(n)
    middle = (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
    terms = np.trace(K @ L), middle, -2 / (n - 2) * (one @ K @ L @ one)
    return sum(terms) / (n * (n - 3)), sum(map(abs, terms)) / (n * (n - 3))


def kept(value, size):
    """Share of a sum that its cancelling terms leave."""
    return value / size if size else 0.0


def full_huh(A, B, k):
    K, L = similarities(A, A), similarities(B, B)
    M, N = mask(K, k), mask(L, k)
    kl, kk, ll = song(M * N * K, M * N * L), song(M * K, M * K), song(N * L, N * L)
    left = min(kept(*kk), kept(*ll))
    return kl[0] / np.sqrt(kk[0] * ll[0]) if left > 0 else None, left


def full_jam(A, B, k):
    K, L = similarities(A, A), similarities(B, B)
    n = len(K)
    H = np.eye(n) - 1 / n
    M, N = mask(K, k), mask(L, k)
    K, L = H @ K @ H, H @ L @ H
    kk, ll = (M * K * K).sum(), (N * L * L).sum()
    left = min(kk, ll)
    return (M * N * K * L).sum() / np.sqrt(kk * ll) if left > 0 else None, left


def debiased_cka(A, B):
    """U-centered Gram matrices (Székely and Rizzo 2014): another road to the same number."""

    def centered(A):
        K = similarities(A, A)
        n = len(K)
        np.fill_diagonal(K, 0)
        rows = K.sum(axis=0)
        K = K - (rows[:, None] + rows) / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(K, 0)
        return K

    K, L = centered(A), centered(B)
    return (K * L).sum() / np.sqrt((K * K).sum() * (L * L).sum())


FULL = {"huh": full_huh, "jam": full_jam}
DISTINCT = [kind for kind in KINDS if kind != "near copies"]  # of which rounding would be all the alignment


@pytest.mark.parametrize("definition", FULL)
@pytest.mark.parametrize("kind", DISTINCT)
@given(
    seed=st.integers(0, 10**6),
    n=st.sampled_from([4, 5, 6, 9, 17, 30, 45]),
    widths=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    k=st.sampled_from(["one", "all", "some", "few"]),
)
def test_the_definition_written_out(definition, kind, seed, n, widths, k):
    A, B = sample(seed, n, widths[0], kind), sample(seed + 1, n, widths[1], kind)
    if seed % 2:  # spaces that have something in common
        signs = np.random.default_rng(seed).integers(-1, 2, (widths[0], widths[1])).astype(A.dtype)
        B = np.einsum("ij,jk->ik", A, signs).astype(A.dtype)  # of equal rows equal ones, which BLAS does not promise
    k = {"one": 1, "all": n - 1, "some": 1 + seed % (n - 1), "few": min(3, n - 1)}[k]
    expected, left = FULL[definition](A, B, k)
    assume(abs(left) > 1e-8)  # else rounding decides, in the reference too
    if expected is None:
        with pytest.raises(InputError, match="not positive"):
            cknna(A, B, k, definition=definition)
        return
    got = cknna(A, B, k, definition=definition)
    assert type(got) is float
    assert got == pytest.approx(expected, rel=max(1e-10, 1e-14 / left), abs=1e-10)


@given(seed=st.integers(0, 10**6), n=st.integers(5, 60), kind=st.sampled_from(DISTINCT))
def test_all_neighbors_give_debiased_cka(seed, n, kind):
    A, B = sample(seed, n, 6, kind), sample(seed + 1, n, 9, kind)
    assume(min(len(np.unique(A, axis=0)), len(np.unique(B, axis=0))) > 3)
    assert cknna(A, B, n - 1) == pytest.approx(debiased_cka(A, B), rel=1e-10, abs=1e-10)


def test_changing_places_changes_huh_and_not_jam():
    assert cknna(X, Y, 12) != pytest.approx(cknna(Y, X, 12), rel=1e-6)
    assert cknna(X, Y, 12, definition="jam") == pytest.approx(cknna(Y, X, 12, definition="jam"), rel=1e-12)


def test_jam_without_its_masks_is_nearly_biased_cka():
    """Eq. (6) leaves the diagonal out, so all neighbors do not quite give eq. (4)."""
    H = np.eye(50) - 1 / 50
    K, L = H @ similarities(X, X) @ H, H @ similarities(Y, Y) @ H
    whole = (K * L).sum() / np.sqrt((K * K).sum() * (L * L).sum())
    np.fill_diagonal(K, 0)
    np.fill_diagonal(L, 0)
    without = (K * L).sum() / np.sqrt((K * K).sum() * (L * L).sum())
    got = cknna(X, Y, 49, definition="jam")
    assert got == pytest.approx(without, rel=1e-10)
    assert got != pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("definition", FULL)
def test_no_variation_has_no_value(definition):
    same = np.tile(RNG.standard_normal(7), (12, 1))
    with pytest.raises(InputError, match="alignment of X with itself"):
        cknna(same, Y[:12], 11, definition=definition)
    with pytest.raises(InputError, match="alignment of Y with itself"):
        cknna(Y[:12], same.astype(np.float32), 11, definition=definition)
    with pytest.raises(InputError, match="alignment of X with itself"):
        cknna(np.zeros((12, 3)), Y[:12], 4, definition=definition)


def test_what_cannot_be_is_refused():
    for error, words, call in (
        (TooFewAnchorsError, "at least 4", lambda: cknna(X[:3], Y[:3], 1)),
        (ParameterError, "n_neighbors ≤ 49", lambda: cknna(X, Y, 50)),
        (ParameterError, "n_neighbors=0", lambda: cknna(X, Y, 0)),
        (ParameterError, "'huh', 'jam'", lambda: cknna(X, Y, definition="other")),
        (ShapeError, "50 rows of X and 49", lambda: cknna(X, Y[:49])),
    ):
        with pytest.raises(error, match=words):
            call()
    with pytest.raises(ShapeError):
        cknna(X[:0], Y[:0])
    bad = X.copy()
    bad[7, 0] = np.inf
    with pytest.raises(NotFiniteError, match="row"):
        cknna(bad, Y)


def test_no_square_array_is_built():
    n = 6000
    big = RNG.standard_normal((n, 4)).astype(np.float32)
    for definition in FULL:
        tracemalloc.start()
        cknna(big, big, definition=definition)
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert peak < 55 < n * n * 4 / 2**20  # the square array has 137 MB
