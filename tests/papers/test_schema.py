"""The JSON Schema of an experiment's YAML: as strict as the parser, and the same as the text that ``--schema`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from congruence._utils.yaml import parse_yaml
from congruence.errors import ParameterError
from congruence_papers import STUDIES, config_names, describe_schema, experiment_schema, kind_named, parse_config
from congruence_papers.registry import kinds

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "configs"
SHIPPED = [
    *(study.configs / f"{name}.yaml" for study in STUDIES.values() for name in config_names(study.name)),
    *BENCHMARKS.glob("*.yaml"),
]
OWN = """
name: own
title: "One of my own"
section: "7"
kind: few_anchors
sample_data: [sample]
seeds: 2
metrics: [text_cosine]
parameters:
  classes: [2, 5]
paper:
  claim: "none"
"""


@pytest.fixture(scope="module")
def whole():
    schema = experiment_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_every_configuration_that_ships_is_valid(whole):
    assert len(SHIPPED) > 70
    by_kind = {kind: Draft202012Validator(experiment_schema(kind)) for kind in kinds()}
    for path in SHIPPED:
        data = parse_yaml(path.read_text(), path.name)
        for validator in (whole, by_kind[data["kind"]]):
            assert [error.message for error in validator.iter_errors(data)] == [], path.name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds: 2", "seed: 2"),
        ("seeds: 2", "seeds: two"),
        ("seeds: 2", "seeds: true"),
        ("seeds: 2", "seeds: 0"),
        ("kind: few_anchors", "kind: few"),
        ("kind: few_anchors", "kind: main"),
        ("[text_cosine]", "[cosine]"),
        ("[text_cosine]", "[mean_r1]"),
        ("[text_cosine]", "text_cosine"),
        ("[sample]", "[synthetic]"),
        ("classes: [2, 5]", "classes: [1, 5]"),
        ("classes: [2, 5]", "share: 0.5"),
        ("classes: [2, 5]", "means: middle"),
        ("classes: [2, 5]", "methods: [sail]"),
        ('title: "One of my own"\n', ""),
        ('claim: "none"', 'boast: "none"'),
        ('claim: "none"', "rules: text_cosine > 0"),
    ],
)
def test_what_the_parser_refuses_the_schema_refuses(whole, old, new):
    assert old in OWN
    text = OWN.replace(old, new)
    assert whole.is_valid(parse_yaml(OWN, "own"))
    with pytest.raises(ParameterError):
        parse_config(text, "own")
    assert not whole.is_valid(parse_yaml(text, "own"))


def test_every_parameter_is_explained():
    for kind, study in kinds().items():
        assert set(study.kinds[kind].parameters) <= set(study.meanings), kind
    for study in STUDIES.values():
        every = {key for kind in study.kinds.values() for key in kind.parameters}
        assert set(study.meanings) <= every, study.name


def test_the_text_names_every_key_its_choices_and_its_default():
    text = describe_schema("few_anchors")
    assert "    fit                   image or text, default image: modality" in text
    assert "    classes               list of whole number from 2, default 2, 3, 5, 10" in text
    assert "  seeds        whole number, default 3: number of draws" in text
    assert "parameters of statistics: none" in describe_schema()
    for kind, study in kinds().items():
        lines = describe_schema(kind).splitlines()
        for key in study.kinds[kind].parameters:
            assert any(line.startswith(f"    {key} ") for line in lines), (kind, key)


def test_a_kind_is_named_by_itself_an_experiment_or_a_file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert {kind_named(name) for name in ("few_anchors", "fig5", str(path))} == {"few_anchors"}
    with pytest.raises(ParameterError, match="Got 'fig99'"):
        kind_named("fig99")
    with pytest.raises(ParameterError, match="Got kind 'fig5'; expected one of main"):
        experiment_schema("fig5")


def test_the_command_prints_it_as_text_and_as_json(here):
    assert here("reproduce", "fig5", "--schema").out.strip() == describe_schema("few_anchors")
    assert json.loads(here("reproduce", "--schema", "--json").out) == experiment_schema()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--schema", "--html"), "--html"),
        (("fig5", "--schema", "--out", "folder"), "--out"),
        (("--list", "--png"), "--png"),
        (("--list", "--force"), "--force"),
    ],
)
def test_what_only_prints_takes_no_option_for_files(here, tmp_path, options, named):
    ended = here("reproduce", *options)
    assert ended.code == 2
    assert named in ended.err
    assert "alone, which prints and writes no files" in ended.err
    assert list(tmp_path.iterdir()) == []
