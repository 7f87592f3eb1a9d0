"""Array plumbing: namespaces, conversion, blocks."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, overload

import numpy as np

from congruence._utils.typing import Array, ArrayNamespace, Device, Tensor, TensorT

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import TypeIs

#: NumPy, to be passed as ``xp``: ``np`` itself mypy would compare with the protocol of namespaces anew, in a second or more each time.
NUMPY: ModuleType = np

#: Bytes one temporary block may take. Large enough for BLAS to run at full speed, small enough that a
#: handful of them stay far below a laptop's memory.
BLOCK_BYTES = 32 * 2**20

#: Rows whose norms differ from 1 by less than this count as unit rows (float16 rounds at about 5e-4).
UNIT_TOLERANCE = 5e-3


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """Return what NumPy reads as a dtype: mypy takes seconds for each call of ``np.dtype`` itself on anything so wide."""
    return np.dtype(dtype)


def to_numpy(array: object) -> np.ndarray:
    """Return ``array`` as a NumPy array, copying only when it lives elsewhere.

    Parameters
    ----------
    array : array_like
        NumPy array, nested sequence, or a torch / cupy tensor (detached and moved to the host).

    Returns
    -------
    ndarray
    """
    if isinstance(array, np.ndarray):
        return array
    if is_tensor(array):  # numpy() refuses tensors that require grad or live on a GPU
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no bfloat16
            array = array.float()
        return np.asarray(array)
    if type(array).__module__.split(".")[0] == "cupy":
        return np.asarray(array.get())  # type: ignore[attr-defined]
    return np.asarray(array)


def namespace(*arrays: object) -> ArrayNamespace:
    """Return the array-API namespace the arrays share; sequences count as NumPy.

    Parameters
    ----------
    *arrays : array_like

    Returns
    -------
    module
        ``array_api_compat.numpy``, ``array_api_compat.torch``, …
    """
    import array_api_compat

    known = [array for array in arrays if array_api_compat.is_array_api_obj(array)]
    if not known:
        import array_api_compat.numpy as xp

        return xp
    return array_api_compat.array_namespace(*known)


def is_tensor(array: object) -> TypeIs[Tensor]:
    """Say whether ``array`` is a torch tensor, without loading torch."""
    return hasattr(array, "detach")


def widen(tensor: Array) -> Array:
    """Return a tensor in a precision to compute in: half precision as float32, integers as float64; with its graph."""
    xp = namespace(tensor)
    if xp.isdtype(tensor.dtype, "real floating"):
        return xp.astype(tensor, xp.float32) if xp.finfo(tensor.dtype).bits < 32 else tensor
    return xp.astype(tensor, xp.float64)


def as_given(out: Array, given: object) -> Array:
    """Return a result in the dtype of the tensor it was computed from; NumPy arrays, and results for integers, as they are."""
    if not (is_tensor(out) and is_tensor(given)):
        return out
    xp = namespace(given)
    return xp.astype(out, given.dtype, copy=False) if xp.isdtype(given.dtype, "real floating") else out


@overload
def beside(array: np.ndarray, rows: np.ndarray) -> np.ndarray: ...
@overload
def beside(array: np.ndarray, rows: Array) -> Array: ...
def beside(array: np.ndarray, rows: Array) -> Array:
    """Return an array of a map in the library, on the device and in the dtype of the rows it is to meet."""
    if isinstance(rows, np.ndarray):
        return array.astype(rows.dtype, copy=False)
    return namespace(rows).asarray(array, dtype=rows.dtype, device=device(rows))


def is_remote(array: object) -> TypeIs[Tensor]:
    """Say whether ``array`` is a torch tensor outside the host's memory, which NumPy cannot read in place."""
    return is_tensor(array) and array.device.type != "cpu"


def device(array: Array) -> Device:
    """Return where ``array`` lives, in the form in which its namespace takes it."""
    import array_api_compat

    return array_api_compat.device(array)


def blocks(n: int, row_bytes: int, budget: int = BLOCK_BYTES, minimum: int = 16) -> Iterator[slice]:
    """Cut ``range(n)`` into slices whose rows take about ``budget`` bytes.

    Parameters
    ----------
    n : int
        Number of rows.
    row_bytes : int
        Bytes that one row costs in the temporary being blocked.
    budget : int, default=BLOCK_BYTES
        Bytes a block may take.
    minimum : int, default=16
        Fewest rows in a block, so that very wide rows still use matrix products.

    Yields
    ------
    slice
    """
    step = max(minimum, budget // max(row_bytes, 1))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def has_unit_rows(X: np.ndarray, sample: int = 4096) -> bool:
    """Whether rows have unit norm, judged on at most ``sample`` evenly spaced rows.

    Parameters
    ----------
    X : ndarray, shape (n, d)
    sample : int, default=4096

    Returns
    -------
    bool
    """
    rows = X[:: max(1, -(-len(X) // sample))].astype(np.float64, copy=False)
    with np.errstate(over="ignore"):  # a huge row is no unit row, whatever its norm
        return bool(np.all(np.abs(np.linalg.norm(rows, axis=1) - 1) < UNIT_TOLERANCE))


@overload
def normalize_rows(X: np.ndarray) -> np.ndarray: ...
@overload
def normalize_rows(X: TensorT) -> TensorT: ...
@overload
def normalize_rows(X: Array) -> Array: ...
def normalize_rows(X: Array) -> Array:
    """Return the rows of ``X`` scaled to unit norm, in a new array of the same dtype; of a tensor with its graph.

    Zero rows stay zero: a direction cannot be invented. What cannot do without one refuses such rows before
    (:func:`congruence.metrics._base.unit`, ``as_matrix``).

    Parameters
    ----------
    X : ndarray or tensor, shape (n, d)

    Returns
    -------
    ndarray or tensor, shape (n, d)
    """
    if is_tensor(X):
        xp = namespace(X)
        wide = X if X.device.type == "mps" else xp.astype(X, xp.float64)  # Apple's GPUs have no float64
        if X.dtype == xp.float64:
            top = xp.max(xp.abs(X.detach()), axis=1, keepdims=True)
            wide = wide / xp.where(
                top > 0, top, xp.ones_like(top)
            )  # squares of huge numbers overflow, of tiny ones vanish
        norms = xp.linalg.vector_norm(wide, axis=1, keepdims=True)
        return xp.astype(wide / xp.where(norms > 0, norms, xp.ones_like(norms)), X.dtype)
    rows = to_numpy(X)
    out = np.empty_like(rows, order="C")
    for part in blocks(len(rows), rows.shape[1] * 8, budget=4 * 2**20):
        block = rows[part].astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            norms = np.sqrt(np.add.reduce(block * block, axis=1, keepdims=True))
        if not 1e-140 < norms.min(initial=1) <= norms.max(initial=1) < 1e140:  # nor where one is NaN
            odd = ~((norms > 1e-140) & (norms < 1e140))[:, 0]  # squares of huge numbers overflow, of tiny ones vanish
            tops = np.abs(block[odd]).max(axis=1, keepdims=True)
            block[odd] /= np.where(tops > 0, tops, 1)
            norms[odd] = np.linalg.norm(block[odd], axis=1, keepdims=True)
            norms = np.where(norms > 0, norms, 1)
        block /= norms
        out[part] = block
    return out
