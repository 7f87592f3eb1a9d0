"""Scores of anchors among anchors are what items that are no anchors would score."""

import numpy as np
import pytest
from certify_data import tables

from congruence.metrics import CSLS, QBNorm
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import cross_fit, score_heldout

BOTH, RECALL = ("image", "text"), ["recall@1/stored", "recall@1/queries"]


FACTS = {"decay": 0.0, "shared": 0.95, "source_noise": 0.9, "target_noise": 0.9}
ALIKE = {"decay": 0.3, "shared": 0.8, "source_noise": 0.6, "target_noise": 0.6}


@pytest.mark.parametrize(
    ("modalities", "names", "facts", "width", "n", "parts", "given"),
    [
        # With a map that has seen them, anchors would show 0.1 to 0.2 too much overlap.
        (("image",), ["overlap@10/stored"], ALIKE, 100, 60, 5, {}),
        # With the anchors' own rows in the gallery, mapped queries would score 0.25 and 0.57 too low.
        pytest.param(("text",), ["own@1/stored", "own@1/queries"], FACTS, 200, 40, 20, {}, marks=pytest.mark.long),
        pytest.param(BOTH, RECALL, FACTS, 200, 40, 20, {}, marks=pytest.mark.long),
        pytest.param(BOTH, RECALL, FACTS, 80, 40, 5, {"hubness": CSLS()}, marks=pytest.mark.long),
        pytest.param(BOTH, RECALL, FACTS, 80, 40, 5, {"hubness": QBNorm()}, marks=pytest.mark.long),
    ],
)
def test_anchors_score_what_other_items_score(modalities, names, facts, width, n, parts, given):
    """Of few anchors each lies wholly where the map looks, near its own query, and a correction takes it for a hub."""
    wrong, own = [], np.arange(n)
    for seed in range(2 if width == 100 else 4):
        p = upgrade_problem(n * (parts + 1), width, random_state=seed, **facts)
        recipe, anchors = MapRecipe(modalities, "orthogonal"), tables(p, own, modalities)
        got = cross_fit(EvaluationSet(anchors, **given), recipe, recipe.choose(anchors, own)).scores
        model = recipe.fit(anchors, own)
        others = [EvaluationSet(tables(p, own + n * k, modalities, "queries"), **given) for k in range(1, parts + 1)]
        found = [score_heldout(model, other).scores for other in others]
        wrong.append([got[name].mean() - np.mean([scores[name].mean() for scores in found]) for name in names])
    assert (np.abs(np.mean(wrong, axis=0)) < 0.06).all(), wrong


def test_the_way_back_is_that_of_each_modality():
    """The ways back are kept: that of one modality is not given for another, in whatever order they are asked for."""
    p = upgrade_problem(40, 8, random_state=0)
    model = MapRecipe(["image", "text"], "orthogonal").fit(tables(p, np.arange(40)), np.arange(40))
    for name, rows in (("image", p.target_images), ("text", p.target_texts), ("image", p.target_images)):
        expected = model.forward.for_modality(name).inverse().transform(rows, role="query")
        np.testing.assert_array_equal(model.to_source(name).transform(rows), expected)


def test_what_the_anchors_left_out_would_have_added_is_added():
    """a + b/n of maps of three quarters and of half of the anchors gives that of the map of all."""
    p = upgrade_problem(40, 200, decay=0.0, shared=0.95, source_noise=0.9, target_noise=0.9, random_state=0)
    t, recipe = tables(p, np.arange(40)), MapRecipe(["image", "text"], "orthogonal")
    got = cross_fit(EvaluationSet(t), recipe, recipe.choose(t, np.arange(40)))
    of_all, more, less = (2 - 3 / share for share in (1, got.points[-1][0], got.points[-2][0]))
    assert more + got.ahead * (more - less) == pytest.approx(of_all)
    less, more = (np.mean(found["cosine/image"]) for _, found in got.points[-2:])  # over folds of equal size
    assert more > less + 0.01
    assert got.scores["cosine/image"].mean() == pytest.approx(more + got.ahead * (more - less))
    # A hit of either map counts 1, and the correction leads beyond: found with more anchors only, or with fewer only.
    hits = np.unique(got.scores["recall@1/stored"].value.round(9))
    assert set(hits) <= set(np.round([0, 1, 1 + got.ahead, -got.ahead], 9))
    assert {0, 1} < set(hits)
