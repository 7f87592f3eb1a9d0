"""The walks of a migration by an engine: workers read stretches of files, map them, and write new vectors by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.ahead import run_ahead
from congruence.databases import Database, PairedBlock
from congruence.databases.parquet import Tables
from congruence.engines._base import Engine
from congruence.engines.dataset import Fragment
from congruence.errors import MigrationError, ParameterError
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.passes import (
    CHECKPOINT_SECONDS,
    SAMPLE_IDS,
    Checksum,
    Retry,
    repair_block,
    rows_a_block,
)

__all__ = ["EngineWalks"]

#: Bytes of old vectors from which a file is divided.
STRETCH_BYTES = 256 * 2**20


class EngineWalks:
    """Walks over a data set of Parquet or Arrow files that lies where all workers can read and write it.

    Rows never pass the driver. A worker writes the new vectors of its stretch by the number of their row, then the marks that they are there, so that a stretch may be
    done twice, and what a killed run had not marked is done again. The complete new files are written one a task.

    Parameters
    ----------
    engine : Engine
        :class:`RayEngine`, or :class:`LocalEngine` to try it.
    stretch_bytes : int
        Bytes of old vectors from which a file is divided, between row groups.

    Examples
    --------
    >>> from congruence.engines import EngineWalks, RayEngine
    >>> walks = EngineWalks(RayEngine("auto"))
    >>> with Migration(open_database("photos"), mapping, walks=walks) as migration:  # doctest: +SKIP
    ...     migration.run()
    """

    def __init__(self, engine: Engine, *, stretch_bytes: int = STRETCH_BYTES) -> None:
        self.engine, self.stretch_bytes = engine, stretch_bytes

    def begin(self, database: Database) -> None:
        """Have the database's new files written by the engine too. Raises ParameterError for other databases than files of tables."""
        files = _files(database)

        def spread(jobs: list[tuple[int, Path]]) -> None:
            fragments = [
                Fragment(f"file-{number:06d}", str(target.absolute()), 1, 0, number=number) for number, target in jobs
            ]
            for _ in self.engine.run(_Writes(files), fragments):
                pass

        files.spread = spread

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
        """Write the new vectors of all rows that have none.

        Raises
        ------
        NotFiniteError, ZeroRowError, ModalityError, ShapeError, CorruptFileError, StorageError
            With the name of the stretch.
        """
        _refuse_native(mapper)
        files = _files(database)
        journal.cursor, journal.rows, journal.sample = None, 0, []
        kept: list[tuple[float, int | str]] = []
        written = time.monotonic()
        try:
            for told in self.engine.run(_Fills(files, mapper, rows_a_block(dim)), self._stretches(files)):
                kept = sorted([*kept, *((key, one) for key, one in told["sample"])])[:SAMPLE_IDS]
                journal.rows += told["rows"]
                if callback is not None:
                    callback(told["rows"])
                if time.monotonic() - written > CHECKPOINT_SECONDS:
                    journal.write(folder)
                    written = time.monotonic()
        finally:
            journal.sample = [one for _, one in kept]
            journal.write(folder)

    def repair(
        self,
        database: Database,
        mapper: RowMapper,
        dim: int,
        retry: Retry,
        callback: Callable[[int], object] | None,
    ) -> dict[str, object]:
        """Compare every new vector with what the map gives, write those that differ, and sum up the old ones.

        Raises
        ------
        NotFiniteError, ZeroRowError, ModalityError, ShapeError, CorruptFileError, StorageError
            With the name of the stretch.
        """
        _refuse_native(mapper)
        return self._walk(_files(database), mapper, dim, callback)[1]

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors."""
        return self._walk(_files(database), None, dim, None)[0]

    def _walk(
        self, files: Tables, mapper: RowMapper | None, dim: int, callback: Callable[[int], object] | None
    ) -> tuple[Checksum, dict[str, object]]:
        old, written = Checksum(), 0
        for told in self.engine.run(_Compares(files, mapper, rows_a_block(dim)), self._stretches(files)):
            old.merge(told["rows"], told["old"])
            written += told["written"]
            if callback is not None:
                callback(told["rows"])
        return old, {"rows": old.rows, "written": written, "removed": 0, "old": str(old)}

    def _stretches(self, files: Tables) -> list[Fragment]:
        most = max(1, self.stretch_bytes // (4 * files.dim))
        return [Fragment(f"rows {a} to {b - 1}", "", b - a, 0, start=a) for a, b in files.stretches(most)]


def _files(database: Database) -> Tables:
    """Return the database as one that workers can share. Raises ParameterError."""
    if not isinstance(database, Tables):
        raise ParameterError(
            f"Got {database.kind} for an engine; expected Parquet or Arrow files, whose rows several machines can read and write at a time. "
            "Migrate it with engine='local', or map a Lance data set into another with transform_dataset."
        )
    return database


def _refuse_native(mapper: RowMapper) -> None:
    if mapper.native is not None:
        raise MigrationError(
            "Got a migration in which rows were re-embedded, for an engine; expected one that only maps: workers do not have the re-embedded vectors. "
            "Go on with engine='local'."
        )


@dataclass(frozen=True)
class _Fills:
    """Maps the rows of a stretch that have no new vector yet, and returns how many rows it has and a sample of their ids."""

    files: Tables
    mapper: RowMapper
    batch: int

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        rows, sample = 0, _Sample(fragment.start)
        for block, vectors in run_ahead(self._mapped(fragment)):
            if vectors is not None:
                missing = ~block.has_new
                ids = block.ids if missing.all() else block.ids.filter(missing)
                self.files.write(ids, vectors if missing.all() else vectors[missing])
            sample.add(block)
            rows += len(block.ids)
        self.files.flush()
        return {"rows": rows, "sample": sample.kept}

    def _mapped(self, fragment: Fragment) -> Iterator[tuple[PairedBlock, np.ndarray | None]]:
        stop = fragment.start + fragment.rows
        for block in self.files.scan_pairs(batch=self.batch, after=fragment.start, stop=stop):
            if block.has_new.all():
                yield block, None
            else:  # whole blocks: products of other sizes may differ in the last digits
                yield block, self.mapper.new.encode(self.mapper(block.ids, block.old, block.modalities))


@dataclass(frozen=True)
class _Compares:
    """Sums up the old vectors of a stretch and, with a map, writes new ones that are missing or wrong."""

    files: Tables
    mapper: RowMapper | None
    batch: int

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        old, written, stop = Checksum(), 0, fragment.start + fragment.rows
        for block in run_ahead(self.files.scan_pairs(batch=self.batch, after=fragment.start, stop=stop)):
            if self.mapper is not None:
                written += repair_block(self.files, self.mapper, block)
            old.add(block.ids, block.old)
        self.files.flush()
        return {"rows": old.rows, "written": written, "old": str(old)}


@dataclass(frozen=True)
class _Writes:
    """Writes the new file of one of the data set's files."""

    files: Tables

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        assert fragment.number is not None
        return {"rows": self.files.write_part(fragment.number, Path(fragment.path))}


class _Sample:
    """The ids with the smallest of random keys that belong to their rows: of all stretches together a uniform sample, however they are cut into blocks or done again."""

    def __init__(self, start: int) -> None:
        self.kept: list[tuple[float, int | str]] = []
        self._rng = np.random.default_rng([0, start])

    def add(self, block: PairedBlock) -> None:
        keys = self._rng.random(len(block.ids))
        few = np.argsort(keys)[:SAMPLE_IDS]
        found = zip(keys[few].tolist(), block.ids.take(few).to_pylist(), strict=True)
        self.kept = sorted([*self.kept, *found])[:SAMPLE_IDS]
