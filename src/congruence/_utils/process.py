"""Record of whether this process runs a single command, so that slow imports can be avoided."""

from __future__ import annotations

import sys

__all__ = ["runs_command", "start_command"]

_command = False


def start_command() -> None:
    """Record that this process runs a single command and exits; called first by the entry point of the command line."""
    global _command
    _command = True


def runs_command() -> bool:
    """Return whether this process runs a single command and has not imported scikit-learn."""
    return _command and "sklearn" not in sys.modules
