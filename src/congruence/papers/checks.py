"""Checks of what a configuration says, with messages that name the file and the key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from congruence.errors import ParameterError

__all__ = ["check_chosen", "check_keys", "check_type"]

_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def check_keys(where: str, data: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse a key that is not known.

    Raises
    ------
    ParameterError
        There is one.
    """
    strange = [str(key) for key in data if key not in known]
    if strange:
        raise ParameterError(
            f"Got {strange[0]!r} in {where}; expected one of {', '.join(known) or 'none'}. Rename or remove this key."
        )


def check_type(where: str, key: str, value: object, kind: type) -> None:
    """Refuse a value of another type; a whole number is taken where a number is wanted.

    Raises
    ------
    ParameterError
        The value has another type.
    """
    if kind is float and type(value) is int:
        return
    if type(value) is not kind:
        raise ParameterError(f"Got {key}: {value!r} in {where}; expected {_NAMES[kind]}. Write such a value.")


def check_chosen(where: str, key: str, values: Iterable[object], choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises
    ------
    ParameterError
        There is one.
    """
    for value in values:
        if value not in choices:
            raise ParameterError(
                f"Got {key} {value!r} in {where}; expected one of {', '.join(map(str, choices))}. Write one of these."
            )
