import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import ortho_group

from congruence.errors import InputError, ParameterError
from congruence.metrics.shape import procrustes_distance

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 7)) + 3, RNG.standard_normal((30, 4)) @ np.diag([1, 2, 3, 4])
WIDE = RNG.standard_normal((2, 10, 200))


def definition(A, B, kind):
    A, B = (M.astype(np.float64) - M.astype(np.float64).mean(0) for M in (A, B))
    nu = min(np.linalg.norm(A.T @ B, "nuc") / np.linalg.norm(A) / np.linalg.norm(B), 1)
    return np.arccos(nu) if kind == "angular" else np.sqrt(2 - 2 * nu)


@pytest.mark.parametrize("kind", ["angular", "euclidean"])
@pytest.mark.parametrize("pair", [(X, Y), (Y, X), tuple(WIDE), (WIDE[0], WIDE[1][:, :3]), (X[:4], Y[:4])])
def test_it_is_its_definition(pair, kind):
    assert procrustes_distance(*pair, kind=kind) == pytest.approx(definition(*pair, kind), abs=1e-10)


def test_scipys_disparity_is_the_squared_sine():
    """SciPy also scales one side to fit best, which leaves 1 − ν²."""
    disparity = scipy_procrustes(X[:, :4], Y)[2]
    assert np.sin(procrustes_distance(X[:, :4], Y)) ** 2 == pytest.approx(disparity, abs=1e-12)


def test_unscaled_distance_is_scipys_best_residual():
    A, B = X[:, :4] - X[:, :4].mean(0), Y - Y.mean(0)
    R, _ = orthogonal_procrustes(A, B)
    got = procrustes_distance(X[:, :4], Y, kind="euclidean", scale=False)
    assert got == pytest.approx(np.linalg.norm(A @ R - B), abs=1e-10)


@given(st.integers(0, 10**6), st.sampled_from(["angular", "euclidean"]))
def test_the_triangle_inequality(seed, kind):
    rng = np.random.default_rng(seed)
    A, B, C = (rng.standard_normal((8, d)) for d in (3, 5, 20))
    ab, bc, ac = (procrustes_distance(*pair, kind=kind) for pair in ((A, B), (B, C), (A, C)))
    assert ac <= ab + bc + 1e-12


def test_two_tight_shapes_keep_their_digits():
    """arccos of the nuclear norm would say 0, or 1e-8, for anything nearer than 1e-8."""
    move = RNG.standard_normal(X.shape)
    distances = [procrustes_distance(X, X + step * move) for step in (1e-9, 1e-10, 1e-11)]
    np.testing.assert_allclose(np.divide(distances[:-1], distances[1:]), 10, rtol=1e-3)


@pytest.mark.parametrize("sizes", [(8, 3, 2), (4, 6, 6), (3, 40, 30)])
@pytest.mark.parametrize("options", [{}, {"kind": "euclidean"}, {"kind": "euclidean", "scale": False}])
def test_gradients(sizes, options):
    n, d, e = sizes
    rng = np.random.default_rng(1)
    A, B = (torch.tensor(rng.standard_normal((n, k)), requires_grad=True) for k in (d, e))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(lambda a, b: procrustes_distance(a, b, **options), (A, B))


def test_gradients_stay_finite_where_decompositions_have_none():
    rng = np.random.default_rng(1)
    whitened = torch.tensor(ortho_group.rvs(8, random_state=0)[:, :3], requires_grad=True)
    copies = torch.tensor(np.repeat(rng.standard_normal((4, 40)), 2, axis=0), requires_grad=True)
    procrustes_distance(whitened, copies).backward()
    procrustes_distance(copies, copies * 1).backward()
    assert torch.isfinite(whitened.grad).all()
    assert torch.isfinite(copies.grad).all()


def testequal_rows_and_bad_options_are_refused():
    flat = np.full((30, 3), 0.1)
    for sides in ((flat, Y), (X, flat)):
        with pytest.raises(InputError):
            procrustes_distance(*sides)
    with pytest.raises(ParameterError, match="'angular', 'euclidean'"):
        procrustes_distance(X, Y, kind="riemann")
    with pytest.raises(ParameterError, match="does not depend on scale"):
        procrustes_distance(X, Y, scale=False)
