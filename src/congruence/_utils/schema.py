"""Validation of plain data against a pydantic model, with this library's error messages and the line in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from congruence._utils.display import short
from congruence._utils.yaml import find_line
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails


#: The expected type of a value, by pydantic's error type.
_WORDS = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "dict_type": "a mapping",
}

#: Error types to report first. Unknown keys come before missing ones, since a missing key may be an unknown one,
#: misspelled.
_FIRST = ("extra_forbidden", "invalid_key", "missing")


@dataclass(frozen=True)
class Where:
    """The location of entries, for error messages.

    ``name``: name of the file; empty for entries from Python or a command-line option; ``text``: YAML text in which
    lines are looked up; empty if there is none; ``path``: path from the document to the entries; ``group``: name of
    these entries if they are not a whole document, for example "parameters of sail"; ``replaced``: paths of entries of
    the file that were overridden by other values.
    """

    name: str = ""
    text: str = ""
    path: tuple[str | int, ...] = ()
    group: str = ""
    replaced: frozenset[tuple[str | int, ...]] = frozenset()

    def below(self, *path: str | int, group: str = "") -> Where:
        """Return the location of the entries inside an entry."""
        return replace(self, path=(*self.path, *path), group=group)

    def at(self, *path: str | int) -> str:
        """Return the file and line of an entry, as ``"fig5.yaml, line 7"``; empty if the entry is not from a file."""
        full = (*self.path, *path)
        if any(full[:k] in self.replaced for k in range(1, len(full) + 1)):
            return ""
        line = find_line(self.text, full) if self.text else None
        return self.name if line is None else f"{self.name}, line {line}"


def validate(model: type[BaseModel], data: Mapping[str, object], where: Where) -> None:
    """Check that data satisfy a pydantic model.

    Messages take the expected value from a field's ``description``, and a valid value from its first example.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(data)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    else:
        return
    ranked = sorted(errors, key=lambda error: _FIRST.index(error["type"]) if error["type"] in _FIRST else len(_FIRST))
    raise _explain(model, data, ranked, where)


def _explain(
    model: type[BaseModel], data: Mapping[str, object], errors: Sequence[ErrorDetails], where: Where
) -> ParameterError:
    """Return the first error with this library's message."""
    error = errors[0]
    key, *subpath = error["loc"]
    place = where.at(*error["loc"])
    location = f" in {place}" if place else ""
    group = f" in {where.group}" if where.group else ""
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = ", ".join(model.model_fields) or "none"
        return ParameterError(
            f"Got {_short(str(key))}{group}{location}; expected one of {known}.", "Rename or remove this key."
        )
    if error["type"] == "missing":
        absent = ", ".join(str(other["loc"][0]) for other in errors if other["type"] == "missing")
        return ParameterError(
            f"Got {where.name or 'entries'} without {absent}; expected all of them.", "Add these keys."
        )
    field = model.model_fields[str(key)]
    if field.description is not None:
        value, example = _short(data[str(key)]), (field.examples or [None])[0]
        if not place:
            return ParameterError(
                f"Got {key}={value}; expected {field.description}.", f"Pass {key}={example!r}, for example."
            )
        return ParameterError(
            f"Got {key} {value}{location}; expected {field.description}.", f"Write {key}: {example}, for example."
        )
    value = _short(error["input"])
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        got = f"{key} {value}{location}" if place else f"{key}={value}"
        return ParameterError(f"Got {got}; expected one of {choices}.", "Choose one of these.")
    if error["type"] == "greater_than_equal":
        got = f"{value} in {key}" if subpath else f"{key} {value}"
        return ParameterError(f"Got {got}{location}; expected at least {error['ctx']['ge']}.", "Write a larger number.")
    words = _WORDS.get(error["type"], error["msg"])
    return ParameterError(f"Got {key}: {value}{location}; expected {words}.", "Write such a value.")


def _short(value: object) -> str:
    return short(repr(value), 80)
