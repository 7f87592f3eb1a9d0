from __future__ import annotations

import numpy as np
import pytest

from congruence.compare import pairing as wrong_pairs
from congruence.compare.pairing import Agreement, find_wrong_pairs
from congruence.synthetic import rigid_problem


def unit(n=24, d=8, noise=0.2, seed=0):
    p = rigid_problem(n, d, noise=noise, random_state=seed)
    return [Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (p.X, p.Y)]


def whitened_gram(Z):
    """The definition: K (K + ridge)⁻¹ of the centered Gram matrix K."""
    Z = Z - Z.mean(axis=0)
    K = Z @ Z.T
    return K @ np.linalg.inv(K + 3 * np.trace(K) / min(len(Z) - 1, Z.shape[1]) * np.eye(len(Z)))


def test_agreement_is_the_correlation_of_gram_rows_without_the_two_pairs():
    X, Y = unit()
    n = len(X)
    K, L = whitened_gram(X), whitened_gram(Y)
    expected = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            k = np.setdiff1d(np.arange(n), [i, j])
            a, b = K[i, k] - K[i, k].mean(), L[j, k] - L[j, k].mean()
            sizes = [np.std(np.delete(M[r], r)) * np.sqrt(n - 1) for M, r in ((K, i), (L, j))]
            expected[i, j] = a @ b / (sizes[0] * sizes[1])
    off = ~np.eye(n, dtype=bool)
    row = np.array([expected[i, off[i]].mean() for i in range(n)])
    column = np.array([expected[off[:, j], j].mean() for j in range(n)])
    contrast = expected - row[:, None] - column + expected[off].mean()
    row_sd = np.array([np.sqrt(np.mean(contrast[i, off[i]] ** 2)) for i in range(n)])
    column_sd = np.array([np.sqrt(np.mean(contrast[off[:, j], j] ** 2)) for j in range(n)])
    found = Agreement(X, Y, np.random.default_rng(0))
    np.testing.assert_allclose(
        found.among(np.arange(n)), contrast / np.sqrt(row_sd[:, None] * column_sd), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(found.evidence, np.diag(found.among(np.arange(n))))


def test_agreement_does_not_see_the_pair_it_judges():
    """Random rows have no agreement on average, though each is part of the sums it is judged by."""
    rng = np.random.default_rng(0)
    drawn = [Agreement(*rng.standard_normal((2, 30, 12)), rng).evidence for _ in range(60)]
    assert abs(np.mean(drawn)) < 4 / np.sqrt(60 * 30)
    assert 0.8 < np.std(drawn) < 1.2


def test_exchanged_partners_are_named_without_their_neighbors():
    X, Y = unit(60, 8, 0.3)
    Y[[4, 9, 17]] = Y[[9, 17, 4]]
    Y[[30, 31]] = Y[[31, 30]]
    rows, probability = find_wrong_pairs(X, Y, np.random.default_rng(0))
    assert set(rows) == {4, 9, 17, 30, 31}
    assert probability.min() > 0.9
    assert np.all(np.diff(probability) <= 0)


def test_blocks_do_not_hide_an_exchange(monkeypatch):
    X, Y = unit(200, 8, 0.3)
    Y[[0, 150]] = Y[[150, 0]]
    monkeypatch.setattr(wrong_pairs, "_BLOCK", 40)
    assert set(find_wrong_pairs(X, Y, np.random.default_rng(0))[0]) == {0, 150}


@pytest.mark.parametrize("side", [0, 1])
def test_equal_items_are_not_called_exchanged(side):
    """Many pictures of one class share one text: exchanging them changes nothing."""
    pair = unit(60, 8, 0.3)
    pair[side][:] = pair[side][np.arange(60) // 3 * 3]
    assert not len(find_wrong_pairs(*pair, np.random.default_rng(0))[0])


@pytest.mark.parametrize("seed", range(5))
def test_unrelated_and_constant_rows_name_nobody(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 6))
    assert not len(find_wrong_pairs(X, rng.standard_normal((40, 5)), rng)[0])
    assert not len(find_wrong_pairs(X, np.ones((40, 5)), rng)[0])
