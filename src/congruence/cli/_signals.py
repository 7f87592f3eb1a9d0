"""Signals that ask a command to stop end it as Ctrl-C does, without partial output."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Shielded(Exception):
    """Wraps an error, its cause, that typer would otherwise handle itself, as the end of a prompt or of a pipe."""


class Stopped(BaseException):
    """A signal asked this process to stop.

    ``code``: exit code: 128 plus the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise :class:`Stopped` while the block runs, unless they are ignored, as under nohup."""

    def stop(number: int, _: object) -> None:
        for other in handled:  # a second signal must not disturb the cleanup started by the first
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
