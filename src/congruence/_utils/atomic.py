"""Atomic writes, which replace a folder only if this library wrote it; names of temporary files, renames and locks."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TypeAlias

from congruence._utils.refusals import describe_refusal, refusing
from congruence.errors import CongruenceError, FileError, LockedError, OutputExistsError, StorageError

_WRITE_ERRORS = {
    *(errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES),
    *(errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE),
}

_MAX_NAME_BYTES = 255  # longest file name in bytes on common file systems

#: A list to which ``atomic_path`` appends each path that it published, so that a command that fails can report it.
published: ContextVar[list[Path] | None] = ContextVar("published", default=None)

#: Returns why a folder must not be replaced, as the end of a clause "which …"; None if it is of the kind being written.
Foreign: TypeAlias = Callable[[Path], str | None]


@contextmanager
def atomic_path(
    path: str | Path,
    *,
    force: bool = False,
    directory: bool = False,
    foreign: Foreign | None = None,
    part: bool = False,
) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` and move it there if the block ends without an error; else remove it.

    ``force`` replaces an existing file, or a folder for which ``foreign`` returns None; without ``foreign``, only an
    empty folder. With ``directory``, the temporary path is a folder; else the block must write a file there. ``part``:
    one of very many files of an incomplete output, for which leftovers are not looked for, and nothing is reported.

    If several processes write to the same free path, one of them succeeds. While a folder is replaced, a complete old
    or new copy exists at all times: at ``path`` or at ``backup_of(path)`` (see ``find_copy``).
    """
    path = Path(path)
    if directory and foreign is not None:
        recover(path, foreign)
    check_output(path, force=force, directory=directory, foreign=foreign)
    for left_over in () if part else find_left_over(path):
        _remove(left_over)
    temporary = temporary_path(path)
    try:
        if directory:
            temporary.mkdir()
        yield temporary
        for file in [*temporary.rglob("*")] if directory else [temporary]:
            if file.is_file():
                sync(file)
        _publish(temporary, path, force, directory, foreign)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, CongruenceError) or not (isinstance(error, OSError) and _concerns(error, temporary, path)):
            raise
        message = f"{describe_refusal(error, f'from the disk while writing {path}')} Nothing was left behind."
        raise StorageError(message) from error
    _sync_names(path)
    if not part and (record := published.get()) is not None:
        record.append(path)


def _concerns(error: OSError, *paths: Path) -> bool:
    """Return whether an error comes from writing to these paths, and not from other files that the block reads."""
    if error.filename is None:  # an error on an open file has no name
        return error.errno in _WRITE_ERRORS
    file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes, os.PathLike)) else None
    return file is not None and any(file == path or path in file.parents for path in paths)


def check_output(
    path: str | Path, *, force: bool = False, directory: bool = False, foreign: Foreign | None = None
) -> None:
    """Raise an error if something at an output path must not be replaced; parameters as for ``atomic_path``."""
    path = Path(path)
    if path.name in ("", ".."):
        raise OutputExistsError(f"Got the output path {path}, which has no file name.", f"Pass {path / 'NAME'}.")
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            size, name = len(os.fsencode(path.name)), f"{path.name[:20]}…{path.name[-20:]}"
            problem = f"Got an output name of {size} bytes ({name}); expected at most {_MAX_NAME_BYTES}."
            raise FileError(problem, "Pass a shorter path.") from None
        _check_parent(path)
        return
    if not (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFREG: "file"}
        kind = kinds.get(stat.S_IFMT(mode), "device, pipe or socket")
        expected = "a free path" if directory else "the path of a file" if kind == "folder" else "a free path or a file"
        raise OutputExistsError(f"Got a {kind} at {path}; expected {expected}.", "Pass another path.")
    why = None
    if directory and any(path.iterdir()):
        why = "this library did not write" if foreign is None else foreign(path)
    if why is not None:
        fix = "Pass another path, or move the folder away."
        raise OutputExistsError(f"Got a folder at {path} which {why}; expected a free path.", fix)
    if not force:
        fixes = ("Pass `force=True` to replace it.", "Pass another path.")
        raise OutputExistsError(f"Got an output path that exists, {path}.", fixes)
    _check_parent(path)


def _check_parent(path: Path) -> None:
    """Raise an error if the parent folder is missing or known not to be writable."""
    parent = path.parent
    with refusing(f"from the system for the folder {parent}", StorageError):
        exists = parent.is_dir()
    if not exists:
        raise FileError(f"No folder {parent}.", "Create it, or pass a path in a folder that exists.")
    if not os.access(parent, os.W_OK | os.X_OK):
        problem = f"Got a folder {parent} that cannot be written to; expected permission to put {path.name} there."
        raise StorageError(problem, "Change its permissions, or pass a path in another folder.")


def why_foreign(
    folder: Path, what: str, marker: str, marks: str | Callable[[dict[str, object]], bool], holds: Callable[[str], bool]
) -> str | None:
    """Return why a folder is not wholly this library's, as the end of a clause "which …"; ``marks`` is as in
    ``has_marker``.
    """
    own = {entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False) and holds(entry.name)}
    if others := sorted({*os.listdir(folder)} - own):
        return f"contains files that do not belong to {what} ({', '.join(others[:3])})"
    if not has_marker(folder / marker, marks):
        return f"contains no {marker} that identifies it as {what}"
    return None


def has_marker(file: Path, marks: str | Callable[[dict[str, object]], bool]) -> bool:
    """Return whether a file is JSON of this ``format`` with a ``format_version``, or that a function accepts."""
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
    """Return where the old folder is kept while it is replaced, on a system that cannot exchange two names."""
    name = f".{path.name}.old"
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = f".{path.name[:50]}.{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}.old"
    return path.parent / name


def find_copy(path: Path, foreign: Foreign) -> Path:
    """Return the path, or its backup if only that exists, as while a process replaces the folder."""
    return backup_of(path) if not os.path.lexists(path) and _is_own(backup_of(path), foreign) else path


def recover(path: Path, foreign: Foreign) -> None:
    """Restore the backup left by a killed process, or remove it if the folder exists."""
    backup = backup_of(path)
    if not _is_own(backup, foreign):
        return
    if not os.path.lexists(path):
        with suppress(FileExistsError, FileNotFoundError):  # another writer was faster
            rename_exclusive(backup, path)
    elif _is_own(path, foreign):
        temporary = temporary_path(path)
        with suppress(FileNotFoundError):
            os.rename(backup, temporary)
        _remove(temporary)


def _is_own(folder: Path, foreign: Foreign) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and foreign(folder) is None
    except OSError:
        return False


def _publish(temporary: Path, path: Path, force: bool, directory: bool, foreign: Foreign | None) -> None:
    """Move the output from the temporary path to its final path."""
    while True:
        try:
            rename_exclusive(temporary, path)
            return
        except FileExistsError:  # it existed before (with force), or has appeared since
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
    """Replace a folder by two renames; between them, ``find_copy`` returns the backup."""
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
        problem = f"Got {path}, which another process is replacing; expected only one writer."
        raise OutputExistsError(problem, "Run this again when the other has finished.") from error
    _sync_names(path)
    os.rename(backup, temporary)  # renamed first, so that a partly removed folder is never taken for a backup
    _remove(temporary)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_names(path: Path) -> None:
    with suppress(OSError):  # the output is already in place, and some file systems cannot sync a folder
        sync(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_folder(path: Path, *, kept: bool = False) -> None:
    """Remove a folder, whole until it is gone, and what killed processes left of it; if ``kept``, only the latter."""
    if path.is_dir() and not kept:
        away = temporary_path(path)
        os.rename(path, away)
        _remove(away)
    if path.parent.is_dir():
        for left_over in find_left_over(path):
            _remove(left_over)


# ------------------------------------------------------------------ names of temporary files

#: Identifies the process that writes, so that leftovers of killed processes can be recognized.
_TEMPORARY = re.compile(r"\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.tmp")


def temporary_path(path: Path) -> Path:
    """Return an unused hidden path next to a path, whose name identifies the host and this process."""
    return path.parent / f"{_stem(path)}.{_host()}-{os.getpid()}-{os.urandom(4).hex()}.tmp"


def find_left_over(path: Path) -> list[Path]:
    """Return the temporary files and folders of a path whose writers, on this machine, are certainly dead."""
    if os.name == "nt":  # os.kill(process, 0) would end the process there
        return []
    stem = _stem(path)
    left_over = []
    for entry in path.parent.iterdir():
        name = entry.name.startswith(stem) and _TEMPORARY.fullmatch(entry.name[len(stem) :])
        if name and name["host"] == _host() and not _is_running(int(name["process"])):
            left_over.append(entry)
    return left_over


def _stem(path: Path) -> str:
    return f".{path.name[:50]}"  # shortened, to leave room for the suffix in a name of at most 255 bytes


@cache
def _host() -> str:
    """Return a digest of the machine, its current boot and the container, within which process numbers are unique."""
    import socket  # only where something is written: the import takes 4 ms

    facts = [socket.gethostname()]
    for read in (lambda: Path("/proc/sys/kernel/random/boot_id").read_text(), lambda: os.readlink("/proc/self/ns/pid")):
        try:
            facts.append(read())
        except OSError:  # not Linux
            facts.append("")
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


# ------------------------------------------------------------------ renames
#
# Renames that never replace an existing target, and exchanges of two names, are a single system call where the system
# supports it: renameat2 on Linux, renamex_np on macOS. Network drives and old file systems support neither; there a
# hard link, or an empty file that claims the name first, protects an existing target.

#: Errors by which a system, a sandbox or a file system reports a call that it does not support.
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}

_FLAGS = {"linux": (1, 2), "darwin": (4, 2)}  # flags by platform: (never replace, exchange)
_AT_FDCWD = -100


def rename_exclusive(source: Path, target: Path) -> None:
    """Rename without replacing an existing target; of several concurrent renames to one, one succeeds."""
    if _call(source, target, 0):
        return
    if os.name == "nt":  # os.rename never replaces a target on Windows
        os.rename(source, target)
    elif source.is_dir():
        _rename_folder(source, target)
    else:
        _rename_file(source, target)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically; return False, with nothing changed, if the system does not support it."""
    return _call(first, second, 1)


def _rename_folder(source: Path, target: Path) -> None:
    os.mkdir(target)  # fails if the target exists
    try:
        os.rename(source, target)  # replaces a folder only if it is empty
    except BaseException as error:
        with suppress(OSError):
            os.rmdir(target)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        raise


def _rename_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    else:
        os.unlink(source)
        return
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        os.replace(source, target)
    except BaseException:
        if os.path.lexists(source):  # not renamed, so the target is the empty file that claimed the name
            os.unlink(target)
        raise


def _call(source: Path, target: Path, flag: int) -> bool:
    """Make the system call with flag 0 (never replace) or 1 (exchange); return False if it is not supported."""
    function = _find_call()
    if function is None:
        return False
    if function(os.fsencode(source), os.fsencode(target), _FLAGS[sys.platform][flag]) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _find_call() -> Callable[[bytes, bytes, int], int] | None:
    if sys.platform not in _FLAGS:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        return lambda source, target, flag: int(library.renamex_np(source, target, ctypes.c_uint(flag)))
    if not hasattr(library, "renameat2"):  # glibc before 2.28
        return None
    here = ctypes.c_int(_AT_FDCWD)
    return lambda source, target, flag: int(library.renameat2(here, source, here, target, ctypes.c_uint(flag)))


# ------------------------------------------------------------------ locks


@contextmanager
def locked(folder: Path, problem: str, fix: str | tuple[str, ...] = ()) -> Iterator[None]:
    """Lock a folder, where the file system can, while the block runs; LockedError if another process holds it."""
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
        except OSError as error:  # others than these two: the file system has no locks
            acquired = not isinstance(error, (BlockingIOError, FileNotFoundError))
        if not acquired:
            raise LockedError(problem, fix)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
