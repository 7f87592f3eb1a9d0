"""Reader and writer of ``.h5`` and ``.hdf5`` files (extra ``hdf5``), streamed in slices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import CorruptFileError
from congruence.io._base import SPACE_KEY, NamedSink, SlicedArrays, space_json
from congruence.io.reading import damaged, errno_from_text, pack, reading

#: Exceptions that h5py raises for damaged files.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)

#: Time limit for reading strings: this many seconds, plus one second per so many strings.
_PATIENCE, _STRINGS_A_SECOND = 30.0, 20_000

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


def in_heap(kind: np.dtype) -> bool:
    """Return whether values of an HDF5 type are variable-length strings, which are stored in a separate heap."""
    text = require("h5py", extra="hdf5").check_string_dtype(kind)
    return kind.kind == "O" or (text is not None and text.length is None)


def read_strings(path: str | Path, wanted: list[str], n: int = 1) -> list[str]:
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
        return super()._checked(array, path)

    def _saved_space(self, array: Any) -> str | bytes:
        saved = getattr(array, "attrs", None)
        if saved is not None and SPACE_KEY in saved and in_heap(saved.get_id(SPACE_KEY).dtype):
            return read_strings(self._file, [self._key, SPACE_KEY])[0]
        return super()._saved_space(array)

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        with cls._open(path) as arrays:
            data = cls._checked(arrays[key], f"{path}:{key}")
            n = len(data) if in_heap(data.dtype) else None
        return super().read_array(path, key) if n is None else np.array(read_strings(path, [key], n), object)
