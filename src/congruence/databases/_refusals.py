"""What several backends refuse: checks, and a table of errors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.refusals import refusing
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    MigrationError,
    ParameterError,
    StorageError,
)

_Name = TypeVar("_Name", bound="str | None")

#: Errors by name: the type, what is wrong, and what to do.
_ERRORS: dict[str, tuple[type[CongruenceError], str, str]] = {
    "untouched": (MigrationError, "{place} has no new vectors.", "Run the migration first."),
    "switched": (MigrationError, "{place} is switched to the new vectors already.", "Roll back first."),
    "not switched": (MigrationError, "{place} is not switched to the new vectors.", "Switch it first."),
    "missing": (
        MigrationError,
        "{n:,} rows of {place} have no new vector, and readers would lose them.",
        "Stop all writers, finish the run (`resume=True`), then switch.",
    ),
    "losing": (
        MigrationError,
        "{n:,} rows of {place} have only an old vector, and would lose it.",
        "Write their new vectors or delete the rows, then drop the old vectors.",
    ),
    "obstacles": (
        DatabaseError,
        "{place} cannot be migrated in place, as it has {found}.",
        "Remove it, and create it again after `drop-old`; or copy the rows into a table without it.",
    ),
    "in the way": (
        MigrationError,
        "{place} has {found}, which is in the way of {steps}.",
        "Remove it, and create it again after `drop-old`.",
    ),
    "other column": (
        MigrationError,
        "A migration of column {other!r} of {place} is in progress, and a collection has one migration at a time.",
        "Finish or discard that migration first (`column={other}`).",
    ),
    "not ours": (DatabaseError, "{place!r} was not created by a migration, which needs this name.", "Rename it."),
    "ids": (
        ParameterError,
        "The ids in {place!r} are of type {kind}, not integers, strings or UUIDs.",
        "Pass another column as `ids=…`.",
    ),
    "cursor": (ParameterError, "Got the cursor {place!r}, which no scan of this table returned.", "Pass another one."),
    "condition": (
        ParameterError,
        "Got the condition `rows={place!r}`, which is rejected ({reason}).",
        "Pass `rows=…` as {example}.",
    ),
    "full disk": (StorageError, "The disk is full at {place} ({reason}).", "Free disk space there, and run it again."),
    "no answer": (
        DatabaseUnavailableError,
        "Got no answer from {place} ({reason}).",
        "Start the server, or try again later.",
    ),
    "in use": (DatabaseUnavailableError, "Another process uses {place} ({reason}).", "Close it, or try again later."),
    "no access": (
        DatabaseError,
        "Got no access to {place} ({reason}).",
        "Set the environment variable {variable} to a key that may read and write.",
    ),
    "rejected": (
        DatabaseError,
        "Got an error from {place}: {reason}",
        "Fix the cause that the database reports, and run it again.",
    ),
    "damaged": (CorruptFileError, "{place} is damaged, or of another kind ({reason}).", "Restore it from a backup."),
}


def refusal(what: str, place: object, reason: object = "", **facts: object) -> CongruenceError:
    """Return one of the errors that several backends raise, by its name."""
    kind, wrong, fix = _ERRORS[what]
    return kind(*(text.format(place=place, reason=reason, **facts) for text in (wrong, fix)))


def refuse(wrong: object, what: str, place: object, **facts: object) -> None:
    """Raise one of the errors that several backends raise, if something is wrong."""
    if wrong:
        raise refusal(what, place, **facts)


def only_name(names: Iterable[str], what: str, place: object, option: str) -> str:
    """Return the only name. Raises ParameterError if there are none or several."""
    names = sorted(names)
    if not names:
        fixes = {"table": "Check the address.", "column": "Check the address and the table."}
        raise ParameterError(f"{place} has no {what}.", fixes.get(option, f"Pass `{option}=…`."))
    if len(names) > 1:
        shown = ", ".join(map(repr, names[:20]))
        raise ParameterError(f"{place} has {len(names)} {what} ({shown}).", f"Pass `{option}=…` with the name of one.")
    return names[0]


def check_name(name: _Name, names: Iterable[str], place: object, option: str) -> _Name:
    """Return a name if it is one of ``names``, or None. Raises ParameterError."""
    names = list(names)
    if name is not None and name not in names:
        shown = ", ".join(map(repr, names[:20])) or "none"
        raise ParameterError(
            f"Got {option}={name!r}; expected one of those in {place}: {shown}.",
            f"Pass another `{option}=…`.",
            argument=option,
            expected=names,
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


def check_writable(folder: Path) -> None:
    """Raise StorageError if no file can be created in a folder."""
    with refusing(f"while creating a file in {folder}", StorageError), tempfile.TemporaryFile(dir=folder):
        pass
