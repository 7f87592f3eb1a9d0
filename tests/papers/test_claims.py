"""Whether a paper's claim held: rules are comparisons of measured numbers, and nothing in them is executed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from congruence.errors import ParameterError
from congruence_papers import Model, check_claim, check_rule, config_names, load_config, run
from congruence_papers.canonical import open_sample
from congruence_papers.claims import parse_rule


def row(mean, metric="text_cosine", quantity="after", **more):
    keys = {"data": "d", "pair": "a → b", "series": None, "part": None, "x": None}
    return {**keys, "metric": metric, "quantity": quantity, "mean": mean, **more}


def test_a_rule_is_checked_for_every_pair_and_says_where_it_failed():
    rows = [row(0.1, quantity="before"), row(0.9, series="orthogonal"), row(0.2, series="random")]
    rows += [row(0.8, quantity="before", pair="a → c"), row(0.7, series="orthogonal", pair="a → c")]
    found = check_rule("text_cosine > text_cosine(quantity='before')", rows)
    assert (found["held"], found["of"]) == (1, 2)
    assert found["failed"] == [{"data": "d", "pair": "a → c", "values": [0.7, 0.8]}]
    assert check_rule("text_cosine(series='random') > 0.5", rows)["held"] == 0


def test_curves_have_ends_and_every_part_counts():
    rows = [
        row(v + p, part=part, x=x)
        for p, part in ((0, "seen"), (-0.3, "unseen"))
        for x, v in ((2, 0.4), (10, 0.8), (30, 0.81))
    ]
    assert check_rule("text_cosine(x=10) >= 0.95 * text_cosine(x='max')", rows)["held"] == 2
    assert check_rule("text_cosine(x=10) - text_cosine(x='min') > 0.39", rows)["held"] == 2
    assert check_rule("text_cosine > 0.3", rows)["of"] == 6
    assert check_rule("text_cosine(x=7) > 0", rows)["of"] == 0


def test_pairs_are_compared_with_each_other_by_their_means():
    rows = [
        row(v, part=part, pair=pair) for v, part, pair in ((0.9, "same", "p"), (0.5, "other", "q"), (0.7, "other", "r"))
    ]
    found = check_rule("text_cosine(part='same', pair='*') > text_cosine(part='other', pair='*') + 0.25", rows)
    assert (found["held"], found["of"]) == (1, 1)


def test_functions_and_equality():
    rows = [row(-0.2), row(3, metric="templates", quantity="count")]
    for rule, held in (
        ("abs(text_cosine) == 0.2", 1),
        ("max(text_cosine, 0.5, -1) == 0.5", 1),
        ("min(text_cosine, 0.5) < -0.1 < 0", 1),
        ("templates == 3", 1),
        ("templates / 2 > 1.6", 0),
        ("1 / (templates - 3) > 0", 0),
    ):
        assert check_rule(rule, rows)["held"] == held, rule


@pytest.mark.parametrize(
    ("values", "verdict"), [((1, 1), "yes"), ((1, 0), "partly"), ((0, 0), "no"), ((), "not checked"), ((1,), "partly")]
)
def test_the_verdict_is_that_of_all_rules(values, verdict):
    rows = [row(v, metric=m) for v, m in zip(values, ("a", "b"), strict=False)]
    assert check_claim({"rules": ["a > 0.5", "b > 0.5"]}, rows)["verdict"] == verdict


@pytest.mark.parametrize(
    "rule",
    [
        "text_cosine",
        "1 > 0",
        "__import__('os').getcwd() > 1",
        "text_cosine.real > 0",
        "text_cosine[0] > 0",
        "text_cosine(1) > 0",
        "text_cosine(colour='red') > 0",
        "text_cosine(x=max) > 0",
        "text_cosine ** 9 > 0",
        "abs(text_cosine, 1) > 0",
        "text_cosine != 0",
        "text_cosine > 'a'",
        "text_cosine >",
        "[x for x in y] > 0",
    ],
)
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(ParameterError, match="expected a comparison"):
        parse_rule(rule)


def test_a_claim_about_a_fit_on_images_is_not_checked_on_one_on_texts():
    data = open_sample("sample")
    blind = replace(data, models=(data.models[0], Model("blind", None, data.models[1].prompts)))
    results = run("fig4", collections=[blind], quick=True).results
    assert results["held"]["verdict"] == "not checked"
    assert "fitted on images; here they were fitted on texts" in results["held"]["why"]


@pytest.mark.parametrize("name", config_names())
def test_every_figure_has_rules(name):
    """But for figure 12, which says how and not what, and experiments of which a paper claims nothing and which say so."""
    paper = load_config(name).paper
    assert paper.get("rules") or name == "sotalign-fig12" or paper["claim"].startswith("No claim of the paper")


@pytest.mark.parametrize("rule", ["(" * 5000 + "x" + ")" * 5000 + " > 0", "x" * 60_000, "-" * 100_000 + "x > 0"])
def test_long_and_deep_rules_are_refused_in_one_short_sentence(rule):
    with pytest.raises(ParameterError) as caught:
        parse_rule(rule, "here", ["text_cosine"])
    assert len(str(caught.value)) < 1500
