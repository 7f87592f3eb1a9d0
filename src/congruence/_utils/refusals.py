"""Messages for errors of the operating system: what happened, what was expected, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from congruence.errors import CongruenceError, FileError

_SPACE = ("free space", "Free space, or write to another disk.")
_PERMISSION = ("permission", "Change the permissions, or pass another path.")
_OPEN_FILES = ("room for another open file", "Close other programs, or raise the limit (ulimit -n).")

#: What was expected, and what to do, by the number of the error.
_ADVICE: dict[int, tuple[str, str]] = {
    errno.ENOSPC: _SPACE,
    getattr(errno, "EDQUOT", errno.ENOSPC): _SPACE,
    errno.EFBIG: ("room for a file of this size", "Write to another disk, or raise the limit (ulimit -f)."),
    errno.EROFS: ("a writable disk", "Pass a path on another disk."),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EIO: ("a working disk", "Check the disk, or use another one."),
    errno.ENAMETOOLONG: ("a shorter name", "Pass a shorter path."),
    errno.EISDIR: ("the path of a file", "Pass the path of a file in this folder."),
    errno.ENOTDIR: ("a path through folders", "Pass a path in which every part except the last is a folder."),
    errno.ENOENT: ("an existing path", "Check the path, and whether another program has removed it."),
    errno.EEXIST: ("a free path", "Pass another path, or move the existing file away."),
    errno.ELOOP: ("links without a cycle", "Pass the path of the file, not that of a link."),
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOMEM: ("free memory", "Close other programs, or use a machine with more memory."),
}  # fmt: skip
_OTHER = ("access", "Check the file and the disk, or pass another path.")


def is_refusal(error: BaseException) -> bool:
    """Return whether an error comes from the operating system, and not from a library that also raises ``OSError``."""
    return isinstance(error, OSError) and error.errno in _ADVICE


@contextmanager
def refusing(doing: str, kind: type[FileError]) -> Iterator[None]:
    """Raise an error of a kind for one of the operating system; ``doing`` as in ``describe_refusal``."""
    try:
        yield
    except CongruenceError:
        raise
    except OSError as error:
        raise kind(describe_refusal(error, doing)) from error


def describe_refusal(error: OSError, doing: str) -> str:
    """Return a message about an error of the system; ``doing`` is for example ``from the disk while writing a.npy``."""
    expected, advice = _ADVICE.get(error.errno or 0, _OTHER)
    return f"Got an error {doing} ({error.strerror or error}); expected {expected}. {advice}"
