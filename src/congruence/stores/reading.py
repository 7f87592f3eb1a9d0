"""Convert errors of reading and writing files to errors of this library, whose messages name the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence._utils.display import short
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import CongruenceError, CorruptFileError, FileError, OutOfMemoryError


def missing_file(path: str | Path) -> FileError:
    """Return the error for a file that does not exist."""
    return FileError(f"Got no file at {path}; expected one. Check the path.")


@contextmanager
def reading(path: str | Path, *damage: type[Exception]) -> Iterator[None]:
    """Convert errors raised in the block to FileError, OutOfMemoryError or, for the types in ``damage``, CorruptFileError."""
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
        f"Got more data from {path} than fits into memory ({error}); expected less. Use a machine with more memory; "
        "if the file itself is smaller than the memory, it is damaged: copy or write it again."
    )


@contextmanager
def errno_from_text(pattern: str, *types: type[Exception]) -> Iterator[None]:
    """Convert errors of these types whose text contains the number of a system error to OSError with this number.

    ``pattern``: regular expression whose first group is the number.
    """
    try:
        yield
    except types as error:
        found = re.search(pattern, str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
