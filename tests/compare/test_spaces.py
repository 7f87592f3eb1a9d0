"""Nulls, intervals and held-out values say what they claim to say."""

import json

import numpy as np
import pytest

from congruence.compare.spaces import DEFAULT, Similarity, compare_spaces
from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.metrics import BETWEEN_SPACES, METRICS, linear_cka


def pair(n=120, d=8, e=6, mix=1.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, mix * X @ rng.standard_normal((d, e)) + rng.standard_normal((n, e))


def test_scores_are_those_of_the_metrics_and_repeat():
    X, Y = pair()
    scores = compare_spaces(X, Y, list(BETWEEN_SPACES), permutations=20, halves=3)
    for score in scores:
        assert score.value == pytest.approx(METRICS[score.metric].fn(X, Y), abs=1e-7)
        assert (score.n, score.permutations) == (120, 20)
        assert score.low <= score.value <= score.high
    assert [s.metric for s in scores] == list(BETWEEN_SPACES)
    assert compare_spaces(X, Y, list(BETWEEN_SPACES), permutations=20, halves=3) == scores
    assert compare_spaces(X, Y, permutations=20, halves=3, random_state=1) != compare_spaces(
        X, Y, permutations=20, halves=3
    )


@pytest.mark.parametrize("shape", [(60, 8, 6), (40, 70, 55)])
def test_metrics_together_score_as_each_alone(shape):
    """What they share is computed once; rows with ties, whose orders are drawn at random."""
    X, Y = (np.round(2 * A) for A in pair(*shape))
    together = compare_spaces(X, Y, list(BETWEEN_SPACES), permutations=7, halves=3)
    for score in together:
        (alone,) = compare_spaces(X, Y, [score.metric], permutations=7, halves=3)
        for field in ("value", "null_mean", "null_sd", "p_value", "low", "high"):
            assert getattr(score, field) == pytest.approx(getattr(alone, field), abs=1e-12), field


def test_re_pairings_in_single_precision():
    X, Y = (A.astype(np.float32) for A in pair(400, 300, 280))
    single, double = (
        compare_spaces(*sides, ["procrustes_distance", "svcca", "pwcca", "cca"], permutations=5, halves=2)
        for sides in ((X, Y), (X.astype(float), Y.astype(float)))
    )
    for one, other in zip(single, double, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)
        assert one.null_mean == pytest.approx(other.null_mean, abs=1e-6)
        assert one.p_value == other.p_value


def test_related_spaces_stand_out_and_unrelated_ones_do_not():
    X, Y = pair()
    for score in compare_spaces(X, Y, permutations=99, halves=2):
        assert score.p_value == score.adjusted_p_value == 0.01
    X, Y = pair(mix=0.0)
    assert min(score.adjusted_p_value for score in compare_spaces(X, Y, permutations=99, halves=2)) > 0.01


def test_real_encoders(lvis):
    """Two CLIPs agree far beyond chance; a CLIP and a shuffled one do not."""
    X, Y = lvis["text_openai_vitb32"][:200], lvis["text_eva02_b16"][:200]
    assert all(score.adjusted_p_value == 0.025 for score in compare_spaces(X, Y, permutations=39, halves=2))
    order = np.random.default_rng(0).permutation(200)
    assert all(score.p_value > 0.02 for score in compare_spaces(X, Y[order], permutations=199, halves=2))


@pytest.mark.long
@pytest.mark.parametrize("name", DEFAULT)
def test_p_values_are_uniform_on_unrelated_rows(name):
    """Forty draws: the share below one half is a binomial with mean 20 and standard deviation 3.2."""
    p = [compare_spaces(*pair(40, 5, 4, 0.0, seed), [name], permutations=39, halves=1)[0].p_value for seed in range(40)]
    assert 8 <= np.sum(np.array(p) <= 0.5) <= 32
    assert np.sum(np.array(p) <= 0.1) <= 12


def test_the_null_of_cka_against_its_closed_form():
    """Mean of tr(KLπ) over all orders of centered Gram matrices is tr(K) tr(L) / (n − 1): zero once debiased."""
    X, Y = pair(60, 4, 4, 1.0)
    score = compare_spaces(X, Y, ["linear_cka"], permutations=2000, halves=1)[0]
    assert abs(score.null_mean) < 4 * score.null_sd / np.sqrt(2000)
    brute = [linear_cka(X, Y[np.random.default_rng(s).permutation(60)]) for s in range(1000)]
    assert score.null_sd == pytest.approx(np.std(brute), rel=0.15)


def test_the_interval_is_about_as_wide_as_the_score_varies():
    values = [linear_cka(*_drawn(200, seed)) for seed in range(60)]
    widths = [
        s.high - s.value
        for seed in range(5)
        for s in compare_spaces(*_drawn(200, seed), ["linear_cka"], permutations=2, halves=40)
    ]
    assert np.mean(widths) / 1.96 == pytest.approx(np.std(values), rel=0.4)


def _drawn(n, seed):
    """Rows from one fixed population."""
    rng, A = np.random.default_rng(seed), np.random.default_rng(99).standard_normal((5, 5))
    X = rng.standard_normal((n, 5))
    return X, X @ A + rng.standard_normal((n, 5))


def test_held_out_correlations_see_through_saturation():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((2, 80, 60))
    cca, svcca, cka = compare_spaces(X, Y, ["cca", "svcca", "linear_cka"], permutations=5, halves=2)
    for score in (cca, svcca):
        assert score.value > 0.7
        assert abs(score.held_out) < 0.2
    assert cka.held_out is None
    X, Y = pair(400, 5, 5)
    assert compare_spaces(X, Y, ["cca"], permutations=2, halves=1)[0].held_out > 0.6


def test_rows_are_drawn_only_when_asked():
    X, Y = pair(300)
    assert compare_spaces(X, Y, ["mutual_knn"], permutations=2, max_rows=100)[0].n == 100
    assert compare_spaces(X, Y, ["mutual_knn"], permutations=2, max_rows=1000)[0].n == 300
    many = np.random.default_rng(0).standard_normal((5001, 2))
    with pytest.raises(ShapeError, match="5000"):
        compare_spaces(many, many, ["rsa"])


def test_bad_input():
    X, Y = pair()
    for bad, error in (
        ((X[:5], Y[:5]), TooFewAnchorsError),
        ((X[:50], Y), InputError),
        ((X * np.nan, Y), NotFiniteError),
        ((np.ones_like(X), Y), InputError),
    ):
        with pytest.raises(error):
            compare_spaces(*bad)
    for metrics in (["paired_cosine"], ["magic"], []):
        with pytest.raises(ParameterError, match="compares two spaces"):
            compare_spaces(X, Y, metrics)
    for options in ({"permutations": 0}, {"halves": 0}, {"max_rows": -1}, {"max_rows": 7}):
        with pytest.raises(ParameterError, match=next(iter(options))):
            compare_spaces(X, Y, ["cca"], **options)


def test_the_command(here, tmp_path):
    X, Y = pair()
    names = np.array([f"i{k}" for k in range(120)])
    order = np.random.default_rng(0).permutation(120)
    np.savez(tmp_path / "a.npz", v=X, ids=names)
    np.savez(tmp_path / "b.npz", v=Y[order], ids=names[order])
    few = ["--permutations", 20, "--set", "halves=2"]
    result = here("lab similarity", "a.npz:v", "b.npz:v", *few, "--json").ends(0)
    data = json.loads(result.out)
    expected = compare_spaces(X, Y, permutations=20, halves=2)
    assert [Similarity(**score) for score in data["scores"]] == expected  # paired by id, in the first file's order
    table = here("lab similarity", "a.npz:v", "b.npz:v", *few, "--metric", "cca", "--metric", "procrustes_distance")
    assert "smaller is closer" in table.out
    assert "linear_cka" not in table.out
    assert here("lab similarity", "a.npz:v", "b.npz:v", *few, "--metric", "all").out.count("\n") > len(BETWEEN_SPACES)
