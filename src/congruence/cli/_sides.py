"""How the files of an old and of a new model are read: paired by id or position, and refused if they are swapped."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from congruence.cli._input import ids_of, read
from congruence.cli._output import say_error
from congruence.errors import IdError, InputError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from congruence.embeddings import Embeddings
    from congruence.upgrade.sides import Side


def placed(words: Sequence[str | None], rows: Sequence[Embeddings | None]) -> tuple[Side, Side]:
    """Return an old and a new side: the words that were typed for them, and what was read; either may be missing.

    Raises ParameterError if both are the same vectors.
    """
    import numpy as np

    old, new = (*rows, None)[:2]
    if old is not None and new is not None:
        refuse_same(*words)
        if np.array_equal(old.vectors, new.vectors):
            raise _same(str(words[1]), str(words[0]), "the same vectors as")
    named = [None if read is None else (str(word), read.space) for word, read in zip(words, rows, strict=False)]
    return named[0], (*named, None)[1]


def refuse_same(old: str | None = None, new: str | None = None, *_: object) -> None:
    """Raise ParameterError if both words name one file, or one array of a file, not even through a link."""
    from congruence.io import parse_spec

    if old is None or new is None:
        return
    files = [(os.path.realpath(path), key) for path, key in map(parse_spec, (old, new))]
    if files[0] == files[1]:
        raise _same(new, old, "the same file as")


def _same(new: str, old: str, how: str) -> ParameterError:
    return ParameterError(
        f"{new} of the new model is {how} {old} of the old one.", "Pass the same items, encoded by the other model."
    )


def check_sides(*given: tuple[Side, Side]) -> None:
    """Refuse files that are of the other model than their place says, with the command to type."""
    from congruence.upgrade.sides import check_sides as check_library_sides

    check_library_sides(*given, fix=exchanged)


def exchanged(word: str, other: str | None) -> str:
    """Return what to type if two words of this command have to be exchanged."""
    typed = [re.split("([,=])", one) for one in sys.argv[1:]]
    if other is None or not all(any(one in parts for parts in typed) for one in (word, other)):
        return f"Pass the other model's vectors instead of {word}, or exchange OLD and NEW."
    swap = {word: other, other: word}
    store = [False, *(one == ["--store"] for one in typed)]  # may name one of them, and stays
    words = [
        "".join(parts if kept else [swap.get(part, part) for part in parts])
        for parts, kept in zip(typed, store, strict=False)
    ]
    return f"Type: {shlex.join(['congruence', *words])}"


def read_anchors(
    specs: tuple[str, str],
    ids: str | None,
    spaces: Sequence[Mapping[str, str | None]] = ({}, {}),
    allow_zero_rows: bool = False,
    links: str | None = None,
) -> tuple[tuple[Embeddings, Embeddings], str]:
    """Read both files, with ids if they were named or if both files have a column with a usual name.

    ``specs``: old and new, as ``file`` or ``file:key``; ``ids``: as of ``--ids``, None to look for ``id``, ``ids`` or
    ``names``; ``links``: as of ``--links``. The text, for the report: ``id``, with the names of the columns if known,
    ``position``, or the file of pairs.
    """
    from congruence.embeddings import Space
    from congruence.io import open_source

    columns: Any = _usual_ids(specs) if ids is None else ids_of("none" if "none" in ids_of(ids) else ids)
    source, target = (
        read(spec, column, allow_zero_rows, **space) for spec, column, space in zip(specs, columns, spaces, strict=True)
    )
    recorded = [(spec, open_source(spec).space) for spec in specs]
    typed = [space.get("model") for space in spaces]
    if {*typed} & {space.model for _, space in recorded} - {None}:
        options = [(f"--set {side}_model", Space(model)) for side, model in zip(("old", "new"), typed, strict=True)]
        check_sides((options[0], options[1]), (recorded[0], recorded[1]))
    if links is not None:
        return link((source, target), links), links
    if not (source.has_ids and target.has_ids):
        if len(source) != len(target):
            raise _no_ids(specs, (len(source), len(target)))
        return (source, target), "position"
    if ids is None:
        _compare_ids(specs, source, target)
    names = dict.fromkeys(name for name in columns if name)
    return (source, target), f"id ({', '.join(names)})" if names else "id"


def link(sides: tuple[Embeddings, Embeddings], links: str) -> tuple[Embeddings, Embeddings]:
    """Return the rows of both sides that a file pairs, with the same ids; say how many of its pairs have no rows."""
    from congruence.embeddings import Pairs
    from congruence.io import read_links

    ids = read_links(links)
    pairs = Pairs.join(*sides, links=ids)
    if len(pairs) < len(ids[0]):
        say_error(f"{len(pairs)} of {len(ids[0])} pairs of {links} are used; the others repeat, or have no vectors.")
    return pairs.source, pairs.target


def find_ids(spec: str) -> tuple[bool, str | None]:
    """Return whether a file has ids, and the column they are in unless it is read by default."""
    from congruence.io import open_source, parse_spec
    from congruence.io.id_columns import usual_id_column

    source = open_source(spec)
    name = None if source.has_ids else usual_id_column(*parse_spec(spec), source.n)
    return source.has_ids or name is not None, name


def _usual_ids(specs: tuple[str, str]) -> tuple[str | None, str | None]:
    """Return the columns to read ids from; None for the default, or for both files if one of them has no ids."""
    from congruence.io import parse_spec
    from congruence.io.id_columns import id_fault

    (has_old, old), (has_new, new) = map(find_ids, specs)
    if not (has_old and has_new):
        return None, None
    for spec, name in zip(specs, (old, new), strict=True):
        if name is not None and (fault := id_fault(parse_spec(spec)[0], name)):
            why = f"column {name} of {spec} is not used to pair by id: {fault}"
            say_error(f"warning: {why}. Pass --ids COLUMN for another one.")
            return None, None
    return old, new


def _no_ids(specs: tuple[str, str], rows: tuple[int, int]) -> InputError:
    """Return the error for files of different lengths without ids; it lists the columns that could hold ids."""
    from congruence.io import parse_spec
    from congruence.io.id_columns import id_columns

    found = [id_columns(*parse_spec(spec), n) for spec, n in zip(specs, rows, strict=True)]
    listed = "; ".join(f"{spec}: {', '.join(names) or 'none'}" for spec, names in zip(specs, found, strict=True))
    form = "COLUMN" if {*found[0]} & {*found[1]} else "OLD,NEW" if all(found) else "OLD,NEW, files with one id per row"
    return InputError(
        f"Got {rows[0]} rows in {specs[0]} and {rows[1]} in {specs[1]}, and no ids on both sides; expected the same "
        "number of rows, or ids to pair them by.",
        f"Pass --ids {form} (columns that could hold ids in {listed}).",
    )


def _compare_ids(specs: tuple[str, str], source: Embeddings, target: Embeddings) -> None:
    """Warn if the ids of files of equal length differ in some rows. Raises IdError if they have none in common."""
    from congruence._utils.display import short
    from congruence._utils.ids import is_in

    common, most = int(is_in(source.ids, target.ids).sum()), max(len(source), len(target))
    if common == 0:
        first = [f"{spec} ({short(str(rows.ids[0]))}, …)" for spec, rows in zip(specs, (source, target), strict=True)]
        raise IdError(
            f"Got ids in {' and '.join(first)} that differ in {most} of {most} rows; expected the same items on both "
            "sides.",
            "Pass --ids COLUMN for others, or --ids none to pair by position.",
        )
    if common < most and len(source) == len(target):  # else the report says how many rows were left out
        say_error(
            f"warning: ids of {specs[0]} and {specs[1]} differ in {most - common} of {most} rows; the other {common} "
            "are paired by id. Pass --set missing=error to refuse such files, or --ids none to pair by position."
        )


def prefix_of(text: str) -> int | str:
    """Return the value of ``--set prefix``: ``auto``, or a number of columns."""
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise ParameterError(f"Got --set prefix={text}; expected auto or a number of columns.", "Pass --set prefix=auto.")
