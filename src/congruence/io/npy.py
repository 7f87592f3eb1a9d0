"""Readers and writers of ``.npy`` and ``.npz`` files, streamed without memory maps.

The pages of a mapped file count toward the resident memory of the process; reads into a buffer do not.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.ids import fits_fixed_width
from congruence.errors import DtypeError, ShapeError
from congruence.io._base import NamedArrays, NamedSink, RawSource, Sink, Source, read_sidecar
from congruence.io.reading import (
    TEXT_BYTES,
    as_column,
    damaged,
    pack,
    read_exactly,
    reading,
    refuse_key,
    scan_rows,
    write_all,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io.columns import TableRows

#: Exceptions that zipfile and zlib raise for damaged archives. A flipped bit can look like an unknown compression
#: method (NotImplementedError, a RuntimeError) or a password (RuntimeError).
_ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError, RuntimeError)  # fmt: skip


def read_header(stream: Any, path: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape of an array, whether it is in Fortran order, and its dtype."""
    with reading(path, ValueError, EOFError, SyntaxError, TypeError, tokenize.TokenError, MemoryError, RecursionError):
        if np.lib.format.read_magic(stream) == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        return np.lib.format.read_array_header_2_0(stream)


def check_size(shape: tuple[int, ...], dtype: np.dtype, available: int, path: str) -> None:
    """Check that an array is not truncated, before memory for it is allocated."""
    expected = math.prod(shape) * dtype.itemsize
    if available < expected and not dtype.hasobject:
        raise damaged(path, f"{expected - available} of {expected} bytes are missing")


class NpySink(Sink):
    """Writer of a ``.npy`` file; the space is written to ``<name>.space.json``, and ids are not kept."""

    keeps_ids = False
    sidecar = keeps_codes = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(open(temporary, "wb", buffering=0))
        write_header(self._file, (self.n, self.dim), self.dtype)

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        write_all(self._file, vectors)


def read_npy_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read a one-dimensional ``.npy``: numbers, or texts in an object array."""
    refuse_key(key, path)
    with reading(path), open(path, "rb") as stream:
        return _read_column(stream, os.fstat(stream.fileno()).st_size, str(path))


def _read_column(stream: Any, size: int, path: str) -> np.ndarray:
    begin = stream.tell()
    shape, _, dtype = read_header(stream, path)
    if dtype.hasobject:
        problem = f"Got objects in {path}; expected text or numbers."
        raise DtypeError(problem, "Save it as strings, .astype(str), since objects need pickle, which is never loaded.")
    if len(shape) != 1:
        problem = f"Got an array of shape {shape} in {path}; expected one entry per row."
        raise ShapeError(problem, "Pass the key of a one-dimensional array.")
    check_size(shape, dtype, size - (stream.tell() - begin), path)
    if not dtype.itemsize:  # such an array may claim any number of entries
        raise DtypeError(f"Got strings of width 0 in {path}; expected text.", "Save the column again.")
    step = max(1, TEXT_BYTES // dtype.itemsize) if dtype.kind in "US" else max(1, shape[0])
    parts = []
    for start in range(0, shape[0], step):
        part = np.empty(min(step, shape[0] - start), dtype)
        read_exactly(stream, part, path)
        parts.append(as_column(part, path))
    return np.concatenate(parts) if parts else np.empty(0, object)


def write_header(stream: Any, shape: tuple[int, ...], dtype: np.dtype, *, fortran: bool = False) -> None:
    """Write what an array begins with."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


class NpySource(RawSource):
    """Rows of a ``.npy`` file; its ids come from another file. ``fortran``: whether it is stored by columns."""

    sink, read_column = NpySink, staticmethod(read_npy_column)

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        self._set_file(path, key, ids)
        with reading(path), open(path, "rb") as stream:
            shape, self.fortran, self._stored = read_header(stream, self.path)
            self._offset = stream.tell()
            size = os.fstat(stream.fileno()).st_size
        self._set_matrix(shape, self._stored)
        check_size(shape, self._stored, size - self._offset, self.path)

    @property
    def stored(self) -> np.dtype:
        """The type of the numbers in the file, with its byte order."""
        return self._stored

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        return self._scan_columns(after, batch) if self.fortran else super()._blocks(after, batch)

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        return Source._take(self, wanted) if self.fortran else super()._take(wanted)

    def _scan_columns(self, after: int, batch: int) -> Iterator[np.ndarray]:
        """Yield blocks of rows of a column-major array, reading a part of each column for every block."""
        size = self._stored.itemsize
        with reading(self.path), open(self.path, "rb", buffering=0) as stream:
            for start in range(after, self.n, batch):
                count = min(batch, self.n - start)
                block = np.empty((count, self.dim), dtype=self.dtype)
                column = np.empty(count, dtype=self._stored)
                for j in range(self.dim):
                    stream.seek(self._offset + (j * self.n + start) * size)
                    read_exactly(stream, column, self.path)
                    block[:, j] = column
                yield block


@contextmanager
def _open_npz(path: str | Path) -> Iterator[zipfile.ZipFile]:
    with reading(path, *_ZIP_DAMAGE), zipfile.ZipFile(path) as archive:
        yield archive


class NpzSink(NamedSink):
    """Writer of a ``.npz``, in which nothing is compressed.

    All strings of a NumPy array are as wide as the longest, and lose trailing NULs. If this would take much more space
    or change an id, the ids are written as bytes.
    """

    sidecar = keeps_codes = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._archive = stack.enter_context(zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED))
        self._member = self._archive.open("vectors.npy", "w", force_zip64=True)
        # Closing a member twice is harmless; leaving it open would make closing the archive fail.
        stack.callback(self._member.close)
        write_header(self._member, (self.n, self.dim), self.dtype)

    def _put_rows(self, vectors: np.ndarray) -> None:
        write_all(self._member, vectors)

    def _ids_as_held(self, names: np.ndarray) -> dict[str, np.ndarray]:
        if names.dtype == object:
            return {"": names.astype(str)} if fits_fixed_width(names) else pack(names)
        return {"": names}

    def _put(self, name: str, values: np.ndarray) -> None:
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            write_header(member, values.shape, values.dtype)
            write_all(member, values.view(np.uint8))

    def _finish(self) -> None:
        self._member.close()
        super()._finish()


class NpzSource(NamedArrays):
    """Rows of one array in a ``.npz`` archive; by default the only matrix, with the ids in ``ids``."""

    sink = NpzSink

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        shapes = self.shapes(path)
        name = self._choose(path, key, shapes) + ".npy"
        with _open_npz(path) as archive, archive.open(name) as member:
            shape, self._fortran, self._stored = read_header(member, self.path)
            self._set_matrix(shape, self._stored)
            check_size(shape, self._stored, archive.getinfo(name).file_size - member.tell(), self.path)
        self._set_ids(ids, shapes)
        self.space = read_sidecar(Path(path))

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        shapes = {}
        with _open_npz(path) as archive:
            for name in archive.namelist():
                if name.endswith(".npy"):
                    with archive.open(name) as member:
                        shapes[name[:-4]] = read_header(member, f"{path}:{name[:-4]}")[0]
        return shapes

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        with _open_npz(path) as archive, archive.open(f"{key}.npy") as member:
            return _read_column(member, archive.getinfo(f"{key}.npy").file_size, f"{path}:{key}")

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        with _open_npz(self._file) as archive, archive.open(self._key + ".npy") as member:
            read_header(member, self.path)
            if self._fortran:  # a compressed stream cannot be read column by column, so this array must fit into memory
                whole = np.empty((self.dim, self.n), dtype=self._stored)
                read_exactly(member, whole, self.path)
                for i in range(after, self.n, batch):
                    yield np.ascontiguousarray(whole[:, i : i + batch].T, dtype=self.dtype)
                return
            member.seek(after * self.dim * self._stored.itemsize, 1)
            for block in scan_rows(member, self.n - after, self.dim, self._stored, batch, self.path):
                yield block.astype(self.dtype, copy=False)
