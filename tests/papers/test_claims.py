"""Whether a paper's claim held: claims are comparisons of measured numbers, checked in every case that was measured."""

from dataclasses import replace

import pytest

from congruence_papers import Model, run
from congruence_papers.canonical import open_sample
from congruence_papers.core import judge, mean, read_claim


def row(mean, metric="text_cosine", quantity="after", **more):
    keys = {"data": "d", "pair": "a → b", "series": None, "part": None, "x": None}
    return {**keys, "metric": metric, "quantity": quantity, "mean": mean, **more}


def test_a_claim_is_checked_for_every_pair_and_says_where_it_failed():
    rows = [row(0.1, quantity="before"), row(0.9, series="orthogonal"), row(0.2, series="random")]
    rows += [row(0.8, quantity="before", pair="a → c"), row(0.7, series="orthogonal", pair="a → c")]
    one = (mean("text_cosine") > mean("text_cosine", "before")).judge(rows)
    assert (one["held"], one["of"]) == (1, 2)
    assert one["failed"] == [{"data": "d", "pair": "a → c", "value": 0.7, "bound": 0.8}]
    assert (mean("text_cosine", series="random") > 0.5).judge(rows)["held"] == 0


def test_a_claim_as_text_is_the_claim_as_python():
    given = [row(v, series=name) for name, v in (("a", 0.5), ("b", 0.9), ("c", 0.7))]
    read = read_claim("abs(text_cosine(series='a') - text_cosine(series='c')) + 0.1 < lowest(text_cosine(series='b'))")
    made = abs(mean("text_cosine", series="a") - mean("text_cosine", series="c")) + 0.1
    assert read.words == f"{made.words} is below each of text_cosine (b)"
    assert (read.judge(given)["held"], read.judge(given)["of"]) == (1, 1)
    assert read_claim("text_cosine(series='b') > 2 * text_cosine(series='c')").judge(given)["held"] == 0
    with pytest.raises(ValueError, match="in a claim"):
        read_claim("text_cosine.__class__ > 0")


def test_curves_have_ends_and_every_part_counts():
    parts, curve = ((0, "seen"), (-0.3, "unseen")), ((2, 0.4), (10, 0.8), (30, 0.81))
    rows = [row(v + p, part=part, x=x) for p, part in parts for x, v in curve]
    at_10, first, last = (mean("text_cosine", x=x) for x in (10, "min", "max"))
    assert (at_10 >= 0.95 * last).judge(rows)["held"] == 2
    assert (at_10 - first > 0.39).judge(rows)["held"] == 2
    assert (mean("text_cosine") > 0.3).judge(rows)["of"] == 6
    assert (mean("text_cosine", x=7) > 0).judge(rows)["of"] == 0


def test_pairs_are_compared_with_each_other_by_their_means():
    given = (0.9, "same", "p"), (0.5, "other", "q"), (0.7, "other", "r")
    rows = [row(v, part=part, pair=pair) for v, part, pair in given]
    same, other = ({"part": part, "pair": "*"} for part in ("same", "other"))
    one = (mean("text_cosine", **same) > mean("text_cosine", **other) + 0.25).judge(rows)
    assert (one["held"], one["of"]) == (1, 1)


@pytest.mark.parametrize(
    ("values", "verdict"), [((1, 1), "yes"), ((1, 0), "partly"), ((0, 0), "no"), ((), "not checked"), ((1,), "partly")]
)
def test_the_verdict_is_that_of_all_claims(values, verdict):
    rows = [row(v, metric=m) for v, m in zip(values, ("a", "b"), strict=False)]
    claims = [mean(metric) > 0.5 for metric in ("a", "b")]
    assert judge(claims, rows)["verdict"] == verdict
    assert judge(claims, rows, "of another") == {"verdict": "not checked", "why": "of another", "claims": []}


def test_a_claim_about_a_fit_on_images_is_not_checked_on_one_on_texts():
    data = open_sample("sample")
    blind = replace(data, models=(data.models[0], Model("blind", None, data.models[1].prompts)))
    results = run("fig4", collections=[blind], quick=True).results
    assert results["held"]["verdict"] == "not checked"
    assert "fitted on images; here they were fitted on texts" in results["held"]["why"]
