"""What every store of vectors offers, and what the formats share."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from congruence._atomic import atomic_path
from congruence.embeddings import Embeddings, Space
from congruence.errors import (
    CorruptFileError,
    DtypeError,
    FileError,
    ParameterError,
    ShapeError,
    StorageError,
)

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
    space : Space
        Origin, as far as the file tells.
    parts : list of (str, int)
        Names and row counts of the files behind it; one for a plain file.
    """

    path: str
    n: int
    dim: int
    dtype: np.dtype
    has_ids: bool = False
    space: Space = Space()

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Names and row counts of the files behind it."""
        return [(Path(self.path).name, self.n)]

    @abstractmethod
    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks of at most ``batch`` rows, starting at row ``after``.

        Yields
        ------
        ids : pyarrow.Array of string, or None
        vectors : ndarray, shape (b, dim)
            A fresh C-contiguous array.
        """

    def read(self, *, allow_zero_rows: bool = False) -> Embeddings:
        """Read everything into memory and check it.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, CorruptFileError
        """
        vectors = np.empty((self.n, self.dim), dtype=self.dtype)
        ids: list[pa.Array] = []
        row = 0
        for names, block in self.scan():
            vectors[row : row + len(block)] = block
            row += len(block)
            if names is not None:
                ids.append(names)
        labels = np.array(pa.chunked_array(ids).to_pylist(), dtype=str) if ids else None
        return Embeddings(vectors, ids=labels, space=self.space, allow_zero_rows=allow_zero_rows)


class Sink(ABC):
    """A file of vectors being written: whole at the end of its ``with`` block, or not at all.

    Parameters
    ----------
    path : path-like
    n, dim : int
        Rows and columns that will be written.
    dtype : numpy.dtype
    has_ids : bool
    space : Space
    force : bool
        Replace an existing file.
    parts : list of (str, int), optional
        Names and row counts of the source's files, for sinks that mirror them.
    """

    directory: ClassVar[bool] = False

    def __init__(
        self,
        path: str | Path,
        *,
        n: int,
        dim: int,
        dtype: np.dtype,
        has_ids: bool,
        space: Space,
        force: bool,
        parts: list[tuple[str, int]] | None = None,
    ) -> None:
        self.path = Path(path)
        self.n, self.dim, self.dtype = n, dim, np.dtype(dtype)
        self.has_ids, self.space, self.force = has_ids, space, force
        self.source_parts = parts
        self.rows = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(self.path, force=self.force, directory=self.directory))
            self._open(temporary, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is None:
            try:
                if self.rows != self.n:
                    raise StorageError(
                        f"Got {self.rows} of {self.n} announced rows for {self.path}; expected all; nothing was written."
                    )
                self._finish()
            except BaseException as late:
                self._stack.__exit__(type(late), late, late.__traceback__)
                raise
        return self._stack.__exit__(kind, error, trace)

    def write(self, ids: pa.Array | None, vectors: np.ndarray) -> None:
        """Append rows.

        Parameters
        ----------
        ids : pyarrow.Array of string, or None
        vectors : ndarray, shape (b, dim)
        """
        self._write(ids, np.ascontiguousarray(vectors, dtype=self.dtype))
        self.rows += len(vectors)

    @abstractmethod
    def _open(self, temporary: Path, stack: ExitStack) -> None:
        """Open the temporary file; what must be closed goes on the stack."""

    @abstractmethod
    def _write(self, ids: pa.Array | None, vectors: np.ndarray) -> None: ...

    def _finish(self) -> None:  # noqa: B027 - most formats have nothing left to write
        """Write what comes last."""


def stored_dtype(dtype: np.dtype, path: str) -> np.dtype:
    """Return the dtype in which a scan hands out numbers stored as ``dtype``.

    Raises
    ------
    DtypeError
        Text, objects or complex numbers.
    """
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return dtype.newbyteorder("=")
    if dtype.kind in "fiub":
        return np.dtype(np.float64)
    raise DtypeError(
        f"Got {'objects' if dtype.hasobject else dtype} in {path}; expected numbers; do store the vectors as float16, "
        "float32 or float64 (object arrays need pickle, which is never loaded)."
    )


def check_matrix_shape(shape: tuple[int, ...], path: str) -> tuple[int, int]:
    """Return (rows, columns) of a stored matrix, refusing other shapes and empty ones.

    Raises
    ------
    ShapeError
    """
    if len(shape) != 2:
        raise ShapeError(
            f"Got an array of shape {tuple(shape)} in {path}; expected (items, dimensions); do name another."
        )
    if 0 in shape:
        raise ShapeError(
            f"Got an empty array of shape {tuple(shape)} in {path}; expected rows and columns; do check it."
        )
    return shape[0], shape[1]


def read_exactly(stream: Any, array: np.ndarray, path: str) -> None:
    """Fill an array from a stream; a stream that ends early is a truncated file.

    Raises
    ------
    CorruptFileError
    """
    view = array.reshape(-1).view(np.uint8).data
    got = 0
    while got < len(view):
        count = stream.readinto(view[got:])
        if not count:
            raise CorruptFileError(
                f"Got a truncated file, {path}: {len(view) - got} bytes are missing; expected the whole array; "
                "do copy it again."
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


def missing_file(path: str | Path) -> FileError:
    """Make the error for a file that is not there."""
    return FileError(f"Got no file at {path}; expected one; do check the path.")


def missing_key(key: str | None, path: str | Path, found: dict[str, Any], what: str = "key") -> ParameterError:
    """Make the error for a key that is not in a file, listing those that are."""
    listed = ", ".join(f"{name} {shape}" for name, shape in found.items()) or "none"
    if key is None:
        return ParameterError(
            f"Got no {what} for {path}, which holds {listed}; expected a choice; do write {path}:<{what}>."
        )
    return ParameterError(f"Got {what} {key!r}; expected one of those in {path}: {listed}; do choose one.")


def choose(key: str | None, found: dict[str, Any], path: str | Path, what: str = "key") -> str:
    """Return the key to read: the one asked for, or the only matrix there is.

    Parameters
    ----------
    key : str or None
    found : dict of str to tuple
        Shape of every array in the file.
    path : path-like
    what : str

    Raises
    ------
    ParameterError
    """
    if key is not None:
        if key not in found:
            raise missing_key(key, path, found, what)
        return key
    matrices = [name for name, shape in found.items() if len(shape) == 2]
    if len(matrices) != 1:
        raise missing_key(None, path, found, what)
    return matrices[0]


def sidecar(path: Path) -> Path:
    """Where formats without room for metadata keep their space."""
    return path / "space.json" if path.is_dir() else path.with_name(path.name + ".space.json")


def read_space(text: str | bytes | None, path: str | Path) -> Space:
    """Read a space from JSON; nothing there means an unknown space.

    Raises
    ------
    CorruptFileError
    """
    if not text:
        return Space()
    try:
        return Space.from_dict(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space in {path} ({error}); expected JSON; do remove or correct it."
        ) from error


def read_sidecar(path: Path) -> Space:
    """Read the space written beside a file, if any."""
    place = sidecar(path)
    return read_space(place.read_text(encoding="utf-8"), place) if place.is_file() else Space()


def write_sidecar(path: Path, space: Space) -> None:
    """Write, replace or remove the description beside a file, so that it never tells of an earlier one."""
    place = sidecar(path)
    if space == Space():
        place.unlink(missing_ok=True)
        return
    temporary = place.with_name(f".{place.name}.tmp")
    temporary.write_text(json.dumps(space.to_dict()) + "\n", encoding="utf-8")
    os.replace(temporary, place)
