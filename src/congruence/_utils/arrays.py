"""Helpers for arrays: namespaces, conversion, blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.typing import Array, ArrayNamespace, Device, Tensor
from congruence.errors import ZeroRowError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import TypeIs

NUMPY: ModuleType = np  # NumPy, to pass as ``xp``

#: Maximum bytes of a temporary block: large enough for BLAS to run at full speed, small enough that a
#: few of them use only a fraction of a laptop's memory.
BLOCK_BYTES = 32 * 2**20

#: Rows whose norms differ from 1 by less than this count as unit rows (the rounding error of float16 is about 5e-4).
UNIT_TOLERANCE = 5e-3


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """Return ``np.dtype(dtype)``; a direct call with such a broad type takes mypy seconds to check."""
    return np.dtype(dtype)


def to_numpy(array: object) -> np.ndarray:
    """Return an array, a nested sequence or a torch or cupy tensor as a NumPy array, without a copy if possible."""
    if isinstance(array, np.ndarray):
        return array
    if is_tensor(array):  # numpy() refuses tensors that require grad or live on a GPU
        tensor = array.detach().cpu()
        return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)  # NumPy has no bfloat16
    if type(array).__module__.split(".")[0] == "cupy":
        return np.asarray(array.get())  # type: ignore[attr-defined]
    return np.asarray(array)


def namespace(*arrays: object) -> ArrayNamespace:
    """Return the array API namespace of the arrays; sequences count as NumPy."""
    if not any(hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray) for array in arrays):
        return NUMPY  # array_api_compat's namespace for it imports numpy.testing and numpy.f2py
    import array_api_compat

    known = [array for array in arrays if array_api_compat.is_array_api_obj(array)]
    return array_api_compat.array_namespace(*known or [np.empty(0)])


def is_tensor(array: object) -> TypeIs[Tensor]:
    """Return whether ``array`` is a torch tensor, without importing torch."""
    return hasattr(array, "detach")


def widen(tensor: Array) -> Array:
    """Return a tensor in a precision for computation, with its graph: half as float32, integers as float64."""
    xp = namespace(tensor)
    if xp.isdtype(tensor.dtype, "real floating"):
        return xp.astype(tensor, xp.float32) if xp.finfo(tensor.dtype).bits < 32 else tensor
    return xp.astype(tensor, xp.float64)


def as_given(out: Array, given: object) -> Array:
    """Return a result in the dtype of the floating-point tensor it was computed from; leave other results unchanged."""
    if not (is_tensor(out) and is_tensor(given)):
        return out
    xp = namespace(given)
    return xp.astype(out, given.dtype, copy=False) if xp.isdtype(given.dtype, "real floating") else out


def cast_like(array: np.ndarray, rows: Array) -> Array:
    """Return an array of a map converted to the library, device and dtype of ``rows``."""
    if isinstance(rows, np.ndarray):
        return array.astype(rows.dtype, copy=False)
    return namespace(rows).asarray(array, dtype=rows.dtype, device=device(rows))


def is_remote(array: object) -> TypeIs[Tensor]:
    """Return whether ``array`` is a torch tensor outside host memory, which NumPy cannot read in place."""
    return is_tensor(array) and array.device.type != "cpu"


def device(array: Array) -> Device:
    """Return the device of ``array``, in the form that its namespace accepts."""
    import array_api_compat

    return array_api_compat.device(array)


def blocks(n: int, row_bytes: int, budget: int = BLOCK_BYTES, minimum: int = 16) -> Iterator[slice]:
    """Yield slices that divide ``range(n)`` into blocks of about ``budget`` bytes, but at least ``minimum`` rows."""
    step = max(minimum, budget // max(row_bytes, 1))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


_TINY, _HUGE = 1e-30, 1e30  # range of squared norms in which float32 represents both a row and its square


def is_plain(rows: object) -> TypeIs[np.ndarray]:
    """Return whether rows are an array of float32 or float64, which needs no conversion."""
    return type(rows) is np.ndarray and rows.dtype.char in "fd" and rows.dtype.isnative


def squared_norms(rows: np.ndarray) -> tuple[Any, float, float, bool]:
    """Return the squared norms of rows, (m,), or that of one row, the smallest and the largest, and whether all are
    ordinary. NaN, infinity, zero rows and such as need other units for their norms are not: one pass finds them all.
    """
    if len(rows) == 1:  # without the microseconds that reductions take
        square = low = high = float(rows[0].dot(rows[0]))
    else:
        square = np.einsum("ij,ij->i", rows, rows)
        low, high = float(square.min()), float(square.max())
    return square, low, high, _TINY < low <= high < _HUGE


def has_unit_rows(X: np.ndarray, sample: int = 4096) -> bool:
    """Return whether rows (n, d), judged from evenly spaced ones, have unit norm; zero rows do not count."""
    rows = X[:: max(1, -(-len(X) // sample))]
    if rows.dtype.char not in "fd":  # half and integers, whose squares need more digits
        rows = rows.astype(np.float32 if rows.dtype == np.float16 else np.float64)
    with np.errstate(over="ignore", under="ignore"):  # a row whose norm overflows is not a unit row
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    norms[norms == 0] = np.abs(rows[norms == 0]).max(axis=1, initial=0)  # nor is one whose squares vanish
    return bool(np.all(np.abs(norms[norms != 0] - 1) < UNIT_TOLERANCE) and (norms.any() or not len(norms)))


def normalize_rows(X: Array, name: str | None = None, *, dtype: DTypeLike | None = None) -> Array:
    """Return rows, shape (n, d), scaled to unit norm, in a new array of the same dtype; differentiable for a tensor.

    Zero rows have no direction and stay zero; with a ``name``, they are an error. ``dtype``: of the result, for NumPy.
    """
    if name is not None:
        nonzero = namespace(X).any(X != 0, axis=1)
        if not nonzero.all():
            row = int(np.flatnonzero(~to_numpy(nonzero))[0])
            raise ZeroRowError(f"Row {row} of {name} is all zeros, so it has no direction.", "Drop such rows.")
    if is_tensor(X):
        xp = namespace(X)
        wide = X if X.device.type == "mps" else xp.astype(X, xp.float64)  # Apple's GPUs have no float64
        if X.dtype == xp.float64:
            # Scale first: squares of huge numbers overflow, and squares of tiny ones underflow.
            top = xp.max(xp.abs(X.detach()), axis=1, keepdims=True)
            wide = wide / xp.where(top > 0, top, xp.ones_like(top))
        norms = xp.linalg.vector_norm(wide, axis=1, keepdims=True)
        return xp.astype(wide / xp.where(norms > 0, norms, xp.ones_like(norms)), X.dtype)
    rows = to_numpy(X)
    out = np.empty_like(rows, dtype, order="C")
    for part in blocks(len(rows), rows.shape[1] * 8, budget=4 * 2**20):
        block = rows[part].astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            norms = np.sqrt(np.add.reduce(block * block, axis=1, keepdims=True))
        if not 1e-140 < norms.min(initial=1) <= norms.max(initial=1) < 1e140:  # also if a norm is NaN
            extreme = ~((norms > 1e-140) & (norms < 1e140))[:, 0]  # the squares overflowed or underflowed
            tops = np.abs(block[extreme]).max(axis=1, keepdims=True)
            block[extreme] /= np.where(tops > 0, tops, 1)
            norms[extreme] = np.linalg.norm(block[extreme], axis=1, keepdims=True)
            norms = np.where(norms > 0, norms, 1)
        block /= norms
        out[part] = block
    return out
