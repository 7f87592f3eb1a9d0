"""What the readers of all formats share: errors that name the file, the choice of a key, and stored arrays."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.display import short
from congruence._utils.memory import check_memory
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DtypeError,
    FileError,
    OutOfMemoryError,
    ParameterError,
    ShapeError,
)

#: Suffixes of the two arrays that encode an array of text in formats without variable-length text: UTF-8 and offsets.
PACKED = ("_utf8", "_offsets")

#: Bytes of fixed-width strings that are read at a time, since all strings of an array are as wide as the longest.
TEXT_BYTES = 4 * 2**20

#: How addresses of databases begin, which `congruence migrate` reads, and commands that take files do not.
DATABASES: tuple[str, ...] = ("postgresql:", "postgres:", "qdrant:", "chroma:", "chroma+", "milvus:", "milvus+")
DATABASES += ("elasticsearch+", "opensearch+")


# ------------------------------------------------------------------ errors


def missing_file(path: str | Path) -> FileError:
    """Return the error for a file that does not exist, or is the address of a database."""
    if str(path).startswith(DATABASES):
        problem = "Got a database's address; expected a file of vectors."
        return FileError(problem, "Write the table's ids and vectors to a file, such as a .parquet or .npz.")
    return FileError(f"No file at {path}.", "Check the path.")


def damaged(path: str | Path, why: object) -> CorruptFileError:
    """Return the error for a file that is not what it should be."""
    return CorruptFileError(
        f"The file {path} is truncated or damaged ({short(str(why), 300)}).", "Copy or write it again."
    )


@contextmanager
def reading(path: str | Path, *damage: type[Exception]) -> Iterator[None]:
    """Convert errors in the block to FileError, OutOfMemoryError or, for types in ``damage``, CorruptFileError."""
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
        raise damaged(path, error) from error
    except MemoryError as error:
        raise _too_large(path, error) from error
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error


def _too_large(path: str | Path, error: MemoryError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{path} holds more than fits into memory ({error}).",
        "Use a machine with more memory; if the file itself is smaller than the memory, it is damaged: write it again.",
    )


@contextmanager
def errno_from_text(pattern: str, *types: type[Exception]) -> Iterator[None]:
    """Convert errors of these types whose text holds the number of a system error (first group) to OSError with it."""
    try:
        yield
    except types as error:
        found = re.search(pattern, str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def check_all_rows(got: int, expected: int, path: str) -> None:
    """Check that a file has the number of rows it declares."""
    if got != expected:
        raise damaged(path, f"it has {got} of {expected} rows")


def as_row_numbers(rows: ArrayLike, n: int, path: str) -> np.ndarray:
    """Return row numbers as an array of int64, after checking them."""
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        problem = f"Got row numbers of shape {array.shape} and type {array.dtype} for {path}; expected integers."
        raise ParameterError(problem, "Pass a list of row numbers, or numpy.flatnonzero of a mask.")
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise ParameterError(f"Got row number {outside[0]} for {path}.", f"Pass row numbers from 0 to {n - 1}.")
    return array.astype(np.int64)


# ------------------------------------------------------------------ text

#: Codecs of compressed text by the suffix after that of the format.
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

#: Exceptions that decompressing and decoding raise for damaged text.
TEXT_DAMAGE = (OSError, ValueError, EOFError)

#: Characters of text after which the free memory is looked at, and of a line, which one without end would exceed.
_PORTION = 64 * 2**20


def open_stream(path: str | Path) -> IO[bytes]:
    """Open a file for reading from front to back, decompressed if it is."""
    codec = CODECS.get(Path(path).suffix.lower())
    if codec is None:
        return open(path, "rb")
    import pyarrow as pa

    with open(path, "rb"):  # for the errors of the system
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), codec))


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text in UTF-8, with their ends, whose rows will be held in memory."""
    count = 0
    with reading(path, *TEXT_DAMAGE), io.TextIOWrapper(open_stream(path), "utf-8-sig", newline="") as stream:
        while line := stream.readline(_PORTION):
            if len(line) == _PORTION:
                raise damaged(path, f"a line of more than {_PORTION:,} characters")
            count += len(line)
            if count > _PORTION:
                check_memory(4 * _PORTION, f"the rows of {path}", "Convert it to .parquet, which is read in blocks.")
                count = 0
            yield line


def delimiter_of(header: str) -> str:
    """Return what separates the cells of a table in text: the tab, semicolon or comma that is most frequent."""
    return max(",;\t", key=header.count)


# ------------------------------------------------------------------ keys


def missing_key(
    key: str | None, path: str | Path, found: Mapping[str, tuple[int, ...] | str], what: str = "key"
) -> ParameterError:
    """Return the error for a key that is not in a file; its message lists those that are."""
    listed = short(", ".join(f"{name} {shape}" for name, shape in found.items()), 2000) or "none"
    if key is None:
        return ParameterError(f"Got no {what} for {path}, which contains {listed}.", f"Write {path}:<{what}>.")
    return ParameterError(f"Got {what} {key!r}; expected one of those in {path}: {listed}.", "Pass one of these.")


def refuse_key(key: str | None, path: str | Path) -> None:
    """Check that no key was given for a file that holds one array."""
    if key is not None:
        problem = f"Got key {key!r} for {path}; expected none, since it holds one array."
        raise ParameterError(problem, "Pass the path alone.")


def choose(key: str | None, found: Mapping[str, tuple[int, ...]], path: str | Path, what: str = "key") -> str:
    """Return the key to read among the shapes found: the requested one, or the only matrix."""
    if key is not None:
        if key not in found:
            raise missing_key(key, path, found, what)
        return key
    if len(found) == 1:  # the only candidate; its shape is checked later
        return next(iter(found))
    matrices = [name for name, shape in found.items() if len(shape) == 2]
    if len(matrices) != 1:
        raise missing_key(None, path, found, what)
    return matrices[0]


def natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key by which layer_10 follows layer_9."""
    return [(0, int(text)) if text.isdecimal() else (1, text) for text in re.split(r"(\d+)", name) if text]


# ------------------------------------------------------------------ arrays


def stored_dtype(dtype: np.dtype, path: str) -> np.dtype:
    """Return the dtype in which a scan yields numbers stored as ``dtype``."""
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return dtype.newbyteorder("=")
    if dtype.kind in "fiub":
        return np.dtype(np.float64)
    fix = "Store the vectors as float16, float32 or float64 (object arrays need pickle, which is never loaded)."
    raise DtypeError(f"Got {'objects' if dtype.hasobject else dtype} in {path}; expected numbers.", fix)


def check_matrix_shape(shape: tuple[int, ...], path: str) -> tuple[int, int]:
    """Return (rows, columns) of a stored matrix, after checking its shape."""
    if any(not 0 <= size < 2**62 for size in shape):
        raise damaged(path, f"an array of shape {short(str(shape))}")
    if len(shape) != 2:
        problem = f"Got an array of shape {tuple(shape)} in {path}; expected (items, dimensions)."
        raise ShapeError(problem, "Pass the key of a matrix, as file:key.")
    if 0 in shape:
        raise ShapeError(f"Got an empty array of shape {tuple(shape)} in {path}.", "Pass a file with vectors.")
    return shape[0], shape[1]


def read_exactly(stream: Any, array: np.ndarray, path: str) -> None:
    """Fill an array with the next bytes of a stream."""
    view = array.reshape(-1).view(np.uint8).data
    got = 0
    while got < len(view):
        count = stream.readinto(view[got:])
        if not count:
            raise damaged(path, f"{len(view) - got} bytes are missing")
        got += count


def scan_rows(stream: Any, n: int, dim: int, stored: np.dtype, batch: int, path: str) -> Iterator[np.ndarray]:
    """Yield blocks of consecutive rows from a stream positioned at the first row."""
    for start in range(0, n, batch):
        block = np.empty((min(batch, n - start), dim), dtype=stored)
        read_exactly(stream, block, path)
        yield block


def runs_of(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of places at which ascending numbers are consecutive."""
    breaks = np.append(np.flatnonzero(np.diff(rows, prepend=-2) != 1), len(rows)).tolist()
    return list(pairwise(breaks))


def write_all(stream: Any, array: np.ndarray) -> None:
    """Write an array's bytes to a stream; raw files may accept only part of them per call."""
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[stream.write(view) :]


def as_column(array: np.ndarray, path: str) -> np.ndarray:
    """Return an array of labels or ids: numbers unchanged, text as an object array of str."""
    kind = array.dtype.kind
    if kind == "T" or (kind == "O" and all(isinstance(one, str) for one in array)):
        return np.array([str(one) for one in array], object)
    if kind not in "USiufb":
        raise DtypeError(f"Got entries of type {array.dtype} in {path}.", "Save the column as text or numbers.")
    if kind not in "US":
        return array
    with reading(path, UnicodeDecodeError, ValueError):  # damaged text may contain invalid characters
        if kind == "U" and (array.astype(array.dtype.newbyteorder("=")).view(np.uint32) > sys.maxunicode).any():
            raise ValueError("text with code points beyond Unicode")
        return np.array([text.decode() if kind == "S" else text for text in array.tolist()], dtype=object)


def pack(texts: np.ndarray) -> dict[str, np.ndarray]:
    """Return texts as the ``PACKED`` arrays, keyed by suffix."""
    encoded = [text.encode() for text in texts.tolist()]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([*map(len, encoded)], out=offsets[1:])
    return dict(zip(PACKED, (np.frombuffer(b"".join(encoded), np.uint8), offsets), strict=True))


def unpack(data: np.ndarray, offsets: np.ndarray, path: str) -> np.ndarray:
    """Return the texts of ``PACKED`` arrays, shape (n,), object array of str."""
    import pyarrow as pa

    ends = np.ascontiguousarray(offsets, "<i8") if offsets.dtype.kind in "iu" else np.empty(0, "<i8")
    try:
        fits = data.dtype == np.uint8 and len(ends) and ends[0] == 0 and ends[-1] == len(data)
        if not fits or (np.diff(ends) < 0).any():
            raise ValueError("its offsets do not match its bytes")
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
        texts = pa.Array.from_buffers(pa.large_string(), len(ends) - 1, buffers)
        texts.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise damaged(path, error) from error
    return texts.to_numpy(zero_copy_only=False)
