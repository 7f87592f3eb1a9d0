"""Rows of an array as a source: in memory, mapped from a file, or a data set of HDF5 or Zarr."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from congruence.embeddings import Space
from congruence.io._base import Source
from congruence.io.reading import as_row_numbers

if TYPE_CHECKING:
    import pyarrow as pa


class RowsByNumber(Protocol):
    """What rows can be read from by slice and by increasing row numbers: an array, an HDF5 or a Zarr data set."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""

    def __getitem__(self, key: Any, /) -> Any: ...


class ArraySource(Source):
    """Rows of an array, read when they are needed."""

    def __init__(
        self, array: RowsByNumber, name: str = "the array", ids: pa.Array | None = None, space: Space | None = None
    ) -> None:
        self._array, self.path, self._ids = array, name, ids
        (self.n, self.dim), self.dtype = array.shape, np.dtype(getattr(array, "dtype", np.float32))
        self.space = space or Space()

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        for start in range(after, self.n, batch):
            yield np.array(self._array[start : start + batch], order="C")

    def take(self, rows: ArrayLike) -> tuple[pa.Array | None, np.ndarray]:
        """Return ids and vectors of rows by number, which may repeat, in any order."""
        rows = as_row_numbers(rows, self.n, self.path)
        ids = self._ids_at(rows)
        # HDF5 accepts only increasing row numbers, and reading a disk in order is faster.
        wanted, place = np.unique(rows, return_inverse=True)
        if len(wanted) == len(rows) and (place == np.arange(len(rows))).all():
            return ids, np.array(self._array[wanted], order="C")
        return ids, np.asarray(self._array[wanted])[place]
