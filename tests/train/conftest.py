"""Simulated vectors of two unimodal encoders with a shared latent, which the training tests align."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest


@dataclass(frozen=True)
class World:
    """Rows of two encoders with a shared latent: pairs, unpaired rows of either side, and held-out pairs."""

    pairs: tuple[np.ndarray, np.ndarray]
    unpaired: tuple[np.ndarray, np.ndarray]
    heldout: tuple[np.ndarray, np.ndarray]


def make_world(n_pairs=40, n_unpaired=300, n_held=60, latent=8, widths=(24, 18), noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    mixes = [rng.normal(size=(latent, width)) for width in widths]

    def rows(z, side):
        return (np.tanh(z @ mixes[side] / 3) + noise * rng.normal(size=(len(z), widths[side]))).astype(np.float32)

    def draw(n):
        return rng.normal(size=(n, latent)) * np.linspace(1.5, 0.5, latent)

    paired, heldout = draw(n_pairs), draw(n_held)
    return World(
        (rows(paired, 0), rows(paired, 1)),
        (rows(draw(n_unpaired), 0), rows(draw(n_unpaired), 1)),
        (rows(heldout, 0), rows(heldout, 1)),
    )


@pytest.fixture(scope="session")
def world():
    return make_world()


@pytest.fixture(scope="session")
def latent():
    """Return a world that every method learns in a hundred steps: linear views, more pairs than dimensions."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(6, 20)), rng.normal(size=(6, 16))

    def rows(n):
        Z = rng.normal(size=(n, 6))
        views = (Z @ M + 0.1 * rng.normal(size=(n, M.shape[1])) + 0.5 for M in (A, B))
        return tuple(view.astype(np.float32) for view in views)

    (X, Y), (U, _), (_, V), (X_test, Y_test) = rows(64), rows(300), rows(260), rows(100)
    return SimpleNamespace(X=X, Y=Y, U=U, V=V, X_test=X_test, Y_test=Y_test)


@pytest.fixture(scope="session")
def retrieval(latent):
    """Return the mean recall at 1 of a fitted map on 100 rows it has not seen; chance is 0.01."""

    def measure(fitted):
        from congruence.train.retrieval import mean_recall

        return mean_recall(fitted.transform(latent.X_test), fitted.transform_target(latent.Y_test))

    return measure
