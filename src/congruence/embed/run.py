"""Embed items into a file of vectors, part by part, so that a run that stops resumes."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from congruence import errors
from congruence._utils.ahead import run_ahead
from congruence._utils.atomic import atomic_path, check_output, locked
from congruence._utils.display import is_formula
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_choice, check_positive
from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items
from congruence.embeddings import Space
from congruence.encoders import Encoder, Item, item_digest
from congruence.io import find_sink, open_sink
from congruence.io.folder import mark_parts, why_no_parts
from congruence.io.ids import arrow_ids, id_type_of

#: Default number of items per part of the hidden folder.
PART_ITEMS = 4096

#: Encoded vectors are written down this often, and when a run stops: each time, the disk is waited for.
WRITE_SECONDS = 1.0

#: Number of rows that are written at a time.
_WRITTEN = 500

#: Row, digest (if there is a cache), and the item: a text, the source of an image, or the error when it was read.
_Fetched: TypeAlias = tuple[int, str | None, object]


@dataclass(frozen=True)
class EmbedReport(PlainData):
    """Summary of a call to ``embed``."""

    output: str
    ids: str | None  # path of the file of ids, if the output's format cannot store them
    encoder: str
    fingerprint: str  # of the encoder
    items: str  # their origin
    rows: int
    dim: int  # of each layer
    layers: int  # 1 unless the encoder returns all layers
    encoded: int  # rows that the model encoded
    cached: int  # rows from the cache, or from an identical item in the same batch
    resumed: int  # rows that an earlier run had finished
    failures: list[dict[str, str]]  # id and error of each item that was left out
    failures_file: str | None
    seconds: float


def embed(
    encoder: Encoder,
    items: Items,
    output: str | Path,
    *,
    batch_size: int = 64,
    on_error: str = "fail",
    cache: str | Path | None = None,
    shard_size: int | None = None,
    force: bool = False,
    callback: Callable[[int], object] | None = None,
) -> EmbedReport:
    """Encode items and write their vectors with their ids.

    Finished vectors are kept in a hidden folder next to the output. After an interruption, the same call reuses those
    whose item and encoder have not changed, and encodes the rest. The output appears only when it is complete.

    Parameters
    ----------
    output : path-like
        The suffix determines the format (``congruence.io.FORMATS``); without a suffix, the output is a folder of parts.
        An encoder of all layers needs a folder, in which each layer is a ``.parquet`` file. If the format cannot store
        ids, they are written to a ``.ids.txt`` file next to the output.
    on_error : {"fail", "skip"}, default="fail"
        What to do with an item that cannot be decoded or encoded: stop, or leave it out and list it in
        ``<output>.failures.csv``.
    cache : path-like, optional
        Folder that caches vectors by encoder and content, see ``VectorCache``. Cached items are not encoded again.
    shard_size : int, optional
        Number of items per part of the output folder.
    """
    started = time.perf_counter()
    output = Path(output)
    check_choice(on_error, ("fail", "skip"), "on_error")
    check_positive(batch_size, "batch_size", integer=True)
    if shard_size is not None:
        check_positive(shard_size, "shard_size", integer=True)
    _check_output(output, encoder, items, shard_size, force)
    work = output.parent / f".{output.name}.parts"
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        problem = f"Got an error from the disk for {work} ({error.strerror})."
        raise errors.StorageError(problem, "Free space, or use another disk.") from error
    width = encoder.space.dim or 0
    store = None if cache is None else VectorCache(cache, encoder.fingerprint, width)
    with locked(work, f"Another run is writing {output}.", "Wait for it to finish, or pass another output."):
        try:
            _check_output(output, encoder, items, shard_size, force)  # another run may have finished in the meantime
        except errors.OutputExistsError:
            with suppress(OSError):  # fails, as intended, if there are vectors of an earlier run
                work.rmdir()
            raise
        finished = VectorCache.exclusive(work, encoder.fingerprint, width)
        size = shard_size or PART_ITEMS
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            run = EncoderRun(encoder, items, batch_size, on_error, pool, store, callback)
            with _resumable(run):
                parts = [run.finish(range(k, min(k + size, len(items))), finished) for k in range(0, len(items), size)]
                parts = [part for part in parts if len(part)]
                if not parts:
                    problem = f"None of the {len(items)} items in {items.name} can be encoded"
                    problem += f" ({run.failures[0]['error']})."
                    raise errors.CorruptFileError(problem, "Pass other items or another encoder.")
                ids_file = None if find_sink(output).keeps_ids else output.with_name(f"{output.name}.ids.txt")
                failures_file = write_failures(run.failures, output)
                _write(run, finished, parts, output, ids_file, force=force, named=shard_size is not None)
        shutil.rmtree(work, ignore_errors=True)
    return EmbedReport(
        output=str(output),
        ids=None if ids_file is None else str(ids_file),
        encoder=encoder.space.model or "",
        fingerprint=encoder.fingerprint,
        items=items.name,
        rows=sum(map(len, parts)),
        dim=width // (encoder.n_layers or 1),
        layers=encoder.n_layers or 1,
        encoded=run.encoded,
        cached=run.cached,
        resumed=run.resumed,
        failures=run.failures,
        failures_file=failures_file,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _resumable(run: EncoderRun) -> Iterator[None]:
    """Tell an interruption of the vectors that are kept for the next run."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and run.encoded + run.cached + run.resumed:
            error.add_note("What was encoded is kept: run the same command again to resume.")
        raise


def _check_output(output: Path, encoder: Encoder, items: Items, shard_size: int | None, force: bool) -> None:
    """Run the checks of the output before any work, instead of when it is written."""
    if items.modality != encoder.space.modality:
        problem = f"Got {items.modality} items ({items.name}) for an encoder of {encoder.space.modality}."
        raise errors.ModalityError(problem, f"Load the encoder with `modality={items.modality!r}`.")
    kind = find_sink(output)
    if output.suffix and (encoder.n_layers or shard_size):
        what = "an encoder of all layers" if encoder.n_layers else "a shard size"
        problem = f"Got {what} and the single output file {output}; expected a folder."
        raise errors.ParameterError(problem, "Pass an output without a suffix.")
    if not output.parent.is_dir():
        raise errors.FileError(f"No folder {output.parent}.", "Create it, or pass an output in a folder that exists.")
    failures = output.with_name(f"{output.name}.failures.csv")
    if os.path.lexists(failures) and not _is_failures(failures):
        problem = f"{failures}, for the list of failures, exists and is no earlier list."
        raise errors.OutputExistsError(problem, "Move it away.")
    check_output(output, force=force, directory=kind.directory, foreign=kind.why_foreign)
    broken = None
    if not kind.keeps_ids:
        broken = next((name for name in map(str, items.ids) if "\n" in name or "\r" in name), None)
    if broken is not None:
        problem = f"Got the id {broken!r} with a line break for {output}, whose ids are lines of a file."
        raise errors.IdError(problem, "Pass an output in a format that stores ids, .parquet for example.")


@dataclass
class EncoderRun:
    """A run of an encoder over items, with what it counts; messages suggest ``alternative`` besides a repair."""

    encoder: Encoder
    items: Items
    batch_size: int
    on_error: str
    pool: ThreadPoolExecutor
    cache: VectorCache | None = None
    callback: Callable[[int], object] | None = None
    alternative: str = "on_error='skip'"
    encoded: int = 0
    cached: int = 0
    resumed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)

    def finish(self, rows: Sequence[int], finished: VectorCache) -> np.ndarray:
        """Encode the rows that are not in ``finished``, and add them; return ``row`` and ``key`` of the good ones."""
        keys = {row: self._key(row) for row in rows}
        done = finished.get(list(keys.values()))
        missing = [row for row in rows if keys[row] not in done]
        if done:
            self.resumed += len(done)
            if self.callback is not None:
                self.callback(len(done))
        encoded: set[int] = set()
        held: dict[str, np.ndarray] = {}
        written = time.monotonic()
        try:
            for vectors in self._batches(missing):
                held |= {keys[row]: vector for row, vector in vectors.items()}
                encoded |= vectors.keys()
                if time.monotonic() - written > WRITE_SECONDS:
                    finished.put(held)
                    held, written = {}, time.monotonic()
        finally:
            finished.put(held)
        whole = [(row, key) for row, key in keys.items() if key in done or row in encoded]
        return np.array(whole, [("row", np.int64), ("key", "S32")])

    def _key(self, row: int) -> str:
        """Return a digest of the item's modality, id and stamp."""
        text = f"{self.items.modality}\0{self.items.ids[row]}\0{self.items.stamp(row)}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def encode(self, rows: Sequence[int]) -> dict[int, np.ndarray]:
        """Return the vectors of rows; failures are recorded."""
        return {row: vector for vectors in self._batches(rows) for row, vector in vectors.items()}

    def _batches(self, rows: Sequence[int]) -> Iterator[dict[int, np.ndarray]]:
        """Yield the vectors of each batch by row, reading one batch ahead of the model."""
        batches = (rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size))
        for batch in run_ahead(list(self.pool.map(self._fetch, batch)) for batch in batches):
            vectors, failed = self._encode_batch(batch)
            yield vectors
            for row, error in failed.items():
                self._fail(row, error)
            if self.callback is not None:
                self.callback(len(batch))

    def _fetch(self, row: int) -> _Fetched:
        """Return a row, its digest if there is a cache, and the item, or the error if it cannot be read."""
        try:
            item = self.items.fetch(row)
            # A video stays on the disk, as it may be large, or a folder.
            if isinstance(item, os.PathLike) and self.items.modality != "video":
                item = Path(item).read_bytes()
            return row, item_digest(item) if self.cache is not None else None, item
        except FileNotFoundError as error:
            return row, None, errors.FileError(f"No {self.items.modality} at {error.filename}.", "Check the path.")
        except (errors.CongruenceError, OSError) as error:
            return row, None, error

    def _encode_batch(self, batch: list[_Fetched]) -> tuple[dict[int, np.ndarray], dict[int, Exception]]:
        """Return the vectors of a batch by row, from the cache if available, and the errors by row."""
        known = self.cache.get([digest for _, digest, _ in batch if digest]) if self.cache is not None else {}
        # Equal items have equal names, if they have digests.
        names = {row: digest or f"row {row}" for row, digest, _ in batch}
        failed = {names[row]: item for row, _, item in batch if isinstance(item, Exception)}
        rest = {names[row]: item for row, _, item in batch if names[row] not in known and names[row] not in failed}
        fresh: dict[str, np.ndarray] = {}
        good: dict[str, object] = {}
        for name, item in zip(rest, self.pool.map(self._read, rest.values()), strict=True):
            if isinstance(item, Exception):
                failed[name] = item
            else:
                good[name] = item
        got: Any = self._vectors(list(good.values()))
        if isinstance(got, Exception):  # encoded one by one to find which
            got = [self._vectors([item]) for item in good.values()]
        for name, one in zip(good, got, strict=True):
            if isinstance(one, Exception):
                failed[name] = one
            else:
                fresh[name] = one.reshape(-1)
        self.encoded += len(fresh)
        if self.cache is not None and fresh:
            self.cache.put(fresh)
        known |= fresh
        out = {row: known[name] for row, name in names.items() if name not in failed}
        self.cached += len(out) - len(fresh)
        return out, {row: failed[name] for row, name in names.items() if name in failed}

    def _read(self, item: Item) -> Item | Exception:
        """Return a decoded item, or the error if it cannot be decoded."""
        try:
            return self.encoder.read(item)
        except (errors.InputError, errors.FileError) as error:
            return error

    def _vectors(self, items: list[Item]) -> np.ndarray | Exception:
        """Return the vectors of decoded items, or an error that may be due to one of them."""
        try:
            return self.encoder.encode_all(items, max(len(items), 1))
        except errors.CongruenceError as error:
            if isinstance(error, errors.InputError) and not isinstance(error, errors.ShapeError):
                return error
            raise
        except Exception as error:  # of the model's library
            return errors.FileError(f"Got {type(error).__name__} ({error}) from the model.", "Leave the item out.")

    def _fail(self, row: int, error: Exception) -> None:
        name = str(self.items.ids[row])
        if self.on_error == "fail":
            kind = type(error) if isinstance(error, errors.CongruenceError) else errors.FileError
            problem = f"Got an error at item {name!r} of {self.items.name}: {error} Finished parts are kept."
            raise kind(problem, f"Repair this item and run again, or pass `{self.alternative}`.") from error
        self.failures.append({"id": name, "error": str(error)})


def _write(
    run: EncoderRun, finished: VectorCache, parts: list[np.ndarray], output: Path, ids_file: Path | None, **how: bool
) -> None:
    """Write the rows as one output, or each layer as a file of it, and the ids as lines of a file if there is one."""
    encoder, ids = run.encoder, arrow_ids(run.items.ids)
    width = (encoder.space.dim or 0) // (encoder.n_layers or 1)
    facts: dict[str, Any] = {"n": sum(map(len, parts)), "dim": width, "has_ids": True, "id_type": id_type_of(ids.type)}
    with ExitStack() as stack:
        if encoder.n_layers is None:
            names = [(f"part_{k}", len(part)) for k, part in enumerate(parts)] if how["named"] else None
            sinks = [open_sink(output, space=encoder.space, force=how["force"], parts=names, **facts)]
        else:
            folder = stack.enter_context(atomic_path(output, force=how["force"], directory=True, foreign=why_no_parts))
            mark_parts(folder, Space())
            places = [(folder / f"layer_{k}.parquet", encoder.layer_space(k)) for k in range(encoder.n_layers)]
            sinks = [open_sink(path, space=space, **facts) for path, space in places]
        for sink in sinks:
            stack.enter_context(sink)
        lines = None
        if ids_file is not None:  # in place before the output
            lines = open(stack.enter_context(atomic_path(ids_file, force=True)), "w", encoding="utf-8")
            stack.enter_context(lines)
        done = np.concatenate(parts)
        for start in range(0, len(done), _WRITTEN):
            some = done[start : start + _WRITTEN]
            keys, block = some["key"].astype(str).tolist(), ids.take(some["row"])
            vectors = finished.get(keys)
            matrix = np.stack([vectors[key] for key in keys])
            for k, sink in enumerate(sinks):
                sink.write(block, matrix[:, k * width : (k + 1) * width])
            if lines is not None:
                lines.writelines(f"{name}\n" for name in block.to_pylist())


def _is_failures(file: Path) -> bool:
    """Return whether a file is a list written by ``write_failures``."""
    if file.is_symlink() or not file.is_file():
        return False
    with open(file, "rb") as stream:
        return stream.readline(20).strip() == b"id,error"


def write_failures(failures: list[dict[str, str]], output: Path) -> str | None:
    """Write the list of the items that were left out, and return its path; without any, remove an earlier list.

    A cell that a spreadsheet would evaluate as a formula is prefixed with an apostrophe.
    """
    file = output.with_name(f"{output.name}.failures.csv")
    if not failures:
        if _is_failures(file):
            file.unlink()
        return None
    with atomic_path(file, force=True) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["id", "error"])
        writer.writeheader()
        for row in failures:
            writer.writerow({name: f"'{cell}" if is_formula(cell) else cell for name, cell in row.items()})
    return str(file)
