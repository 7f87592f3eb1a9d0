"""Embed a paper's items with a cache on disk: each item is embedded once, and an interrupted run resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.atomic import atomic_path
from congruence.errors import CorruptFileError, InputError, ShapeError

if TYPE_CHECKING:
    from congruence.encoders import Encoder

__all__ = ["SHARD", "embed_rows"]

#: Number of items per cache file; at most this many are embedded again after an interruption.
SHARD = 256


def embed_rows(
    encoder: Encoder, items: Sequence[object], names: Sequence[str], cache: Path | None, batch_size: int
) -> np.ndarray:
    """Return the vectors of all items; vectors in the cache are not computed again.

    Parameters
    ----------
    encoder : Encoder
    items : sequence
    names : sequence of str
        Names of the items, which identify them in the cache.
    cache : Path or None
        Folder of the cache; with None, nothing is cached.
    batch_size : int

    Returns
    -------
    ndarray, shape (n, …)

    Raises
    ------
    InputError
        If there are no items.
    ShapeError
        If the encoder returns another number of vectors than it was given items.
    CorruptFileError
        If a file in the cache is damaged.
    """
    if cache is None:
        rows: np.ndarray = encoder.encode_all(items, batch_size)
        return rows
    digest = hashlib.sha256(f"{encoder.fingerprint}\0".encode())
    for name in names:
        digest.update(f"{name}\0".encode())
    folder = cache.expanduser() / digest.hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    return np.concatenate(list(_shards(encoder, items, folder, batch_size)))


def _shards(encoder: Encoder, items: Sequence[object], folder: Path, batch_size: int) -> Iterator[np.ndarray]:
    if not len(items):
        raise InputError(
            "Got a part of the data set without items; expected at least one. Extract the data set again, or pass another split."
        )
    for start in range(0, len(items), SHARD):
        count = min(SHARD, len(items) - start)
        path = folder / f"{start:08d}.npy"
        if not path.is_file():
            rows = np.concatenate(
                [np.asarray(b) for b in encoder.encode(items[start : start + count], batch_size=batch_size)]
            )
            if len(rows) != count:
                raise ShapeError(
                    f"Got {len(rows)} vectors for {count} items; expected one each. Make the encoder return a row for each item."
                )
            with atomic_path(path, force=True) as temporary, open(temporary, "wb") as file:
                np.save(file, rows.astype(np.float32))
        try:
            cached = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise CorruptFileError(
                f"Got a damaged file in the cache, {path} ({error}); expected vectors. Delete it and run again."
            ) from error
        if len(cached) != count:
            raise CorruptFileError(f"Got {len(cached)} vectors in {path}; expected {count}. Delete it and run again.")
        yield cached
