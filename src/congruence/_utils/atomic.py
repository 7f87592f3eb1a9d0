"""Atomic writes that replace only what this library wrote."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from congruence._utils.owner import find_left_over, temporary_beside
from congruence._utils.refusals import say_refusal
from congruence._utils.rename import exchange, rename_exclusive
from congruence.errors import CongruenceError, FileError, OutputExistsError, StorageError

_REFUSED = {
    errno.ENOSPC,
    errno.EFBIG,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
}

#: Longest name of a file in bytes, on the file systems in common use.
_MOST_NAME = 255

#: Where :func:`atomic_path` notes what it has put into its place, for who set a list: a command says so when it fails later on.
published: ContextVar[list[Path] | None] = ContextVar("published", default=None)

#: Says why a folder must not be replaced, as the end of "which …"; None for one of the kind that is written.
Foreign: TypeAlias = Callable[[Path], str | None]


@contextmanager
def atomic_path(
    path: str | Path, *, force: bool = False, directory: bool = False, foreign: Foreign | None = None
) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` and move it there if the block ends without an error.

    Parameters
    ----------
    path : path-like
        Where the result goes.
    force : bool, default=False
        Replace what is there: a file, or a folder that ``foreign`` has nothing against.
    directory : bool, default=False
        Make a folder rather than leave a file to be made.
    foreign : callable, optional
        Takes a folder and says why it must not be replaced, or None (:func:`why_foreign`). Without it, only an empty
        folder is replaced.

    Yields
    ------
    Path
        Temporary path in the same folder. Whatever leaves the block by an exception, Ctrl-C included, leaves
        nothing behind.

    Raises
    ------
    OutputExistsError
        Before any work or, if it came meanwhile, after it: something at ``path`` that must not be replaced.
    FileError, StorageError
        The parent folder does not exist, or cannot be written to.
    StorageError
        The operating system refused a write.

    Notes
    -----
    Of several writers to one free path one succeeds. While a folder is replaced, its old or its new copy is whole at every
    instant: at ``path``, or where names cannot be exchanged, at :func:`backup_of` it (see :func:`find_copy`).
    """
    path = Path(path)
    if directory and foreign is not None:
        recover(path, foreign)
    check_output(path, force=force, directory=directory, foreign=foreign)
    for left in find_left_over(path):
        _remove(left)
    temporary = temporary_beside(path)
    try:
        if directory:
            temporary.mkdir()
        yield temporary
        for file in [*temporary.rglob("*")] if directory else [temporary]:
            if file.is_file():
                _sync(file)
        _publish(temporary, path, force, directory, foreign)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and not isinstance(error, CongruenceError) and _is_about(error, temporary, path):
            said = f"{say_refusal(error, f'from the disk while writing {path}')} Nothing was left behind."
            raise StorageError(said) from error
        raise
    _sync_names(path)
    if (record := published.get()) is not None:
        record.append(path)


def _is_about(error: OSError, *places: Path) -> bool:
    """Say whether an error is of writing here: the block may read other files, whose errors are their own."""
    if error.filename is None:  # of a file that was open
        return error.errno in _REFUSED
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes, os.PathLike)) else None
    return named is not None and any(named == place or place in named.parents for place in places)


def check_output(
    path: str | Path, *, force: bool = False, directory: bool = False, foreign: Foreign | None = None
) -> None:
    """Refuse an output path at which there is something that must not be replaced; parameters as for :func:`atomic_path`.

    Raises
    ------
    OutputExistsError
        Something is there and ``force`` is false; or, with ``force`` too, a link, a device or pipe, a folder where a file
        is to be written, a file where a folder is, a folder of other things.
    FileError, StorageError
        The folder it is to go into does not exist or cannot be written to, or the name is too long.
    """
    path = Path(path)
    if path.name in ("", ".."):
        raise OutputExistsError(
            f"Got {path} as an output, which is the folder itself; expected a name in it. Pass {path / 'NAME'}."
        )
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            longest = (
                f"at most {_MOST_NAME}" if len(os.fsencode(path.name)) > _MOST_NAME else "a path that the system takes"
            )
            raise FileError(
                f"Got an output name of {len(os.fsencode(path.name))} bytes ({path.name[:20]}…{path.name[-20:]}); expected "
                f"{longest}. Pass a shorter path."
            ) from None
        _check_parent(path)
        return
    if stat.S_ISDIR(mode) and not directory:
        raise OutputExistsError(f"Got a folder at {path}; expected the path of a file. Pass a path that is no folder.")
    if not (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)):
        found = "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "device, pipe or socket"
        raise OutputExistsError(
            f"Got a {found} at {path}; expected a free path{'' if directory else ' or a file'}. Pass a path at which no {found} stands."
        )
    why = None
    if directory and any(path.iterdir()):
        why = "this library did not write" if foreign is None else foreign(path)
    if why is not None:
        raise OutputExistsError(
            f"Got a folder at {path} which {why}; expected a free path. Pass another path, or move the folder away."
        )
    if not force:
        raise OutputExistsError(
            f"Got an output path that exists, {path}; expected a new one. Pass force=True to replace it."
        )
    _check_parent(path)


def _check_parent(path: Path) -> None:
    """Refuse a path whose folder is missing or closed to this process, as far as the system tells before the work."""
    parent = path.parent
    try:
        there = parent.is_dir()
    except OSError as error:
        raise StorageError(say_refusal(error, f"from the system for the folder {parent}")) from error
    if not there:
        raise FileError(
            f"Got no folder {parent}; expected it to exist. Create it, or pass a path in a folder that exists."
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise StorageError(
            f"Got a folder {parent} that cannot be written to; expected permission to put {path.name} there. Change its "
            "permissions, or pass a path in another folder."
        )


def why_foreign(
    folder: Path, what: str, marker: str, marks: str | Callable[[dict[str, object]], bool], holds: Callable[[str], bool]
) -> str | None:
    """Say why a folder is not, or not only, what this library writes.

    Parameters
    ----------
    folder : Path
    what : str
        What it should be, with its article.
    marker : str
        JSON file in the folder that names its kind and version.
    marks : str or callable
        The kind (:func:`has_marker`).
    holds : callable
        Takes a name and says whether such a file belongs into the folder.

    Returns
    -------
    str or None
    """
    others = sorted(
        entry.name for entry in os.scandir(folder) if not (entry.is_file(follow_symlinks=False) and holds(entry.name))
    )
    if others:
        return f"holds other things than {what} ({', '.join(others[:3])})"
    if not has_marker(folder / marker, marks):
        return f"holds no {marker} that says that it is {what}"
    return None


def has_marker(file: Path, marks: str | Callable[[dict[str, object]], bool]) -> bool:
    """Say whether a file is JSON that names its kind and version: as ``format`` and ``format_version``, or as a function tells."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    if callable(marks):
        return marks(content)
    return content.get("format") == marks and isinstance(content.get("format_version"), int)


def backup_of(path: Path) -> Path:
    """Where a folder waits while it is replaced on a system that cannot exchange two names."""
    name = f".{path.name}.old"
    if len(os.fsencode(name)) > _MOST_NAME:
        name = f".{path.name[:50]}.{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}.old"
    return path.parent / name


def find_copy(path: Path, foreign: Foreign) -> Path:
    """Return the path, or its backup if only that is there: a writer is about to replace it, or was killed doing so."""
    return backup_of(path) if not os.path.lexists(path) and _is_own(backup_of(path), foreign) else path


def recover(path: Path, foreign: Foreign) -> None:
    """Put back, or remove, the backup that a killed writer left."""
    backup = backup_of(path)
    if not _is_own(backup, foreign):
        return
    if not os.path.lexists(path):
        with suppress(FileExistsError, FileNotFoundError):  # another writer was faster
            rename_exclusive(backup, path)
    elif _is_own(path, foreign):
        temporary = temporary_beside(path)
        with suppress(FileNotFoundError):
            os.rename(backup, temporary)
        _remove(temporary)


def _is_own(folder: Path, foreign: Foreign) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and foreign(folder) is None
    except OSError:
        return False


def _publish(temporary: Path, path: Path, force: bool, directory: bool, foreign: Foreign | None) -> None:
    """Move what was written to its place."""
    while True:
        try:
            rename_exclusive(temporary, path)
            return
        except FileExistsError:  # it was there before, under force, or came meanwhile
            check_output(path, force=force, directory=directory, foreign=foreign)
            if force:
                break
    if not directory:
        os.replace(temporary, path)
    elif exchange(temporary, path):
        _sync_names(path)
        _remove(temporary)
    else:
        _swap(temporary, path)


def _swap(temporary: Path, path: Path) -> None:
    """Replace a folder by two renames; between them its backup is the copy that is found."""
    backup = backup_of(path)
    try:
        os.rename(path, backup)
        try:
            os.rename(temporary, path)
        except BaseException:
            if not os.path.lexists(path):
                os.rename(backup, path)
            raise
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            raise
        raise OutputExistsError(
            f"Got {path}, which another writer replaces at the same time; expected one writer. Run this again when it is done."
        ) from error
    _sync_names(path)
    os.rename(backup, temporary)  # in one step no backup any more, and then removed file by file
    _remove(temporary)


def _sync(path: Path) -> None:
    """Push a file, or a folder's table of names, to the disk before anyone relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_names(path: Path) -> None:
    with suppress(OSError):  # the result is in its place; some file systems cannot sync a folder
        _sync(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
