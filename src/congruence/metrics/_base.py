"""The properties that every metric declares, and the validation that metrics share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from congruence._inputs import check_order
from congruence._utils.arrays import device, is_tensor, namespace, to_numpy
from congruence._utils.ids import fits_fixed_width, id_texts
from congruence._utils.typing import Array, ArrayNamespace, Labels, RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, check_same_rows, check_scale
from congruence.errors import DtypeError, ShapeError
from congruence.metrics.rows import check_same_width

#: Transformations that leave a value unchanged. Up to ``"joint permutation"``, they may be applied to either side independently.
INVARIANCES = {
    "rotation": "rotating or reflecting either side",
    "isotropic scaling": "multiplying either side by a positive number",
    "translation": "adding a vector to all rows of either side",
    "invertible linear": "any invertible linear map of either side",
    "joint permutation": "reordering the rows of both sides alike",
    "joint rotation": "rotating both sides alike",
    "row scaling": "multiplying each row by a positive number of its own",
    "symmetry": "exchanging the sides",
}


@dataclass(frozen=True)
class Metric:
    """A measure of agreement and its declared properties, which tests verify.

    Attributes
    ----------
    name : str
    fn : callable
        ``fn(X, Y)`` on paired rows.
    range : tuple of float
        Smallest and largest possible value.
    larger_is_closer : bool
    invariances : frozenset of str
        Keys of :data:`INVARIANCES`.
    reference : str
        Source of the definition.
    cost : str
        Number of operations, up to a constant, for n rows of width d.
    one_space : bool
        Whether both sides must be in the same space, and so have the same width.
    """

    name: str
    fn: Callable[..., float | Array]
    range: tuple[float, float]
    larger_is_closer: bool
    invariances: frozenset[str]
    reference: str
    cost: str = "n·d"
    one_space: bool = False


def paired(X: RowsLike, Y: RowsLike) -> tuple[np.ndarray, np.ndarray]:
    """Validate two matrices of equal shape whose rows are paired by position.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    IdError
        If both are embeddings with ids, which differ or are in a different order.
    """
    check_order(X, Y)
    A = as_matrix(X, "X", allow_zero_rows=True)
    B = as_matrix(Y, "Y", allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    check_same_width(A, B)
    return A, B


def native_pair(
    X: RowsLike, Y: RowsLike, *, min_rows: int = 2, names: tuple[str, str] = ("X", "Y")
) -> tuple[ArrayNamespace, Array, Array]:
    """Validate two matrices with paired rows and any widths, keeping their array library.

    A torch tensor stays a tensor, on its device and in its graph; all other input becomes NumPy.

    Returns
    -------
    module
        The array API namespace of both.
    array, array

    Raises
    ------
    ShapeError, NotFiniteError, TooFewAnchorsError
        If arrays have the wrong shape, contain NaN or infinity, or have fewer than ``min_rows`` rows.
    DtypeError
        If arrays are not real numbers, or are of different libraries or on different devices.
    IdError
        If both are embeddings with ids, which differ or are in a different order.
    """
    check_order(X, Y)
    A: Array
    B: Array
    A, B = (as_native(side, name, min_rows=min_rows) for side, name in zip((X, Y), names, strict=True))
    check_same_rows(len(A), len(B), *names)
    try:
        xp = namespace(X, Y)
    except TypeError as error:
        raise DtypeError(
            f"Got {names[0]} of {type(X)} and {names[1]} of {type(Y)}; expected arrays of one library. Convert one of them, with numpy.asarray for example."
        ) from error
    tensors = [side for side in (A, B) if is_tensor(side)]
    if len({side.device for side in tensors}) > 1:
        raise DtypeError(
            f"Got {names[0]} on {tensors[0].device} and {names[1]} on {tensors[1].device}; expected one device. Move one of them with .to(…)."
        )
    if tensors:  # the other side may be a list
        A, B = (side if is_tensor(side) else xp.asarray(side, device=device(tensors[0])) for side in (A, B))
        return xp, A, B
    return xp, xp.asarray(A), xp.asarray(B)


def float_pair(X: RowsLike, Y: RowsLike, *, min_rows: int = 2) -> tuple[ArrayNamespace, Array, Array]:
    """Like :func:`native_pair`, with both matrices in float64.

    Raises
    ------
    ShapeError, DtypeError, TooFewAnchorsError, IdError
        As for :func:`native_pair`.
    NotFiniteError
        If arrays contain NaN or infinity, or numbers whose sums would overflow or underflow.
    """
    xp, A, B = native_pair(X, Y, min_rows=min_rows)
    check_scale(A, "X", squares=False)
    check_scale(B, "Y", squares=False)
    return xp, xp.astype(A, xp.float64), xp.astype(B, xp.float64)


def as_scalar(value: Array) -> float | Tensor:
    """Return a Python float for NumPy and a 0-d tensor, with its graph, for torch."""
    return value if is_tensor(value) else float(value)


def as_labels(labels: Labels, n: int, name: str) -> np.ndarray:
    """Return labels as a flat array of n entries.

    Raises
    ------
    ShapeError
        If there is not one label for each of n rows.
    """
    array = to_numpy(labels)
    if array.shape != (n,):
        raise ShapeError(
            f"Got {name} of shape {array.shape}; expected one label for each of {n} rows. Pass an array of shape ({n},)."
        )
    if array.dtype != object:
        return array
    texts = id_texts(array.tolist())  # fixed widths compare faster
    return texts.astype(str) if fits_fixed_width(texts) else texts
