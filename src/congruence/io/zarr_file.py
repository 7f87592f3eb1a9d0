"""Reader and writer of ``.zarr``, the folder of a Zarr array or group, streamed by rows (extra ``zarr``)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import DtypeError
from congruence.io._base import BATCH, SPACE_KEY, NamedSink, SlicedArrays, space_json
from congruence.io.reading import damaged, reading

#: Exceptions that Zarr raises for damaged data sets.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, ArithmeticError, SystemError)

#: Chunks for each that is stored; one that is missing stands for zeros.
_SPARSE = 1000

#: Files that describe an array or a group, and the name of an array that is in no group.
_MARKERS, _ALONE = (".zarray", "zarr.json"), "array"


class ZarrSink(NamedSink):
    """Writer of a group of version 3; the space is an attribute of ``vectors``."""

    directory = keeps_codes = True

    @staticmethod
    def why_foreign(folder: Path) -> str | None:
        """Return why a folder must not be replaced, or None if it is a group of vectors and their ids."""
        others = {*os.listdir(folder)} - {"zarr.json", "vectors", "ids"}
        return None if not others and (folder / "vectors").is_dir() else "holds something else than vectors and ids"

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._group = require("zarr", extra="zarr").open_group(str(temporary), mode="w")
        shape, chunks = (self.n, self.dim), (min(BATCH, self.n), self.dim)
        self._data = self._group.create_array("vectors", shape=shape, dtype=self.dtype, chunks=chunks)
        if self.space != Space():
            self._data.attrs[SPACE_KEY] = space_json(self.space)

    def _put(self, name: str, values: np.ndarray) -> None:
        kind = str if values.dtype == object else values.dtype
        self._group.create_array(name, shape=values.shape, dtype=kind)[:] = values


class ZarrSource(SlicedArrays):
    """Rows of an array, by default the only matrix, with the ids in ``ids``."""

    key, sink = "array", ZarrSink

    @classmethod
    @contextmanager
    def _open(cls, path: str | Path) -> Iterator[Mapping[str, Any]]:
        with reading(path, *_DAMAGE):
            zarr = require("zarr", extra="zarr")
            found: dict[str, Any] = {}
            # Zarr's own list of members loads them at the same time, and shows the errors of all but the first.
            for folder, inner, files in os.walk(path):
                if {*_MARKERS} & {*files} and isinstance(one := zarr.open(folder, mode="r"), zarr.Array):
                    name = os.path.relpath(folder, path).replace(os.sep, "/")
                    found[_ALONE if name == "." else name] = one
                    inner.clear()  # chunks
            yield found

    @classmethod
    def _checked(cls, array: Any, path: str) -> Any:
        """Return an array whose chunks are there and hold no pickled objects, which would run code."""
        facts = array.metadata.to_dict()
        codecs = repr([facts.get(name) for name in ("filters", "compressor", "codecs")]).lower()
        if "pickle" in codecs:
            raise DtypeError(f"Got pickled objects in {path}, which are never loaded.", "Save them as text or numbers.")
        places = zip(array.shape, array.shards or array.chunks, strict=True)
        count = math.prod(-(-size // step) for size, step in places)
        folder = array.store.root / array.path
        stored = sum(len(files) for _, _, files in os.walk(folder))
        if count > _SPARSE * stored:  # the others are made up, in any number
            raise damaged(path, f"{stored} of {count} chunks are there")
        return super()._checked(array, path)
