"""Matching pairs beside non-matches: what separates is said to, what does not is not, and p-values keep their word."""

import json
from shlex import split

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.stats import mannwhitneyu

from congruence import errors
from congruence.compare.matching import DEFAULT, Separation, match_test
from congruence.metrics import BETWEEN_SPACES, METRICS, cca, cknna, linear_cka, svcca

FEW = {"draws": 8, "permutations": 19, "definition": "congruence"}


def pairs(n=90, d=14, e=11, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((n, d)) + 0.5
    return images, images @ rng.standard_normal((d, e)) / d**0.5 + noise * rng.standard_normal((n, e))


def test_matches_stand_apart_from_easy_non_matches():
    images, texts = pairs()
    found = match_test(images, texts, **FEW)
    assert [(one.metric, one.against) for one in found] == [(m, a) for m in DEFAULT for a in ("noise", "shuffled")]
    for one in found:
        assert (one.n, one.rows, one.permutations) == (90, 45, 19)
        assert one.auc > 0.95
        assert one.effect_size > 2
        assert one.p_value == 0.05
        assert one.match > one.other


def test_a_smaller_score_may_be_the_closer_one():
    (noise, shuffled) = match_test(*pairs(), metrics=["procrustes_distance"], **FEW)
    for one in (noise, shuffled):
        assert not one.larger_is_closer
        assert one.match < one.other
        assert (one.auc, one.p_value) == (1.0, 0.05)
        assert one.effect_size > 2


def test_scores_are_those_of_the_metrics():
    images, texts = pairs()
    once = {"draws": 1, "permutations": 1, "definition": "congruence"}
    for one in match_test(images, texts, metrics=list(BETWEEN_SPACES), components=None, rows=90, **once):
        assert one.match == pytest.approx(METRICS[one.metric].fn(images, texts), abs=1e-7)
        assert one.match_scores == pytest.approx([one.match], abs=1e-7)  # of all rows, in another order
    small = {one.metric: one.match for one in match_test(images, texts, components=3, **once)}

    def leading(A, k):
        U, s, _ = np.linalg.svd(A - A.mean(axis=0), full_matrices=False)
        return U[:, :k] * s[:k]

    assert small["linear_cka"] == pytest.approx(linear_cka(leading(images, 3), leading(texts, 3)))
    assert small["svcca"] == pytest.approx(cca(images, texts, rank=3))
    assert small["cca"] == pytest.approx(cca(images, texts, rank=50))
    wide = pairs(30, 70, 60)  # more dimensions than rows
    (found, _) = match_test(*wide, metrics=["linear_cka"], components=4, rows=20, **once)
    assert found.match == pytest.approx(linear_cka(leading(wide[0], 4), leading(wide[1], 4)))


def test_effect_and_auc_against_their_definitions():
    images, texts = pairs(noise=4.0)
    for one in match_test(images, texts, texts[::-1], draws=30, permutations=2, definition="congruence"):
        a, b = np.array(one.match_scores), np.array(one.other_scores)
        assert one.auc == pytest.approx(mannwhitneyu(a, b).statistic / 900)
        assert one.effect_size == pytest.approx((a.mean() - b.mean()) / np.sqrt((a.var() + b.var()) / 2))


def test_unrelated_pairs_are_not_told_from_shuffled_ones():
    """The permutation test is exact: of 60 unrelated sets p ≤ .1 in 6 (sd 2.3), though overlapping draws may differ a
    lot.
    """
    p = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        images, texts = rng.standard_normal((40, 6)) ** 3, rng.standard_normal((40, 5))
        found = match_test(images, texts, metrics=["linear_cka"], random_state=seed, **{**FEW, "draws": 1})
        p.append(found[1].p_value)
    assert np.sum(np.array(p) <= 0.1) <= 14
    assert 17 <= np.sum(np.array(p) <= 0.5) <= 43


@pytest.mark.long
def test_a_hard_text_as_good_as_the_right_one_is_not_told_apart():
    """Two captions drawn alike for each image: p is uniform, where a t-test over draws would nearly always see a
    difference.
    """
    p, t = [], []
    for seed in range(60):
        images, texts = pairs(40, 5, 4, 1.0, seed)
        rng = np.random.default_rng(1000 + seed)
        hidden = texts
        texts, hard = (hidden + rng.standard_normal(hidden.shape) for _ in range(2))
        one = match_test(images, texts, hard, metrics=["linear_cka"], random_state=seed, **{**FEW, "draws": 20})[2]
        p.append(one.p_value)
        gaps = np.subtract(one.match_scores, one.other_scores)
        t.append(abs(gaps.mean()) / (gaps.std(ddof=1) / 20**0.5) > 2.1)
    assert np.sum(np.array(p) <= 0.1) <= 14
    assert 17 <= np.sum(np.array(p) <= 0.5) <= 43
    assert np.sum(t) > 30


def test_a_hard_text_that_says_less_is_told_apart():
    images, texts = pairs(noise=0.2)
    hard = texts + 3 * np.random.default_rng(5).standard_normal(texts.shape)
    for one in match_test(images, texts, hard, metrics=["linear_cka", "cca"], **FEW):
        if one.against == "hard":
            assert one.p_value == 0.05
            assert one.auc == 1
            assert one.other == pytest.approx(match_test(images, hard, metrics=[one.metric], **FEW)[0].match)
    (swapped,) = match_test(images, hard, texts, metrics=["linear_cka"], **FEW)[2:]
    assert swapped.p_value > 0.9  # one-sided: the wrong caption scores closer
    assert swapped.effect_size < 0


def test_a_hard_text_that_is_the_right_one_ties():
    images, texts = pairs()
    one = match_test(images, texts, texts.copy(), metrics=["mutual_knn"], **FEW)[2]
    assert (one.auc, one.effect_size, one.p_value, one.other) == (0.5, 0.0, 1.0, one.match)


def test_nearest_texts_change_places():
    images, texts = pairs(40)
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    cost = -unit @ unit.T
    np.fill_diagonal(cost, 1e9)
    order = linear_sum_assignment(cost)[1]
    assert (order != np.arange(40)).all()
    made = match_test(images, texts, "nearest", **FEW)
    given = match_test(images, texts, texts[order], **FEW)
    assert made == given
    hard = next(one for one in made if one.against == "hard" and one.metric == "linear_cka")
    shuffled = next(one for one in made if one.against == "shuffled" and one.metric == "linear_cka")
    assert shuffled.other < hard.other < hard.match


def test_given_unrelated_texts_are_used():
    images, texts = pairs()
    novel = np.random.default_rng(9).standard_normal((200, 11))
    found = match_test(images, texts, unrelated=novel, metrics=["linear_cka"], **FEW)
    assert [one.against for one in found] == ["noise", "unrelated"]
    assert found[1].auc == 1


@pytest.mark.long
def test_the_same_seed_repeats_and_arrays_are_left_alone():
    images, texts = pairs()
    kept = images.copy(), texts.copy()
    ticks = []
    found = match_test(images, texts, "nearest", random_state=3, callback=ticks.append, **FEW)
    assert found == match_test(images, texts, "nearest", random_state=3, **FEW)
    assert found != match_test(images, texts, "nearest", random_state=4, **FEW)
    assert sum(ticks) == FEW["draws"] + FEW["permutations"]
    np.testing.assert_array_equal(images, kept[0])
    np.testing.assert_array_equal(texts, kept[1])
    half = match_test(images.astype(np.float16), texts.astype(np.float16), "nearest", random_state=3, **FEW)
    assert half[0].match == pytest.approx(found[0].match, abs=0.01)
    assert Separation(**found[0].to_dict()) == found[0]


def test_bad_input():
    images, texts = pairs()
    for arguments, options, error in (
        ((images[:7], texts[:7]), {}, errors.TooFewAnchorsError),
        ((images[:50], texts), {}, errors.ShapeError),
        ((images * np.nan, texts), {}, errors.NotFiniteError),
        ((images, np.ones_like(texts)), {}, errors.InputError),
        ((images, texts.astype(str)), {}, errors.DtypeError),
        ((images, texts, texts[:-1]), {}, errors.ShapeError),
        ((images, texts, images), {}, errors.ShapeError),
        ((images, texts, "nearby"), {}, errors.ParameterError),
        ((images, texts * (np.arange(90) > 0)[:, None], "nearest"), {}, errors.ZeroRowError),
        ((images, texts), {"unrelated": texts[:50]}, errors.ShapeError),
        ((images, texts), {"unrelated": images}, errors.ShapeError),
        ((images, texts), {"metrics": ["paired_cosine"]}, errors.ParameterError),
        ((images, texts), {"metrics": []}, errors.ParameterError),
        ((images, texts), {"rows": 91}, errors.ParameterError),
        ((images, texts), {"rows": 7}, errors.ParameterError),
        ((images, texts), {"draws": 0}, errors.ParameterError),
        ((images, texts), {"permutations": 0}, errors.ParameterError),
        ((images, texts), {"components": 0}, errors.ParameterError),
        ((images, texts), {"definition": "paper"}, errors.ParameterError),
        ((images, texts), {"metrics": ["rsa"], "definition": "jam"}, errors.ParameterError),
    ):
        with pytest.raises(error):
            match_test(*arguments, **{"metrics": ["linear_cka"], **FEW, **options})
    many = np.random.default_rng(0).standard_normal((5001, 2))
    with pytest.raises(errors.ShapeError, match="5000"):
        match_test(many, many, "nearest")


def test_the_command(here, tmp_path):
    images, texts = pairs()
    wrong = texts + np.random.default_rng(1).standard_normal(texts.shape)
    names = np.array([f"i{k}" for k in range(90)])
    rng = np.random.default_rng(2)
    for name, vectors in (("texts", texts), ("wrong", wrong)):
        order = rng.permutation(90)
        np.savez(tmp_path / f"{name}.npz", v=vectors[order], ids=names[order])
    np.savez(tmp_path / "images.npz", v=images[:80], ids=names[:80])
    few = ("--set", "draws=5", "--set", "permutations=9", "--set", "rows=30", "--metric", "linear_cka")
    result = here("lab match", "images.npz:v", "texts.npz:v", "--hard", "wrong.npz:v", *few, "--json").ends(0)
    options = {"metrics": ["linear_cka"], "draws": 5, "permutations": 9, "rows": 30}
    expected = match_test(images[:80], texts[:80], wrong[:80], **options)
    assert json.loads(result.out)["results"] == json.loads(json.dumps([one.to_dict() for one in expected]))
    table = here("lab match", "images.npz:v", "texts.npz:v", "--hard", "nearest", "--unrelated", "wrong.npz:v", *few)
    assert {"noise", "unrelated", "hard"} <= set(table.out.split())
    for words in ("linear_cka, biased (paper)", "linear_cka, debiased (ours)", "paper: Yoon et al. (JAM)"):
        assert words in table.out
    plain = split("lab match images.npz:v texts.npz:v --set components=0 --json")
    whole = here(*plain, *few, "--set", "definition=congruence")
    assert json.loads(whole.out)["results"][0]["match"] == pytest.approx(linear_cka(images[:80], texts[:80]))
    few = split("--set draws=1 --set permutations=1 --metric cknna --metric svcca --set definition=jam")
    scaled = here(*plain, *few, *split("--set normalize=true --set standardize=true"))
    found = [one["match"] for one in json.loads(scaled.out)["results"][::2]]
    cknna_scaled = cknna(images[:80], texts[:80], definition="jam", normalize=True)
    assert found == pytest.approx([cknna_scaled, svcca(images[:80], texts[:80], standardize=True)])


def test_hard_texts_without_ids_follow_the_rows_of_the_texts(here, tmp_path):
    images, texts = pairs()
    wrong = texts + np.random.default_rng(1).standard_normal(texts.shape)
    names = np.array([f"i{k}" for k in range(90)])
    np.savez(tmp_path / "images.npz", v=images[::-1], ids=names[::-1])
    np.savez(tmp_path / "texts.npz", v=texts, ids=names)
    np.save(tmp_path / "wrong.npy", wrong)
    few = split("--set draws=2 --set permutations=9 --metric linear_cka --set definition=congruence --json")
    result = here("lab match", "images.npz:v", "texts.npz:v", "--hard", "wrong.npy", *few)
    hard = json.loads(result.out)["results"][2]
    assert hard["other"] == pytest.approx(match_test(images, wrong, metrics=["linear_cka"], **FEW)[0].match)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("lab match a.npy c.npy", "89"),
        ("lab match a.npy b.npy --hard c.npy", "89"),
        ("lab match a.npy b.npy --hard none.npy", "No file"),
        ("lab match a.npy b.npy --unrelated a.npy", "widths"),
        ("lab match a.npy b.npy --metric magic", "magic"),
        ("lab match a.npy b.npy --set rows=1000", "rows"),
        ("lab similarity a.npy c.npy", "89"),
        ("lab similarity a.npy none.npy", "No file"),
        ("lab similarity a.npy a.npy --metric magic", "magic"),
        ("lab similarity a.npy a.npy --permutations 0", "permutations"),
        ("lab shift a.npy a.npy", "--normalize"),
        ("lab shift a.npy b.npy --normalize", "components"),
        ("lab shift a.npy a.npy --normalize --texts b.npy", "expected FIRST,SECOND"),
        ("lab shift a.npy a.npy --normalize --set variant=round", "round"),
    ],
)
def test_the_commands_refuse_in_one_sentence(here, tmp_path, arguments, said):
    images, texts = pairs()
    for name, rows in (("a", images), ("b", texts), ("c", texts[:-1])):
        np.save(tmp_path / f"{name}.npy", rows)
    here(*split(arguments)).refused(said)
