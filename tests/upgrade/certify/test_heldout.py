"""Scores of anchors among anchors are what items that are no anchors would score."""

import numpy as np
import pytest
from certify_data import tables

from congruence.embeddings import normalize_rows
from congruence.evaluation import Ranking
from congruence.metrics import CSLS, QBNorm
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify.cross_fit import cross_fit
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.scoring import MapRecipe, part_seen, score, vectors_of


@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("d_target", [24, 16, 40])
def test_the_part_that_mapped_queries_meet_has_the_same_products(d_target, center):
    p = upgrade_problem(60, 24, random_state=0, d_target=d_target)
    t = tables(p, np.arange(15), what="queries")
    model = MapRecipe(["image"], "orthogonal").fit(t, np.arange(15))
    items = EvaluationSet(t, ranking=Ranking(center=center))
    queries, store = vectors_of(model, items)["queries"]
    seen = part_seen(model, items, np.arange(15))
    np.testing.assert_allclose(queries @ seen.T, queries @ store.T, atol=1e-6)
    assert (np.linalg.norm(seen, axis=1) < np.linalg.norm(store, axis=1) + 1e-9).all()
    if not center:
        np.testing.assert_allclose(store, normalize_rows(t.source["image"]))
        np.testing.assert_allclose(queries, normalize_rows(model.to_source("text").transform(t.target["text"])))


BOTH = ("image", "text")


@pytest.mark.long
@pytest.mark.parametrize(
    ("modalities", "task", "width", "parts", "ranking"),
    [
        (("text",), "own@1", 200, range(40, 840, 40), None),
        (BOTH, "recall@1", 200, range(40, 840, 40), None),
        (BOTH, "recall@1", 80, range(40, 440, 80), Ranking(True)),
        (BOTH, "recall@1", 80, range(40, 440, 80), Ranking(False, CSLS())),
        (BOTH, "recall@1", 80, range(40, 440, 80), Ranking(True, QBNorm())),
    ],
)
def test_anchors_score_what_other_items_score(modalities, task, width, parts, ranking):
    """Of few anchors each lies wholly where the map looks, near its own query, and a correction takes it for a hub."""
    # With the anchors' own rows in the gallery, mapped queries would score 0.25 and 0.57 too low.
    wrong, own = {"stored": [], "queries": []}, np.arange(40)
    given = {} if ranking is None else {"ranking": ranking}
    for seed in range(4):
        facts = {"decay": 0.0, "shared": 0.95, "source_noise": 0.9, "target_noise": 0.9}
        p = upgrade_problem(parts.stop, width, random_state=seed, **facts)
        recipe, anchors = MapRecipe(modalities, "orthogonal"), tables(p, own, modalities)
        got = cross_fit(EvaluationSet(anchors, **given), recipe, folds=10)
        model = recipe.fit(anchors, own)
        others = [EvaluationSet(tables(p, own + k, modalities, "queries"), **given) for k in parts]
        found = [score(vectors_of(model, other), other, own) for other in others]
        for way, errors in wrong.items():
            name = f"{task}/{way}"
            errors.append(got.scores[name].mean() - np.mean([hits[name].score.mean() for hits in found]))
    assert abs(np.mean(wrong["queries"])) < 0.06, wrong
    assert abs(np.mean(wrong["stored"])) < 0.06, wrong


def test_the_way_back_is_that_of_each_modality():
    """The ways back are kept: that of one modality is not given for another, in whatever order they are asked for."""
    p = upgrade_problem(40, 8, random_state=0)
    model = MapRecipe(["image", "text"], "orthogonal").fit(tables(p, np.arange(40)), np.arange(40))
    for name, rows in (("image", p.target_images), ("text", p.target_texts), ("image", p.target_images)):
        expected = model.forward.for_modality(name).inverse().transform(rows)
        np.testing.assert_array_equal(model.to_source(name).transform(rows), expected)


@pytest.mark.parametrize("folds", [3, 10])
def test_what_the_anchors_left_out_would_have_added_is_added(folds):
    """a + b/n of maps without one fold and two gives that of the map of all."""
    p = upgrade_problem(40, 200, decay=0.0, shared=0.95, source_noise=0.9, target_noise=0.9, random_state=0)
    t = tables(p, np.arange(40))
    got = cross_fit(EvaluationSet(t), MapRecipe(["image", "text"], "orthogonal"), folds=folds)
    of_all, more, less = (2 - 3 / (1 - left / folds) for left in (0, 1, 2))
    assert more + got.ahead * (more - less) == pytest.approx(of_all)
    own = normalize_rows(t.target["image"])
    one, two = ((normalize_rows(rows) * own).sum(axis=1) for rows in (got.mapped, got.mapped_by_fewer))
    assert np.abs(one - two).max() > 0.01
    np.testing.assert_allclose(got.scores["cosine/image"], one + got.ahead * (one - two))
    # A hit of either map counts 1, and the correction leads beyond: found with more anchors only, or with fewer only.
    hits = np.unique(got.scores["recall@1/stored"].round(9))
    assert set(hits) <= set(np.round([0, 1, 1 + got.ahead, -got.ahead], 9))
    assert {0, 1} < set(hits)
