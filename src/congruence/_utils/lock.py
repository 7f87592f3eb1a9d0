"""A lock on a folder, which the system releases when the process that holds it ends, for whatever reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence.errors import FileError


@contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Lock a folder while the block runs; without effect on Windows, and on file systems without locks."""
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
            acquired = os.path.samestat(os.fstat(handle), os.stat(folder))
        except (BlockingIOError, FileNotFoundError):
            acquired = False
        except OSError:  # the file system has no locks
            acquired = True
        if not acquired:
            raise FileError(message)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
