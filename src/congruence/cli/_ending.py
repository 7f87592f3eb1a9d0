"""How a failed command ends: one sentence on standard error, and an exit code."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from congruence._utils.refusals import describe_refusal
from congruence.cli._signals import Stopped
from congruence.cli._streams import OutputLostError
from congruence.errors import CongruenceError

#: Exit codes: invalid input or a machine failure; a bug; output that cannot be written; output whose reader has closed
#: the pipe (as for SIGPIPE).
BAD_INPUT, BUG, LOST, NO_READER, INTERRUPTED = 2, 70, 74, 141, 130

#: Where to report a bug: the project has no public address yet.
ISSUES = "the project's issue tracker"

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

    Parameters
    ----------
    error : BaseException
    written : list of Path
        Files that the command has already put in place.
    tell : callable
        Returns the message of an error of this library, with the command's own flags.

    Returns
    -------
    message : str
        Empty if the reader has closed the pipe and no file was written.
    code : int
    """
    names = " and ".join(map(str, written))
    kept = f" Before that {names} {'was' if len(written) == 1 else 'were'} written." if written else ""
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
    details = redact(_details(error))
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


def _details(error: BaseException) -> str:
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    libraries = ("numpy", "scipy", "scikit-learn", "pyarrow", "safetensors", "torch")
    lines = [
        f"congruence {installed('congruence')}, Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {installed(name)}" for name in libraries),
        f"command: {' '.join(['congruence', *map(repr, sys.argv[1:])])}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    return "\n".join(lines)


def redact(text: str) -> str:
    """Return the text without passwords and tokens, as far as they can be recognized.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def named_by(command: Any, written: list[Path]) -> list[Path]:
    """Return the written paths that the user named in options, without others such as checkpoints.

    Parameters
    ----------
    command : click.Context or None
        Context of the command that ran.
    written : list of Path

    Returns
    -------
    list of Path
    """
    values = [] if command is None else [value for value in command.params.values() if isinstance(value, str)]
    named = {Path(value) for value in values}
    return [path for path in dict.fromkeys(written) if path in named]
