"""The types of a recipe's entries: a YAML file calls yes, 1, 1.0 and "1" by four types, and only one of them is meant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.errors import ParameterError

#: Test of an entry, what it must be in words, and an example.
_Check = tuple[Any, str, str]


def check_types(recipe: Any) -> None:
    """Refuse entries of a recipe that are of another type than theirs.

    Parameters
    ----------
    recipe : Recipe

    Raises
    ------
    ParameterError
        Names the entry, what it was and what it must be.
    """
    entries: dict[str, _Check] = {
        "method": (_is_text, "a name", "'sotalign'"),
        "pairs": (_is_files, "two files, source and target", "['images.npz', 'texts.npz']"),
        "unpaired_source": (_is_files, "a list of files", "['images.npz']"),
        "unpaired_target": (_is_files, "a list of files", "['texts.npz']"),
        "validation": (_is_held_out, "a share below 1, a number of pairs, or two files, source and target", "0.1"),
        "test": (_is_held_out, "a share below 1, a number of pairs, or two files, source and target", "0.1"),
        "keep_pairs": (lambda value: _is_count(value, 1), "a whole number > 0", "100"),
        "parameters": (_is_mapping, "a mapping of names to values", "{'n_components': 256}"),
        "grid": (_is_grid, "a mapping of names to lists of values", "{'divergence_weight': [0.1, 1.0]}"),
        "seed": (lambda value: _is_count(value, 0), "a whole number from 0 to 2^63 − 1", "0"),
        "groups": (_is_text, "'identical', 'none' or a file", "'identical'"),
        "negatives": (_is_text, "a file", "'negatives.npz'"),
        "tasks": (_is_text, "a file", "'tasks.csv'"),
    }
    optional = {"validation", "test", "keep_pairs", "seed", "negatives", "tasks"}
    for name, (good, words, example) in entries.items():
        value = getattr(recipe, name)
        if not (value is None and name in optional) and not good(value):
            raise ParameterError(f"Got {name}={_short(value)}; expected {words}. Pass {name}={example}, for example.")


def check_parameters(usual: Mapping[str, Any], parameters: Mapping[str, Any], grid: Mapping[str, Any]) -> None:
    """Refuse values of a method's parameters that are of another type than their defaults.

    Parameters
    ----------
    usual : mapping
        Defaults. Where one is text, a number may stand for it (``divergence_weight: 0.1`` for ``divergence_weight: auto``).
    parameters : mapping
    grid : mapping of str to list

    Raises
    ------
    ParameterError
    """
    given = [*parameters.items(), *((name, value) for name, values in grid.items() for value in values)]
    for name, value in given:
        default = usual.get(name)
        if isinstance(default, bool):
            good, words = isinstance(value, bool), "true or false"
        elif isinstance(default, int):
            good, words = value is None or _is_count(value, 0), "a whole number ≥ 0"
        elif isinstance(default, float) or default is None:
            good, words = value is None or _is_number(value) or _is_numbers(value), "a number"
        elif isinstance(default, tuple):
            good, words = _is_numbers(value), "a list of numbers"
        else:
            good, words = not isinstance(value, (bool, Mapping, list, tuple)), "a name"
        if name in usual and not good:
            raise ParameterError(f"Got {name}={_short(value)}; expected {words}. Pass {name}={default!r}, for example.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_files(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_text, value))


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(least <= value < 2**63)


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and bool(-(2**63) < value < 2**63)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_number, value))


def _is_held_out(value: Any) -> bool:
    # A share is below 1; from 1 on only whole numbers count pairs.
    return _is_files(value) or _is_count(value, 0) or (_is_number(value) and bool(0 <= value < 1))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_grid(value: Any) -> bool:
    return _is_mapping(value) and all(isinstance(values, (list, tuple)) and values for values in value.values())
