"""Maps that consist of a matrix product and an offset."""

from __future__ import annotations

from abc import abstractmethod
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given, cast_like, is_tensor
from congruence._utils.typing import Array, ArrowStream, Layer, RowsLike, TensorT
from congruence._utils.validation import refuse_overflow
from congruence.maps._base import Map


class AffineMap(Map):
    """A map of the form ``z ↦ (z − source mean) @ matrix + target mean``."""

    source_mean_: np.ndarray
    target_mean_: np.ndarray

    @property
    @abstractmethod
    def matrix(self) -> np.ndarray:
        """The matrix that multiplies rows from the right, shape (d_source, d_target), float64."""

    @property
    def offset(self) -> np.ndarray:
        """The vector that is added after the product: ``target_mean_ − source_mean_ @ matrix``, float64."""
        return self.target_mean_ - self.source_mean_ @ self.matrix

    @property
    def _n_features_out(self) -> int:
        return len(self.target_mean_)

    @overload
    def transform(self, X: TensorT) -> TensorT: ...
    @overload
    def transform(self, X: ArrayLike | ArrowStream) -> np.ndarray: ...
    def transform(self, X: RowsLike) -> Array:
        """Map source rows into the target space.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)
            float64 input gives float64 output; float16 and float32 arrays give float32.

        Returns
        -------
        ndarray or tensor, shape (m, d_target)
            A tensor for tensor input, on the same device, with the same dtype and in its autograd graph; half precision is computed in float32.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        A = self._check_source(X)
        # The means are folded into one offset, so a block is read once and never copied to be centered.
        with np.errstate(over="ignore", invalid="ignore"):
            out = A @ cast_like(self.matrix, A)
            out += cast_like(self.offset, A)
        return refuse_overflow(as_given(out, X), X if is_tensor(X) else A, "X")

    def _layers_of(self, side: str) -> list[Layer]:
        return [{"kind": "linear", "weight": self.matrix, "bias": self.offset}]
