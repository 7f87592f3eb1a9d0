"""New vectors by row number: an ``.npy`` file that is filled in any order, and a file with one byte per row that marks which rows are written."""

from __future__ import annotations

import os
import tokenize
from io import FileIO
from pathlib import Path
from threading import Lock

import numpy as np

from congruence._utils.refusals import describe_refusal
from congruence.errors import CorruptFileError, DtypeError, FileError, StorageError

__all__ = ["RowVectors"]

#: Exceptions that NumPy raises for a damaged header, or for one of another kind of file.
_DAMAGE = (
    ValueError,
    EOFError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    MemoryError,
    RecursionError,
    OverflowError,
)


class RowVectors:
    """A file of vectors that is read and written by row number, also by several threads.

    Parameters
    ----------
    path : Path
        The ``.npy`` file.
    marks : Path
        The file with one byte per row, 1 if the row is written.
    writable : bool
        Whether to open the files for writing; False after the switch, when readers may have the file open.

    Raises
    ------
    FileError, CorruptFileError
        If a file cannot be read, or is damaged.
    """

    def __init__(self, path: Path, marks: Path, *, writable: bool) -> None:
        self._path, self._lock = path, Lock()
        try:
            if writable and not os.access(path, os.W_OK):  # a switch gave it the permissions of the original
                path.chmod(path.stat().st_mode | 0o200)
            self._file = open(path, "r+b" if writable else "rb", buffering=0)
            self._marks = open(marks, "r+b" if writable else "rb", buffering=0)
            version_1 = np.lib.format.read_magic(self._file) == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if version_1 else np.lib.format.read_array_header_2_0
            (self.rows, self.dim), _, self.dtype = read_header(self._file)
            self._offset = self._file.tell()
            size = self._offset + self.rows * self.dim * self.dtype.itemsize
            if min(self.rows, self.dim) < 1 or self.dtype not in (np.float32, np.float16):
                raise ValueError("not a matrix of floats")
            if os.fstat(self._file.fileno()).st_size < size or os.fstat(self._marks.fileno()).st_size < self.rows:
                raise ValueError("truncated")
        except OSError as error:
            raise FileError(describe_refusal(error, f"while opening {path}")) from error
        except _DAMAGE as error:
            raise CorruptFileError(
                f"Got damaged new vectors, {path} ({error}); expected the file that this migration wrote. Discard the new vectors, and run the migration again."
            ) from error

    @staticmethod
    def create(path: Path, marks: Path, rows: int, dim: int, element_type: str) -> None:
        """Create both files, with no row written yet. Raises StorageError."""
        dtype = np.dtype(element_type)
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, dim)}
        try:
            with open(path, "wb") as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                stream.truncate(stream.tell() + rows * dim * dtype.itemsize)
            with open(marks, "wb") as stream:
                stream.truncate(rows)
        except OSError as error:
            raise StorageError(describe_refusal(error, f"from the disk while writing {path}")) from error

    def write(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors, then the marks of their rows. Raises StorageError, DtypeError.

        Parameters
        ----------
        rows : ndarray of int64, shape (b,)
        vectors : ndarray of float32, shape (b, dim)
        """
        try:
            with np.errstate(over="raise"):
                stored = np.ascontiguousarray(vectors, self.dtype)
        except FloatingPointError:
            raise DtypeError(
                f"Got numbers beyond the range of {self.dtype}; expected smaller ones. Pass element_type='float32'."
            ) from None
        width = self.dim * self.dtype.itemsize
        try:
            with self._lock:
                for start, stop in _ranges(rows):
                    _write_at(self._file, self._offset + int(rows[start]) * width, stored[start:stop])
                for start, stop in _ranges(rows):
                    _write_at(self._marks, int(rows[start]), np.ones(stop - start, np.uint8))
        except OSError as error:
            raise StorageError(describe_refusal(error, f"from the disk while writing {self._path}")) from error

    def forget(self, rows: np.ndarray) -> None:
        """Remove the marks of rows. Raises StorageError."""
        try:
            with self._lock:
                for start, stop in _ranges(rows):
                    _write_at(self._marks, int(rows[start]), np.zeros(stop - start, np.uint8))
        except OSError as error:
            raise StorageError(describe_refusal(error, f"from the disk while writing {self._path}")) from error

    def written(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return which rows of a range are written, ndarray of bool."""
        out = np.empty((self.rows if stop is None else stop) - start, np.uint8)
        with self._lock:
            self._read_into(self._marks, start, out)
        return out.view(bool)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows in ascending order, ndarray of float32, shape (b, dim)."""
        out = np.empty((len(rows), self.dim), self.dtype)
        width = self.dim * self.dtype.itemsize
        with self._lock:
            for start, stop in _ranges(rows):
                self._read_into(self._file, self._offset + int(rows[start]) * width, out[start:stop])
        return out.astype(np.float32, copy=False)

    def _read_into(self, stream: FileIO, position: int, out: np.ndarray) -> None:
        view, got = out.reshape(-1).view(np.uint8).data, 0
        try:
            stream.seek(position)
            while got < len(view):
                if not (count := stream.readinto(view[got:])):
                    raise CorruptFileError(
                        f"Got a truncated file, {stream.name}; expected {self.rows:,} rows. Discard the new vectors, and run the migration again."
                    )
                got += count
        except OSError as error:
            raise FileError(describe_refusal(error, f"while reading {stream.name}")) from error

    def flush(self) -> None:
        """Sync both files to disk, the marks last. Raises StorageError."""
        if not self._file.writable():
            return
        try:
            for stream in (self._file, self._marks):
                os.fsync(stream.fileno())
        except OSError as error:
            raise StorageError(describe_refusal(error, f"from the disk while writing {self._path}")) from error

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._marks.close()


def _ranges(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of positions at which the numbers are consecutive."""
    if not len(rows):
        return []
    breaks = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
    return list(zip([0, *breaks], [*breaks, len(rows)], strict=True))


def _write_at(stream: FileIO, position: int, array: np.ndarray) -> None:
    stream.seek(position)
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[stream.write(view) :]
