"""Passes over all rows: the first writes the new vectors, later ones repair what others have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence.databases import Block, Cursor, Database, PairedBlock
from congruence.errors import DatabaseUnavailableError
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper

if TYPE_CHECKING:
    from congruence.upgrade.migrate.migration import Migration


PASSES = 5  # maximum number of repair passes; a table that changes faster than it is read would never be complete
CHECKPOINT_SECONDS = 5.0  # seconds between checkpoints, i.e. the work that a kill may lose.
SAMPLE_IDS = 1000  # number of ids that the journal keeps for verification
_BLOCK_BYTES = 8 * 2**20  # target size of a block, in bytes of old vectors

_T = TypeVar("_T")


@dataclass
class Retry:
    """Retry with exponential backoff while a database does not answer."""

    attempts: int = 6  # of each step, including the first
    first: float = 0.5  # seconds before the second, doubled up to a minute
    sleep: Callable[[float], object] = time.sleep
    log: Callable[[str], object] | None = None  # called with a message before each wait

    def __call__(self, database: Database, step: Callable[[], _T]) -> _T:
        """Run a step, retry it after transient errors, and return its result."""
        transient: tuple[type[Exception], ...] = (DatabaseUnavailableError, *database.transient)
        for attempt in range(1, self.attempts):
            try:
                return step()
            except transient as error:
                self.wait(attempt, error)
        return step()

    def wait(self, attempt: int, error: BaseException) -> None:
        """Wait after the given failed attempt, counted from 1."""
        seconds = min(self.first * 2 ** (attempt - 1), 60.0)
        if self.log is not None:
            self.log(f"the database does not answer ({error}); trying again in {seconds:g} s")
        self.sleep(seconds)


class Checksum:
    """Order-independent checksum of rows: the sum of 128-bit digests of id and vector, modulo 2¹²⁸."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Add rows: ids (b,) and vectors (b, dim)."""
        flat = np.ascontiguousarray(vectors, np.float32).tobytes()
        size = vectors.shape[1] * 4
        digests = b"".join(
            # Hashed in one call: a second update would take as long as a row of 512 numbers.
            blake2b(b"%b\0%b" % (str(name).encode(), flat[k : k + size]), digest_size=16).digest()
            for name, k in zip(ids.to_pylist(), range(0, len(ids) * size, size), strict=True)
        )
        words = np.frombuffer(digests, "<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64).tolist()
        self._sum = (self._sum + sum(word << 32 * k for k, word in enumerate(words))) % 2**128
        self.rows += len(ids)

    def merge(self, rows: int, text: str) -> None:
        """Add another checksum, given as its number of rows and its hexadecimal text."""
        self._sum = (self._sum + int(text, 16)) % 2**128
        self.rows += rows

    def __str__(self) -> str:
        return f"{self._sum:032x}"


@dataclass
class Reservoir:
    """Uniform random sample of a stream of ids (reservoir sampling, algorithm R)."""

    kept: list[int | str]
    seen: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, ids: pa.Array) -> None:
        """Add the next ids of the stream."""
        for name in ids.to_pylist():
            self.seen += 1
            if len(self.kept) < SAMPLE_IDS:
                self.kept.append(name)
            elif (place := int(self.rng.integers(self.seen))) < SAMPLE_IDS:
                self.kept[place] = name


def rows_per_block(dim: int) -> int:
    """Return the number of rows per block for vectors of this width."""
    return int(max(64, min(16384, _BLOCK_BYTES // (4 * dim))))


def _scan_with_retry(database: Database, retry: Retry, after: Cursor | None, batch: int) -> Iterator[Block]:
    """Scan the old side; after a transient error, continue after the last block."""
    attempt = 0
    transient: tuple[type[Exception], ...] = (DatabaseUnavailableError, *database.transient)
    while True:
        try:
            for block in database.scan("old", after=after, batch=batch):
                yield block
                after, attempt = block.cursor, 0
            return
        except transient as error:
            attempt += 1
            if attempt >= retry.attempts:
                raise
            retry.wait(attempt, error)


def wrong_rows(database: Database, mapper: RowMapper, block: PairedBlock) -> tuple[np.ndarray, np.ndarray] | None:
    """Return which rows have a missing or wrong new vector, and their right vectors; None if all are right."""
    wanted = database.as_stored(mapper(block.ids, block.old, block.modalities))
    wrong = ~block.has_new
    if block.has_new.any():
        wrong |= mapper.new.differs(block.new, wanted)
    return (wrong, np.ascontiguousarray(mapper.new.encode(wanted[wrong]))) if wrong.any() else None


class Executor:
    """Runs the passes of a migration over all rows, in this process; each can be repeated after an interruption."""

    def begin(self, database: Database) -> None:
        """Prepare for a database, or refuse one that is not supported."""

    def fill(self, migration: Migration, journal: Journal, callback: Callable[[int], object] | None = None) -> None:
        """Write the new vectors of all rows, starting at the journal's cursor; reading, mapping and writing overlap."""
        database, mapper, retry = migration.database, migration.mapper, migration.retry
        if journal.cursor is None:  # an engine may have written some rows, in any order
            journal.rows, journal.sample = 0, []
        reservoir = Reservoir(journal.sample, journal.rows)
        batch = rows_per_block(migration.info.dim)
        reader = database.reader()

        def mapped() -> Iterator[tuple[Block, np.ndarray]]:
            for block in run_ahead(_scan_with_retry(reader, retry, journal.cursor, batch)):
                yield block, mapper.new.encode(mapper(block.ids, block.vectors, block.modalities))

        def save(block: Block) -> None:
            retry(database, database.flush)
            journal.cursor, journal.rows = block.cursor, reservoir.seen
            journal.write(migration.folder)

        try:
            unsaved, saved_at = None, time.monotonic()
            try:
                for block, vectors in run_ahead(mapped()):
                    retry(database, partial(database.write, block.ids, vectors))
                    reservoir.add(block.ids)
                    unsaved = block
                    if callback is not None:
                        callback(len(block.ids))
                    if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                        save(block)
                        unsaved, saved_at = None, time.monotonic()
            finally:
                if unsaved is not None:  # also when interrupted, so that these rows are not written again
                    save(unsaved)
        finally:
            if reader is not database:
                reader.close()

    def repair(self, migration: Migration, callback: Callable[[int], object] | None = None) -> dict[str, object]:
        """Write new vectors that differ from the mapped old ones, remove those without rows, and return the counts."""
        database, batch = migration.database, rows_per_block(migration.info.dim)
        reader = database.reader()

        def pass_over() -> dict[str, object]:
            old = Checksum()
            written = removed = 0
            for block in run_ahead(reader.scan_pairs(batch=batch)):
                if (differences := wrong_rows(database, migration.mapper, block)) is not None:
                    wrong, vectors = differences
                    written += len(vectors)
                    database.write(block.ids.filter(pa.array(wrong)), vectors)
                old.add(block.ids, block.old)
                if callback is not None:
                    callback(len(block.ids))
            for ids in reader.orphans():
                removed += len(ids)
                database.delete(ids)
            database.flush()
            return {"rows": old.rows, "written": written, "removed": removed, "old": str(old)}

        try:
            return migration.retry(database, pass_over)
        finally:
            if reader is not database:
                reader.close()

    def checksum(self, migration: Migration) -> Checksum:
        """Return the checksum of the old vectors."""

        def pass_over() -> Checksum:
            checksum = Checksum()
            for block in migration.database.scan("old", batch=rows_per_block(migration.info.dim)):
                checksum.add(block.ids, block.vectors)
            return checksum

        return migration.retry(migration.database, pass_over)
