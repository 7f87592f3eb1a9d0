"""Reader and writer of ``.h5`` and ``.hdf5`` files (extra ``hdf5``), streamed in slices."""

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
from congruence.io._base import SPACE_KEY, Sink, Source, read_space, space_json
from congruence.io.columns import TableRows
from congruence.io.ids import column_ids, id_array
from congruence.io.reading import (
    TEXT_BYTES,
    as_column,
    check_matrix_shape,
    choose,
    errno_from_text,
    is_packed,
    missing_file,
    pack,
    read_maybe_packed,
    reading,
    stored_dtype,
)

if TYPE_CHECKING:
    import h5py

#: Exceptions that h5py raises for damaged files.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)

#: Time limit for reading strings: this many seconds, plus one second per so many strings.
_PATIENCE, _STRINGS_A_SECOND = 30.0, 20_000

#: Prints a JSON list: an attribute for ``[dataset, attribute]``, a dataset's strings for ``[dataset]``. On a damaged
#: heap libhdf5 may loop forever in a call that cannot be interrupted from its own process. It imports nothing of
#: congruence.
_READ_STRINGS = """
import json, sys
try:
    import h5py
    found = []
    with h5py.File(sys.argv[1], "r") as file:
        for name, *attribute in json.loads(sys.argv[2]):
            value = file[name].attrs[attribute[0]] if attribute else file[name].asstr()[:].tolist()
            found.append(value.decode() if isinstance(value, bytes) else str(value) if attribute else value)
    json.dump(found, sys.stdout)
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


def _shapes(file: h5py.File) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str | bytes, item: object) -> None:
        if hasattr(item, "shape"):
            # Names that are not UTF-8 are passed as bytes, and cannot be used as keys.
            shapes[name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")] = tuple(item.shape)

    file.visititems(visit)
    return shapes


def hdf5_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the datasets in an HDF5 file by name."""
    with _open(path) as file:
        return _shapes(file)


def _own_dataset(file: h5py.File, key: str, path: str | Path) -> h5py.Dataset:
    """Return a dataset whose values are stored in this file; an error for one that refers to other files."""
    data = file[key]
    if data.is_virtual or data.external:
        raise CorruptFileError(
            f"The values of the dataset {key!r} of {path} are stored in other files (virtual or external storage).",
            "Copy the dataset into one file (with h5repack or h5py).",
        )
    return data


def _strings(path: str | Path, wanted: list[list[str]], n: int = 0) -> list[Any]:
    """Read about ``n`` variable-length strings in a subprocess with a time limit.

    ``wanted`` has ``[dataset]`` for a list of str, and ``[dataset, attribute]`` for a str.
    """
    n = min(n, os.path.getsize(path) // 16)  # a string takes at least 16 bytes; a damaged file may claim any number
    limit = _PATIENCE + n / _STRINGS_A_SECOND
    line = [sys.executable, "-P", "-c", _READ_STRINGS, os.path.abspath(path), json.dumps(wanted)]
    try:
        run = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise CorruptFileError(
            f"The strings in {path} could not be read within {limit:.0f} seconds.",
            "Copy or write it again; if it is intact, write it with fixed-length strings.",
        ) from None
    if run.returncode:
        reason = run.stderr.decode(errors="replace").strip()[-200:]
        raise CorruptFileError(f"The strings in {path} cannot be read ({reason}).", "Copy or write it again.")
    found: list[object] = json.loads(run.stdout)
    return found


def _varies(kind: np.dtype) -> bool:
    """Return whether an HDF5 type is a variable-length string, which is stored in a separate heap."""
    info = require("h5py", extra="hdf5").check_string_dtype(kind)
    return kind.kind == "O" or (info is not None and info.length is None)


def read_hdf5_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read a one-dimensional dataset; strings are returned as an object array."""
    varies: list[int] = []

    def read(name: str) -> np.ndarray:
        data = _own_dataset(file, name, path)
        if _varies(data.dtype):  # read when this process has closed the file
            varies.append(len(data))
            return np.empty(0, object)
        step = max(1, TEXT_BYTES // data.dtype.itemsize)
        parts = [as_column(data[start : start + step], f"{path}:{name}") for start in range(0, len(data), step)]
        return np.concatenate(parts) if parts else np.empty(0, object)

    key = key.strip("/") if key else None
    with _open(path) as file:
        column = read_maybe_packed(_shapes(file), key, path, read)
    return np.array(_strings(path, [[str(key)]], varies[0])[0], object) if varies else column


class Hdf5Sink(Sink):
    """Writer of the datasets ``vectors`` and, if there are ids, ``ids``; the space is an attribute of ``vectors``.

    HDF5 strings end at a NUL. If any id contains one, the ids are written as concatenated UTF-8 in ``ids_utf8``, with
    their start positions in ``ids_offsets``.
    """

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        h5py = require("h5py", extra="hdf5")
        stack.enter_context(errno_from_text(r"errno = (\d+)", OSError, RuntimeError))  # closing the file writes too
        self._file = stack.enter_context(h5py.File(temporary, "w"))
        self._data = self._file.create_dataset("vectors", (self.n, self.dim), self.dtype)
        if self.space != Space():
            self._data.attrs[SPACE_KEY] = space_json(self.space)
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


class Hdf5Source(Source):
    """Rows of one dataset in an HDF5 file; by default the only matrix, with the ids in ``ids``."""

    key, sink = "dataset", Hdf5Sink
    read_column, shapes = staticmethod(read_hdf5_column), staticmethod(hdf5_shapes)

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
        self._ids = None if isinstance(ids, bool) else ids

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        with _open(self._file) as file:
            data = file[self._key]
            for start in range(after, self.n, batch):
                yield np.ascontiguousarray(data[start : start + batch], dtype=self.dtype)
