"""Values in JSON by their path, as ``response.body.data[0].embedding``; an exact name comes before a path."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9})\]")

#: Depth to which values are looked for, and their number.
_DEPTH, _MOST = 8, 40


def steps_of(path: str) -> list[str | int]:
    """Return the names and numbers in a path; the path itself as a name if it is none."""
    found = list(_STEP.finditer(path))
    if "".join(one[0] for one in found) != path:
        return [path]
    return [one[1] if one[1] is not None else int(one[2]) for one in found]


def value_at(record: dict[str, Any], path: str) -> Any:
    """Return the value at a path; KeyError if there is none."""
    if path in record:
        return record[path]
    value: Any = record
    for step in steps_of(path):
        if not isinstance(value, dict if isinstance(step, str) else list):
            raise KeyError(path)
        try:
            value = value[step]  # type: ignore[index]
        except (LookupError, TypeError):
            raise KeyError(path) from None
    return value


def with_value(record: dict[str, Any], path: str, new: object) -> dict[str, Any]:
    """Return a copy with another value at a path, which exists; or with a new field of this name."""
    steps = [path] if path in record else steps_of(path)
    if len(steps) == 1:
        return record | {path: new}

    def copied(value: Any, steps: list[Any]) -> Any:
        if not steps:
            return new
        copy = value.copy()
        copy[steps[0]] = copied(value[steps[0]], steps[1:])
        return copy

    made: dict[str, Any] = copied(record, steps)
    return made


def values_of(value: object, path: str = "", depth: int = 0) -> dict[str, str]:
    """Return the paths of the values in a record, each with what it is; not inside lists of numbers."""
    if isinstance(value, dict) and depth < _DEPTH:
        inner = [(f"{path}.{name}" if path else str(name), one) for name, one in islice(value.items(), _MOST)]
    elif is_vector(value):
        return {path: f"{len(value)} numbers"}  # type: ignore[arg-type]
    elif isinstance(value, list) and depth < _DEPTH:
        inner = [(f"{path}[{k}]", one) for k, one in enumerate(value[:_MOST])]
    else:
        return {path: {str: "text", int: "number", float: "number"}.get(type(value), "")}
    found: dict[str, str] = {}
    for place, one in inner:
        found |= values_of(one, place, depth + 1)
        if len(found) >= _MOST:
            break
    return found


def is_vector(value: object) -> bool:
    """Return whether a value is a list of numbers."""
    # Types are compared exactly, since bool is a subclass of int.
    return isinstance(value, list) and len(value) > 0 and all(type(x) in (int, float) for x in value)


def records_of(value: Any, key: str | None) -> tuple[list[Any], str | None]:
    """Return the records in a JSON value, and the path of the vectors in each: the rest of a key that ends in them.

    A list of vectors, an object of columns and one of vectors or records by id are taken as records, too.
    """
    steps = steps_of(key.replace("[*]", "").replace("[]", "")) if key else []
    while isinstance(value, dict):
        columns = {name: one for name, one in value.items() if isinstance(one, list)}
        rows = {len(one) for one in columns.values()}
        lists = [name for name, one in columns.items() if one and all(isinstance(row, list) for row in one)]
        if len(rows) == 1 and lists and (len(steps) < 2 and (not steps or steps[0] in lists)):
            made = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
            return made, str(steps[0]) if steps else lists[0] if len(lists) == 1 else None
        if steps and isinstance(steps[0], str) and steps[0] in value:
            value, steps = value[steps[0]], steps[1:]
            continue
        down = [one for one in value.values() if isinstance(one, (dict, list)) and _has_records(one)]
        if not steps and len(down) == 1:
            value = down[0]
            continue
        if all(isinstance(one, list) for one in value.values()):
            value = [{"id": name, "vector": one} for name, one in value.items()]
        elif all(isinstance(one, dict) for one in value.values()):
            value = [{"id": name} | one for name, one in value.items()]
        else:
            value = [value]
    rest = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".") or None
    if not isinstance(value, list):
        return [], rest
    if is_vector(value):
        value = [value]
    return [{"vector": one} if isinstance(one, list) else one for one in value], rest


def _has_records(value: object, depth: int = 0) -> bool:
    """Return whether a value is a list of objects, or an object that holds one."""
    if isinstance(value, dict):
        first = next(iter(value.values()), None)
        if isinstance(first, dict) and any(map(is_vector, first.values())):  # records by id
            return True
        return depth < _DEPTH and any(_has_records(one, depth + 1) for one in value.values())
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict)
