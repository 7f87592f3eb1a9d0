"""Losses compared item by item: against the exact binomial test, whatever the items and draws of an image."""

import numpy as np
import pytest
from scipy.stats import binomtest

from congruence.datasets import SugarCrepe
from congruence.evaluation.compositional import sugarcrepe_outcomes, sugarcrepe_recall
from congruence_papers.jam.experiments import ItemPairs

#: Which of two losses answers 30 images' questions right: the first alone 9 times, the second alone 2.
FIRST = np.r_[np.ones(9), np.zeros(2), np.ones(10), np.zeros(9)]
SECOND = np.r_[np.zeros(9), np.ones(2), np.ones(10), np.zeros(9)]


def items_of(n, each=1):
    names = np.array([str(k) for k in range(n * each)])
    return SugarCrepe(names, np.full(n * each, "add_obj"), np.repeat(names[:n], each), names, names)


def compared(draws, each=1):
    pairs = ItemPairs()
    for draw in draws:
        for name, right in (("Spread", FIRST), ("NegCon", SECOND), ("Con", SECOND)):
            right = np.repeat(right, each)
            pairs.add(("data", "add: text"), name, draw, items_of(len(FIRST), each), np.column_stack([right, right]))
    return pairs.tests()


@pytest.mark.parametrize(("draws", "each"), [((5,), 1), ((5,), 3), ((5, 42, 55), 1)])
def test_an_image_is_the_unit(draws, each):
    """More items of the same images, and the same images measured again, make nothing more certain."""
    found = compared(draws, each)
    pairs, metrics = (("Spread", "NegCon"), ("NegCon", "Con")), ("binary_recall", "five_way_recall")
    assert [(one["first"], one["second"], one["metric"]) for one in found] == [
        (*p, metric) for p in pairs for metric in metrics
    ]
    one = found[0]
    assert one["p_value"] == pytest.approx(binomtest(9, 11).pvalue)
    assert one["adjusted_p_value"] == pytest.approx(min(1, 4 * one["p_value"]))
    assert one["difference"] == pytest.approx(7 / 30)
    assert (one["n"], one["n_images"], one["draws"]) == (30 * each * len(draws), 30, len(draws))
    assert one["low"] == pytest.approx(compared((5,))[0]["low"], abs=0.05)
    assert found[2]["p_value"] == 1


def test_draws_that_disagree_cancel():
    pairs = ItemPairs()
    for draw, sides in ((5, (FIRST, SECOND)), (42, (SECOND, FIRST))):
        for name, right in zip(("Spread", "NegCon"), sides, strict=True):
            pairs.add(("data", "add: text"), name, draw, items_of(30), np.column_stack([right, right]))
    one = pairs.tests()[0]
    assert (one["difference"], one["p_value"]) == (0, 1)


def test_losses_of_other_draws_are_not_compared():
    pairs = ItemPairs()
    right = np.column_stack([FIRST, FIRST])
    pairs.add(("data", "add: text"), "Spread", 5, items_of(30), right)
    pairs.add(("data", "add: text"), "NegCon", 42, items_of(30), right)
    assert pairs.tests() == []


def test_outcomes_are_what_recall_is_the_mean_of():
    rng = np.random.default_rng(0)
    items = items_of(40)
    sides = [rng.standard_normal((40, 6)) for _ in range(3)]
    found = sugarcrepe_outcomes(items, *sides, random_state=3)
    (line,) = sugarcrepe_recall(items, *sides, random_state=3)
    np.testing.assert_allclose(found.mean(axis=0), [line.binary, line.choice])
    assert (found[:, 1] <= found[:, 0]).all()


def test_categories_stand_beside_their_task():
    rng = np.random.default_rng(0)
    kinds = ("replace_obj", "replace_att", "replace_rel", "add_obj", "add_att", "swap_obj", "swap_att")
    names = np.array([str(k) for k in range(210)])
    items = SugarCrepe(names, np.array([kinds[k % 7] for k in range(210)]), names, names, names)
    sides = [rng.standard_normal((210, 6)) for _ in range(3)]
    found = {one.task: one for one in sugarcrepe_recall(items, *sides)}
    right = sugarcrepe_outcomes(items, *sides)
    words = {"obj": "object", "att": "attribute", "rel": "relation"}
    for kind in kinds:
        task, _, what = kind.partition("_")
        one = found[f"{task}, {words[what]}"]
        of = items.categories == kind
        assert one.n == of.sum() == 30
        assert [one.binary, one.choice] == pytest.approx(right[of].mean(axis=0))
