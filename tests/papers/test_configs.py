from __future__ import annotations

from pathlib import Path

import pytest

from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence_papers import STUDIES, config_names, listing, load_config, parse_config
from congruence_papers.canonical import METRICS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "configs"
GOOD = """
name: own
title: "One of my own"
section: "7"
kind: few_anchors
models: [openai-b32/flava]
data: [pets]
sample_data: [sample]
seeds: 2
metrics: [text_cosine]
parameters:
  classes: [2, 5]
paper:
  claim: "none"
  numbers: null
"""


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_of_the_benchmarks_can_be_run(path):
    assert load_config(str(path)).name == path.stem


def test_lines_are_looked_up_for_messages_only(monkeypatch):
    """Where nothing is wrong, finding the line of every rule took longer than reading the file."""
    monkeypatch.setattr("congruence._utils.schema.find_line", None)
    assert load_config("fig5").paper["rules"]


@pytest.mark.parametrize("name", config_names("canonical"))
def test_every_configuration_is_whole(name):
    config = load_config(name)
    study = STUDIES["canonical"]
    assert config.kind in study.kinds
    assert set(config.parameters) == set(study.kinds[config.kind].parameters)
    assert set(config.metrics) <= set(METRICS)
    assert config.models
    assert config.data
    assert "sample" in config.sample_data
    assert config.paper["claim"]
    assert "numbers" in config.paper


def test_every_figure_and_table_is_listed():
    names = [row["name"] for row in listing() if not row["name"].startswith(("jam-", "sotalign-"))]
    assert names == [*(f"fig{k}" for k in range(1, 57)), "table1", "table2"]
    by_name = {row["name"]: row for row in listing()}
    assert by_name["fig5"]["needs_weights"] == ["openai-l14", "flava"]
    assert by_name["fig5"]["needs_data"] == ["pets"]
    assert by_name["fig8"]["runs_here"] == []
    assert set(config_names("canonical")) == set(names) - {"fig8"}


def test_a_paper_s_configurations_are_of_its_own_kinds_and_no_kind_is_of_two_papers():
    for name, study in STUDIES.items():
        assert study.name == name
        assert {load_config(config).kind for config in config_names(name)} <= set(study.kinds)
    every = [kind for study in STUDIES.values() for kind in study.kinds]
    assert len(every) == len(set(every))


def test_defaults_fill_what_is_left_out():
    config = parse_config(GOOD, "own")
    assert config.parameters == {
        "fit": "image",
        "methods": ["orthogonal"],
        "classes": [2, 5],
        "means": "seen",
        "evaluation_templates": "all",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 2", "seed: 2", r"Got 'seed' in own\.yaml, line 9; expected one of name, title"),
        ("seeds: 2", "seeds: two", r"Got seeds: 'two' in own\.yaml, line 9; expected a whole number"),
        ("seeds: 2", "seeds: true", "Got seeds: True.*a whole number"),
        ("seeds: 2", "seeds: 0", "Got seeds 0.*at least 1"),
        ("kind: few_anchors", "kind: few", "Got kind 'few'.*few_anchors"),
        (
            "kind: few_anchors",
            "kind: main",
            r"Got 'classes' in parameters of kind main in own\.yaml, line 12; expected one of fit",
        ),
        ("[text_cosine]", "[cosine]", "Got metrics 'cosine'.*text_cosine"),
        ("[text_cosine]", "text_cosine", "Got metrics: 'text_cosine'.*a list"),
        ("[sample]", "[imagenet]", "Got sample_data 'imagenet'.*sample, lvis, caltech101"),
        ("[2, 5]", "[1, 5]", r"Got 1 in classes in own\.yaml, line 12; expected at least 2"),
        ("[2, 5]", "[2.5]", "Got classes: 2.5.*a whole number"),
        ("name: own", "name: other", "Got name 'other'.*'own'"),
        ('title: "One of my own"\n', "", "without title"),
        ('claim: "none"', 'boast: "none"', r"Got 'boast' in paper in own\.yaml, line 14"),
        ('  claim: "none"\n', "", "without claim"),
        ('claim: "none"', "claim: [a, b]", "Got claim.*text"),
        ("numbers: null", "rules: [image_cosine > 0]", r"image_cosine > 0.*own\.yaml.*not among its metrics"),
        ("numbers: null", "rules: [text_cosine]", "not a comparison with >"),
        ("numbers: null", "rules: text_cosine > 0", "Got rules.*a list"),
        ("  classes: [2, 5]", "  fit_templates: all", "Got 'fit_templates'"),
        ("  classes: [2, 5]", "  evaluation_templates: one", "evaluation_templates 'one'.*all, single"),
        ("  classes: [2, 5]", "  means: middle", "Got means 'middle'.*seen, all"),
        ('section: "7"', "section: 7", "Got section: 7.*text"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(old, new, message):
    assert old in GOOD
    with pytest.raises(ParameterError, match=message):
        parse_config(GOOD.replace(old, new), "own")


@pytest.mark.parametrize("share", ["0", "1.5", "-1"])
def test_a_share_is_a_share(share):
    text = GOOD.replace("few_anchors", "main").replace("classes: [2, 5]", f"share: {share}")
    with pytest.raises(ParameterError, match="Got share"):
        parse_config(text, "own")


@pytest.mark.parametrize("text", ["a: [1", "- a\n- b", "just words", ""])
def test_what_is_no_configuration_is_said_to_be_none(text):
    with pytest.raises(CorruptFileError, match=r"own\.yaml"):
        parse_config(text, "own")


def test_tags_that_make_objects_are_refused():
    with pytest.raises(CorruptFileError, match="not YAML"):
        parse_config("name: !!python/object/apply:os.getcwd []", "own")


def test_an_unknown_name_lists_all():
    with pytest.raises(ParameterError, match=r"Got 'fig99'; expected one of fig1, fig2, .*table2"):
        load_config("fig99")


def test_a_configuration_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(GOOD)
    assert load_config(str(path)).title == "One of my own"
    with pytest.raises(FileError, match="Got no file"):
        load_config(str(tmp_path / "none.yaml"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptFileError, match="UTF-8"):
        load_config(str(path))
