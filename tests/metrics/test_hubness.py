"""CSLS and query-bank normalization against dense implementations of their formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import congruence.metrics.hubness as hubness
from arrays import unit
from congruence.errors import ParameterError, ShapeError
from congruence.metrics import CSLS, QBNorm, class_retrieval, recall_at_k, top1_scores


def dense_csls(queries, gallery, bank, k):
    """Conneau et al. (2018), eq. 3: 2 cos(x, y) − r_T(x) − r_S(y), every term."""
    near = unit(queries) @ unit(gallery).T
    of_query = np.sort(near, axis=1)[:, -min(k, near.shape[1]) :].mean(axis=1)
    of_row = np.sort(unit(bank) @ unit(gallery).T, axis=0)[-min(k, len(bank)) :].mean(axis=0)
    return 2 * near - of_query[:, None] - of_row[None, :]


def dense_inverted_softmax(queries, gallery, bank, beta):
    """Bogolin et al. (2022): similarities over the bank's sum, for queries whose first row is the first row of a query
    of the bank.
    """
    near, known = unit(queries) @ unit(gallery).T, unit(bank) @ unit(gallery).T
    led = np.isin(near.argmax(axis=1), known.argmax(axis=1))
    softmax = np.exp(beta * near) / np.exp(beta * known).sum(axis=0)
    return np.where(led[:, None], softmax, near)


def problem(seed, m=40, n=25, b=30, d=6, hubs=1.5):
    rng = np.random.default_rng(seed)
    offset = hubs * rng.standard_normal(d)
    return tuple(rng.standard_normal((rows, d)) + offset * shift for rows, shift in ((m, 1), (n, 0.3), (b, 1)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("own_bank", [True, False], ids=["transductive", "bank"])
def test_corrections_rank_as_their_formulas(seed, own_bank):
    queries, gallery, bank = problem(seed)
    names = np.arange(len(gallery))
    wanted = np.random.default_rng(seed).integers(0, len(gallery), len(queries))
    given_bank, known = (None, queries) if own_bank else (bank, bank)
    for correction, dense in (
        (CSLS(4), dense_csls(queries, gallery, known, 4)),
        (QBNorm(0.1), dense_inverted_softmax(queries, gallery, known, 10)),
    ):
        ours = top1_scores(queries, gallery, wanted, names, hubness=correction, bank=given_bank)
        np.testing.assert_array_equal(ours, dense.argmax(axis=1) == wanted)
        top = np.argsort(-dense, axis=1)[:, :5]
        expected = np.mean([w in row for w, row in zip(wanted, top, strict=True)])
        assert recall_at_k(queries, gallery, wanted, 5, hubness=correction, bank=given_bank) == pytest.approx(expected)


@pytest.mark.parametrize("left_out", [None, np.random.default_rng(0).integers(0, 25, 40)], ids=["all", "one left out"])
@pytest.mark.parametrize("correction", [CSLS(4), QBNorm(0.1)], ids=["csls", "qb_norm"])
def test_inner_products_with_one_more_column_are_the_corrected_cosines(correction, left_out):
    queries, gallery, bank = map(unit, problem(3))
    found = correction.of(bank, gallery)
    cosines = queries @ gallery.T
    if left_out is not None:
        cosines[np.arange(40), left_out] = -np.inf
    Q, G = found.as_inner_products(queries, gallery, left_out=left_out)
    near, seen = Q @ G.T, np.isfinite(cosines)
    np.testing.assert_allclose(near[seen], found.correct(cosines)[seen], atol=1e-12)
    if found.hubs is not None:  # both kinds of query are there
        assert {0.0, 1.0} == set(Q[:, -1])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(2, 20), st.integers(2, 20), st.integers(1, 20)),
    rows=st.integers(1, 5),
    own=st.booleans(),
)
def test_blocks_change_nothing(seed, sizes, rows, own):
    rng = np.random.default_rng(seed)
    bank, gallery = (unit(rng.standard_normal((k, 4))) for k in (sizes[2], sizes[1]))
    if own:
        bank, gallery = gallery, unit(gallery + 0.1)
    cosines = bank @ gallery.T
    if own:
        np.fill_diagonal(cosines, -np.inf)
    real = hubness.blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hubness, "blocks", lambda n, size: real(n, 1, budget=rows, minimum=1))
        for correction in (CSLS(3), QBNorm()):
            found, whole = correction.of(bank, gallery, exclude_self=own), correction.of_matrix(cosines)
            assert np.isfinite(found.shift).all()
            np.testing.assert_allclose(found.shift, whole.shift, rtol=0, atol=1e-12)
            if whole.hubs is not None:
                np.testing.assert_array_equal(found.hubs, whole.hubs)


def test_a_small_temperature_does_not_underflow():
    _, gallery, bank = problem(1)
    cold = QBNorm(1e-4).of(unit(bank), unit(gallery)).shift
    # The softmax becomes a maximum.
    np.testing.assert_allclose(cold, (unit(bank) @ unit(gallery).T).max(axis=0), atol=1e-3)


def test_hubs_lose_queries_that_are_not_theirs():
    """One gallery row at the mean of the queries takes most of them; both corrections give most of them back."""
    rng = np.random.default_rng(0)
    gallery = unit(rng.standard_normal((200, 16)))
    mean = unit(rng.standard_normal((1, 16)))
    queries = gallery + 1.2 * mean
    gallery[0] = mean
    own = np.arange(200)
    plain = class_retrieval(queries, gallery, own)
    for name in ("csls", "qb_norm"):
        assert class_retrieval(queries, gallery, own, hubness=name) > plain + 0.3


def test_a_row_left_out_is_left_out_of_the_bank_too():
    rng = np.random.default_rng(4)
    X, labels = rng.standard_normal((30, 5)), rng.integers(0, 4, 30)
    near = unit(X) @ unit(X).T
    np.fill_diagonal(near, -np.inf)
    shift = np.sort(near, axis=0)[-10:].mean(axis=0) / 2
    expected = labels[(near - shift).argmax(axis=1)] == labels
    np.testing.assert_array_equal(top1_scores(X, X, labels, labels, hubness="csls", exclude_self=True), expected)


@pytest.mark.parametrize("name", [None, "csls", "qb_norm"])
def test_copies_tie_under_a_correction_too(name):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 128)).astype(np.float32)
    gallery = np.concatenate([rows, rows[:50] * 3])
    names = np.concatenate([np.zeros(200, int), np.ones(50, int)])
    scores = top1_scores(rows[:50], gallery, np.ones(50, int), names, hubness=name)
    np.testing.assert_array_equal(scores, np.full(50, 0.5))


def test_memory_is_a_block(monkeypatch):
    seen = []
    real = CSLS.shift
    monkeypatch.setattr(CSLS, "shift", lambda self, block: seen.append(block.nbytes) or real(self, block))
    Z = unit(np.random.default_rng(0).standard_normal((4_000, 3)).astype(np.float32))
    CSLS().of(Z[:3_000], Z)
    assert max(seen) <= 17 * 2**20 < 3_000 * 4_000 * 4


def test_what_is_refused():
    queries, gallery, bank = problem(0)
    labels, names = np.arange(40) % 25, np.arange(25)
    with pytest.raises(ParameterError, match="'csls', 'qb_norm'"):
        class_retrieval(queries, gallery, labels, names, hubness="hub")
    with pytest.raises(ParameterError, match="only with hubness"):
        class_retrieval(queries, gallery, labels, names, bank=bank)
    with pytest.raises(ShapeError, match="widths 5 and 6"):
        class_retrieval(queries, gallery, labels, names, hubness="csls", bank=bank[:, :5])
    for wrong in (lambda: CSLS(0), lambda: QBNorm(0.0)):
        with pytest.raises(ParameterError):
            wrong()
