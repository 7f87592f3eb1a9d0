"""Jobs on a data set: written by fragments, resumed after a kill, and moved into place at the end.

The journal is written next to the output. It contains a plan, which is written with a digest when the job begins, and
receipts of finished fragments, which the driver collects and writes in segments with digests. A fragment counts once,
however often it was processed: a second attempt replaces the output file of the first, and only the first receipt is
kept.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import locked
from congruence._utils.engine import Engine
from congruence._utils.plain import PlainData
from congruence._utils.records import digest_of, from_record, to_record
from congruence.errors import CorruptFileError, OutputExistsError, ParameterError, StorageError, VersionError
from congruence.io.dataset import Fragment, FragmentedTable
from congruence.io.formats import names_columns
from congruence.io.lance import commit_lance, write_lance
from congruence.io.locations import Location
from congruence.io.parquet import ParquetTable, write_parquet
from congruence.io.tables import TableLayout, is_multi, list_faults, stored

_JOURNAL, _DATASET, FORMAT_VERSION = "congruence-fragments", "congruence-dataset", 1

#: Lists the files of a finished output. Readers of Parquet folders skip names that begin with an underscore.
MANIFEST = "_manifest.json"

#: Number of receipts, and of seconds, after which a segment is written: the work that a killed driver repeats. Object
#: stores charge for each segment.
MOST_RECEIPTS = 256
SECONDS, _SECONDS_LOCAL = 20.0, 1.0


@dataclass(frozen=True)
class Receipt:
    """Record that a fragment's output is in place."""

    fragment: str
    rows: int  # written
    bad: int = 0  # left out
    size: int = 0  # of the output file in bytes
    path: str = ""  # of this file in its folder; empty if none was written, and for Lance
    lance: list[Any] = field(default_factory=list)  # metadata to be committed


class FragmentJournal:
    """The receipts of one job, in the folder ``place``.

    ``identity`` has the digests and options on which the output depends, as plain data: by these and the fragments, a
    later run recognizes the job. ``finished`` has the receipts by the name of the fragment; ``resumed`` counts those of
    an earlier run. Segments that are damaged or of another plan are ignored; their fragments are processed again.
    """

    def __init__(self, place: Location, identity: Mapping[str, object], fragments: tuple[Fragment, ...]) -> None:
        self.place, self.fragments = place, fragments
        self._plan = {"identity": dict(identity), "fragments": list(map(vars, fragments))}
        self._digest = digest_of(self._plan)
        self.finished: dict[str, Receipt] = {}
        self.resumed = 0
        self._names = {fragment.name for fragment in fragments}
        self._waiting: list[Receipt] = []
        self._segment, self._run = 0, uuid.uuid4().hex[:8]  # two runs must not overwrite each other's segments
        self._seconds = _SECONDS_LOCAL if place.local else SECONDS
        self._flushed = time.monotonic()

    def open(self, *, restart: bool = False) -> FragmentJournal:
        """Start the job, or resume what an earlier run has finished; ``restart`` discards the journal of another."""
        stored = self._read("plan.json")
        if stored is not None and stored.get("job") == self._digest:
            self._read_segments()
            return self
        if stored is not None:
            if not restart and not stored:
                problem = f"The plan of the journal {self.place.shown} is damaged."
                raise CorruptFileError(problem, "Remove the folder, or pass `force=True` to start over.")
            if not restart:
                problem = f"Got the journal of another job at {self.place.shown}, with other fragments or options."
                raise OutputExistsError(problem, "Pass `force=True` to start over, or pass another output.")
            self.place.remove()
        self._write("plan.json", plan=self._plan)
        return self

    def keep(self, sizes: Mapping[str, int]) -> None:
        """Discard receipts whose file is missing or has another size than in ``sizes``, by path."""
        kept = [one for one in self.finished.values() if not one.path or sizes.get(one.path) == one.size]
        self.finished = {receipt.fragment: receipt for receipt in kept}
        self.resumed = len(kept)

    def pending(self) -> list[Fragment]:
        """Return the fragments without a receipt."""
        return [fragment for fragment in self.fragments if fragment.name not in self.finished]

    def add(self, receipt: Receipt) -> bool:
        """Record that a fragment is finished; return False if it already was, or is not in the plan."""
        if receipt.fragment not in self._names or receipt.fragment in self.finished:
            return False
        self.finished[receipt.fragment] = receipt
        self._waiting.append(receipt)
        if len(self._waiting) >= MOST_RECEIPTS or time.monotonic() - self._flushed >= self._seconds:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the buffered receipts."""
        if self._waiting:
            self._segment += 1
            receipts = [vars(receipt) for receipt in self._waiting]
            self._write(f"done-{self._segment:06d}-{self._run}.json", receipts=receipts)
            self._waiting = []
        self._flushed = time.monotonic()

    def total(self, what: str) -> int:
        """Return the sum of a count of the receipts: the "rows" that are written so far, or are "bad"."""
        return sum(getattr(receipt, what) for receipt in self.finished.values())

    def receipts(self) -> list[Receipt]:
        """Return the receipts in the order of the plan."""
        return [self.finished[fragment.name] for fragment in self.fragments if fragment.name in self.finished]

    def _read_segments(self) -> None:
        names = [name for name in self.place.files() if re.fullmatch(r"done-\d{6,12}-[0-9a-f]{8}\.json", name)]
        with ThreadPoolExecutor(16) as pool:
            segments = list(pool.map(self._read, names))
        for name, facts in zip(names, segments, strict=True):
            self._segment = max(self._segment, int(name.split("-")[1]))
            if facts and facts.get("job") == self._digest:
                for receipt in _as_receipts(facts.get("receipts")):
                    if receipt.fragment in self._names:
                        self.finished.setdefault(receipt.fragment, receipt)
        self.resumed = len(self.finished)

    def _write(self, name: str, **facts: object) -> None:
        own = {"format": _JOURNAL, "format_version": FORMAT_VERSION, "job": self._digest}
        self.place.child(name).write(to_record({**own, **facts}))

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return the facts in a file; none if the file is damaged, and None if there is no file."""
        content = self.place.child(name).read()
        try:
            facts = None if content is None else from_record(content)
        except ValueError:
            return {}
        version = None if facts is None else facts.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            problem = f"Got {self.place.shown}/{name} of version {version}; expected at most {FORMAT_VERSION}."
            raise VersionError(problem, "Resume with the version of congruence that began the job.")
        return facts


def _as_receipts(rows: object) -> list[Receipt]:
    """Return the receipts of a segment, or none if they are malformed."""
    kinds = {"fragment": str, "rows": int, "bad": int, "size": int, "path": str, "lance": list}
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, dict) or {name: type(value) for name, value in row.items()} != kinds:
            return []
        if min(row["rows"], row["bad"]) < 0:
            return []
    return [Receipt(**row) for row in rows]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Output:
    """The output of a job: a folder of Parquet files, or a Lance data set (``kind``).

    A local output is written to ``<out>.partial``, and renamed when it is complete. Object stores cannot rename: there,
    fragments are written in place, and the output is complete when the manifest is written (for Lance, when the data
    set is committed).
    """

    place: Location
    kind: str

    @classmethod
    def of(cls, path: str) -> Output:
        """Return the output at a path: a Lance data set for ``.lance``, else a folder of Parquet files."""
        place = Location.of(path)
        suffix = os.path.splitext(place.name)[1].lower()
        if suffix not in (".parquet", ".lance") and names_columns(place.name):
            problem = f"Got {place.shown} for a data set; expected a folder of Parquet files or a .lance data set."
            raise ParameterError(problem, f"Pass a path without {suffix}.")
        return cls(place, "lance" if suffix == ".lance" else "parquet")

    @property
    def working(self) -> Location:
        """Folder of the journal, of rows that were left out, and of a local output until it is complete."""
        return self.place.with_suffix(".partial")

    @property
    def stage(self) -> Location:
        """Folder that fragments are written to."""
        return self.working.child("data") if self.place.local else self.place

    def bad(self, fragment: str) -> Location:
        """Return the file of a fragment's rows that were left out, until they are collected in one file."""
        return self.working.child(f"bad/{fragment}.parquet")

    def prepare(self, source: Location, *, force: bool) -> None:
        """Check that the output may be written; with ``force``, an output that an engine wrote may be replaced."""
        ours, theirs = f"{self.place.shown}/", f"{source.shown}/"
        if ours.startswith(theirs) or theirs.startswith(ours):
            problem = f"The output {ours[:-1]} and the input {theirs[:-1]} are the same, or one is inside the other."
            raise ParameterError(problem, "Pass another output.")
        if self.place.local and not self.place.exists():
            return
        if not self.is_finished():
            if not self.place.local and (self.working.child("journal/plan.json").exists() or not self.place.exists()):
                return
            problem = f"Got files at {self.place.shown} that congruence did not write."
            raise OutputExistsError(problem, "Pass another output, or move them away.")
        if self.place.local and not self.stage.exists():
            self.working.remove()  # left by a run that was killed after the output was published
        if not force:
            fix = ("Pass `force=True` to replace it.", "Pass another path.")
            raise OutputExistsError(f"The output {self.place.shown} exists.", fix)
        if not self.place.local and self.kind == "parquet":  # fragments with other names would remain
            self.place.remove()

    def is_finished(self) -> bool:
        """Return whether a complete output of this kind exists."""
        if self.kind == "lance":
            return self.place.child("_versions").exists()
        content = self.place.child(MANIFEST).read() if self.place.exists() else None
        try:
            return content is not None and json.loads(content).get("format") == _DATASET
        except (ValueError, AttributeError):
            return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock a local output for this run.

        Object stores have no locks: there, two runs write the same names and content.
        """
        if not self.place.local:
            yield
            return
        folder = Path(self.working.uri)
        folder.mkdir(parents=True, exist_ok=True)
        fix = "Wait for it to finish, or pass another path."
        with locked(folder, f"Another run is writing {self.place.shown}.", fix):
            yield
        with suppress(OSError):  # succeeds only if nothing was written
            folder.rmdir()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the fragments' files by path."""
        return self.stage.files() if self.kind == "parquet" else {}

    def publish(self, journal: FragmentJournal, schema: pa.Schema) -> None:
        """Write the manifest or commit the data set, and move a local output to its path."""
        receipts, sizes = journal.receipts(), self.sizes()
        lost = [receipt for receipt in receipts if receipt.path and sizes.get(receipt.path) != receipt.size]
        if lost or journal.pending():
            got = f"{len(receipts) - len(lost)} of {len(journal.fragments)} fragments in {self.stage.shown}"
            problem = f"Got {got}; the others were removed or changed during the run."
            raise StorageError(problem, "Run this again, and make sure that no other program writes there.")
        if self.kind == "lance":
            self._commit(receipts, schema)
        else:
            written = [receipt for receipt in receipts if receipt.rows]
            known = {receipt.path for receipt in written}
            # Remove the files of other plans, and of fragments without valid rows.
            self._remove(path for path in sizes if path.endswith(".parquet") and path not in known)
            files = [{"path": receipt.path, "rows": receipt.rows, "size": receipt.size} for receipt in written]
            manifest = {
                "format": _DATASET,
                "format_version": FORMAT_VERSION,
                "rows": journal.total("rows"),
                "files": files,
            }
            self.stage.child(MANIFEST).write(json.dumps(manifest).encode())
        if self.place.local:
            self.stage.drop_temporary()
            if self.place.exists():
                old = self.working.child("old")
                old.remove()
                self.place.move_to(old)
            self.stage.move_to(self.place)
        self.working.remove()

    def _commit(self, receipts: list[Receipt], schema: pa.Schema) -> None:
        from lance.fragment import FragmentMetadata

        uri, options = self.stage.lance
        written = [metadata for receipt in receipts for metadata in receipt.lance]
        commit_lance(uri, schema, [FragmentMetadata.from_json(json.dumps(metadata)) for metadata in written], options)
        known = {f"data/{file['path']}" for metadata in written for file in metadata["files"]}
        if self.place.local:  # remove the files of attempts that were killed or repeated
            self._remove(path for path in self.stage.files() if path.startswith("data/") and path not in known)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.stage.child(path).remove()

    def write_fragment(self, name: str, layout: TableLayout, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """Write one fragment, replacing that of an earlier attempt; if ``batches`` raises an error, no file is left."""
        if self.kind == "lance":
            uri, options = self.stage.lance
            written = write_lance(uri, layout.schema, batches, options)
            rows = sum(metadata.num_rows for metadata in written)
            return Receipt(name, rows, lance=[metadata.to_json() for metadata in written] if rows else [])
        path = f"{name}.parquet"
        rows, size = write_file(self.stage.child(path), layout.schema, batches, **layout.parquet_options())
        return Receipt(name, rows, size=size, path=path if rows else "")


def write_file(
    place: Location, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: object
) -> tuple[int, int]:
    """Write batches as one Parquet file, unless there are none; return its rows and bytes."""
    first = next(batches, None)
    if first is None:
        place.remove()
        return 0, 0
    with place.writing(part=True) as file:
        return write_parquet(file, schema, chain([first], batches), **options)


@dataclass(frozen=True)
class JobReport(PlainData):
    """Summary of a job, on a data set or on one file, which is one fragment."""

    output: str
    rows: int
    dim: int
    dtype: str
    normalized: bool  # whether the written rows were scaled to unit norm
    seconds: float  # of this run
    engine: str = "local"
    fragments: int = 1
    resumed: int = 0  # fragments that an earlier run had finished
    bad_rows: int = 0  # rows that were left out
    bad_rows_file: str | None = None  # with these rows; None if there are none


@dataclass(frozen=True)
class FragmentWork(ABC):
    """Writes the new vectors of one fragment; sent to the workers.

    With ``quarantine``, bad rows are left out and kept there.
    """

    layout: TableLayout
    output: Output
    quarantine: bool

    def __call__(self, fragment: Fragment) -> dict[str, object]:
        """Process a fragment, write it, and return its receipt as plain data."""
        bad: list[pa.RecordBatch] = []
        receipt = self.output.write_fragment(fragment.name, self.layout, self.batches(fragment, bad))
        if bad:
            write_file(self.output.bad(fragment.name), bad[0].schema, iter(bad))
        return {**vars(receipt), "bad": sum(map(len, bad))}

    @abstractmethod
    def batches(self, fragment: Fragment, bad: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the output; batches for the quarantine are added to ``bad``."""


class Job:
    """A job on a data set; its output and the file of rows that are left out are checked first."""

    def __init__(
        self,
        kind: str,
        data: FragmentedTable,
        output: str,
        *,
        engine: Engine,
        bad_rows: str | None,
        force: bool,
        callback: Callable[[int], object] | None,
    ) -> None:
        self._started = time.perf_counter()
        self._kind, self._data, self._engine, self._force = kind, data, engine, force
        self._callback = callback or (lambda rows: None)
        self.output = Output.of(output)
        self.output.prepare(data.place, force=force)
        self.quarantine = None if bad_rows is None else Location.of(bad_rows)
        if self.quarantine is not None and self.quarantine.exists() and not force:
            problem = f"The path for bad_rows, {self.quarantine.shown}, exists."
            raise OutputExistsError(problem, "Pass `force=True` to replace it.")

    def run(
        self, work: FragmentWork, identity: Mapping[str, object], *, normalized: bool, may_be_empty: bool
    ) -> dict[str, Any]:
        """Run the pending fragments, collect the rows that were left out, publish, and return a report's facts."""
        out, data, quarantine = self.output, self._data, self.quarantine
        places = {"source": data.place.shown, "version": data.version, "output": out.place.shown}
        identity = {"job": self._kind, **places, "bad_rows": quarantine is not None, **identity}
        with out.locked():
            journal = FragmentJournal(out.working.child("journal"), identity, data.fragments).open(restart=self._force)
            journal.keep(out.sizes())
            if journal.resumed:
                self._callback(journal.total("rows") + journal.total("bad"))
            pending = journal.pending()
            try:
                for result in self._engine.run(work, pending) if pending else ():
                    receipt = Receipt(**result)
                    if journal.add(receipt):
                        self._callback(receipt.rows + receipt.bad)
            except BaseException as error:
                if done := len(journal.receipts()):
                    kept = f"{done} of {len(data.fragments)} fragments are kept in {out.working.shown}"
                    error.add_note(f"{kept}; repeat the command to continue.")
                raise
            finally:  # receipts are written even if the run fails
                journal.flush()
            rows, bad = journal.total("rows"), journal.total("bad")
            if quarantine is not None and bad:
                files = [out.bad(one.fragment) for one in journal.receipts() if one.bad]
                pieces = (piece for file in files for _, piece in ParquetTable(file.shown, opens=file.open).pieces())
                write_file(quarantine, quarantine_schema(data.schema), pieces)
                if not rows and not may_be_empty:
                    problem = f"None of the {bad} items in {data.place.shown} can be encoded."
                    fix = f"See the reasons in {quarantine.shown}, and pass other items or another encoder."
                    raise CorruptFileError(problem, fix)
            out.publish(journal, work.layout.schema)
        return {
            "output": out.place.shown,
            "engine": self._engine.name,
            "rows": rows,
            "dim": work.layout.dim,
            "dtype": work.layout.dtype.name,
            "fragments": len(data.fragments),
            "resumed": journal.resumed,
            "bad_rows": bad,
            "bad_rows_file": None if quarantine is None or not bad else quarantine.shown,
            "normalized": normalized,
            "seconds": time.perf_counter() - self._started,
        }


#: Reasons why a row is left out, by the code that ``find_bad`` returns; 0 is a valid row.
REASONS = ("", "no vector", "another width", "missing numbers", "NaN or infinity", "all zeros")


def find_bad(column: pa.Array, dim: int, *, allow_zero_rows: bool = False) -> np.ndarray:
    """Return for each row whether its vectors are valid, and if not, why: indices into ``REASONS``, int8."""
    column = stored(column)
    if is_multi(column.type):
        missing, counts = column.is_null(), column.value_lengths().fill_null(0)
        code = missing.to_numpy(zero_copy_only=False).astype(np.int8)
        rows = np.repeat(np.arange(len(column)), counts.to_numpy(zero_copy_only=False))
        np.maximum.at(code, rows, find_bad(column.flatten(), dim, allow_zero_rows=allow_zero_rows))
        return code
    code = list_faults(column, dim)
    rows = np.flatnonzero(code == 0)
    kept = column.take(pa.array(rows)) if code.any() else column
    block = kept.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    finite = np.isfinite(block).all(axis=1)
    code[rows[~finite]] = 4
    if not allow_zero_rows and dim > 1:
        code[rows[finite & ~block.any(axis=1)]] = 5
    return code


def quarantine_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a quarantine: the position of a row, why it was left out, and the row's own columns."""
    own = {"fragment": pa.string(), "row": pa.int64(), "reason": pa.string()}
    taken = set(schema.names)
    fields = [pa.field(f"bad_{name}" if name in taken else name, kind) for name, kind in own.items()]
    return pa.schema([*fields, *schema])


def quarantined(
    piece: pa.RecordBatch, rows: np.ndarray, reasons: Sequence[str], start: int, name: str
) -> pa.RecordBatch:
    """Return rows of a batch as the quarantine has them; ``start`` is the number of the batch's first row."""
    names, numbers = pa.array([name] * len(rows), pa.string()), pa.array(rows + start, pa.int64())
    own = [names, numbers, pa.array(reasons, pa.string())]
    return pa.record_batch([*own, *piece.take(pa.array(rows)).columns], schema=quarantine_schema(piece.schema))
