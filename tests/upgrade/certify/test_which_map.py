"""What is certified is the map that fit gives for the same rows, and its choice never sees the rows it is scored on."""

import numpy as np
import pytest
from certify_data import sides, tables

from congruence import LinearMap, fit
from congruence.embeddings import normalize_rows
from congruence.errors import ModalityError, ParameterError
from congruence.metrics import recall_at_k
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify
from congruence.upgrade.certify.cross_fit import cross_fit, cross_fit_lists
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.scoring import MapRecipe, part_seen, vectors_of
from congruence.upgrade.choose import Choice

QUICK = {"repeats": 1, "draws": 50}


@pytest.fixture(scope="module")
def problem():
    """Ridge regression is better than any rotation: directions of one model have other sizes in the other."""
    return upgrade_problem(
        220, 16, source_noise=0.8, target_noise=0.6, shared=0.8, decay=0.3, shear=1.5, random_state=0
    )


@pytest.mark.long
@pytest.mark.parametrize("target_has_images", [True, False])
def test_the_certified_map_is_the_one_that_fit_gives(problem, target_has_images):
    anchors, queries = sides(problem, np.arange(120)), sides(problem, np.arange(120, 220))
    fitted, other = ("image", "text") if target_has_images else ("text", "image")
    if not target_has_images:
        del anchors[1]["image"], queries[1]["image"]
    found = certify(*anchors, fitted=fitted, queries=queries, **QUICK)
    means = {other: (anchors[0][other], anchors[1].get(other))}
    mapping = fit(anchors[0][fitted], anchors[1][fitted], modality=fitted, means=means, check=False)
    assert found.choice == mapping.scores_["choice"]
    assert (found.choice["method"] == "linear") == isinstance(mapping, LinearMap)
    store = mapping.for_modality("image").transform(queries[0]["image"].vectors)
    expected = recall_at_k(queries[1]["text"].vectors, store, range(100), 1)
    assert found.strategies["recall@1"]["stored"].value == pytest.approx(expected)
    assert found.choice["name"] in " ".join(found.notes)


def test_a_linear_map_is_certified_with_the_map_back_that_a_fit_of_exchanged_sides_gives(problem):
    anchors, queries = sides(problem, np.arange(120)), sides(problem, np.arange(120, 220))
    found = certify(*anchors, "linear", queries=queries, **QUICK)
    assert found.fitted == ["image"]
    back = LinearMap().fit(anchors[1]["image"].vectors, anchors[0]["image"].vectors)
    expected = recall_at_k(back.transform(queries[1]["text"].vectors), queries[0]["image"].vectors, range(100), 1)
    assert found.strategies["recall@1"]["queries"].value == pytest.approx(expected)
    assert "not for the certified map" in found.theory[0]["sentence"]
    assert "--method linear" in found.how_to_fit
    assert "exchanged" in found.how_to_fit
    assert found.covered["image"] == pytest.approx(1)


def test_a_linear_map_covers_the_span_of_its_anchors():
    p = upgrade_problem(60, 24, random_state=0)
    anchors = tables(p, np.arange(15), what="queries")
    model = MapRecipe(["image"], "linear").fit(anchors, np.arange(15))
    np.testing.assert_allclose(model.covered_share("image", p.source_images[:15]), 1)
    assert model.covered_share("image", p.source_images[15:]).mean() < 0.9
    # What mapped queries meet of the store is in the span as well: the rest of a row changes no product.
    queries, store = vectors_of(model, EvaluationSet(anchors))["queries"]
    seen = part_seen(model, EvaluationSet(anchors), np.arange(15))
    raw = model.to_source("text").transform(anchors.target["text"])
    np.testing.assert_allclose(raw @ seen.T, raw @ store.T, atol=1e-9)
    np.testing.assert_allclose(queries, normalize_rows(raw))


def test_a_choice_sees_no_row_that_its_map_is_scored_on(problem, monkeypatch):
    chosen, fits, fitted = {}, [], MapRecipe.fit

    def choose(self, tables, train):
        choice = Choice("rotation about the means", "orthogonal", {}, "by these rows")
        chosen[id(choice)] = choice, train
        return choice

    def fit_on(self, tables, train, choice):
        fits.append((train, choice))
        return fitted(self, tables, train, choice)

    monkeypatch.setattr(MapRecipe, "choose", choose)
    monkeypatch.setattr(MapRecipe, "fit", fit_on)
    recipe = MapRecipe(["image"])
    items = EvaluationSet(tables(problem, np.arange(80)), n_neighbors=5)
    measured = cross_fit(items, recipe, folds=10)
    assert len(measured.maps) == 10
    left_out = np.concatenate([np.setdiff1d(np.arange(80), train) for _, train in chosen.values()])
    np.testing.assert_array_equal(np.sort(left_out), np.arange(80))  # each row is out of just the choice of its fold
    chosen.clear()
    fits.clear()
    cross_fit_lists(items, recipe, Measured())
    assert [len(train) for _, train in chosen.values()] == [40] * 6
    assert len(fits) == 28 + 6
    for train, choice in fits:
        assert np.isin(chosen[id(choice)][1], train).all()
    chosen.clear()
    certify(*sides(problem, np.arange(80)), fitted="image", **QUICK)
    assert len(chosen) == 1 + 10 + 6 + 8  # a choice a fold or a size, and none a draw


def test_several_modalities_are_fitted_on_together_by_a_rotation(problem):
    found = certify(*sides(problem, np.arange(60)), folds=3, **QUICK)
    assert found.fitted == ["image", "text"]
    assert {one["name"].split()[0] for one in found.choice["tried"]} == {"rotation"}
    assert "modality=[…]" in found.how_to_fit


@pytest.mark.parametrize(
    ("given", "words", "kind"),
    [
        ({"method": "cca"}, "method='cca'; expected a one-sided linear method", ParameterError),
        ({"method": "best"}, "method='best'; expected a method out of auto", ParameterError),
        ({"method": "linear", "fitted": "both"}, "Pass fitted='image'", ModalityError),
        ({"single_modality": True}, "image and text rows", ModalityError),
        ({"single_modality": True, "method": "linear"}, "method='linear'", ModalityError),
        ({"ridge": 1.0}, "ridge", ParameterError),
    ],
)
def test_what_is_not_certified_is_refused(problem, given, words, kind):
    with pytest.raises(kind, match=words):
        certify(*sides(problem, np.arange(40)), **given, **QUICK)
