"""``.npy`` and ``.npz``: NumPy's own formats, streamed without memory maps.

A mapped file counts towards the resident memory of a process page by page; plain reads into a buffer do not.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.errors import CorruptFileError, ParameterError
from congruence.stores._base import (
    BATCH,
    Sink,
    Source,
    check_matrix_shape,
    choose,
    missing_file,
    missing_key,
    read_exactly,
    read_sidecar,
    scan_rows,
    slice_ids,
    stored_dtype,
    write_sidecar,
)


def _read_header(stream: Any, path: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        return np.lib.format.read_array_header_2_0(stream)
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise CorruptFileError(
            f"Got something in {path} that does not begin like an .npy array ({error}); expected one; do save it again."
        ) from error


class NpySource(Source):
    """Rows of a ``.npy`` file.

    Parameters
    ----------
    path : path-like
    key : str, optional
        Must be None: the format holds one array.
    ids : pyarrow.Array, optional
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | None = None) -> None:
        self.path = str(path)
        if key is not None:
            raise ParameterError(
                f"Got key {key!r} for {path}; expected none, since an .npy holds one array; do drop it."
            )
        self._ids = ids
        self.has_ids = ids is not None
        try:
            with open(path, "rb") as stream:
                shape, self._fortran, self._stored = _read_header(stream, self.path)
                self._offset = stream.tell()
        except FileNotFoundError:
            raise missing_file(path) from None
        self.dtype = stored_dtype(self._stored, self.path)
        self.n, self.dim = check_matrix_shape(shape, self.path)
        self.space = read_sidecar(Path(path))

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        row = after
        with open(self.path, "rb", buffering=0) as stream:
            if self._fortran:
                blocks = self._scan_columns(stream, after, batch)
            else:
                stream.seek(self._offset + after * self.dim * self._stored.itemsize)
                blocks = scan_rows(stream, self.n - after, self.dim, self._stored, self.dtype, batch, self.path)
            for block in blocks:
                yield slice_ids(self._ids, row, row + len(block)), block
                row += len(block)

    def _scan_columns(self, stream: IO[bytes], after: int, batch: int) -> Iterator[np.ndarray]:
        """Gather rows of a column-major array, a stretch of each column at a time."""
        size = self._stored.itemsize
        for start in range(after, self.n, batch):
            count = min(batch, self.n - start)
            block = np.empty((count, self.dim), dtype=self.dtype)
            column = np.empty(count, dtype=self._stored)
            for j in range(self.dim):
                stream.seek(self._offset + (j * self.n + start) * size)
                read_exactly(stream, column, self.path)
                block[:, j] = column
            yield block


class NpySink(Sink):
    """Writes a ``.npy`` file; the space goes to ``<name>.space.json``, ids are not kept."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(open(temporary, "wb", buffering=0))
        _write_header(self._file, (self.n, self.dim), self.dtype)

    def _write(self, ids: pa.Array | None, vectors: np.ndarray) -> None:
        write_all(self._file, vectors)

    def _finish(self) -> None:
        write_sidecar(self.path, self.space)


def _write_header(stream: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def write_all(stream: Any, array: np.ndarray) -> None:
    """Write an array's bytes; raw files may take them in several pieces."""
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[stream.write(view) :]


def _npz_shapes(archive: zipfile.ZipFile, path: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name in archive.namelist():
        if name.endswith(".npy"):
            with archive.open(name) as member:
                shapes[name[:-4]] = _read_header(member, f"{path}:{name[:-4]}")[0]
    return shapes


def _open_npz(path: str | Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise missing_file(path) from None
    except (zipfile.BadZipFile, OSError) as error:
        raise CorruptFileError(
            f"Got an unreadable .npz, {path} ({error}); expected the archive numpy.savez writes; do save it again."
        ) from error


class NpzSource(Source):
    """Rows of one array in a ``.npz`` archive, stored or deflated.

    Parameters
    ----------
    path : path-like
    key : str, optional
        Name of the array; may be left out when there is only one matrix.
    ids : pyarrow.Array, optional
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | None = None) -> None:
        with _open_npz(path) as archive:
            shapes = _npz_shapes(archive, str(path))
            self._key = choose(key, shapes, path)
            with archive.open(self._key + ".npy") as member:
                shape, self._fortran, self._stored = _read_header(member, f"{path}:{self._key}")
            own = "ids" if ids is None and shapes.get("ids") == shape[:1] and self._key != "ids" else None
        self._file = str(path)
        self.path = f"{path}:{self._key}"
        self.dtype = stored_dtype(self._stored, self.path)
        self.n, self.dim = check_matrix_shape(shape, self.path)
        self._ids = pa.array(read_npz_column(path, own).tolist(), pa.string()) if own else ids
        self.has_ids = self._ids is not None
        self.space = read_sidecar(Path(path))

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        try:
            yield from self._scan(after, batch)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            if isinstance(error, CorruptFileError):
                raise
            raise CorruptFileError(
                f"Got a damaged array in {self.path} ({error}); expected intact data; do copy or save it again."
            ) from error

    def _scan(self, after: int, batch: int) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        row = after
        with _open_npz(self._file) as archive, archive.open(self._key + ".npy") as member:
            _read_header(member, self.path)
            if self._fortran:  # columns of a compressed stream cannot be revisited: this one needs memory
                whole = np.empty((self.dim, self.n), dtype=self._stored)
                read_exactly(member, whole, self.path)
                blocks: Iterator[np.ndarray] = (
                    np.ascontiguousarray(whole[:, i : i + batch].T, dtype=self.dtype)
                    for i in range(after, self.n, batch)
                )
            else:
                member.seek(after * self.dim * self._stored.itemsize, 1)
                blocks = scan_rows(member, self.n - after, self.dim, self._stored, self.dtype, batch, self.path)
            for block in blocks:
                yield slice_ids(self._ids, row, row + len(block)), block
                row += len(block)


def read_npz_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read a one-dimensional array of text or numbers from a ``.npz`` as strings.

    Raises
    ------
    ParameterError, CorruptFileError
    """
    with _open_npz(path) as archive:
        shapes = _npz_shapes(archive, str(path))
    found = {name: shape for name, shape in shapes.items() if len(shape) == 1}
    if key not in found:
        raise missing_key(key, path, found)
    try:
        with np.load(path, allow_pickle=False) as data:
            return data[key].astype(str)
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise CorruptFileError(
            f"Got an unreadable column {key!r} in {path} ({error}); expected text or numbers; do save it again."
        ) from error


class NpzSink(Sink):
    """Writes a ``.npz`` with ``vectors`` and, when there are ids, ``ids``; nothing is compressed."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._archive = stack.enter_context(zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED))
        self._member = self._archive.open("vectors.npy", "w", force_zip64=True)
        # Closing a member twice is harmless; leaving it open would make closing the archive fail.
        stack.callback(self._member.close)
        _write_header(self._member, (self.n, self.dim), self.dtype)
        self._names: list[pa.Array] = []

    def _write(self, ids: pa.Array | None, vectors: np.ndarray) -> None:
        write_all(self._member, vectors)
        if ids is not None:
            self._names.append(ids)

    def _finish(self) -> None:
        self._member.close()
        if self._names:
            names = np.array(pa.chunked_array(self._names).to_pylist(), dtype=str)
            with self._archive.open("ids.npy", "w") as member:
                _write_header(member, names.shape, names.dtype)
                write_all(member, names.view(np.uint8))
        write_sidecar(self.path, self.space)


def space_json(space: Space) -> str:
    """Write a space as JSON for a format's metadata."""
    return json.dumps(space.to_dict())
