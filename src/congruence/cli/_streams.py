"""Standard output and standard error of a command: what happens if they are closed, full, or cannot encode some
characters.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

#: Replacements for characters that a terminal cannot encode. Others are escaped as by ``visible``, e.g. ``\u4e2d``.
_PLAIN = {
    "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "←": "<-", "↔": "<->", "±": "+-", "×": "x", "·": ".", "÷": "/",
    "≥": ">=", "≤": "<=", "≈": "~", "²": "^2", "°": " deg", "“": '"', "”": '"', "‘": "'", "’": "'", "§": "section ",
}  # fmt: skip

#: Name under which :func:`_replace_characters` is registered with Python's codecs.
_REPLACE = "congruence.replace"


class OutputLostError(Exception):
    """Standard output cannot be written, so the output of the command is lost.

    Attributes
    ----------
    cause : OSError
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Output:
    """Standard output that raises :class:`OutputLostError`, so that its failures differ from those of other files."""

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
    """Standard error that drops what cannot be written, since a lost message changes no result."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def guarded() -> Iterator[None]:
    """Raise :class:`OutputLostError` if standard output cannot be written, and replace characters that it cannot
    encode.
    """
    codecs.register_error(_REPLACE, _replace_characters)
    _open_closed()
    before = sys.stdout, sys.stderr
    handlers = [getattr(stream, "errors", None) for stream in before]
    _set_error_handlers(before, [_REPLACE] * 2)
    sys.stdout, sys.stderr = _Output(before[0]), _Messages(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _set_error_handlers(before, handlers)


def discard_output() -> None:
    """Discard the buffered standard output, since the interpreter would otherwise report the failure again at exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def knows_unicode() -> bool:
    """Return whether standard output can encode every character."""
    with suppress(LookupError):
        return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name.startswith("utf")
    return False


def _set_error_handlers(streams: Iterable[object], handlers: Iterable[str | None]) -> None:
    for stream, handler in zip(streams, handlers, strict=True):
        if hasattr(stream, "reconfigure"):
            with suppress(OSError):  # flushes its buffer first
                stream.reconfigure(errors=handler)


def _open_closed() -> None:
    """Open standard streams that were closed (``>&-``): otherwise the next opened file would get their descriptor, and
    their output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Standard output is opened for reading: every write then fails, so that a closed output is noticed.
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("unicode_escape").decode("ascii") for c in text), error.end
