"""Scores of anchors among anchors are what items that are no anchors would score."""

from __future__ import annotations

import numpy as np
import pytest

from congruence import Embeddings
from congruence.certify.tables import make_tables
from congruence.certify.trial import cross_fit, fit_map, galleries, score
from congruence.embeddings import normalize_rows
from congruence.synthetic import upgrade_problem


def tables(p, rows, modalities=("image", "text"), what="anchors"):
    ids = [str(i) for i in rows]
    sides = [
        {m: Embeddings(getattr(p, f"{model}_{m}s")[rows], ids=ids) for m in modalities} for model in ("source", "target")
    ]
    return make_tables(*sides, None, what=what)


@pytest.mark.parametrize("facts", [{}, {"d_target": 16}, {"d_target": 40}])
def test_the_part_that_carried_queries_meet_has_the_same_products(facts):
    p = upgrade_problem(60, 24, seed=0, **facts)
    t = tables(p, np.arange(15), what="queries")
    model = fit_map(t, ["image"], np.arange(15), {})
    queries = model.for_modality("text").inverse().transform(t.target["text"])
    np.testing.assert_allclose(
        queries @ galleries(model, t)["queries"].T, queries @ normalize_rows(t.source["image"]).T, atol=1e-6
    )


@pytest.mark.parametrize("modalities", [("text",), ("image", "text")])
def test_anchors_do_not_stand_in_front_of_each_other(modalities):
    """Fewer anchors than dimensions: an anchor lies wholly where the map looks, and nothing else does."""
    wrong = []
    for seed in range(6):
        p = upgrade_problem(1080, 96, decay=0.0, shared=0.95, source_noise=0.9, target_noise=0.9, seed=seed)
        t = tables(p, np.arange(60), modalities)
        task = {"recall@1": 1} if len(modalities) > 1 else {"own@1": 1}
        got = cross_fit(t, list(modalities), task, {}, folds=10, seed=0)
        model = fit_map(t, list(modalities), np.arange(60), {})
        others = [tables(p, np.arange(k, k + 60), modalities, "queries") for k in range(60, 1060, 60)][:16]
        name = f"{next(iter(task))}/queries"
        truth = np.mean([score(model, o, np.arange(60), task)[name].score.mean() for o in others])
        wrong.append(got.scores[name].mean() - truth)
    assert abs(np.mean(wrong)) < 0.06, wrong
