"""compare_maps: its tests against others' and by simulation, what it measures against evaluate, what it refuses."""

import json

import numpy as np
import pytest
from scipy.stats import binom, binomtest, permutation_test

import congruence
from congruence import Embeddings, OrthogonalMap, Space, compare_maps, evaluate
from congruence.errors import IdError, InputError, ModalityError, ParameterError, ShapeError
from congruence.evaluation.comparison import hits_at_k
from congruence.evaluation.paired_tests import bootstrap_intervals, group_sums, holm, mcnemar, sign_flip
from congruence.metrics import ensemble_prompts, paired_cosine, recall_at_k
from congruence.splits import Split
from congruence.synthetic import rigid_problem


def within_chance(rejections, trials, level=0.05):
    """Say whether no more were rejected than a test of this level would with probability 1 − 1e-4."""
    return rejections <= binom.isf(1e-4, trials, level)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (7, 2), (4, 4), (31, 12), (0, 1)])
def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs(b, c):
    first, second = np.r_[np.ones(b), np.zeros(c), np.ones(9)], np.r_[np.zeros(b), np.ones(c), np.ones(9)]
    expected = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert mcnemar(first, second) == pytest.approx(expected)
    assert mcnemar(second, first) == pytest.approx(expected)


def test_all_sign_flips_of_hits_are_mcnemar():
    first, second = np.r_[np.ones(9), np.zeros(2), 1], np.r_[np.zeros(9), np.ones(2), 1]
    assert sign_flip(first - second, 9999, np.random.default_rng(0)) == pytest.approx(mcnemar(first, second))


def test_random_sign_flips_are_those_of_scipy():
    d = np.random.default_rng(1).normal(0.25, 1, 60)
    expected = permutation_test(
        (d,), np.sum, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(2)
    )
    assert sign_flip(d, 9999, np.random.default_rng(0)) == pytest.approx(expected.pvalue, abs=0.01)


def test_holm_is_stepped_down_and_never_above_one():
    p = np.array([0.02, 0.5, 0.01, 0.02])
    assert holm(p).tolist() == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_tests_reject_as_often_as_their_level_says_and_not_much_less():
    rng = np.random.default_rng(3)
    trials, flips, exact = 600, 0, 0
    for _ in range(trials):
        d = rng.standard_t(3, 40)  # symmetric with long tails
        flips += sign_flip(d, 199, rng) <= 0.05
        hits = rng.random((2, 200)) < 0.6
        exact += mcnemar(*hits.astype(float)) <= 0.05
    assert within_chance(flips, trials)
    assert within_chance(exact, trials)
    assert flips >= binom.ppf(1e-4, trials, 0.05)  # its level is exact; McNemar's is at most that
    assert exact > 0


def test_groups_that_err_together_are_one():
    """Ten queries a group with one error: by query the test would reject a third of the time, by group it does not."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(25), 10)
    by_query = by_group = 0
    for _ in range(300):
        d = np.repeat(rng.standard_normal(25), 10)
        by_query += sign_flip(d, 199, rng) <= 0.05
        by_group += sign_flip(group_sums(d[:, None], groups)[0][:, 0], 199, rng) <= 0.05
    assert within_chance(by_group, 300)
    assert not within_chance(by_query, 300)


@pytest.mark.parametrize("size", [1, 5])
def test_intervals_cover_the_difference(size):
    rng = np.random.default_rng(5)
    groups, missed, trials = np.repeat(np.arange(12), size), 0, 200
    for _ in range(trials):
        d = 0.3 + np.repeat(rng.standard_normal(12), size)
        sums, sizes = group_sums(d[:, None], groups)
        (low,), (high,) = bootstrap_intervals(sums, sizes, 0.95, 300, rng, np.ones(1))
        missed += not low <= 0.3 <= high
    assert within_chance(missed, trials, 0.06)  # twelve groups: expanded percentiles miss 5 to 6 %, plain ones 9 %


def test_no_disagreement_is_not_certainty():
    sums, sizes = group_sums(np.zeros((50, 1)), None)
    ends = bootstrap_intervals(sums, sizes, 0.95, 100, np.random.default_rng(0), np.ones(1))
    # Clopper and Pearson's upper end for none of 50
    assert ends[1, 0] == -ends[0, 0] == pytest.approx(binomtest(0, 50).proportion_ci(0.95).high)


def test_hits_at_k_are_those_of_recall_with_ties():
    rng = np.random.default_rng(6)
    queries, gallery = rng.integers(-1, 2, (2, 60, 5)) + 0.01 * np.arange(1, 6)  # many exact copies
    for k in (1, 4, 60):
        assert hits_at_k(queries, gallery, k).mean() == pytest.approx(recall_at_k(queries, gallery, np.arange(60), k))


@pytest.fixture(scope="module")
def texts(lvis):
    ids = lvis["names"]

    def read(key, model, modality):
        return Embeddings(lvis[key], ids=ids, space=Space(model, modality=modality))

    old, new = read("text_openai_vitb32", "old", "text"), read("text_eva02_b16", "new", "text")
    return old, new, read("image_openai_vitb32_avg5", "old", "image")


@pytest.fixture(scope="module")
def maps(texts):
    old, new, image = texts
    whole = congruence.fit(old, new, holdout=303, means={"image": (image, None)}, check=False)
    unseen = Split.from_dict(whole.scores_["holdout"]).held_out(old.ids)
    rows = np.flatnonzero(~unseen)[:200]
    few = congruence.fit(old.take(rows), new.take(rows), means={"image": (image.take(rows), None)}, check=False)
    return whole, few, unseen


@pytest.fixture(scope="module")
def found(texts, maps):
    old, new, image = texts
    whole, few, unseen = maps
    sides = {"text": old.take(unseen), "image": image.take(unseen)}, {"text": new.take(unseen)}
    return compare_maps(whole, few, *sides, draws=500, permutations=999), sides


@pytest.mark.long
def test_means_are_those_of_evaluate(maps, found):
    comparison, sides = found
    ours, theirs = (evaluate(one, *sides) for one in maps[:2])
    for row in comparison.rows:
        if "_at_" not in row.metric:
            key = row.metric, row.query, row.against
            assert (row.first, row.second) == pytest.approx((ours.get(*key).after, theirs.get(*key).after)), key
        assert row.difference == pytest.approx(row.first - row.second)
        assert row.low <= row.difference <= row.high
    names = [(row.metric, row.query) for row in comparison.rows]
    assert names == [
        ("retrieval", "aligned text"), ("recall_at_10", "aligned text"), ("overlap_at_10", "aligned text"),
        ("zero_shot", "aligned image"), ("cosine", "aligned text"),
    ]  # fmt: skip
    assert comparison.notes == [
        "B was fitted without held-out pairs: whether its anchors are among these rows is not known."
    ]


@pytest.mark.long
def test_900_pairs_are_seen_to_be_better_than_200_on_lvis(found):
    comparison, _ = found
    better = {row.metric for row in comparison.rows if row.low > 0 and row.adjusted_p_value < 0.05}
    assert better == {"retrieval", "overlap_at_10", "zero_shot", "cosine"}
    line = comparison.get("recall_at_10", "aligned text", "target text")  # 1 under both: nothing to tell
    assert line.p_value == 1.0
    assert line.low < 0 < line.high
    assert (line.wins, line.losses) == (0, 0)
    assert {row.metric: row.test for row in comparison.rows}["overlap_at_10"] == "sign-flip"
    assert comparison.get("retrieval", "aligned text", "target text").test == "mcnemar"


def test_a_map_is_no_better_than_itself_and_the_order_turns_the_sign(maps, texts, found):
    whole, few, _ = maps
    _, (source, target) = found
    same = compare_maps(whole, whole, source["text"], target["text"], draws=50, permutations=99)
    assert {row.p_value for row in same.rows} == {1.0}
    options = {"draws": 50, "permutations": 99, "metrics": ["retrieval", "cosine"]}
    one, other = (
        compare_maps(*pair, source["text"], target["text"], **options) for pair in ((whole, few), (few, whole))
    )
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.difference, a.wins, a.p_value) == pytest.approx((-b.difference, b.losses, b.p_value))


@pytest.mark.long
def test_equally_good_predictions_are_told_apart_as_rarely_as_the_level_says():
    """Both are the truth and noise of the same law: exchangeable query by query.

    The error is of the whole family of lines.
    """
    rng = np.random.default_rng(7)
    wrong, trials = 0, 60
    for _ in range(trials):
        truth = rng.standard_normal((40, 6))
        first, second = truth + rng.standard_normal((2, 40, 6))
        result = compare_maps(first, second, None, truth, k=3, draws=20, permutations=199)
        wrong += min(row.adjusted_p_value for row in result.rows) <= 0.05
    assert within_chance(wrong, trials)


def test_mapped_rows_are_compared_like_the_maps_that_made_them(maps, texts, found):
    comparison, (source, target) = found
    moved = [one.for_modality("text").transform(source["text"].vectors) for one in maps[:2]]
    result = compare_maps(*moved, None, target["text"], draws=50, permutations=99)
    for row in result.rows:
        line = comparison.get(row.metric, "aligned text", "target text")
        assert (row.first, row.second, row.wins) == pytest.approx((line.first, line.second, line.wins))


def test_several_maps_are_compared_with_the_first(maps, texts, found):
    _, (source, target) = found
    others = {
        "few": maps[1],
        "uncentered": OrthogonalMap(center=False).fit(texts[0].vectors[:50], texts[1].vectors[:50]),
    }
    result = compare_maps(
        maps[0], others, source["text"], target["text"], metrics=["retrieval"], draws=50, permutations=99, name="all"
    )
    assert [(row.first_name, row.second_name) for row in result.rows] == [("all", "few"), ("all", "uncentered")]
    assert result.rows[0].adjusted_p_value == pytest.approx(max(row.p_value for row in result.rows), rel=1)
    with pytest.raises(ParameterError, match="Two maps have the name"):
        compare_maps(maps[0], {"A": maps[1]}, source["text"], target["text"])


def test_copies_are_one_query():
    rng = np.random.default_rng(8)
    truth = rng.standard_normal((20, 4))
    X, Y = np.repeat(truth, 3, axis=0), np.repeat(truth @ np.linalg.qr(rng.standard_normal((4, 4)))[0], 3, axis=0)
    maps = OrthogonalMap().fit(X, Y), OrthogonalMap(center=False).fit(X, Y + rng.standard_normal(Y.shape))
    options = {"draws": 20, "permutations": 99, "metrics": ["cosine"], "k": 3}
    (copies,) = compare_maps(*maps, X, Y, **options).rows
    (alone,) = compare_maps(*maps, X, Y, groups=None, **options).rows
    (given,) = compare_maps(*maps, X, Y, groups=np.repeat(np.arange(20), 3), **options).rows
    assert (copies.n, copies.n_groups, alone.n_groups, given.n_groups) == (60, 20, 60, 20)
    assert alone.high - alone.low < 0.8 * (copies.high - copies.low)
    with pytest.raises(ShapeError, match="Got 3 groups for 60 rows"):
        compare_maps(*maps, X, Y, groups=[1, 2, 3])
    with pytest.raises(InputError, match="59 queries have no group"):
        compare_maps(*maps, X, Y, groups={"0": 1})
    (other,) = compare_maps(*maps, X, Y, groups={"a photo": 1}, **options).rows
    assert other.n_groups == 60


def test_rows_a_map_was_fitted_on_are_refused_dropped_or_kept(maps, texts):
    old, new, _ = texts
    whole = maps[0]
    other = congruence.fit(old, new, holdout=303, random_state=1, check=False)
    with pytest.raises(InputError, match=r"A may have been fitted on 900 of 1,203 text rows.*fitted_rows='drop'"):
        compare_maps(whole, other, old, new)
    options = {"draws": 20, "permutations": 99, "metrics": ["retrieval"]}
    (row,) = compare_maps(whole, other, old, new, fitted_rows="drop", **options).rows
    both = [Split.from_dict(one.scores_["holdout"]).held_out(old.ids) for one in (whole, other)]
    assert row.n == np.count_nonzero(both[0] & both[1])
    (row,) = compare_maps(whole, other, old, new, fitted_rows="keep", **options).rows
    assert row.n == 1203
    bare = compare_maps(whole, other, old.vectors[:300], new.vectors[:300], **options)
    assert "no ids" in bare.notes[0]
    seen = old.ids[~both[0]]
    with pytest.raises(InputError, match="No text row was held out"):
        compare_maps(whole, other, old.take(seen), new.take(seen), fitted_rows="drop")


def test_what_cannot_be_compared_is_said(maps, found, texts):
    _, (source, target) = found
    whole, few, _ = maps
    with pytest.raises(InputError, match="No source rows for the map A"):
        compare_maps(whole, few, None, target["text"])
    with pytest.raises(ParameterError, match="no 'recall_at_5', but retrieval, recall_at_10"):
        compare_maps(whole, few, source["text"], target["text"], metrics=["recall_at_5"], draws=5, permutations=9)
    with pytest.raises(ParameterError, match="level=95"):
        compare_maps(whole, few, source["text"], target["text"], level=95)
    with pytest.raises(ParameterError, match="fitted_rows"):
        compare_maps(whole, few, source["text"], target["text"], fitted_rows="yes")
    with pytest.raises(IdError, match="not the 303 of 'A'"):
        moved = whole.transform_embeddings(source["text"])
        compare_maps(moved, moved.take(moved.ids[::-1]), None, target["text"])
    with pytest.raises(InputError, match="no items or classes in common"):
        compare_maps({"image": moved.vectors}, {"image": moved.vectors}, None, target)
    with pytest.raises(InputError, match="by modality"):
        compare_maps(moved, moved, None, {"text": target["text"], "image": target["text"].vectors})
    with pytest.raises(ModalityError, match="Got image vectors as 'text'"):
        compare_maps(whole, few, {"text": source["image"]}, target)
    with pytest.raises(congruence.errors.DirectionError):
        compare_maps(whole, few, target["text"], source["text"])


def test_two_maps_into_joint_spaces():
    rng = np.random.default_rng(9)
    latent = rng.standard_normal((160, 6))
    X, Y = latent @ rng.standard_normal((6, 10)), latent @ rng.standard_normal((6, 8))
    X, Y = X + 0.3 * rng.standard_normal(X.shape), Y + 0.3 * rng.standard_normal(Y.shape)
    first, second = (congruence.CCAMap(n_components=n).fit(X[:100], Y[:100]) for n in (6, 1))
    result = compare_maps(first, second, X[100:], Y[100:], draws=50, permutations=99)
    line = result.get("retrieval", "aligned other", "target other")
    assert line.difference > 0.2
    assert line.adjusted_p_value < 0.05


def test_evaluate_against_another_map(here, tmp_path):
    problem = rigid_problem(n=160, d_source=12, noise=0.4, random_state=0)
    np.savez(tmp_path / "both.npz", a=problem.X, b=problem.Y, names=[f"item {k}" for k in range(160)])
    for name, extra in (("new", []), ("old", ["--set", "shrinkage=soft", "--set", "shrinkage_strength=3"])):
        fit = f"fit both.npz:a both.npz:b --ids names --modality text --holdout 60 -o {name} --set check=false"
        assert here(*fit.split(), *extra).code == 0
    common = "lab evaluate new --old-text both.npz:a --new-text both.npz:b --ids names"
    here(*common.split(), "--against", "old").refused(
        "new may have been fitted on 100 of 160 text rows", "Pass --set fitted_rows=drop"
    )
    common = [*common.split(), "--held-out"]
    plain = here(*common, "--against", "old", "--report", "page.html").ends(0)
    assert "new against old" in plain.out
    data = json.loads(here(*common, "--against", "old", "--json").out)
    lines = {row["metric"]: row for row in data["comparison"]["rows"]}
    assert lines["cosine"]["n"] == 60
    assert lines["cosine"]["first"] == pytest.approx(next(r["after"] for r in data["rows"] if r["metric"] == "cosine"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("Comparison with other maps") == 1
    assert f"{lines['cosine']['wins']} / {lines['cosine']['losses']}" in page
    assert "--set groups without --against" in here(*common, "--set", "groups=none").err


def test_prompts_of_both_models_are_ensembled():
    problem = rigid_problem(n=160, d_source=16, noise=0.3, random_state=2)
    many, few = (OrthogonalMap().fit(problem.X[:n], problem.Y[:n]) for n in (100, 20))
    ids = [f"t{i}" for i in range(60)]
    rows = [{"text": Embeddings(side[100:], ids=ids)} for side in (problem.X, problem.Y)]
    classes = {name: f"class {i % 20}" for i, name in enumerate(ids)}
    found = compare_maps(many, few, *rows, prompt_labels=classes, draws=50, permutations=99, fitted_rows="keep")
    line = found.get("cosine", "aligned text", "target text")
    assert line.n == 20
    names = list(classes.values())
    for mapping, value in ((many, line.first), (few, line.second)):
        sides = (ensemble_prompts(rows, names)[0] for rows in (mapping.transform(problem.X[100:]), problem.Y[100:]))
        assert value == pytest.approx(paired_cosine(*sides))
