"""Passes of a migration over all rows: in this process or, with an engine, on other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from congruence.databases import Database
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.passes import Checksum, Retry, checksum_of, fill, repair

__all__ = ["Executor", "LocalExecutor"]


class Executor(Protocol):
    """The passes of a migration over all rows; each can be repeated after it was interrupted."""

    def begin(self, database: Database) -> None:
        """Prepare for a database. Raises ParameterError if it is not supported."""

    def fill(
        self,
        database: Database,
        mapper: RowMapper,
        journal: Journal,
        folder: Path,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> None:
        """Write the new vectors of all rows, and record the progress in the journal.

        Parameters
        ----------
        database : Database
        mapper : RowMapper
            Maps blocks of rows.
        journal : Journal
            An interrupted pass resumes at its cursor.
        folder : Path
            Folder of the journal.
        dim : int
            Width of the old vectors.
        retry : Retry
            Retries steps of the database.
        callback : callable or None
            Called with the number of rows of each block.
        """

    def repair(
        self,
        database: Database,
        mapper: RowMapper,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> dict[str, object]:
        """Compare each new vector with the mapped old one, and write those that differ.

        Parameters
        ----------
        database, mapper, dim, retry, callback
            As for :meth:`fill`.

        Returns
        -------
        dict
            As for :func:`congruence.upgrade.migrate.passes.repair`.
        """

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors, whose width is ``dim``."""


class LocalExecutor:
    """Passes over all rows in this process."""

    def begin(self, database: Database) -> None:
        """Do nothing, since every database is supported."""

    def fill(
        self,
        database: Database,
        mapper: RowMapper,
        journal: Journal,
        folder: Path,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> None:
        """Write the new vectors of all rows; see :meth:`Executor.fill`."""
        fill(database, mapper, journal, folder, dim, retry, callback)

    def repair(
        self,
        database: Database,
        mapper: RowMapper,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> dict[str, object]:
        """Compare and repair; see :meth:`Executor.repair`."""
        return repair(database, mapper, dim, retry, callback)

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors; see :meth:`Executor.checksum`."""
        return retry(database, lambda: checksum_of(database, "old", dim))
