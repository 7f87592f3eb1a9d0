"""The demo: a photo library is moved to a new model and back, and the page tells what was measured."""

import json

import numpy as np
import pytest

from congruence.cli import _demo_photos
from congruence.datasets import load_sample

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def photos():
    return load_sample("photos")


def check(result, photos):
    """What the story claims, by the sample's own vectors."""
    steps = {step["name"]: step for step in result["steps"]}
    names, own = photos.source["text"].ids, photos.class_of("image", photos.source["image"].ids)

    def right(images, texts):
        return (
            names[(images.vectors.astype(np.float32) @ texts.vectors.T.astype(np.float32)).argmax(axis=1)] == own
        ).mean()

    old, new = photos.source, photos.target
    assert steps["before"]["accuracy"] == pytest.approx(right(old["image"], old["text"]))
    assert steps["only the encoder changed"]["accuracy"] == pytest.approx(right(old["image"], new["text"]))
    assert result["new_model"] == pytest.approx(right(new["image"], new["text"]))
    assert steps["only the encoder changed"]["accuracy"] < 0.02
    assert steps["mapped"]["accuracy"] < steps["before"]["accuracy"] < steps["re-embedded"]["accuracy"]
    assert steps["re-embedded"]["accuracy"] > result["new_model"] - 0.01
    assert result["embedded"] == 150
    assert result["identical"]
    assert result["same_lists"]
    assert steps["rolled back"] == {**steps["before"], "name": "rolled back", "note": steps["rolled back"]["note"]}


@pytest.mark.heavy
def test_a_library_is_moved_and_the_page_tells_it(here, photos, tmp_path):
    pytest.importorskip("lancedb")
    pytest.importorskip("lance")
    done = here("demo", "--json", "-o", tmp_path / "p.html", "--save-map", tmp_path / "map").ends(0)
    result = json.loads(done.out)
    assert result["store"] == "LanceDB table"
    check(result, photos)
    assert [round(stage["share"], 2) for stage in result["stages"]] == [0, 0.02, 0.04, 0.06, 0.08, 0.1]
    assert result["certificate"]["headline"]
    assert result["certificate"]["costs"][0]["name"] == "keep the old model"
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == (6 + 1) * 4 * 5 + 3 * 5  # one search is told step by step, and one by use
    assert "by the map, 0 photos encoded" in page
    assert "after its first search, 50 photos encoded" in page
    assert result["certificate"]["headline"][1:] in page
    assert "CC BY 4.0" in page
    assert "the old vectors are restored bit for bit" in page
    assert "a map alone is not enough here" in page
    assert (tmp_path / "map" / "model.safetensors").exists()


def test_without_lancedb_the_library_is_a_parquet_file(monkeypatch, capsys, photos):
    monkeypatch.setattr(_demo_photos, "has_lancedb", lambda: False)
    result = _demo_photos.move_library(photos, _demo_photos.certify_sample(photos).fit())
    assert result["store"] == "Parquet file"
    check(result, photos)
    harmed = [one for one in result["examples"] if one["harmed"]]
    assert all(one["steps"][2]["right"] < one["steps"][0]["right"] for one in harmed)
    result["certificate"] = {"headline": "map now"}
    by_use = _demo_photos.search_by_use(photos, _demo_photos.certify_sample(photos).fit(), harmed[0]["text"])
    same = [step["same"] for step in by_use["steps"]]
    assert same[0] < same[1] <= same[2]
    _demo_photos.tell(photos, {"by_use": by_use}, result | {"same_lists": False})
    out = capsys.readouterr().out
    assert "pip install 'congruence[lancedb]'" in out
    assert "NOT the same" in out


def test_the_sample_is_written_as_files_of_both_models(here, monkeypatch, photos, tmp_path):
    from congruence import read_embeddings

    monkeypatch.setattr(_demo_photos, "has_lancedb", lambda: False)
    assert here("demo", "--files", tmp_path / "library").code == 0
    texts = read_embeddings(tmp_path / "library" / "new-texts.parquet")
    np.testing.assert_array_equal(texts.vectors, photos.target["text"].vectors.astype(np.float32))
    assert texts.space.model == "effnet-mpnet"
    assert texts.space.modality == "text"
    assert here("demo", "--files", tmp_path / "library").code == 0  # its own is replaced
    (tmp_path / "library" / "mine.txt").write_text("kept")
    here("demo", "--files", tmp_path / "library").refused("mine.txt")
    assert (tmp_path / "library" / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--classes 30", "--classes"), ("--sample emoji --files x", "--files"),
        ("--sample emoji --share .2", "--share"), ("--sample pictures", "photos"), ("--share 0", "--share"),
    ],
)  # fmt: skip
def test_options_of_the_other_sample_are_refused(here, given, words):
    here("demo", *given.split()).refused(words)
