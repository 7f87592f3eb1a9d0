"""Entropic Gromov–Wasserstein against POT, and the distributions it starts from."""

import numpy as np
import pytest

from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError, ShapeError
from congruence.synthetic import random_rotation
from congruence.transport.gromov import gromov_wasserstein, local_distributions

RNG = np.random.default_rng(0)
X = normalize_rows(RNG.standard_normal((30, 4)) * [2, 1.5, 1, 0.5] + [0.3, 0, 0, 0])
Y = normalize_rows(RNG.standard_normal((24, 6)))


def test_the_plan_and_its_loss_are_pots():
    ot = pytest.importorskip("ot")
    A, B, epsilon = X[:12], Y[:10], 0.2
    p, q = np.full(12, 1 / 12), np.full(10, 1 / 10)
    start = ot.sinkhorn(p, q, RNG.random((12, 10)), 0.5, stopThr=1e-12)
    theirs, log = ot.gromov.entropic_gromov_wasserstein(
        A @ A.T, B @ B.T, p, q, "square_loss", epsilon, G0=start, symmetric=True, max_iter=100, tol=1e-10, log=True
    )
    ours = gromov_wasserstein(A, B, epsilon, start=start, max_iter=100, sinkhorn_iter=200, tol=1e-5)
    np.testing.assert_allclose(ours.plan, theirs, atol=1e-4)
    squares = np.square(A @ A.T).mean() + np.square(B @ B.T).mean()
    assert squares - 2 * ours.objective == pytest.approx(log["gw_dist"], abs=1e-4)
    assert ours.converged


def test_a_turned_and_shuffled_copy_is_found_again():
    order = RNG.permutation(30)
    turned = X[order] @ random_rotation(4, 7, random_state=1)
    a, b = local_distributions(X), local_distributions(turned)
    np.testing.assert_allclose(a[order], b, atol=1e-12)
    start = np.exp(-np.square(a[:, None] - b[None]).sum(axis=2) / 0.5)
    found = gromov_wasserstein(X, turned, 0.02, start=start / start.sum(), relative=True)
    assert np.array_equal(order[np.argmax(found.plan, axis=1)], np.arange(30))


def test_relative_entropy_does_not_depend_on_the_rows_scale():
    start = RNG.random((30, 24))
    start /= start.sum()
    plans = [gromov_wasserstein(c * X, Y, 0.3, start=start, relative=True, max_iter=5).plan for c in (1, 1e-3, 1e3)]
    np.testing.assert_allclose(plans[1], plans[0], atol=1e-12)
    np.testing.assert_allclose(plans[2], plans[0], atol=1e-12)


def test_distributions_have_one_length_whatever_the_rows():
    assert local_distributions(X, 16).shape == (30, 16)
    assert np.all(np.diff(local_distributions(Y, 100), axis=1) >= 0)


def test_bad_arguments_are_refused():
    with pytest.raises(ShapeError, match=r"\(24, 30\) for 30 and 24 rows"):
        gromov_wasserstein(X, Y, 0.1, start=np.ones((24, 30)))
    with pytest.raises(ParameterError, match="epsilon"):
        gromov_wasserstein(X, Y, 0)


def test_rows_that_are_all_alike_are_coupled_evenly():
    found = gromov_wasserstein(np.zeros((5, 2)), Y, 0.1, relative=True)
    np.testing.assert_allclose(found.plan, 1 / (5 * 24))
    assert found.converged
