"""``.pt`` and ``.pth``: tensors, and dictionaries and lists of them, by torch's loader of weights (extra ``train``)."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.errors import CorruptFileError, DtypeError, ShapeError
from congruence.io._base import NamedArrays
from congruence.io.reading import as_column, missing_file, reading

#: Exceptions that torch raises for damaged files.
_DAMAGE = (
    struct.error,
    RuntimeError,
    OSError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
)

#: Most objects in a file, and their depth.
_MOST, _DEPTH = 100_000, 8


def _load(path: str | Path) -> dict[str, Any]:
    """Return the tensors and the lists of texts or numbers in a file by their path; tensors stay on the disk."""
    torch = require("torch", extra="train")
    if not Path(path).is_file():
        raise missing_file(path)
    with reading(path, *_DAMAGE):
        try:
            try:
                found = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):  # the format before torch 1.6 cannot be mapped
                    raise
                found = torch.load(str(path), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            kind = re.search(r"GLOBAL (\S+)", str(error))
            what = f"holds {kind[1]}" if kind else "is damaged, or no file of tensors"
            raise CorruptFileError(
                f"The file {path} {what}; only tensors, lists and dictionaries are loaded, never code.",
                "Save the tensors alone: torch.save({'vectors': tensor, 'ids': list_of_texts}, path).",
            ) from None
        return dict(_parts(found, "", 0, torch))


def _parts(value: Any, path: str, depth: int, torch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"a tensor of shape {tuple(value.shape)} in {value.untyped_storage().nbytes()} bytes")
        path, value = path or "tensor", value.detach()
        yield path, value
        if value.ndim == 3:  # items, layers, dimensions
            yield from ((f"{path}[{k}]", value[:, k]) for k in range(min(value.shape[1], _MOST)))
    elif isinstance(value, (list, tuple)) and value and len({type(one) for one in value} | {str, int}) == 2:
        texts = isinstance(value[0], str)
        yield path or "list", np.array([str(one) if texts else one for one in value], object if texts else None)
    elif isinstance(value, (Mapping, list, tuple)) and depth < _DEPTH:
        named = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, one in islice(named, _MOST):
            yield from _parts(one, f"{path}/{name}" if path else str(name), depth + 1, torch)


class PtSource(NamedArrays):
    """Rows of one tensor, by default the only matrix; ``key[3]`` is layer 3 of a tensor (items, layers, dimensions)."""

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        found = _load(path)
        shapes = {name: tuple(one.shape) for name, one in found.items()}
        self._tensor = found[self._choose(path, key, shapes)]
        if isinstance(self._tensor, np.ndarray):
            raise ShapeError(f"Got a list in {self.path}; expected a matrix.", "Pass the key of a tensor.")
        kind = str(self._tensor.dtype).removeprefix("torch.")
        self._bfloat = kind == "bfloat16"
        try:
            stored = np.dtype("float32" if self._bfloat else kind)
        except TypeError:
            raise DtypeError(f"Got dtype {kind} in {self.path}.", "Save the tensor as float32.") from None
        self._set_matrix(shapes[self._key], stored)
        self._set_ids(ids, shapes)

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors and lists in a file by name."""
        return {name: tuple(one.shape) for name, one in _load(path).items()}

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional tensor of numbers, or a list."""
        found = _load(path)[key]
        if isinstance(found, np.ndarray):
            return found
        with reading(path, *_DAMAGE):
            return as_column(found.numpy().copy(), f"{path}:{key}")

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        for start in range(after, self.n, batch):
            rows = self._tensor[start : start + batch]
            yield np.array((rows.float() if self._bfloat else rows).numpy(), self.dtype, order="C")
