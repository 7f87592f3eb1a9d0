"""What is certified is the map that fit gives for the same rows, and its choice never sees the rows it is scored on."""

import json

import numpy as np
import pytest
from certify_data import sides, tables

from congruence import Bridge, LinearMap, fit, load
from congruence.compare.origins import judge
from congruence.errors import ModalityError, ParameterError
from congruence.linalg.distribution import kind_name
from congruence.metrics import paired_cosine, recall_at_k
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.recipe import AnchorFolds, MapRecipe
from congruence.upgrade.certify.scoring import FOLDS, SIZES, Sheet, cross_fit
from congruence.upgrade.choose import Choice


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
    found = certify(*anchors, fitted=fitted, queries=queries)
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
    found = certify(*anchors, "linear", queries=queries)
    assert found.fitted == ["image"]
    back = fit(anchors[1]["image"], anchors[0]["image"], method="linear", check=False)
    asked = Bridge(back).transform(queries[1]["text"].vectors)  # read as queries
    assert not np.array_equal(asked, Bridge(back).transform(queries[1]["text"].vectors, role="plain"))
    expected = recall_at_k(asked, queries[0]["image"].vectors, range(100), 1)
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


def test_no_map_has_seen_what_it_compares_nor_its_choice(problem, monkeypatch):
    chosen, compared = {}, np.zeros((len(SIZES), FOLDS, FOLDS), int)
    fit, add = AnchorFolds.fit, Sheet.add

    def choose(self, tables, train):
        choice = Choice("rotation about the means", "orthogonal", {}, f"by rows {len(chosen)}")
        chosen[choice.evidence] = train
        return choice

    def fit_on(self, kept, choice):
        model = fit(self, kept, choice)
        model.kept, model.train = list(kept), np.unique(self._fold[chosen[choice.evidence]])
        return model

    def add_to(self, model, cells, each, certified):
        add(self, model, cells, each, certified)
        for query, row in cells:
            own = [fold for fold in range(FOLDS) if fold // each in (query, row)]
            assert not {*own} & {*model.kept}
            # Beside the folds compared, the choice of the map has not seen those dealt with them.
            assert not {*own} & {*model.train}
            if query >= 0:
                rows = np.arange(FOLDS) // each
                compared[SIZES.index(len(model.kept))] += np.outer(rows == query, rows == row)

    monkeypatch.setattr(MapRecipe, "choose", choose)
    monkeypatch.setattr(AnchorFolds, "fit", fit_on)
    monkeypatch.setattr(Sheet, "add", add_to)
    anchors, recipe = tables(problem, np.arange(80)), MapRecipe(["image"])
    choice = recipe.choose(anchors, np.arange(0))
    measured = cross_fit(EvaluationSet(anchors, n_neighbors=5), recipe, choice)
    assert len(measured.maps) == len(chosen) - 1 == 6
    np.testing.assert_array_equal(compared, 1)  # every query and row, once for each number of folds


@pytest.mark.parametrize(
    "options",
    [
        {"method": "orthogonal"},
        pytest.param({"method": "orthogonal", "shrinkage": "cv"}, marks=pytest.mark.long),
        pytest.param({"fitted": "text"}, marks=pytest.mark.long),
        {"method": "linear", "modality": "image"},
        pytest.param({"method": "linear", "center": False, "modality": "text"}, marks=pytest.mark.long),
        {"single_modality": True, "modality": "image"},
    ],
)
def test_a_certificate_fits_the_map_that_it_is_about(problem, options, tmp_path):
    anchors, queries = sides(problem, np.arange(120)), sides(problem, np.arange(120, 220))
    if "modality" in options:
        anchors, queries = (tuple(side[options["modality"]] for side in part) for part in (anchors, queries))
    found = certify(*anchors, queries=queries, **options)
    found.fit().save(tmp_path / "map")
    mapping = load(tmp_path / "map")
    for name, cosine in found.cosines.items():
        old, new = (side.vectors if "modality" in options else side[name].vectors for side in queries)
        assert paired_cosine(mapping.for_modality(name).transform(old), new) == pytest.approx(cosine.value)
        if kind_name("old", name) in mapping.origins_:  # a linear map maps one modality
            assert judge(mapping, old, name).outcome in ("good", "unlike", "unknown")
            assert judge(mapping, new, name).outcome in ("bad", "unlike", "unknown")
    assert found.choice["name"] == mapping.scores_["choice"]["name"]
    assert found.distinct[found.fitted[0]] == mapping.scores_["distinct"]
    assert found.roles == {"stored": "store", "queries": "query"}
    assert mapping.origins_  # a migration can tell by them whose rows a store holds
    assert json.dumps(found.to_dict())


def test_several_modalities_are_fitted_on_together_by_a_rotation(problem):
    found = certify(*sides(problem, np.arange(60)))
    assert found.fitted == ["image", "text"]
    assert found.choice["method"] == "orthogonal"
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
        certify(*sides(problem, np.arange(40)), **given)
