"""SOTAlign's experiments on embeddings of one's own: files as a user has them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence.errors import FileError, IdError, ParameterError
from congruence.synthetic import unimodal_problem
from congruence_papers import run
from congruence_papers.sotalign.data import open_features

N, CAPTIONS = 150, 2


def plant(path, ids, rows):
    pq.write_table(pa.table({"id": list(ids), "vector": list(rows.astype(np.float32))}), path)


@pytest.fixture
def folder(tmp_path):
    """Two image encoders and a text encoder, every file in an order of its own."""
    made = unimodal_problem(N, 24, 16, latent=5, noise=0.1, captions=CAPTIONS, random_state=0)
    other = unimodal_problem(N, 20, 16, latent=5, noise=0.1, captions=CAPTIONS, random_state=0)
    rng = np.random.default_rng(1)
    images = np.array([f"{i}.jpg" for i in range(N)])
    texts = np.array([f"{i}.jpg#{k}" for i in range(N) for k in range(CAPTIONS)])
    for encoder, kind, ids, rows in (
        ("eye", "images", images, made.images),
        ("lens", "images", images, other.images),
        ("pen", "texts", texts, made.texts),
    ):
        (tmp_path / encoder).mkdir()
        order = rng.permutation(len(ids))
        plant(tmp_path / encoder / f"{kind}.parquet", list(ids[order]), rows[order])
    return tmp_path, made


def test_texts_are_those_of_their_images(folder):
    place, made = folder
    data = open_features(["eye/pen", "lens/pen"], place)
    assert data.encoders == (("eye", "pen"), ("lens", "pen"))
    image = {row.tobytes(): number for number, row in enumerate(made.images.astype(np.float32))}
    text = {row.tobytes(): number // CAPTIONS for number, row in enumerate(made.texts.astype(np.float32))}
    own = dict(zip(data.image_labels, (image[row.tobytes()] for row in data.images["eye"]), strict=True))
    assert [own[label] for label in data.text_labels] == [text[row.tobytes()] for row in data.texts["pen"]]
    assert len(data.text_labels) == N * CAPTIONS
    assert not data.classes
    assert (data.sizes["pairs"], data.sizes["validation"], data.sizes["test"]) == (15, 15, 30)


@pytest.mark.long
def test_a_table_is_run_on_a_folder(folder, here, tmp_path):
    place, _ = folder
    quick = ["--models", "eye/pen", "--file", place, "--quick", "--seeds", 1]
    here("lab reproduce", "sotalign-table4", *quick, "-o", "out").ends(0)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {row["series"] for row in results["rows"]} >= {"SOTAlign", "SAIL", "SAIL, all pairs", "CCA"}
    assert results["title"].endswith(f"{place.name}, {N} images")
    assert results["stand_in"] is None


def test_labels_make_classes(folder):
    place, _ = folder
    lines = ["id,label", *(f"{i}.jpg,kind {i % 5}" for i in range(N))]
    (place / "labels.csv").write_text("\n".join(lines) + "\n")
    data = open_features(["eye/pen"], place, variant="classes")
    assert data.classes
    assert np.bincount(data.image_labels).tolist() == [N // 5] * 5
    assert np.bincount(data.text_labels).tolist() == [N * CAPTIONS // 5] * 5
    (place / "labels.csv").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(IdError, match=f"no label of '{N - 1}.jpg'"):
        open_features(["eye/pen"], place)


def test_what_is_missing_is_named(folder):
    place, made = folder
    for error, words, call in (
        (FileError, "no texts in .*eye", lambda: open_features(["lens/eye"], place)),
        (ParameterError, "no image/text pair", lambda: open_features(["eye"], place)),
        (ParameterError, "is no folder of", lambda: open_features(["eye/pen"], place / "eye" / "images.parquet")),
        (ParameterError, "has no classes", lambda: open_features(["eye/pen"], place, variant="classes")),
        (ParameterError, "Got data coco", lambda: run("sotalign-table4", models="eye/pen", file=place, data=["coco"])),
        (ParameterError, "cannot be downloaded here", lambda: run("sotalign-table4", models="eye/pen")),
    ):
        with pytest.raises(error, match=words):
            call()
    (place / "blind").mkdir()
    plant(place / "blind/images.parquet", [f"{i}.jpg" for i in range(1, N)], made.images[1:])
    with pytest.raises(IdError, match="different ids for blind and eye"):
        open_features(["eye/pen", "blind/pen"], place)
    with pytest.raises(IdError, match="the text '0.jpg#"):
        open_features(["blind/pen"], place)
    (place / "mute").mkdir()
    few = [f"{i // 2}.jpg#{i % 2}" for i in range(2, 2 * N)]
    plant(place / "mute/texts.parquet", few, made.texts[2:])
    with pytest.raises(IdError, match="the image '0.jpg'"):
        open_features(["eye/mute"], place)
    np.save(place / "mute" / "images.npy", made.images)
    with pytest.raises(IdError, match="without ids"):
        open_features(["mute/pen"], place)
