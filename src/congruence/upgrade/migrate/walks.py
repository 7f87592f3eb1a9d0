"""Where a migration walks over all rows: in this process, or, by an engine, on other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from congruence.databases import Database
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.passes import Checksum, Retry, checksum_of, fill, repair

__all__ = ["LocalWalks", "Walks"]


class Walks(Protocol):
    """The walks of a migration; each may be made again after it was broken off."""

    def begin(self, database: Database) -> None:
        """Make ready for a database. Raises ParameterError for one that these walks cannot go over."""

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
        """Write the new vectors of all rows."""

    def repair(
        self,
        database: Database,
        mapper: RowMapper,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> dict[str, object]:
        """Compare every new vector with what the map gives, and write those that differ."""

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors."""


class LocalWalks:
    """In this process."""

    def begin(self, database: Database) -> None:
        """Do nothing: every database will do."""

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
        """Write the new vectors of all rows; see :meth:`Walks.fill`."""
        fill(database, mapper, journal, folder, dim, retry, callback)

    def repair(
        self,
        database: Database,
        mapper: RowMapper,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> dict[str, object]:
        """Compare and repair; see :meth:`Walks.repair`."""
        return repair(database, mapper, dim, retry, callback)

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors; see :meth:`Walks.checksum`."""
        return retry(database, lambda: checksum_of(database, "old", dim))
