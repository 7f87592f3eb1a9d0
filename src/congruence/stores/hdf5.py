"""Readers and writers of ``.h5`` and ``.hdf5`` files (extra ``hdf5``), streamed in slices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import CorruptFileError
from congruence.stores._arrays import as_column, check_matrix_shape, stored_dtype
from congruence.stores._base import BATCH, Source, choose, missing_key, slice_ids
from congruence.stores._columns import Rows
from congruence.stores._sink import Sink
from congruence.stores._space_file import SPACE_KEY, read_space, space_json
from congruence.stores.ids import PACKED, column_ids, id_array, is_packed, pack, unpack
from congruence.stores.reading import errno_from_text, missing_file, reading

if TYPE_CHECKING:
    import h5py


#: Exceptions that h5py raises for damaged files.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)

#: Bytes of fixed-length strings read at a time.
_TEXT_BYTES = 4 * 2**20

#: Time limit for reading strings: this many seconds, plus one second per so many strings.
_PATIENCE, _STRINGS_A_SECOND = 30.0, 20_000


@contextmanager
def _open(path: str | Path) -> Iterator[h5py.File]:
    h5py = require("h5py", extra="hdf5")
    if not Path(path).exists():
        raise missing_file(path)
    with reading(path, *_DAMAGE), h5py.File(path, "r") as file:
        yield file


def _shapes(file: h5py.File) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str | bytes, item: object) -> None:
        if hasattr(item, "shape"):
            # Names that are not UTF-8 are passed as bytes, and cannot be used as keys.
            shapes[name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")] = tuple(item.shape)

    file.visititems(visit)
    return shapes


def hdf5_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the datasets in an HDF5 file by name. Raises FileError, CorruptFileError."""
    with _open(path) as file:
        return _shapes(file)


def _own_dataset(file: h5py.File, key: str, path: str | Path) -> h5py.Dataset:
    """Return a dataset whose values are stored in this file. Raises CorruptFileError for one that refers to other files."""
    data = file[key]
    if data.is_virtual or data.external:
        raise CorruptFileError(
            f"Got the dataset {key!r} of {path}, whose values are stored in other files (virtual or external storage); expected "
            "them in this file. Copy the dataset into one file (with h5repack or h5py)."
        )
    return data


def _strings(path: str | Path, wanted: list[list[str]], n: int = 0) -> list[Any]:
    """Read variable-length strings in a subprocess with a time limit, since libhdf5 may hang on damaged files.

    ``n``: expected number of strings, which determines the time limit. Returns: A list of str for a dataset, a str for
    an attribute.
    """
    script = Path(__file__).with_name("_hdf5_strings.py")
    n = min(n, os.path.getsize(path) // 16)  # a string takes at least 16 bytes; a damaged file may claim any number
    limit = _PATIENCE + n / _STRINGS_A_SECOND
    # -P: the script's folder holds modules named like libraries.
    line = [sys.executable, "-P", str(script), os.path.abspath(path), json.dumps(wanted)]
    try:
        run = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise CorruptFileError(
            f"Got strings in {path} that could not be read within {limit:.0f} seconds; expected an intact file. "
            "Copy or write it again; if it is intact, write it with fixed-length strings."
        ) from None
    if run.returncode:
        raise CorruptFileError(
            f"Got strings in {path} that cannot be read ({run.stderr.decode(errors='replace').strip()[-200:]}); expected an "
            "intact file. Copy or write it again."
        )
    found: list[object] = json.loads(run.stdout)
    return found


def _varies(kind: np.dtype) -> bool:
    """Return whether an HDF5 type is a variable-length string, which is stored in a separate heap."""
    h5py = require("h5py", extra="hdf5")
    info = h5py.check_string_dtype(kind)
    return kind.kind == "O" or (info is not None and info.length is None)


class Hdf5Source(Source):
    """Rows of one dataset in an HDF5 file.

    ``key``: name of the dataset; optional if there is only one matrix; ``ids``: by default the dataset ``ids``, if it
    has one entry per row, or the two datasets that :class:`Hdf5Sink` may write instead; ``False`` for none.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        with _open(path) as file:
            shapes = _shapes(file)
            self._key = choose(key.strip("/") if key else None, shapes, path)
            data = _own_dataset(file, self._key, path)
            self._file, self.path, self.files = str(path), f"{path}:{self._key}", (Path(path),)
            self.dtype = stored_dtype(data.dtype, self.path)
            self.n, self.dim = check_matrix_shape(tuple(data.shape), self.path)
            wanted = [[self._key, SPACE_KEY]] if SPACE_KEY in data.attrs else []
            own = ids is None and shapes.get("ids") == (self.n,)
            if own and _varies(_own_dataset(file, "ids", path).dtype):
                wanted.append(["ids"])  # read together with the space: each subprocess takes a quarter of a second
        found = _strings(path, wanted, self.n) if wanted else []
        self.space = read_space(found[0] if wanted and len(wanted[0]) == 2 else None, path)
        if own or (ids is None and is_packed(shapes, "ids", self.n)):
            names = np.array(found[-1], object) if ["ids"] in wanted else read_hdf5_column(path, "ids")
            ids = column_ids(names, f"{path}:ids")
        self._ids = ids if isinstance(ids, pa.Array) else None
        self.has_ids = self._ids is not None

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        with _open(self._file) as file:
            data = file[self._key]
            for start in range(after, self.n, batch):
                block = np.ascontiguousarray(data[start : start + batch], dtype=self.dtype)
                yield slice_ids(self._ids, start, start + len(block)), block


def read_hdf5_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read a one-dimensional dataset; strings are returned as an object array."""
    with _open(path) as file:
        found = {name: shape for name, shape in _shapes(file).items() if len(shape) == 1}
        key = key.strip("/") if key else None
        if key is not None and key not in found and is_packed(found, key):
            data, offsets = (_own_dataset(file, key + part, path)[:] for part in PACKED)
            return unpack(data, offsets, f"{path}:{key}")
        if key not in found:
            raise missing_key(key, path, found)
        data = _own_dataset(file, key, path)
        if not _varies(data.dtype):
            step = max(1, _TEXT_BYTES // data.dtype.itemsize)  # all strings are as wide as the longest
            parts = [as_column(data[start : start + step], f"{path}:{key}") for start in range(0, len(data), step)]
            return np.concatenate(parts) if parts else np.empty(0, object)
        n = len(data)
    return np.array(_strings(path, [[key]], n)[0], object)


class Hdf5Sink(Sink):
    """Writer of the datasets ``vectors`` and, if there are ids, ``ids``; the space is an attribute of ``vectors``.

    HDF5 strings end at a NUL. If any id contains one, the ids are written as concatenated UTF-8 in ``ids_utf8``, with their start positions
    in ``ids_offsets``.
    """

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        h5py = require("h5py", extra="hdf5")
        stack.enter_context(
            errno_from_text(r"errno = (\d+)", OSError, RuntimeError)
        )  # also covers closing the file, which writes too
        self._file = stack.enter_context(h5py.File(temporary, "w"))
        self._data = self._file.create_dataset("vectors", (self.n, self.dim), self.dtype)
        if self.space != Space():
            self._data.attrs[SPACE_KEY] = space_json(self.space)
        self._names: list[pa.Array] = []

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None:
        self._data[self.rows : self.rows + len(vectors)] = vectors
        if ids is not None:
            self._names.append(ids)

    def _finish(self) -> None:
        if self._names:
            h5py = require("h5py", extra="hdf5")
            names = id_array(self._names)
            if names.dtype != object:
                self._file.create_dataset("ids", data=names)
            elif any("\0" in name for name in names.tolist()):
                for part, values in pack(names).items():
                    self._file.create_dataset(f"ids{part}", data=values)
            else:
                self._file.create_dataset("ids", data=names, dtype=h5py.string_dtype())
