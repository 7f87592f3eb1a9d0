"""Rows of arrays as sources: an array in memory, mapped or of HDF5 or Zarr, and files of several arrays by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from congruence.embeddings import Space
from congruence.io._base import Source
from congruence.io.reading import PACKED, check_matrix_shape, choose, missing_key, stored_dtype, unpack

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

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        return self._ids_at(wanted), np.array(self._array[wanted], order="C")


class NamedArrays(Source):
    """Rows of one of several arrays in a file, by default the only matrix; the array ``ids`` may hold their ids.

    A format has ``shapes`` and ``read_array``; its constructor calls ``_choose`` and, at the end, ``_set_ids``.
    """

    key = "key"
    #: Whether the array ``ids`` is read when no ids are named.
    own_ids = True

    @classmethod
    @abstractmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays in a file by name."""

    @classmethod
    @abstractmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional array: numbers, or texts in an object array."""

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        """Read a one-dimensional array, or the texts of ``PACKED`` arrays."""
        columns = {name: shape for name, shape in cls.shapes(path).items() if len(shape) == 1}
        if key is not None and key in columns:
            return cls.read_array(path, key)
        if key is None or _packed(columns, key) is None:
            raise missing_key(key, path, columns)
        data, offsets = (cls.read_array(path, key + part) for part in PACKED)
        return unpack(data, offsets, f"{path}:{key}")

    def _choose(self, path: str | Path, key: str | None, shapes: dict[str, tuple[int, ...]]) -> str:
        self._key = choose(key, shapes, path)
        self._file, self.path, self.files = str(path), f"{path}:{self._key}", (Path(path),)
        return self._key

    def _set_matrix(self, shape: tuple[int, ...], stored: np.dtype) -> None:
        self.dtype = stored_dtype(stored, self.path)
        self.n, self.dim = check_matrix_shape(shape, self.path)

    def _set_ids(self, ids: pa.Array | bool | None, shapes: dict[str, tuple[int, ...]]) -> None:
        if ids is None and self.own_ids and (shapes.get("ids") == (self.n,) or _packed(shapes, "ids") == self.n):
            from congruence.io.ids import column_ids

            ids = column_ids(self.read_column(self._file, "ids"), f"{self._file}:ids")
        self._ids = None if isinstance(ids, bool) else ids


def _packed(shapes: Mapping[str, tuple[int, ...]], key: str) -> int | None:
    """Return the number of entries of a column stored as ``PACKED`` arrays, or None if there are none."""
    data, offsets = (shapes.get(key + part, ()) for part in PACKED)
    return offsets[0] - 1 if len(data) == len(offsets) == 1 else None
