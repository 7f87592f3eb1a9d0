"""Errors of reading a file: what a library raises, as one of this library's errors that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence._utils.display import short
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import CongruenceError, CorruptFileError, FileError, OutOfMemoryError

__all__ = ["missing_file", "reading"]


def missing_file(path: str | Path) -> FileError:
    """Return the error for a file that does not exist."""
    return FileError(f"Got no file at {path}; expected one. Check the path.")


@contextmanager
def reading(path: str | Path, *damage: type[Exception]) -> Iterator[None]:
    """Convert errors raised inside to this library's: FileError, OutOfMemoryError, or CorruptFileError for types in ``damage``."""
    try:
        yield
    except CongruenceError:
        raise
    except FileNotFoundError:
        raise missing_file(path) from None
    except damage as error:
        if is_refusal(error):  # pyarrow and h5py report both as OSError
            raise FileError(describe_refusal(error, f"while reading {path}")) from error  # type: ignore[arg-type]
        if isinstance(error, MemoryError) and MemoryError not in damage:  # Arrow's is an ArrowException too
            raise _too_large(path, error) from error
        raise CorruptFileError(
            f"Got a truncated or damaged file, {path} ({short(str(error), 300)}); expected an intact file in the format of its suffix. "
            "Copy or write it again."
        ) from error
    except MemoryError as error:
        raise _too_large(path, error) from error
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error


def _too_large(path: str | Path, error: MemoryError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"Got more data from {path} than fit into memory ({error}); expected less. Use a machine with more memory; "
        "if the file itself is smaller than the memory, it is damaged: copy or write it again."
    )
