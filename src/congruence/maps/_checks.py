"""Checks of rows, weights and means that maps share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import is_tensor, widen
from congruence._utils.columns import to_rows
from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import as_matrix, as_native, check_choice, check_positive
from congruence.embeddings import MODALITIES, Embeddings
from congruence.errors import CongruenceError, InputError, ParameterError, ShapeError
from congruence.maps._estimator import NotFittedError, _check_sample_weight

#: One modality for all rows, or one for each row.
Modalities: TypeAlias = str | Sequence[str] | np.ndarray | None


@dataclass(frozen=True)
class GivenMeans:
    """Means of a modality that were passed to :meth:`OrthogonalMap.recenter`.

    Attributes
    ----------
    source, target : ndarray
    n_source, n_target : float or None
        Total weight of the averaged rows; None if a mean vector was passed, 0 if the target's mean was derived from the gap between modalities.
    """

    source: np.ndarray
    target: np.ndarray
    n_source: float | None
    n_target: float | None


class NotFittedMapError(CongruenceError, NotFittedError):
    """A map is used before it is fitted. Also a subclass of scikit-learn's ``NotFittedError``."""


def check_native(X: RowsLike, name: str) -> Array:
    """Return rows to map as an array, float32 or float64; a tensor stays a tensor, on its device and in its graph.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    """
    if is_tensor(X):
        return widen(as_native(X, name))
    return as_matrix(X, name, allow_zero_rows=True, numeric_objects=True)


def with_names(X: object, A: Array) -> object:
    """Return the data frame whose column names scikit-learn stores and compares, or the matrix if columns are not features."""
    return X if hasattr(X, "columns") and getattr(X, "shape", ())[1:] == A.shape[1:] else A


def require_target(Y: RowsLike | None, owner: str) -> RowsLike:
    """Return the target rows. Raises InputError, in the words that scikit-learn's checks expect, if they are missing."""
    if Y is None:
        raise InputError(
            f"{owner} requires y to be passed, but the target y is None; expected the target rows. Call fit(X, Y)."
        )
    return Y


def as_target(Y: RowsLike, *, min_rows: int = 1) -> np.ndarray:
    """Return target rows as a matrix; 1-D integers, which scikit-learn requires a transformer to accept, become one column.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
        If the array has the wrong shape, is not real numbers, contains NaN or infinity, or has a row of zeros or too few rows.
    """
    rows = to_rows(Y, "Y")
    if rows.ndim == 1 and rows.dtype.kind in "iub":
        rows = rows[:, None]
    return as_matrix(rows, "Y", min_rows=min_rows, numeric_objects=True)


def check_mean(mean: ArrayLike | Embeddings, width: int, name: str) -> np.ndarray:
    """Return a mean vector in float64, taken from a vector, a matrix of rows or embeddings.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If the mean has the wrong width, is not real numbers or contains NaN or infinity.
    """
    if isinstance(mean, Embeddings):
        mean = mean.mean
    array = to_rows(mean, name)
    if array.ndim == 1:
        array = array[None, :]
    array = as_matrix(array, name, allow_zero_rows=True)
    if array.shape[1] != width:
        raise ShapeError(
            f"Got {name} of width {array.shape[1]}; expected {width}. Pass vectors of the model that the map was fitted on."
        )
    return array.mean(axis=0, dtype=np.float64)


def count_rows(rows: object) -> int | None:
    """Return the number of rows that :func:`check_mean` averages; None for a vector, for which it is unknown."""
    if isinstance(rows, Embeddings):
        return len(rows)
    array = to_rows(rows, "rows")
    return None if array.ndim == 1 else len(array)


def check_same_kind(first: object, second: object, verb: str) -> None:
    """Check that two maps to be combined are of the same class.

    Raises
    ------
    ParameterError
        If they are not.
    """
    if type(first) is not type(second):
        raise ParameterError(
            f"Got {type(second).__name__} to {verb} with {type(first).__name__}; expected the same kind. "
            "Transform in two steps instead."
        )


def check_weights(sample_weight: ArrayLike, X: np.ndarray) -> np.ndarray:
    """Return sample weights in float64.

    Raises
    ------
    ShapeError
        If there is not one finite number for each row.
    InputError
        If a weight is negative.
    """
    try:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    except ValueError as error:
        raise ShapeError(
            f"Got sample_weight that does not fit ({error}); expected one finite number per row. Pass an array of shape ({len(X)},)."
        ) from error
    if (weights < 0).any():
        raise InputError("Got negative sample_weight; expected numbers ≥ 0. Set a weight to 0 to leave its row out.")
    return weights


def split_modalities(modality: Modalities, n: int) -> list[tuple[str, np.ndarray | None]]:
    """Return the name and a mask of the rows of each modality; a single unnamed group if no modality was given.

    Raises
    ------
    ParameterError
        If a modality is unknown.
    InputError
        If there is neither one modality nor one for each row.
    """
    if modality is None:
        return [("", None)]
    if isinstance(modality, str):
        return [(check_choice(modality, MODALITIES, "modality"), None)]
    names = np.asarray(modality).astype(str)
    if names.shape != (n,):
        raise InputError(
            f"Got modality of shape {names.shape} for {n} rows; expected one name, or one per row. Pass modality=… of shape ({n},)."
        )
    return [(check_choice(str(name), MODALITIES, "modality"), names == name) for name in np.unique(names)]


def check_forgetting(forgetting: float) -> None:
    """Check that a forgetting factor is in (0, 1]. Raises ParameterError."""
    if check_positive(forgetting, "forgetting") > 1:
        raise ParameterError(
            f"Got forgetting={forgetting}; expected a number above 0 and at most 1. Pass forgetting=0.9, for example."
        )
