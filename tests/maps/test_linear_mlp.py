import numpy as np
import pytest
from sklearn.linear_model import Ridge

from congruence import LinearMap, MLPMap
from congruence.errors import ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.synthetic import rigid_problem


@pytest.mark.parametrize("alpha", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [30, 200])
def test_ridge_is_scikit_learns(alpha, center, n):
    if alpha == 0 and n < 40:
        pytest.skip("without a penalty and with fewer rows than columns the solution is not unique")
    p = rigid_problem(n, 40, 12, noise=0.2, random_state=0)
    w = np.random.default_rng(0).uniform(0.1, 2, n)
    reference = Ridge(alpha=alpha, fit_intercept=center).fit(p.X, p.Y, sample_weight=w)
    m = LinearMap(ridge=alpha, center=center).fit(p.X, p.Y, sample_weight=w)
    np.testing.assert_allclose(m.coef_, reference.coef_.T, atol=1e-9)
    np.testing.assert_allclose(m.transform(p.X), reference.predict(p.X), atol=1e-9)


def test_a_map_of_moments_is_that_of_their_rows():
    p = rigid_problem(40, 4, random_state=0)
    gathered = CrossMoments.of(p.X, p.Y, gram=True)
    np.testing.assert_allclose(LinearMap.from_moments(gathered).coef_, LinearMap().fit(p.X, p.Y).coef_, atol=1e-12)


def test_without_a_penalty_the_least_norm_solution_is_taken():
    p = rigid_problem(20, 40, 12, noise=0.2, random_state=0)
    X, Y = p.X - p.X.mean(0), p.Y - p.Y.mean(0)
    np.testing.assert_allclose(LinearMap(ridge=0.0).fit(p.X, p.Y).coef_, np.linalg.pinv(X) @ Y, atol=1e-8)


@pytest.mark.parametrize("center", [True, False])
def test_generalized_cross_validation_is_its_definition(center):
    p = rigid_problem(60, 30, 8, noise=0.5, decay=0.5, random_state=1)
    m = LinearMap(center=center).fit(p.X, p.Y)
    X, Y = (p.X - p.X.mean(0), p.Y - p.Y.mean(0)) if center else (p.X, p.Y)
    n = 60 - center
    for k in (20, 40, 55):
        hat = X @ np.linalg.solve(X.T @ X + m.gcv_ridges_[k] * np.eye(30), X.T)
        expected = n * np.sum((Y - hat @ Y) ** 2) / (n - np.trace(hat)) ** 2
        assert m.gcv_scores_[k] == pytest.approx(expected, rel=1e-8)
    assert m.ridge_ == m.gcv_ridges_[np.argmin(m.gcv_scores_)]


def test_cross_validated_ridge_generalises_like_the_best_fixed_one():
    p = rigid_problem(400, 60, 20, noise=1.0, decay=0.5, random_state=2)
    train, test = slice(0, 100), slice(100, None)

    def loss(alpha):
        m = LinearMap(ridge=alpha).fit(p.X[train], p.Y[train])
        return np.mean((m.transform(p.X[test]) - p.Y[test]) ** 2)

    best = min(loss(float(alpha)) for alpha in np.logspace(-4, 4, 33))
    assert loss("cv") < 1.03 * best
    assert loss("cv") < 0.8 * loss(0.0)


@pytest.mark.parametrize("alpha", [-1.0, "best", np.nan, True])
def test_impossible_penalties_are_refused(alpha):
    p = rigid_problem(20, 4, random_state=0)
    with pytest.raises(ParameterError, match="ridge"):
        LinearMap(ridge=alpha).fit(p.X, p.Y)


def curved(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 8))
    A, B = np.random.default_rng(99).standard_normal((2, 8, 6))
    return X, X @ A + 2 * np.tanh(2 * X @ B)


@pytest.mark.long
def test_the_perceptron_beats_the_line_where_there_is_a_curve():
    X, Y = curved(3000, 0)
    Xt, Yt = curved(1000, 1)
    mlp, line = MLPMap(hidden=64).fit(X, Y), LinearMap().fit(X, Y)

    def error(m):
        return np.mean((m.transform(Xt) - Yt) ** 2)

    assert error(mlp) < 0.1 * error(line)
    assert mlp.best_epoch_ > 0


def test_the_perceptron_stays_with_the_line_where_there_is_none():
    p = rigid_problem(300, 10, noise=0.5, random_state=0)
    mlp = MLPMap(max_epochs=60, patience=5).fit(p.X, p.Y)
    assert mlp.validation_curve_[mlp.best_epoch_] <= mlp.validation_curve_[0]
    assert mlp.n_epochs_ <= mlp.best_epoch_ + 5
    assert mlp.n_epochs_ < 60


def test_training_is_deterministic_by_seed_and_leaves_torchs_generator_alone():
    import torch

    X, Y = curved(300, 0)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = MLPMap(hidden=16, max_epochs=5).fit(X, Y)
    assert torch.equal(torch.rand(1), expected)
    again = MLPMap(hidden=16, max_epochs=5).fit(X, Y)
    other = MLPMap(hidden=16, max_epochs=5, random_state=1).fit(X, Y)
    assert np.array_equal(first.transform(X), again.transform(X))
    assert not np.array_equal(first.transform(X), other.transform(X))


def test_the_numpy_forward_pass_is_torchs():
    import torch

    X, Y = curved(200, 0)
    m = MLPMap(hidden=16, max_epochs=10).fit(X, Y)
    w = {k: torch.tensor(np.ascontiguousarray(v)).double() for k, v in m.weights_.items()}
    z = torch.tensor(X) - w["source_mean"]
    hidden = torch.nn.functional.gelu(z @ w["w1"] + w["b1"])
    expected = z @ w["matrix"] + w["target_mean"] + hidden @ w["w2"] + w["b2"]
    np.testing.assert_allclose(m.transform(X), expected.numpy(), atol=1e-10)


def test_scaled_data_train_alike():
    X, Y = curved(500, 0)
    a = MLPMap(hidden=16, max_epochs=10).fit(X, Y).transform(X)
    b = MLPMap(hidden=16, max_epochs=10).fit(1e4 * X, 1e-4 * Y).transform(1e4 * X)
    np.testing.assert_allclose(b * 1e4, a, atol=1e-2)
