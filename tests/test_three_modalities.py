"""The example of images, texts and sounds, run from end to end, and what other modalities meet on the way."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import congruence
from congruence import Embeddings, Space
from congruence.databases import open_database
from congruence.embed import Items, embed
from congruence.encoders import load_towers
from congruence.evaluation import evaluate
from congruence.upgrade.certify.design import split_anchors, split_texts, stored_modality

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_modalities.py"


@pytest.mark.long
def test_the_example_runs_to_the_end(tmp_path):
    spec = importlib.util.spec_from_file_location("three_modalities", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = module.main(tmp_path)
    facts = {"model": "towers-new", "revision": "1", "dim": 48, "normalized": True}
    assert report["spaces"] == [{**facts, "modality": m} for m in ("image", "text", "audio")]
    for stored in ("image", "audio"):
        found = report[f"text to {stored}"]
        assert found["mapped"] > 0.9 * found["new model"] > 0.8  # of 600 unseen things; chance is 1/600
        assert report[f"text to {stored} in the store"] == pytest.approx(found["mapped"], abs=0.01)
        assert report[f"space of mapped {stored}"] == {**facts, "modality": stored, "role": "store"}
        assert report[f"advice for {stored}"] == "map"
    assert report["verified"]
    assert report["rolled back to the bit"]


def test_what_is_stored_is_what_is_not_text():
    for names, stored in (
        (["text", "audio"], "audio"),
        (["text", "video"], "video"),
        (["audio", "image"], "image"),
        (["text"], "text"),
    ):
        assert stored_modality(names) == stored


@pytest.fixture(scope="module")
def sides():
    """Sounds and texts of the same 60 things in two models, and the texts without the things' ids."""
    rng = np.random.default_rng(0)
    things, turn = rng.normal(size=(60, 8)), np.linalg.qr(rng.normal(size=(12, 12)))[0][:8]
    old, new = {}, {}
    for modality in ("text", "audio"):
        shift = 0.3 * rng.normal(size=12)
        rows = things + 0.02 * rng.normal(size=things.shape)
        ids = [f"thing {k}" for k in range(60)]
        old[modality] = Embeddings(rows, ids=ids, space=Space("old", modality=modality))
        new[modality] = Embeddings(rows @ turn + shift, ids=ids, space=Space("new", "rev-2", modality))
    apart = {"text": Embeddings(new["text"].vectors, ids=[f"query {k}" for k in range(60)]), "audio": new["audio"]}
    return old, new, apart


def test_sounds_are_split_and_told_apart_from_texts_as_images_are(sides):
    old, new, apart = sides
    (fitted, _), (heldout, _) = split_anchors(old, new, 20, random_state=0)
    assert len(fitted["audio"]) == 20
    assert len(heldout["audio"]) == 40
    anchors, target, texts = split_texts({"audio": old["audio"]}, apart)
    assert (list(anchors), list(target)) == (["audio"], ["audio"])
    assert texts[1] is apart["text"]


def test_sounds_are_classified_by_texts_as_images_are(sides):
    old, new, _ = sides
    means = {"text": (old["text"], new["text"])}
    mapping = congruence.fit(old["audio"], new["audio"], modality="audio", means=means, method="orthogonal")
    scores = evaluate(mapping, old, new)
    assert scores.get("zero_shot", "aligned audio", "target text").after > 0.9


@pytest.mark.parametrize("suffix", [".parquet", ".npy", "", pytest.param(".lance", marks=pytest.mark.long)])
def test_a_migration_states_the_model_revision_and_modality_of_its_vectors(tmp_path, suffix, sides):
    old, new, _ = sides
    means = {"text": (old["text"], new["text"])}
    mapping = congruence.fit(old["audio"], new["audio"], modality="audio", means=means, method="orthogonal")
    towers = load_towers(
        {"audio": lambda sounds: old["audio"].vectors[[int(samples[0]) for samples, _ in sounds]]},
        name="old", revision="rev-1", rate=10,
    )  # fmt: skip
    items = Items("sounds", "audio", old["audio"].ids, lambda k: (np.full(5, k, np.float32), 10), str)
    out = tmp_path / f"store{suffix}"
    embed(towers["audio"], items, out)
    before = congruence.read_embeddings(out)
    assert before.space.to_dict().items() >= {"model": "old", "revision": "rev-1", "modality": "audio"}.items()
    with congruence.Migration(
        open_database(str(out)), mapping, journal=tmp_path / "journal", modality="audio"
    ) as migration:
        migration.run()
        migration.verify()
        migration.switch()
        after = congruence.read_embeddings(f"{out}:vector" if suffix == ".lance" else out)
        assert after.space.to_dict().items() >= {"model": "new", "revision": "rev-2", "modality": "audio"}.items()
        assert after.dim == 12
        migration.rollback()
    again = congruence.read_embeddings(f"{out}:vector" if suffix == ".lance" else out)
    assert again.space == before.space
    np.testing.assert_array_equal(again.vectors, before.vectors)
