"""Hide secrets in this process's command line from other users of the machine."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["hide_arguments"]


def hide_arguments(secrets: Iterable[str]) -> bool:
    """Overwrite secrets in the memory from which the system's list of processes is read.

    Linux lets a process do that; elsewhere nothing is done. The process was visible with them until then.

    Parameters
    ----------
    secrets : iterable of str

    Returns
    -------
    bool
        Whether none of them is visible now.
    """
    wanted = [one.encode() for one in secrets if one]
    if not wanted:
        return True
    if not sys.platform.startswith("linux"):
        return False
    try:
        # Fields 48 and 49 of proc(5): where the arguments lie. The second field may hold spaces and brackets of its own.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    if start == 0 or end - start != len(shown) or ctypes.string_at(start, len(shown)) != shown:
        return False  # another memory than the one that is shown: not to be written to
    for secret in sorted(wanted, key=len, reverse=True):
        at = shown.find(secret)
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(secret))
            shown = shown[:at] + b"*" * len(secret) + shown[at + len(secret) :]
            at = shown.find(secret)
    return True
