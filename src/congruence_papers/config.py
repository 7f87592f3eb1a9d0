"""Configurations of experiments: one YAML file per figure or table, validated before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from congruence._utils.schema import Where, validate
from congruence._utils.yaml import parse_yaml, read_yaml
from congruence.errors import CorruptFileError, ParameterError
from congruence_papers.claims import parse_rule
from congruence_papers.job import Config
from congruence_papers.registry import STUDIES, kinds
from congruence_papers.study import Study

__all__ = ["config_names", "experiment_models", "load_config", "parse_config", "sort_key", "with_parameters"]


def parse_config(text: str, name: str) -> Config:
    """Parse and validate the configuration of one experiment.

    Parameters
    ----------
    text : str
        Contents of the YAML file.
    name : str
        File name without its extension; the ``name`` in the file must be the same.

    Returns
    -------
    Config
        Configuration with all parameters of its kind, given or default.

    Raises
    ------
    CorruptFileError
        If the text is not valid YAML (:func:`congruence._utils.yaml.parse_yaml`), or not a mapping.
    ParameterError
        If a key is unknown or missing, a value has the wrong type, a choice is unknown, the name is not that of the file, or a rule is invalid.
    """
    where = Where(f"{name}.yaml", text)
    data = deepcopy(_parsed(text, where.name))
    if not isinstance(data, dict):
        raise CorruptFileError(
            f"Got {where.name} without keys; expected key: value lines. Write at least the name and the kind."
        )
    kind, studies = data.get("kind"), kinds()
    study = studies.get(kind) if isinstance(kind, str) else None
    names = (tuple(study.sample_data), tuple(study.metrics)) if study else None
    validate(_experiment(tuple(studies), names), data, where)
    assert study is not None  # validation fails for an unknown kind
    if data["name"] != name:
        raise ParameterError(
            f"Got name {data['name']!r} in {where.at('name')}; expected {name!r}, the name of the file. Rename the file, or change the key name."
        )
    validate(_Paper, data["paper"], where.below("paper", group="paper"))
    for k, rule in enumerate(data["paper"].get("rules") or []):
        # The line number of a rule is looked up only for an error message, since this takes longer than parsing the file.
        parse_rule(rule, partial(where.at, "paper", "rules", k), data.get("metrics", []))
    parameters = data.get("parameters") or {}
    location = where.below("parameters", group=f"parameters of kind {kind}")
    validate(_schema(study, data["kind"]), parameters, location)
    return Config(**{**data, "parameters": {**study.kinds[data["kind"]].parameters, **parameters}})


@lru_cache(maxsize=256)  # holds the files of all papers, which every listing reads
def _parsed(text: str, where: str) -> object:
    """Parse a configuration into plain data; cached, since parsing takes ten times as long as copying the result."""
    return parse_yaml(text, where)


_STRICT = ConfigDict(extra="forbid", strict=True)


class _Paper(BaseModel):
    """The ``paper`` entry of a configuration: the paper's claim about the figure."""

    model_config = _STRICT
    claim: str
    numbers: object = None
    rules: list[str] | None = None


@cache
def _experiment(known: tuple[str, ...], names: tuple[tuple[str, ...], tuple[str, ...]] | None) -> type[BaseModel]:
    """Return the schema of an experiment of one of the ``known`` kinds; ``names`` are the study's sample data and metrics, None if the study is unknown."""
    sample_data, metrics = (_among(choices) for choices in names) if names else (str, str)
    entries: dict[str, Any] = {
        "name": (str, ...),
        "title": (str, ...),
        "section": (str, ...),
        "kind": (_among(known), ...),
        "models": (list[str], []),
        "data": (list[str], []),
        "sample_data": (list[sample_data], []),  # type: ignore[valid-type]
        "variant": (str | None, None),
        "seeds": (Annotated[int, Field(ge=1)], 3),
        "metrics": (list[metrics], []),  # type: ignore[valid-type]
        "parameters": (dict | None, None),
        "paper": (dict, ...),
    }
    return create_model("experiment", __config__=_STRICT, **entries)


def experiment_models(
    named: tuple[str, ...],
) -> tuple[type[BaseModel], type[BaseModel], dict[str, type[BaseModel]]]:
    """Return the pydantic models that validate experiments of some kinds.

    Parameters
    ----------
    named : tuple of str
        Kinds of experiments.

    Returns
    -------
    type of BaseModel
        Model of the experiment as a whole, for all studies.
    type of BaseModel
        Model of its ``paper`` entry.
    dict of str to type of BaseModel
        Models of the parameters, by kind.
    """
    studies = kinds()
    return _experiment(named, None), _Paper, {kind: _schema(studies[kind], kind) for kind in named}


@cache
def _schema(study: Study[Any], kind: str) -> type[BaseModel]:
    """Return the schema of a kind's parameters."""
    defaults = study.kinds[kind].parameters
    entries: dict[str, Any] = {key: (_type(study, key, value), value) for key, value in defaults.items()}
    return create_model(kind, __config__=_STRICT, **entries)


def _type(study: Study[Any], key: str, default: object) -> Any:
    """Return the type of a parameter: as declared by the study, or else that of its default. Integers must be at least 1, in lists at least 2."""
    if key in study.types:
        return study.types[key]
    choices = study.baselines if key == "methods" else study.choices.get(key)
    if choices is not None:
        return list[_among(choices)] if isinstance(default, list) else _among(choices)  # type: ignore[misc]
    if isinstance(default, list):
        return list[Annotated[int, Field(ge=2)]]
    return Annotated[int, Field(ge=1)] if type(default) is int else type(default)


def _among(choices: Iterable[str]) -> Any:
    """Return the type of a string that must be one of the choices."""
    return Literal[tuple(choices)]


def config_names(paper: str | None = None) -> tuple[str, ...]:
    """Return the names of all experiments, by paper; for each paper the figures in order, then the tables.

    Parameters
    ----------
    paper : str, optional
        A key of :data:`congruence_papers.STUDIES`; all papers by default.

    Returns
    -------
    tuple of str
    """
    return tuple(name for study in STUDIES.values() if paper in (None, study.name) for name in _names(study.configs))


@cache
def _names(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the configurations in a folder."""
    return tuple(sorted((path.stem for path in folder.glob("*.yaml")), key=sort_key))


def sort_key(name: str) -> tuple[str, str, int]:
    """Return the sort key of an experiment's name: prefix, figure or table, number."""
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
        If the name is unknown (the message lists all names), or the file is not a valid configuration.
    FileError, CorruptFileError
        If the file cannot be read, or is not valid YAML.

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
    if captions:  # a path in the file is relative to the folder of the file
        config = replace(config, parameters={**config.parameters, "captions": str(path.parent / captions)})
    return config


def with_parameters(config: Config, **parameters: Any) -> Config:
    """Return a configuration with some of its parameters replaced; parameters that are None stay unchanged.

    Raises
    ------
    ParameterError
        If its kind has no such parameter, or the value is invalid.
    """
    parameters = {key: value for key, value in parameters.items() if value is not None}
    for key in parameters:
        if key not in config.parameters:
            raise ParameterError(
                f"Got {key}=… for {config.name}, a figure of kind {config.kind}; expected {', '.join(config.parameters) or 'no parameters'}. "
                f"Leave out {key}=…."
            )
    validate(_schema(kinds()[config.kind], config.kind), parameters, Where(config.name))
    return replace(config, parameters={**config.parameters, **parameters})
