"""Definition 5.4 against what is known in closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import congruence.theory.spanning as spanning
from congruence.errors import NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence.theory import anchors_needed, covered_subspace, sym_spanning
from congruence.theory.spanning import features, pack, quadratic_forms, unpack


def sphere(n: int, d: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def frame(d: int) -> np.ndarray:
    """The basis vectors and the sums of two of them, scaled to the sphere."""
    pairs = [(np.eye(d)[i] + np.eye(d)[j]) / np.sqrt(2) for i in range(d) for j in range(i)]
    return np.array([*np.eye(d), *pairs])


def on_a_cone(n: int, M: np.ndarray, seed: int = 0) -> np.ndarray:
    """Unit vectors with xᵀ M x = 0: the components along positive eigenvalues scaled to balance the others."""
    values, V = np.linalg.eigh(M)
    X = np.random.default_rng(seed).standard_normal((n, len(M)))
    up = values > 0
    X[:, up] *= np.sqrt(-(X[:, ~up] ** 2 @ values[~up]) / (X[:, up] ** 2 @ values[up]))[:, None]
    X = X @ V.T
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@given(st.integers(1, 7), st.integers(0, 10**6))
def test_half_vectorisation_keeps_products(d, seed):
    rng = np.random.default_rng(seed)
    M, N = (m + m.T for m in rng.standard_normal((2, d, d)))
    np.testing.assert_allclose(pack(M) @ pack(N), np.sum(M * N), atol=1e-12)
    np.testing.assert_allclose(unpack(pack(M), d), M, atol=1e-14)
    X = rng.standard_normal((4, d))
    np.testing.assert_allclose(features(X) @ pack(M), [x @ M @ x for x in X], atol=1e-11)
    np.testing.assert_allclose(quadratic_forms(X, M), [x @ M @ x for x in X], atol=1e-11)


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_a_basis_with_its_sums_spans(d):
    found = sym_spanning(frame(d))
    assert found.n == found.dimension == anchors_needed(d)
    assert found.spans
    assert found.exact
    assert found.rank == anchors_needed(d)
    assert not sym_spanning(np.eye(d)).spans or d == 1


@given(st.integers(2, 8), st.integers(0, 10**6))
def test_generic_rows_span_from_d_times_d_plus_one_over_two(d, seed):
    S = sphere(anchors_needed(d), d, seed)
    assert sym_spanning(S).spans
    assert not sym_spanning(S[:-1]).spans
    assert sym_spanning(S[:-1]).rank == len(S) - 1
    assert sym_spanning(np.vstack([S[:-1], S[:1]])).rank == len(S) - 1


def test_rows_on_a_cone_do_not_span():
    M = np.diag([1.0, 2, -1, -3, 0.5])
    S = on_a_cone(200, M)
    found = sym_spanning(S)
    assert not found.spans
    assert found.rank == 14
    assert abs(np.sum(found.witness * M)) / np.linalg.norm(M) == pytest.approx(1, abs=1e-8)
    assert np.abs(quadratic_forms(S, found.witness)).max() < 1e-10
    assert "rank 14 of 15" in found.in_words()


def test_sigma_min_is_numpys():
    S = sphere(300, 9)
    s = np.linalg.svd(np.array([pack(np.outer(x, x)) for x in S]), compute_uv=False)
    found = sym_spanning(S)
    np.testing.assert_allclose([found.sigma_max, found.sigma_min], [s[0], s[-1]])
    assert np.linalg.norm(quadratic_forms(S, found.witness)) == pytest.approx(s[-1])
    R = np.linalg.qr(np.random.default_rng(1).standard_normal((9, 9)))[0]
    assert sym_spanning(S @ R).sigma_min == pytest.approx(s[-1])


def test_rows_in_many_blocks_are_one_matrix(monkeypatch):
    S = sphere(300, 5)
    whole = sym_spanning(S)
    monkeypatch.setattr(spanning, "blocks", lambda n, *_, **__: [slice(k, k + 15) for k in range(0, n, 15)])
    np.testing.assert_allclose(sym_spanning(S).sigma_min, whole.sigma_min)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_features_the_smallest_singular_value_is_the_same(monkeypatch, seed):
    S = sphere(400, 10, seed) * np.arange(1, 11) ** -0.7 + 0.1
    whole = sym_spanning(S)
    monkeypatch.setattr(spanning, "DENSE", 20)
    found = sym_spanning(S, random_state=seed)
    assert found.spans
    assert not found.exact
    assert found.sigma_min == pytest.approx(whole.sigma_min, rel=1e-5)
    assert found.sigma_min >= whole.sigma_min * (1 - 1e-12)
    assert found.sigma_max == pytest.approx(whole.sigma_max, rel=1e-5)


def test_without_features_a_cone_and_a_hyperplane_are_found(monkeypatch):
    monkeypatch.setattr(spanning, "DENSE", 20)
    S = on_a_cone(400, np.diag([1.0, 2, -1, -3, 0.5, 1]))
    flat = sphere(400, 6) * [1, 1, 1, 1, 1, 0]
    for rows in (S, flat):
        found = sym_spanning(rows)
        assert not found.spans
        assert not found.exact
        assert found.rank <= 20
        assert np.abs(quadratic_forms(rows, found.witness)).max() < 1e-6


def test_too_few_rows_leave_a_map_that_is_no_rotation():
    S = sphere(60, 30)
    found = sym_spanning(S)
    assert (found.spans, found.rank, found.exact, found.sigma_min) == (False, 60, True, 0)
    assert "takes 465" in found.in_words()
    values, V = np.linalg.eigh(np.eye(30) + 0.9 * found.witness / np.linalg.norm(found.witness, 2))
    A = V * np.sqrt(values) @ V.T
    np.testing.assert_allclose(np.linalg.norm(S @ A, axis=1), 1, atol=1e-12)
    assert np.linalg.norm(A.T @ A - np.eye(30), 2) == pytest.approx(0.9)


def test_too_few_rows_of_which_some_repeat(monkeypatch):
    S = sphere(40, 20)
    S = np.vstack([S, S[:7]])
    found = sym_spanning(S)
    assert (found.rank, found.exact) == (40, True)
    monkeypatch.setattr(spanning, "_FEATURES", 10)
    bound = sym_spanning(S)
    assert (bound.rank, bound.exact) == (40, False)
    monkeypatch.setattr(spanning, "DENSE", 10)
    assert sym_spanning(S).rank <= 10
    assert sym_spanning(S).witness is None


def test_inside_a_subspace_fewer_rows_do():
    hidden = np.linalg.qr(np.random.default_rng(2).standard_normal((50, 4)))[0].T
    S = sphere(10, 4) @ hidden
    assert not sym_spanning(S).spans
    assert sym_spanning(covered_subspace(S).coordinates(S)).spans


def test_the_tolerance_is_the_callers():
    S = sphere(6, 3)
    found = sym_spanning(S)
    assert not sym_spanning(S, rtol=1.01 * found.sigma_min / found.sigma_max).spans
    assert sym_spanning(S, rtol=0.99 * found.sigma_min / found.sigma_max).spans
    near = on_a_cone(100, np.diag([1.0, 1, -1, -1]))
    assert not sym_spanning(near.astype(np.float16)).spans
    assert not sym_spanning(near.astype(np.float32)).spans


def test_bad_rows_are_refused():
    with pytest.raises(NotFiniteError):
        sym_spanning([[np.inf, 1.0]])
    with pytest.raises(ZeroRowError):
        sym_spanning(np.zeros((2, 2)))
    with pytest.raises(ShapeError):
        sym_spanning(np.empty((0, 3)))
    with pytest.raises(ParameterError):
        sym_spanning(np.eye(2), rtol=-1)
    for d in (0, 2.5, -3):
        with pytest.raises(ParameterError):
            anchors_needed(d)


def test_plain_data():
    data = json.loads(json.dumps(sym_spanning(sphere(5, 2)).to_dict()))
    assert data["spans"] is True
    assert np.shape(data["witness"]) == (2, 2)
