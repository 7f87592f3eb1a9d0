"""The schema of an experiment's YAML file, as a JSON Schema and as text, from the pydantic models that validate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from congruence.errors import ParameterError
from congruence_papers.config import experiment_models, load_config
from congruence_papers.registry import kinds

__all__ = ["describe_schema", "experiment_schema", "kind_named"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_KEYS = {
    "name": "name of the file, without .yaml",
    "title": "title of the figure; each run appends the data it ran on",
    "section": "section of the paper",
    "kind": "kind of experiment",
    "models": "the paper's models, joined by /: two are a pair, three a chain",
    "data": "the paper's data sets",
    "sample_data": "data to run on without the paper's weights; the first is the default of --models",
    "variant": "variant of the sample data that the experiment requires",
    "seeds": "number of draws",
    "metrics": "metrics to measure, in the order of the panels",
    "parameters": "parameters of the kind",
    "paper": "the paper's claim about the figure",
    "claim": "the paper's statement, in words",
    "numbers": "numbers printed in the paper",
    "rules": "comparisons of measured means that decide whether the claim held, such as text_cosine(x=10) > 0.5",
}


def kind_named(name: str) -> str:
    """Return a kind of experiment, given its own name or that of an experiment of this kind.

    Parameters
    ----------
    name : str
        ``"few_anchors"``, ``"fig5"``, or the path of a ``.yaml``.

    Returns
    -------
    str

    Raises
    ------
    ParameterError
        If the name is neither a kind nor an experiment; see :func:`congruence_papers.load_config`.
    FileError, CorruptFileError
        If the file cannot be read, or is not valid YAML.
    """
    return name if name in kinds() else load_config(name).kind


def experiment_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an experiment's YAML.

    It is generated from the pydantic models with which ``congruence reproduce`` validates a file. Two requirements are not included, because JSON Schema
    cannot express them: ``name`` must be the name of the file, and ``rules`` must follow their grammar and use metrics that the experiment measures.

    Parameters
    ----------
    kind : str, optional
        Return the schema for experiments of this kind only. By default it is that of all kinds, where the allowed values of ``sample_data``, ``metrics``
        and ``parameters`` depend on ``kind``.

    Returns
    -------
    dict

    Raises
    ------
    ParameterError
        If there is no such kind.

    Examples
    --------
    >>> experiment_schema("few_anchors")["properties"]["parameters"]["anyOf"][0]["properties"]["fit"]["enum"]
    ['image', 'text']
    """
    known = kinds()
    if kind is not None and kind not in known:
        raise ParameterError(f"Got kind {kind!r}; expected one of {', '.join(known)}. Pass one of these as kind=….")
    whole, paper, parameters = experiment_models(tuple(known) if kind is None else (kind,))
    schema = _plain(whole)
    schema["properties"]["paper"] = _plain(paper)
    _explain(schema["properties"], _KEYS)
    _explain(schema["properties"]["paper"]["properties"], _KEYS)
    branches = []
    for study in dict.fromkeys(known.values()):
        own_kinds = [name for name in parameters if known[name] is study]
        if own_kinds:
            lists = {key: _list_of(getattr(study, key)) for key in ("sample_data", "metrics")}
            branches.append((own_kinds, lists))
        for name in own_kinds:
            entry = _plain(parameters[name])
            _explain(entry["properties"], study.meanings)
            branches.append(([name], {"parameters": {"anyOf": [entry, {"type": "null"}]}}))
    if kind is None:
        schema["allOf"] = [
            {"if": {"properties": {"kind": {"enum": names}}, "required": ["kind"]}, "then": {"properties": entries}}
            for names, entries in branches
        ]
    else:
        for _, entries in branches:
            for key, entry in entries.items():
                schema["properties"][key] = {**_description(schema["properties"][key]), **entry}
    title = "An experiment of congruence reproduce" + (f", of kind {kind}" if kind else "")
    return {"$schema": _DIALECT, **schema, "title": title}


def _plain(model: Any) -> dict[str, Any]:
    """Return the schema of a model without titles generated from its keys, and without defaults that mean "no value"."""
    schema: dict[str, Any] = model.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    for entry in schema["properties"].values():
        entry.pop("title", None)
        if entry.get("default") in (None, 0, "", [], {}) and entry.get("default") is not False:
            entry.pop("default", None)  # 0 or empty means that the value is chosen for the data; see Job.size
    return schema


def _explain(entries: dict[str, Any], meanings: Mapping[str, str]) -> None:
    """Add the meaning of each key to its schema, before the description of its type."""
    for key, entry in entries.items():
        texts = [text for text in (meanings.get(key), entry.get("description")) if text]
        if texts:
            entry["description"] = ": ".join(texts)


def _list_of(names: Any) -> dict[str, Any]:
    """Return the schema of a list of some of the names."""
    return {"type": "array", "items": {"enum": list(names)}}


def _description(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an entry as a schema of its own."""
    return {key: entry[key] for key in ("description",) if key in entry}


def describe_schema(kind: str | None = None) -> str:
    """Return the schema of :func:`experiment_schema` as text: one line per key, with its type, default and meaning.

    Parameters
    ----------
    kind : str, optional
        Describe experiments of this kind only.

    Returns
    -------
    str

    Raises
    ------
    ParameterError
        If there is no such kind.

    Examples
    --------
    >>> print(describe_schema("cycle").splitlines()[-1])
        evaluation_templates  all or single, default all: prompts averaged into the class prototypes for evaluation: all templates, or the first
    """
    schema = experiment_schema(kind)
    properties = schema["properties"]
    lines = [f"{schema['title']}: a YAML file with these keys.", ""]
    required = schema["required"]
    lines += _table({key: entry for key, entry in properties.items() if key not in ("parameters", "paper")}, required)
    lines += ["paper, required:", *(f"  {line}" for line in _table(properties["paper"]["properties"]))]
    if kind is not None:
        return "\n".join([*lines, *_parameters(kind, properties["parameters"])])
    for branch in schema["allOf"]:
        names, entries = branch["if"]["properties"]["kind"]["enum"], branch["then"]["properties"]
        if "parameters" in entries:
            lines += _parameters(names[0], entries["parameters"])
        else:
            lines += ["", f"Kinds of {kinds()[names[0]].title}: {', '.join(names)}", *_table(entries)]
    return "\n".join(lines)


def _parameters(kind: str, entry: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe the parameters of a kind."""
    table = _table(entry["anyOf"][0]["properties"])
    return [f"parameters of {kind}{':' if table else ': none'}", *(f"  {line}" for line in table)]


def _table(entries: Mapping[str, Mapping[str, Any]], required: Sequence[str] = ()) -> list[str]:
    """Return one line per key: the key, padded, and its type, default and meaning."""
    width = max((len(key) for key in entries), default=0)
    return [f"  {key:{width}}  {_line(entry, key in required)}" for key, entry in entries.items()]


def _line(entry: Mapping[str, Any], required: bool) -> str:
    """Return the type, the default and the meaning of an entry."""
    text = _type(entry)
    if required:
        text += ", required"
    elif "default" in entry:
        text += f", default {_shown(entry['default'])}"
    return f"{text}: {entry['description']}" if "description" in entry else text


def _shown(value: object) -> str:
    """Return a default as it is written in YAML; a list without brackets."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if value in (True, False) else str(value)


def _type(entry: Mapping[str, Any]) -> str:
    """Return the type of an entry in words."""
    if "const" in entry:
        return str(entry["const"])
    if "enum" in entry:
        *first, last = map(str, entry["enum"])
        return f"{', '.join(first)} or {last}" if first else last
    if "anyOf" in entry:
        return " or ".join(_type(option) for option in entry["anyOf"])
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "object": "mapping",
        "null": "null",
    }
    if entry.get("type") == "integer" and entry.get("minimum", 1) > 1:
        return f"whole number from {entry['minimum']}"
    if entry.get("type") == "array":
        return f"list of {_type(entry.get('items', {}))}"
    return words.get(entry.get("type", ""), "anything")
