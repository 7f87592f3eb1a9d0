"""Names of temporary files that identify the process writing them, so that leftovers of killed processes can be recognized."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from functools import cache
from pathlib import Path

_NAME = re.compile(r"\.(?P<place>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.tmp")


def temporary_path(path: Path) -> Path:
    """Return a free hidden name beside a path, with the place and number of this process."""
    return path.parent / f"{_stem(path)}.{_place()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def find_left_over(path: Path) -> list[Path]:
    """Return the temporary files and folders of a path whose writers are surely dead.

    Those of other machines and containers, and those whose process number has been given to another process, are not among
    them: they might be in work.
    """
    if os.name == "nt":  # where asking for a process by signal 0 ends it
        return []
    stem = _stem(path)
    found = []
    for entry in path.parent.iterdir():
        name = entry.name.startswith(stem) and _NAME.fullmatch(entry.name[len(stem) :])
        if name and name["place"] == _place() and not _is_running(int(name["process"])):
            found.append(entry)
    return found


def _stem(path: Path) -> str:
    return f".{path.name[:50]}"  # so that a name of 255 bytes has room for the rest


@cache
def _place() -> str:
    """Return a digest of what gives process numbers their meaning: the machine since its start, and the container."""
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
    except PermissionError:  # another user's
        return True
    return True
