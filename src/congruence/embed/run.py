"""Embed items into a file of vectors, part by part, so that a run that stops resumes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.lock import locked
from congruence._utils.validation import check_choice, check_positive
from congruence.embed.batches import Run, encode_batch, read_batches
from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items
from congruence.embed.output import (
    assemble,
    check_lines,
    checksum_of,
    is_failures,
    read_mark,
    write_failures,
    write_ids,
)
from congruence.encoders import Encoder
from congruence.errors import (
    CorruptFileError,
    FileError,
    ModalityError,
    OutputExistsError,
    ParameterError,
    StorageError,
)
from congruence.stores import find_format, open_sink
from congruence.stores._ids import arrow_ids, id_type_of

__all__ = ["EmbedReport", "embed"]

#: Items of a part unless told otherwise: what at most is lost when a run stops and there is no cache.
PART_ITEMS = 4096


@dataclass(frozen=True)
class EmbedReport:
    """Summary of a call to :func:`embed`.

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

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return asdict(self)


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

    Finished parts wait in a hidden folder beside the output; the same call after an interruption takes over those whose
    items and encoder are still the same, and makes the others. The output appears only when it is complete.

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
    callback : callable, optional
        Called with the number of items done.

    Returns
    -------
    EmbedReport

    Raises
    ------
    ParameterError, ModalityError, IdError
        Before any work: an option, or items of another modality than the encoder's.
    OutputExistsError
        The output is there; or it is a folder of other things than parts.
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
    work = output.parent / f".{output.name}.parts"
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"Got a refusal from the disk for {work} ({error.strerror}); expected space and permission. Free space, or pass an output on another disk."
        ) from error
    store = VectorCache(cache, encoder.fingerprint, encoder.space.dim or 0) if cache is not None else None
    busy = f"Got {output}, which another run is writing; expected one run. Wait for it, or pass another output."
    with locked(work, busy):
        try:
            _check_output(output, encoder, items, shard_size, force)  # another run may have ended meanwhile
        except OutputExistsError:
            with suppress(OSError):  # parts of an earlier run stay
                work.rmdir()
            raise
        return _embed(encoder, items, output, work, store, batch_size, on_error, shard_size, force, callback, started)


def _embed(
    encoder: Encoder,
    items: Items,
    output: Path,
    work: Path,
    store: VectorCache | None,
    batch_size: int,
    on_error: str,
    shard_size: int | None,
    force: bool,
    callback: Callable[[int], object] | None,
    started: float,
) -> EmbedReport:
    """Encode the parts that are missing, and put all of them together."""
    size = shard_size or PART_ITEMS
    counts = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        run = Run(encoder, items, batch_size, on_error, store, pool, callback)
        for number, start in enumerate(range(0, len(items), size)):
            counts.append(_part(run, work, number, range(start, min(start + size, len(items)))))
    if not sum(counts):
        raise CorruptFileError(
            f"Got {len(items)} items of {items.name}, none of which can be encoded (the first: {run.failures[0]['error']}); "
            "expected some that can. Look at the first error, and pass other items or another encoder."
        )
    ids_file = write_ids(work, counts, output)
    failures_file = write_failures(run.failures, output)
    assemble(encoder, work, counts, output, force, named=shard_size is not None)
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
    if items.modality != encoder.space.modality:
        raise ModalityError(
            f"Got {items.modality}s, {items.name}, for an encoder of {encoder.space.modality}s; expected the same. "
            f"Load it with modality={items.modality!r}."
        )
    kind = find_format(output, "output")
    if kind.suffixes != ("",) and (encoder.n_layers or shard_size):
        what = "every layer" if encoder.n_layers else "a shard size"
        raise ParameterError(f"Got {what} for the file {output}; expected a folder. Pass an output without a suffix.")
    if not output.parent.is_dir():
        raise FileError(
            f"Got no folder {output.parent}; expected it to exist. Create it, or pass an output in a folder that exists."
        )
    list_of = output.with_name(f"{output.name}.failures.csv")
    if os.path.lexists(list_of) and not is_failures(list_of):
        raise OutputExistsError(
            f"Got {list_of}, where failures would be listed and which is no such list; expected a free path. Move it away, or pass another output."
        )
    assert kind.sink is not None
    check_output(output, force=force, directory=kind.directory, foreign=kind.sink.why_foreign)
    check_lines(items.ids, output)


def _part(run: Run, work: Path, number: int, rows: range) -> int:
    """Make sure that one part is on disk; return how many vectors it holds."""
    file, mark = work / f"part_{number}.parquet", work / f"part_{number}.json"
    key = _part_key(run, rows)
    done = read_mark(mark, file, key, len(rows))
    # Under "fail", what an earlier run under "skip" left out has to be tried again.
    if done is not None and not (done["failures"] and run.on_error == "fail"):
        run.failures += done["failures"]
        run.resumed += done["rows"]
        if run.callback is not None:
            run.callback(len(rows))
        return int(done["rows"])
    before = len(run.failures)
    found_rows: list[int] = []
    blocks: list[np.ndarray] = []
    for batch in read_batches(run, rows):
        found = encode_batch(run, batch)
        found_rows += found
        blocks += list(found.values())
        if run.callback is not None:
            run.callback(len(batch))
    if blocks:
        dim = run.encoder.space.dim or 0
        ids = arrow_ids(run.items.ids[found_rows])
        space = run.encoder.space
        with open_sink(
            file, n=len(blocks), dim=dim, has_ids=True, id_type=id_type_of(ids.type), space=space, force=True
        ) as sink:
            sink.write(ids, np.stack(blocks))
    with atomic_path(mark, force=True) as temporary:  # last: its being there says that the part is complete
        checksum = checksum_of(file) if blocks else None
        done = {"key": key, "rows": len(blocks), "failures": run.failures[before:], "sha256": checksum}
        temporary.write_text(json.dumps(done), encoding="utf-8")
    return len(blocks)


def _part_key(run: Run, rows: range) -> str:
    """Return a digest of all that decides a part: the encoder, the ids, and what is known of the items unread."""
    digest = hashlib.sha256(f"{run.encoder.fingerprint}\0{run.items.modality}\0".encode())
    for row in rows:
        digest.update(f"{run.items.ids[row]}\0{run.items.stamp(row)}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
