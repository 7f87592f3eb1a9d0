import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cosine as scipy_cosine
from sklearn.metrics import top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

import congruence.metrics.retrieval as retrieval
from congruence.errors import IdError, InputError, ParameterError, ShapeError, ZeroRowError
from congruence.metrics import (
    class_retrieval,
    ensemble_prompts,
    paired_cosine,
    paired_cosines,
    paired_distance,
    recall_at_k,
    top1_scores,
    zero_shot_accuracy,
)

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 60, 8))
LABELS = RNG.integers(0, 5, 60)


@pytest.fixture(params=[None, 1], ids=["one block", "tiny blocks"])
def block_size(request, monkeypatch):
    if request.param:
        real = retrieval.blocks
        monkeypatch.setattr(retrieval, "blocks", lambda n, size, budget=0: real(n, 1, budget=7, minimum=1))


def test_paired_measures_are_scipys_and_numpys():
    expected = [1 - scipy_cosine(x, y) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose(paired_cosines(X, Y), expected, atol=1e-12)
    assert paired_cosine(X, Y) == pytest.approx(np.mean(expected))
    assert paired_distance(X, Y) == pytest.approx(np.mean(np.linalg.norm(X - Y, axis=1)))


def test_extreme_scales_lose_nothing():
    for scale in (1e-170, 1e160):
        assert paired_cosine(X * scale, Y) == pytest.approx(paired_cosine(X, Y), abs=1e-12)


def test_a_row_without_direction_has_no_cosine():
    Z = X.copy()
    Z[3] = 0
    with pytest.raises(ZeroRowError, match="(?i)row 3"):
        paired_cosine(Z, Y)
    assert paired_distance(Z, Y) > 0
    for fn in (lambda: class_retrieval(Z, Y, LABELS), lambda: class_retrieval(X, Z, LABELS)):
        with pytest.raises(ZeroRowError):
            fn()


def test_class_retrieval_is_scikit_learns_nearest_neighbor(block_size):
    knn = KNeighborsClassifier(1, metric="cosine").fit(Y, LABELS)
    assert class_retrieval(X, Y, LABELS) == pytest.approx(np.mean(knn.predict(X) == LABELS))


def test_leaving_out_ones_own_pair(block_size):
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    S = unit @ unit.T
    np.fill_diagonal(S, -2)
    expected = np.mean(LABELS[S.argmax(1)] == LABELS)
    assert class_retrieval(X, X, LABELS, exclude_self=True) == pytest.approx(expected)
    assert class_retrieval(X, X, LABELS) == 1
    with pytest.raises(ShapeError, match="to exclude each query's own row"):
        class_retrieval(X, Y[:-1], LABELS, LABELS[:-1], exclude_self=True)


def test_ties_share_the_credit(block_size):
    gallery = np.repeat(np.eye(3), [3, 1, 1], axis=0)
    names = np.array(["a", "b", "b", "c", "d"])
    scores = top1_scores(np.eye(3)[[0, 0, 1]] * 5, gallery, np.array(["a", "b", "c"]), names)
    np.testing.assert_allclose(scores, [1 / 3, 2 / 3, 1])


def test_zero_shot_is_scikit_learns_top_one(block_size):
    prototypes = RNG.standard_normal((5, 8))
    unit = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    expected = top_k_accuracy_score(LABELS, X @ unit.T, k=1, labels=range(5))
    assert zero_shot_accuracy(X, prototypes, LABELS) == pytest.approx(expected)
    names = np.array(list("vwxyz"))
    order = RNG.permutation(5)
    shuffled = zero_shot_accuracy(X, prototypes[order], names[LABELS], names[order])
    assert shuffled == pytest.approx(expected)


def test_labels_must_have_one_prototype_each():
    with pytest.raises(InputError, match="label 4 without a prototype"):
        zero_shot_accuracy(X, Y[:4], LABELS)
    with pytest.raises(InputError, match="two prototypes"):
        zero_shot_accuracy(X, Y[:5], LABELS, [0, 1, 2, 3, 3])
    with pytest.raises(ShapeError, match="one label for each of 60"):
        zero_shot_accuracy(X, Y[:5], LABELS[:3])


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(["any", "share"]))
def test_recall_is_its_definition(seed, k, mode):
    rng = np.random.default_rng(seed)
    Q, G = rng.standard_normal((9, 4)), rng.standard_normal((12, 4))
    relevant = [rng.choice(12, rng.integers(1, 5), replace=False) for _ in range(9)]
    S = (Q / np.linalg.norm(Q, axis=1, keepdims=True)) @ (G / np.linalg.norm(G, axis=1, keepdims=True)).T
    top = np.argsort(-S, axis=1)[:, :k]
    found = [len(set(t) & set(r)) for t, r in zip(top, relevant, strict=True)]
    expected = np.mean([f > 0 if mode == "any" else f / len(r) for f, r in zip(found, relevant, strict=True)])
    assert recall_at_k(Q, G, relevant, k, mode=mode) == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["any", "share"])
def test_ties_at_the_last_place_count_by_expectation(mode):
    gallery = np.repeat(np.eye(2), [1, 4], axis=0)  # row 0 is best for the query; rows 1 to 4 tie behind it
    query = np.array([[2.0, 1.0]])
    # Relevant: two of the four that tie for two places. P(at least one) = 1 − 1/6; expected share = 1/2.
    expected = 1 - 1 / 6 if mode == "any" else 0.5
    assert recall_at_k(query, gallery, [[1, 2]], 3, mode=mode) == pytest.approx(expected)


def test_recall_refuses_what_cannot_be():
    for relevant, error in (
        ([[60]] * 60, IdError),
        ([[-1]] * 60, IdError),
        ([[]] * 60, IdError),
        ([0] * 59, ShapeError),
    ):
        with pytest.raises(error):
            recall_at_k(X, Y, relevant, 1)
    with pytest.raises(ParameterError, match="k=61"):
        recall_at_k(X, Y, range(60), 61)
    with pytest.raises(ParameterError):
        recall_at_k(X, Y, range(60), 0)
    with pytest.raises(ParameterError, match="'any', 'share'"):
        recall_at_k(X, Y, range(60), mode="most")


def test_no_square_array_is_built(monkeypatch):
    """Blocks of queries bound the memory, however many rows there are."""
    seen = []
    real = retrieval.normalize_rows
    monkeypatch.setattr(retrieval, "normalize_rows", lambda A, name: seen.append(A.shape) or real(A, name))
    n = 40_000
    # Its own, so that no other test makes rows tie.
    Z = np.random.default_rng(0).standard_normal((n, 4)).astype(np.float32)
    labels = np.arange(n)
    assert np.array_equal(top1_scores(Z[:600], Z, labels[:600], labels), np.ones(600))
    assert max(rows for rows, _ in seen[1:]) * n * 4 <= 33 * 2**20


def test_prompts_are_normalized_averaged_normalized():
    prompts = RNG.standard_normal((3, 4, 8)) * RNG.uniform(0.1, 10, (3, 4, 1))
    expected = (prompts / np.linalg.norm(prompts, axis=2, keepdims=True)).mean(1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(ensemble_prompts(prompts), expected, atol=1e-12)
    order = RNG.permutation(12)
    flat, names = ensemble_prompts(prompts.reshape(12, 8)[order], np.repeat(["c", "a", "b"], 4)[order])
    assert names.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(flat, expected[[1, 2, 0]], atol=1e-12)
    with pytest.raises(ShapeError, match="classes, templates, dimensions"):
        ensemble_prompts(X)
    with pytest.raises(ZeroRowError, match="the prototypes"):
        ensemble_prompts(np.array([[[1.0, 0], [-1.0, 0]]]))
