"""Names of temporary files that identify the process writing them, so that leftovers of killed processes can be recognized."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from functools import cache
from pathlib import Path

_NAME = re.compile(r"\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.tmp")


def temporary_path(path: Path) -> Path:
    """Return an unused hidden path next to a path, whose name identifies the host and this process."""
    return path.parent / f"{_stem(path)}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def find_left_over(path: Path) -> list[Path]:
    """Return the temporary files and folders of a path whose writers are certainly dead.

    Those of other machines and containers, and those whose process number belongs to a running process, are not included, since they may
    be in use.
    """
    if os.name == "nt":  # os.kill(process, 0) would end the process there
        return []
    stem = _stem(path)
    left_over = []
    for entry in path.parent.iterdir():
        name = entry.name.startswith(stem) and _NAME.fullmatch(entry.name[len(stem) :])
        if name and name["host"] == _host() and not _is_running(int(name["process"])):
            left_over.append(entry)
    return left_over


def _stem(path: Path) -> str:
    return f".{path.name[:50]}"  # shortened, to leave room for the suffix in a name of at most 255 bytes


@cache
def _host() -> str:
    """Return a digest of the machine, its current boot and the container, within which process numbers are unique."""
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
        return True
    return True
