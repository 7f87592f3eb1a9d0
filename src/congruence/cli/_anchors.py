"""Read the two files that ``congruence fit`` pairs, and find the columns to pair them by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings, Space


def read_anchors(
    specs: tuple[str, str],
    ids: tuple[str | None, str | None],
    spaces: tuple[Space, Space],
    allow_zero_rows: bool,
) -> tuple[tuple[Embeddings, Embeddings], str]:
    """Read both files, with ids if they were named or if both files have a column with a usual name.

    Parameters
    ----------
    specs : (str, str)
        Source and target, as ``file`` or ``file:key``.
    ids : (str or None, str or None)
        Where the ids are; ``none`` for pairing by position, None to look for ``id``, ``ids`` or ``names``.
    spaces : (Space, Space)
    allow_zero_rows : bool

    Returns
    -------
    anchors : (Embeddings, Embeddings)
    paired_by : str
        For the report: ``id``, with the names of the columns if known, or ``position``.

    Raises
    ------
    InputError
        If the numbers of rows differ and there are no ids to pair by, or ids that were found automatically have none in common.
    CongruenceError
        Any error raised while reading.
    """
    from congruence.cli._base import read
    from congruence.errors import InputError

    looked_for = ids == (None, None)
    columns = _default_columns(specs) if looked_for else tuple(False if "none" in ids else name for name in ids)
    sides = [
        read(spec, column, space, allow_zero_rows) for spec, column, space in zip(specs, columns, spaces, strict=True)
    ]
    one, two = sides
    if not (one.has_ids and two.has_ids):
        if len(one) != len(two):
            raise InputError(_no_ids(specs, (len(one), len(two))))
        return (one, two), "position"
    if looked_for:
        _compare(specs, one, two)
    named = list(dict.fromkeys(name for name in columns if isinstance(name, str)))
    return (one, two), f"id ({', '.join(named)})" if named else "id"


def find_ids(spec: str) -> tuple[bool, str | None]:
    """Return whether a file has ids, and the column to name for them if it is not the one read by default."""
    from congruence.stores import open_source, parse_spec
    from congruence.stores.id_columns import usual_id_column

    source = open_source(spec)
    name = None if source.has_ids else usual_id_column(*parse_spec(spec), source.n)
    return source.has_ids or name is not None, name


def _default_columns(specs: tuple[str, str]) -> tuple[str | None, str | None]:
    """Return the columns to read ids from: none, unless both files have ids."""
    from congruence._utils.display import visible
    from congruence.stores import parse_spec
    from congruence.stores.id_columns import id_fault

    found: list[str | None] = []
    for spec in specs:
        has_ids, name = find_ids(spec)
        if not has_ids:
            return None, None
        found.append(name)
    for spec, name in zip(specs, found, strict=True):
        fault = None if name is None else id_fault(parse_spec(spec)[0], name)
        if fault is not None:
            print(
                f"warning: column {visible(str(name))} of {visible(spec)} is not used to pair by id: {fault}. Pass --ids COLUMN for another one.",
                file=sys.stderr,
            )
            return None, None
    return found[0], found[1]


def _no_ids(specs: tuple[str, str], rows: tuple[int, int]) -> str:
    """Return what to pass for files of different lengths, naming the columns that could be meant."""
    from congruence.stores import parse_spec
    from congruence.stores.id_columns import id_columns

    there = [id_columns(*parse_spec(spec), n) for spec, n in zip(specs, rows, strict=True)]
    got = (
        f"Got {rows[0]} rows in {specs[0]} and {rows[1]} in {specs[1]}, and no ids on both sides; expected the same number of rows, "
        "or ids to pair them by. "
    )
    listed = "; ".join(f"{spec}: {', '.join(names) or 'none'}" for spec, names in zip(specs, there, strict=True))
    if not all(there):
        return (
            f"{got}Pass --ids FILE and --target-ids FILE, files with one id per row, or --ids COLUMN if the ids are in a column "
            f"(columns that could hold ids in {listed})."
        )
    target = "" if set(there[0]) & set(there[1]) else " and --target-ids COLUMN"
    return f"{got}Pass --ids COLUMN{target} (columns that could hold ids in {listed})."


def _compare(specs: tuple[str, str], one: Embeddings, two: Embeddings) -> None:
    """Report how far automatically found ids differ. Raises IdError if they have nothing in common."""
    from congruence._utils.display import visible
    from congruence._utils.ids import is_in
    from congruence._utils.validation import shorten
    from congruence.errors import IdError

    common = int(is_in(one.ids, two.ids).sum())
    most = max(len(one), len(two))
    if common == 0:
        raise IdError(
            f"Got ids in {specs[0]} ({shorten(str(one.ids[0]))}, …) and {specs[1]} ({shorten(str(two.ids[0]))}, …) that differ in {most} of {most} "
            "rows; expected the same items on both sides. Pass --ids COLUMN for others, or --ids none to pair by position."
        )
    if common < most and len(one) == len(two):  # if the lengths differ, the report states how many rows were left out
        print(
            f"warning: ids of {visible(specs[0])} and {visible(specs[1])} differ in {most - common} of {most} rows; the other {common} are "
            "paired by id. Pass --missing error to refuse such files, or --ids none to pair by position.",
            file=sys.stderr,
        )
