"""Measure the time to write to a database, on a temporary one of the same kind."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence.databases._base import Database

__all__ = ["time_scratch"]


def time_scratch(
    parent: Path, make: Callable[[Path, int], Database], vectors: np.ndarray, element_type: str
) -> float | None:
    """Return the seconds that writing and flushing vectors takes; None if the temporary database cannot be created or written (OSError).

    Parameters
    ----------
    parent : Path
        Folder on the disk of the database, in which a hidden temporary folder is created.
    make : callable
        Function that, given a folder and a number of rows, creates and opens a database with that many rows and the ids 0, 1, …
    vectors : ndarray of float32, shape (b, dim)
    element_type : str
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".congruence-", dir=parent, ignore_cleanup_errors=True) as folder,
            make(Path(folder), len(vectors)) as scratch,
        ):
            scratch.prepare(vectors.shape[1], element_type)
            for _ in scratch.scan():  # as in a migration, rows are read before they are written
                pass
            started = time.perf_counter()
            scratch.write(pa.array(np.arange(len(vectors))), vectors)
            scratch.flush()
            return time.perf_counter() - started
    except OSError:
        return None
