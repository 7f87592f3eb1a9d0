"""Validation of the inputs of transport: affinities, or vectors whose inner products they are, and marginals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, DType, RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, check_positive
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence.transport._kernel import Affinity, Products
from congruence.transport._strip_pool import single_threaded

#: The largest relative error of a plan's entries that rounding of A/ε may cause.
ROUNDING = 1e-3
#: Smallest allowed marginal, by bytes per number: entries below it cannot be distinguished from those at ``_kernel.FLOOR``.
LEAST = {4: 1e-10, 8: 1e-100}


def same_library(arrays: Mapping[str, RowsLike]) -> list[Array]:
    """Validate matrices and return them in one array library, on one device; a list is converted to the library of the others.

    Tensors are returned without their graph, integers and booleans as float64.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity, or are of different libraries or on different devices.
    """
    with single_threaded(*arrays.values()):
        checked = {name: as_native(array, name) for name, array in arrays.items()}
    tensors = {name: array.detach() for name, array in checked.items() if is_tensor(array)}
    for name, array in arrays.items():
        if tensors and hasattr(array, "dtype") and name not in tensors:
            raise DtypeError(
                f"Got {next(iter(tensors))} as a tensor and {name} as {type(array)}; expected arrays of one library. Convert one of them, with torch.as_tensor for example."
            )
    if len({str(array.device) for array in tensors.values()}) > 1:
        where = ", ".join(f"{name} on {array.device}" for name, array in tensors.items())
        raise DtypeError(f"Got {where}; expected one device. Move them to one with .to(…).")
    if tensors:
        first = next(iter(tensors.values()))
        xp = namespace(first)
        moved = [tensors[n] if n in tensors else xp.asarray(a, device=first.device) for n, a in checked.items()]
        return [a if xp.isdtype(a.dtype, "real floating") else xp.astype(a, xp.float64) for a in moved]
    return list(checked.values())


def computing_dtype(*arrays: Array) -> DType:
    """Return float32 if all arrays are float32, float16 or bfloat16, else float64."""
    xp = namespace(*arrays)
    narrow = (xp.float32, xp.float16, getattr(xp, "bfloat16", xp.float16))
    return xp.float32 if all(array.dtype in narrow for array in arrays) else xp.float64


def products(X: Array, Y: Array, names: tuple[str, str], dtype: DType) -> Products:
    """Return the affinities ⟨x_i, y_j⟩.

    Raises
    ------
    ShapeError
        If the widths differ.
    """
    if X.shape[1] != Y.shape[1]:
        raise ShapeError(
            f"Got widths {X.shape[1]} of {names[0]} and {Y.shape[1]} of {names[1]}; expected vectors of one space. "
            "Map one side into the other space first."
        )
    return Products(X, Y, dtype)


def check_epsilon(affinity: Affinity, epsilon: float, name: str) -> float:
    """Return ``epsilon`` if it is large enough for the precision of the affinities.

    Raises
    ------
    ParameterError
        If ``epsilon`` is not positive, or so small that rounding of A/ε would change the plan by more than :data:`ROUNDING`.
    """
    check_positive(epsilon, name)
    xp = affinity.xp
    with single_threaded(xp.zeros(0)):
        bound = affinity.bound()
    least = bound * xp.finfo(affinity.dtype).eps / ROUNDING
    if epsilon < least:
        kind = "float64" if affinity.dtype == xp.float64 else "float32"
        remedy = "Scale the affinities down" if kind == "float64" else "Pass float64"
        raise ParameterError(
            f"Got {name}={epsilon} for affinities up to {bound:.3g} in {kind}; expected at least {least:.1g}, below which "
            f"rounding changes the plan by more than {ROUNDING:g}. {remedy} or pass a larger {name}=…."
        )
    return float(epsilon)


def weights(marginal: ArrayLike | Tensor | None, n: int, name: str, affinity: Affinity) -> Array:
    """Return a marginal that adds up to 1; uniform if None.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If the marginal has the wrong shape, is not real or contains NaN or infinity.
    ParameterError
        If a weight is below :data:`LEAST`, or the weights do not add up to 1.
    """
    xp = affinity.xp
    if marginal is None:
        return xp.full((n,), 1 / n, dtype=affinity.dtype, device=affinity.device)
    array = to_numpy(marginal)
    if array.shape != (n,):
        raise ShapeError(
            f"Got {name} marginal of shape {array.shape}; expected ({n},), one weight each. Pass an array of that shape."
        )
    w = as_matrix(array[:, None], f"{name} marginal")[:, 0].astype(np.float64)
    least = LEAST[8 if affinity.dtype == xp.float64 else 4]
    if w.min() < least:
        raise ParameterError(
            f"Got a {name} marginal of {w.min():g} at {int(w.argmin())}; expected all at least {least:g}. "
            "Leave out items without weight."
        )
    if abs(w.sum() - 1) > 1e-6:
        raise ParameterError(f"Got {name} marginals that add up to {w.sum():g}; expected 1. Divide by their sum.")
    return xp.asarray(w / w.sum(), dtype=affinity.dtype, device=affinity.device)
