import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import ortho_group

from congruence.errors import InputError
from congruence.metrics.shape import procrustes_distance

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 7)) + 3, RNG.standard_normal((30, 4)) @ np.diag([1, 2, 3, 4])
WIDE = RNG.standard_normal((2, 10, 200))


def definition(A, B):
    A, B = (M.astype(np.float64) - M.astype(np.float64).mean(0) for M in (A, B))
    return np.arccos(min(np.linalg.norm(A.T @ B, "nuc") / np.linalg.norm(A) / np.linalg.norm(B), 1))


@pytest.mark.parametrize("pair", [(X, Y), (Y, X), tuple(WIDE), (WIDE[0], WIDE[1][:, :3]), (X[:4], Y[:4])])
def test_it_is_its_definition(pair):
    assert procrustes_distance(*pair) == pytest.approx(definition(*pair), abs=1e-10)


def test_scipys_disparity_is_the_squared_sine():
    """SciPy also scales one side to fit best, which leaves 1 − ν²."""
    disparity = scipy_procrustes(X[:, :4], Y)[2]
    assert np.sin(procrustes_distance(X[:, :4], Y)) ** 2 == pytest.approx(disparity, abs=1e-12)


@given(st.integers(0, 10**6))
def test_the_triangle_inequality(seed):
    rng = np.random.default_rng(seed)
    A, B, C = (rng.standard_normal((8, d)) for d in (3, 5, 20))
    ab, bc, ac = (procrustes_distance(*pair) for pair in ((A, B), (B, C), (A, C)))
    assert ac <= ab + bc + 1e-12


def test_two_tight_shapes_keep_their_digits():
    """arccos of the nuclear norm would say 0, or 1e-8, for anything nearer than 1e-8."""
    move = RNG.standard_normal(X.shape)
    distances = [procrustes_distance(X, X + step * move) for step in (1e-9, 1e-10, 1e-11)]
    np.testing.assert_allclose(np.divide(distances[:-1], distances[1:]), 10, rtol=1e-3)


def test_orthogonal_shapes_are_a_quarter_turn_apart():
    F = np.linalg.qr(np.column_stack([np.ones(6), RNG.standard_normal((6, 4))]))[0][:, 1:]
    assert procrustes_distance(F[:, :2], F[:, 2:]) == pytest.approx(np.pi / 2)


def test_constant_columns_and_copies_are_no_matter():
    padded = np.column_stack([X, np.full(30, 0.1)])
    assert procrustes_distance(padded, Y) == pytest.approx(procrustes_distance(X, Y), abs=1e-12)
    A, B = np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0)
    assert procrustes_distance(A, B) == pytest.approx(procrustes_distance(X, Y), abs=1e-12)
    for scale in (1e-170, 1e160):
        assert procrustes_distance(X * scale, Y) == pytest.approx(procrustes_distance(X, Y), abs=1e-12)


@pytest.mark.parametrize("sizes", [(8, 3, 2), (4, 6, 6), (3, 40, 30)])
def test_gradients(sizes):
    n, d, e = sizes
    rng = np.random.default_rng(1)
    A, B = (torch.tensor(rng.standard_normal((n, k)), requires_grad=True) for k in (d, e))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(procrustes_distance, (A, B), fast_mode=True)


def test_gradients_stay_finite_where_decompositions_have_none():
    rng = np.random.default_rng(1)
    whitened = torch.tensor(ortho_group.rvs(8, random_state=0)[:, :3], requires_grad=True)
    copies = torch.tensor(np.repeat(rng.standard_normal((4, 40)), 2, axis=0), requires_grad=True)
    procrustes_distance(whitened, copies).backward()
    procrustes_distance(copies, copies * 1).backward()
    assert torch.isfinite(whitened.grad).all()
    assert torch.isfinite(copies.grad).all()


def test_equal_rows_are_refused():
    flat = np.full((30, 3), 0.1)
    for sides in ((flat, Y), (X, flat)):
        with pytest.raises(InputError):
            procrustes_distance(*sides)
