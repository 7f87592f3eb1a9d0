"""Time what writing takes on a database of the same kind in a folder that is removed."""

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
    beside: Path, make: Callable[[Path, int], Database], vectors: np.ndarray, element_type: str
) -> float | None:
    """Return the seconds that writing and flushing vectors takes; None where there is no room for such a folder.

    Parameters
    ----------
    beside : Path
        On the same disk: a folder that takes a hidden one for the time of this call.
    make : callable
        Given a folder and a number of rows, makes a database of so many rows with the ids 0, 1, … and opens it.
    vectors : ndarray of float32, shape (b, dim)
    element_type : str
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".congruence-", dir=beside, ignore_cleanup_errors=True) as folder,
            make(Path(folder), len(vectors)) as scratch,
        ):
            scratch.prepare(vectors.shape[1], element_type)
            for _ in scratch.scan():  # as in a migration, rows have been read before they are written
                pass
            started = time.perf_counter()
            scratch.write(pa.array(np.arange(len(vectors))), vectors)
            scratch.flush()
            return time.perf_counter() - started
    except OSError:
        return None
