"""Reader and writer of ``.h5`` and ``.hdf5`` files, and reader of ``.h5ad`` (extra ``hdf5``), streamed in slices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, DtypeError, IdError, ShapeError
from congruence.io._base import SPACE_KEY, NamedArrays, Sink, read_space, space_json
from congruence.io.columns import TableRows
from congruence.io.ids import column_ids, id_array
from congruence.io.reading import TEXT_BYTES, as_column, damaged, errno_from_text, missing_file, pack, reading

if TYPE_CHECKING:
    import h5py

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


@contextmanager
def _open(path: str | Path) -> Iterator[h5py.File]:
    h5py = require("h5py", extra="hdf5")
    if not Path(path).exists():
        raise missing_file(path)
    with reading(path, *_DAMAGE), h5py.File(path, "r") as file:
        yield file


def _own_dataset(file: h5py.File, key: str, path: str | Path) -> h5py.Dataset:
    """Return a dataset whose values are stored in this file; an error for one that refers to other files."""
    data = file[key]
    if data.is_virtual or data.external:
        raise CorruptFileError(
            f"The values of the dataset {key!r} of {path} are stored in other files (virtual or external storage).",
            "Copy the dataset into one file (with h5repack or h5py).",
        )
    return data


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


class Hdf5Sink(Sink):
    """Writer of the datasets ``vectors`` and, if there are ids, ``ids``; the space is an attribute of ``vectors``.

    HDF5 strings end at a NUL. If any id contains one, the ids are written as concatenated UTF-8 in ``ids_utf8``, with
    their start positions in ``ids_offsets``.
    """

    keeps_codes = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        h5py = require("h5py", extra="hdf5")
        stack.enter_context(errno_from_text(r"errno = (\d+)", OSError, RuntimeError))  # closing the file writes too
        self._file = stack.enter_context(h5py.File(temporary, "w"))
        self._data = self._file.create_dataset("vectors", (self.n, self.dim), self.dtype)
        if self.space != Space():
            self._data.attrs[SPACE_KEY] = np.bytes_(space_json(self.space).encode())
        self._names: list[pa.Array] = []

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        self._data[self.rows : self.rows + len(vectors)] = vectors
        if ids is not None:
            self._names.append(ids)

    def _finish(self) -> None:
        if not self._names:
            return
        names = id_array(self._names)
        if names.dtype != object:
            self._file.create_dataset("ids", data=names)
        elif any("\0" in name for name in names.tolist()):
            for part, values in pack(names).items():
                self._file.create_dataset(f"ids{part}", data=values)
        else:
            self._file.create_dataset("ids", data=names, dtype=require("h5py", extra="hdf5").string_dtype())


class Hdf5Source(NamedArrays):
    """Rows of one dataset in an HDF5 file; by default the only matrix, with the ids in ``ids``."""

    key, sink = "dataset", Hdf5Sink

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        shapes = self.shapes(path)
        self._choose(path, key.strip("/") if key else None, shapes)
        with _open(path) as file:
            data = _own_dataset(file, self._key, path)
            self._set_matrix(tuple(data.shape), data.dtype)
            described = SPACE_KEY in data.attrs
            in_heap = described and _in_heap(data.attrs.get_id(SPACE_KEY).dtype)
            saved = data.attrs[SPACE_KEY] if described and not in_heap else b""
        saved = _strings(path, [self._key, SPACE_KEY])[0] if in_heap else saved
        self.space = read_space(saved if isinstance(saved, bytes) else str(saved), path)
        self._set_ids(ids, shapes)

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the datasets in a file by name."""
        shapes: dict[str, tuple[int, ...]] = {}

        def visit(name: str | bytes, item: object) -> None:
            if hasattr(item, "shape"):
                # Names that are not UTF-8 are passed as bytes, and cannot be used as keys.
                shapes[name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")] = tuple(item.shape)

        with _open(path) as file:
            file.visititems(visit)
        return shapes

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        return super().read_column(path, key and key.strip("/"))

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional dataset; strings are returned as an object array."""
        with _open(path) as file:
            data = _own_dataset(file, key, path)
            if not _in_heap(data.dtype):
                step = max(1, TEXT_BYTES // data.dtype.itemsize)
                parts = [as_column(data[start : start + step], f"{path}:{key}") for start in range(0, len(data), step)]
                return np.concatenate(parts) if parts else np.empty(0, object)
            n = len(data)
        return np.array(_strings(path, [key], n), object)

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        with _open(self._file) as file:
            data = file[self._key]
            for start in range(after, self.n, batch):
                yield np.ascontiguousarray(data[start : start + batch], dtype=self.dtype)


class H5adSource(Hdf5Source):
    """Rows of ``X``, a layer or a part of ``obsm`` of an ``.h5ad`` of anndata, with the cells' names.

    Columns are those of ``obs``. A sparse matrix is read by rows, each with its zeros.
    """

    sink = None  # type: ignore[assignment]

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        shapes = self.shapes(path)
        self._choose(path, key.strip("/") if key else None, shapes)
        with _open(path) as file:
            self._sparse = not hasattr(file[self._key], "shape")
            places = [f"{self._key}/{part}" for part in _SPARSE] if self._sparse else [self._key]
            if any(place not in Hdf5Source.shapes(path) for place in places):
                raise ShapeError(f"Got a table or column in {self.path}.", "Pass the key of a matrix.")
            stored = [_own_dataset(file, place, path) for place in places]
            self._set_matrix(shapes[self._key], stored[0].dtype)
            fits = not self._sparse or (stored[0].shape == stored[1].shape and stored[2].shape == (self.n + 1,))
            # Names in ``shapes`` are no links to other files.
            named = any(name.startswith("obs/") for name in shapes) and "_index" in file["obs"].attrs
        if self._sparse and "csr" not in _strings(path, [self._key, "encoding-type"])[0]:
            raise DtypeError(f"Got a matrix stored by columns in {self.path}.", "Save it as csr_matrix.")
        if not fits:
            raise damaged(path, f"{self._key} is not a sparse matrix of {self.n} rows")
        index = "obs/_index" if "obs/_index" in shapes else "obs/index" if "obs/index" in shapes else ""
        if ids is None and (index or named):
            index = index or f"obs/{_strings(path, ['obs', '_index'])[0]}"
            names = column_ids(self.read_column(path, index), f"{path}:{index}")
            if len(names) != self.n:
                raise IdError(f"Got {len(names)} names of cells for {self.n} rows of {self.path}.", "Pass --ids none.")
            ids = names
        self._ids = None if isinstance(ids, bool) else ids

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the matrices and of the columns of ``obs`` by name."""
        every = super().shapes(path)
        found = {}
        with _open(path) as file:
            for name, shape in every.items():
                group, _, last = name.rpartition("/")
                if re.fullmatch("X|(obsm|layers|obs)/[^/]+", name) and name not in ("X/data", "X/indices", "X/indptr"):
                    found[name] = shape
                elif last in ("codes", "values") and re.fullmatch("obs/[^/]+", group):
                    found[group] = shape
                elif last == "indptr" and re.fullmatch("X|(obsm|layers)/[^/]+", group) and "shape" in file[group].attrs:
                    kind = file[group].attrs.get_id("shape")
                    if kind.dtype.kind in "iu" and kind.shape == (2,):
                        found[group] = tuple(file[group].attrs["shape"].tolist())
        return found

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a column of ``obs``; a categorical one as its texts."""
        with _open(path) as file:
            if hasattr(file[key], "shape"):
                return super().read_array(path, key)
            if "values" in file[key]:  # texts of which some may be missing
                texts, missing = (Hdf5Source.read_column(path, f"{key}/{part}") for part in ("values", "mask"))
                if missing.dtype != bool or missing.shape != texts.shape:
                    raise damaged(path, f"{key} has no mask of its values")
                texts[missing] = None
                return texts
        names, codes = (Hdf5Source.read_column(path, f"{key}/{part}") for part in ("categories", "codes"))
        if codes.dtype.kind not in "iu" or (len(codes) and (codes.min() < -1 or codes.max() >= len(names))):
            raise damaged(path, f"{key} has codes without a category")
        return np.array([*names.tolist(), None], object)[codes]  # a missing one has the code -1

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        if not self._sparse:
            yield from super()._blocks(after, batch)
            return
        with _open(self._file) as file:
            data, indices, indptr = (file[f"{self._key}/{part}"] for part in _SPARSE)
            for start in range(after, self.n, batch):
                ends = indptr[start : min(start + batch, self.n) + 1].astype(np.int64)
                counts = np.diff(ends)
                columns = indices[ends[0] : ends[-1]] if ends[0] >= 0 and (counts >= 0).all() else np.empty(0, int)
                if len(columns) != counts.sum() or (
                    len(columns) and not 0 <= columns.min() <= columns.max() < self.dim
                ):
                    raise damaged(self._file, f"{self._key} has numbers outside of its {self.dim} columns")
                block = np.zeros((len(counts), self.dim), self.dtype)
                block[np.repeat(np.arange(len(counts)), counts), columns] = data[ends[0] : ends[-1]]
                yield block
