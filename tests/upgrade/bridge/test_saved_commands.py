"""A saved bridge where commands take a map: inspected, measured, and its queries mapped from file to file."""

import json

import numpy as np
import pytest
from bridge_data import two_models

import congruence
from congruence import Bridge, OrthogonalMap, Space
from congruence.cli._output import NEW_OLD, by_side
from congruence.evaluation import thresholds

NEW, OLD = two_models(200, 6, 8, noise=0.1, random_state=7)


@pytest.fixture(scope="module")
def bridge():
    mapping = OrthogonalMap().fit(NEW[:120], OLD[:120], modality="image")
    mapping = mapping.recenter(NEW[:50] + 0.1, OLD[:50], modality="text")
    mapping.source_space_ = Space("new", modality="text", dim=6, normalized=True)
    mapping.target_space_ = Space("old", modality="text", dim=8, normalized=True)
    return Bridge(mapping).fit_thresholds(NEW[120:], OLD[120:], OLD, modality="text")


@pytest.fixture
def files(tmp_path, bridge):
    bridge.save(tmp_path / "bridge")
    np.savez(tmp_path / "q.npz", v=NEW[120:], ids=np.array([f"q{k}" for k in range(80)]))
    return tmp_path


def test_inspect_gives_plain_data(here, files, bridge):
    report = json.loads(here("inspect", "bridge", "--json").out)
    assert len(report["map"].pop("singular_values")) == 6
    assert report == json.loads(json.dumps(by_side(bridge.describe(), NEW_OLD)))
    assert [report["thresholds"][name] for name in ("n_queries", "n_pairs", "n_relevant")] == [80, 16000, 0]


def test_cut_offs_of_a_rate_are_those_that_gave_it(bridge):
    found = bridge.thresholds.at_rates([0.1, 0.01, 0.5])
    assert [rate for rate, _ in found] == [0.1, 0.01, 0.5]
    for rate, one in found:
        assert one.fpr_old == pytest.approx(rate, rel=1e-9)
        assert one.to_dict() == bridge.translate(one.threshold).to_dict()
    table = bridge.thresholds.table.copy()
    table[thresholds.COLUMNS.index("fpr_old")] *= 0.2  # no cut-off that let through more
    few = thresholds.Thresholds(table, 80, 16000, 0)
    assert [rate for rate, _ in few.at_rates([0.5, 0.01])] == [0.01]


@pytest.mark.parametrize("normalize", ["auto", False])
def test_transform_maps_queries_as_the_bridge_does(here, files, bridge, normalize):
    Bridge(bridge.map, normalize=normalize, modality="text").save(files / "bridge", force=True)
    expected = Bridge(bridge.map, normalize=normalize).transform(NEW[120:], "text")
    done = here("transform", "bridge", "q.npz:v", "-o", "x.parquet")
    assert done.code == 0, done.err
    found = congruence.read_embeddings(files / "x.parquet")
    np.testing.assert_allclose(found.vectors, expected, atol=2e-6)
    assert found.ids.tolist() == [f"q{k}" for k in range(80)]
    assert (found.space.model, found.space.modality) == ("old", "text")
    assert here("transform", "bridge", "q.npz:v", "-o", "i.npy", "--modality", "image", "--normalize", "yes").code == 0
    found = congruence.read_embeddings(files / "i.npy").vectors
    np.testing.assert_allclose(found, Bridge(bridge.map).transform(NEW[120:], "image"), atol=2e-6)


def test_a_report_measures_the_map_of_a_bridge(here, files, bridge, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "congruence.report.summarize", lambda mapping, *_, **__: seen.append(mapping) or {"verdict": {"sentence": "."}}
    )
    monkeypatch.setattr("congruence.report.render", lambda summary: "")
    here("report", "bridge", "sample", "-o", "r.html").ends(0)
    np.testing.assert_array_equal(seen[0].matrix, bridge.map.matrix)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "map has means of image, text"),
        (("--modality", "audio"), "audio"),
        (("--modality", "text", "--inverse"), "Got --inverse for a bridge"),
        (("--modality", "text", "--side", "second"), "Leave out --side"),
    ],
)
def test_transform_refuses_what_no_bridge_does(here, files, arguments, said):
    here("transform", "bridge", "q.npz:v", *arguments, "-o", "x.npy").refused(said)
    assert not (files / "x.npy").exists()
