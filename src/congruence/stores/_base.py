"""What every store of vectors offers, and what the formats share."""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.memory import check_memory
from congruence._utils.refusals import is_refusal, say_refusal
from congruence.embeddings import Embeddings, Space
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DtypeError,
    FileError,
    OutOfMemoryError,
    ParameterError,
    ShapeError,
)
from congruence.stores._columns import Columns, Rows
from congruence.stores._ids import id_array, id_type_of

#: Rows a scan hands out at a time unless told otherwise.
BATCH = 4096

#: Key under which files that can hold metadata keep their space.
SPACE_KEY = "congruence.space"


class Source(ABC):
    """A matrix of vectors in a file, read once from front to back in bounded memory.

    Attributes
    ----------
    path : str
        For messages.
    n, dim : int
        Rows and columns.
    dtype : numpy.dtype
        Of the blocks that :meth:`scan` yields: float16, float32 or float64.
    has_ids : bool
    id_type : pyarrow.DataType
        Of the ids: int64, uint64 or string.
    space : Space
        Origin, as far as the file tells.
    parts : list of (str, int)
        Names and row counts of the parts of a folder; none for a plain file.
    columns : list of Columns
        What a table holds beside its vectors, for each part of a folder; empty when it is no table.
    files : tuple of Path
        What is read: the file or folder, and the file of the ids when that is another.
    """

    path: str
    n: int
    dim: int
    dtype: np.dtype
    has_ids: bool = False
    _ids: pa.Array | None = None
    space: Space = Space()
    files: tuple[Path, ...] = ()

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return pa.string() if self._ids is None else id_type_of(self._ids.type)

    @property
    def columns(self) -> list[Columns]:
        """What a table holds beside its vectors, for each part of a folder; empty when it is no table."""
        return []

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in memory with all its columns, about."""
        return self.dim * self.dtype.itemsize

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Names and row counts of the parts of a folder; none for a plain file."""
        return []

    @abstractmethod
    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks of at most ``batch`` rows, starting at row ``after``.

        Yields
        ------
        ids : pyarrow.Array of int64, uint64 or text (string or large_string), or None
        vectors : ndarray, shape (b, dim)
            A fresh C-contiguous array.
        """

    def scan_table(
        self, after: int = 0, batch: int = BATCH
    ) -> Iterator[tuple[pa.Array | None, np.ndarray, Rows | None]]:
        """Yield ``(ids, vectors, rows)`` blocks: what :meth:`scan` does, and the table's rows with all their columns.

        Yields
        ------
        ids, vectors
            As from :meth:`scan`.
        rows : pyarrow.RecordBatch, list of dict, or None
            None when this is no table.
        """
        for ids, block in self.scan(after, batch):
            yield ids, block, None

    def take(self, rows: Any) -> tuple[pa.Array | None, np.ndarray]:
        """Read rows by number, in any order; every stretch of the file that holds some of them is scanned once.

        Parameters
        ----------
        rows : array_like of int, shape (k,)
            May repeat.

        Returns
        -------
        ids : pyarrow.Array, shape (k,), or None
        vectors : ndarray, shape (k, dim)

        Raises
        ------
        ParameterError
            A number that is none of a row.
        CorruptFileError, FileError
        """
        rows = as_row_numbers(rows, self.n, self.path)
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        self._check_memory(len(rows))
        out = np.empty((len(rows), self.dim), dtype=self.dtype)
        names: list[pa.Array] = []
        at = 0
        while at < len(wanted):
            start = stop = int(wanted[at])
            # What lies between two rows costs less to read over than to begin anew, while it is short.
            last = np.flatnonzero(np.diff(wanted[at:]) > BATCH)
            end = int(wanted[at + last[0]] if len(last) else wanted[-1]) + 1
            for ids, block in self.scan(start, min(BATCH, end - start)):
                stop += len(block)
                upto = int(np.searchsorted(wanted, stop))
                inside = wanted[at:upto] - (stop - len(block))
                out[order[at:upto]] = block[inside]
                if ids is not None:
                    names.append(ids.take(pa.array(inside)))
                at = upto
                if stop >= end:
                    break
            else:
                check_all_rows(stop, self.n, self.path)
        if not self.has_ids or not len(rows):
            return None, out
        return pa.concat_arrays(names).take(pa.array(np.argsort(order))), out

    def read(self, *, allow_zero_rows: bool = False) -> Embeddings:
        """Read everything into memory and check it.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, CorruptFileError
        OutOfMemoryError
            The vectors are larger than the memory that is free.
        """
        self._check_memory(self.n)
        vectors = np.empty((self.n, self.dim), dtype=self.dtype)
        ids: list[pa.Array] = []
        row = 0
        for names, block in self.scan():
            vectors[row : row + len(block)] = block
            row += len(block)
            if names is not None:
                ids.append(names)
        check_all_rows(row, self.n, self.path)  # or the rest would be whatever the memory held
        return Embeddings(
            vectors, ids=id_array(ids) if ids else None, space=self.space, allow_zero_rows=allow_zero_rows
        )

    def _check_memory(self, rows: int) -> None:
        """Refuse to hold more rows than there is memory for. Raises OutOfMemoryError."""
        check_memory(
            rows * self.dim * self.dtype.itemsize,
            f"{rows:,} × {self.dim:,} {self.dtype} in {self.path}",
            "Pass a file with fewer rows, or use a machine with more memory; only mapping a file (congruence transform, "
            "transform_file) needs no more than a block of it.",
        )


@contextmanager
def reading(path: str | Path, *damage: type[Exception]) -> Iterator[None]:
    """Turn what is raised inside into errors of ours: FileError, OutOfMemoryError, or CorruptFileError for types of ``damage``."""
    try:
        yield
    except CongruenceError:
        raise
    except FileNotFoundError:
        raise missing_file(path) from None
    except damage as error:
        if is_refusal(error):  # pyarrow and h5py report both as OSError
            raise FileError(say_refusal(error, f"while reading {path}")) from error  # type: ignore[arg-type]
        if isinstance(error, MemoryError) and MemoryError not in damage:  # Arrow's is an ArrowException too
            raise _too_large(path, error) from error
        raise CorruptFileError(
            f"Got a truncated or damaged file, {path} ({short(str(error), 300)}); expected an intact one of the kind its name says. "
            "Copy or write it again."
        ) from error
    except MemoryError as error:
        raise _too_large(path, error) from error
    except OSError as error:
        raise FileError(say_refusal(error, f"while reading {path}")) from error


def _too_large(path: str | Path, error: MemoryError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"Got more to hold in memory from {path} than there is room for ({error}); expected less. Use a machine with more memory; "
        "if the file is smaller than that it is damaged: copy or write it again."
    )


def as_row_numbers(rows: Any, n: int, path: str) -> np.ndarray:
    """Return numbers of rows as an array, refusing what is none. Raises ParameterError."""
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ParameterError(
            f"Got row numbers of shape {array.shape} and type {array.dtype} for {path}; expected a list of integers. Pass row numbers, or numpy.flatnonzero of a mask."
        )
    odd = array[(array < 0) | (array >= n)]
    if odd.size:
        raise ParameterError(
            f"Got row number {odd[0]} for {path}; expected 0 to {n - 1}. Pass row numbers in this range."
        )
    return array.astype(np.int64)


def check_all_rows(got: int, expected: int, path: str) -> None:
    """Refuse a file that holds another number of rows than it says. Raises CorruptFileError."""
    if got != expected:
        raise CorruptFileError(
            f"Got {got} rows in {path}, which says it has {expected}; expected all of them. Copy or write it again."
        )


def as_column(array: np.ndarray, path: str) -> np.ndarray:
    """Return an array of labels or ids as numbers, or as texts in an object array. Raises DtypeError, CorruptFileError."""
    kind = array.dtype.kind
    if kind not in "USiufb":
        raise DtypeError(
            f"Got entries of type {array.dtype} in {path}; expected text or numbers. Save the column as one of these."
        )
    if kind not in "US":
        return array
    with reading(path, UnicodeDecodeError, ValueError):  # damaged text may hold what is no character
        if kind == "U" and (array.astype(array.dtype.newbyteorder("=")).view(np.uint32) > sys.maxunicode).any():
            raise ValueError("text of numbers beyond Unicode")
        return np.array([text.decode() if kind == "S" else text for text in array.tolist()], dtype=object)


def stored_dtype(dtype: np.dtype, path: str) -> np.dtype:
    """Return the dtype in which a scan hands out numbers stored as ``dtype``. Raises DtypeError."""
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return dtype.newbyteorder("=")
    if dtype.kind in "fiub":
        return np.dtype(np.float64)
    raise DtypeError(
        f"Got {'objects' if dtype.hasobject else dtype} in {path}; expected numbers. Store the vectors as float16, "
        "float32 or float64 (object arrays need pickle, which is never loaded)."
    )


def check_matrix_shape(shape: tuple[int, ...], path: str) -> tuple[int, int]:
    """Return (rows, columns) of a stored matrix, refusing other shapes and empty ones. Raises ShapeError."""
    if any(size < 0 for size in shape):
        raise CorruptFileError(
            f"Got an array of shape {shape} in {path}; expected whole numbers from 0. Save the file again."
        )
    if len(shape) != 2:
        raise ShapeError(
            f"Got an array of shape {tuple(shape)} in {path}; expected (items, dimensions). Pass the key of a matrix, as file:key."
        )
    if 0 in shape:
        raise ShapeError(
            f"Got an empty array of shape {tuple(shape)} in {path}; expected at least one row and column. Pass a file with vectors."
        )
    return shape[0], shape[1]


def read_exactly(stream: Any, array: np.ndarray, path: str) -> None:
    """Fill an array from a stream; a stream that ends early is a truncated file. Raises CorruptFileError."""
    view = array.reshape(-1).view(np.uint8).data
    got = 0
    while got < len(view):
        count = stream.readinto(view[got:])
        if not count:
            raise CorruptFileError(
                f"Got a truncated file, {path}: {len(view) - got} bytes are missing; expected the whole array. "
                "Copy it again."
            )
        got += count


def scan_rows(
    stream: Any, n: int, dim: int, stored: np.dtype, dtype: np.dtype, batch: int, path: str
) -> Iterator[np.ndarray]:
    """Yield blocks of consecutive rows from a stream standing at the first of them."""
    for start in range(0, n, batch):
        block = np.empty((min(batch, n - start), dim), dtype=stored)
        read_exactly(stream, block, path)
        yield block if stored == dtype else block.astype(dtype)


def slice_ids(ids: pa.Array | None, start: int, stop: int) -> pa.Array | None:
    """Return a stretch of ids, or None."""
    return None if ids is None else ids.slice(start, stop - start)


def is_folder(path: str | Path) -> bool:
    """Say whether this is a folder of files; a Lance data set is a folder that is one store."""
    return Path(path).is_dir() and Path(path).suffix.lower() != ".lance"


def missing_file(path: str | Path) -> FileError:
    """Make the error for a file that is not there."""
    return FileError(f"Got no file at {path}; expected one. Check the path.")


def missing_key(key: str | None, path: str | Path, found: dict[str, Any], what: str = "key") -> ParameterError:
    """Make the error for a key that is not in a file, listing those that are."""
    listed = short(", ".join(f"{name} {shape}" for name, shape in found.items()), 2000) or "none"
    if key is None:
        return ParameterError(
            f"Got no {what} for {path}, which holds {listed}; expected a choice. Write {path}:<{what}>."
        )
    return ParameterError(f"Got {what} {key!r}; expected one of those in {path}: {listed}. Pass one of these.")


def choose(key: str | None, found: dict[str, Any], path: str | Path, what: str = "key") -> str:
    """Return the key to read among the shapes found: the one asked for, or the only matrix. Raises ParameterError."""
    if key is not None:
        if key not in found:
            raise missing_key(key, path, found, what)
        return key
    matrices = [name for name, shape in found.items() if len(shape) == 2]
    if len(found) == 1:  # whatever it is, it is what is meant; its shape is judged later
        return next(iter(found))
    if len(matrices) != 1:
        raise missing_key(None, path, found, what)
    return matrices[0]


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which layer_10 follows layer_9."""
    return [(0, int(text)) if text.isdecimal() else (1, text) for text in re.split(r"(\d+)", name) if text]


def sidecar(path: Path) -> Path:
    """Where formats without room for metadata keep their space."""
    return path / "space.json" if path.is_dir() else path.with_name(path.name + ".space.json")


def space_json(space: Space) -> str:
    """Write a space as JSON."""
    return json.dumps(space.to_dict())


def is_space(facts: dict[str, Any]) -> bool:
    """Say whether an object can be one that :func:`space_json` wrote."""
    return set(facts) <= set(Space.__dataclass_fields__)


def read_space(text: str | bytes | None, path: str | Path) -> Space:
    """Read a space from JSON; nothing there means an unknown space. Raises CorruptFileError."""
    if not text:
        return Space()
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not isinstance(facts.get("dim"), (int, type(None))):
            raise TypeError("no object, or one with a wrong type of number")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space in {path} ({error}); expected JSON. Remove the description, or write it again."
        ) from error


def read_sidecar(path: Path) -> Space:
    """Read the space written beside a file, if any."""
    place = sidecar(path)
    return read_space(place.read_bytes(), place) if place.is_file() else Space()


def write_all(stream: Any, array: np.ndarray) -> None:
    """Write an array's bytes; raw files may take them in several pieces."""
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[stream.write(view) :]
