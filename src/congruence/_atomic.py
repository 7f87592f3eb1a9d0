"""Writes that happen whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from congruence.errors import CongruenceError, FileError, OutputExistsError, StorageError

_REFUSED = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


@contextmanager
def atomic_path(path: str | Path, *, force: bool = False, directory: bool = False) -> Iterator[Path]:
    """Give a temporary path beside ``path`` and move it there when the block ends well.

    Parameters
    ----------
    path : path-like
        Where the result goes.
    force : bool, default=False
        Replace what is there.
    directory : bool, default=False
        Make a folder rather than leave a file to be made.

    Yields
    ------
    Path
        Temporary path in the same folder. Whatever leaves the block by an exception, Ctrl-C included, leaves
        nothing behind.

    Raises
    ------
    OutputExistsError
        Before any work, if ``path`` exists and ``force`` is false.
    FileError
        The parent folder does not exist.
    StorageError
        The operating system refused a write.
    """
    path = Path(path)
    if os.path.lexists(path) and not force:
        raise OutputExistsError(
            f"Got an output path that exists, {path}; expected a new one. Pass force=True to replace it."
        )
    if path.is_dir() and not directory:
        raise OutputExistsError(f"Got a folder at {path}; expected the path of a file. Pass a path that is no folder.")
    if not path.parent.is_dir():
        raise FileError(
            f"Got no folder {path.parent}; expected it to exist. Create it, or pass a path in a folder that exists."
        )
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        if directory:
            temporary.mkdir()
        yield temporary
        for file in [*temporary.rglob("*")] if directory else [temporary]:
            if file.is_file():
                _sync(file)
        if directory and os.path.lexists(path):
            _swap(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and not isinstance(error, CongruenceError) and error.errno in _REFUSED:
            raise StorageError(
                f"Got a refusal from the disk while writing {path} ({error.strerror}); expected space and permission. "
                "Free space, or write to another disk. Nothing was left behind."
            ) from error
        raise
    with suppress(OSError):  # the result is in its place; some file systems cannot sync a folder
        _sync(path.parent)


def _swap(temporary: Path, path: Path) -> None:
    """Put a folder where something stands already; if that fails, what stood there comes back."""
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}.old"
    os.replace(path, aside)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.replace(aside, path)
        raise
    _remove(aside)


def _sync(path: Path) -> None:
    """Push a file, or a folder's table of names, to the disk before anyone relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
