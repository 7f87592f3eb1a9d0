from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.errors import ParameterError, TooFewAnchorsError
from congruence.splits import Split

IDS = np.array([f"item {k}" for k in range(500)])


@given(st.integers(0, 498), st.integers(0, 1000))
def test_exactly_as_many_as_asked(count, seed):
    held = Split.choose(IDS, count if count != 0 else 0.0, seed).held_out(IDS)
    assert held.sum() == count


def test_shares_are_rounded_and_order_does_not_matter():
    split = Split.choose(IDS, 0.3, 7)
    held = split.held_out(IDS)
    assert held.sum() == 150
    order = np.random.default_rng(0).permutation(500)
    assert np.array_equal(Split.choose(IDS[order], 0.3, 7).held_out(IDS), held)
    assert np.array_equal(split.held_out(IDS[order]), held[order])
    assert np.array_equal(split.held_out(IDS[:10]), held[:10])
    assert Split.from_dict(split.to_dict()) == split
    assert not np.array_equal(Split.choose(IDS, 0.3, 8).held_out(IDS), held)


@pytest.mark.parametrize(
    ("holdout", "error"),
    [(-0.1, ParameterError), (1.5, ParameterError), (np.nan, ParameterError), (499, TooFewAnchorsError)],
)
def test_impossible_holdouts(holdout, error):
    with pytest.raises(error):
        Split.choose(IDS, holdout)
