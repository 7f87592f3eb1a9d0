"""Re-paired scores without looking at the rows again equal the scores of re-paired rows."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.errors import ShapeError
from congruence.metrics import METRICS
from congruence.metrics.null import REPAIRED


def pair(n, d, e, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.linspace(2, 0.2, d) + 0.3
    return rng, X, X[:, : min(d, e)] @ rng.standard_normal((min(d, e), e)) + rng.standard_normal((n, e))


def test_every_measure_between_spaces_has_one():
    assert set(REPAIRED) == {name for name, metric in METRICS.items() if not metric.one_space}


@pytest.mark.parametrize("shape", [(60, 8, 12), (40, 70, 55), (120, 64, 30)])
@pytest.mark.parametrize("name", REPAIRED)
def test_it_is_the_score_of_the_repaired_rows(name, shape):
    rng, X, Y = pair(*shape)
    score = REPAIRED[name](X, Y)
    for order in (np.arange(shape[0]), rng.permutation(shape[0]), rng.permutation(shape[0])):
        assert score(order) == pytest.approx(METRICS[name].fn(X, Y[order]), abs=1e-7)


@pytest.mark.parametrize("name", ["rbf_cka", "rsa"])
def test_whole_matrices_are_not_asked_for_many_rows(name):
    with pytest.raises(ShapeError, match="5000"):
        REPAIRED[name](np.ones((5001, 2)), np.ones((5001, 2)))
