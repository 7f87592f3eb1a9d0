"""Signals that ask a command to end: they end it as Ctrl-C does, with nothing half written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Shielded(Exception):
    """Brings an error past typer, which takes some for the end of a dialog or of a pipe; the error itself is the cause."""


class Stopped(BaseException):
    """A signal asked this process to end.

    Attributes
    ----------
    code : int
        Exit code: 128 and the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :class:`Stopped` while the block runs, unless they are ignored, as under nohup."""

    def stop(number: int, _: object) -> None:
        for other in before:  # a second one does not disturb what the first one has removed
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
