"""What maps with a head for each side promise, and that the two closed forms are what the propositions say."""

import numpy as np
import pytest
import scipy.linalg
from sklearn.cross_decomposition import CCA

from congruence import CCAMap, Embeddings, ProcrustesHeads, Space
from congruence.embeddings import normalize_rows
from congruence.errors import DirectionError, ParameterError, SpaceMismatchError
from congruence.maps import projections

BOTH = [ProcrustesHeads, CCAMap]


def paired(n, d_x, d_y, *, shared=6, noise=0.3, seed=0):
    """Rows of two models that see the same few factors, each through a mixing and noise of its own."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, shared)) * np.linspace(2, 0.5, shared)
    X = z @ rng.standard_normal((shared, d_x)) + noise * rng.standard_normal((n, d_x)) + rng.standard_normal(d_x)
    Y = z @ rng.standard_normal((shared, d_y)) + noise * rng.standard_normal((n, d_y)) + rng.standard_normal(d_y)
    return X, Y


def prepared(X, *, normalize=True, center=True):
    X = normalize_rows(X) if normalize else X
    return X - X.mean(axis=0) if center else X


def carried(m, X, Y):
    return m.transform(X), m.transform_target(Y)


@pytest.mark.parametrize(("n", "d_x", "d_y"), [(60, 9, 7), (12, 20, 30), (25, 20, 30), (25, 30, 20)])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_procrustes_reaches_the_sum_of_leading_singular_values(n, d_x, d_y, center, normalize):
    X, Y = paired(n, d_x, d_y)
    A, B = prepared(X, normalize=normalize, center=center), prepared(Y, normalize=normalize, center=center)
    singular = np.linalg.svd(A.T @ B, compute_uv=False)
    m = ProcrustesHeads(n_components=4, center=center, normalize=normalize).fit(X, Y)
    for W in (m.source_weights_, m.target_weights_):
        np.testing.assert_allclose(W.T @ W, np.eye(4), atol=1e-12)
    a, b = carried(m, X, Y)
    assert np.vdot(a, b) == pytest.approx(singular[:4].sum(), rel=1e-10)
    np.testing.assert_allclose(m.singular_values_, singular[: len(m.singular_values_)], atol=1e-9 * singular[0])


@pytest.mark.parametrize("ridge", [0.0, 0.1, 3.0])
@pytest.mark.parametrize(("n", "d_x", "d_y"), [(60, 9, 7), (200, 9, 7)])
@pytest.mark.parametrize("center", [True, False])
def test_cca_is_the_generalised_eigenproblem(n, d_x, d_y, ridge, center):
    X, Y = paired(n, d_x, d_y)
    A, B = prepared(X, center=center), prepared(Y, center=center)
    m = CCAMap(ridge=ridge, center=center).fit(X, Y)
    Sx, Sy = A.T @ A + ridge * np.eye(d_x), B.T @ B + ridge * np.eye(d_y)
    M = A.T @ B
    squared = scipy.linalg.eigh(M.T @ np.linalg.solve(Sx, M), Sy, eigvals_only=True)[::-1]
    np.testing.assert_allclose(m.singular_values_**2, squared, atol=1e-9)
    for W, S in ((m.source_weights_, Sx), (m.target_weights_, Sy)):
        np.testing.assert_allclose(W.T @ S @ W, np.eye(7), atol=1e-8)
    np.testing.assert_allclose(m.source_weights_.T @ M @ m.target_weights_, np.diag(m.singular_values_), atol=1e-8)
    assert np.vdot(*carried(m, X, Y)) == pytest.approx(m.singular_values_.sum(), rel=1e-9)


def test_correlations_are_scikit_learns():
    X, Y = paired(150, 6, 5, noise=1.0)
    theirs = CCA(n_components=5, scale=False, max_iter=5000, tol=1e-12).fit(X, Y).transform(X, Y)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(theirs[0].T, theirs[1].T, strict=True)]
    m = CCAMap(ridge=0.0, normalize=False).fit(X, Y)
    np.testing.assert_allclose(m.singular_values_, expected, atol=1e-6)
    a, b = carried(m, X, Y)
    np.testing.assert_allclose([np.corrcoef(*pair)[0, 1] for pair in zip(a.T, b.T, strict=True)], expected, atol=1e-6)


def test_nearly_collinear_rows_keep_their_digits():
    """The Gram matrix of these rows has a condition number of 1e20; from it the correlation would be lost."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(200)
    X = np.stack([rng.standard_normal(200), np.zeros(200)], axis=1)
    X[:, 1] = X[:, 0] + 1e-10 * z
    m = CCAMap(ridge=0.0, normalize=False, center=False).fit(X, z[:, None])
    assert m.singular_values_[0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_power_scales_each_direction_by_its_correlation(power):
    X, Y = paired(60, 9, 7)
    plain, scaled = CCAMap().fit(X, Y), CCAMap(power=power).fit(X, Y)
    for one, other in zip(carried(plain, X, Y), carried(scaled, X, Y), strict=True):
        np.testing.assert_allclose(other, one * plain.singular_values_**power, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_fewer_pairs_than_dimensions_are_worked_in_their_span(ridge):
    X, Y = paired(15, 40, 30)
    A, B = prepared(X), prepared(Y)
    m = CCAMap(ridge=ridge).fit(X, Y)
    assert m.d_out == 14
    # Anything the map adds outside the span of the rows would show as a part that the pseudo-inverse removes.
    for W, Z in ((m.source_weights_, A), (m.target_weights_, B)):
        np.testing.assert_allclose(np.linalg.pinv(Z) @ Z @ W, W, atol=1e-8)
        S = Z.T @ Z + ridge * np.eye(Z.shape[1])
        np.testing.assert_allclose(W.T @ S @ W, np.eye(14), atol=1e-8)
    # The d × d formula, regularised so that it has an inverse.
    if ridge:
        M = A.T @ B
        dense = np.linalg.solve(A.T @ A + ridge * np.eye(40), M)
        squared = scipy.linalg.eigh(M.T @ dense, B.T @ B + ridge * np.eye(30), eigvals_only=True)[::-1]
        np.testing.assert_allclose(m.singular_values_**2, squared[:14], atol=1e-9)
    else:
        np.testing.assert_allclose(m.singular_values_, 1, atol=1e-9)


@pytest.mark.parametrize("cls", BOTH)
def test_exchanging_the_sides_exchanges_the_heads(cls):
    X, Y = paired(60, 9, 7)
    one, other = cls(n_components=4).fit(X, Y), cls(n_components=4).fit(Y, X)
    signs = np.sign(np.einsum("ij,ij->j", one.source_weights_, other.target_weights_))
    np.testing.assert_allclose(one.transform(X), other.transform_target(X) * signs, atol=1e-9)
    np.testing.assert_allclose(one.transform_target(Y), other.transform(Y) * signs, atol=1e-9)


@pytest.mark.parametrize("cls", BOTH)
def test_paired_rows_meet_and_others_do_not(cls):
    X, Y = paired(700, 40, 30)
    m = cls(n_components=6).fit(X[:600], Y[:600])
    a, b = (normalize_rows(Z) for Z in carried(m, X[600:], Y[600:]))
    found = np.argmax(a @ b.T, axis=1)
    assert np.mean(found == np.arange(100)) > 0.9


@pytest.mark.parametrize("cls", BOTH)
def test_lengths_do_not_count_unless_asked(cls):
    X, Y = paired(50, 9, 7)
    lengths = np.random.default_rng(0).uniform(0.1, 10, (2, 50, 1))
    for normalize in (True, False):
        plain, scaled = (cls(normalize=normalize).fit(*rows) for rows in ((X, Y), (X * lengths[0], Y * lengths[1])))
        close = np.allclose(plain.transform(X), scaled.transform(X * lengths[0] if normalize else X), atol=1e-9)
        assert close is normalize


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("center", [True, False])
def test_the_joint_space_is_as_wide_as_the_pairs_carry(cls, center):
    for n, d_x, d_y in ((60, 9, 7), (60, 7, 9), (5, 9, 7)):
        X, Y = paired(n, d_x, d_y)
        most = min(d_x, d_y, n - center)
        m = cls(center=center).fit(X, Y)
        assert (m.d_out, m.n_features_in_, m.d_target) == (most, d_x, d_y)
        assert m.transform(X).shape == m.transform_target(Y).shape == (n, most)
        assert cls(n_components=most, center=center).fit(X, Y).d_out == most
        with pytest.raises(ParameterError, match=f"n_components={most + 1}; expected at most {most}"):
            cls(n_components=most + 1, center=center).fit(X, Y)
    # Rows that span three dimensions carry three, however wide they are.
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 9))
    m = cls(center=False, normalize=False).fit(flat, paired(60, 9, 7)[1])
    assert m.d_out == m.facts_["rank"] == 3


@pytest.mark.parametrize("cls", BOTH)
def test_the_same_rows_in_blocks(cls, monkeypatch):
    X, Y = paired(300, 9, 7)
    whole = cls(n_components=4).fit(X, Y)

    def small(n, row_bytes):
        return (slice(k, min(k + 17, n)) for k in range(0, n, 17))

    monkeypatch.setattr(projections, "blocks", small)
    monkeypatch.setattr(f"{cls.__module__}.blocks", small, raising=False)
    cut = cls(n_components=4).fit(X, Y)
    for one, other in zip(carried(whole, X, Y), carried(cut, X, Y), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-10)


@pytest.mark.parametrize("cls", BOTH)
def test_both_sides_keep_their_precision_and_zero_rows(cls):
    X, Y = paired(50, 9, 7)
    m = cls(n_components=4).fit(X, Y)
    assert m.transform(X.astype("f4")).dtype == m.transform_target(Y.astype("f2")).dtype == np.float32
    assert m.transform_target(Y).dtype == np.float64
    np.testing.assert_allclose(m.transform_target(Y.astype("f4")), m.transform_target(Y), atol=1e-5)
    zero = m.transform_target(np.zeros((1, 7)))
    np.testing.assert_allclose(zero, -(m.target_mean_ @ m.target_weights_)[None], atol=1e-12)


def test_rows_all_alike_need_a_regulariser():
    X, Y = np.tile([[0.3, 0.7, 0.1]], (10, 1)), paired(10, 4, 3)[1]
    for m in (CCAMap(), ProcrustesHeads()):
        m.fit(X, Y)
        assert (m.d_out, m.facts_["rank"]) == (1, 0)
        assert np.ptp(m.transform(X)) < 1e-12


@pytest.fixture(params=BOTH)
def joined(request):
    X, Y = paired(50, 9, 7)
    m = request.param(n_components=4).fit(X, Y)
    m.source_space_ = Space("dino", modality="image", dim=9, normalized=False)
    m.target_space_ = Space("minilm", modality="text", dim=7, normalized=False)
    return m


def test_embeddings_choose_their_head_by_their_space(joined):
    X, Y = paired(20, 9, 7, seed=1)
    ids = [f"i{k}" for k in range(20)]
    a = joined.transform_embeddings(Embeddings(X, ids=ids, space=Space("dino", modality="image")))
    b = joined.transform_embeddings(Embeddings(Y, ids=ids, space=Space("minilm")), normalize=True)
    np.testing.assert_array_equal(a.vectors, joined.transform(X))
    np.testing.assert_allclose(b.vectors, normalize_rows(joined.transform_target(Y)))
    assert a.space.model == b.space.model == f"joint ({joined.kind}) of dino and minilm"
    assert (a.space.modality, a.space.dim, b.space.normalized) == ("image", 4, True)
    assert a.ids.tolist() == ids
    assert a.space.revision == b.space.revision
    again = type(joined)(n_components=4).fit(*paired(50, 9, 7, seed=5))
    again.source_space_, again.target_space_ = joined.source_space_, joined.target_space_
    assert again.joint_space().revision != a.space.revision  # coordinates of another fit


def test_a_side_that_is_named_wrongly_is_refused(joined):
    X, Y = paired(20, 9, 7, seed=1)
    texts = Embeddings(Y, space=Space("minilm", modality="text"))
    assert joined.side_of(texts.space) == joined.side_of(texts.space, "target") == "target"
    with pytest.raises(DirectionError, match='side="target"'):
        joined.transform_embeddings(texts, side="source")
    with pytest.raises(DirectionError, match='side="source"'):
        joined.transform_embeddings(Embeddings(X), side="target")
    with pytest.raises(SpaceMismatchError, match="neither of"):
        joined.transform_embeddings(Embeddings(X, space=Space("clip")))
    with pytest.raises(SpaceMismatchError):
        joined.transform_embeddings(Embeddings(X, space=Space("clip")), side="source")
    with pytest.raises(ParameterError, match="'source', 'target'"):
        joined.transform_embeddings(texts, side="left")
    once = joined.transform_embeddings(texts)
    with pytest.raises(SpaceMismatchError):
        joined.transform_embeddings(once)


def test_sides_of_one_width_need_a_name_or_a_modality():
    X, Y = paired(50, 8, 8)
    m = ProcrustesHeads(n_components=4).fit(X, Y)
    with pytest.raises(ParameterError, match="fit both sides"):
        m.transform_embeddings(Embeddings(X))
    np.testing.assert_array_equal(m.transform_embeddings(Embeddings(X), side="target").vectors, m.transform_target(X))
    m.source_space_ = Space("clip", modality="image", dim=8)
    m.target_space_ = Space("clip", modality="text", dim=8)
    assert m.side_of(Space("clip", modality="text")) == "target"
    with pytest.raises(ParameterError, match="fit both sides"):
        m.side_of(Space("clip"))
    m.target_space_ = Space("eva", modality="image", dim=8)
    assert m.side_of(Space("eva", modality="image")) == "target"
    m.target_space_ = Space(None, modality="image", dim=8)
    assert m.side_of(Space("clip", modality="image")) == "source"
