"""Available memory, so that data that cannot fit are refused before they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from congruence.errors import OutOfMemoryError

_SMALL = 64 * 2**20  # arrays smaller than this are not checked

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_memory(size: int, what: str, remedy: str) -> None:
    """Raise an error if more bytes are needed than are free: Linux would kill the process instead of refusing them."""
    if size < _SMALL:
        return
    free = free_memory()
    if free is not None and size > free:
        problem = f"Got {what}, which needs {say_size(size)}, but only {say_size(free)} of memory are free."
        raise OutOfMemoryError(problem, remedy)


def free_memory() -> int | None:
    """Return the bytes that this process can still get: of the machine, its control groups and ``ulimit -v``."""
    free = [*_free_in_groups(), *_free_address_space()]
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(_PROC / "meminfo"), re.MULTILINE))
    if "MemAvailable" in facts:
        free.append(1024 * (int(facts["MemAvailable"]) + int(facts.get("SwapFree", 0))))
    return max(0, min(free)) if free else None


def say_size(size: int) -> str:
    """Return a number of bytes as text with a unit: 1.5 GiB."""
    power = min(max(abs(size).bit_length() - 1, 0) // 10, 6)
    return f"{size} bytes" if not power else f"{size / 1024**power:,.1f} {'KMGTPE'[power - 1]}iB"


def _free_in_groups() -> Iterator[int]:
    """Yield the remaining memory of each control group of this process; in a container, its group is the root."""
    path = next((line[3:] for line in _read(_PROC / "self" / "cgroup").splitlines() if line.startswith("0::")), "/")
    place = _GROUPS / path.strip("/")
    for group in {place, *(parent for parent in place.parents if parent.is_relative_to(_GROUPS)), _GROUPS}:
        most, now = (_read(group / name).strip() for name in ("memory.max", "memory.current"))
        if most.isdecimal() and now.isdecimal():  # "max" is no limit
            kept = re.search(r"^file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            # Cached file pages are released when memory is needed.
            yield int(most) - int(now) + (int(kept[1]) if kept else 0)


def _free_address_space() -> Iterator[int]:
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
