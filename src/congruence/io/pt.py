"""``.pt`` and ``.pth``: tensors, and dictionaries and lists of them, by torch's loader of weights (extra ``train``)."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.errors import CorruptFileError
from congruence.io._base import SlicedArrays
from congruence.io.reading import reading

#: Exceptions that torch raises for damaged files.
_DAMAGE = (RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError)

#: Most objects in a file, and their depth.
_MOST, _DEPTH = 100_000, 8


class PtSource(SlicedArrays):
    """Rows of one tensor, by default the only matrix; ``key[3]`` is layer 3 of a tensor (items, layers, dimensions)."""

    @classmethod
    @contextmanager
    def _open(cls, path: str | Path) -> Iterator[Mapping[str, Any]]:
        """Yield the tensors and the lists of texts or numbers by their path; tensors stay on the disk."""
        torch = require("torch", extra="train")
        with reading(path, struct.error, *_DAMAGE):
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
                problem = f"The file {path} {what}; only tensors, lists and dictionaries are loaded, never code."
                fix = "Save the tensors alone: torch.save({'vectors': tensor, 'ids': list_of_texts}, path)."
                raise CorruptFileError(problem, fix) from None
            yield dict(_parts(found, "", 0, torch))


class _Tensor:
    """A tensor whose rows are NumPy's; those of a type that NumPy does not have, such as bfloat16, are float32."""

    def __init__(self, tensor: Any) -> None:
        self._tensor, self.shape, kind = tensor, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        # Another package may have registered a bfloat16 with NumPy, which then is not built in.
        self._known = kind in np.sctypeDict and np.dtype(kind).isbuiltin == 1
        self.dtype = np.dtype(kind if self._known else np.float32)

    def __getitem__(self, rows: slice) -> np.ndarray:
        found = self._tensor[rows]
        return np.array((found if self._known else found.float()).numpy())


def _parts(value: Any, path: str, depth: int, torch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_complex():
            return
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"a tensor of shape {tuple(value.shape)} in {value.untyped_storage().nbytes()} bytes")
        path, value = path or "tensor", value.detach()
        yield path, _Tensor(value)
        if value.ndim == 3:  # items, layers, dimensions
            yield from ((f"{path}[{k}]", _Tensor(value[:, k])) for k in range(min(value.shape[1], _MOST)))
    elif isinstance(value, (list, tuple)) and value and len({type(one) for one in value} | {str, int}) == 2:
        texts = isinstance(value[0], str)
        yield path or "list", np.array([str(one) if texts else one for one in value], object if texts else None)
    elif isinstance(value, (Mapping, list, tuple)) and depth < _DEPTH:
        named = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, one in islice(named, _MOST):
            yield from _parts(one, f"{path}/{name}" if path else str(name), depth + 1, torch)
