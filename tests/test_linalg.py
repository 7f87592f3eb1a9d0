import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from congruence import CCAMap
from congruence.linalg.canonical import canonical_correlations, canonical_directions, whiten
from congruence.linalg.procrustes import cross_svd, half_svd, procrustes, rotation_from_svd
from congruence.linalg.shrinkage import soft_gains, wiener_gains
from congruence.metrics import cca, fit_cca
from congruence.synthetic import random_rotation, rigid_problem


def test_procrustes_is_scipys():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((2, 50, 7))
    np.testing.assert_allclose(procrustes(X, Y), scipy.linalg.orthogonal_procrustes(X, Y)[0], atol=1e-12)
    np.testing.assert_allclose(procrustes(X.astype("f4"), Y.astype("f4")), procrustes(X, Y), atol=1e-5)


def test_the_polar_factor_is_scipys():
    M = np.random.default_rng(1).standard_normal((6, 6))
    np.testing.assert_allclose(rotation_from_svd(cross_svd(M)), scipy.linalg.polar(M)[0], atol=1e-12)


def test_rank_ignores_rounding_noise_and_obeys_bounds():
    rng = np.random.default_rng(2)
    M = rng.standard_normal((20, 4)) @ rng.standard_normal((4, 20))
    assert cross_svd(M).rank == 4
    assert cross_svd(M, max_rank=3).rank == 3
    assert cross_svd(M * 1e-20, scale=1.0).rank == 0
    assert cross_svd(np.zeros((3, 3))).rank == 0


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_half_the_work_gives_the_same_system_to_half_the_digits(shape, size):
    M = np.random.default_rng(0).standard_normal(shape)
    quick, exact = half_svd(M * size), cross_svd(M)
    np.testing.assert_allclose(quick.s / size, exact.s, rtol=1e-9)
    np.testing.assert_allclose(rotation_from_svd(quick), rotation_from_svd(exact), atol=1e-9)
    assert quick.rank == exact.rank == 4 + (shape == (5, 5))


@pytest.mark.parametrize("shape", [(60, 60), (60, 90), (90, 60)])
@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_a_sketch_of_a_low_rank_is_lapacks_decomposition_to_rounding(shape, size):
    rng = np.random.default_rng(0)
    (U, _), (V, _) = (np.linalg.qr(rng.standard_normal((d, 9))) for d in shape)
    s = np.geomspace(1.0, 1e-6, 9)
    M = U * s @ V.T * size
    quick = cross_svd(M, max_rank=12, complete=False)
    assert (quick.U.shape, quick.s.shape, quick.Vt.shape) == ((shape[0], 12), (60,), (12, shape[1]))
    assert quick.rank == 9
    lapack = scipy.linalg.svd(M, full_matrices=False)
    np.testing.assert_allclose(quick.s / size, lapack[1] / size, atol=1e-14)
    np.testing.assert_allclose((quick.U * (quick.s[:12] / size)) @ quick.Vt, M / size, atol=1e-14)
    whole = lapack[0][:, :9] @ lapack[2][:9]
    # Rounding is 1e-15 of the first, in the direction of the last.
    np.testing.assert_allclose(quick.U[:, :9] @ quick.Vt[:9], whole, atol=1e-8)
    np.testing.assert_allclose(quick.U.T @ quick.U, np.eye(12), atol=1e-13)


def test_the_slow_driver_is_used_when_the_fast_one_gives_up(monkeypatch):
    real = scipy.linalg.svd

    def moody(M, **options):
        if "lapack_driver" not in options:
            raise np.linalg.LinAlgError("did not converge")
        return real(M, **options)

    monkeypatch.setattr(scipy.linalg, "svd", moody)
    M = np.random.default_rng(3).standard_normal((5, 5))
    svd = cross_svd(M)
    np.testing.assert_allclose((svd.U * svd.s) @ svd.Vt, M, atol=1e-12)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0, 5), st.floats(0.01, 1))
def test_filters_stay_between_nothing_and_everything(values, strength, alignment):
    s = np.sort(values)[::-1]
    for gains in (soft_gains(s, strength), wiener_gains(s, alignment, strength)):
        assert np.all((gains >= 0) & (gains <= 1))
        assert np.all(np.diff(gains) <= 1e-12)
        assert not gains[s == 0].any()


def test_the_noise_aware_filter_vanishes_with_the_noise():
    s = np.array([3.0, 1.0, 1e-3])
    assert np.array_equal(wiener_gains(s, 1.0, 0.1), np.ones(3))
    assert np.array_equal(wiener_gains(s, 1.0 + 1e-15, 0.1), np.ones(3))
    assert np.all(np.diff([wiener_gains(s, a, 0.1)[2] for a in (1.0, 0.99, 0.9, 0.5)]) < 0)
    assert np.array_equal(wiener_gains(s, 0.5, 0.0), np.ones(3))


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4)])
def test_random_rotations_are_semi_orthogonal_and_reproducible(shape):
    R = random_rotation(*shape, random_state=1)
    gram = R @ R.T if shape[0] <= shape[1] else R.T @ R
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-12)
    assert np.array_equal(R, random_rotation(*shape, random_state=1))


def test_random_rotations_are_uniform():
    """Haar measure: every entry has mean 0 and variance 1/d, and both determinants are equally likely."""
    draws = np.array([random_rotation(4, random_state=k) for k in range(800)])
    assert np.abs(draws.mean(0)).max() < 0.08
    assert np.abs(draws.var(0) - 0.25).max() < 0.05
    assert abs(np.mean([np.linalg.det(R) > 0 for R in draws]) - 0.5) < 0.07


def test_problems_are_what_they_say():
    p = rigid_problem(4000, 6, 9, noise=0.1, decay=1.0, rank=4, random_state=0)
    residual = p.Y - p.target_mean - (p.X - p.source_mean) @ p.rotation
    assert residual.std() == pytest.approx(0.1, rel=0.02)
    spectrum = np.linalg.svd(p.X - p.X.mean(0), compute_uv=False) / np.sqrt(4000)
    np.testing.assert_allclose(spectrum[:4], [1, 1 / 2, 1 / 3, 1 / 4], rtol=0.06)
    np.testing.assert_allclose(spectrum[4:], 0, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_canonical_directions_are_whitened_and_correlate_as_said(ridge):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((40, 6)), rng.standard_normal((40, 4))
    sides = [whiten(*np.linalg.svd(rows, full_matrices=False), ridge) for rows in (A, B)]
    found = canonical_directions(*sides)
    W, V = found.x_directions, found.y_directions
    np.testing.assert_allclose(W.T @ (A.T @ A + ridge * np.eye(6)) @ W, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(V.T @ (B.T @ B + ridge * np.eye(4)) @ V, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(W.T @ A.T @ B @ V, np.diag(found.correlations), atol=1e-12)
    np.testing.assert_allclose(canonical_correlations(np, sides[0][0], sides[1][0]), found.correlations, atol=1e-12)
    assert found.rank == 4


def test_the_map_and_the_metrics_solve_one_problem():
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((50, 6)), rng.standard_normal((50, 5))
    mapping = CCAMap(ridge=0, normalize=False).fit(X, Y)
    fit = fit_cca(X, Y, reduce=None)
    np.testing.assert_allclose(mapping.singular_values_, fit.correlations, atol=1e-12)
    np.testing.assert_allclose(fit.correlations, cca(X, Y, components="all", reduce=None), atol=1e-12)
    # The metric's variates have unit variance, the map's unit norm; signs are free.
    ratio = fit.x_projection / mapping.source_weights_
    np.testing.assert_allclose(np.abs(ratio), 7, rtol=1e-8)  # √(50 − 1)
