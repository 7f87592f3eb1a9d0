"""Stores that these tests read."""

from importlib.util import find_spec

import numpy as np
import pyarrow as pa

from congruence.io import find_sink, open_sink, suffixes

#: Suffixes of the formats that are written with or without ids, and of those that keep them.
WRITTEN = suffixes(lambda one: one.sink is not None and not one.sink.needs_ids)
WRITTEN = [suffix for suffix in WRITTEN if suffix != ".zarr" or find_spec("zarr")]
KEEPS_IDS = [suffix for suffix in WRITTEN if find_sink(f"x{suffix}").keeps_ids]


def as_held(suffix, dtype):
    """Return the type in which rows of a type come back from a format, or None if it cannot hold it."""
    if suffix in (".csv", ".tsv", ".jsonl", ".ndjson"):
        return np.float64
    widest = find_sink(f"x{suffix}").widest
    return dtype if widest == np.float64 else widest if np.dtype(dtype).itemsize <= 4 else None


def write(path, X, ids=None, *, step=7, **options):
    """Write a store by blocks, and return its path."""
    with open_sink(path, n=len(X), dim=X.shape[1], dtype=X.dtype, has_ids=ids is not None, **options) as sink:
        for start in range(0, len(X), step):
            sink.write(None if ids is None else pa.array(list(ids)[start : start + step]), X[start : start + step])
    return path


def write_large(path, least):
    """Write blocks of 4 MB until the store is larger than ``least`` KiB; return their number."""
    X = np.zeros((4096, 256), dtype=np.float32)
    X[:] = np.random.default_rng(0).standard_normal(256)
    blocks = least // 4096 + 5
    with open_sink(path, n=4096 * blocks, dim=256) as sink:
        for _ in range(blocks):
            sink.write(None, X)
    return blocks
