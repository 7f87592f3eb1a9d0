"""How commands read what was typed: files, maps, databases, and options that need more than one word."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from congruence.errors import CongruenceError, DatabaseError, ParameterError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    import numpy as np

    from congruence.databases import Database
    from congruence.embeddings import Embeddings
    from congruence.maps import Map
    from congruence.upgrade.bridge import Bridge


#: An address on the command line, which may be the value of an option.
_ADDRESS = re.compile(r"(?:--[\w-]+=)?([A-Za-z][\w+.-]*://.*)", re.DOTALL)


def refuse_passwords(words: Iterable[str]) -> None:
    """Raise ParameterError if an address among the words of the command line has a secret, which others can list."""
    for word in words:
        if (found := _ADDRESS.fullmatch(word)) is None:
            continue
        from congruence.databases import Address

        address = Address.parse(found[1])
        if address.secrets:
            own = "PGPASSWORD, write it to ~/.pgpass, or type it when you are asked"
            others = "that the database's client reads, such as QDRANT_API_KEY, MILVUS_TOKEN or ELASTIC_PASSWORD"
            others += "; of a file, write it to ~/.netrc" if address.scheme in ("http", "https") else ""
            raise ParameterError(
                f"Got a password in {address.shown}, and everybody on this machine can list the words of a command.",
                f"Leave it out, and set the environment variable {own if 'postgres' in address.scheme else others}.",
            )


def open_asking(where: str, **options: str | None) -> Database:
    """Open a database, and ask for the password if its server wants one and none is known."""
    from congruence.databases import open_database

    try:
        return open_database(where, **options)
    except DatabaseError as error:
        if "no password supplied" not in str(error) or not sys.stdin.isatty():
            raise
    from getpass import getpass

    os.environ["PGPASSWORD"] = getpass(f"Password for {where}: ")
    return open_database(where, **options)


def load_map(path: str) -> tuple[Map, Bridge | None]:
    """Load a saved map, or a bridge and its map. Commands on a map do not import the modules that bridges need."""
    from congruence import persist
    from congruence.maps import restore_map

    arrays, config = persist.read_folder(path)
    if config.get("kind") != "bridge":
        return restore_map(arrays, config, path), None
    from congruence.upgrade.bridge import Bridge

    bridge = Bridge.load(path)
    return bridge.map, bridge


def inverse_of(mapping: Map | Bridge) -> Map:
    """Return the inverse of an orthogonal map; refuse others."""
    from congruence.maps import Map, OrthogonalMap

    if isinstance(mapping, OrthogonalMap):
        return mapping.inverse()
    kind = f"{mapping.kind} map" if isinstance(mapping, Map) else "bridge"
    problem = f"Got --inverse for a {kind}; expected an orthogonal map, the only kind with an inverse."
    raise ParameterError(problem, "Fit a map from the new model to the old one instead, and leave out --inverse.")


def unit_rows(normalize: str) -> bool | str:
    """Return the argument of the library for a value of ``--normalize``."""
    from congruence._utils.validation import check_choice

    values: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}
    return values[check_choice(normalize, tuple(values), "normalize")]


#: What commands call the two sides of a joint-space map, and Python does.
_SIDES = {"first": "source", "second": "target"}


def in_python(side: str | None) -> str | None:
    """Return the argument of the library for ``first`` or ``second``."""
    if side is not None and side not in _SIDES:
        raise ParameterError(f"Got --side {side}; expected first or second.", "Pass --side first, or leave it out.")
    return None if side is None else _SIDES[side]


def two_sides(text: str | None, flag: str, form: str = "OLD,NEW") -> tuple[str, str] | None:
    """Split ``OLD,NEW``, or a pair of another form. Raises ParameterError for any other text."""
    if text is None:
        return None
    old, comma, new = text.partition(",")
    if not (old and comma and new) or "," in new:
        raise ParameterError(f"Got {flag} {text}; expected {form}.", f"Pass {flag} {form}, two files with a comma.")
    return old, new


def ids_of(ids: str | None) -> tuple[str | None, str | None]:
    """Return where both sides' ids are, of a value of ``--ids``."""
    old, _, new = (ids or "").partition(",")
    return old or None, new or old or None


def read(spec: str, ids: str | bool | None = None, allow_zero_rows: bool = False, **space: str | None) -> Embeddings:
    """Read embeddings named on the command line; ``ids`` as of ``--ids``, ``space``: fields of their space."""
    from congruence.embeddings import Space
    from congruence.io import read_embeddings

    column = False if ids == "none" else ids
    rows = read_embeddings(spec, ids=column, space=Space(**space), allow_zero_rows=allow_zero_rows)  # type: ignore[arg-type]
    if rows.vectors[:, -1].any():
        return rows
    from congruence.cli._output import say_error
    from congruence.upgrade.stored import without_padding

    plain = without_padding(rows)
    if plain.dim < rows.dim:
        say_error(f"The last {rows.dim - plain.dim} columns of {spec} are zeros, and are left out.")
    return plain


def read_given(spec: str | None, ids: str | None = None, **space: str | None) -> Embeddings | None:
    """Read embeddings that an option may name."""
    return None if spec is None else read(spec, ids, False, **space)


def refuse_options(options: Mapping[str, object], why: str, fix: str = "Leave it out.") -> None:
    """Refuse the first of these options, by flag, that was given; ``why`` completes the sentence ``Got FLAG …``."""
    for flag, value in options.items():
        if value:
            raise ParameterError(f"Got {flag} {why}.", fix)


def split_named(entry: str, flag: str, form: str, example: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``; ``form`` and ``example`` say what is expected instead of another form."""
    name, equals, value = entry.partition("=")
    if not (name and equals and value):
        raise ParameterError(f"Got {flag} {entry}; expected {form}.", f"Pass {flag} {example}, for example.")
    return name, value


def column(spec: str, flag: str) -> np.ndarray:
    """Read a column of labels or ids named by an option, which errors name."""
    from congruence.io import read_column

    try:
        return read_column(spec)
    except CongruenceError as error:
        error.problem = f"{flag} {spec}: {error.problem}"
        raise


def read_groups(spec: str | None) -> str | np.ndarray | None:
    """Read ``--set groups``: labels from a file, None for ``none``, or identical rows if it was not given."""
    return "identical" if spec is None else None if spec == "none" else column(spec, "--set groups")


def read_labels(spec: str | None, flag: str, *items: Embeddings | None) -> dict[str, str] | None:
    """Return the label of each item by id: one entry per row, in the order of the first items that have as many."""
    from congruence._utils.ids import id_texts

    if spec is None:
        return None
    labels = column(spec, flag)
    known = [rows for rows in items if rows is not None]
    for rows in known:
        if len(rows) == len(labels):
            return dict(zip(id_texts(rows.ids).tolist(), map(str, labels.tolist()), strict=True))
    counts = " or ".join(dict.fromkeys(str(len(rows)) for rows in known)) or "no"
    problem = f"Got {len(labels)} entries of {flag} for {counts} rows; expected one entry for each row."
    raise ShapeError(problem, f"Pass {flag} with one entry per row, not {spec}.")


#: Options that are called otherwise than the argument of the library.
_OPTION_NAMES = {
    **{"random_state": "seed", "metrics": "metric", "queries_old": "old_queries", "index_new": "new_index"},
    **{"unpaired_source": "unpaired", "unpaired_target": "unpaired", "holdout": "validation"},
}

_OF_FIT = {"means": "--means"}  # arguments of ``fit`` that messages about its maps name
_FORM = re.compile(r"(?:\[?[A-Z]+=?\]?)+,\[?[A-Z]+\]?")  # the form of a value at the begin of an option's help


def spelling(
    options: Iterable[Any], settable: Container[str] = (), names: Mapping[str, str] | None = None
) -> tuple[Callable[[str, str], str], Callable[[str], bool]]:
    """Return how a command with these options writes an argument of the library, and whether it has one of that name.

    ``settable``: names that the command accepts as ``--set NAME=VALUE``; ``names``: the command's own options by the
    arguments that they stand for.
    """
    known, own = {option.name: option for option in options}, names or {}

    def find(name: str) -> Any:
        return known.get(own.get(name, name)) or known.get(_OPTION_NAMES.get(name, name))

    def spell(name: str, value: str) -> str:
        option = find(name)
        value = _as_typed(value, option)
        if name == "side":
            value = next((ours for ours, theirs in _SIDES.items() if theirs == value), value)
        if option is None and name in _OF_FIT:
            return f"congruence fit {_OF_FIT[name]} {value}".rstrip()
        if option is None:
            lower = value.lower() if value in ("True", "False") else value
            return f"--set {name}={lower or '…'}" if name in settable else f"{name.replace('_', ' ')} {value}".rstrip()
        if option.param_type_name == "argument":
            return f"{option.name.upper()} {value}".rstrip()
        on, off = ([text for text in texts if text[:2] == "--"] for texts in (option.opts, option.secondary_opts))
        if value in ("True", "False"):
            return on[0] if value == "True" else off[0] if off else f"no {on[0]}"
        return f"{on[0]} {'none' if value == 'None' else value}".rstrip()

    return spell, lambda name: find(name) is not None or name in settable or name in _OF_FIT


def _as_typed(value: str, option: Any) -> str:
    """Return the text of a Python value as a user types it for an option: without quotes, and lists with commas."""
    if value[:1] in ("(", "[", "{"):
        if entry := re.match(r"\{'(\w+)': ", value):
            return f"{entry[1]}=…"
        try:
            return ",".join(map(str, ast.literal_eval(value)))
        except (SyntaxError, TypeError, ValueError):
            form = _FORM.match(getattr(option, "help", None) or "")
            return form[0] if form else ""
    if value[:1] in ("'", '"') and not re.search(r"\s", value):
        value = value[1:-1]
    return "" if value == "…" else value
