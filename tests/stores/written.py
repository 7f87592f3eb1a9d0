"""Stores that these tests read."""

import pyarrow as pa

from congruence.stores import open_sink


def write(path, X, ids=None, *, step=7, **options):
    """Write a store by blocks, and return its path."""
    with open_sink(path, n=len(X), dim=X.shape[1], dtype=X.dtype, has_ids=ids is not None, **options) as sink:
        for start in range(0, len(X), step):
            sink.write(None if ids is None else pa.array(list(ids)[start : start + step]), X[start : start + step])
    return path
