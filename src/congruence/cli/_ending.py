"""How a command ends: its streams, the signals that stop it, one sentence on standard error, and an exit code."""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from congruence._utils.refusals import describe_refusal
from congruence.errors import CongruenceError

#: Replacements for characters that a terminal cannot encode. Others are escaped as by ``visible``, e.g. ``\u4e2d``.
_PLAIN = {
    "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "←": "<-", "↔": "<->", "±": "+-", "×": "x", "·": ".", "÷": "/",
    "≥": ">=", "≤": "<=", "≈": "~", "²": "^2", "°": " deg", "“": '"', "”": '"', "‘": "'", "’": "'", "§": "section ",
}  # fmt: skip

_REPLACE = "congruence.replace"  # name under which ``_replace_characters`` is registered with Python's codecs


class OutputLostError(Exception):
    """Standard output cannot be written, so the output of the command is lost."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Stream:
    """Standard output, which raises ``OutputLostError`` so that its failures differ from those of other files, or
    standard error, which drops what cannot be written: a lost message changes no result.
    """

    def __init__(self, stream: TextIO, *, may_lose: bool) -> None:
        self._stream, self._may_lose = stream, may_lose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guarded():
            self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._may_lose:
                raise OutputLostError(error) from error


@contextmanager
def guarded() -> Iterator[None]:
    """Raise ``OutputLostError`` if standard output cannot be written, and replace characters that it cannot
    encode.
    """
    codecs.register_error(_REPLACE, _replace_characters)
    _open_closed()
    before = sys.stdout, sys.stderr
    handlers = [_handle_errors(stream, _REPLACE) for stream in before]
    sys.stdout, sys.stderr = _Stream(before[0], may_lose=False), _Stream(before[1], may_lose=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream, handler in zip(before, handlers, strict=True):
            _handle_errors(stream, handler)


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


def _handle_errors(stream: Any, handler: str | None) -> str | None:
    """Set how a stream handles characters that it cannot encode, and return how it did."""
    before = getattr(stream, "errors", None)
    if hasattr(stream, "reconfigure"):
        with suppress(OSError):  # flushes its buffer first
            stream.reconfigure(errors=handler)
    return before


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
    """Make SIGTERM and SIGHUP raise ``Stopped`` while the block runs, unless they are ignored, as under nohup."""

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


#: Exit codes: invalid input or a machine failure; a bug; output that cannot be written; output whose reader has closed
#: the pipe (as for SIGPIPE).
BAD_INPUT, BUG, LOST, NO_READER, INTERRUPTED = 2, 70, 74, 141, 130

ISSUES = "the project's issue tracker"  # where to report a bug: the project has no public address yet

_SECRET_NAME = r"[\w-]*(?:token|secret|password|passwd|api[_-]?key)[\w-]*"

#: Patterns of secrets, with replacements: passwords in addresses, strings that look like tokens, and values whose names
#: suggest a secret.
_SECRETS = [
    (re.compile(r"(?<=://)[^/\s@'\"]+@"), "***@"),
    (re.compile(r"\b(?:hf_|ghp_|github_pat_|sk-)\w{6,}"), "***"),
    (
        re.compile(rf"(?i)(--{_SECRET_NAME}['\"]?(?:=|\s+)['\"]?|{_SECRET_NAME}['\"]?\s*[=:]\s*['\"]?)[^\s'\",)]+"),
        r"\1***",
    ),
]


def explain(error: BaseException, written: list[Path], tell: Callable[[object], str] = str) -> tuple[str, int]:
    """Return the message for an error that ends a command, and the exit code.

    ``written``: files that the command has already put in place; ``tell``: returns the message of an error of this
    library, with the command's own flags. ``message``: empty if the reader has closed the pipe and no file was written.
    Notes of the error say what else is kept, and how to go on.
    """
    names = " and ".join(map(str, written))
    kept = f" Before that {names} {'was' if len(written) == 1 else 'were'} written." if written else ""
    kept += "".join(f" {redact(note)}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, OutputLostError):
        if error.cause.errno == errno.EPIPE:
            return f"The report was cut off because its reader closed the pipe.{kept}" if kept else "", NO_READER
        return (
            f"Got a standard output that cannot be written ({error.cause.strerror}); expected room for the report. "
            f"Send it to another file.{kept}"
        ), LOST
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        code = error.code if isinstance(error, Stopped) else INTERRUPTED
        end = "interrupted" if code == INTERRUPTED else "stopped by a signal"
        return f"{end}{f'.{kept}' if kept else '; nothing was written.'}", code
    if isinstance(error, CongruenceError):
        return f"{tell(error)}{kept}", BAD_INPUT
    if (failure := _allocation_failure(error)) is not None:
        return (
            f"Got too little free memory ({failure}); expected enough for the data. Pass fewer rows or a smaller "
            f"batch, or use a machine with more memory.{kept}"
        ), BAD_INPUT
    if isinstance(error, OSError):
        where = f"for {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else "during the work"
        return f"{describe_refusal(error, f'from the system {where}')}{kept}", BAD_INPUT
    return f"{_report_bug(error)}{kept}", BUG


def _allocation_failure(error: BaseException) -> str | None:
    """Return the message of a failed allocation; None for any other error."""
    # torch raises its own RuntimeError for GPU memory, and a plain one for host memory.
    torch_error = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    if not (isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and torch_error)):
        return None
    message = " ".join(str(error).split())
    match = re.search(r"[Tt]ried to allocate [\d.]+ \w+|Unable to allocate .*|malloc of size \d+.*", message)
    return match[0].rstrip(".") if match else message or "size unknown"


def _report_bug(error: BaseException) -> str:
    """Save the details of a bug to a file, and return a sentence that asks the user to report it."""
    summary = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(": ")
    command = " ".join(["congruence", *map(repr, sys.argv[1:])])
    trace = "".join(traceback.format_exception(error))
    details = redact(f"{_versions()}\ncommand: {command}\n\n{trace}")
    try:
        handle, path = tempfile.mkstemp(prefix="congruence-bug-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(details)
        place = f"the file {path}"
    except OSError:
        print(details, file=sys.stderr)
        place = "the text above"
    return (
        f"This is a bug in congruence ({redact(summary)}). Send {place} to {ISSUES}. It contains versions, the "
        "command and where it failed; remove anything private before you send it."
    )


def _versions() -> str:
    with suppress(Exception):  # what is wrong may be in the way here, too
        from congruence.system import system_info

        return str(system_info(devices=False))
    return "versions unknown"


def redact(text: str) -> str:
    """Return the text without passwords and tokens, as far as they can be recognized."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def named_by(command: Any, written: list[Path], error: BaseException) -> list[Path]:
    """Return the written paths that the user named in options, without others such as checkpoints; of a command that
    was stopped, and has written none of these, some of the others, unless the error says what is kept.
    """
    values = [] if command is None else [value for value in command.params.values() if isinstance(value, str)]
    named, written = {Path(value) for value in values}, list(dict.fromkeys(written))
    told = not isinstance(error, (Stopped, KeyboardInterrupt)) or hasattr(error, "__notes__")
    others = [] if told else [path for path in written if os.path.lexists(path)][:3]
    return [path for path in written if path in named] or others
