"""Reader of ``.zarr``, the folder of a Zarr array or group, streamed by rows (extra ``zarr``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.memory import check_memory
from congruence._utils.optional import require
from congruence.errors import DtypeError
from congruence.io._base import NamedArrays
from congruence.io.ids import id_array
from congruence.io.reading import as_column, missing_file, reading

#: Exceptions that Zarr raises for damaged data sets.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, ArithmeticError, SystemError)

#: Depth to which groups are listed; the name of an array that is no group.
_DEPTH, _ALONE = 8, "array"


@contextmanager
def _open(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the arrays of a data set by their path."""
    zarr = require("zarr", extra="zarr")
    if not Path(path).is_dir():
        raise missing_file(path)
    with reading(path, *_DAMAGE):
        found = zarr.open(str(path), mode="r")
        if isinstance(found, zarr.Array):
            yield {_ALONE: found}
        else:
            yield {name: one for name, one in found.members(_DEPTH) if isinstance(one, zarr.Array)}


def _checked(array: Any, path: str) -> Any:
    """Return an array whose chunks fit into memory and hold no pickled objects, which would run code."""
    facts = array.metadata.to_dict()
    codecs = repr([facts.get(name) for name in ("filters", "compressor", "codecs")]).lower()
    if "pickle" in codecs:
        raise DtypeError(f"Got pickled objects in {path}, which are never loaded.", "Save them as text or numbers.")
    size = math.prod(array.chunks) * np.dtype(array.dtype).itemsize
    check_memory(size, f"a chunk of {path}", "Write the array with smaller chunks.")
    return array


class ZarrSource(NamedArrays):
    """Rows of an array, by default the only matrix, with the ids in ``ids``."""

    key = "array"

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        shapes = self.shapes(path)
        self._choose(path, key.strip("/") if key else None, shapes)
        with _open(path) as arrays:
            self._set_matrix(shapes[self._key], np.dtype(_checked(arrays[self._key], self.path).dtype))
        self._set_ids(ids, shapes)

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays by name."""
        with _open(path) as arrays:
            return {name: tuple(one.shape) for name, one in sorted(arrays.items())}

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional array: numbers, or texts in an object array."""
        with _open(path) as arrays:
            array = _checked(arrays[key], f"{path}:{key}")
            check_memory(16 * math.prod(array.shape), f"the entries of {path}:{key}", "Pass a smaller array.")
            found = np.asarray(array[:])
            texts = found.dtype.kind in "OT"
            return id_array([pa.array(found.tolist(), pa.string())]) if texts else as_column(found, f"{path}:{key}")

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        with _open(self._file) as arrays:
            array = arrays[self._key]
            for start in range(after, self.n, batch):
                yield np.array(array[start : min(start + batch, self.n)], self.dtype, order="C")
