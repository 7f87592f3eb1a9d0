"""Matrices whose rows are read, and mapped, on access: they stand in for arrays if a store is larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from congruence._utils.arrays import BLOCK_BYTES, blocks
from congruence.io import Source


class RowsOnDisk(Protocol):
    """Anything that rows can be read from: a memory-mapped array, an HDF5 or a Zarr data set."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""

    def __getitem__(self, key: Any, /) -> Any: ...


class Lazy:
    """A float32 matrix (n, d) that is computed block by block, so that it never is in memory as a whole.

    Supports the operations that plans use: rows by slice or index, products with few columns, and the mean row.
    ``read`` takes a slice without a step, or row numbers, and returns rows (b, d_in), from which ``make`` makes those
    of the matrix.
    """

    def __init__(
        self,
        read: Callable[[slice | np.ndarray], np.ndarray],
        shape: tuple[int, int],
        make: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.read, self.make, self.shape = read, make, shape
        self._mean: np.ndarray | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | int | np.integer | np.ndarray | list[int]) -> np.ndarray:
        if isinstance(key, (int, np.integer)):
            return np.asarray(self[np.array([key])][0])
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            key = slice(start, max(start, stop)) if step == 1 else np.arange(start, stop, step)
        else:
            key = np.asarray(key)
            key = np.flatnonzero(key) if key.dtype == bool else key
        rows = np.asarray(self.read(key), np.float32)
        return rows if self.make is None else np.asarray(self.make(rows), np.float32)

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        out = np.empty((len(self), *other.shape[1:]), np.result_type(np.float32, other))
        for part in row_blocks(self):
            out[part] = self[part] @ other
        return out

    def mean(self, axis: int = 0, dtype: object = None) -> np.ndarray:
        """Return the mean row in float64, shape (d,); it is computed once."""
        if self._mean is None:
            total = np.zeros(self.shape[1])
            for part in row_blocks(self):
                total += self[part].sum(axis=0, dtype=np.float64)
            self._mean = total / len(self)
        return self._mean


RowMatrix: TypeAlias = "np.ndarray | Lazy"  # Rows in memory or on disk


def row_blocks(rows: RowMatrix) -> list[slice]:
    """Return slices that divide rows into blocks, sized so that a few copies in float64 fit into memory."""
    return list(blocks(len(rows), 8 * 4 * rows.shape[1], budget=BLOCK_BYTES))


def as_rows(source: Source | RowsOnDisk) -> Lazy:
    """Return a file, or anything that returns rows by slice and by increasing row numbers, as a float32 matrix."""

    def read(key: slice | np.ndarray) -> np.ndarray:
        if isinstance(source, Source):
            return source.take(np.arange(key.start, key.stop) if isinstance(key, slice) else key)[1]
        if isinstance(key, slice):
            return np.asarray(source[key])
        # HDF5 accepts only increasing row numbers, and reading a disk in order is faster.
        wanted, place = np.unique(key, return_inverse=True)
        return np.asarray(source[wanted])[place]

    n, width = (source.n, source.dim) if isinstance(source, Source) else source.shape
    return Lazy(read, (int(n), int(width)))


def is_on_disk(array: object) -> bool:
    """Return whether an array is a view of a memory-mapped file."""
    while array is not None and not isinstance(array, (np.memmap, mmap.mmap)):
        array = getattr(array, "base", None)
    return array is not None


def by_block(rows: RowMatrix, make: Callable[[np.ndarray], np.ndarray], width: int) -> RowMatrix:
    """Return rows made by ``make``, of ``width`` columns: float32 in memory, or ``Lazy`` for those on disk."""
    if isinstance(rows, Lazy):
        return Lazy(rows.read, (len(rows), width), make)
    out = np.empty((len(rows), width), np.float32)
    for part in row_blocks(rows):
        out[part] = make(rows[part])
    return out
