"""Reader of the ``.h5ad`` files of anndata (extra ``hdf5``), streamed in slices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.errors import DtypeError
from congruence.io.hdf5 import Hdf5Source, in_heap, read_strings
from congruence.io.ids import column_ids
from congruence.io.reading import damaged

#: The parts of a sparse matrix: numbers, their columns, and where each row begins.
_SPARSE = ("data", "indices", "indptr")


class _Sparse:
    """A sparse matrix stored by rows, whose rows are read with their zeros."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts, self.dtype, facts = parts, parts[0].dtype, parts[0].parent.attrs
        shape, encoding = facts.get_id("shape"), facts.get_id("encoding-type")
        pair = shape.dtype.kind in "iu" and shape.shape == (2,)
        self.shape: tuple[int, ...] = tuple(facts["shape"].tolist()) if pair else ()
        #: The text that says how it is stored, empty if it is in the heap.
        self.encoding = "" if in_heap(encoding.dtype) else str(facts["encoding-type"])

    def __getitem__(self, rows: slice) -> np.ndarray:
        data, indices, indptr = self._parts
        ends = indptr[rows.start : min(rows.stop, self.shape[0]) + 1].astype(np.int64)
        counts = np.diff(ends)
        columns = indices[ends[0] : ends[-1]] if ends[0] >= 0 and (counts >= 0).all() else np.empty(0, int)
        if len(columns) != counts.sum() or (len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]):
            raise damaged(data.file.filename, f"{data.parent.name} has numbers outside of its {self.shape[1]} columns")
        block = np.zeros((len(counts), self.shape[1]), self.dtype)
        block[np.repeat(np.arange(len(counts)), counts), columns] = data[ends[0] : ends[-1]]
        return block


class H5adSource(Hdf5Source):
    """Rows of ``X``, a layer or a part of ``obsm`` of an ``.h5ad`` of anndata, with the cells' names.

    Columns are those of ``obs``. A sparse matrix is read by rows, each with its zeros.
    """

    sink = None  # type: ignore[assignment]

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        super().__init__(path, key, False if ids is None else ids)
        with Hdf5Source._open(path) as every:
            of_cells = [one for name, one in every.items() if name.startswith("obs/")]
            index = next((name for name in ("obs/_index", "obs/index") if name in every), "")
            named = any("_index" in one.parent.attrs for one in of_cells if one.parent.name == "/obs")
        if ids is None and (index or named):
            index = index or f"obs/{read_strings(path, ['obs', '_index'])[0]}"
            self._ids = column_ids(self.read_column(path, index), f"{path}:{index}")

    @classmethod
    @contextmanager
    def _open(cls, path: str | Path) -> Iterator[Mapping[str, Any]]:
        """Yield the matrices and the columns of ``obs`` by name."""
        with super()._open(path) as every:
            found: dict[str, Any] = {}
            for name, data in every.items():
                group, _, last = name.rpartition("/")
                if re.fullmatch("X|(obsm|layers|obs)/[^/]+", name):
                    found[name] = data
                elif last in ("codes", "values") and re.fullmatch("obs/[^/]+", group):
                    found[group] = data
                elif last == "indptr" and re.fullmatch("X|(obsm|layers)/[^/]+", group):
                    parts = [every.get(f"{group}/{part}") for part in _SPARSE]
                    if None not in parts and {"shape", "encoding-type"} <= {*data.parent.attrs}:
                        found[group] = _Sparse(parts)
            yield found

    @classmethod
    def _checked(cls, array: Any, path: str) -> Any:
        if not isinstance(array, _Sparse):
            return super()._checked(array, path)
        data, indices, indptr = (super(H5adSource, cls)._checked(part, path) for part in array._parts)
        file, name = data.file.filename, data.parent.name
        if "csr" not in (array.encoding or read_strings(file, [name, "encoding-type"])[0]):
            raise DtypeError(f"Got a matrix stored by columns in {path}.", "Save it as csr_matrix.")
        if not array.shape or data.shape != indices.shape or indptr.shape != (array.shape[0] + 1,):
            raise damaged(file, f"{name} is not a sparse matrix of {array.shape} rows and columns")
        return array

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a column of ``obs``; a categorical one as its texts."""
        with Hdf5Source._open(path) as every:
            parts = {name.rpartition("/")[2] for name in every if name.startswith(f"{key}/")}
            if key in every:
                return super().read_array(path, key)
        read = Hdf5Source.read_column
        if "values" in parts:  # texts of which some may be missing
            texts, missing = (read(path, f"{key}/{part}") for part in ("values", "mask"))
            if missing.dtype != bool or missing.shape != texts.shape:
                raise damaged(path, f"{key} has no mask of its values")
            texts[missing] = None
            return texts
        names, codes = (read(path, f"{key}/{part}") for part in ("categories", "codes"))
        if codes.dtype.kind not in "iu" or (len(codes) and (codes.min() < -1 or codes.max() >= len(names))):
            raise damaged(path, f"{key} has codes without a category")
        return np.array([*names.tolist(), None], object)[codes]  # a missing one has the code -1
