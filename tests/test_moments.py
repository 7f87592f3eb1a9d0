import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.errors import ShapeError
from congruence.linalg.moments import CrossMoments


def data(n=200, d=5, e=7, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) + offset, rng.standard_normal((n, e)) - offset


def assert_same(a: CrossMoments, b: CrossMoments, tolerance=1e-10):
    assert a.weight == pytest.approx(b.weight, rel=tolerance)
    assert a.rows == b.rows
    for name in ("source_mean", "target_mean", "cross", "gram", "source_scatter", "target_scatter"):
        x, y = getattr(a, name), getattr(b, name)
        if x is None:
            assert y is None
        else:
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * (1 + np.abs(y).max()))


def test_moments_match_numpys_covariance():
    X, Y = data()
    m = CrossMoments.of(X, Y, gram=True)
    joint = np.cov(np.hstack([X, Y]).T) * (len(X) - 1)
    np.testing.assert_allclose(m.cross, joint[:5, 5:], atol=1e-10)
    np.testing.assert_allclose(m.gram, joint[:5, :5], atol=1e-10)
    assert m.source_scatter == pytest.approx(np.trace(joint[:5, :5]))
    assert m.target_scatter == pytest.approx(np.trace(joint[5:, 5:]))


def test_weights_match_numpys_weighted_covariance():
    X, Y = data()
    w = np.random.default_rng(1).integers(0, 4, len(X))
    m = CrossMoments.of(X, Y, w.astype(float), gram=True)
    joint = np.cov(np.hstack([X, Y]).T, fweights=w) * (w.sum() - 1)
    np.testing.assert_allclose(m.cross, joint[:5, 5:], atol=1e-10)
    assert m.weight == w.sum()
    assert m.rows == np.count_nonzero(w)
    repeated = CrossMoments.of(np.repeat(X, w, axis=0), np.repeat(Y, w, axis=0), gram=True)
    repeated.rows = m.rows  # the only thing that tells a weight from a repetition
    assert_same(m, repeated)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 10**6))
def test_any_split_in_any_order_gives_the_same_moments(sizes, seed):
    X, Y = data(sum(sizes), seed=seed)
    parts = np.split(np.arange(len(X)), np.cumsum(sizes)[:-1])
    np.random.default_rng(seed).shuffle(parts)
    merged = CrossMoments(5, 7, gram=True)
    for part in parts:
        merged = merged.merge(CrossMoments.of(X[part], Y[part], gram=True))
    assert_same(merged, CrossMoments.of(X, Y, gram=True))
    one_by_one = CrossMoments(5, 7, gram=True)
    for part in parts:
        one_by_one.update(X[part], Y[part])
    assert_same(one_by_one, merged)
    assert_same(CrossMoments.total([CrossMoments.of(X[part], Y[part], gram=True) for part in parts]), merged)


def test_a_large_common_offset_costs_no_digits():
    X, Y = data()
    far = CrossMoments.of(X + 1e6, Y - 1e6)
    near = CrossMoments.of(X, Y)
    # Naive Σxy − nμν would be wrong from about the fourth digit on.
    np.testing.assert_allclose(far.cross, near.cross, atol=1e-6)


def test_half_precision_is_summed_in_double():
    X, Y = data(5000)
    X, Y = X.astype(np.float16), Y.astype(np.float16)
    exact = CrossMoments.of(X.astype(np.float64), Y.astype(np.float64))
    np.testing.assert_array_equal(CrossMoments.of(X, Y).cross, exact.cross)


def test_inputs_are_left_alone_and_blocks_do_not_matter(monkeypatch):
    import congruence.linalg.moments as module

    X, Y = data(1000)
    before = X.copy(), Y.copy()
    whole = CrossMoments.of(X, Y, gram=True)
    blocks = module.blocks
    monkeypatch.setattr(module, "blocks", lambda n, size, **_: blocks(n, 1, budget=37, minimum=1))
    assert_same(CrossMoments.of(X, Y, gram=True), whole)
    assert np.array_equal(X, before[0])
    assert np.array_equal(Y, before[1])


def test_state_swap_and_uncentered_sums():
    X, Y = data(offset=2.0)
    m = CrossMoments.of(X, Y, gram=True)
    assert_same(CrossMoments.from_state(m.state()), m, 0)
    np.testing.assert_allclose(m.uncentered_cross(), X.T @ Y, atol=1e-9)
    np.testing.assert_allclose(m.uncentered_gram(), X.T @ X, atol=1e-9)
    assert_same(m.swap(), CrossMoments.of(Y, X))


def test_a_gram_matrix_of_some_of_the_rows_is_dropped():
    X, Y = data()
    with_gram, without = CrossMoments.of(X[:50], Y[:50], gram=True), CrossMoments.of(X[50:], Y[50:])
    assert with_gram.merge(without).gram is None
    assert without.merge(with_gram).gram is None
    assert with_gram.merge(CrossMoments(X.shape[1], Y.shape[1])).gram is not None


def test_merging_other_widths_is_refused():
    X, Y = data()
    with pytest.raises(ShapeError, match="Got widths"):
        CrossMoments.of(X, Y).merge(CrossMoments.of(Y, X))
