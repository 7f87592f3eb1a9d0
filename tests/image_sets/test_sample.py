"""The bundled sample is what it says, and what the paper claims can be seen on it."""

import hashlib

import numpy as np
import pytest

import congruence
from congruence.datasets import SAMPLES, load_sample, open_bundle, sample
from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence.evaluation import evaluate
from congruence.maps import OrthogonalMap
from congruence.metrics import recall_at_k
from congruence.report import summarize
from congruence.splits import Split

N, DIM, PROMPTS = 1595, 64, 4


@pytest.fixture(scope="module")
def data():
    return load_sample("emoji")


def test_the_files_are_those_that_were_made_and_small():
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in SAMPLES.items()}
    assert digests == {"photos": "0e375fab3423f02b", "emoji": "2b83475b5245c06b"}
    assert sum(path.stat().st_size for path in SAMPLES.values()) < 10_000_000  # a wheel of at most 12 MB


def test_shapes_ids_and_words(data):
    for side in (data.source, data.target):
        shapes = {kind: rows.vectors.shape for kind, rows in side.items()}
        assert shapes == {"image": (N, DIM), "text": (N, DIM), "prompt": (N * PROMPTS, DIM), "edit": (16, DIM)}
        for kind, rows in side.items():
            assert rows.space.normalized
            assert rows.space.modality == ("image" if kind == "image" else "text")
        assert side["image"].ids.tolist() == side["text"].ids.tolist()
    ids = data.source["image"].ids.tolist()
    assert set(data.classes["prompt"].values()) == set(data.thumbnails) == set(data.labels) == set(ids)
    assert 80 <= len(set(data.labels.values())) <= 100
    assert data.texts["text"]["1F40C"] == "snail"
    assert data.labels["1F40C"] == "animal-bug"
    assert {data.source["text"].space.model, data.target["text"].space.model} == {"emoji-a", "emoji-b"}


def test_each_models_own_retrieval_is_the_one_reported(data):
    rows = np.arange(N)
    for side in (data.source, data.target):
        reported = data.info["each_model_alone"][side["image"].space.model]
        for k in (1, 5, 10):
            got = recall_at_k(side["image"].vectors, side["text"].vectors, rows, k)
            assert got == pytest.approx(reported[f"recall_at_{k}"], abs=0.01)  # stored in half precision


EMOJI = ("Fluent Emoji", "MIT", "Noto", "Apache-2.0", "Twemoji", "CC BY 4.0", "OpenMoji", "CLDR")
PHOTOS = ("Caltech-101", "CC BY 4.0", "mzrjq-6wc02", "MobileNet", "EfficientNet", "MiniLM", "mpnet")


@pytest.mark.parametrize(("name", "named"), [("emoji", EMOJI), ("photos", PHOTOS)])
def test_licences_are_written_down(name, named):
    words = " ".join(load_sample(name).info["licences"])
    assert [one for one in named if one not in words] == []


def fitted(data, kind, seed, holdout=795):
    """Fit on one kind; the other modality gives its means only. The split is by row, as counted below."""
    other = {"image": "text", "text": "image"}[kind]
    options = {"holdout": holdout, "random_state": seed, "groups": None, "check": False}
    means = {other: (data.source[other], data.target[other])}
    return congruence.fit(data.source[kind], data.target[kind], means=means, **options)


def mean_cosine(X, Y):
    return ((X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1)).mean()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["image", "text"])
def test_a_map_fitted_on_one_modality_carries_the_other(data, kind):
    """The claim: direction and size of the effect on classes the map has not seen, over three splits."""
    for seed in range(3):
        mapping = fitted(data, kind, seed)
        unseen = Split.from_dict(mapping.scores_["holdout"]).held_out(data.source["image"].ids)
        sides = [{m: rows.take(unseen) for m, rows in data.side(side).items()} for side in ("source", "target")]
        scores = evaluate(mapping, *sides)
        for modality in ("image", "text"):
            row = scores.get("cosine", f"aligned {modality}", f"target {modality}")
            assert abs(row.before) < 0.1
            assert row.after > 0.55
            assert scores.get("retrieval", f"aligned {modality}", f"target {modality}").after > 0.2
        for query, against in (("aligned image", "target text"), ("target image", "aligned text")):
            row = scores.get("zero_shot", query, against)
            assert row.before < 0.02
            assert row.after > 10 * row.before
            assert row.after > 0.3 * row.target


def test_shuffled_anchors_carry_nothing(data):
    """What the claims above are worth: the same fit on wrongly paired pictures."""
    rng = np.random.default_rng(0)
    X, Y = data.source["image"].vectors, data.target["image"].vectors
    mapping = OrthogonalMap().fit(X[:800], Y[rng.permutation(800)], modality="image")
    assert mean_cosine(mapping.transform(X[800:]), Y[800:]) < 0.3


@pytest.mark.long
def test_paths_meet_and_edits_arrive(data):
    summary = summarize(fitted(data, "image", 0), data, repeats=1)
    commuting = summary["commuting"]
    assert commuting["overlap"] > 20 * commuting["chance"]
    assert commuting["label_agreement"]["direct"] > 10 * commuting["label_agreement"]["chance"]
    assert summary["edits"]["top5"] > 0.1  # by chance 0.003
    assert summary["kernel"]["centered_alignment"] > 0.4


def test_a_damaged_installation_is_named(tmp_path, monkeypatch):
    real = SAMPLES["emoji"]
    monkeypatch.setattr(sample, "SAMPLES", {"emoji": tmp_path / "emoji.parquet"})
    with pytest.raises(FileError, match="Install"):
        load_sample("emoji")
    (tmp_path / "emoji.parquet").write_bytes(real.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        load_sample("emoji")


@pytest.fixture(scope="module")
def photos():
    return load_sample("photos")


def right(vectors, texts, sample, rows=slice(None)):
    """Share of photos whose nearest name is that of their class."""
    names = sample.source["text"].ids
    own = sample.class_of("image", sample.source["image"].ids)[rows]
    return (names[(np.asarray(vectors, np.float32) @ np.asarray(texts, np.float32).T).argmax(axis=1)] == own).mean()


def test_photos_shapes_ids_and_words(photos):
    for side in (photos.source, photos.target):
        shapes = {kind: rows.vectors.shape for kind, rows in side.items()}
        assert shapes == {"image": (1500, 256), "text": (100, 256), "prompt": (800, 256)}
        assert all(rows.space.normalized for rows in side.values())
        assert side["image"].ids.tolist() == photos.source["image"].ids.tolist()
    assert set(photos.classes["image"].values()) == set(photos.source["text"].ids.tolist())
    assert set(photos.thumbnails) == set(photos.source["image"].ids.tolist())
    assert photos.texts["prompt"]["water lilly#0"] == "a photo of a water lilly."


@pytest.mark.long
def test_a_map_alone_does_not_beat_the_old_model_of_the_photos(photos):
    """What the sample is for: the decision is not an easy one."""
    old, new = photos.source, photos.target
    mapping = congruence.fit(old["text"], new["text"], means={"image": (old["image"], None)}, check=False)
    mapped = mapping.for_modality("image").transform(old["image"].vectors)
    kept = right(old["image"].vectors, old["text"].vectors, photos)
    assert right(old["image"].vectors, new["text"].vectors, photos) < 0.02
    assert 0.8 < right(mapped, new["text"].vectors, photos) < kept
    assert kept < right(new["image"].vectors, new["text"].vectors, photos)
    known = old["image"].ids[::15]
    pairs = congruence.fit(old["image"].take(known), new["image"].take(known), check=False)
    few = right(pairs.transform(old["image"].vectors), new["text"].vectors, photos)
    assert few < right(mapped, new["text"].vectors, photos) - 0.1  # 100 photos in both models, instead of 100 names


def test_samples_are_opened_by_name(photos):
    assert open_bundle("photos").info == load_sample().info == photos.info
    assert open_bundle("sample").info == open_bundle("emoji").info == load_sample("emoji").info


def test_a_name_that_is_no_sample_is_told_which_there_are(tmp_path):
    with pytest.raises(FileError, match=r"no file at photo; expected a bundle .* sample \(photos, emoji\)"):
        open_bundle("photo")
    with pytest.raises(FileError, match="photos, emoji"):
        open_bundle(tmp_path / "bundle.parquet")
    with pytest.raises(ParameterError, match="photos"):
        load_sample("pictures")
