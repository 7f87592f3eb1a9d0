"""Plain data checked against a pydantic model: what it refuses, in our words, with the line of the file."""

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

__all__ = ["Where", "validate"]

#: What a value must be, by pydantic's name of the error.
_WORDS = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "dict_type": "a mapping",
}

#: An unknown key is said first, since a key that is missing or a parameter that is not one may be that, misspelled.
_FIRST = ("extra_forbidden", "invalid_key", "missing")


@dataclass(frozen=True)
class Where:
    """The place of entries, for messages.

    Attributes
    ----------
    name : str
        Of the file; empty for what came from Python or an option.
    text : str
        YAML in which lines are looked up; empty for entries without one.
    path : tuple of str and int
        From the document to the entries that are checked.
    group : str
        What these entries are, if not a whole document: "parameters of sail".
    replaced : set of tuple
        Entries of the file, by their paths, in whose place others were given.
    """

    name: str = ""
    text: str = ""
    path: tuple[str | int, ...] = ()
    group: str = ""
    replaced: frozenset[tuple[str | int, ...]] = frozenset()

    def below(self, *path: str | int, group: str = "") -> Where:
        """Return the place of what an entry holds."""
        return replace(self, path=(*self.path, *path), group=group)

    def at(self, *path: str | int) -> str:
        """Return ``"fig5.yaml, line 7"`` of an entry; empty where it is of no file."""
        full = (*self.path, *path)
        if any(full[:k] in self.replaced for k in range(1, len(full) + 1)):
            return ""
        line = find_line(self.text, full) if self.text else None
        return self.name if line is None else f"{self.name}, line {line}"


def validate(model: type[BaseModel], data: Mapping[str, object], where: Where) -> None:
    """Refuse data that a model refuses.

    A field's ``description`` says what it must be, and its first example what could be written.

    Parameters
    ----------
    model : type of pydantic.BaseModel
    data : mapping
    where : Where

    Raises
    ------
    ParameterError
        Names one entry, unknown keys first, its line, what it was and what it must be.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(data)
    except ValidationError as refused:
        errors = refused.errors(include_url=False)
    else:
        return
    ranked = sorted(errors, key=lambda error: _FIRST.index(error["type"]) if error["type"] in _FIRST else len(_FIRST))
    raise _explain(model, data, ranked, where)


def _explain(
    model: type[BaseModel], data: Mapping[str, object], errors: Sequence[ErrorDetails], where: Where
) -> ParameterError:
    """Return the first error in our words."""
    error = errors[0]
    key, *rest = error["loc"]
    place = where.at(*error["loc"])
    inside = f" in {place}" if place else ""
    group = f" in {where.group}" if where.group else ""
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = ", ".join(model.model_fields) or "none"
        return ParameterError(
            f"Got {_short(str(key))}{group}{inside}; expected one of {known}. Rename or remove this key."
        )
    if error["type"] == "missing":
        absent = ", ".join(str(one["loc"][0]) for one in errors if one["type"] == "missing")
        return ParameterError(f"Got {where.name or 'entries'} without {absent}; expected all of them. Add these keys.")
    field = model.model_fields[str(key)]
    if field.description is not None:
        value, example = _short(data[str(key)]), (field.examples or [None])[0]
        if not place:
            return ParameterError(
                f"Got {key}={value}; expected {field.description}. Pass {key}={example!r}, for example."
            )
        return ParameterError(
            f"Got {key} {value}{inside}; expected {field.description}. Write {key}: {example}, for example."
        )
    value = _short(error["input"])
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        got = f"{key} {value}{inside}" if place else f"{key}={value}"
        return ParameterError(f"Got {got}; expected one of {choices}. Take one of these.")
    if error["type"] == "greater_than_equal":
        got = f"{value} in {key}" if rest else f"{key} {value}"
        return ParameterError(f"Got {got}{inside}; expected at least {error['ctx']['ge']}. Write a larger number.")
    words = _WORDS.get(error["type"], error["msg"])
    return ParameterError(f"Got {key}: {value}{inside}; expected {words}. Write such a value.")


def _short(value: object) -> str:
    return short(repr(value), 80)
