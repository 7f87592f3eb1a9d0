"""Embed items into a file of vectors, part by part, so that a run that stops goes on where it was."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._atomic import atomic_path
from congruence._check import check_choice, check_positive
from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items
from congruence.encoders import Encoder, item_digest, open_image
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    FileError,
    IdError,
    InputError,
    ModalityError,
    OutputExistsError,
    ParameterError,
)
from congruence.stores import FORMATS, open_sink, open_source

#: Items of a part unless told otherwise: what at most is lost when a run stops and there is no cache.
PART_ITEMS = 4096

#: Formats that have no room for ids, which go to a text file beside them.
_NO_IDS = (".npy", ".safetensors")


@dataclass(frozen=True)
class EmbedReport:
    """What :func:`embed` did.

    Attributes
    ----------
    output : str
    ids : str or None
        File of ids beside an output that has no room for them.
    encoder, fingerprint : str
    items : str
        Where they came from.
    rows, dim : int
        Size of what was written; of each layer, with several.
    layers : int
    encoded, cached, resumed : int
        Rows that went through the model, that came from the cache (or from an equal item of their batch), and that an
        earlier run had finished.
    failures : list of dict
        ``id`` and ``error`` of every item that was left out.
    failures_file : str or None
    seconds : float
    """

    output: str
    ids: str | None
    encoder: str
    fingerprint: str
    items: str
    rows: int
    dim: int
    layers: int
    encoded: int
    cached: int
    resumed: int
    failures: list[dict[str, str]]
    failures_file: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass
class _Run:
    """What one call shares between its steps."""

    encoder: Encoder
    items: Items
    batch_size: int
    on_error: str
    cache: VectorCache | None
    pool: ThreadPoolExecutor
    advance: Callable[[int], Any] | None
    encoded: int = 0
    cached: int = 0
    resumed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)


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
    restart: bool = False,
    advance: Callable[[int], Any] | None = None,
) -> EmbedReport:
    """Encode items and write their vectors with their ids.

    Finished parts wait in a hidden folder beside the output; the same call after an interruption goes on after the last
    of them. The output appears only when it is complete.

    Parameters
    ----------
    encoder : Encoder
    items : Items
        See :func:`congruence.embed.open_items`.
    output : path-like
        The suffix chooses the format (:data:`congruence.stores.FORMATS`); none means a folder of parts. An encoder of
        every layer needs a folder, in which each layer becomes a ``.parquet``. Formats without room for ids get a
        ``.ids.txt`` beside them.
    batch_size : int, default=64
    on_error : {"fail", "skip"}, default="fail"
        What to do about an item that cannot be decoded or encoded: stop, or leave it out and list it in
        ``<output>.failures.csv``.
    cache : path-like, optional
        Folder of vectors by encoder and content, see :class:`VectorCache`: what is there is not encoded again.
    shard_size : int, optional
        Items of a part, in the output folder and of what is kept when a run stops; 4,096 by default for the latter.
    force : bool, default=False
        Replace an existing output.
    restart : bool, default=False
        Throw away what an earlier run left.
    advance : callable, optional
        Called with the number of items done.

    Returns
    -------
    EmbedReport

    Raises
    ------
    ParameterError, ModalityError, IdError
        Before any work: an option, or items of another modality than the encoder's.
    OutputExistsError
        The output is there; or what an interrupted run of other items or another encoder left.
    FileError, CorruptFileError, InputError
        An item cannot be used, under ``on_error="fail"``; or none can.
    StorageError
        The disk refused; finished parts stay.
    """
    started = time.perf_counter()
    output = Path(output)
    check_choice(on_error, ("fail", "skip"), "on_error")
    check_positive(batch_size, "batch_size", integer=True)
    if shard_size is not None:
        check_positive(shard_size, "shard_size", integer=True)
    _check_output(output, encoder, items, shard_size, force)
    size = shard_size or PART_ITEMS
    work = output.parent / f".{output.name}.parts"
    if restart:
        shutil.rmtree(work, ignore_errors=True)
    _claim(work, {"format": 1, "encoder": encoder.fingerprint, "items": _items_digest(items), "part": size}, output)
    store = VectorCache(cache, encoder.fingerprint, encoder.space.dim or 0) if cache is not None else None
    counts = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        run = _Run(encoder, items, batch_size, on_error, store, pool, advance)
        for number, start in enumerate(range(0, len(items), size)):
            counts.append(_part(run, work, number, range(start, min(start + size, len(items)))))
    if not sum(counts):
        raise CorruptFileError(
            f"Got {len(items)} items of {items.name}, none of which can be encoded (the first: {run.failures[0]['error']}); "
            "expected some; do check them."
        )
    _assemble(encoder, work, counts, output, force, named=shard_size is not None)
    ids_file = _write_ids(work, counts, output)
    failures_file = _write_failures(run.failures, output)
    shutil.rmtree(work, ignore_errors=True)
    return EmbedReport(
        str(output),
        ids_file,
        encoder.space.model or "",
        encoder.fingerprint,
        items.name,
        sum(counts),
        (encoder.space.dim or 0) // (encoder.n_layers or 1),
        encoder.n_layers or 1,
        run.encoded,
        run.cached,
        run.resumed,
        run.failures,
        failures_file,
        time.perf_counter() - started,
    )


def _check_output(output: Path, encoder: Encoder, items: Items, shard_size: int | None, force: bool) -> None:
    """Refuse before any work what the writers would refuse after it."""
    suffix = "" if output.is_dir() else output.suffix.lower()
    if items.modality != encoder.space.modality:
        raise ModalityError(
            f"Got {items.modality}s, {items.name}, for an encoder of {encoder.space.modality}s; expected the same; "
            f"do load it with modality={items.modality!r}."
        )
    if suffix not in FORMATS:
        known = ", ".join(name or "a folder of parts" for name in FORMATS)
        raise ParameterError(f"Got {str(output)!r} for output; expected one of {known}; do choose another suffix.")
    if suffix and (encoder.n_layers or shard_size):
        what = "every layer" if encoder.n_layers else "a shard size"
        raise ParameterError(f"Got {what} for the file {output}; expected a folder; do choose a name without a suffix.")
    if not output.parent.is_dir():
        raise FileError(f"Got no folder {output.parent}; expected it to exist; do create it first.")
    if os.path.lexists(output) and not force:
        raise OutputExistsError(
            f"Got an output path that exists, {output}; expected a new one; do pass --force to replace it."
        )
    if suffix in _NO_IDS and (odd := [str(name) for name in items.ids if "\n" in name or "\r" in name]):
        raise IdError(
            f"Got the id {odd[0]!r} with a line break for a file of one id a line; expected none; do choose another format."
        )


def _items_digest(items: Items) -> str:
    digest = hashlib.sha256(items.modality.encode())
    for row, name in enumerate(items.ids.tolist()):
        digest.update(f"{name}\0{items.stamp(row)}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _claim(work: Path, plan: dict[str, Any], output: Path) -> None:
    """Begin a folder of parts, or make sure that the one there is of the same run."""
    place = work / "plan.json"
    if place.is_file():
        try:
            same = json.loads(place.read_text(encoding="utf-8")) == plan
        except ValueError:
            same = False
        if not same:
            raise OutputExistsError(
                f"Got parts of an interrupted run beside {output}, of another encoder, other items or another shard size; "
                "expected the same; do finish that run, or pass --restart to throw them away."
            )
        return
    work.mkdir(exist_ok=True)
    with atomic_path(place, force=True) as temporary:
        temporary.write_text(json.dumps(plan), encoding="utf-8")


def _part(run: _Run, work: Path, number: int, rows: range) -> int:
    """Make sure that one part is on disk; return how many vectors it holds."""
    file, mark = work / f"part_{number}.parquet", work / f"part_{number}.json"
    if mark.is_file():
        done = json.loads(mark.read_text(encoding="utf-8"))
        run.failures += done["failures"]
        run.resumed += done["rows"]
        if run.advance is not None:
            run.advance(len(rows))
        return int(done["rows"])
    before = len(run.failures)
    names: list[str] = []
    blocks: list[np.ndarray] = []
    for batch in _fetched(run, rows):
        found = _encode(run, batch)
        names += [str(run.items.ids[row]) for row in found]
        blocks += list(found.values())
        if run.advance is not None:
            run.advance(len(batch))
    if blocks:
        dim = run.encoder.space.dim or 0
        with open_sink(file, n=len(blocks), dim=dim, has_ids=True, space=run.encoder.space, force=True) as sink:
            sink.write(pa.array(names, pa.string()), np.stack(blocks))
    with atomic_path(mark, force=True) as temporary:  # last: its being there says that the part is complete
        temporary.write_text(json.dumps({"rows": len(blocks), "failures": run.failures[before:]}), encoding="utf-8")
    return len(blocks)


def _fetched(run: _Run, rows: range) -> Iterator[list[tuple[int, str | None, Any]]]:
    """Yield batches of (row, digest, decoded item), reading one batch ahead of the model.

    An item that cannot be read comes as the error that it met.
    """

    def fetch(row: int) -> tuple[int, str | None, Any]:
        try:
            item = run.items.fetch(row)
            if isinstance(item, os.PathLike):
                item = _bytes_of(Path(item))
            digest = item_digest(item) if run.cache is not None else None
            return row, digest, item
        except (CongruenceError, OSError) as error:
            return row, None, error

    def begin(start: int) -> list[Future[tuple[int, str | None, Any]]]:
        return [run.pool.submit(fetch, row) for row in rows[start : start + run.batch_size]]

    waiting = begin(0)
    for start in range(run.batch_size, len(rows) + run.batch_size, run.batch_size):
        ahead = begin(start)
        yield [future.result() for future in waiting]
        waiting = ahead


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"Got no image at {path}; expected one; do check the path.") from None


def _encode(run: _Run, batch: list[tuple[int, str | None, Any]]) -> dict[int, np.ndarray]:
    """Return the vectors of a batch by row, from the cache where they are there; note what failed."""
    known = run.cache.get([digest for _, digest, _ in batch if digest]) if run.cache is not None else {}
    good: dict[int, tuple[str | None, Any]] = {}
    for row, digest, item in batch:
        if isinstance(item, Exception):
            _fail(run, row, item)
        elif digest not in known:
            try:
                good[row] = digest, open_image(item) if run.items.modality == "image" else item
            except CongruenceError as error:
                _fail(run, row, error)
    first = {digest or str(row): row for row, (digest, _) in reversed(good.items())}  # one of several equal items
    fresh = _model(run, {row: good[row][1] for row in first.values()})
    run.encoded += len(fresh)
    new = {good[row][0]: vector for row, vector in fresh.items()}
    if run.cache is not None and fresh:
        run.cache.put({digest: vector for digest, vector in new.items() if digest})
    out: dict[int, np.ndarray] = {}
    for row, digest, item in batch:
        if row in fresh:
            out[row] = fresh[row]
        elif digest and not isinstance(item, Exception) and (digest in known or digest in new):
            out[row] = known[digest] if digest in known else new[digest]
            run.cached += 1
    return out


def _model(run: _Run, items: dict[int, Any]) -> dict[int, np.ndarray]:
    """Encode items; if the batch is refused, one by one, to find out which of them is the reason."""
    if not items:
        return {}
    try:
        return dict(zip(items, run.encoder.encode_all(list(items.values()), len(items)), strict=True))
    except InputError:
        out = {}
        for row, item in items.items():
            try:
                out[row] = run.encoder.encode_all([item], 1)[0]
            except InputError as error:
                _fail(run, row, error)
        return out


def _fail(run: _Run, row: int, error: Exception) -> None:
    name = str(run.items.ids[row])
    if run.on_error == "fail":
        kind = type(error) if isinstance(error, CongruenceError) else FileError
        raise kind(
            f"Got a failure at item {name!r} of {run.items.name}: {error} What is finished is kept; do correct it and run "
            "again, or pass --on-error skip."
        ) from error
    run.failures.append({"id": name, "error": str(error)})


# ---------------------------------------------------------------------- output


def _parts(work: Path, counts: list[int]) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
    for number, rows in enumerate(counts):
        if rows:
            yield from open_source(work / f"part_{number}.parquet").scan()


def _assemble(encoder: Encoder, work: Path, counts: list[int], output: Path, force: bool, *, named: bool) -> None:
    """Stream the parts into the output."""
    n, dim = sum(counts), encoder.space.dim or 0
    if encoder.n_layers is None:
        parts = [(f"part_{number}", rows) for number, rows in enumerate(counts) if rows] if named else None
        with open_sink(output, n=n, dim=dim, has_ids=True, space=encoder.space, force=force, parts=parts) as sink:
            for ids, block in _parts(work, counts):
                sink.write(ids, block)
        return
    width = dim // encoder.n_layers
    with atomic_path(output, force=force, directory=True) as folder, ExitStack() as stack:
        sinks = [
            stack.enter_context(
                open_sink(folder / f"layer_{k}.parquet", n=n, dim=width, has_ids=True, space=encoder.layer_space(k))
            )
            for k in range(encoder.n_layers)
        ]
        for ids, block in _parts(work, counts):
            for k, sink in enumerate(sinks):
                sink.write(ids, block[:, k * width : (k + 1) * width])


def _write_ids(work: Path, counts: list[int], output: Path) -> str | None:
    """Write the ids beside an output that has no room for them."""
    if output.suffix.lower() not in _NO_IDS:
        return None
    place = output.with_name(f"{output.name}.ids.txt")
    with atomic_path(place, force=True) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for ids, _ in _parts(work, counts):
            stream.writelines(f"{name}\n" for name in (ids.to_pylist() if ids is not None else []))
    return str(place)


def _write_failures(failures: list[dict[str, str]], output: Path) -> str | None:
    """List what was left out; with nothing to list, a list that an earlier run left goes."""
    place = output.with_name(f"{output.name}.failures.csv")
    if not failures:
        place.unlink(missing_ok=True)
        return None
    with atomic_path(place, force=True) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["id", "error"])
        writer.writeheader()
        writer.writerows(failures)
    return str(place)
