"""The process that runs a single command."""

from __future__ import annotations

import os


def start_command() -> None:
    """Let OpenBLAS's idle threads sleep after 2²⁰ cycles, instead of spinning as long as a short fit takes."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
