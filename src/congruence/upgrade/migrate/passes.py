"""Passes over all rows, here or on an engine: the first writes the new vectors, later ones repair what has changed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence._utils.engine import Engine
from congruence.databases import Block, Cursor, Database, PairedBlock, RowRange, WrittenFile
from congruence.errors import DatabaseUnavailableError, MigrationError, ParameterError
from congruence.upgrade.migrate.journal import Journal, hashes
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.written import Marks

PASSES = 5  # maximum number of repair passes; a table that changes faster than it is read would never be complete
CHECKPOINT_SECONDS = 5.0  # seconds between checkpoints, i.e. the work that a kill may lose.
SAMPLE_IDS = 1000  # number of ids that the journal keeps for verification
RANGE_BYTES = 256 * 2**20  # target size of a range of rows, in bytes of old vectors
_BLOCK_BYTES = 8 * 2**20  # the same of a block

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
        words = hashes(ids, vectors, 16).view("<u4").sum(axis=0, dtype=np.uint64).tolist()
        self._sum = (self._sum + sum(word << 32 * k for k, word in enumerate(words))) % 2**128
        self.rows += len(ids)

    def merge(self, rows: int, text: str) -> None:
        """Add another checksum, given as its number of rows and its hexadecimal text."""
        self._sum = (self._sum + int(text, 16)) % 2**128
        self.rows += rows

    def __str__(self) -> str:
        return f"{self._sum:032x}"


class Sample:
    """A uniform sample of ids: those with the smallest hashes, in whatever order and however often they are read."""

    def __init__(self, ids: Iterable[int | str] = ()) -> None:
        self._keys: dict[int | str, bytes] = {}
        self.add(ids)

    def add(self, ids: Iterable[int | str]) -> None:
        """Add ids, of which the sample may have some already."""
        largest = max(self._keys.values()) if len(self._keys) == SAMPLE_IDS else b"\xff" * 9
        for name in ids:
            key = blake2b(str(name).encode(), digest_size=8).digest()
            if key < largest:
                self._keys[name] = key
        if len(self._keys) > SAMPLE_IDS:
            self._keys = dict(sorted(self._keys.items(), key=lambda item: item[1])[:SAMPLE_IDS])

    @property
    def ids(self) -> list[int | str]:
        """The ids in the sample."""
        return list(self._keys)


def rows_per_block(dim: int) -> int:
    """Return the number of rows per block for vectors of this width."""
    return int(max(64, min(16384, _BLOCK_BYTES // (4 * dim))))


@dataclass(frozen=True)
class Work:
    """What a pass does with a range of rows; called here or by an engine's workers."""

    database: Database
    mapper: RowMapper
    batch: int
    callback: Callable[[int], object] | None = None  # in this process: called with the number of rows of each block
    marks: Marks | None = None  # of the new vectors that the migration wrote, if it was ever switched

    def __call__(self, rows: RowRange) -> dict[str, Any]:
        """Process a range, and return counts, a sample of ids, the checksum, and files to commit, as plain data."""
        found: dict[str, Any] = {"rows": 0, "written": 0, "sample": Sample(), "old": Checksum(), "marks": []}

        def change(block: PairedBlock) -> tuple[np.ndarray, np.ndarray] | None:
            found["rows"] += len(block.ids)
            changed = self._change(block, found)
            found["written"] += 0 if changed is None else len(changed[1])
            if self.callback is not None:
                self.callback(len(block.ids))
            return changed

        files = self.database.revise(rows, self.batch, change)
        marks = base64.b64encode(np.concatenate([np.empty(0, "<u8"), *found["marks"]]).astype("<u8").tobytes()).decode()
        return {**found, "sample": found["sample"].ids, "old": str(found["old"]), "files": files, "marks": marks}

    def _change(self, block: PairedBlock, found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return which rows of a block to write, and their vectors; None if there are none."""
        raise NotImplementedError


class Fill(Work):
    """Maps the rows that have no new vector, and samples the ids of all."""

    def _change(self, block: PairedBlock, found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        found["sample"].add(block.ids.to_pylist())
        missing = ~block.has_new
        if not missing.any():
            return None
        # Map whole blocks, because matrix products of other sizes may differ in the last digits.
        vectors = self.mapper.new.encode(self.mapper(block.ids, block.old, block.modalities))
        return missing, vectors if missing.all() else vectors[missing]


class Compare(Work):
    """Computes the checksum of the old vectors, and maps the rows whose new vector is missing or wrong.

    New vectors that the application wrote after a switch stay.
    """

    def _change(self, block: PairedBlock, found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        found["old"].add(block.ids, block.old)
        wanted = self.database.as_stored(self.mapper(block.ids, block.old, block.modalities))
        differs = self.mapper.new.differs(block.new, wanted)
        theirs = np.zeros(len(differs), bool)
        if self.marks is not None and differs.any():
            theirs = differs & block.new.any(axis=1) & self.marks.theirs(block.ids, block.old, block.new)
        wrong, ours = ~block.has_new | (differs & ~theirs), pa.array(block.has_new & ~differs)
        found["marks"].append(hashes(block.ids.filter(ours), block.new[block.has_new & ~differs]))
        if not wrong.any():
            return None
        # Of rows whose other fields have changed, theirs is written again.
        vectors = np.where(theirs[:, None], block.new, self.mapper.new.encode(wanted))
        return wrong, np.ascontiguousarray(vectors[wrong])


class Look(Compare):
    """Samples the ids of the rows that ``Compare`` would map, and writes nothing."""

    def _change(self, block: PairedBlock, found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        changed = super()._change(block, found)
        if changed is not None:
            found["written"] += len(changed[1])
            ids = block.ids.filter(pa.array(changed[0]))
            found["sample"].add(ids.filter(pa.array(self.mapper.maps(ids))).to_pylist())
        return None


class AddUp(Work):
    """Computes the checksum of the old vectors."""

    def _change(self, block: PairedBlock, found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        found["old"].add(block.ids, block.old)
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
        if self.selection is None:
            return
        chosen = self.selection
        # Copies: a column of a client's batch would keep the vectors in memory.
        ids = self.retry(chosen, lambda: [block.ids.take(pa.array(range(len(block.ids)))) for block in chosen.scan()])
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
            self.retry(self.database, lambda: self.database.take(files))
            files.clear()
            journal.cursor, journal.rows, journal.sample = cursor, rows, sample.ids
            journal.write(folder)

        with closing(self._run(Fill, callback) if by_ranges else self._fill_from(cursor, callback)) as results:
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

    def repair(
        self, callback: Callable[[int], object] | None = None, *, marks: Marks | None = None, write: bool = True
    ) -> dict[str, Any]:
        """Write new vectors that differ from the mapped old ones, and remove those without rows.

        With ``marks``, vectors that have none stay. Returns the counts, and the hashes of the vectors that were right
        ("marks"). If not ``write``, "written" counts what has to be, and "sample" has ids of rows to map.
        """
        self.select()
        removed = 0

        def remove() -> None:
            nonlocal removed  # also of attempts that failed on the way
            for ids in self.database.orphans():
                if marks is not None:  # rows of the application's that exist without an old vector
                    theirs = self.database.fetch(ids, "new")
                    stay = self.database.exist(theirs.ids, "old") & ~marks.has(theirs.ids, theirs.vectors)
                    ids = theirs.ids.filter(pa.array(~stay))
                removed += len(ids)
                self.database.delete(ids)

        old, written, files, right, sample = self._add_up(self._run(Compare if write else Look, callback, marks))
        self.retry(self.database, remove)
        # Files that can no longer be committed count as written, so that another pass follows.
        self.retry(self.database, lambda: self.database.take(files))
        counts = {"rows": old.rows, "written": written, "removed": removed, "old": str(old)}
        return {**counts, "marks": right, "sample": sample.ids}

    def checksum(self) -> Checksum:
        """Return the checksum of the old vectors."""
        if self.engine is not None:
            return self._add_up(self._run(AddUp, None))[0]

        def pass_over() -> Checksum:
            checksum = Checksum()
            for block in self.database.scan("old", batch=rows_per_block(self.mapper.old.dim)):
                checksum.add(block.ids, block.vectors)
            return checksum

        return self.retry(self.database, pass_over)

    def _add_up(self, results: Iterator[dict[str, Any]]) -> tuple[Checksum, int, list[WrittenFile], np.ndarray, Sample]:
        old, written, sample = Checksum(), 0, Sample()
        files: list[WrittenFile] = []
        right = [np.empty(0, np.uint64)]
        for result in results:
            right.append(np.frombuffer(base64.b64decode(result["marks"]), "<u8"))
            old.merge(result["rows"], result["old"])
            written += result["written"]
            files += result["files"]
            sample.add(result["sample"])
        return old, written, files, np.concatenate(right), sample

    def _run(
        self, kind: type[Work], callback: Callable[[int], object] | None, marks: Marks | None = None
    ) -> Generator[dict[str, Any]]:
        """Yield the results of a kind of work on all ranges of rows."""
        if self.engine is not None and self.mapper.native is not None:
            raise MigrationError(
                "Got a migration with re-embedded rows for an engine, whose workers do not have these vectors.",
                "Continue with `engine='local'`.",
            )
        dim = self.mapper.old.dim
        ranges = self.database.ranges(max(1, self.range_bytes // (4 * dim)))
        if self.engine is None:
            work = kind(self.database, self.mapper, rows_per_block(dim), callback, marks)
            for rows in ranges:
                yield self.retry(self.database, partial(work, rows))
            return
        for result in self.engine.run(kind(self.database, self.mapper, rows_per_block(dim), None, marks), list(ranges)):
            if callback is not None:
                callback(result["rows"])
            yield result

    def _fill_from(self, cursor: Cursor | None, callback: Callable[[int], object] | None) -> Generator[dict[str, Any]]:
        """Map and write each block after a cursor, and yield what ``_run`` would; the three steps overlap."""
        database, mapper, reader = self.database, self.mapper, self.database.reader()

        def mapped() -> Iterator[tuple[Block, np.ndarray]]:
            for block in run_ahead(_scan_with_retry(reader, self.retry, cursor, rows_per_block(mapper.old.dim))):
                yield block, mapper.encoded(block)

        try:
            for block, vectors in run_ahead(mapped()):
                self.retry(database, partial(database.write, block.ids, vectors))
                if callback is not None:
                    callback(len(block.ids))
                ids = block.ids.to_pylist()
                yield {"rows": len(ids), "sample": ids, "files": [], "cursor": block.cursor}
        finally:
            if reader is not database:
                reader.close()


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
