"""The rule, case by case."""

import pytest

from congruence.errors import ParameterError
from congruence.upgrade.certify import Criteria, Verdict
from congruence.upgrade.certify.verdict import decide


def never(wanted):
    return None


def case(keep=None, stored=0.0, queries=0.0, best=None):
    ways = {"keep": keep, "stored": stored, "queries": queries, "re-embed": best}
    return {way: value for way, value in ways.items() if value is not None}


RELEASED, NARROWS, LISTS = {"must_move": True}, {"narrows": True}, {"of_lists": True}
CASES = [
    (case(0.5, 0.79, 0.79, 0.8), {}, {}, "map"),
    (case(0.5, 0.6, 0.79, 0.8), {}, {}, "queries"),
    (case(0.5, 0.76, 0.80, 0.8), {}, {}, "queries"),
    (case(0.5, 0.77, 0.79, 0.8), {}, {}, "map"),
    (case(0.5, 0.6, 0.6, 0.8), {}, {}, "re-embed"),
    (case(0.79, 0.78, 0.78, 0.8), {}, {}, "keep"),
    (case(0.9, 0.5, 0.5, 0.8), {}, {}, "keep"),
    (case(0.9, 0.95, 0.95, 0.8), {}, {}, "map"),  # the old images with the new texts beat both models
    (case(0.78, 0.78, 0.78, 0.82), {}, {}, "re-embed"),  # keeps 95 %, but no more than the old model has
    (case(0.5, 0.6, 0.6), {}, {}, "map"),
    (case(0.5, 0.5, 0.5), {}, {}, "keep"),
    (case(None, 0.96, 0.96, 1.0), {}, {}, "map"),
    (case(None, 0.5, 0.5, 1.0), {}, {}, "re-embed"),
    (case(0.9, 0.79, 0.79, 0.8), RELEASED, {}, "map"),  # the old model goes away
    (case(0.9, 0.1, 0.1), RELEASED, {}, "map"),
    (case(0.5, 0.79, 0.785, 0.8), {}, NARROWS, "queries"),  # a narrower target keeps the store at equal scores
    (case(0.5, 0.80, 0.70, 0.8), {}, NARROWS, "map"),
    (case(0.5, 0.6, 0.6, 0.8), {"retention": 0.7}, {}, "map"),
    (case(0.5, 0.79, 0.79, 0.8), {"worth": 0.4}, {}, "keep"),
    # Overlap says how alike models are, and not which is better.
    (case(0.97, 0.97, 0.97, 1.0), {}, LISTS, "keep"),  # the old lists are the target's, as far as mapping makes them so
    (case(0.93, 0.96, 0.96, 1.0), {}, LISTS, "map"),
    (case(0.95, 0.97, 0.97, 1.0), {}, LISTS, "map"),
    (case(0.90, 0.91, 0.91, 1.0), {}, LISTS, "re-embed"),
    (case(None, 0.96, None, 1.0), {}, LISTS, "map"),  # text queries by the target model alone
]


@pytest.mark.parametrize(("ways", "thresholds", "facts", "action"), CASES)
def test_the_rule(ways, thresholds, facts, action):
    assert decide(ways, never, Criteria(**thresholds), **{"narrows": False, **facts}).action == action


def test_more_anchors_are_asked_for_where_they_help():
    asked = []

    def enough(wanted):
        asked.append(wanted)
        return 300

    decision = decide(case(0.5, 0.6, 0.6, 0.8), enough, Criteria(), narrows=False)
    assert (decision.action, decision.more) == ("collect", 300)
    assert asked == [pytest.approx(0.76)]
    decide(case(0.78, 0.6, 0.6, 0.8), enough, Criteria(), narrows=False)
    assert asked[1] == pytest.approx(0.79)  # better than the old model is asked as well


@pytest.mark.parametrize(
    "bad", [{"retention": 0}, {"retention": 1.2}, {"worth": -1}, {"tie": -1}, {"most_anchors": 1.5}]
)
def test_bad_thresholds(bad):
    with pytest.raises(ParameterError):
        Criteria(**bad)


@pytest.mark.parametrize(
    ("ways", "more", "rows", "action"),
    [
        (case(0.5, 0.6, 0.6, 0.8), None, None, "progressive"),
        (case(0.5, 0.6, 0.6, 0.8), 300, None, "collect"),  # how many rows a tenth is, is not known
        (case(0.5, 0.6, 0.6, 0.8), 300, 3000, "progressive"),  # a tenth is 300 rows
        (case(0.5, 0.6, 0.6, 0.8), 300, 3010, "collect"),
        (case(0.5, 0.79, 0.79, 0.8), None, 100, "map"),
        (case(0.5, 0.6, 0.79, 0.8), None, 100, "queries"),
        (case(0.9, 0.5, 0.5, 0.8), None, 100, "keep"),
        (case(0.5, 0.5, 0.5), None, 100, "keep"),  # the new model's own score is not known
    ],
)
def test_progressive_stands_where_only_re_embedding_would_do(ways, more, rows, action):
    result = {"narrows": False, "rows": rows}
    found = decide(ways, lambda wanted: more, Criteria(), share=lambda wanted: 0.1, **result)
    assert found.action == action
    assert found.share == (0.1 if action == "progressive" else None)
    if action == "progressive":
        assert decide(ways, never, Criteria(), share=never, **result).action == "re-embed"


def test_a_verdict_is_settled_when_nine_in_ten_samples_say_so():
    assert Verdict("keep", "", "", {"keep": 0.93, "map": 0.07}).settled
    assert not Verdict("keep", "", "", {"keep": 0.6, "map": 0.4}).settled
