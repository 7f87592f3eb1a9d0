"""Every experiment of every paper runs on its stand-in: the files are whole, the claims speak of what was measured."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pytest

from congruence.errors import FileError, InputError, ParameterError
from congruence_papers import EXPERIMENTS, PAPERS, Outcome, run
from congruence_papers.canonical import open_sample
from congruence_papers.core import COLUMNS, judge
from congruence_papers.figure import write_experiment
from congruence_papers.running import experiment_of, find

pytest.importorskip("torch")

#: The fewest steps that run: whether KLOT's plans converge is the subject of another test.
pytestmark = [pytest.mark.filterwarnings("ignore::congruence.errors.ConvergenceWarning"), pytest.mark.long]

#: Kinds of figures without a map: gaps and kernels within each model, and tables of the data.
WITHOUT_A_MAP = {"gap", "kernels", "statistics", "templates"}

QUANTITIES = ("after", "constant", "random_rotation")

SVG = "{http://www.w3.org/2000/svg}"


def same_runs() -> dict[str, list[str]]:
    """The experiments by the first one of the same run: the paper's models, data and claims differ."""
    found: dict[str, list[str]] = {}
    for name in EXPERIMENTS:
        paper, one = find(name)
        key = repr((experiment_of(paper, one), one.metrics, one.sample_data, one.seeds))
        found.setdefault(key, []).append(name)
    return {names[0]: names for names in found.values()}


SAME = same_runs()


@cache
def quick(name: str) -> Outcome:
    return run(name, quick=True)


@pytest.mark.parametrize("name", SAME)
def test_every_experiment_runs_on_its_stand_in(name, tmp_path):
    outcome, paper = quick(name), find(name)[0].name
    write_experiment(tmp_path / "out", outcome)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "results.csv", "figure.svg"}
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert {"format", "experiment", "seeds", "resampled", "config", "data", "versions", "seconds"} <= set(results)
    assert (results["config"]["name"], results["versions"]["numpy"]) == (name, np.__version__)
    for row in results["rows"]:
        assert set(row) == {*COLUMNS, "mean", "sd", "n", "values"}
        assert row["n"] == len(row["values"])
        assert row["mean"] == pytest.approx(np.mean(row["values"]))
        assert (row["sd"] is None) == (row["n"] == 1)
    config, rows = results["config"], results["rows"]
    # Every rule speaks of something measured, but for what a quick run leaves out or the stand-in has not.
    if config["kind"] not in ("few_anchors", "statistics", "templates") and config["variant"] != "same_data":
        for claim in judge([claim for one in SAME[name] for claim in EXPERIMENTS[one].claims], rows)["claims"]:
            assert claim["of"] or "correlation" in claim["claim"], claim
    # Beside every metric of a map stand its controls.
    metrics = {row["metric"] for row in rows}
    if paper == "canonical" and config["kind"] not in WITHOUT_A_MAP:
        found = {quantity: {row["metric"] for row in rows if row["quantity"] == quantity} for quantity in QUANTITIES}
        assert found["after"] <= found["random_rotation"] | {row["metric"] for row in rows if row["series"] == "random"}
        assert {metric for metric in found["after"] if "cosine" in metric} <= found["constant"]
    if paper != "canonical":
        assert {*EXPERIMENTS[name].metrics} - metrics <= {"correlation"}  # which needs three points
    if paper == "jam" and name != "jam-table12":
        assert results["seeds"] == [5, 42]
        assert {row["n"] for row in results["rows"]} == {2}
    read = list(csv.DictReader(io.StringIO((tmp_path / "out/results.csv").read_text())))
    assert [float(line["mean"]) for line in read] == [row["mean"] for row in results["rows"]]
    figure = ET.parse(tmp_path / "out/figure.svg").getroot()
    words = [text.text or "" for text in figure.iter(f"{SVG}text")]
    assert sum(re.match(r"\([a-z]\) ", text) is not None for text in words) >= len(metrics)
    assert "[" not in results["title"] or results["stand_in"] in " ".join(figure.itertext())


def test_a_random_rotation_finds_no_class_and_keeps_what_rotations_keep():
    rows = run("fig11", models="sample", quick=True, seeds=1).results["rows"]
    value = {(row["metric"], row["quantity"]): row["mean"] for row in rows}
    for metric in ("image_retrieval", "text_retrieval", "aligned_image_text", "image_aligned_text"):
        assert value[metric, "random_rotation"] < 0.1 < 0.4 < value[metric, "after"]
    kept = "aligned_image_aligned_text"
    assert value[kept, "random_rotation"] == pytest.approx(value[kept, "after"], abs=0.03)


@pytest.mark.parametrize("name", ["fig5", "sotalign-table1", "jam-fig1"])
def test_runs_repeat_to_the_bit(name):
    assert quick(name).results["rows"] == run(name, quick=True).results["rows"]


def test_figures_that_are_one_experiment_have_the_same_numbers():
    one, other = (quick(name).results["rows"] for name in ("fig11", "fig12"))
    assert one == other


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("fig4", {"models": "lvis"}, ParameterError, "Got no file for lvis.*lvis1203_clip.npz"),
        ("fig4", {"models": "lvis", "file": "/nowhere"}, FileError, "Got no file at /nowhere"),
        ("fig4", {"models": "openai-b32", "root": "."}, ParameterError, "Got models='openai-b32'"),
        ("fig4", {"models": "openai-b32/nonsense", "root": "."}, ParameterError, "expected sample, lvis, .*openai-b32"),
        ("fig4", {"models": "paper"}, ParameterError, "No folder of pets"),
        ("fig4", {"models": "sample", "data": ["pets"]}, ParameterError, "contains its own data"),
        ("fig4", {"seeds": 0}, ParameterError, "seeds"),
        ("fig4", {"collections": []}, InputError, "Got no data"),
        ("fig4", {"collections": [object()]}, InputError, "needs collections of Collection"),
        ("fig53", {"models": "lvis", "file": "."}, ParameterError, "fig53 runs on sample, caltech101, clip, not lvis"),
        (
            "sotalign-table4",
            {"models": "paper"},
            ParameterError,
            "Got paper for sotalign-table4.*synthetic, imagenet1000",
        ),
        ("sotalign-table4", {"models": "imagenet1000"}, ParameterError, "Got no file for imagenet1000"),
        ("sotalign-table4", {"models": "synthetic", "data": ["coco"]}, ParameterError, "contains its own data"),
        ("jam-table2", {"models": "sugarcrepe"}, ParameterError, "Pass file="),
        ("jam-table2", {"models": "sugarcrepe", "file": "/nowhere"}, FileError, "nowhere"),
    ],
)
def test_what_is_missing_is_named(name, options, error, message):
    with pytest.raises(error, match=message):
        run(name, **options)


@pytest.mark.parametrize("name", ["sotalign-table4", "jam-table2"])
def test_data_of_another_paper_are_refused(name):
    data_type = PAPERS[name.partition("-")[0]].data_type.__name__
    with pytest.raises(InputError, match=f"needs collections of {data_type}"):
        run(name, collections=[open_sample("sample")])
