"""Stores that these tests read."""

import numpy as np
import pyarrow as pa

from congruence.io import open_sink


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
