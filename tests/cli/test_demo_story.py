"""The demo: photos are searched by names that the map has not seen, and the library is moved and moved back."""

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
    places = {place["name"]: place for place in result["places"]}
    _, asked = _demo_photos.split_names(photos)
    own, old, new = photos.class_of("image", photos.source["image"].ids), photos.source, photos.target
    lists = {}
    for name, texts, rows in (
        ("old model", old, old),
        ("only the encoder changed", new, old),
        ("re-embedded", new, new),
    ):
        cosines = texts["text"].take(asked).vectors.astype(float) @ rows["image"].vectors.T.astype(float)
        lists[name] = np.argsort(-cosines, axis=1)[:, :10]
        assert places[name]["precision"] == pytest.approx((own[lists[name]] == asked[:, None]).mean(), abs=0.003)
    same = [len({*a} & {*b}) / 10 for a, b in zip(lists["old model"], lists["re-embedded"], strict=True)]
    assert places["old model"]["overlap"] == pytest.approx(np.mean(same), abs=0.003)
    assert places["only the encoder changed"]["precision"] < 0.02
    assert 0.4 < places["mapped"]["precision"] < places["old model"]["precision"]
    assert places["after a lazy search"]["precision"] > places["re-embedded"]["precision"] - 0.02
    assert places["after a lazy search"]["overlap"] > places["old model"]["overlap"] + 0.2
    # The table finds the same by its own search.
    assert result["steps"]["before"] == pytest.approx(places["old model"]["precision"], abs=0.003)
    assert result["steps"]["switched"] == pytest.approx(places["mapped"]["precision"], abs=0.003)
    assert result["steps"]["rolled back"] == result["steps"]["before"]
    assert result["identical"]
    assert result["same_lists"]


@pytest.mark.heavy
def test_a_name_is_searched_and_the_page_shows_it(here, photos, tmp_path):
    pytest.importorskip("lancedb")
    pytest.importorskip("lance")
    words = ("--json", "-o", tmp_path / "p.html", "--save-map", tmp_path / "map", "--query", "water lilly")
    result = json.loads(here("demo", *words).ends(0).out)
    assert result["store"] == "LanceDB table"
    assert result["query"] == "water lilly"
    check(result, photos)
    assert result["certificate"]["headline"]
    assert result["certificate"]["costs"][0]["name"] == "keep the old model"
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == 5 * 10
    assert "“water lilly”" in page
    assert result["certificate"]["headline"][1:] in page
    assert "CC BY 4.0" in page
    assert "The old vectors are restored bit for bit" in page
    assert (tmp_path / "map" / "model.safetensors").exists()


def test_neither_map_nor_check_depends_on_the_names_that_search(monkeypatch, photos):
    from dataclasses import replace

    from congruence.embeddings import Embeddings

    known, asked = _demo_photos.split_names(photos)
    assert not {*known} & {*asked}
    mapping = _demo_photos.certify_sample(photos, known).fit()
    sides = []
    for side in (photos.source, photos.target):
        texts = side["text"].vectors.copy()
        texts[np.isin(side["text"].ids, asked)] = np.roll(texts[np.isin(side["text"].ids, asked)], 7, axis=1)
        sides.append({**side, "text": Embeddings(texts, ids=side["text"].ids, space=side["text"].space)})
    other = _demo_photos.certify_sample(replace(photos, source=sides[0], target=sides[1]), known).fit()
    rows = photos.source["image"]
    np.testing.assert_array_equal(other.transform_embeddings(rows).vectors, mapping.transform_embeddings(rows).vectors)


def test_without_lancedb_the_library_is_a_parquet_file(monkeypatch, capsys, photos):
    monkeypatch.setattr(_demo_photos, "has_lancedb", lambda: False)
    _, _, result = _demo_photos.run(photos, None, 0, lambda _: None)
    assert result["store"] == "Parquet file"
    check(result, photos)
    average, mine = ([place[name] for place in result["places"]] for name in ("precision", "right"))
    assert np.abs(np.array(average) - np.array(mine) / 10).max() < 0.2  # an average name
    _demo_photos.tell(photos, {}, result | {"same_lists": False})
    out = capsys.readouterr().out
    assert "pip install 'congruence[lancedb]'" in out
    assert "NOT the same" in out


@pytest.mark.parametrize("query", [[], ["red shoes"], ["Leopards"], [""]])
def test_names_that_cannot_be_searched_for_are_answered_with_those_that_can(here, query):
    here("demo", "--query", *query).refused("pizza", "water lilly", "--query" if not query else "free text")


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
        ("--sample emoji --query pizza", "--query"), ("--sample pictures", "photos"),
        ("--files x --query pizza", "--query with --files"), ("--files x --save-map m", "--save-map with --files"),
        ("--files x -o page.html", "--out with --files"), ("--files x --no-report", "--no-report with --files"),
        ("--files x --seed 1", "--seed with --files"),
    ],
)  # fmt: skip
def test_options_of_the_other_sample_are_refused(here, given, words, tmp_path):
    here("demo", *given.split()).refused(words)
    assert not any(tmp_path.iterdir())
