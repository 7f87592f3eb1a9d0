"""Memory of this process in MB; ``ru_maxrss`` cannot be used, since a child process inherits its parent's value."""

from __future__ import annotations

import re
from pathlib import Path


def peak_mb() -> float:
    """Return the peak memory."""
    return _status("VmHWM")


def current_mb() -> float:
    """Return the memory in use."""
    return _status("VmRSS")


def _status(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
