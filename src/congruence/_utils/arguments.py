"""Hide secrets on this process's command line from other users of the machine."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path


def hide_arguments(secrets: Iterable[str]) -> bool:
    """Overwrite secrets in the process's memory that ``ps`` and ``/proc`` show as its command line.

    Only Linux allows this; on other systems nothing is done. The secrets were visible from the start of the process
    until this call.

    Returns: whether none of the secrets is visible now.
    """
    encoded = [secret.encode() for secret in secrets if secret]
    if not encoded:
        return True
    if not sys.platform.startswith("linux"):
        return False
    try:
        # Fields 48 and 49 in proc(5) are the addresses of the arguments. The second field may contain spaces and
        # parentheses.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    if start == 0 or end - start != len(shown) or ctypes.string_at(start, len(shown)) != shown:
        return False  # the memory is not what the system shows, so it must not be overwritten
    for secret in sorted(encoded, key=len, reverse=True):
        at = shown.find(secret)
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(secret))
            shown = shown[:at] + b"*" * len(secret) + shown[at + len(secret) :]
            at = shown.find(secret)
    return True
