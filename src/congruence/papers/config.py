"""Experiments as written down: one YAML file a figure or table, checked before anything runs."""

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
from congruence.papers.claims import parse_rule
from congruence.papers.job import Config
from congruence.papers.registry import STUDIES, kinds
from congruence.papers.study import Study

__all__ = ["config_names", "experiment_models", "load_config", "parse_config", "place", "with_parameters"]


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
    assert study is not None  # else its kind was refused
    if data["name"] != name:
        raise ParameterError(
            f"Got name {data['name']!r} in {where.at('name')}; expected {name!r}, as the file is called. Rename the file or change the key name."
        )
    validate(_Paper, data["paper"], where.below("paper", group="paper"))
    for k, rule in enumerate(data["paper"].get("rules") or []):
        # The line of a rule is looked up for a message only: that takes longer than to parse the file.
        parse_rule(rule, partial(where.at, "paper", "rules", k), data.get("metrics", []))
    given = data.get("parameters") or {}
    inside = where.below("parameters", group=f"parameters of kind {kind}")
    validate(_schema(study, data["kind"]), given, inside)
    return Config(**{**data, "parameters": {**study.kinds[data["kind"]].parameters, **given}})


@lru_cache(maxsize=256)  # all of the papers' files, which a listing reads whole each time
def _parsed(text: str, where: str) -> object:
    """Return the plain data of a configuration; parsing takes ten times as long as copying what was parsed."""
    return parse_yaml(text, where)


_STRICT = ConfigDict(extra="forbid", strict=True)


class _Paper(BaseModel):
    """What the paper says of a figure."""

    model_config = _STRICT
    claim: str
    numbers: object = None
    rules: list[str] | None = None


@cache
def _experiment(known: tuple[str, ...], names: tuple[tuple[str, ...], tuple[str, ...]] | None) -> type[BaseModel]:
    """Return the schema of the experiments of a study with this sample data and these metrics, or of one whose kind is not ``known``."""
    sample_data, metrics = (_among(some) for some in names) if names else (str, str)
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
    """Return the models that experiments of some kinds are checked with.

    Parameters
    ----------
    named : tuple of str
        Kinds.

    Returns
    -------
    type of BaseModel
        Of the whole experiment, whatever its study.
    type of BaseModel
        Of what it says of the paper.
    dict of str to type of BaseModel
        Of the parameters of each kind.
    """
    studies = kinds()
    return _experiment(named, None), _Paper, {kind: _schema(studies[kind], kind) for kind in named}


@cache
def _schema(study: Study[Any], kind: str) -> type[BaseModel]:
    """Return the schema of a kind's parameters; a study is the same for as long as it is registered."""
    defaults = study.kinds[kind].parameters
    entries: dict[str, Any] = {key: (_type(study, key, value), value) for key, value in defaults.items()}
    return create_model(kind, __config__=_STRICT, **entries)


def _type(study: Study[Any], key: str, default: object) -> Any:
    """Return the type of a parameter: what the study says of it, or that of its default; counts are positive, and 2 or more in lists."""
    if key in study.types:
        return study.types[key]
    choices = study.baselines if key == "methods" else study.choices.get(key)
    if choices is not None:
        return list[_among(choices)] if isinstance(default, list) else _among(choices)  # type: ignore[misc]
    if isinstance(default, list):
        return list[Annotated[int, Field(ge=2)]]
    return Annotated[int, Field(ge=1)] if type(default) is int else type(default)


def _among(choices: Iterable[str]) -> Any:
    return Literal[tuple(choices)]


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
        If a file cannot be read, or a file is damaged.

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
    validate(_schema(kinds()[config.kind], config.kind), given, Where(config.name))
    return replace(config, parameters={**config.parameters, **given})
