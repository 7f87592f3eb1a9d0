"""The passes of a migration on an engine: workers read ranges of rows, map them, and write the new vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence.databases import Database, PairedBlock, Partitioned, WrittenFile
from congruence.databases.parquet import Tables
from congruence.engines.dataset import Fragment
from congruence.engines.engine import Engine
from congruence.errors import MigrationError, ParameterError
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.migration import Migration
from congruence.upgrade.migrate.passes import (
    CHECKPOINT_SECONDS,
    SAMPLE_IDS,
    Checksum,
    Executor,
    rows_per_block,
    wrong_rows,
)

#: Bytes of old vectors per range of rows, the unit of work of one task.
RANGE_BYTES = 256 * 2**20


class EngineExecutor(Executor):
    """The passes of a migration over Parquet or Arrow files, or a LanceDB table, that all workers can read and write.

    Rows never pass through the driver. For files, a worker writes the new vectors of its range at their row numbers,
    and then marks them as written. A range may therefore be processed twice, and rows that a killed run has not marked
    are processed again. Each complete new file is written by one task. For a Lance table, a worker writes complete
    files of the new column, and the driver commits them every few seconds; rows that others have changed in the
    meantime are left to the next pass.

    Parameters
    ----------
    engine : Engine
        ``RayEngine``, or ``LocalEngine`` to run the passes in this process.
    range_bytes : int
        Bytes of old vectors per range. Larger files are divided at row-group boundaries; smaller fragments of a Lance
        table are combined into one task up to this size.

    Examples
    --------
    >>> from congruence.engines import EngineExecutor, RayEngine
    >>> executor = EngineExecutor(RayEngine("auto"))
    >>> with Migration(open_database("photos"), mapping, executor=executor) as migration:  # doctest: +SKIP
    ...     migration.run()
    """

    def __init__(self, engine: Engine, *, range_bytes: int = RANGE_BYTES) -> None:
        self.engine, self.range_bytes = engine, range_bytes

    def begin(self, database: Database) -> None:
        """Let the engine also write the new files of a data set."""
        files = _shared(database)
        if not isinstance(files, Tables):
            return

        def spread(jobs: list[tuple[int, Path]]) -> None:
            fragments = [
                Fragment(f"file-{number:06d}", str(target.absolute()), 1, 0, number=number) for number, target in jobs
            ]
            for _ in self.engine.run(_Writes(files), fragments):
                pass

        files.spread = spread

    def fill(self, migration: Migration, journal: Journal, callback: Callable[[int], object] | None = None) -> None:
        """Write the new vectors of all rows that have none."""
        _refuse_native(migration.mapper)
        rows, dim = _shared(migration.database), migration.info.dim
        journal.cursor, journal.rows, journal.sample = None, 0, []
        kept: list[tuple[float, int | str]] = []
        waiting: list[WrittenFile] = []
        written = time.monotonic()

        def take() -> None:
            migration.retry(rows, lambda: rows.take(waiting))
            waiting.clear()

        try:
            work = _Fills(rows, migration.mapper, rows_per_block(dim))
            for result in self.engine.run(work, self._ranges(rows, dim)):
                kept = sorted([*kept, *map(tuple, result["sample"])])[:SAMPLE_IDS]
                journal.rows += result["rows"]
                waiting += result["files"]
                if callback is not None:
                    callback(result["rows"])
                if time.monotonic() - written > CHECKPOINT_SECONDS:
                    take()
                    journal.write(migration.folder)
                    written = time.monotonic()
        finally:  # also after an interruption, so that vectors already written need not be written again
            take()
            journal.sample = [name for _, name in kept]
            journal.write(migration.folder)

    def repair(self, migration: Migration, callback: Callable[[int], object] | None = None) -> dict[str, object]:
        """Rewrite every new vector that differs from the map's, and compute the checksum of the old vectors."""
        _refuse_native(migration.mapper)
        old, written = self._pass(migration, migration.mapper, callback)
        return {"rows": old.rows, "written": written, "removed": 0, "old": str(old)}

    def checksum(self, migration: Migration) -> Checksum:
        """Return the checksum of the old vectors."""
        return self._pass(migration, None, None)[0]

    def _pass(
        self, migration: Migration, mapper: RowMapper | None, callback: Callable[[int], object] | None
    ) -> tuple[Checksum, int]:
        rows, dim = _shared(migration.database), migration.info.dim
        old, written = Checksum(), 0
        files: list[WrittenFile] = []
        for result in self.engine.run(_Compares(rows, mapper, rows_per_block(dim)), self._ranges(rows, dim)):
            old.merge(result["rows"], result["old"])
            written += result["written"]
            files += result["files"]
            if callback is not None:
                callback(result["rows"])
        # Files that can no longer be committed count as written, so that another pass follows.
        migration.retry(rows, lambda: rows.take(files))
        return old, written

    def _ranges(self, rows: Partitioned, dim: int) -> list[Fragment]:
        most = max(1, self.range_bytes // (4 * dim))
        return [Fragment(f"{rows.unit} {a} to {b - 1}", "", b - a, 0, start=a) for a, b in rows.ranges(most)]


def _shared(database: Database) -> Partitioned:
    """Return the database if workers can share it."""
    if not isinstance(database, Partitioned):
        raise ParameterError(
            f"Got {database.kind} for an engine; expected Parquet or Arrow files or a LanceDB table, which "
            "workers share.",
            "Migrate it with `engine='local'`.",
        )
    return database


def _refuse_native(mapper: RowMapper) -> None:
    if mapper.native is not None:
        raise MigrationError(
            "Got a migration with re-embedded rows for an engine, whose workers do not have these vectors.",
            "Continue with `engine='local'`.",
        )


@dataclass(frozen=True)
class _Fills:
    """Maps the rows of a range that have no new vector; returns their number, a sample of ids, and files to commit."""

    rows: Partitioned
    mapper: RowMapper
    batch: int

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        rows, sample = 0, _Sample(fragment.start)

        def change(block: PairedBlock) -> tuple[np.ndarray, np.ndarray] | None:
            nonlocal rows
            rows += len(block.ids)
            sample.add(block)
            missing = ~block.has_new
            if not missing.any():
                return None
            # Map whole blocks, because matrix products of other sizes may differ in the last digits.
            vectors = self.mapper.new.encode(self.mapper(block.ids, block.old, block.modalities))
            return missing, vectors if missing.all() else vectors[missing]

        files = self.rows.revise(fragment.start, fragment.start + fragment.rows, self.batch, change)
        return {"rows": rows, "sample": sample.kept, "files": files}


@dataclass(frozen=True)
class _Compares:
    """Computes the checksum of a range's old vectors and, if there is a map, rewrites wrong new vectors."""

    rows: Partitioned
    mapper: RowMapper | None
    batch: int

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        old, written = Checksum(), 0

        def change(block: PairedBlock) -> tuple[np.ndarray, np.ndarray] | None:
            nonlocal written
            old.add(block.ids, block.old)
            corrected = None if self.mapper is None else wrong_rows(self.rows, self.mapper, block)
            if corrected is not None:
                written += len(corrected[1])
            return corrected

        files = self.rows.revise(fragment.start, fragment.start + fragment.rows, self.batch, change)
        return {"rows": old.rows, "written": written, "old": str(old), "files": files}


@dataclass(frozen=True)
class _Writes:
    """Writes the new version of one of the data set's files."""

    files: Tables

    def __call__(self, fragment: Fragment) -> dict[str, Any]:
        assert fragment.number is not None
        return {"rows": self.files.write_part(fragment.number, Path(fragment.path))}


class _Sample:
    """Keeps the ids with the smallest random keys of a range.

    A row's key depends only on its range and its position in it. The smallest keys of all ranges are therefore a
    uniform sample, however the ranges are divided into blocks, and however often a range is processed.
    """

    def __init__(self, start: int) -> None:
        self.kept: list[tuple[float, int | str]] = []
        self._rng = np.random.default_rng([0, start])

    def add(self, block: PairedBlock) -> None:
        keys = self._rng.random(len(block.ids))
        smallest = np.argsort(keys)[:SAMPLE_IDS]
        keyed = zip(keys[smallest].tolist(), block.ids.take(smallest).to_pylist(), strict=True)
        self.kept = sorted([*self.kept, *keyed])[:SAMPLE_IDS]
