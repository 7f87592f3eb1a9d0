"""The front matter of a saved map's card is what the Hub's own library reads."""

import math

import numpy as np
import pytest

import congruence
from congruence import Embeddings, Space
from congruence.maps.card import front_matter
from congruence.synthetic import rigid_problem

repocard = pytest.importorskip("huggingface_hub.repocard")

P = rigid_problem(120, 6, 8, noise=0.2, random_state=0)


def read(text):
    return repocard.ModelCard(text).data


def test_the_hub_reads_library_tags_and_the_scores_of_held_out_pairs(tmp_path):
    old, new = Embeddings(P.X, space=Space("old/clip", "image")), Embeddings(P.Y, space=Space("new/siglip", "image"))
    mapping = congruence.fit(old, new, "orthogonal", holdout=30)
    data = read((mapping.save(tmp_path / "map") / "README.md").read_text(encoding="utf-8"))
    assert data.library_name == "congruence"
    assert data.tags == ["congruence", "embeddings", "alignment", "orthogonal"]
    assert data.model_name == "old/clip → new/siglip"
    results = {one.metric_type: one for one in data.eval_results}
    assert set(results) == set(data.metrics) == {"recall_at_1", "recall_at_10", "cosine_similarity"}
    assert results["recall_at_1"].metric_value == pytest.approx(mapping.scores_["held_out_retrieval_at_1"], abs=1e-4)
    assert results["recall_at_1"].metric_name == "recall at 1 (chance: 0.033)"
    assert results["cosine_similarity"].metric_name.startswith("cosine (every row at the new model's mean: ")
    assert results["recall_at_1"].dataset_name == "30 pairs that the fit did not see"
    assert repocard.model_index_to_eval_results(repocard.eval_results_to_model_index("m", data.eval_results))


def test_without_held_out_pairs_there_are_no_results(tmp_path):
    mapping = congruence.OrthogonalMap().fit(P.X, P.Y)
    data = read((mapping.save(tmp_path / "map") / "README.md").read_text(encoding="utf-8"))
    assert data.library_name == "congruence"
    assert data.eval_results is None


@pytest.mark.parametrize(
    "name",
    ["a: b # c", "- x", 'quote"d', "\n---\nlicense: stolen", "\u2028tags: [x]", "😀 → ü", "\ud800", "{a}", "\x1b[2J"],
)
def test_a_name_from_a_file_adds_nothing(name):
    text = "\n".join([*front_matter(name, ("linear",), {"held_out_retrieval_at_1": 0.5}), "# Title"])
    data = read(text)
    assert data.license is None
    assert data.tags == ["congruence", "embeddings", "alignment", "linear"]
    if name.isprintable():
        assert data.model_name == name


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", True, None, [1]])
def test_scores_that_are_no_numbers_are_left_out(value):
    scores = {"held_out_retrieval_at_1": value, "held_out_cosine": np.float32(0.25), "held_out_pairs": "many"}
    data = read("\n".join([*front_matter("a", (), scores), "# Title"]))
    assert [one.metric_type for one in data.eval_results or []] in ([], ["cosine_similarity"])
