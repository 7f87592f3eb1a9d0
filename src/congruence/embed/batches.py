"""Batches of items: read ahead of the model, looked up in the cache, encoded, with failures recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items
from congruence.encoders import Encoder, item_digest, open_image
from congruence.errors import CongruenceError, FileError, InputError


#: Row, digest (if there is a cache), and the item: a text, the source of an image, or the error that occurred when it was read.
Fetched: TypeAlias = tuple[int, str | None, object]


@dataclass
class Run:
    """Arguments and counts that the steps of one run share."""

    encoder: Encoder
    items: Items
    batch_size: int
    on_error: str
    cache: VectorCache | None
    pool: ThreadPoolExecutor
    callback: Callable[[int], object] | None
    encoded: int = 0
    cached: int = 0
    resumed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    alternative: str = "on_error='skip'"  # the argument that a message suggests, besides repairing the item


def read_batches(run: Run, rows: range) -> Iterator[list[Fetched]]:
    """Yield batches of (row, digest, decoded item), reading one batch ahead of the model.

    An item that cannot be read is replaced by the error.
    """

    def fetch(row: int) -> Fetched:
        try:
            item = run.items.fetch(row)
            if isinstance(item, os.PathLike):
                item = _bytes_of(Path(item))
            digest = item_digest(item) if run.cache is not None else None
            return row, digest, item
        except (CongruenceError, OSError) as error:
            return row, None, error

    def begin(start: int) -> list[Future[Fetched]]:
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
        raise FileError(f"Got no image at {path}; expected one. Check the path.") from None


def encode_batch(run: Run, batch: list[Fetched]) -> dict[int, np.ndarray]:
    """Return the vectors of a batch by row, from the cache if available; record failures."""
    known = run.cache.get([digest for _, digest, _ in batch if digest]) if run.cache is not None else {}
    names = {
        row: digest or f"row {row}" for row, digest, _ in batch
    }  # equal items have equal names, if they have digests
    to_encode = {
        names[row]: item for row, _, item in batch if names[row] not in known and not isinstance(item, Exception)
    }
    fresh, failed = _encode(run, dict(zip(to_encode, run.pool.map(_decoded, to_encode.values()), strict=True)))
    run.encoded += len(fresh)
    if run.cache is not None and fresh:
        run.cache.put(fresh)
    out: dict[int, np.ndarray] = {}
    for row, _, item in batch:
        name = names[row]
        if isinstance(item, Exception) or name in failed:
            _fail(run, row, item if isinstance(item, Exception) else failed[name])
        else:
            out[row] = fresh[name] if name in fresh else known[name]
    run.cached += len(out) - len(fresh)
    return out


def _decoded(item: object) -> object:
    """Return a text, a decoded image, or the error if an image cannot be decoded."""
    try:
        return item if isinstance(item, str) else open_image(item)
    except CongruenceError as error:
        return error


def _encode(run: Run, items: Mapping[str, object]) -> tuple[dict[str, np.ndarray], dict[str, Exception]]:
    """Return the vectors of items, and the errors of those that failed; a batch that fails is encoded one by one to find them."""
    failed = {name: item for name, item in items.items() if isinstance(item, Exception)}
    good = {name: item for name, item in items.items() if name not in failed}
    try:
        vectors = run.encoder.encode_all(list(good.values()), max(len(good), 1))
        return dict(zip(good, vectors, strict=True)), failed
    except InputError:
        fresh = {}
        for name, item in good.items():
            try:
                fresh[name] = run.encoder.encode_all([item], 1)[0]
            except InputError as error:
                failed[name] = error
        return fresh, failed


def _fail(run: Run, row: int, error: Exception) -> None:
    name = str(run.items.ids[row])
    if run.on_error == "fail":
        kind = type(error) if isinstance(error, CongruenceError) else FileError
        raise kind(
            f"Got an error at item {name!r} of {run.items.name}: {error} Finished parts are kept. Repair this item and run "
            f"again, or pass {run.alternative}."
        ) from error
    run.failures.append({"id": name, "error": str(error)})
