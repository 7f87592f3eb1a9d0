"""The process that runs a single command."""

from __future__ import annotations

import os


def start_command() -> None:
    """Let OpenBLAS's idle threads sleep soon; called by the command line before NumPy is imported.

    They spin while they wait for work, by default for so long that they use as much processor time as a short fit
    itself. Here they sleep after 2²⁰ cycles, unless the user has set another limit.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
