"""The rule, case by case."""

import pytest

from congruence.errors import ParameterError
from congruence.upgrade.certify import ACTIONS, EXIT_CODES, Criteria
from congruence.upgrade.certify.verdict import decide


def case(keep=None, stored=0.0, queries=0.0, best=None, leave=None):
    ways = {"keep": keep, "leave": leave, "stored": stored, "queries": queries, "re-embed": best}
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
    # The new model's queries on the old vectors as they are.
    (case(0.5, 0.79, 0.79, 0.8, 0.785), {}, {}, "leave"),
    (case(0.5, 0.79, 0.79, 0.8, 0.775), {}, {}, "map"),  # mapping adds more than is worth acting on
    (case(0.5, 0.2, 0.2, 0.8, 0.79), {}, {}, "leave"),  # a map that makes it worse
    (case(0.5, 0.2, 0.2, 0.8, 0.70), {}, {}, "re-embed"),
    (case(0.79, 0.2, 0.2, 0.8, 0.79), {}, {}, "keep"),
    (case(0.93, 0.5, 0.5, 1.0, 0.96), {}, LISTS, "leave"),
]


@pytest.mark.parametrize(("ways", "thresholds", "facts", "action"), CASES)
def test_the_rule(ways, thresholds, facts, action):
    assert decide(ways, Criteria(**thresholds), **{"narrows": False, **facts}).action == action


@pytest.mark.parametrize("bad", [{"retention": 0}, {"retention": 1.2}, {"worth": -1}, {"tie": -1}])
def test_bad_thresholds(bad):
    with pytest.raises(ParameterError):
        Criteria(**bad)


@pytest.mark.parametrize(
    ("ways", "action"),
    [
        (case(0.5, 0.6, 0.6, 0.8), "progressive"),
        (case(0.5, 0.79, 0.79, 0.8), "map"),
        (case(0.5, 0.6, 0.79, 0.8), "queries"),
        (case(0.9, 0.5, 0.5, 0.8), "keep"),
        (case(0.5, 0.5, 0.5), "keep"),  # the new model's own score is not known
    ],
)
def test_progressive_stands_where_only_re_embedding_would_do(ways, action):
    asked = []

    def share(wanted):
        asked.append(wanted)
        return 0.1

    found = decide(ways, Criteria(), share=share, narrows=False)
    assert found.action == action
    assert found.share == (0.1 if action == "progressive" else None)
    if action == "progressive":
        assert asked == [pytest.approx(0.76)]
        assert decide(ways, Criteria(), narrows=False).action == "re-embed"


def test_every_answer_has_an_exit_code_of_its_own():
    codes = [EXIT_CODES[action] for action in (*ACTIONS, "undecided")]
    assert len(set(codes)) == len(codes) == 7
    assert not {1, 2, 70, 130} & set(codes)  # of errors
