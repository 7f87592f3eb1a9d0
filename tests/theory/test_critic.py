"""Section 5.2 and appendices C.2 to C.4 on finite worlds, where every expectation is a sum that is written out here."""

import json
from itertools import product

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize

from arrays import unit
from congruence.theory import (
    bayes_posterior,
    critic_gap,
    critic_rank,
    curate,
    independent_weights,
    infonce_loss,
    kernel_agreement,
    latent_joint,
    pmi,
    realize_critic,
    sigmoid_loss,
)


def world(n: int = 3, m: int = 4, seed: int = 0) -> np.ndarray:
    P = np.random.default_rng(seed).uniform(0.2, 3, (n, m))
    return P / P.sum()


def draws(P: np.ndarray, N: int):
    """All (J, x, y₀ … y_{N−1}) of the InfoNCE sampling model, with their probabilities."""
    n, m = P.shape
    px, py = P.sum(axis=1), P.sum(axis=0)
    for slot, x, ys in product(range(N), range(n), product(range(m), repeat=N)):
        others = np.prod([py[y] for k, y in enumerate(ys) if k != slot])
        yield slot, x, ys, px[x] * (P[x, ys[slot]] / px[x]) * others / N


def test_pmi_is_the_definition():
    P = world()
    expected = [[np.log(P[i, j] / (P[i].sum() * P[:, j].sum())) for j in range(4)] for i in range(3)]
    np.testing.assert_allclose(pmi(P), expected)
    np.testing.assert_allclose(pmi(100 * P), expected)  # counts


def test_theorem_c4_i_the_posterior_is_that_of_all_draws():
    P, N = world(), 3
    every = list(draws(P, N))
    assert sum(p for *_, p in every) == pytest.approx(1)
    for x, ys in ((0, (0, 1, 2)), (1, (3, 3, 1)), (2, (2, 0, 0))):
        weight = [sum(p for j, a, b, p in every if (j, a, b) == (slot, x, ys)) for slot in range(N)]
        np.testing.assert_allclose(bayes_posterior(P, x, ys), np.array(weight) / sum(weight))


@pytest.mark.parametrize("N", [2, 3, 4])
def test_the_loss_is_the_sum_over_all_draws(N):
    P, S = world(2, 3), np.random.default_rng(1).normal(size=(2, 3))

    def one_way(P, S):
        return sum(-p * (S[x, ys[j]] - np.log(sum(np.exp(S[x, y]) for y in ys))) for j, x, ys, p in draws(P, N))

    np.testing.assert_allclose(infonce_loss(S, P, N), [one_way(P, S), one_way(P.T, S.T)])


@pytest.mark.parametrize("N", [2, 3])
def test_theorem_c4_ii_a_function_of_the_image_is_free_in_one_direction_and_nothing_else_is(N):
    P = world()
    K, c = pmi(P), np.random.default_rng(2).normal(size=3)
    least = infonce_loss(K, P, N)
    # The least loss is the uncertainty that Bayes' rule leaves.
    assert least[0] == pytest.approx(sum(-p * np.log(bayes_posterior(P, x, ys)[j]) for j, x, ys, p in draws(P, N)))
    moved = infonce_loss(K + c[:, None], P, N)
    assert moved[0] == pytest.approx(least[0], abs=1e-12)
    assert moved[1] > least[1] + 1e-3
    rng = np.random.default_rng(3)
    for _ in range(20):
        D = rng.normal(size=K.shape)
        D -= D.mean(axis=1, keepdims=True)
        for t in (1e-2, 1.0):
            assert infonce_loss(K + t * D, P, N)[0] > least[0]


@pytest.mark.parametrize("N", [2, 4])
def test_theorem_c5_whatever_minimizes_both_directions_is_pmi_plus_a_constant(N):
    P = world(seed=4)

    def loss(s):
        return sum(infonce_loss(s.reshape(P.shape), P, N))

    found = minimize(loss, np.random.default_rng(5).normal(size=P.size), method="BFGS", options={"gtol": 1e-9})
    gap = critic_gap(found.x.reshape(P.shape), P, N)
    assert gap.excess == pytest.approx(0, abs=1e-10)
    assert gap.spread < 1e-4
    assert gap.constant != 0
    assert json.loads(json.dumps(gap.to_dict()))["excess"] == gap.excess


def test_the_gap_says_which_direction_is_at_its_least():
    P, c = world(), np.array([0.0, 1.0, 3.0])
    gap = critic_gap(pmi(P) + c[:, None], P)
    assert (gap.by_image, gap.by_text, gap.spread) == pytest.approx((0, 3, 3), abs=1e-12)
    assert gap.constant == pytest.approx(1.5)
    assert gap.excess > 0.01


def test_siglip_has_the_same_minimizer_with_its_constant_fixed():
    P, k = world(), 7.0
    best = pmi(P) - np.log(k)
    least = sigmoid_loss(best, P, k)
    step = np.random.default_rng(6).normal(size=P.shape)
    slope = (sigmoid_loss(best + 1e-5 * step, P, k) - sigmoid_loss(best - 1e-5 * step, P, k)) / 2e-5
    assert slope == pytest.approx(0, abs=1e-9)
    assert all(sigmoid_loss(best + t * step, P, k) > least for t in (-1, -0.1, 0.1, 1))
    assert sigmoid_loss(best + 0.1, P, k) > least + 1e-4  # InfoNCE would not mind


def test_the_gradient_at_pmi_is_zero():
    P = world()
    error = check_grad(lambda s: sum(infonce_loss(s.reshape(P.shape), P, 3)), lambda s: 0 * s, pmi(P).ravel())
    assert error < 1e-6


def test_lemma_c9_holds_for_any_weights():
    rng = np.random.default_rng(7)
    for seed in range(5):
        P = world(5, 6, seed)
        u, v = rng.uniform(0.1, 3, 5), rng.uniform(0.1, 3, 6)
        chosen = curate(P, u, v)
        np.testing.assert_allclose(chosen.joint, (p := P * u[:, None] * v) / p.sum())
        assert chosen.normalizer == pytest.approx(sum(P[i, j] * u[i] * v[j] for i in range(5) for j in range(6)))
        np.testing.assert_allclose(pmi(chosen.joint), pmi(P) + chosen.shift, atol=1e-12)
        off = chosen.shift - chosen.constant
        assert np.abs(off).max() == pytest.approx(chosen.departure)  # a rule of two ranges, not a bound
        assert chosen.departure > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_theorem_c11_and_corollary_c12_two_independent_curations_have_one_best_score(seed):
    P = latent_joint(9, 8, 3, random_state=seed)
    chosen = [curate(P, *independent_weights(P, strength=0.9, random_state=10 * seed + k)) for k in (1, 2)]
    for one in chosen:
        assert np.abs(one.joint / P - 1).max() > 0.5  # data sets that differ from the world …
        assert one.departure < 1e-12  # … and whose best scores do not
        np.testing.assert_allclose(pmi(one.joint) - pmi(P), one.constant, atol=1e-12)
        assert one.constant == pytest.approx(np.log(one.normalizer), abs=1e-12)  # both weights have mean 1
    gap = critic_gap(pmi(chosen[0].joint), chosen[1].joint)
    assert gap.spread < 1e-12
    assert gap.excess == pytest.approx(0, abs=1e-12)


def test_the_converse_of_c11_dependent_curation_moves_the_best_score():
    """Texts chosen by their topic: acceptance depends on the image, and the constant is gone."""
    P = latent_joint(9, 8, 3, concentration=0.3, random_state=1)
    topic = P[0] / P.sum(axis=0)  # texts that go with the first image
    chosen = curate(P, np.ones(9), topic / topic.max())
    off = pmi(chosen.joint) - pmi(P)
    assert chosen.departure == pytest.approx(np.ptp(off) / 2)
    assert chosen.departure > 0.2
    assert critic_gap(pmi(P), chosen.joint).excess > 1e-3
    assert json.loads(json.dumps(chosen.to_dict()))["departure"] == chosen.departure


def test_a_world_of_full_rank_has_no_independent_curation_but_constants():
    u, v = independent_weights(world(6, 4))  # images have room, texts have none
    assert np.abs(u - 1).max() == pytest.approx(0.5)
    np.testing.assert_array_equal(v, 1)
    np.testing.assert_array_equal(u, independent_weights(world(6, 4))[0])
    assert not np.array_equal(u, independent_weights(world(6, 4), random_state=1)[0])


def test_remark_c7_scores_of_a_dual_encoder_have_rank_d_once_their_bias_is_gone():
    rng = np.random.default_rng(8)
    for d in (3, 5):
        F, G = (unit(rng.normal(size=(n, d))) for n in (12, 9))
        S = F @ G.T / 0.1 + 3
        assert np.linalg.matrix_rank(S) == d + 1
        found = critic_rank(S)
        assert found.rank == d
        assert found.constant == pytest.approx(3)
        assert found.rms_error(d) == pytest.approx(0, abs=1e-9)
        assert found.rms_error(d - 2) > 0.1  # rank d + 1 in all, the bias among it
    assert critic_rank(rng.normal(size=(6, 9))).rank == 6  # no constant lowers it, though 1 lies in the column space
    assert critic_rank(np.full((3, 4), 7.0)).rank == 0
    assert critic_rank(np.zeros((3, 4))).rank == 0
    assert critic_rank(np.zeros((3, 4))).max_temperature == np.inf


@pytest.mark.parametrize("seed", range(3))
def test_every_critic_is_that_of_a_dual_encoder_of_two_more_dimensions(seed):
    K = pmi(world(7, 5, seed))
    found = critic_rank(K)
    encoder = realize_critic(K, random_state=seed)
    for rows in (encoder.images, encoder.texts):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1)
    assert encoder.images.shape[1] == found.enough == found.rank + 2
    np.testing.assert_allclose(encoder.scores, K, atol=1e-12)
    assert encoder.temperature <= found.max_temperature
    assert json.loads(json.dumps(found.to_dict()))["enough"] == found.enough
    assert realize_critic(K, dim=11).images.shape == (7, 11)
    np.testing.assert_allclose(realize_critic(K, dim=11).scores, K, atol=1e-12)


def test_fewer_dimensions_lie_above_the_bound_and_fall_towards_zero():
    K = pmi(latent_joint(14, 12, 6, concentration=0.2))
    found = critic_rank(K)
    errors = [np.sqrt(np.mean((realize_critic(K, dim=d).scores - K) ** 2)) for d in range(3, found.enough + 1)]
    assert all(found.rms_error(d) <= error + 1e-12 for d, error in enumerate(errors, start=3))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 10 * errors[-2] > 0


def test_remark_c13_from_two_data_sets_to_kernels_that_agree():
    """The whole way: a world, two curations, two dual encoders that are optimal for theirs, and kernels that differ by
    slope and constant.
    """
    P = latent_joint(12, 10, 4, random_state=3)
    chosen = [curate(P, *independent_weights(P, strength=0.8, random_state=k)) for k in (1, 2)]
    first, second = (realize_critic(pmi(one.joint), random_state=k) for k, one in enumerate(chosen))
    found = kernel_agreement(first.images, first.texts, second.images, second.texts, "affine")
    assert found.epsilon < 1e-10
    topic = curate(P, np.ones(12), P[0] / P.sum(axis=0))
    other = realize_critic(pmi(topic.joint), random_state=2)
    assert kernel_agreement(first.images, first.texts, other.images, other.texts, "affine").epsilon > 1e-3
