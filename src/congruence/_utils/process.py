"""Whether this process runs one command and ends, which decides what is worth importing."""

from __future__ import annotations

import sys

__all__ = ["runs_command", "start_command"]

_command = False


def start_command() -> None:
    """Say that this process runs one command and ends; the entry point of the command line calls it first."""
    global _command
    _command = True


def runs_command() -> bool:
    """Return whether this process runs one command, in which nothing has imported scikit-learn yet."""
    return _command and "sklearn" not in sys.modules
