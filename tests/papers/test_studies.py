"""What a paper is to the runner: one study, one line of the registry; and one reader of features for all of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from congruence.errors import CorruptFileError, FileError, InputError, NotFiniteError, ParameterError, ZeroRowError
from congruence_papers import STUDIES, Data, Kind, Study, canonical, config_names, jam, listing, run, sotalign
from congruence_papers.npz import FILES

# ------------------------------------------------------------------------------------------------ a fourth paper


@dataclass(frozen=True)
class Throws(Data):
    """Throws of a die."""

    eyes: np.ndarray

    def contents(self):
        return {"throws": len(self.eyes)}


def mean_of_throws(job):
    for data in job.data:
        for seed in job.seeds:
            drawn = np.random.default_rng(seed).choice(data.eyes, job["throws"])
            job.results.add({"data": data.name, "metric": "eyes", "quantity": "after"}, drawn.mean())
            job.tick()


FIGURE = """
name: dice-fig1
title: "Throws"
section: "1"
kind: dice_mean
models: [ivory]
data: [casino]
sample_data: [loaded]
seeds: 2
metrics: [eyes]
parameters:
  throws: 50
paper:
  claim: "The die is loaded."
  rules: ["eyes > 4"]
"""


@pytest.fixture
def dice(tmp_path, monkeypatch):
    """A paper's folder, and its line of the registry."""
    folder = tmp_path / "dice"
    folder.mkdir()
    (folder / "dice-fig1.yaml").write_text(FIGURE)

    class DiceStudy(Study[Throws]):
        name = "dice"
        title = "the dice paper"
        configs = folder
        data_type = Throws
        sample_data = ("loaded", "fair")
        metrics: Mapping[str, str] = {"eyes": "mean number of eyes"}
        baselines: Mapping[str, str] = {}
        kinds: Mapping[str, Kind] = {"dice_mean": Kind(mean_of_throws, "the throws", {"throws": 10})}
        drawings: Mapping[str, tuple[str, str]] = {"dice-fig2": ("a drawing of a die", "2")}

        def open_sample(self, name, variant, request):
            return Throws(name, np.array([1, 6, 6, 6, 6]), stand_in="stand-in: a made-up die")

        def count(self, facts):
            return f"{facts['throws']} throws"

    monkeypatch.setitem(STUDIES, "dice", DiceStudy())


def test_a_fourth_paper_is_a_folder_and_one_line(dice, here, tmp_path):
    assert config_names("dice") == ("dice-fig1",)
    assert config_names()[-1] == "dice-fig1"
    result = here("reproduce", "dice-fig1", "-o", "out")
    assert result.code == 0, result.err
    assert "Throws, on loaded [stand-in: a made-up die]" in " ".join(result.out.split())
    assert "Data: loaded (loaded), 5 throws." in result.out
    assert "Stand-in for ivory on casino, which have not been run." in result.out
    results = json.loads((tmp_path / "out/results.json").read_text())
    (row,) = results["rows"]
    drawn = [np.random.default_rng(seed).choice([1, 6, 6, 6, 6], 50).mean() for seed in (0, 1)]
    assert row["values"] == pytest.approx(drawn)
    assert (results["held"]["verdict"], results["resampled"], results["seeds"]) == ("yes", "the throws", [0, 1])
    figure = "".join(ET.parse(tmp_path / "out/figure.svg").getroot().itertext())
    assert "mean number of eyes" in figure
    listed = here("reproduce", "--list").out
    assert "1 figures are 1 experiments (the dice paper)" in listed
    assert "a drawing of a die" in listed
    mine = [row for row in listing() if row["paper"] == "dice"]
    assert [(row["name"], row["runs_here"]) for row in mine] == [("dice-fig1", ["loaded"]), ("dice-fig2", [])]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metrics: [eyes]", "metrics: [text_cosine]", "Got metrics 'text_cosine'.*expected one of eyes"),
        ("[loaded]", "[sample]", "Got sample_data 'sample'.*loaded, fair"),
        (
            "throws: 50",
            "share: 0.5",
            r"Got 'share' in parameters of kind dice_mean in own\.yaml, line 12; expected one of throws",
        ),
        ("kind: dice_mean", "kind: dice", "Got kind 'dice'.*main, .*jam_losses.*sotalign_methods.*dice_mean"),
    ],
)
def test_a_fourth_paper_s_configurations_are_checked_against_its_own_study(dice, tmp_path, old, new, message):
    path = tmp_path / "own.yaml"
    assert old in FIGURE
    path.write_text(FIGURE.replace("dice-fig1", "own").replace(old, new))
    with pytest.raises(ParameterError, match=message):
        run(str(path))


def test_a_study_refuses_what_it_does_not_open(dice):
    with pytest.raises(ParameterError, match=r"Got fair for dice-fig1; expected one of loaded"):
        run("dice-fig1", models="fair")
    with pytest.raises(ParameterError, match=r"Got paper for dice-fig1; .*collections=\[Throws"):
        run("dice-fig1", models="paper")
    with pytest.raises(InputError, match="expected Throws"):
        run("dice-fig1", collections=[canonical.open_sample("sample")])
    own = Throws("mine", np.array([3, 3]))
    assert run("dice-fig1", collections=[own]).results["rows"][0]["mean"] == 3


# ------------------------------------------------------------------------------------------------ files of features

CALTECH = [study.open_sample for study in (canonical, sotalign, jam)]
IMAGENET = [sotalign.open_sample, jam.open_sample]


def write(folder, name, **changed):
    """Write a file of features of twelve items, with some arrays replaced, or left out where None."""
    rng = np.random.default_rng(0)
    classes = np.array([f"class {k}" for k in range(4)])
    arrays = {
        "image_effnet_lite0": rng.normal(size=(12, 6)),
        "image_mobilenet_v2": rng.normal(size=(12, 6)),
        "label": np.arange(12) % 4,
        "classes": classes,
        "names": np.array([f"name {k}" for k in range(12)]),
        "templates": np.array(["a {}", "the {}"]),
        "image_file": np.array([f"{k}.jpg" for k in range(12)]),
        "text_mpnet": rng.normal(size=(4, 2, 5) if name == "caltech101" else (12, 5)),
        "text_minilm_l6": rng.normal(size=(4, 2, 5) if name == "caltech101" else (12, 5)),
    } | changed
    path = folder / FILES[name]
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def outcome(opened, name, path) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as found:
        opened(name, path)
    return found.type, str(found.value)


@pytest.mark.parametrize(("name", "openers"), [("caltech101", CALTECH), ("imagenet1000", IMAGENET)])
@pytest.mark.parametrize("key", ["image_effnet_lite0", "text_mpnet"])
@pytest.mark.parametrize(("value", "error"), [(np.nan, NotFiniteError), (np.inf, NotFiniteError), (0.0, ZeroRowError)])
def test_the_same_bad_row_is_the_same_error_in_every_paper(tmp_path, name, openers, key, value, error):
    rows = np.random.default_rng(1).normal(size=(12, 6) if key.startswith("image") else (4, 2, 5))
    if key == "text_mpnet" and name == "imagenet1000":
        rows = np.random.default_rng(1).normal(size=(12, 5))
    rows[(3, 1) if rows.ndim == 3 else 7] = value
    path = write(tmp_path, name, **{key: rows})
    found = {outcome(opened, name, path) for opened in openers}
    assert len(found) == 1
    ((kind, words),) = found
    assert kind is error
    assert f"1 of {rows.size // rows.shape[-1]} rows of {key} in {path} (rows 7)" in words


@pytest.mark.parametrize("opened", CALTECH)
def test_damaged_files_are_the_same_error_in_every_paper(opened, tmp_path):
    whole = write(tmp_path, "caltech101").read_bytes()
    path = tmp_path / FILES["caltech101"]
    for damage in (whole[: len(whole) // 2], b"", b"words"):
        path.write_bytes(damage)
        assert outcome(opened, "caltech101", path)[0] is CorruptFileError
    for changed in ({"label": None}, {"text_mpnet": None}, {"classes": np.array(3)}, {"label": np.array(["a"] * 12)}):
        write(tmp_path, "caltech101", **changed)
        kind, words = outcome(opened, "caltech101", tmp_path)
        assert kind is CorruptFileError
        assert "cannot be used as caltech101" in words
    assert outcome(opened, "caltech101", tmp_path / "none.npz")[0] is FileError
    assert outcome(opened, "caltech101", None)[0] is ParameterError
