import numpy as np
import pytest
from toy_models import TEXTS, new_model, old_model

import congruence
from congruence import Bridge
from congruence.embeddings import Embeddings, Space


@pytest.fixture(scope="session")
def new_rows():
    return new_model(TEXTS)


@pytest.fixture(scope="session")
def old_rows():
    return old_model(TEXTS)


@pytest.fixture(scope="session")
def mapping(new_rows, old_rows):
    some = slice(0, len(TEXTS), 5)
    new = Embeddings(new_rows[some], space=Space("toy:new", "1", "text", normalized=True))
    old = Embeddings(old_rows[some], space=Space("old-model", None, "text", normalized=True))
    return congruence.fit(new, old, method="orthogonal", holdout=20)


@pytest.fixture(scope="session")
def bridge(mapping):
    return Bridge(mapping)


@pytest.fixture(scope="session")
def folder(bridge, tmp_path_factory):
    return bridge.save(tmp_path_factory.mktemp("saved") / "bridge")


@pytest.fixture(scope="session")
def nearest(bridge, old_rows):
    """Return the indices of the old rows nearest to bridged queries, found with NumPy."""

    def find(queries, k=5):
        scores = np.asarray(bridge.transform(new_model(queries), "text")) @ old_rows.T
        return np.argsort(-scores, axis=1)[:, :k]

    return find


@pytest.fixture
def toy(monkeypatch):
    """Register the stand-in so that ``toy:new`` can be loaded by name."""
    from congruence.encoders import ADAPTERS

    monkeypatch.setitem(ADAPTERS, "toy", ("toy_models", "Toy"))
    return "toy:new"
