"""Reader and writer of ``.h5`` and ``.hdf5`` files, and reader of ``.h5ad`` (extra ``hdf5``), streamed in slices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, DtypeError, IdError
from congruence.io._base import SPACE_KEY, NamedSink, SlicedArrays, space_json
from congruence.io.ids import column_ids
from congruence.io.reading import TEXT_BYTES, as_column, damaged, errno_from_text, pack, reading

#: Exceptions that h5py raises for damaged files.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)

#: Time limit for reading strings: this many seconds, plus one second per so many strings.
_PATIENCE, _STRINGS_A_SECOND = 30.0, 20_000

#: The parts of a sparse matrix: numbers, their columns, and where each row begins.
_SPARSE = ("data", "indices", "indptr")

#: Prints a JSON list of the strings of a dataset, or of its attribute. On a damaged heap libhdf5 may loop forever in a
#: call that cannot be interrupted from its own process. It imports nothing of congruence.
_READ_STRINGS = """
import json, sys
try:
    import h5py
    path, name, *attribute = sys.argv[1:]
    with h5py.File(path, "r") as file:
        found = [file[name].attrs[attribute[0]]] if attribute else file[name].asstr()[:].tolist()
    json.dump([text.decode() if isinstance(text, bytes) else str(text) for text in found], sys.stdout)
except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
    sys.exit(f"{type(error).__name__}: {error}"[:500])
"""


def _in_heap(kind: np.dtype) -> bool:
    """Return whether values of an HDF5 type are variable-length strings, which are stored in a separate heap."""
    text = require("h5py", extra="hdf5").check_string_dtype(kind)
    return kind.kind == "O" or (text is not None and text.length is None)


def _strings(path: str | Path, wanted: list[str], n: int = 1) -> list[str]:
    """Read about ``n`` variable-length strings in a subprocess with a time limit: ``[dataset]``, or one string, its
    ``[dataset, attribute]``.
    """
    n = min(n, os.path.getsize(path) // 16)  # a string takes at least 16 bytes; a damaged file may claim any number
    limit = _PATIENCE + n / _STRINGS_A_SECOND
    line = [sys.executable, "-P", "-c", _READ_STRINGS, os.path.abspath(path), *wanted]
    try:
        run = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        problem = f"The strings in {path} could not be read within {limit:.0f} seconds."
        fix = "Copy or write it again; if it is intact, write it with fixed-length strings."
        raise CorruptFileError(problem, fix) from None
    if run.returncode:
        raise damaged(path, f"its strings: {run.stderr.decode(errors='replace').strip()[-200:]}")
    found: list[str] = json.loads(run.stdout)
    return found


class Hdf5Sink(NamedSink):
    """Writer of the datasets ``vectors`` and, if there are ids, ``ids``; the space is an attribute of ``vectors``."""

    keeps_codes = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        h5py = require("h5py", extra="hdf5")
        stack.enter_context(errno_from_text(r"errno = (\d+)", OSError, RuntimeError))  # closing the file writes too
        self._file = stack.enter_context(h5py.File(temporary, "w"))
        self._data = self._file.create_dataset("vectors", (self.n, self.dim), self.dtype)
        if self.space != Space():
            self._data.attrs[SPACE_KEY] = np.bytes_(space_json(self.space).encode())

    def _put_rows(self, vectors: np.ndarray) -> None:
        self._data[self.rows : self.rows + len(vectors)] = vectors

    def _ids_as_held(self, names: np.ndarray) -> dict[str, np.ndarray]:
        # HDF5's strings end at a NUL.
        return pack(names) if names.dtype == object and any("\0" in name for name in names.tolist()) else {"": names}

    def _put(self, name: str, values: np.ndarray) -> None:
        kind = require("h5py", extra="hdf5").string_dtype() if values.dtype == object else None
        self._file.create_dataset(name, data=values, dtype=kind)


class Hdf5Source(SlicedArrays):
    """Rows of one dataset in an HDF5 file; by default the only matrix, with the ids in ``ids``."""

    key, sink = "dataset", Hdf5Sink

    @classmethod
    @contextmanager
    def _open(cls, path: str | Path) -> Iterator[Mapping[str, Any]]:
        found: dict[str, Any] = {}

        def visit(name: str | bytes, item: object) -> None:
            if hasattr(item, "shape"):
                # Names that are not UTF-8 are passed as bytes, and cannot be used as keys.
                found[name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")] = item

        with reading(path, *_DAMAGE), require("h5py", extra="hdf5").File(path, "r") as file:
            file.visititems(visit)
            yield found

    @classmethod
    def _checked(cls, array: Any, path: str) -> Any:
        if array.is_virtual or array.external:
            problem = f"The values of {path} are stored in other files (virtual or external storage)."
            raise CorruptFileError(problem, "Copy the dataset into one file (with h5repack or h5py).")
        return array

    def _saved_space(self, array: Any) -> str | bytes:
        if isinstance(array, _Sparse) or SPACE_KEY not in array.attrs:
            return b""
        if _in_heap(array.attrs.get_id(SPACE_KEY).dtype):
            return _strings(self._file, [self._key, SPACE_KEY])[0]
        saved = array.attrs[SPACE_KEY]
        return saved if isinstance(saved, bytes) else str(saved)

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        with cls._open(path) as arrays:
            data = cls._checked(arrays[key], f"{path}:{key}")
            if not _in_heap(data.dtype):
                step = max(1, TEXT_BYTES // data.dtype.itemsize)
                parts = [as_column(data[start : start + step], f"{path}:{key}") for start in range(0, len(data), step)]
                return np.concatenate(parts) if parts else np.empty(0, object)
            n = len(data)
        return np.array(_strings(path, [key], n), object)


class _Sparse:
    """A sparse matrix stored by rows, whose rows are read with their zeros."""

    def __init__(self, parts: list[Any], name: str) -> None:
        self._parts, self._name, self.dtype = parts, name, parts[0].dtype
        shape, encoding = (parts[0].parent.attrs.get_id(one) for one in ("shape", "encoding-type"))
        self.shape: tuple[int, ...] = ()
        if shape.dtype.kind in "iu" and shape.shape == (2,):
            self.shape = tuple(parts[0].parent.attrs["shape"].tolist())
        #: Whether the text that says how it is stored has to be read elsewhere.
        self.encoding = "" if _in_heap(encoding.dtype) else str(parts[0].parent.attrs["encoding-type"])

    def __getitem__(self, rows: slice) -> np.ndarray:
        data, indices, indptr = self._parts
        ends = indptr[rows.start : min(rows.stop, self.shape[0]) + 1].astype(np.int64)
        counts = np.diff(ends)
        columns = indices[ends[0] : ends[-1]] if ends[0] >= 0 and (counts >= 0).all() else np.empty(0, int)
        if len(columns) != counts.sum() or (len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]):
            raise damaged(data.file.filename, f"{self._name} has numbers outside of its {self.shape[1]} columns")
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
            index = index or f"obs/{_strings(path, ['obs', '_index'])[0]}"
            self._ids = column_ids(self.read_column(path, index), f"{path}:{index}")
            if len(self._ids) != self.n:
                problem = f"Got {len(self._ids)} names of cells for {self.n} rows of {self.path}."
                raise IdError(problem, "Pass --ids none.")

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
                        found[group] = _Sparse(parts, group)
            yield found

    @classmethod
    def _checked(cls, array: Any, path: str) -> Any:
        if not isinstance(array, _Sparse):
            return super()._checked(array, path)
        data, indices, indptr = (super(H5adSource, cls)._checked(part, path) for part in array._parts)
        file, name = data.file.filename, data.parent.name
        if "csr" not in (array.encoding or _strings(file, [name, "encoding-type"])[0]):
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
