"""The model card: what a reader of a saved map's README.md is told, and that its example does what it says."""

import copy
import re

import numpy as np
import pytest

import congruence
from arrays import unit
from congruence import Embeddings, OrthogonalMap
from congruence.synthetic import random_rotation, rigid_problem

P = rigid_problem(260, 16, 20, noise=0.1, decay=0.4, random_state=0)
PAIRS, POOL = slice(0, 8), slice(8, 200)


def fit(method):
    """A fit on texts, images by the source model beside them, and audio by both where nothing is chosen."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((90, 12))
    other = z @ random_rotation(12, random_state=0) + 0.4 * rng.standard_normal((90, 12))
    names = [f"item {k}" for k in range(90)]
    text, target, image, sound = (Embeddings(unit(rows), ids=names) for rows in (z + 1, other, z - 1, other + 2))
    means = {"image": (image, None)} if method == "auto" else {"image": (image, None), "audio": (image, sound)}
    return congruence.fit(text, target, method, modality="text", means=means, holdout=12)


@pytest.fixture(scope="module")
def chosen():
    return fit("auto")


@pytest.fixture(scope="module")
def rotation():
    return fit("orthogonal")


@pytest.fixture(scope="module")
def card(chosen, tmp_path_factory):
    return read(chosen, tmp_path_factory.mktemp("card"))


def read(mapping, folder):
    return (mapping.save(folder / "map", force=True) / "README.md").read_text(encoding="utf-8")


def tables(text):
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    return [[[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()] for table in found]


def test_the_card_says_what_was_chosen_by_what_evidence_and_by_how_much(chosen, card):
    choice = chosen.scores_["choice"]
    (_, _, *rows), *_ = tables(card)
    told = dict(rows)
    assert told["chosen"] == choice["name"]
    assert len(choice["tried"]) > 1
    for one in choice["tried"]:
        assert f"{one['score']:.3f}" in told[one["name"]]
        assert (f"{one['behind']:.3f} ± {one['error']:.3f}" in told[one["name"]]) == (one["behind"] > 0)


def test_the_card_s_example_maps_every_modality_to_rows_like_the_target_s(rotation, tmp_path):
    code = re.search(r"```python\n(.*?)```", read(rotation, tmp_path), flags=re.S)[1]
    code = code.replace("path/to/this/folder", str(tmp_path / "map"))
    rows = unit(np.random.default_rng(1).standard_normal((5, 12)))
    names = {f"{kind}_vectors": rows for kind in ("text", "image", "audio")}
    *head, images, texts, sounds = code.strip().splitlines()
    exec("\n".join(head), names)
    for line, modality in ((texts, "text"), (images, "image"), (sounds, "audio")):
        exec(line, names)
        np.testing.assert_allclose(names["mapped"], rotation.transform(rows, modality), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(names["mapped"], axis=1), 1, atol=1e-6)
    assert np.abs(names["mapped"] - unit(rotation.for_modality("text").transform(rows))).max() > 0.01


def test_the_card_says_where_means_are_from_and_whether_the_pairs_look_paired(rotation, tmp_path):
    card = read(rotation, tmp_path)
    image = "image (of 78 old rows, the new one estimated from the old one)"
    assert f"means: audio (of 78 old rows), {image}, text (from the pairs)." in card
    for words in ("The default modality is text.", "Pairing: the pairs belong together", "Held out: 12 pairs: "):
        assert words in card


@pytest.mark.parametrize("kind", ["choice", "refinement", "alignment", "pairing"])
@pytest.mark.parametrize("record", ["text", [], {}, {"tried": [{}]}, 3.5, {"matches": 3, "n_pairs": "x"}])
def test_records_of_another_form_do_not_keep_a_map_from_being_saved(kind, record, tmp_path):
    mapping = OrthogonalMap().fit(P.X, P.Y)
    mapping.scores_[kind] = record
    assert "not of the form that congruence writes" in read(mapping, tmp_path)
    mapping.scores_ = {"held_out_retrieval_at_1": "high"}
    assert "not of the form that congruence writes" in read(mapping, tmp_path)


def test_names_in_the_records_are_words(chosen, tmp_path):
    mapping = copy.copy(chosen)
    mapping.scores_ = copy.deepcopy(chosen.scores_)
    mapping.facts_ = {**chosen.facts_, "<b>": "x", "__all__": 1}
    choice = mapping.scores_["choice"]
    choice["tried"][0]["name"] = choice["name"] = "<script>|a|"
    choice["not_tried"] = choice["evidence"] = "[b](https://x.org)"
    text = read(mapping, tmp_path)
    assert r"\<script\>\|a\|" in text
    assert r"| \<b\> | x |" in text
    assert r"| \_\_all\_\_ | 1 |" in text
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[b|https://", text)


def test_a_map_of_no_known_pairs_says_so(tmp_path):
    mapping = OrthogonalMap().fit(P.X, P.Y)
    mapping.scores_["alignment"] = {"found": False, "agreement": 0.25, "left_out": 40, "n_restarts": 4, "matches": 260}
    text = read(mapping, tmp_path)
    assert "# OrthogonalMap of rows without known pairs: " in text
    assert "NO: do not use this map" in text
