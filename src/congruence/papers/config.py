"""Experiments as written down: one YAML file a figure or table, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from congruence._utils.yaml import parse_yaml, read_yaml
from congruence.errors import CorruptFileError, ParameterError
from congruence.papers.checks import check_chosen, check_keys, check_type
from congruence.papers.claims import parse_rule
from congruence.papers.job import Config
from congruence.papers.registry import STUDIES, kinds
from congruence.papers.study import Study

__all__ = ["config_names", "load_config", "parse_config", "place", "with_parameters"]


def parse_config(text: str, name: str) -> Config:
    """Read and check one experiment.

    Parameters
    ----------
    text : str
        YAML.
    name : str
        Of the file without its ending; the ``name`` inside must agree.

    Returns
    -------
    Config
        With every parameter of its kind filled in.

    Raises
    ------
    CorruptFileError
        Not YAML as :func:`congruence._utils.yaml.parse_yaml` takes it, or not a mapping.
    ParameterError
        An unknown or missing key, a wrong type, an unknown choice.
    """
    data = parse_yaml(text, f"{name}.yaml")
    if not isinstance(data, dict):
        raise CorruptFileError(
            f"Got {name}.yaml without keys; expected key: value lines. Write at least the name and the kind."
        )
    where = f"{name}.yaml"
    check_keys(where, data, [each.name for each in fields(Config)])
    missing = [key for key in ("name", "title", "section", "kind", "paper") if key not in data]
    if missing:
        raise ParameterError(f"Got {where} without {', '.join(missing)}; expected all of them. Add these keys.")
    for key in ("name", "title", "section", "kind"):
        check_type(where, key, data[key], str)
    if data["name"] != name:
        raise ParameterError(
            f"Got name {data['name']!r} in {where}; expected {name!r}, as the file is called. Rename the file or change the key name."
        )
    studies = kinds()
    check_chosen(where, "kind", [data["kind"]], studies)
    study = studies[data["kind"]]
    for key in ("models", "data", "sample_data", "metrics"):
        check_type(where, key, data.get(key, []), list)
        for value in data.get(key, []):
            check_type(where, key, value, str)
    check_chosen(where, "sample_data", data.get("sample_data", []), study.sample_data)
    check_chosen(where, "metrics", data.get("metrics", []), study.metrics)
    if data.get("variant") is not None:
        check_type(where, "variant", data["variant"], str)
    check_type(where, "seeds", data.get("seeds", 3), int)
    if data.get("seeds", 3) < 1:
        raise ParameterError(f"Got seeds {data['seeds']} in {where}; expected at least 1. Write a larger number.")
    check_type(where, "paper", data["paper"], dict)
    check_keys(f"paper of {where}", data["paper"], ("claim", "numbers", "rules"))
    rules = data["paper"].get("rules")
    rules = [] if rules is None else rules
    check_type(where, "rules", rules, list)
    for rule in rules:
        check_type(where, "rules", rule, str)
        parse_rule(rule, where, data.get("metrics", []))
    parameters = {} if data.get("parameters") is None else data["parameters"]
    check_type(where, "parameters", parameters, dict)
    return Config(**{**data, "parameters": _parameters(where, study, data["kind"], parameters)})


def _parameters(where: str, study: Study[Any], kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults = study.kinds[kind].parameters
    check_keys(f"parameters of {where} (kind {kind})", given, defaults)
    for key, value in given.items():
        check_type(where, key, value, type(defaults[key]))
        choices = study.baselines if key == "methods" else study.choices.get(key)
        if choices is not None:
            check_chosen(where, key, value if isinstance(value, list) else [value], choices)
        elif key in study.checks:
            study.checks[key](where, value)
        elif isinstance(value, list):
            for n in value:
                check_type(where, key, n, int)
                if n < 2:
                    raise ParameterError(f"Got {n} in {key} in {where}; expected at least 2. Write a larger number.")
        elif type(value) is int and value < 1:
            raise ParameterError(f"Got {key} {value} in {where}; expected at least 1. Write a larger number.")
    return {**defaults, **given}


def config_names(paper: str | None = None) -> tuple[str, ...]:
    """Return the name of every experiment, paper by paper; figures in the paper's order, then tables.

    Parameters
    ----------
    paper : str, optional
        A key of :data:`congruence.papers.STUDIES`; all papers by default.

    Returns
    -------
    tuple of str
    """
    return tuple(name for study in STUDIES.values() if paper in (None, study.name) for name in _names(study.configs))


@cache
def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted((path.stem for path in folder.glob("*.yaml")), key=place))


def place(name: str) -> tuple[str, str, int]:
    """Return what the names of a paper are sorted by: their beginning, figure or table, number."""
    prefix, kind, number = re.match(r"(?:([a-z]+)-)?([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr]
    return prefix or "", kind, int(number or 0)


def load_config(name: str) -> Config:
    """Load an experiment of a paper by name, or one of your own by path.

    Parameters
    ----------
    name : str
        ``"fig5"``, or a path that ends in ``.yaml``.

    Returns
    -------
    Config

    Raises
    ------
    ParameterError
        The name is unknown (the message lists all), or the file does not say what it must.
    FileError, CorruptFileError

    Examples
    --------
    >>> load_config("fig5").kind
    'few_anchors'
    """
    if name.endswith(".yaml"):
        path = Path(name)
    elif folders := [study.configs for study in STUDIES.values() if name in _names(study.configs)]:
        path = folders[0] / f"{name}.yaml"
    else:
        raise ParameterError(
            f"Got {name!r}; expected one of {', '.join(config_names())}. Pass one of these, or the path of a .yaml."
        )
    config = parse_config(read_yaml(path, "an experiment"), path.stem)
    captions = config.parameters.get("captions")
    if captions:  # a path in a file is meant from where the file lies
        config = replace(config, parameters={**config.parameters, "captions": str(path.parent / captions)})
    return config


def with_parameters(config: Config, **given: Any) -> Config:
    """Return a configuration with some of its parameters replaced; None leaves one as it is.

    Raises
    ------
    ParameterError
        Its kind has no such parameter, or the value is none of the choices.
    """
    given = {key: value for key, value in given.items() if value is not None}
    for key in given:
        if key not in config.parameters:
            raise ParameterError(
                f"Got {key}=… for {config.name}, a figure of kind {config.kind}; expected {', '.join(config.parameters) or 'no parameters'}. "
                f"Leave out {key}=…."
            )
    checked = _parameters(config.name, kinds()[config.kind], config.kind, given)
    return replace(config, parameters={**config.parameters, **{key: checked[key] for key in given}})
