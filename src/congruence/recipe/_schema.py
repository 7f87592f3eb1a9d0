"""What the entries of a recipe may be, checked strictly: YAML distinguishes yes, 1, 1.0 and "1"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from congruence._utils.display import short
from congruence._utils.yaml import find_line
from congruence.errors import ParameterError
from congruence.train import METHODS, make_method

Path: TypeAlias = tuple[str | int, ...]

#: Returns where below an entry something is wrong; None if nothing is.
Check: TypeAlias = Callable[[Any], Path | None]


class Expected(NamedTuple):
    """What an entry may be: its check, in words, and an example."""

    check: Check
    words: str
    example: object


@dataclass(frozen=True)
class Where:
    """The location of entries, for messages: file, text, path to the entries, and paths overridden by other values."""

    name: str = ""
    text: str = ""
    path: Path = ()
    replaced: frozenset[Path] = frozenset()

    def at(self, *path: str | int) -> str:
        """Return the file and line of an entry, as ``"r.yaml, line 7"``; empty if the entry is not from a file."""
        full = (*self.path, *path)
        if not self.text or any(full[:k] in self.replaced for k in range(1, len(full) + 1)):
            return ""
        line = find_line(self.text, full)
        return self.name if line is None else f"{self.name}, line {line}"


def _is(right: Callable[[Any], bool]) -> Check:
    return lambda value: None if right(value) else ()


def _either(*checks: Check) -> Check:
    return lambda value: None if any(check(value) is None for check in checks) else checks[-1](value)


def _list(check: Check, least: int = 0, most: float = math.inf) -> Check:
    """Check a list by its items."""

    def wrong(value: Any) -> Path | None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            return ()
        return next(((k, *below) for k, item in enumerate(value) if (below := check(item)) is not None), None)

    return wrong


def _lists(value: Any) -> Path | None:
    """Check a mapping of names to lists that are not empty."""
    if not isinstance(value, Mapping):
        return ()
    return next(((str(name),) for name, values in value.items() if not isinstance(values, list) or not values), None)


def _whole(least: int) -> Check:
    return _is(lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63)


_none = _is(lambda value: value is None)
_text = _is(lambda value: isinstance(value, str) and bool(value))
_number = _is(lambda value: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63)
_pair = _list(_text, 2, 2)
# A share is below 1; from 1 on, only whole numbers are valid, as numbers of pairs.
_held_out = _either(_none, _is(lambda value: isinstance(value, float) and 0 <= value < 1), _whole(0), _pair)
_HELD_OUT = Expected(_held_out, "a share below 1, a number of pairs, or two files, source and target", 0.1)
_FILE = "a file"

_ENTRIES = {
    "method": Expected(_is(METHODS.__contains__), f"one of {', '.join(METHODS)}", "sail"),
    "pairs": Expected(_pair, "two files, source and target", ["images.npz", "texts.npz"]),
    "unpaired_source": Expected(_list(_text), "a list of files", ["images.npz"]),
    "unpaired_target": Expected(_list(_text), "a list of files", ["texts.npz"]),
    "validation": _HELD_OUT,
    "test": _HELD_OUT,
    "keep_pairs": Expected(_either(_none, _whole(1)), "a whole number > 0", 100),
    "overlap": Expected(_either(_none, _is(lambda v: _number(v) is None and 0 <= v <= 1)), "a share from 0 to 1", 0.0),
    "parameters": Expected(
        _is(lambda value: isinstance(value, Mapping)), "a mapping of names to values", {"n_components": 256}
    ),
    "grid": Expected(_lists, "a mapping of names to lists of values", {"divergence_weight": [0.1, 1.0]}),
    "seed": Expected(_either(_none, _whole(0)), "a whole number from 0 to 2^63 − 1", 0),
    "groups": Expected(_text, "'identical', 'none' or a file", "identical"),
    "negatives": Expected(_either(_none, _text), _FILE, "negatives.npz"),
    "tasks": Expected(_either(_none, _text), _FILE, "tasks.csv"),
}


def check_entries(entries: Mapping[str, Any], where: Where) -> None:
    """Refuse entries of a recipe that are unknown or of the wrong type; the message names the entry and its line."""
    _check(entries, _ENTRIES, where)
    parameters = {name: _parameter(value) for name, value in make_method(entries["method"]).get_params().items()}
    group = f" in parameters of {entries['method']}"
    _check(entries.get("parameters", {}), parameters, replace(where, path=("parameters",)), group)
    for name, values in entries.get("grid", {}).items():
        for value in values:
            _check({name: value}, parameters, replace(where, path=("grid",)), f" in grid of {entries['method']}")


def _parameter(default: Any) -> Expected:
    """Return what a parameter of a method may be, by its default; numbers are valid too where it is a string."""
    if isinstance(default, bool):
        return Expected(_is(lambda value: isinstance(value, bool)), "true or false", default)
    if isinstance(default, int):
        return Expected(_either(_none, _whole(0)), "a whole number ≥ 0", default)
    if isinstance(default, float) or default is None:
        return Expected(_either(_none, _number, _list(_number)), "a number", default)
    if isinstance(default, tuple):
        return Expected(_list(_number), "a list of numbers", list(default))
    return Expected(_either(_none, _is(lambda value: isinstance(value, str)), _number), "a name", default)


def _check(entries: Mapping[Any, Any], known: Mapping[str, Expected], where: Where, group: str = "") -> None:
    """Refuse unknown entries first, since a missing one may be one that is misspelled, then those of the wrong type."""
    for name in entries:
        if name not in known:
            place = where.at(str(name))
            listed = ", ".join(known) or "none"
            raise ParameterError(
                f"Got {short(repr(str(name)), 80)}{group}{f' in {place}' if place else ''}; expected one of {listed}.",
                "Rename or remove this key.",
            )
    for name, value in entries.items():
        check, words, example = known[name]
        below = check(value)
        if below is None:
            continue
        shown = short(repr(value), 80)
        if place := where.at(name, *below):
            raise ParameterError(
                f"Got {name} {shown} in {place}; expected {words}.", f"Write {name}: {example}, for example."
            )
        raise ParameterError(f"Got `{name}={shown}`; expected {words}.", f"Pass `{name}={example!r}`, for example.")
