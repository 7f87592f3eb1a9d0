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
from congruence.stores.ids import arrow_ids, id_type_of


#: Default number of items per part: the most that an interrupted run has to encode again if there is no cache.
PART_ITEMS = 4096


@dataclass(frozen=True)
class EmbedReport:
    """Summary of a call to :func:`embed`.

    Attributes
    ----------
    output : str
        Path of the output.
    ids : str or None
        Path of the file of ids, if the output's format cannot store them.
    encoder, fingerprint : str
        Name and fingerprint of the encoder.
    items : str
        Origin of the items.
    rows, dim : int
        Number of rows and width of the output; with several layers, of each layer.
    layers : int
        Number of layers; 1 unless the encoder returns all layers.
    encoded, cached, resumed : int
        Number of rows that the model encoded, that came from the cache (or from an identical item in the same batch), and
        that an earlier run had finished.
    failures : list of dict
        ``id`` and ``error`` of each item that was left out.
    failures_file : str or None
        Path of the list of failures; None if there are none.
    seconds : float
        Duration of the run.
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

    Finished parts are kept in a hidden folder next to the output. After an interruption, the same call reuses the parts
    whose items and encoder have not changed, and encodes the rest. The output appears only when it is complete.

    Parameters
    ----------
    encoder : Encoder
    items : Items
        See :func:`congruence.embed.open_items`.
    output : path-like
        The suffix determines the format (:data:`congruence.stores.FORMATS`); without a suffix, the output is a folder of
        parts. An encoder of all layers needs a folder, in which each layer is a ``.parquet`` file. If the format cannot
        store ids, they are written to a ``.ids.txt`` file next to the output.
    batch_size : int, default=64
    on_error : {"fail", "skip"}, default="fail"
        What to do with an item that cannot be decoded or encoded: stop, or leave it out and list it in
        ``<output>.failures.csv``.
    cache : path-like, optional
        Folder that caches vectors by encoder and content, see :class:`VectorCache`. Cached items are not encoded again.
    shard_size : int, optional
        Number of items per part, both in the output folder and in the hidden folder. By default, the hidden folder's parts
        have 4,096 items.
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
        If an option is invalid, the items have another modality than the encoder, or ids contain line breaks that the
        ``.ids.txt`` file cannot hold. Raised before any work.
    OutputExistsError
        If the output exists, or is a folder with other files than parts.
    FileError, CorruptFileError, InputError
        If an item cannot be used and ``on_error`` is "fail", or if no item can be encoded.
    StorageError
        If the disk cannot be written. Finished parts are kept.
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
            f"Got an error from the disk for {work} ({error.strerror}); expected space and permission. Free space, or pass an output on another disk."
        ) from error
    store = VectorCache(cache, encoder.fingerprint, encoder.space.dim or 0) if cache is not None else None
    busy = f"Got {output}, which another run is writing; expected one run at a time. Wait for it to finish, or pass another output."
    with locked(work, busy):
        try:
            _check_output(output, encoder, items, shard_size, force)  # another run may have finished in the meantime
        except OutputExistsError:
            with suppress(OSError):  # fails, as intended, if there are parts of an earlier run
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
    """Encode the missing parts, and assemble the output from all parts."""
    size = shard_size or PART_ITEMS
    counts = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        run = Run(encoder, items, batch_size, on_error, store, pool, callback)
        for number, start in enumerate(range(0, len(items), size)):
            counts.append(_part(run, work, number, range(start, min(start + size, len(items)))))
    if not sum(counts):
        raise CorruptFileError(
            f"Got {len(items)} items in {items.name}, none of which can be encoded (first error: {run.failures[0]['error']}); "
            "expected at least one that can. Resolve the first error, or pass other items or another encoder."
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
    """Run the checks of the output before any work, instead of when it is written."""
    if items.modality != encoder.space.modality:
        raise ModalityError(
            f"Got {items.modality}s ({items.name}) for an encoder of {encoder.space.modality}s; expected items of the encoder's modality. "
            f"Load the encoder with modality={items.modality!r}."
        )
    kind = find_format(output, "output")
    if kind.suffixes != ("",) and (encoder.n_layers or shard_size):
        what = "an encoder of all layers" if encoder.n_layers else "a shard size"
        raise ParameterError(
            f"Got {what} and the single output file {output}; expected a folder. Pass an output without a suffix."
        )
    if not output.parent.is_dir():
        raise FileError(
            f"Got no folder {output.parent}; expected it to exist. Create it, or pass an output in a folder that exists."
        )
    failures = output.with_name(f"{output.name}.failures.csv")
    if os.path.lexists(failures) and not is_failures(failures):
        raise OutputExistsError(
            f"Got an existing file at {failures}, the path for the list of failures; expected a free path, or an earlier list. Move the file away, or pass another output."
        )
    assert kind.sink is not None
    check_output(output, force=force, directory=kind.directory, foreign=kind.sink.why_foreign)
    check_lines(items.ids, output)


def _part(run: Run, work: Path, number: int, rows: range) -> int:
    """Encode one part, unless an earlier run has finished it; return its number of vectors."""
    file, mark = work / f"part_{number}.parquet", work / f"part_{number}.json"
    key = _part_key(run, rows)
    done = read_mark(mark, file, key, len(rows))
    # With on_error="fail", items that an earlier run with "skip" left out must be tried again.
    if done is not None and not (done["failures"] and run.on_error == "fail"):
        run.failures += done["failures"]
        run.resumed += done["rows"]
        if run.callback is not None:
            run.callback(len(rows))
        return int(done["rows"])
    before = len(run.failures)
    encoded_rows: list[int] = []
    blocks: list[np.ndarray] = []
    for batch in read_batches(run, rows):
        vectors = encode_batch(run, batch)
        encoded_rows += vectors
        blocks += list(vectors.values())
        if run.callback is not None:
            run.callback(len(batch))
    if blocks:
        dim = run.encoder.space.dim or 0
        ids = arrow_ids(run.items.ids[encoded_rows])
        space = run.encoder.space
        with open_sink(
            file, n=len(blocks), dim=dim, has_ids=True, id_type=id_type_of(ids.type), space=space, force=True
        ) as sink:
            sink.write(ids, np.stack(blocks))
    with atomic_path(mark, force=True) as temporary:  # written last: it marks the part as complete
        checksum = checksum_of(file) if blocks else None
        done = {"key": key, "rows": len(blocks), "failures": run.failures[before:], "sha256": checksum}
        temporary.write_text(json.dumps(done), encoding="utf-8")
    return len(blocks)


def _part_key(run: Run, rows: range) -> str:
    """Return a digest of everything that determines a part: the encoder, the modality, and the ids and stamps of the items."""
    digest = hashlib.sha256(f"{run.encoder.fingerprint}\0{run.items.modality}\0".encode())
    for row in rows:
        digest.update(f"{run.items.ids[row]}\0{run.items.stamp(row)}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
