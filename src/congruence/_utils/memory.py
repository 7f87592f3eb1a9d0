"""Available memory, so that what cannot fit is refused before it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from congruence.errors import OutOfMemoryError

#: Smaller arrays are not worth a look at the system.
_SMALL = 64 * 2**20

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_memory(size: int, what: str, remedy: str) -> None:
    """Refuse what is larger than the memory that is free.

    Linux promises memory that it does not have, and ends the process when the memory is used: no ``MemoryError`` would be raised.

    Parameters
    ----------
    size : int
        Bytes that are needed at once.
    what : str
        For the message: ``1,000 × 512 float32 in a.npy``.
    remedy : str
        What to do instead, as a sentence.

    Raises
    ------
    OutOfMemoryError
        If there is not enough memory.
    """
    if size < _SMALL:
        return
    free = free_memory()
    if free is not None and size > free:
        raise OutOfMemoryError(
            f"Got {what}, {say_size(size)}, and {say_size(free)} of free memory; expected room for all of it at once. {remedy}"
        )


def free_memory() -> int | None:
    """Return how many bytes this process can still take, swap included; None where the system does not tell.

    The least of what Linux has available, of what the limits of the process's control groups leave (containers), and of what its
    own limit of address space leaves (``ulimit -v``).
    """
    room = [*_of_machine(), *_of_groups(), *_of_process()]
    return max(0, min(room)) if room else None


def say_size(size: int) -> str:
    """Return a number of bytes in readable form: 1.5 GiB."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024 or unit == "EiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def _of_machine() -> Iterator[int]:
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(_PROC / "meminfo"), re.MULTILINE))
    if "MemAvailable" in facts:
        yield 1024 * (int(facts["MemAvailable"]) + int(facts.get("SwapFree", 0)))


def _of_groups() -> Iterator[int]:
    """Yield what each control group above this process leaves; a container sees its own as the root."""
    for line in _read(_PROC / "self" / "cgroup").splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        root = _GROUPS if not kinds else _GROUPS / "memory"
        limit, used, cache = (
            ("memory.max", "memory.current", "file")
            if not kinds
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
        )
        place = root / path.strip("/")
        for group in {place, *(parent for parent in place.parents if parent.is_relative_to(root)), root}:
            most, now = (_read(group / name).strip() for name in (limit, used))
            if most.isdecimal() and now.isdecimal():  # "max" is no limit
                kept = re.search(rf"^{cache} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
                yield int(most) - int(now) + (int(kept[1]) if kept else 0)  # pages of files are given up when needed


def _of_process() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = _read(_PROC / "self" / "statm").split()
    if limit != resource.RLIM_INFINITY and pages:
        yield limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
