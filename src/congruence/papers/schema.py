"""What an experiment's YAML may hold: as a JSON Schema, from the models that check it, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from congruence.errors import ParameterError
from congruence.papers.config import experiment_models, load_config
from congruence.papers.registry import kinds

__all__ = ["describe_schema", "experiment_schema", "kind_named"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_KEYS = {
    "name": "what the file is called, without .yaml",
    "title": "of the figure; each run appends the data it ran on",
    "section": "of the paper",
    "kind": "what is run",
    "models": "the paper's models, joined by /: two make a pair, three a chain",
    "data": "the paper's data sets",
    "sample_data": "what it runs on without the paper's weights; the first is the default of --models",
    "variant": "what the sample data must be like",
    "seeds": "number of draws",
    "metrics": "what is measured, in the order of the panels",
    "parameters": "of the kind",
    "paper": "what the paper says of the figure",
    "claim": "the paper's statement, in words",
    "numbers": "numbers that its text gives",
    "rules": "comparisons of measured means that decide whether the claim held, such as text_cosine(x=10) > 0.5",
}


def kind_named(name: str) -> str:
    """Return a kind of experiment by its own name, or by that of an experiment.

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
        Neither a kind nor an experiment; see :func:`congruence.papers.load_config`.
    FileError, CorruptFileError
        If a file cannot be read, or a file is damaged.
    """
    return name if name in kinds() else load_config(name).kind


def experiment_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an experiment's YAML.

    It is made of the pydantic models that ``congruence reproduce`` checks a file with. Two checks are not in it, since JSON Schema has no words for them: the key
    ``name`` must be the name of the file, and ``rules`` must follow their grammar and name metrics that the experiment measures.

    Parameters
    ----------
    kind : str, optional
        For experiments of this kind only; by default for all, where what ``sample_data``, ``metrics`` and ``parameters`` may hold depends on the value of ``kind``.

    Returns
    -------
    dict

    Raises
    ------
    ParameterError
        No such kind.

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
        named = [name for name in parameters if known[name] is study]
        if named:
            lists = {key: _list_of(getattr(study, key)) for key in ("sample_data", "metrics")}
            branches.append((named, lists))
        for name in named:
            own = _plain(parameters[name])
            _explain(own["properties"], study.meanings)
            branches.append(([name], {"parameters": {"anyOf": [own, {"type": "null"}]}}))
    if kind is None:
        schema["allOf"] = [
            {"if": {"properties": {"kind": {"enum": named}}, "required": ["kind"]}, "then": {"properties": entries}}
            for named, entries in branches
        ]
    else:
        for _, entries in branches:
            for key, entry in entries.items():
                schema["properties"][key] = {**_words_of(schema["properties"][key]), **entry}
    title = "An experiment of congruence reproduce" + (f", of kind {kind}" if kind else "")
    return {"$schema": _DIALECT, **schema, "title": title}


def _plain(model: Any) -> dict[str, Any]:
    """Return the schema of a model without titles made of its keys, and without defaults that stand for none."""
    schema: dict[str, Any] = model.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    for entry in schema["properties"].values():
        entry.pop("title", None)
        if entry.get("default") in (None, 0, "", [], {}) and entry.get("default") is not False:
            entry.pop("default", None)  # 0 and nothing say nothing: what suits the data is taken
    return schema


def _explain(entries: dict[str, Any], words: Mapping[str, str]) -> None:
    """Put what each key means into its schema, before what its type says."""
    for key, entry in entries.items():
        said = [text for text in (words.get(key), entry.get("description")) if text]
        if said:
            entry["description"] = ": ".join(said)


def _list_of(names: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": list(names)}}


def _words_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("description",) if key in entry}


def describe_schema(kind: str | None = None) -> str:
    """Return the schema of :func:`experiment_schema` as text: a line a key, with what it means, its type and its default.

    Parameters
    ----------
    kind : str, optional
        For experiments of this kind only.

    Returns
    -------
    str

    Raises
    ------
    ParameterError
        No such kind.

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
        named, entries = branch["if"]["properties"]["kind"]["enum"], branch["then"]["properties"]
        if "parameters" in entries:
            lines += _parameters(named[0], entries["parameters"])
        else:
            lines += ["", f"Kinds of {kinds()[named[0]].title}: {', '.join(named)}", *_table(entries)]
    return "\n".join(lines)


def _parameters(kind: str, entry: Mapping[str, Any]) -> list[str]:
    table = _table(entry["anyOf"][0]["properties"])
    return [f"parameters of {kind}{':' if table else ': none'}", *(f"  {line}" for line in table)]


def _table(entries: Mapping[str, Mapping[str, Any]], required: Any = ()) -> list[str]:
    width = max((len(key) for key in entries), default=0)
    return [f"  {key:{width}}  {'; '.join(_said(entry, key in required))}" for key, entry in entries.items()]


def _said(entry: Mapping[str, Any], required: bool) -> Iterator[str]:
    what = _type(entry)
    if required:
        what += ", required"
    elif "default" in entry:
        value = entry["default"]
        shown = (
            ", ".join(map(str, value))
            if isinstance(value, list)
            else str(value).lower()
            if value in (True, False)
            else value
        )
        what += f", default {shown}"
    yield f"{what}: {entry['description']}" if "description" in entry else what


def _type(entry: Mapping[str, Any]) -> str:
    if "const" in entry:
        return str(entry["const"])
    if "enum" in entry:
        *rest, last = map(str, entry["enum"])
        return f"{', '.join(rest)} or {last}" if rest else last
    if "anyOf" in entry:
        return " or ".join(_type(one) for one in entry["anyOf"])
    named = {
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
    return named.get(entry.get("type", ""), "anything")
