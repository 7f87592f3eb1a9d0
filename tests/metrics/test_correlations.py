import warnings

import numpy as np
import pytest
import torch
from samples import recipe
from scipy.linalg import eigh, inv, sqrtm, subspace_angles
from scipy.spatial.distance import pdist
from scipy.stats import ortho_group, pearsonr
from sklearn.decomposition import PCA, KernelPCA

from congruence.errors import InputError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.metrics import CCAFit, cca, fit_cca, pwcca, svcca

X, Y = recipe()
RNG = np.random.default_rng(1)
MEASURES = {
    "cca": cca,
    "cca without reduction": lambda A, B: cca(A, B, reduce=None),
    "kernel cca": lambda A, B: cca(A, B, reduce="kernel", rank=3),
    "svcca": svcca,
    "pwcca": pwcca,
}


def principal_angles(A, B):
    """Canonical correlations as cosines of the angles between the column spaces (SciPy)."""
    return np.cos(subspace_angles(A - A.mean(0), B - B.mean(0)))[::-1]


def covariances(A, B):
    d = A.shape[1]
    C = np.cov(A, B, rowvar=False)
    return C[:d, :d], C[:d, d:], C[d:, d:]


def test_values_of_cca_zoo():
    """cca-zoo 4.0.1: CCA(n_components=5).fit([X, Y]), np.corrcoef of the columns of transform([X, Y])."""
    expected = [0.8561895511790748, 0.7302265079403183, 0.6631773062948292, 0.5226988770282012, 0.2504261172154358]
    np.testing.assert_allclose(np.sort(cca(X, Y, reduce=None, components="all"))[::-1], expected, atol=1e-10)
    assert cca(X, Y) == pytest.approx(0.6045436719315718, abs=1e-10)
    assert cca(X, Y, components="first") == pytest.approx(expected[0], abs=1e-10)


@pytest.mark.parametrize("shape", [(40, 6, 5), (4, 2, 1), (12, 6, 9), (200, 30, 70)])
def test_without_reduction_it_is_the_angles_between_spans(shape):
    n, d, e = shape
    A, B = RNG.standard_normal((n, d)), RNG.standard_normal((n, e)) * 100 + 7
    np.testing.assert_allclose(cca(A, B, reduce=None, components="all"), principal_angles(A, B), atol=1e-8)


def test_pca_reduction_is_scikit_learns():
    A, B = RNG.standard_normal((50, 20)), RNG.standard_normal((50, 12))
    a, b = (PCA(6, svd_solver="full").fit_transform(M) for M in (A, B))
    np.testing.assert_allclose(cca(A, B, rank=6, components="all"), principal_angles(a, b), atol=1e-8)


@pytest.mark.parametrize("spread", [0.3, 0.9, 1.0])  # near 1 the components that lead are not told apart
@pytest.mark.parametrize("shift", [0.0, 5.0, 300.0])
def test_single_precision_keeps_six_digits(spread, shift):
    rng = np.random.default_rng(2)
    A = (rng.standard_normal((900, 60)) * spread ** np.arange(60) + shift).astype(np.float32)
    B = (A @ rng.standard_normal((60, 50)) + rng.standard_normal((900, 50))).astype(np.float32)
    for rank in (5, 40):
        found, expected = (cca(*sides, rank=rank) for sides in ((A, B), (A.astype(float), B.astype(float))))
        assert found == pytest.approx(expected, abs=1e-6)
    for scale in (-60, 60):
        scaled = np.ldexp(A, scale)
        assert cca(scaled, B, rank=5) == pytest.approx(cca(A, B, rank=5), abs=1e-6)


def test_kernel_reduction_is_scikit_learns():
    A, B = RNG.standard_normal((31, 5)), RNG.standard_normal((31, 3)) * 100
    a, b = (
        KernelPCA(6, kernel="rbf", gamma=1 / (2 * np.median(pdist(M, "sqeuclidean")))).fit_transform(M) for M in (A, B)
    )
    np.testing.assert_allclose(cca(A, B, rank=6, reduce="kernel", components="all"), principal_angles(a, b), atol=1e-8)


@pytest.mark.parametrize("ridge", [0.01, 1.0])
@pytest.mark.parametrize("options", [{"reduce": None}, {"rank": 4}])
def test_ridge_is_its_definition(ridge, options):
    A, B = X, Y
    if "rank" in options:
        A, B = (PCA(4, svd_solver="full").fit_transform(M) for M in (X, Y))
    Cxx, Cxy, Cyy = covariances(A, B)
    Cxx, Cyy = (C + ridge * np.trace(C) / len(C) * np.eye(len(C)) for C in (Cxx, Cyy))
    expected = np.linalg.svd(inv(sqrtm(Cxx)) @ Cxy @ inv(sqrtm(Cyy)), compute_uv=False)
    np.testing.assert_allclose(cca(X, Y, ridge=ridge, components="all", **options), expected, atol=1e-8)
    np.testing.assert_allclose(fit_cca(X, Y, ridge=ridge, **options).correlations, expected, atol=1e-8)


def test_an_ill_conditioned_side_costs_no_digits():
    """Covariances of this side have a condition number of 1e20; the angles do not notice."""
    stretched = X * np.logspace(0, -10, 6)
    np.testing.assert_allclose(cca(stretched, Y, reduce=None), cca(X, Y, reduce=None), atol=1e-12)


def test_constant_columns_copies_and_dependent_columns_are_no_matter():
    expected = cca(X, Y, reduce=None, components="all")
    A = np.column_stack([np.full(40, 0.1), X, X[:, 0] - 2 * X[:, 1], np.full(40, 1e9)])
    for options in ({"reduce": None}, {}):
        np.testing.assert_allclose(cca(A, Y, components="all", **options), expected, atol=1e-10)
    twice = cca(np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0), components="all")
    np.testing.assert_allclose(twice, expected, atol=1e-10)


def test_more_dimensions_than_rows_saturate():
    A, B = RNG.standard_normal((2, 10, 30))
    np.testing.assert_allclose(cca(A, B, reduce=None, components="all"), np.ones(9), atol=1e-12)
    assert pwcca(A, B) == pytest.approx(1)
    A, B = RNG.standard_normal((2, 50, 30))  # 30 + 30 − 49 directions are shared whatever the data
    assert np.sum(cca(A, B, components="all") > 1 - 1e-9) == 11


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.99, 1.0, 3, 100])
def test_svcca_is_pca_then_cca(keep):
    A = RNG.standard_normal((60, 10)) * np.logspace(0, -2, 10)
    B = RNG.standard_normal((60, 7)) + A[:, :7]
    # scikit-learn's share must be in (0, 1) and its counts must exist
    want = [keep if keep < 1 or keep == 3 else d for d in (10, 7)]
    a, b = (PCA(k, svd_solver="full").fit_transform(M) for k, M in zip(want, (A, B), strict=True))
    np.testing.assert_allclose(svcca(A, B, keep=keep, components="all"), principal_angles(a, b), atol=1e-8)
    tensors = svcca(torch.tensor(A), torch.tensor(B), keep=keep, components="all")
    np.testing.assert_allclose(tensors.numpy(), principal_angles(a, b), atol=1e-8)
    assert svcca(A, B, keep=keep) == pytest.approx(principal_angles(a, b).mean(), abs=1e-8)


def test_a_share_reached_exactly_is_reached():
    F = np.linalg.qr(np.column_stack([np.ones(8), RNG.standard_normal((8, 4))]))[0][:, 1:]
    assert len(svcca(F, F, keep=0.5, components="all")) == 2
    assert len(svcca(F, F, keep=0.75, components="all")) == 3
    assert len(svcca(F, F, keep=1, components="all")) == 1
    assert len(svcca(F, F, keep=1.0, components="all")) == 4


def pwcca_definition(A, B):
    """Morcos et al. (2018), section 2.1, from covariances: variates h, weights Σ|⟨h, z⟩| over the columns z of A."""
    A, B = A - A.mean(0), B - B.mean(0)
    Cxx, Cxy, Cyy = covariances(A, B)
    values, directions = eigh(Cxy @ inv(Cyy) @ Cxy.T, Cxx)
    k = min(A.shape[1], B.shape[1])
    rho, h = np.sqrt(values[::-1][:k].clip(0, 1)), A @ directions[:, ::-1][:, :k]
    alpha = np.abs((h / np.linalg.norm(h, axis=0)).T @ A).sum(1)
    return rho @ alpha / alpha.sum()


@pytest.mark.parametrize("pair", [(X, Y), (Y, X), (X[:, :2], Y), (X * [1, 2, 3, 4, 5, 6], Y + 3)])
def test_pwcca_is_its_definition(pair):
    assert pwcca(*pair) == pytest.approx(pwcca_definition(*pair), abs=1e-8)
    constant = np.column_stack([pair[0], np.full(40, 0.3)])
    assert pwcca(constant, pair[1]) == pytest.approx(pwcca_definition(*pair), abs=1e-8)


def test_pwcca_after_reduction_still_weighs_by_all_columns():
    A, B = RNG.standard_normal((20, 40)), RNG.standard_normal((20, 30))
    a, b = (PCA(4, svd_solver="full").fit_transform(M) for M in (A, B))
    values, directions = eigh(
        covariances(a, b)[1] @ inv(covariances(a, b)[2]) @ covariances(a, b)[1].T, covariances(a, b)[0]
    )
    h = a @ directions
    alpha = np.abs((h / np.linalg.norm(h, axis=0)).T @ (A - A.mean(0))).sum(1)
    assert pwcca(A, B, rank=4) == pytest.approx(np.sqrt(values) @ alpha / alpha.sum(), abs=1e-8)


@pytest.mark.parametrize("options", [{"reduce": None}, {}, {"rank": 3}])
def test_on_the_rows_fitted_score_is_cca(options):
    fit = fit_cca(X, Y, **options)
    expected = cca(X, Y, components="all", **options)
    np.testing.assert_allclose(fit.correlations, expected, atol=1e-10)
    np.testing.assert_allclose(fit.score(X, Y, components="all"), expected, atol=1e-10)
    assert fit.score(X, Y) == pytest.approx(expected.mean())
    assert fit.score(X, Y, components="first") == pytest.approx(expected[0])
    a, b = fit.transform(X, Y)
    np.testing.assert_allclose(np.cov(a, rowvar=False), np.eye(len(expected)), atol=1e-10)
    np.testing.assert_allclose(np.cov(b, rowvar=False), np.eye(len(expected)), atol=1e-10)
    np.testing.assert_allclose(np.r_[a.mean(0), b.mean(0)], 0, atol=1e-12)


def test_held_out_is_scipys_correlation_of_projections():
    fit = fit_cca(X[:25], Y[:25])
    a, b = (X[25:] - X[:25].mean(0)) @ fit.x_projection, (Y[25:] - Y[:25].mean(0)) @ fit.y_projection
    expected = [pearsonr(u, v).statistic for u, v in zip(a.T, b.T, strict=True)]
    np.testing.assert_allclose(fit.score(X[25:], Y[25:], components="all"), expected, atol=1e-10)


def test_noise_looks_related_in_sample_only():
    A, B = np.random.default_rng(0).standard_normal((2, 600, 100))
    fit = fit_cca(A[:100], B[:100], rank=60)
    assert fit.correlations[0] == pytest.approx(1)
    assert abs(fit.score(A[100:], B[100:])) < 0.05


def test_constant_columns_get_no_weight():
    A = np.column_stack([np.full(40, 0.1), X])
    for options in ({"reduce": None}, {}):
        fit = fit_cca(A, Y, **options)
        np.testing.assert_allclose(fit.x_projection[0], 0, atol=1e-12)
        np.testing.assert_allclose(fit.correlations, cca(X, Y, components="all"), atol=1e-10)


def test_score_refuses_what_it_cannot_correlate():
    fit = fit_cca(X, Y)
    assert isinstance(fit, CCAFit)
    with pytest.raises(ShapeError, match="7 features"):
        fit.score(np.ones((5, 7)), Y[:5])
    with pytest.raises(ShapeError, match="6 features"):
        fit.score(X[:5], X[:5])
    with pytest.raises(ShapeError, match="5 rows of X and 4"):
        fit.score(X[:5], Y[:4])
    with pytest.raises(TooFewAnchorsError):
        fit.score(X[:1], Y[:1])
    with pytest.raises(InputError, match="does not vary"):
        fit.score(np.tile(X[0], (5, 1)), Y[:5])
    with pytest.raises(ParameterError):
        fit.score(X, Y, components="some")


@pytest.mark.parametrize("name", MEASURES)
def test_extreme_scales_precision_and_tensors(name):
    fn = MEASURES[name]
    value = fn(X, Y)
    assert type(value) is float
    for scale in (1e-170, 1e160):
        assert fn(X * scale, Y) == pytest.approx(value, abs=1e-8)
    for dtype in (np.float16, np.float32):
        A, B = X.astype(dtype), Y.astype(dtype)
        assert fn(A, B) == pytest.approx(fn(A.astype(np.float64), B.astype(np.float64)), abs=1e-12)
        tensor = fn(torch.tensor(A), torch.tensor(B))
        assert (tensor.shape, tensor.dtype, float(tensor)) == ((), torch.float64, pytest.approx(fn(A, B), abs=1e-10))


@pytest.mark.parametrize("name", MEASURES)
def test_four_rows_will_do(name):
    value = MEASURES[name](X[:4, :2], Y[:4, :1])
    assert 0 <= value <= 1
    assert 0 <= MEASURES[name](X[:4], Y[:4]) <= 1
    assert 0 <= MEASURES[name](X[:2], Y[:2]) <= 1


@pytest.mark.parametrize("shape", [(12, 3, 2), (5, 7, 6)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: cca(a, b, reduce=None),
        lambda a, b: cca(a, b, rank=2),
        lambda a, b: cca(a, b, rank=2, components="all"),
        lambda a, b: cca(a, b, ridge=0.1),
        lambda a, b: cca(a, b, reduce="kernel", rank=2),
        lambda a, b: svcca(a, b, keep=0.7),
        lambda a, b: pwcca(a, b, rank=2),
    ],
)
def test_gradients(fn, shape):
    n, d, e = shape
    rng = np.random.default_rng(2)
    A, B = (torch.tensor(rng.standard_normal((n, k)), requires_grad=True) for k in (d, e))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(fn, (A, B), fast_mode=True)


def test_gradients_of_whitened_data_are_finite():
    F = torch.tensor(ortho_group.rvs(8, random_state=0)[:, :3], requires_grad=True)
    cca(F, torch.tensor(Y[:8]), reduce=None).backward()
    assert torch.isfinite(F.grad).all()


def test_a_bandwidth_of_zero_is_refused():
    with pytest.raises(InputError, match="median distance"):
        cca(np.r_[X[:2], np.repeat(X[2:3], 38, axis=0)], Y, reduce="kernel")


@pytest.mark.parametrize("name", [*MEASURES, "fit_cca"])
def test_equal_rows_are_refused_whatever_the_rounding(name):
    flat = np.tile([0.1, 0.2, 3e8], (40, 1))
    for sides in ((flat, Y), (X, flat)):
        with pytest.raises(InputError):
            {**MEASURES, "fit_cca": fit_cca}[name](*sides)


def test_bad_options_are_refused():
    for options in (
        {"components": "some"},
        {"rank": 0},
        {"rank": 2.5},
        {"reduce": "ica"},
        {"ridge": -1},
        {"ridge": float("nan")},
    ):
        with pytest.raises(ParameterError):
            cca(X, Y, **options)
    for keep in (0, -0.1, 1.5, 0.0, True, "all"):
        with pytest.raises(ParameterError):
            svcca(X, Y, keep=keep)
    with pytest.raises(ParameterError):
        pwcca(X, Y, rank=0)
    with pytest.raises(ParameterError, match="'pca', None"):
        fit_cca(X, Y, reduce="kernel")
