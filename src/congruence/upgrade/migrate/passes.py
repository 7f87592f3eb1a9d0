"""Passes over all rows: the first writes the new vectors, later ones repair what others have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence.databases import Block, Database, PairedBlock, VectorSide
from congruence.errors import DatabaseUnavailableError, MigrationError, StorageError
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper

if TYPE_CHECKING:
    from congruence.databases import Cursor


PASSES = 5  # maximum number of repair passes; a table that changes faster than it is read would never be complete
CHECKPOINT_SECONDS = 5.0  # seconds between checkpoints, i.e. the work that a kill may lose.
SAMPLE_IDS = 1000  # number of ids that the journal keeps for verification
_BLOCK_BYTES = 8 * 2**20  # target size of a block, in bytes of old vectors

_T = TypeVar("_T")


def _transient_errors(database: Database) -> tuple[type[Exception], ...]:
    """Return the errors after which a retry may succeed."""
    return (DatabaseUnavailableError, *database.transient)


@dataclass
class Retry:
    """Retry with exponential backoff while a database does not answer."""

    attempts: int = 6  # of each step, including the first
    first: float = 0.5  # seconds before the second, doubled up to a minute
    sleep: Callable[[float], object] = time.sleep
    log: Callable[[str], object] | None = None  # called with a message before each wait

    def __call__(self, database: Database, step: Callable[[], _T]) -> _T:
        """Run a step, retry it after transient errors, and return its result."""
        for attempt in range(1, self.attempts):
            try:
                return step()
            except _transient_errors(database) as error:
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


def scan_with_retry(database: Database, retry: Retry, after: Cursor | None, batch: int) -> Iterator[Block]:
    """Scan the old side; after a transient error, continue after the last block."""
    attempt = 0
    while True:
        try:
            for block in database.scan("old", after=after, batch=batch):
                yield block
                after, attempt = block.cursor, 0
            return
        except _transient_errors(database) as error:
            attempt += 1
            if attempt >= retry.attempts:
                raise
            retry.wait(attempt, error)


def fill(
    database: Database,
    mapper: RowMapper,
    journal: Journal,
    folder: Path,
    dim: int,
    retry: Retry,
    callback: Callable[[int], object] | None = None,
) -> None:
    """Write the new vectors of all rows, starting at the journal's cursor; reading, mapping and writing overlap."""
    if journal.cursor is None:  # an engine may have written some rows, in any order
        journal.rows, journal.sample = 0, []
    reservoir = Reservoir(journal.sample, journal.rows)
    batch = rows_per_block(dim)
    reader = database.reader()

    def mapped() -> Iterator[tuple[Block, np.ndarray]]:
        for block in run_ahead(scan_with_retry(reader, retry, journal.cursor, batch)):
            yield block, mapper.new.encode(mapper(block.ids, block.vectors, block.modalities))

    def save(block: Block) -> None:
        retry(database, database.flush)
        journal.cursor, journal.rows = block.cursor, reservoir.seen
        journal.write(folder)

    try:
        unsaved, saved_at = None, time.monotonic()
        try:
            for block, vectors in run_ahead(mapped()):
                retry(database, lambda block=block, vectors=vectors: database.write(block.ids, vectors))  # type: ignore[misc]
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


def repair(
    database: Database,
    mapper: RowMapper,
    dim: int,
    retry: Retry,
    callback: Callable[[int], object] | None = None,
    *,
    write: bool = True,
) -> dict[str, object]:
    """Write new vectors that differ from the mapped old ones, remove those without rows, and return the counts."""
    reader = database.reader()

    def pass_over() -> dict[str, object]:
        old = Checksum()
        written = removed = 0
        for block in run_ahead(reader.scan_pairs(batch=rows_per_block(dim))):
            if (differences := wrong_rows(database, mapper, block)) is not None:
                wrong, vectors = differences
                written += len(vectors)
                if write:
                    database.write(block.ids.filter(pa.array(wrong)), vectors)
            old.add(block.ids, block.old)
            if callback is not None:
                callback(len(block.ids))
        for ids in reader.orphans():
            removed += len(ids)
            if write:
                database.delete(ids)
        if write:
            database.flush()
        return {"rows": old.rows, "written": written, "removed": removed, "old": str(old)}

    try:
        return retry(database, pass_over)
    finally:
        if reader is not database:
            reader.close()


def wrong_rows(database: Database, mapper: RowMapper, block: PairedBlock) -> tuple[np.ndarray, np.ndarray] | None:
    """Return which rows have a missing or wrong new vector, and their right vectors; None if all are right."""
    wanted = database.as_stored(mapper(block.ids, block.old, block.modalities))
    wrong = ~block.has_new
    if block.has_new.any():
        wrong |= mapper.new.differs(block.new, wanted)
    return (wrong, np.ascontiguousarray(mapper.new.encode(wanted[wrong]))) if wrong.any() else None


def repair_until_equal(
    pass_over: Callable[[], dict[str, object]], journal: Journal, folder: Path, tell: Callable[[str], object]
) -> None:
    """Repeat repair passes until one finds no differences, and record each in the journal."""
    for number in range(1, PASSES + 1):
        tell(f"comparing, pass {number}")
        counts = pass_over()
        journal.passes = [*journal.passes[-9:], counts]
        journal.write(folder)
        if not counts["written"] and not counts["removed"]:
            return
    raise MigrationError(
        f"The table still changed in pass {PASSES} ({counts['written']:,} rows written, {counts['removed']:,} "
        "removed).",
        "Stop writers for the time of the switch, and pass `resume=True`.",
    )


def check_room(free: int | None, size: int) -> None:
    """Raise StorageError if the disk has no room for the new vectors."""
    if free is not None and free < size:
        raise StorageError(
            f"The database's disk has {free:,} bytes free, and {size:,} are needed.",
            "Free some, or pass `element_type='float16'`.",
        )


def checksum_of(database: Database, side: VectorSide, dim: int) -> Checksum:
    """Return the checksum of all vectors of one side, in one pass."""
    checksum = Checksum()
    for block in database.scan(side, batch=rows_per_block(dim)):
        checksum.add(block.ids, block.vectors)
    return checksum


class Executor(Protocol):
    """Runs the passes of a migration over all rows, each of which can be repeated after it was interrupted."""

    def begin(self, database: Database) -> None:
        """Prepare for a database, or refuse one that is not supported."""

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
        """Write the new vectors of all rows, as :func:`fill` does in this process."""

    def repair(
        self, database: Database, mapper: RowMapper, dim: int, retry: Retry, callback: Callable[[int], object] | None
    ) -> dict[str, object]:
        """Write new vectors that differ from the mapped old ones, as :func:`repair` does in this process."""

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors, of width ``dim``."""


class LocalExecutor:
    """Runs the passes in this process."""

    fill, repair = staticmethod(fill), staticmethod(repair)

    def begin(self, database: Database) -> None:
        """Accept every database."""

    def checksum(self, database: Database, dim: int, retry: Retry) -> Checksum:
        """Return the checksum of the old vectors, of width ``dim``."""
        return retry(database, lambda: checksum_of(database, "old", dim))
