"""A lock on a folder that the system releases when its process ends, for whatever reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence.errors import FileError


@contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Hold a folder for this run; without effect on Windows, and on file systems that have no locks.

    Parameters
    ----------
    folder : Path
    message : str
        Of the error.

    Raises
    ------
    FileError
        Another run holds the folder, or has just removed it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = -1
    try:
        try:
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(handle), os.stat(folder))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        except OSError:  # no locks here
            mine = True
        if not mine:
            raise FileError(message)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
