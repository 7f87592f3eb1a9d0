import warnings

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from congruence import Bridge, KernelMap, OrthogonalMap, errors, fit, load
from congruence.embeddings import normalize_rows
from congruence.maps import kernel as module
from congruence.synthetic import rigid_problem

P = rigid_problem(60, 12, 9, noise=0.3, random_state=0)


def unit_pairs(n=200, d=16, seed=0):
    """Rows of a cone, of which the new model's are a curved function of the old one's."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    Y = np.tanh(X @ rng.standard_normal((d, d))) @ rng.standard_normal((d, d)) + 0.1 * rng.standard_normal((n, d))
    return normalize_rows(X + 2), normalize_rows(Y + 6)


def reference(m, X, Y, Z):
    """The same by scikit-learn, about the means, with a centered kernel."""
    means = X.mean(axis=0), Y.mean(axis=0)
    width = m.regression_.width

    def products(A, B):
        if m.regression_.kernel == "linear":
            return A @ B.T / width
        return np.exp(-np.square(A[:, None] - B[None]).sum(axis=2) / width)

    A, K = X - means[0], products(X - means[0], X - means[0])
    ridge = KernelRidge(alpha=m.regression_.ridge, kernel="precomputed")
    ridge.fit(K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean(), Y - means[1])
    new = products(Z - means[0], A)
    return means[1] + ridge.predict(new - K.mean(axis=0) - new.mean(axis=1)[:, None] + K.mean())


@pytest.mark.parametrize("options", [{"kernel": "linear", "ridge": 0.3}, {"kernel": "rbf", "width": 0.7}, {}])
def test_kernel_ridge_is_scikit_learns(options):
    m = KernelMap(**options).fit(P.X, P.Y)
    Z = P.X[:5] + 0.1
    np.testing.assert_allclose(m.transform(Z), reference(m, P.X, P.Y, Z), atol=1e-8)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_what_is_left_out_is_what_a_refit_without_it_predicts(kernel):
    X, Y = P.X - P.X.mean(axis=0), P.Y - P.Y.mean(axis=0)
    whole = module.KernelRidge.fit(X, Y, kernel=kernel, ridge=0.2)
    width = whole.regression.width
    for i in (0, 17, 59):
        rest = np.delete(np.arange(60), i)
        K = module._products(X, X, kernel, width)
        part = K[np.ix_(rest, rest)]
        level = part.mean(axis=0)
        centered = part - level - level[:, None] + level.mean()
        new = K[i, rest] - level - K[i, rest].mean() + level.mean()
        expected = Y[rest].mean(axis=0) + new @ np.linalg.solve(
            centered + 0.2 * np.eye(59), Y[rest] - Y[rest].mean(axis=0)
        )
        np.testing.assert_allclose(whole.left_out[i], expected, atol=1e-8)
    cosines = np.einsum("ij,ij->i", normalize_rows(whole.left_out), normalize_rows(Y))
    assert whole.cosine == pytest.approx(cosines.mean(), abs=1e-10)


def test_the_best_of_the_candidates_is_chosen():
    X, Y = unit_pairs()
    chosen = KernelMap().fit(X, Y)
    others = [KernelMap(kernel=k, ridge=r).fit(X, Y).loo_cosine_ for k in ("linear", "rbf") for r in module.RIDGES]
    assert chosen.loo_cosine_ == pytest.approx(max(others))
    assert chosen.regression_.kernel == "rbf"


def test_unit_rows_are_on_the_cone_with_their_part_along_the_mean():
    X, Y = unit_pairs()
    m = KernelMap().fit(X[:150], Y[:150])
    out, mean = m.transform(X[150:]), Y[:150].mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-12)
    axis = mean / np.linalg.norm(mean)
    plain = m.regression_.predict(X[150:] - X[:150].mean(axis=0)) + mean
    np.testing.assert_allclose(out @ axis, plain @ axis, atol=1e-12)
    ours, theirs = (normalize_rows(rows - np.outer(rows @ axis, axis)) for rows in (out, plain))
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
    rotation = OrthogonalMap().fit(X[:150], Y[:150]).transform(X[150:])

    def cosine(rows):
        return np.mean(np.sum(normalize_rows(rows - mean) * normalize_rows(Y[150:] - mean), axis=1))

    assert cosine(out) > cosine(rotation) + 0.02


def test_landmarks_bound_the_map_and_lose_little(monkeypatch):
    monkeypatch.setattr(module, "COMPARED", 80)
    X, Y = unit_pairs(600)
    whole = KernelMap(ridge=0.3, width=1.0, kernel="rbf").fit(X[:500], Y[:500])
    few = KernelMap(ridge=0.3, width=1.0, kernel="rbf", landmarks=120).fit(X[:500], Y[:500])
    assert few.regression_.landmarks.shape == (120, 16)
    assert len(few.pairs()[0]) == 120

    def error(m):
        return np.square(m.transform(X[500:]) - Y[500:]).sum()

    alone = KernelMap(ridge=0.3, width=1.0, kernel="rbf").fit(X[:120], Y[:120])
    assert error(few) < 1.1 * error(whole)
    assert error(few) < error(alone)


def test_with_as_many_landmarks_as_rows_both_solutions_agree(monkeypatch):
    X, Y = unit_pairs(90)
    options = {"kernel": "rbf", "width": 1.0, "ridge": 0.3}
    exact = KernelMap(**options).fit(X, Y)
    monkeypatch.setattr(module, "COMPARED", 90 - 1)
    again = KernelMap(**options).fit(X, Y)
    # The width is that of the rows compared, one less.
    assert again.regression_.width == pytest.approx(exact.regression_.width, rel=0.05)
    np.testing.assert_allclose(again.transform(X), exact.transform(X), atol=0.01)


def test_each_modality_has_its_own_means(tmp_path):
    X, Y = unit_pairs(120)
    names = np.array(["image", "text"] * 60)
    X[1::2] += 1
    m = KernelMap().fit(X, normalize_rows(Y + (names == "text")[:, None]), modality=names)
    assert {name: means[0].tolist() for name, means in m.modality_means_.items()} == {
        "image": X[::2].mean(axis=0).tolist(),
        "text": X[1::2].mean(axis=0).tolist(),
    }
    again = load(m.save(tmp_path / "m"))
    for mapping in (m, again):
        text = mapping.for_modality("text")
        assert not np.allclose(text.transform(X[:3]), mapping.transform(X[:3], modality="image"), atol=1e-3)
        np.testing.assert_allclose(text.pairs()[0][0], X[0] - X[::2].mean(axis=0) + X[1::2].mean(axis=0), atol=1e-12)
    with pytest.raises(errors.ModalityError, match="means for image, text"):
        m.for_modality("audio")


def test_copies_of_pairs_count_once():
    X, Y = unit_pairs(60)
    copies = np.concatenate([np.arange(60), np.repeat(np.arange(10), 5)])
    once, often = KernelMap().fit(X, Y), KernelMap().fit(X[copies], Y[copies])
    assert often.regression_.ridge == once.regression_.ridge
    assert often.n_pairs_ == 110
    assert len(often.pairs()[0]) == 60


@pytest.mark.parametrize("n", [2, 3, 10])
def test_few_pairs_give_a_map(n):
    X, Y = unit_pairs(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = KernelMap().fit(X.astype(np.float16), Y).transform(X)
    assert np.isfinite(out).all()


def test_what_is_not_linear_is_refused():
    X, Y = unit_pairs(40)
    m = fit(X, Y, "kernel", check=False)
    assert (m.role_, m.kind) == ("store", "kernel")
    for name in ("inverse", "merge", "then"):
        assert not hasattr(m, name)
    with pytest.raises(errors.ParameterError, match="KernelMap is not made of layers"):
        m.as_layers()
    np.testing.assert_allclose(Bridge(m).transform(X[:3]), m.transform(X[:3]), atol=1e-6)
    with pytest.raises(errors.InputError, match="do not vary"):
        KernelMap().fit(np.ones((4, 3)), np.ones((4, 2)))
    for wrong in ({"kernel": "poly"}, {"width": 0}, {"ridge": -1.0}, {"landmarks": 0}):
        with pytest.raises(errors.ParameterError):
            KernelMap(**wrong).fit(X, Y)


def test_pairs_that_vary_by_rounding_alone_are_refused():
    X, Y = unit_pairs(50)
    for A, B in ((np.tile(X[:1], (50, 1)), Y), (X, np.tile(Y[:1], (50, 1)))):
        with pytest.raises(errors.InputError, match="do not vary"):
            KernelMap().fit(A, B)
