"""Renames that never replace an existing target, and atomic exchanges of two names.

Each is a single system call if the system supports it: ``renameat2`` on Linux, ``renamex_np`` on macOS. Network drives and old
file systems support neither; there a hard link, or an empty file that claims the name first, protects an existing target.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Errors by which a system, a sandbox or a file system reports a call that it does not support.
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}

#: Flags by platform: (never replace, exchange).
_FLAGS = {"linux": (1, 2), "darwin": (4, 2)}
_AT_FDCWD = -100


def rename_exclusive(source: Path, target: Path) -> None:
    """Rename a file or folder, without replacing an existing target; of several concurrent renames to one target, one succeeds."""
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
    """Make the system call with flag 0 (never replace) or 1 (exchange); return False if it is not supported. Raises OSError."""
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
    name = {"linux": "renameat2", "darwin": "renamex_np"}[sys.platform]
    function = getattr(library, name, None)
    if function is None:  # glibc before 2.28
        return None
    if name == "renamex_np":
        function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint)
        return lambda source, target, flag: int(function(source, target, flag))
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return lambda source, target, flag: int(function(_AT_FDCWD, source, _AT_FDCWD, target, flag))
