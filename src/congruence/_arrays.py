"""Array plumbing: namespaces, conversion, blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

#: Bytes one temporary block may take. Large enough for BLAS to run at full speed, small enough that a
#: handful of them stay far below a laptop's memory.
BLOCK_BYTES = 32 * 2**20


def to_numpy(array: Any) -> np.ndarray:
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
        return np.asarray(array.get())
    return np.asarray(array)


def namespace(*arrays: Any) -> Any:
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


def is_tensor(array: Any) -> bool:
    """Say whether ``array`` is a torch tensor, without loading torch."""
    return hasattr(array, "detach")


def is_remote(array: Any) -> bool:
    """Say whether ``array`` is a torch tensor outside the host's memory, which NumPy cannot read in place."""
    return is_tensor(array) and array.device.type != "cpu"


def device(array: Any) -> Any:
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
