"""The interface of all sources of vectors, and helpers shared by the formats."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from congruence._utils.display import short
from congruence._utils.ids import as_ids
from congruence._utils.memory import check_memory
from congruence._utils.validation import check_rows
from congruence.embeddings import Embeddings, Space
from congruence.errors import (
    CorruptFileError,
    NotFiniteError,
    ParameterError,
    ZeroRowError,
)
from congruence.stores._columns import Columns, Rows
from congruence.stores.ids import id_array, id_type_of

#: Default number of rows per block of a scan.
BATCH = 4096


class Source(ABC):
    """A matrix of vectors in a file, read once from front to back in bounded memory.

    Attributes
    ----------
    path : str
        Name of the source in messages.
    n, dim : int
        Number of rows and columns.
    dtype : numpy.dtype
        Type of the blocks that :meth:`scan` yields: float16, float32 or float64.
    has_ids : bool
    id_type : pyarrow.DataType
        Type of the ids: int64, uint64 or string.
    space : Space
        Origin of the vectors, as far as the file records it.
    parts : list of (str, int)
        Names and row counts of the parts of a folder; empty for a single file.
    columns : list of Columns
        Columns of a table other than its vectors, for each part of a folder; empty if the file is not a table.
    files : tuple of Path
        Paths that are read: the file or folder, and the file of the ids if it is a separate one.
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
        """Columns of a table other than its vectors, for each part of a folder; empty if the file is not a table."""
        return []

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes that a row takes in memory with all its columns."""
        return self.dim * self.dtype.itemsize

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Names and row counts of the parts of a folder; empty for a single file."""
        return []

    @abstractmethod
    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks of at most ``batch`` rows, starting at row ``after``.

        Yields
        ------
        ids : pyarrow.Array of int64, uint64 or text (string or large_string), or None
        vectors : ndarray, shape (b, dim)
            A new C-contiguous array.
        """

    def scan_table(
        self, after: int = 0, batch: int = BATCH
    ) -> Iterator[tuple[pa.Array | None, np.ndarray, Rows | None]]:
        """Yield ``(ids, vectors, rows)`` blocks: as :meth:`scan`, plus the table's rows with all their columns.

        Yields
        ------
        ids, vectors
            As for :meth:`scan`.
        rows : pyarrow.RecordBatch, list of dict, or None
            None if the file is not a table.
        """
        for ids, block in self.scan(after, batch):
            yield ids, block, None

    def take(self, rows: ArrayLike) -> tuple[pa.Array | None, np.ndarray]:
        """Read rows by number, in any order; each range of the file that contains requested rows is scanned once.

        Parameters
        ----------
        rows : array_like of int, shape (k,)
            Row numbers; may repeat.

        Returns
        -------
        ids : pyarrow.Array, shape (k,), or None
        vectors : ndarray, shape (k, dim)

        Raises
        ------
        ParameterError
            If a row number is out of range.
        CorruptFileError, FileError
            If the file is damaged, or cannot be read.
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
            # Reading over a short gap costs less than starting a new scan.
            last = np.flatnonzero(np.diff(wanted[at:]) > BATCH)
            end = int(wanted[at + last[0]] if len(last) else wanted[-1]) + 1
            for ids, block in self.scan(start, min(BATCH, end - start)):
                stop += len(block)
                upto = int(np.searchsorted(wanted, stop))
                offsets = wanted[at:upto] - (stop - len(block))
                out[order[at:upto]] = block[offsets]
                if ids is not None:
                    names.append(ids.take(pa.array(offsets)))
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
            If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; ids are missing, repeated
            or without a partner; or a file is damaged.
        OutOfMemoryError
            If the vectors need more memory than is free.
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
        check_all_rows(row, self.n, self.path)  # otherwise the remaining rows would be uninitialized
        names = id_array(ids) if ids else None
        try:
            return Embeddings(vectors, ids=names, space=self.space, allow_zero_rows=allow_zero_rows)
        except (NotFiniteError, ZeroRowError):
            # Check again for a message that names the file, since most commands read two.
            check_rows(
                vectors, str(self.path), ids=None if names is None else as_ids(names), allow_zero_rows=allow_zero_rows
            )
            raise

    def _check_memory(self, rows: int) -> None:
        """Check that there is enough memory for the rows. Raises OutOfMemoryError."""
        check_memory(
            rows * self.dim * self.dtype.itemsize,
            f"{rows:,} × {self.dim:,} {self.dtype} in {self.path}",
            "Pass a file with fewer rows, or use a machine with more memory. Mapping a file (congruence transform, "
            "transform_file) needs memory for only one block of it.",
        )


def as_row_numbers(rows: ArrayLike, n: int, path: str) -> np.ndarray:
    """Return row numbers as an array, after checking them. Raises ParameterError."""
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ParameterError(
            f"Got row numbers of shape {array.shape} and type {array.dtype} for {path}; expected a list of integers. Pass row numbers, or numpy.flatnonzero of a mask."
        )
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise ParameterError(
            f"Got row number {outside[0]} for {path}; expected 0 to {n - 1}. Pass row numbers in this range."
        )
    return array.astype(np.int64)


def check_all_rows(got: int, expected: int, path: str) -> None:
    """Check that a file has the number of rows it declares. Raises CorruptFileError."""
    if got != expected:
        raise CorruptFileError(
            f"Got {got} rows in {path}, which declares {expected}; expected all of them. Copy or write it again."
        )


def slice_ids(ids: pa.Array | None, start: int, stop: int) -> pa.Array | None:
    """Return a range of ids, or None."""
    return None if ids is None else ids.slice(start, stop - start)


def missing_key(
    key: str | None, path: str | Path, found: Mapping[str, tuple[int, ...] | str], what: str = "key"
) -> ParameterError:
    """Return the error for a key that is not in a file; its message lists those that are."""
    listed = short(", ".join(f"{name} {shape}" for name, shape in found.items()), 2000) or "none"
    if key is None:
        return ParameterError(
            f"Got no {what} for {path}, which contains {listed}; expected the {what} to read. Write {path}:<{what}>."
        )
    return ParameterError(f"Got {what} {key!r}; expected one of those in {path}: {listed}. Pass one of these.")


def choose(key: str | None, found: Mapping[str, tuple[int, ...]], path: str | Path, what: str = "key") -> str:
    """Return the key to read among the shapes found: the requested one, or the only matrix. Raises ParameterError."""
    if key is not None:
        if key not in found:
            raise missing_key(key, path, found, what)
        return key
    matrices = [name for name, shape in found.items() if len(shape) == 2]
    if len(found) == 1:  # the only candidate; its shape is checked later
        return next(iter(found))
    if len(matrices) != 1:
        raise missing_key(None, path, found, what)
    return matrices[0]


def natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key by which layer_10 follows layer_9."""
    return [(0, int(text)) if text.isdecimal() else (1, text) for text in re.split(r"(\d+)", name) if text]
