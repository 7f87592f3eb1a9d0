"""What a set of anchors spans, and how much of other rows lies there."""

import json

import numpy as np
import pytest
import scipy.linalg

from congruence.theory import covered_share, covered_subspace


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_the_span_is_found_and_its_basis_is_orthonormal(rng):
    hidden = np.linalg.qr(rng.standard_normal((9, 4)))[0].T
    S = rng.standard_normal((30, 4)) @ hidden
    covered = covered_subspace(S)
    assert covered.rank == 4
    np.testing.assert_allclose(covered.basis @ covered.basis.T, np.eye(4), atol=1e-12)
    assert scipy.linalg.subspace_angles(covered.basis.T, hidden.T).max() < 1e-10
    np.testing.assert_allclose(covered.coordinates(S) @ covered.basis, S, atol=1e-10)
    np.testing.assert_allclose(covered.singular_values, np.linalg.svd(S, compute_uv=False))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_on_disk_opens_no_direction(rng, dtype):
    S = rng.standard_normal((400, 5)) @ np.linalg.qr(rng.standard_normal((40, 5)))[0].T
    S /= np.linalg.norm(S, axis=1, keepdims=True)
    assert covered_subspace(S.astype(dtype)).rank == 5


def test_the_share_of_a_query(rng):
    S = np.eye(6)[:2]
    share = covered_share(S, [[3, 0, 4, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 5]])
    np.testing.assert_allclose(share.shares, [0.36, 1, 0], atol=1e-15)
    assert share.quantiles["min"] == 0
    assert share.quantiles["50%"] == pytest.approx(0.36)
    assert json.loads(json.dumps(share.to_dict()))["rank"] == 2
    X = rng.standard_normal((50, 6))
    R = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    turned = covered_share(7 * S @ R, X @ R)
    np.testing.assert_allclose(turned.shares, covered_share(S, X).shares, atol=1e-12)
    np.testing.assert_allclose(turned.shares, np.sum(X[:, :2] ** 2, axis=1) / np.sum(X**2, axis=1), atol=1e-12)


def test_cutting_by_size_or_by_rank(rng):
    S = np.diag([1.0, 0.1, 0.001])
    assert covered_subspace(S).rank == 3
    assert covered_subspace(S, rtol=0.01).rank == 2
    assert covered_subspace(S, rank=1).rank == 1
