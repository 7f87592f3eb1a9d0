"""Record of whether this process runs a single command, so that slow imports can be avoided."""

from __future__ import annotations

import os
import sys

__all__ = ["runs_command", "start_command"]

_command = False


def start_command() -> None:
    """Record that this process runs a single command and exits; called first by the entry point of the command line, before NumPy is imported.

    OpenBLAS's threads spin while they wait for work, by default for so long that they use as much processor time as a short fit itself. Here they
    sleep after 2²⁰ cycles, unless the user has set another limit.
    """
    global _command
    _command = True
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def runs_command() -> bool:
    """Return whether this process runs a single command and has not imported scikit-learn."""
    return _command and "sklearn" not in sys.modules
