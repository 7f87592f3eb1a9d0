"""Types of the library's arguments and results, for annotations only.

What NumPy arrays and torch tensors share has no common base class, and torch is optional. The names below say which is
meant; mypy does not look inside of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

Array: TypeAlias = Any  # A NumPy array or a tensor
#: NumPy or torch, with the functions of the array API standard (``congruence._utils.arrays.namespace``): ``xp``.
ArrayNamespace: TypeAlias = Any
DType: TypeAlias = Any  # A dtype, and a device, of any library
Device: TypeAlias = Any


class Column(Protocol):
    """A column that NumPy can read, such as one of pandas, polars or Arrow."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __array__(self) -> np.ndarray: ...


class Tensor(Column, Protocol):
    """A torch tensor, on any device, with or without an autograd graph."""

    def detach(self) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def __float__(self) -> float: ...
    def __mul__(self, other: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Any)  # the same type of array in and out
TensorT = TypeVar("TensorT", bound=Tensor)


class ArrowStream(Protocol):
    """A table or column of any library that exports its memory as Arrow, such as polars, pandas or PyArrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


#: Input that validation converts to an array: an array, a tensor, nested lists, lists of arrays or tensors, embeddings,
#: or a column or table of vectors.
RowsLike: TypeAlias = "ArrayLike | Tensor | ArrowStream"
#: The same, if the number of rows is needed before they are read.
SizedRows: TypeAlias = "Sequence[Any] | np.ndarray | Column"
Labels: TypeAlias = "Sequence[Any] | np.ndarray | Column"  # A label of any kind for each row
Ids: TypeAlias = "Sequence[object] | np.ndarray | Column"  # an id for each row: text or integers
#: A layer of a head as plain data: its ``kind``, arrays by name, a number ``eps``, and nested ``layers`` as a list of
#: layers.
Layer: TypeAlias = dict[str, Any]
