"""Experiments as written down: one YAML file a figure or table, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from congruence._yaml import parse_yaml, read_yaml
from congruence.errors import CorruptFileError, ParameterError
from congruence.experiments.alignment import ALIGNMENT_METRICS
from congruence.experiments.claims import parse_rule
from congruence.experiments.contenders import CONTENDERS
from congruence.experiments.joint import JOINT_METHODS, JOINT_METRICS, TASKS
from congruence.experiments.joint_data import JOINT
from congruence.experiments.measure import METHODS, METRICS
from congruence.experiments.unimodal import UNIMODAL

#: Where the files lie.
CONFIGS = Path(__file__).parent / "configs"

#: What an experiment can be run on without the paper's models: dual encoders, then unimodal ones for semi-supervised alignment and for JAM.
STAND_INS = ("sample", "lvis", "caltech101")
ALIGNMENT_STAND_INS = UNIMODAL
JOINT_STAND_INS = JOINT

#: Sizes of the semi-supervised kinds; 0 or nothing leaves them to the data.
_SIZES: dict[str, Any] = {"unpaired": 0, "validation": 0, "test": 0, "training": {}, "tune": True}

#: Of JAM's kinds; 0 or nothing leaves them to the data.
_PARTS: dict[str, Any] = {"tasks": list(TASKS), "train": 0, "validation": 0, "test": 0, "training": {}}

#: What class prototypes are made of when texts are measured: all templates (eq. 6), or the first alone, as the caption of table 2 says.
_EVALUATED: dict[str, Any] = {"evaluation_templates": "all"}

#: Parameters of each kind, with the type each must have and what it is when left out.
PARAMETERS: dict[str, dict[str, Any]] = {
    "main": {"fit": "image", "methods": ["orthogonal"], "share": 0.8, "fit_templates": "all", **_EVALUATED},
    "few_anchors": {
        "fit": "image",
        "methods": ["orthogonal"],
        "classes": [2, 3, 5, 10, 15, 20, 30, 50],
        "means": "seen",
        **_EVALUATED,
    },
    "transfer": {"share": 0.8, "means": ["evaluated", "fitted"], **_EVALUATED},
    "cycle": {"fit": "image", "share": 0.95, **_EVALUATED},
    "composition": {"fit": "image", "share": 0.95, **_EVALUATED},
    "gap": {"steps": 11, "points": 60, **_EVALUATED},
    "kernels": {"points": 400, **_EVALUATED},
    "clouds": {"points": 60, "share": 0.8, **_EVALUATED},
    "commuting": {"examples": 3, "share": 0.8},
    "edits": {"examples": 4, "share": 0.8, "swaps": 500, "captions": "", "edits": {}},
    "statistics": {},
    "templates": {},
    "align_methods": {"methods": ["sotalign", "sail"], "pairs": [], **_SIZES},
    "align_teachers": {
        "teachers": ["procrustes", "cca", "contrastive"],
        "divergences": ["none", "cka", "infonce", "klot"],
        "pairs": 0,
        **_SIZES,
    },
    "align_sweep": {
        "methods": ["sotalign", "sail"],
        "over": ["pairs", "unpaired"],
        "pairs": 0,
        "pairs_sweep": [],
        "unpaired_sweep": [],
        **_SIZES,
    },
    "align_unpaired_sources": {"vary": "both", "scatter": False, "pairs": 0, **_SIZES},
    "align_source_distances": {},
    "align_paired_sources": {"methods": ["sail", "sotalign"], "scatter": False, "pairs": 0, **_SIZES},
    "align_encoders": {"methods": ["sail", "sotalign"], "scatter": False, "pairs": 0, **_SIZES},
    "joint_losses": {"methods": ["con", "negcon", "spread", "cca"], "baselines": [], **_PARTS},
    "joint_layers": {"alpha": [0.0, 1.0], **_PARTS},
    "joint_statistics": {"tasks": list(TASKS), "rows": 1000},
    "joint_sizes": {"widths": {}},
}

#: What the kinds are about, by the beginning of their names: dual encoders but for these.
_FAMILIES = {"align": "alignment", "joint": "joint"}

_CHOICES = {
    "fit": ("image", "text"),
    "methods": (),  # those of the family
    "means": ("seen", "all", "evaluated", "fitted"),
    "fit_templates": ("all", "single"),
    "evaluation_templates": ("all", "single"),
    "teachers": ("procrustes", "cca", "contrastive"),
    "divergences": ("none", "cka", "infonce", "klot"),
    "over": ("pairs", "unpaired"),
    "vary": ("both", "images", "texts"),
    "tasks": TASKS,
}

#: By family: methods, metrics and stand-ins to choose among.
_BY_FAMILY: dict[str, tuple[tuple[str, ...], ...]] = {
    "dual": (tuple(METHODS), tuple(METRICS), STAND_INS),
    "alignment": (tuple(CONTENDERS), tuple(ALIGNMENT_METRICS), ALIGNMENT_STAND_INS),
    "joint": (tuple(JOINT_METHODS), tuple(JOINT_METRICS), JOINT_STAND_INS),
}


def family_of(kind: str) -> str:
    """Return what a kind is about: ``"dual"``, ``"alignment"`` or ``"joint"``."""
    return _FAMILIES.get(kind.partition("_")[0], "dual")


@dataclass(frozen=True)
class Config:
    """One figure or table of a paper.

    Attributes
    ----------
    name : str
        ``"fig5"``, ``"table1"``; those of other papers than the Canonical one bear its name, ``"jam-table2"``.
    title : str
        What is shown. The data and models it is shown on are put behind it by each run.
    section : str
        Of the paper.
    kind : str
        A key of :data:`congruence.experiments.KINDS`.
    models : list of str
        The paper's models, joined by ``/``: two make a pair, three a chain.
    data : list of str
        The paper's data sets.
    stand_ins : list of str
        What it can be run on without the paper's weights, see :data:`STAND_INS`, :data:`ALIGNMENT_STAND_INS` and :data:`JOINT_STAND_INS`.
    variant : str or None
        What a stand-in must be like, see :func:`congruence.experiments.open_stand_in`, :func:`congruence.experiments.open_unimodal` and
        :func:`congruence.experiments.open_joint`.
    seeds : int
        Number of draws of anchors or classes.
    metrics : list of str
        Keys of :data:`congruence.experiments.METRICS`, in the order of the figure's panels.
    parameters : dict
        Of the kind.
    paper : dict
        ``claim``: what the paper says of the figure. ``numbers``: numbers its text gives; null where they can only
        be read off a plot. ``rules``: when the claim holds, see :mod:`congruence.experiments.claims`.
    """

    name: str
    title: str
    section: str
    kind: str
    models: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    variant: str | None = None
    seeds: int = 3
    metrics: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """What it is about: ``"dual"`` encoders, semi-supervised ``"alignment"`` of unimodal ones, or JAM's ``"joint"`` spaces."""
        return family_of(self.kind)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


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
        Not YAML as :func:`congruence._yaml.parse_yaml` takes it, or not a mapping.
    ParameterError
        An unknown or missing key, a wrong type, an unknown choice.
    """
    data = parse_yaml(text, f"{name}.yaml")
    if not isinstance(data, dict):
        raise CorruptFileError(
            f"Got {name}.yaml without keys; expected key: value lines. Write at least the name and the kind."
        )
    known = Config.__dataclass_fields__
    where = f"{name}.yaml"
    _keys(where, data, known)
    missing = [key for key in ("name", "title", "section", "kind", "paper") if key not in data]
    if missing:
        raise ParameterError(f"Got {where} without {', '.join(missing)}; expected all of them. Add these keys.")
    for key in ("name", "title", "section", "kind"):
        _typed(where, key, data[key], str)
    if data["name"] != name:
        raise ParameterError(
            f"Got name {data['name']!r} in {where}; expected {name!r}, as the file is called. Rename the file or change the key name."
        )
    _chosen(where, "kind", [data["kind"]], PARAMETERS)
    for key in ("models", "data", "stand_ins", "metrics"):
        _typed(where, key, data.get(key, []), list)
        for value in data.get(key, []):
            _typed(where, key, value, str)
    _, metrics, stand_ins = _BY_FAMILY[family_of(data["kind"])]
    _chosen(where, "stand_ins", data.get("stand_ins", []), stand_ins)
    _chosen(where, "metrics", data.get("metrics", []), metrics)
    if data.get("variant") is not None:
        _typed(where, "variant", data["variant"], str)
    _typed(where, "seeds", data.get("seeds", 3), int)
    if data.get("seeds", 3) < 1:
        raise ParameterError(f"Got seeds {data['seeds']} in {where}; expected at least 1. Write a larger number.")
    _typed(where, "paper", data["paper"], dict)
    _keys(f"paper of {where}", data["paper"], ("claim", "numbers", "rules"))
    rules = data["paper"].get("rules")
    rules = [] if rules is None else rules
    _typed(where, "rules", rules, list)
    for rule in rules:
        _typed(where, "rules", rule, str)
        parse_rule(rule, where, data.get("metrics", []))
    parameters = {} if data.get("parameters") is None else data["parameters"]
    _typed(where, "parameters", parameters, dict)
    return Config(**{**data, "parameters": _parameters(where, data["kind"], parameters)})


def _parameters(where: str, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults = PARAMETERS[kind]
    _keys(f"parameters of {where} (kind {kind})", given, defaults)
    for key, value in given.items():
        _typed(where, key, value, type(defaults[key]))
        if key in _CHOICES:
            choices = _BY_FAMILY[family_of(kind)][0] if key == "methods" else _CHOICES[key]
            _chosen(where, key, value if isinstance(value, list) else [value], choices)
        elif key == "alpha":
            if len(value) != 2 or not all(type(end) in (int, float) and 0 <= end <= 1 for end in value):
                raise ParameterError(
                    f"Got alpha {value} in {where}; expected two numbers from 0 to 1. Write alpha: [0.5, 0.5], for example."
                )
        elif key == "baselines":
            for name in value:
                _typed(where, key, name, str)
        elif key == "edits":
            for name in (*value, *value.values()):
                _typed(where, key, name, str)
        elif isinstance(value, list) and key != "classes":
            for n in value:
                _typed(where, key, n, int)
                if n < 2:
                    raise ParameterError(f"Got {n} in {key} in {where}; expected at least 2. Write a larger number.")
        elif key == "classes":
            for n in value:
                _typed(where, key, n, int)
                if n < 2:
                    raise ParameterError(f"Got {n} classes in {where}; expected at least 2. Write a larger number.")
        elif key == "share" and not 0 < value <= 1:
            raise ParameterError(
                f"Got share {value} in {where}; expected a share above 0 and up to 1. Write 0.5, for example."
            )
        elif type(value) is int and value < 1:
            raise ParameterError(f"Got {key} {value} in {where}; expected at least 1. Write a larger number.")
    return {**defaults, **given}


def _keys(where: str, data: Mapping[str, Any], known: Any) -> None:
    strange = [str(key) for key in data if key not in known]
    if strange:
        raise ParameterError(
            f"Got {strange[0]!r} in {where}; expected one of {', '.join(known) or 'none'}. Rename or remove this key."
        )


def _typed(where: str, key: str, value: Any, kind: type) -> None:
    if kind is float and type(value) is int:
        return
    if type(value) is not kind:
        names = {
            str: "text",
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            list: "a list",
            dict: "a mapping",
        }
        raise ParameterError(f"Got {key}: {value!r} in {where}; expected {names[kind]}. Write such a value.")


def _chosen(where: str, key: str, values: Any, choices: Any) -> None:
    for value in values:
        if value not in choices:
            raise ParameterError(
                f"Got {key} {value!r} in {where}; expected one of {', '.join(map(str, choices))}. Write one of these."
            )


@cache
def config_names(work: str | None = None) -> tuple[str, ...]:
    """Return the name of every experiment: the Canonical paper's, then JAM's and SOTAlign's; figures in the paper's order, then tables.

    Parameters
    ----------
    work : {"canonical", "jam", "sotalign"}, optional
        Those of one paper; all by default.

    Returns
    -------
    tuple of str
    """
    names = sorted((path.stem for path in CONFIGS.glob("*.yaml")), key=place)
    return tuple(name for name in names if work in (None, place(name)[0] or "canonical"))


def place(name: str) -> tuple[str, str, int]:
    """Return what names are sorted by: paper, figure or table, number."""
    work, kind, number = re.match(r"(?:([a-z]+)-)?([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr]
    return work or "", kind, int(number or 0)


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
    elif name in config_names():
        path = CONFIGS / f"{name}.yaml"
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
    checked = _parameters(config.name, config.kind, given)
    return replace(config, parameters={**config.parameters, **{key: checked[key] for key in given}})


def all_configs() -> Iterator[Config]:
    """Load every experiment of the papers."""
    for name in config_names():
        yield load_config(name)
