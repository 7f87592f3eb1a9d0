"""The process that runs a single command: its threads, and the secrets on its command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def start_command() -> None:
    """Let OpenBLAS's idle threads sleep soon; called by the command line before NumPy is imported.

    They spin while they wait for work, by default for so long that they use as much processor time as a short fit
    itself. Here they sleep after 2²⁰ cycles, unless the user has set another limit.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def hide_arguments(secrets: Iterable[str]) -> bool:
    """Overwrite secrets in the command line that ``ps`` and ``/proc`` show; return whether none of them is visible now.

    Only Linux allows this. The secrets were visible from the start of the process until this call.
    """
    import ctypes

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
