"""Messages for errors of the operating system: what happened, what was expected, and what to do about it."""

from __future__ import annotations

import errno

_SPACE = ("free space", "Free space, or write to another disk.")
_PERMISSION = ("permission", "Change the permissions, or pass another path.")
_OPEN_FILES = ("room for another open file", "Close other programs, or raise the limit (ulimit -n).")

#: What was expected, and what to do, by the number of the error.
_ADVICE: dict[int, tuple[str, str]] = {
    errno.ENOSPC: _SPACE,
    getattr(errno, "EDQUOT", errno.ENOSPC): _SPACE,
    errno.EFBIG: ("a file system that takes files of this size", "Write to another disk, or raise the limit (ulimit -f)."),
    errno.EROFS: ("a disk that can be written", "Pass a path on another disk."),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EIO: ("a disk that answers", "Look after the disk, or use another one."),
    errno.ENAMETOOLONG: ("a shorter name", "Pass a shorter path."),
    errno.EISDIR: ("the path of a file", "Pass the path of a file in this folder."),
    errno.ENOTDIR: ("folders on the way to it", "Pass a path that leads through folders only."),
    errno.ENOENT: ("something there", "Look whether the path is right, and whether another program has removed it."),
    errno.EEXIST: ("a free path", "Pass another path, or move away what is there."),
    errno.ELOOP: ("links that lead somewhere", "Pass the path itself, not that of a link."),
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOMEM: ("free memory", "Close other programs, or use a machine with more memory."),
}  # fmt: skip
_OTHER = ("access", "Look after the file and the disk, or pass another path.")


def is_refusal(error: BaseException) -> bool:
    """Say whether an error is the operating system's and not a library's own, which some raise as ``OSError`` too."""
    return isinstance(error, OSError) and error.errno in _ADVICE


def describe_refusal(error: OSError, doing: str) -> str:
    """Return one message about an error of the operating system.

    Parameters
    ----------
    error : OSError
    doing : str
        Who refused or what was being done, with the path: ``from the disk while writing a.npy``.

    Returns
    -------
    str
    """
    expected, advice = _ADVICE.get(error.errno or 0, _OTHER)
    return f"Got a refusal {doing} ({error.strerror or error}); expected {expected}. {advice}"
