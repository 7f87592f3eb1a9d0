"""Simulated vectors of two unimodal encoders with a shared latent, which the training tests align."""

from types import SimpleNamespace

import numpy as np
import pytest

from congruence.train.retrieval import mean_recall


@pytest.fixture(scope="session")
def world():
    """Return rows of two encoders with a shared latent: pairs, unpaired rows of either side, and held-out pairs."""
    rng = np.random.default_rng(0)
    widths = (24, 18)
    mixes = [rng.normal(size=(8, width)) for width in widths]

    def rows(z, side):
        return (np.tanh(z @ mixes[side] / 3) + 0.1 * rng.normal(size=(len(z), widths[side]))).astype(np.float32)

    def draw(n):
        return rng.normal(size=(n, 8)) * np.linspace(1.5, 0.5, 8)

    paired, heldout = draw(40), draw(60)
    return SimpleNamespace(
        pairs=(rows(paired, 0), rows(paired, 1)),
        unpaired=(rows(draw(300), 0), rows(draw(300), 1)),
        heldout=(rows(heldout, 0), rows(heldout, 1)),
    )


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
        return mean_recall(fitted.transform(latent.X_test), fitted.transform_target(latent.Y_test))

    return measure


@pytest.fixture(params=[8 * 2**20, 600], ids=["one strip", "many strips"])
def strip(request, monkeypatch):
    """Work through losses in one strip of rows, and in many."""
    monkeypatch.setattr("congruence.train._strips.STRIP", request.param)


@pytest.fixture
def kill(monkeypatch):
    """Return a function that calls ``fit`` and interrupts it in one training step of an objective."""

    def run(objective, step, fit, *rows, **options):
        original = objective.training_step

        def killed(self, batch):
            if batch.step == step:
                raise KeyboardInterrupt
            return original(self, batch)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(objective, "training_step", killed)
            fit(*rows, **options)

    return run
