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
        If the numbers of rows differ and there are no ids to pair by.
    IdError
        If the files have no ids in common, and the columns of the ids were found automatically.
    CongruenceError
        Any error raised while reading.
    """
    from congruence.cli._base import read
    from congruence.errors import InputError

    automatic = ids == (None, None)
    columns = _default_columns(specs) if automatic else tuple(False if "none" in ids else name for name in ids)
    source, target = (
        read(spec, column, space, allow_zero_rows) for spec, column, space in zip(specs, columns, spaces, strict=True)
    )
    if not (source.has_ids and target.has_ids):
        if len(source) != len(target):
            raise InputError(_no_ids_message(specs, (len(source), len(target))))
        return (source, target), "position"
    if automatic:
        _compare_ids(specs, source, target)
    names = list(dict.fromkeys(name for name in columns if isinstance(name, str)))
    return (source, target), f"id ({', '.join(names)})" if names else "id"


def find_ids(spec: str) -> tuple[bool, str | None]:
    """Return whether a file has ids, and the column they are in unless it is read by default."""
    from congruence.stores import open_source, parse_spec
    from congruence.stores.ids import usual_id_column

    source = open_source(spec)
    name = None if source.has_ids else usual_id_column(*parse_spec(spec), source.n)
    return source.has_ids or name is not None, name


def _default_columns(specs: tuple[str, str]) -> tuple[str | None, str | None]:
    """Return the columns to read ids from; None for the default, or for both files if one of them has no ids."""
    from congruence._utils.display import visible
    from congruence.stores import parse_spec
    from congruence.stores.ids import id_fault

    columns: list[str | None] = []
    for spec in specs:
        has_ids, name = find_ids(spec)
        if not has_ids:
            return None, None
        columns.append(name)
    for spec, name in zip(specs, columns, strict=True):
        fault = None if name is None else id_fault(parse_spec(spec)[0], name)
        if fault is not None:
            print(
                f"warning: column {visible(str(name))} of {visible(spec)} is not used to pair by id: {fault}. "
                "Pass --ids COLUMN for another one.",
                file=sys.stderr,
            )
            return None, None
    return columns[0], columns[1]


def _no_ids_message(specs: tuple[str, str], rows: tuple[int, int]) -> str:
    """Return the message for files of different lengths without ids; it lists the columns that could hold ids."""
    from congruence.stores import parse_spec
    from congruence.stores.ids import id_columns

    candidates = [id_columns(*parse_spec(spec), n) for spec, n in zip(specs, rows, strict=True)]
    got = (
        f"Got {rows[0]} rows in {specs[0]} and {rows[1]} in {specs[1]}, and no ids on both sides; expected the "
        "same number of rows, or ids to pair them by. "
    )
    listed = "; ".join(f"{spec}: {', '.join(names) or 'none'}" for spec, names in zip(specs, candidates, strict=True))
    if not all(candidates):
        return (
            f"{got}Pass --ids FILE and --target-ids FILE, files with one id per row, or --ids COLUMN if the ids "
            f"are in a column (columns that could hold ids in {listed})."
        )
    target = "" if set(candidates[0]) & set(candidates[1]) else " and --target-ids COLUMN"
    return f"{got}Pass --ids COLUMN{target} (columns that could hold ids in {listed})."


def _compare_ids(specs: tuple[str, str], source: Embeddings, target: Embeddings) -> None:
    """Print a warning if the ids of files of equal length differ in some rows.

    Raises IdError if they have none in common.
    """
    from congruence._utils.display import visible
    from congruence._utils.ids import is_in
    from congruence._utils.validation import shorten
    from congruence.errors import IdError

    common = int(is_in(source.ids, target.ids).sum())
    most = max(len(source), len(target))
    if common == 0:
        raise IdError(
            f"Got ids in {specs[0]} ({shorten(str(source.ids[0]))}, …) and {specs[1]} "
            f"({shorten(str(target.ids[0]))}, …) that differ in {most} of {most} rows; expected the same items on "
            "both sides. Pass --ids COLUMN for others, or --ids none to pair by position."
        )
    # If the lengths differ, the report says how many rows were left out.
    if common < most and len(source) == len(target):
        print(
            f"warning: ids of {visible(specs[0])} and {visible(specs[1])} differ in {most - common} of {most} "
            f"rows; the other {common} are paired by id. Pass --missing error to refuse such files, or --ids none "
            "to pair by position.",
            file=sys.stderr,
        )
