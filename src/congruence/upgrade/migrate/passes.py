"""Passes over all rows, here or on an engine: the first writes the new vectors, later ones repair what has changed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence._utils.engine import Engine
from congruence.databases import Block, Cursor, Database, PairedBlock, RowRange, WrittenFile
from congruence.errors import DatabaseUnavailableError, MigrationError, ParameterError
from congruence.upgrade.migrate.journal import Journal, hashes, id_digests, pair_digests, row_digests
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.written import Marks

PASSES = 5  # maximum number of repair passes; a table that changes faster than it is read would never be complete
CHECKPOINT_SECONDS = 5.0  # seconds between checkpoints, i.e. the work that a kill may lose.
SAMPLE_IDS = 1000  # number of ids that the journal keeps for verification
RANGE_BYTES = 256 * 2**20  # target size of a range of rows, in bytes of old vectors
_BLOCK_BYTES = 8 * 2**20  # the same of a block
EARLIER_DIGITS = 32  # of a checksum of earlier versions, as hexadecimal text

_T = TypeVar("_T")


@dataclass
class Retry:
    """Retry with exponential backoff while a database does not answer."""

    attempts: int = 6  # of each step, including the first
    first: float = 0.5  # seconds before the second, doubled up to a minute
    sleep: Callable[[float], object] = time.sleep
    log: Callable[[str], object] | None = None  # called with a message before each wait
    transient: tuple[type[Exception], ...] = (DatabaseUnavailableError,)

    def of(self, database: Database) -> Retry:
        """Return the same for the errors of a database."""
        return replace(self, transient=(DatabaseUnavailableError, *database.transient))

    def __call__(self, step: Callable[..., _T], *arguments: Any) -> _T:
        """Run a step, retry it after transient errors, and return its result."""
        for attempt in range(1, self.attempts):
            try:
                return step(*arguments)
            except self.transient as error:
                self.wait(attempt, error)
        return step(*arguments)

    def wait(self, attempt: int, error: BaseException) -> None:
        """Wait after the given failed attempt, counted from 1."""
        seconds = min(self.first * 2 ** (attempt - 1), 60.0)
        if self.log is not None:
            self.log(f"the database does not answer ({error}); trying again in {seconds:g} s")
        self.sleep(seconds)

    def scan(self, read: Callable[..., Iterator[Block]], after: Cursor | None, batch: int) -> Iterator[Block]:
        """Scan by ``scan`` or ``unmapped`` of a database; after a transient error, continue after the last block."""
        attempt = 0
        while True:
            try:
                for block in read(after=after, batch=batch):
                    yield block
                    after, attempt = block.cursor, 0
                return
            except self.transient as error:
                attempt += 1
                if attempt >= self.attempts:
                    raise
                self.wait(attempt, error)


def checksum_of(ids: pa.Array, vectors: np.ndarray, *, earlier: bool = False) -> int:
    """Return the sum of digests of id and vector, (b,) and (b, dim), which does not depend on the order of rows.

    ``earlier``: as the first versions of this library computed it.
    """
    if not earlier:
        return int(row_digests(ids, vectors).sum(dtype=np.uint64))
    words = hashes(ids, vectors, 16).view("<u4").sum(axis=0, dtype=np.uint64).tolist()
    return sum(word << 32 * k for k, word in enumerate(words))


def checksum_text(total: int, *, earlier: bool = False) -> str:
    """Return a checksum, modulo 2⁶⁴ (earlier 2¹²⁸), as hexadecimal text."""
    return f"{total % 2**128:032x}" if earlier else f"{total % 2**64:016x}"


class Sample:
    """A uniform sample of ids: those with the smallest hashes, in whatever order and however often they are read."""

    def __init__(self, ids: Sequence[int | str] = ()) -> None:
        self._keys: dict[int | str, int] = {}
        self.add(ids)

    def add(self, ids: pa.Array | Sequence[int | str]) -> None:
        """Add ids, of which the sample may have some already."""
        keys = id_digests(ids if isinstance(ids, pa.Array) else pa.array(map(str, ids), pa.large_string()))
        if len(self._keys) == SAMPLE_IDS:
            few = np.flatnonzero(keys < max(self._keys.values()))
        else:
            few = np.argpartition(keys, SAMPLE_IDS)[:SAMPLE_IDS] if len(keys) > SAMPLE_IDS else np.arange(len(keys))
        names = ids.take(pa.array(few)).to_pylist() if isinstance(ids, pa.Array) else [ids[k] for k in few.tolist()]
        self._keys |= zip(names, keys[few].tolist(), strict=True)
        if len(self._keys) > SAMPLE_IDS:
            self._keys = dict(sorted(self._keys.items(), key=lambda item: item[1])[:SAMPLE_IDS])

    @property
    def ids(self) -> list[int | str]:
        """The ids in the sample."""
        return list(self._keys)


def rows_per_block(dim: int) -> int:
    """Return the number of rows per block for vectors of this width; 0 is that of a table without rows."""
    return int(max(64, min(16384, _BLOCK_BYTES // (4 * max(dim, 1)))))


class Found:
    """What a pass has found: counts, a sample of ids, the checksum of the old vectors, and right new vectors."""

    def __init__(self) -> None:
        self.rows = self.written = self.old = 0
        self.sample, self.marks = Sample(), [np.empty(0, "<u8")]
        self.files: list[WrittenFile] = []  # to commit

    def plain(self) -> dict[str, Any]:
        """Return all as plain data, as engines pass it on."""
        marks = base64.b64encode(np.concatenate(self.marks).astype("<u8").tobytes()).decode()
        return {**vars(self), "sample": self.sample.ids, "marks": marks}

    def counts(self, removed: int = 0) -> dict[str, Any]:
        """Return what a pass over all rows has found, of which the journal keeps all but "marks" and "sample"."""
        counts = {"rows": self.rows, "written": self.written, "removed": removed, "old": checksum_text(self.old)}
        return {**counts, "marks": np.concatenate(self.marks), "sample": self.sample.ids}

    def add(self, result: dict[str, Any]) -> None:
        """Add the plain data of another range of rows."""
        self.rows += result["rows"]
        self.written += result["written"]
        self.old += result["old"]
        self.files += result["files"]
        self.sample.add(result["sample"])
        self.marks.append(np.frombuffer(base64.b64decode(result["marks"]), "<u8"))


#: Which rows of a block to write, and their vectors; None if there are none.
Changes = tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class Work:
    """What a pass does with a range of rows: ``change`` is ``fill``, ``compare`` or ``only_add_up``.

    Called here or by an engine's workers.
    """

    change: Callable[[Work, PairedBlock, Found], Changes]
    database: Database
    mapper: RowMapper
    callback: Callable[[int], object] | None = None  # in this process: called with the number of rows of each block
    marks: Marks | None = None  # of the new vectors that the migration wrote, if it was ever switched
    write: bool = True

    def __call__(self, rows: RowRange) -> dict[str, Any]:
        """Process a range, and return what was found as plain data."""
        found = Found()

        def changed(block: PairedBlock) -> Changes:
            found.rows += len(block.ids)
            result = self.change(self, block, found)
            found.written += 0 if result is None else len(result[1])
            if self.callback is not None:
                self.callback(len(block.ids))
            return result if self.write else None

        found.files = self.database.revise(rows, rows_per_block(self.mapper.old.dim), changed)
        return found.plain()


def fill(work: Work, block: PairedBlock, found: Found) -> Changes:
    """Map the rows that have no new vector, and sample the ids of all."""
    found.sample.add(block.ids)
    missing = ~block.has_new
    if not missing.any():
        return None
    # Map whole blocks, because matrix products of other sizes may differ in the last digits.
    vectors = work.mapper.encoded(Block(block.ids, block.old, block.modalities, 0))
    return missing, vectors if missing.all() else vectors[missing]


def compare(work: Work, block: PairedBlock, found: Found) -> Changes:
    """Map the rows whose new vector is missing or wrong, and sample their ids.

    New vectors that the application wrote after a switch stay.
    """
    right, pairs, digests = add_up(work, block, found)
    if right.all():
        found.marks.append(digests)
        return None
    wanted = work.database.as_stored(work.mapper(block.ids, block.old, block.modalities))
    differs = work.mapper.new.differs(block.new, wanted)
    theirs = np.zeros(len(differs), bool)
    if work.marks is not None and differs.any():
        theirs = differs & block.new.any(axis=1) & work.marks.theirs(block.ids, block.old, block.new)
    wrong, ours = ~block.has_new | (differs & ~theirs), block.has_new & ~differs
    found.marks.append(digests[ours])
    work.mapper.remember(pairs[ours], block.modalities)
    if not wrong.any():
        return None
    ids = block.ids.filter(pa.array(wrong))
    found.sample.add(ids.filter(pa.array(work.mapper.maps(ids))).to_pylist())
    # Of rows whose other fields have changed, theirs is written again.
    vectors = np.where(theirs[:, None], block.new, work.mapper.new.encode(wanted))
    mapped = pair_digests(row_digests(block.ids, block.old), row_digests(block.ids, vectors))
    work.mapper.remember(mapped[wrong & ~theirs], block.modalities)
    return wrong, np.ascontiguousarray(vectors[wrong])


def add_up(work: Work, block: PairedBlock, found: Found) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add to the checksum of the old vectors; return which rows are as this process mapped them, and digests.

    These rows need not be mapped again. The digests are ``pair_digests``, and those of the new vectors for the marks.
    """
    old, new = row_digests(block.ids, block.old), row_digests(block.ids, block.new)
    found.old += int(old.sum(dtype=np.uint64))
    pairs = pair_digests(old, new)
    right = block.has_new & work.mapper.has_mapped(pairs, block.modalities)
    marked = new if work.marks is None or not work.marks.earlier else work.marks.digests(block.ids, block.new)
    return right, pairs, marked


def only_add_up(work: Work, block: PairedBlock, found: Found) -> Changes:
    """Add to the checksum of the old vectors."""
    add_up(work, block, found)
    return None


@dataclass(frozen=True)
class Passes:
    """The passes of a migration over all rows, in this process or on an engine; each can be repeated."""

    database: Database
    mapper: RowMapper
    retry: Retry
    engine: Engine | None = None
    range_bytes: int = RANGE_BYTES  # of old vectors, the unit of work of one task
    selection: Database | None = None  # the rows to map, if the others keep their vectors

    def __post_init__(self) -> None:
        if self.engine is not None and not self.database.capabilities.shared:
            raise ParameterError(
                f"Got {self.database.kind} for an engine; expected Parquet or Arrow files or a LanceDB table, which "
                "workers share.",
                "Migrate it with `engine='local'`.",
            )

    def select(self) -> None:
        """Read which rows to map, if the others keep their vectors."""
        if (chosen := self.selection) is None:
            return
        # Copies: a column of a client's batch would keep the vectors in memory.
        ids = self.retry(lambda: [block.ids.take(pa.array(range(len(block.ids)))) for block in chosen.scan()])
        self.mapper.selected = pa.concat_arrays(ids) if ids else pa.array([], pa.large_string())

    def fill(self, journal: Journal, folder: Path, callback: Callable[[int], object] | None = None) -> None:
        """Write the new vectors of all rows that have none, or of all after the journal's cursor."""
        by_ranges = self.database.by_ranges
        if by_ranges or journal.cursor is None:  # ranges that were written are not mapped again, but counted again
            journal.cursor, journal.rows, journal.sample = None, 0, []
        sample, rows, cursor = Sample(journal.sample), journal.rows, journal.cursor
        files: list[WrittenFile] = []
        unsaved, saved_at = False, time.monotonic()

        def save() -> None:
            self.retry(self.database.take, files)
            files.clear()
            journal.cursor, journal.rows, journal.sample = cursor, rows, sample.ids
            journal.write(folder)

        with closing(self._run(fill, callback) if by_ranges else self._fill_from(journal, callback)) as results:
            try:
                for result in results:
                    rows, cursor, unsaved = rows + result["rows"], result.get("cursor"), True
                    sample.add(result["sample"])
                    files += result["files"]
                    if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                        save()
                        unsaved, saved_at = False, time.monotonic()
            finally:
                if unsaved:  # also when interrupted, so that these rows are not written again
                    save()

    def _fill_from(self, journal: Journal, callback: Callable[[int], object] | None) -> Generator[dict[str, Any]]:
        """Map and write each block after the cursor, and yield what ``_run`` would; the three steps overlap."""
        database, mapper, reader = self.database, self.mapper, self.database.reader()

        def mapped(after: Cursor | None) -> Iterator[tuple[Block, np.ndarray]]:
            for block in run_ahead(self.retry.scan(read, after, rows_per_block(mapper.old.dim))):
                yield block, mapper.encoded(block)

        # What a killed run wrote after its last checkpoint is neither counted nor in the sample.
        read, after = reader.scan if journal.resumed else reader.unmapped, journal.cursor
        try:
            for _ in range(PASSES):
                for block, vectors in run_ahead(mapped(after)):
                    self.retry(database.write, block.ids, vectors)
                    if callback is not None:
                        callback(len(block.ids))
                    yield {"rows": len(block.ids), "sample": block.ids, "files": [], "cursor": block.cursor}
                # Of rows that move while others are written, a scan passes over some.
                if not database.rows_move or self.retry(database.count, "new") == self.retry(database.count):
                    break
                read, after = reader.unmapped, None
        finally:
            if reader is not database:
                reader.close()

    def repair(
        self, callback: Callable[[int], object] | None = None, *, marks: Marks | None = None, write: bool = True
    ) -> dict[str, Any]:
        """Write new vectors that differ from the mapped old ones, and remove those without rows.

        With ``marks``, vectors that have none stay. Returns the counts, the digests of the vectors that were right
        ("marks"), and ids of rows that were not ("sample"). If not ``write``, "written" counts what has to be.
        """
        self.select()
        self.mapper.settle()
        found, removed = Found(), 0

        def remove() -> None:
            nonlocal removed  # also of attempts that failed on the way
            for ids in self.database.orphans():
                if marks is not None:  # rows of the application's that exist without an old vector
                    theirs = self.database.fetch(ids, "new")
                    stay = self.database.exist(theirs.ids, "old") & ~marks.has(theirs.ids, theirs.vectors)
                    ids = theirs.ids.filter(pa.array(~stay))
                removed += len(ids)
                self.database.delete(ids)

        for result in self._run(compare, callback, marks=marks, write=write):
            found.add(result)
        self.retry(remove)
        # Files that can no longer be committed count as written, so that another pass follows.
        self.retry(self.database.take, found.files)
        return found.counts(removed)

    def checksum(self, *, earlier: bool = False) -> tuple[int, str]:
        """Return the number of rows with an old vector, and the checksum of these."""

        def added() -> tuple[int, str]:
            found = Found()
            if self.engine is not None and not earlier:
                for result in self._run(only_add_up):
                    found.add(result)
            else:
                for block in self.database.scan("old", batch=rows_per_block(self.mapper.old.dim)):
                    found.rows += len(block.ids)
                    found.old += checksum_of(block.ids, block.vectors, earlier=earlier)
            return found.rows, checksum_text(found.old, earlier=earlier)

        return self.retry(added)

    def _run(
        self,
        change: Callable[[Work, PairedBlock, Found], Changes],
        callback: Callable[[int], object] | None = None,
        **options: Any,
    ) -> Generator[dict[str, Any]]:
        """Yield the results of a kind of work on all ranges of rows."""
        ranges = self.database.ranges(max(1, self.range_bytes // (4 * max(self.mapper.old.dim, 1))))
        if self.engine is None:
            work = Work(change, self.database, self.mapper, callback, **options)
            for rows in ranges:
                yield self.retry(work, rows)
            return
        if self.mapper.native:
            raise MigrationError(
                "Got a migration with re-embedded rows for an engine, whose workers do not have these vectors.",
                "Continue with `engine='local'`.",
            )
        for result in self.engine.run(Work(change, self.database, self.mapper, **options), list(ranges)):
            if callback is not None:
                callback(result["rows"])
            yield result


def paced(rate: float, callback: Callable[[int], object] | None = None) -> Callable[[int], object]:
    """Return a callback that waits until no more than ``rate`` rows per second were told it on average."""
    started, told = time.monotonic(), 0

    def tell(rows: int) -> None:
        nonlocal told
        told += rows
        if callback is not None:
            callback(rows)
        time.sleep(max(0.0, told / rate - (time.monotonic() - started)))

    return tell
