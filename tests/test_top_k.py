"""The largest entries of rows, against a stable sort of all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence._utils import top_k as module
from congruence._utils.top_k import top_k


def case(seed, m, n, levels, dtype):
    """Draw similarities with many ties, and with entries that may not be found."""
    rng = np.random.default_rng(seed)
    S = rng.integers(0, levels, (m, n)).astype(dtype) / 7
    S[rng.random((m, n)) < 0.1] = -np.inf
    return S


@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 20),
    n=st.integers(1, 900),
    levels=st.sampled_from([1, 3, 1000]),
    dtype=st.sampled_from([np.float32, np.float64]),
    share=st.floats(0, 1),
)
def test_equal_entries_come_lowest_column_first(seed, m, n, levels, dtype, share):
    S = case(seed, m, n, levels, dtype)
    k = 1 + round(share * min(n - 1, 30))
    expected = np.argsort(-S, axis=1, kind="stable")[:, :k]
    before = S.copy()
    np.testing.assert_array_equal(top_k(S, k), expected)
    np.testing.assert_array_equal(top_k(np.asfortranarray(S), k), expected)
    np.testing.assert_array_equal(S, before)


def test_many_ties_are_handled_in_portions(monkeypatch):
    S = case(0, 50, 600, 2, np.float32)
    whole = top_k(S, 5)
    monkeypatch.setattr(module, "_MAX_CANDIDATES", 1000)
    assert len(list(module.candidate_slices(np.full(50, 600)))) == 50
    np.testing.assert_array_equal(top_k(S, 5), whole)


def test_tensors_give_what_arrays_give():
    torch = pytest.importorskip("torch")
    for n, k in ((40, 1), (40, 40), (900, 7)):
        S = case(n, 30, n, 4, np.float32)
        np.testing.assert_array_equal(top_k(torch.from_numpy(S), k), top_k(S, k))
