"""``.fvecs``, ``.bvecs`` and ``.ivecs``, the formats of the SIFT data sets: each row after its width, an int32."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence.errors import ShapeError
from congruence.io._base import RawSource, Sink
from congruence.io.reading import damaged, read_exactly, reading, write_all

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io.columns import TableRows

_STORED: dict[str, np.dtype] = {"f": np.dtype("<f4"), "b": np.dtype("u1"), "i": np.dtype("<i4")}


class VecsSink(Sink):
    """Writer of a ``.fvecs``; the space is written to ``<name>.space.json``, and ids are not kept."""

    keeps_ids, sidecar, widest = False, True, np.float32

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(open(temporary, "wb", buffering=0))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        rows_ = np.empty((len(vectors), self.dim + 1), "<f4")
        rows_[:, 0], rows_[:, 1:] = np.array(self.dim, "<i4").view("<f4"), vectors
        write_all(self._file, rows_)


class VecsSource(RawSource):
    """Rows of a file; the first letter of its suffix is the type of the numbers."""

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        self._set_file(path, key, ids)
        self._offset: int = 0
        self._stored = _STORED[Path(path).suffix[1].lower()]
        self._lead = 4 // self._stored.itemsize
        with reading(path), open(path, "rb") as stream:
            width, size = np.zeros(1, "<i4"), os.fstat(stream.fileno()).st_size
            if not size:
                raise ShapeError(f"The file {path} is empty.", "Pass a file with vectors.")
            read_exactly(stream, width, self.path)
        self.dim = int(width[0])
        row = (self.dim + self._lead) * self._stored.itemsize
        if self.dim < 1 or size % row:
            raise damaged(path, f"its first row has width {self.dim}, and its {size} bytes are no whole number of rows")
        self._set_matrix((size // row, self.dim), self._stored)

    def _converted(self, rows: np.ndarray) -> np.ndarray:
        widths = np.ascontiguousarray(rows[:, : self._lead]).view("<i4")
        if (widths != self.dim).any():
            raise damaged(self.path, f"rows of {self.dim} and of {widths[widths != self.dim][0]} numbers")
        return np.array(rows[:, self._lead :], self.dtype, order="C")


class FvecsSource(VecsSource):
    """Rows of float32, the type that is written too."""

    sink = VecsSink
