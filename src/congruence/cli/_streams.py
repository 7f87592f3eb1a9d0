"""Standard output and standard error of a command: what happens when they are closed or full, or know few characters."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

#: What stands for a character that a terminal does not know. Others are written as ``visible`` writes them, ``\u4e2d``.
_PLAIN = {
    "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "←": "<-", "↔": "<->", "±": "+-", "×": "x", "·": ".", "÷": "/",
    "≥": ">=", "≤": "<=", "≈": "~", "²": "^2", "°": " deg", "“": '"', "”": '"', "‘": "'", "’": "'", "§": "section ",
}  # fmt: skip

#: Name under which :func:`_spell` is known to Python's codecs.
_SPELLED = "congruence.spelled"


class OutputLostError(Exception):
    """Standard output cannot be written, so what a command has to say is lost.

    Attributes
    ----------
    cause : OSError
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Output:
    """Standard output whose failures cannot be taken for those of another file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            raise OutputLostError(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputLostError(error) from error


class _Messages(_Output):
    """Standard error, of which what cannot be written is dropped: a lost message changes no result."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def guarded() -> Iterator[None]:
    """Let :class:`OutputLostError` tell of a standard output that cannot be written, and spell out what it has no characters for."""
    codecs.register_error(_SPELLED, _spell)
    _open_closed()
    before = sys.stdout, sys.stderr
    rules = [getattr(stream, "errors", None) for stream in before]
    _set_rules(before, [_SPELLED] * 2)
    sys.stdout, sys.stderr = _Output(before[0]), _Messages(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _set_rules(before, rules)


def discard_output() -> None:
    """Send what standard output still holds nowhere, or the interpreter would complain of it once more when it ends."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def knows_unicode() -> bool:
    """Say whether standard output can show every character."""
    with suppress(LookupError):
        return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name.startswith("utf")
    return False


def _set_rules(streams: Iterable[object], rules: Iterable[str | None]) -> None:
    for stream, rule in zip(streams, rules, strict=True):
        if hasattr(stream, "reconfigure"):
            with suppress(OSError):  # it writes out what it holds first
                stream.reconfigure(errors=rule)


def _open_closed() -> None:
    """Open standard streams that came closed (``>&-``): the next file would take their number, and others' output with it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Reading where output is written makes every write fail, so that a closed output is noticed.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("unicode_escape").decode("ascii") for c in text), error.end
