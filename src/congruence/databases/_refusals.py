"""Refusals that several backends share: functions that check, and functions that return an error to raise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from congruence.errors import (
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    MigrationError,
    ParameterError,
    StorageError,
)

_Name = TypeVar("_Name", bound="str | None")


def only_name(names: Iterable[str], what: str, place: object, option: str) -> str:
    """Return the only name. Raises ParameterError if there are none or several."""
    names = sorted(names)
    if len(names) != 1:
        shown = ", ".join(map(repr, names[:20])) or "none"
        raise ParameterError(f"{place} has {len(names)} {what} ({shown}).", f"Pass `{option}=…` with the name of one.")
    return names[0]


def check_name(name: _Name, names: Iterable[str], place: object, option: str) -> _Name:
    """Return a name if it is one of ``names``, or None. Raises ParameterError."""
    names = list(names)
    if name is not None and name not in names:
        shown = ", ".join(map(repr, names[:20])) or "none"
        raise ParameterError(
            f"Got {option}={name!r}; expected one of those in {place}: {shown}.", f"Pass another `{option}=…`."
        )
    return name


def check_columns(names: Iterable[str], place: object, column: object, ids: object, modality: object) -> None:
    """Raise ParameterError if one of the columns that a user named is not among ``names``."""
    for option, name in (("column", column), ("ids", ids), ("modality_column", modality)):
        check_name(name if isinstance(name, str) else None, names, place, option)


def check_options(what: str, **options: object) -> None:
    """Raise ParameterError if an option that a backend does not support is not None."""
    for name, value in options.items():
        if value is not None:
            raise ParameterError(f"Got {name}={value!r} for {what}.", f"Leave `{name}=…` out.")


def refuse_untouched(untouched: bool, place: object) -> None:
    """Raise MigrationError for a method that needs new vectors, if there are none."""
    if untouched:
        raise MigrationError(f"{place} has no new vectors.", "Run the migration first.")


def refuse_switched(switched: bool, place: object) -> None:
    """Raise MigrationError for a method that is possible only before the switch."""
    if switched:
        raise MigrationError(f"{place} is switched to the new vectors already.", "Roll back first.")


def refuse_unswitched(unswitched: bool, place: object) -> None:
    """Raise MigrationError for a method that is possible only after the switch."""
    if unswitched:
        raise MigrationError(f"{place} is not switched to the new vectors.", "Switch it first.")


def check_obstacles(obstacles: Sequence[str], place: object) -> None:
    """Raise DatabaseError if something stands in the way of a migration."""
    if obstacles:
        found = "; ".join(words for _, words in obstacles)
        raise DatabaseError(
            f"{place} cannot be migrated in place, as it has {found}.",
            "Remove it, and create it again after `drop-old`; or copy the rows into a table without it.",
        )


def check_missing(rows: int, place: object) -> None:
    """Raise MigrationError if rows have no new vector, as readers would lose them."""
    if rows:
        raise MigrationError(
            f"{rows:,} rows of {place} have no new vector, and readers would lose them.",
            "Stop all writers, finish the run (`resume=True`), then switch.",
        )


def check_losing(rows: int, place: object) -> None:
    """Raise MigrationError if rows have an old vector only, and it would be dropped."""
    if rows:
        raise MigrationError(
            f"{rows:,} rows of {place} have only an old vector, and would lose it.",
            "Write their new vectors or delete the rows, then drop the old vectors.",
        )


def check_same(place: object, existing: tuple[object, object, object], wanted: tuple[object, object, object]) -> None:
    """Raise MigrationError if existing new vectors have another width, element type or note than are wanted."""
    if existing != wanted:
        have, want = (f"{dim} × {kind} with the note {note}" for dim, kind, note in (existing, wanted))
        raise MigrationError(
            f"{place} already has new vectors, of another map or other settings: {have}, not {want}.",
            "Discard them first.",
        )


def check_column(column: object, other: object) -> None:
    """Raise MigrationError if another column of the same collection is being migrated."""
    if column != other:
        raise MigrationError(
            f"A migration of column {other!r} is in progress, and a collection has one migration at a time.",
            f"Finish or discard that migration first (`column={other}`).",
        )


def check_aliases(aliases: Sequence[str], collection: str) -> None:
    """Raise MigrationError if an alias points to a collection to delete; the server would delete it too."""
    if aliases:
        raise MigrationError(
            f"The alias {aliases[0]!r} is on {collection!r}, which is to be deleted.",
            "Move or delete that alias first.",
        )


def check_readers(table: str, collection: str, aliases: Sequence[str]) -> None:
    """Raise MigrationError if a collection is also read by another alias than the one that the switch moves."""
    if others := sorted(set(aliases) - {table}):
        raise MigrationError(
            f"The collection {collection!r} is also read by the alias {others[0]!r}, and the switch moves only "
            f"{table!r}.",
            f"Let all readers use {table!r}, and delete the other alias.",
        )


def check_length(name: str, needed: Iterable[str], most: int) -> None:
    """Raise DatabaseError if a migration needs names that are longer than the database allows."""
    if (longest := max(map(len, needed))) > most:
        raise DatabaseError(
            f"The name of {name!r} has {len(name)} letters, and migrations need one of {longest}, more than {most}.",
            "Rename it, or copy it under a shorter name.",
        )


def check_column_name(column: str, suffixes: tuple[str, ...]) -> None:
    """Raise ParameterError if a column that a user named has a reserved name."""
    if column.endswith(suffixes):
        raise ParameterError(f"The column {column!r} has a name that migrations use.", "Pass another `column=…`.")


def not_ours(name: str) -> DatabaseError:
    """Return the error for a collection, table or alias that has a reserved name."""
    return DatabaseError(f"{name!r} was not created by a migration, which needs this name.", "Rename or delete it.")


def check_ids(column: pa.Array | pa.ChunkedArray, name: str, place: object) -> None:
    """Raise DatabaseError if rows have no id."""
    if column.null_count:
        raise DatabaseError(
            f"{column.null_count} rows in {place} are without id ({name}).",
            "Fill the ids in, or exclude these rows with a condition.",
        )


def check_shape(vectors: np.ndarray, shape: tuple[int, int]) -> None:
    """Raise ParameterError if vectors to write have another shape."""
    if vectors.shape != shape:
        raise ParameterError(f"Got vectors of shape {vectors.shape}; expected {shape}.", "Pass one row per id.")


def bad_ids(kind: object, column: str) -> DatabaseError:
    """Return the error for a column of ids of a type that is not supported."""
    return DatabaseError(
        f"The ids in {column!r} are of type {kind}, not integers, strings or UUIDs.", "Pass another column as `ids=…`."
    )


def bad_cursor(after: object) -> ParameterError:
    """Return the error for a cursor that no scan of this table returned."""
    return ParameterError(
        f"Got the cursor {after!r}, which no scan of this table returned.", "Pass one that it returned."
    )


def bad_condition(rows: str, reason: object, example: str) -> ParameterError:
    """Return the error for a condition that the database does not understand."""
    return ParameterError(
        f"Got the condition `rows={rows!r}`, which is rejected ({reason}).", f"Pass `rows=…` as {example}."
    )


def full_disk(place: object, reason: object) -> StorageError:
    """Return the error for a disk without space."""
    return StorageError(f"The disk is full at {place} ({reason}).", "Free disk space there, and run it again.")


def no_answer(place: object, reason: object, what: str) -> DatabaseUnavailableError:
    """Return the error for a database that does not answer now."""
    return DatabaseUnavailableError(f"Got no answer from {place} ({reason}).", f"Start {what}, or try again later.")


def in_use(place: object, reason: object = "only one process can open it") -> DatabaseUnavailableError:
    """Return the error for a database that another process uses."""
    return DatabaseUnavailableError(f"Another process uses {place} ({reason}).", "Close it, or try again later.")


def no_access(place: object, reason: object, variable: str) -> DatabaseError:
    """Return the error for a server that refuses the key."""
    return DatabaseError(
        f"Got no access to {place} ({reason}).",
        f"Set the environment variable {variable} to a key that may read and write.",
    )


def rejected(place: object, reason: object) -> DatabaseError:
    """Return the error for a request that the database rejects."""
    return DatabaseError(
        f"Got an error from {place}: {reason}", "Fix the cause that the database reports, and run it again."
    )


def damaged(place: object, reason: object) -> CorruptFileError:
    """Return the error for a database whose files cannot be read."""
    return CorruptFileError(f"{place} is damaged, or of another kind ({reason}).", "Restore it from a backup.")
