"""The second half of the demo: a LanceDB table migrated, searched by its own client, switched and rolled back."""

import json

import pytest

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def demo():
    """Return the command with the measures of its first half left out: they have tests of their own."""
    pytest.importorskip("lancedb")
    pytest.importorskip("lance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("congruence.cli._demo_emoji.seen_and_unseen", lambda *rows: [])
        few = {"n": [], "curves": []}
        verdict = {"sentence": "", "action": ""}
        summary = {"few_anchors": few, "verdict": verdict, "commuting": {"overlap": 0.0}}
        patch.setattr("congruence.report.summarize", lambda *rows, **options: summary)
        patch.setattr("congruence.report.render", lambda summary: "")
        yield


def test_a_table_is_searched_before_and_after_and_rolled_back(here, demo, tmp_path):
    done = here("demo", "--sample", "emoji", "--json", "-o", tmp_path / "r.html")
    assert done.code == 0, done.err
    result = json.loads(done.out)["migration"]
    steps = {step["name"]: step["scores"] for step in result["searches"]["steps"]}
    assert result["identical"] is True
    assert result["same_lists"] is True
    assert result["searches"]["n"] == 795
    assert result["searches"]["gallery"] == 1595
    assert steps["before"] == steps["rolled back"]
    assert steps["only the encoder changed"]["recall@10"] < 0.02  # spaces that have nothing to do with each other
    assert 20 * 10 / 1595 < steps["after the switch"]["recall@10"] < steps["all re-embedded"]["recall@10"]
    page = (tmp_path / "migration.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") == 6 * 3 * 5
    assert "Readers see the old vectors again" in page
    assert "Fluent Emoji" in page
    assert all(len(step["found"]) == 5 for example in result["searches"]["examples"] for step in example["steps"])


def test_recall_is_that_of_the_vectors_themselves(here, demo, tmp_path):
    """By scikit-learn's exact neighbors, of the sample's own vectors."""
    import numpy as np
    from sklearn.neighbors import NearestNeighbors

    from congruence import load
    from congruence.datasets import load_sample
    from congruence.splits import Split

    result = json.loads(here("demo --sample emoji --json --no-report --classes 300 --save-map map").out)
    sample = load_sample("emoji")
    ids = sample.source["text"].ids
    split = Split.from_dict(load(tmp_path / "map").scores_["holdout"])
    asked = ids[split.held_out(ids)]
    queries = sample.source["text"].take(asked).vectors.astype(np.float32)
    near = NearestNeighbors(n_neighbors=10, metric="cosine").fit(sample.source["image"].vectors.astype(np.float32))
    found = sample.source["image"].ids[near.kneighbors(queries, return_distance=False)]
    hit = (found == asked[:, None]).any(axis=1).mean()
    before = next(step for step in result["migration"]["searches"]["steps"] if step["name"] == "before")
    assert before["scores"]["recall@10"] == pytest.approx(hit, abs=2 / len(asked))


def test_without_lancedb_the_extra_is_named_and_nothing_of_it_written(here, demo, tmp_path, monkeypatch):
    monkeypatch.setattr("congruence.cli._demo_photos.find_spec", lambda name: None)
    done = here("demo", "--sample", "emoji", "-o", tmp_path / "r.html").ends(0)
    assert "pip install 'congruence[lancedb]'" in done.out
    assert not (tmp_path / "migration.html").exists()
