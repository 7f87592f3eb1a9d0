"""Checks of queries before they are mapped, and the cached product that maps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE, is_tensor, namespace, to_numpy, widen
from congruence._utils.columns import to_rows
from congruence._utils.typing import RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, name_rows
from congruence.errors import DirectionError, ShapeError, SpaceMismatchError, ZeroRowError
from congruence.maps import AffineMap, Map

#: Range of squared norms in which float32 represents both a row and its square; rows outside are checked in float64.
_TINY, _HUGE = 1e-30, 1e30


@dataclass(frozen=True, eq=False)
class Folded:
    """An affine map for one modality as a float32 matrix and an offset.

    Attributes
    ----------
    matrix : ndarray of float32, shape (d_source, d_target)
    offset : ndarray of float32, shape (d_target,)
    solved : ndarray
        The matrix object of the map, which is replaced when the map is fitted again.
    """

    matrix: np.ndarray
    offset: np.ndarray
    solved: np.ndarray

    @classmethod
    def of(cls, mapped: AffineMap) -> Folded:
        """Return the matrix and offset of a map that is set to the queries' modality."""
        matrix = mapped.matrix
        return cls(np.ascontiguousarray(matrix, dtype=np.float32), mapped.offset.astype(np.float32), matrix)

    def transform(self, X: np.ndarray, *, unit_in: bool | None, unit_out: bool) -> np.ndarray | None:
        """Map float32 rows, or one vector, unless they need a full check.

        Parameters
        ----------
        X : ndarray of float32, shape (m, d_source) or (d_source,)
        unit_in : bool or None
            Whether the queries' model gives unit rows; None if unknown.
        unit_out : bool
            Scale mapped rows to unit norm.

        Returns
        -------
        ndarray of float32, or None
            None for rows that may be zero or not finite, have another norm than the model's, or are too large: :func:`check_queries` then
            determines what is wrong with them, if anything.
        """
        single = X.ndim == 1 or len(X) == 1
        rows = X.reshape(-1) if single else X
        # NaN and infinity propagate through a sum of squares, so one pass finds every kind of bad row.
        squares = rows.dot(rows) if single else np.einsum("ij,ij->i", rows, rows)
        low, high = (squares, squares) if single else (squares.min(), squares.max())
        if not (low > _TINY and high < _HUGE):
            return None
        unit = low > (1 - UNIT_TOLERANCE) ** 2 and high < (1 + UNIT_TOLERANCE) ** 2
        if unit_in is not None and unit != unit_in:
            return None
        out: np.ndarray = rows @ self.matrix
        out += self.offset
        squares = out.dot(out) if single else np.einsum("ij,ij->i", out, out)
        low, high = (squares, squares) if single else (squares.min(), squares.max())
        if not (low > _TINY and high < _HUGE):
            return None
        if unit_out:
            out /= np.sqrt(squares) if single else np.sqrt(squares)[:, None]
        return out if X.ndim == out.ndim else out[None]


def as_rows(queries: RowsLike) -> tuple[RowsLike, bool]:
    """Return the queries as a 2-D array, and whether a single vector was passed.

    Parameters
    ----------
    queries : array_like or tensor, shape (m, d) or (d,)

    Returns
    -------
    array_like or tensor, shape (m, d)
    bool
    """
    if is_tensor(queries):
        return (cast("Tensor", queries[None]), True) if queries.ndim == 1 else (queries, False)
    A = to_rows(queries, "queries")
    if A.ndim == 1 and len(A) and A.dtype.kind in "fiub":
        return A[None], True
    return queries, False


def check_queries(queries: RowsLike, mapping: Map) -> np.ndarray | Tensor:
    """Return rows to map, as float32 or float64, after comparing them with the rows the map was fitted on.

    Parameters
    ----------
    queries : array_like or tensor, shape (m, d)
    mapping : Map

    Returns
    -------
    ndarray or tensor, shape (m, d)

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If the rows cannot be used.
    DirectionError
        If the rows have the width of the index.
    ZeroRowError
        If a row consists of zeros.
    SpaceMismatchError
        If the norms differ from those at the fit: raw rows instead of unit rows, or the reverse.
    """
    source, target, width = mapping.source_space_, mapping.target_space_, mapping.n_features_in_
    A: np.ndarray | Tensor
    if is_tensor(queries):
        A = cast("Tensor", widen(as_native(queries, "queries")))
    else:
        A = as_matrix(queries, "queries", allow_zero_rows=True)
    if A.shape[1] != width:
        if A.shape[1] == mapping.d_target:
            raise wrong_direction(f"{A.shape[1]}-d queries, the width of the index's model ({target})", mapping)
        raise ShapeError(
            f"Got {A.shape[1]}-d queries; expected {width}-d ones of {source}. Encode the queries with that model, or fit a map for this one."
        )
    norms = _norms(A)
    if len(zero := np.flatnonzero(norms == 0)):
        raise ZeroRowError(
            f"Got all zeros in {len(zero)} of {len(norms)} queries (rows {name_rows(zero)}); expected encodings: zeros usually come from "
            "a failed encoding. Encode these queries again."
        )
    odd = np.flatnonzero(np.abs(norms - 1) >= UNIT_TOLERANCE)
    if source.normalized and len(odd):
        raise SpaceMismatchError(
            f"Got {len(odd)} of {len(norms)} queries that are not unit rows (rows {name_rows(odd)}; norm {norms[odd[0]]:.3g}); expected unit rows, as "
            "the map was fitted on. Divide each query by its norm first."
        )
    if source.normalized is False and not len(odd):
        raise SpaceMismatchError(
            f"Got unit rows for all {len(norms)} queries; expected raw rows of {source}, as the map was fitted on. Pass the queries as they were "
            "before normalization."
        )
    return A


def wrong_direction(got: str, mapping: Map) -> DirectionError:
    """Return the error for vectors of the index's model passed as queries.

    Parameters
    ----------
    got : str
        What was passed.
    mapping : Map

    Returns
    -------
    DirectionError
    """
    remedy = "Bridge(mapping.inverse())" if hasattr(mapping, "inverse") else "Bridge(fit(new, old))"
    return DirectionError(
        f"Got {got}; expected {mapping.n_features_in_}-d queries of {mapping.source_space_}, since a bridge's map leads from the queries' "
        "model to the index's. Encode the queries with the new model; or, if the map was fitted from the index's model to the new one, use the "
        f"other direction: {remedy}."
    )


def _norms(A: np.ndarray | Tensor) -> np.ndarray:
    if is_tensor(A):
        xp = namespace(A)
        return to_numpy(xp.linalg.vector_norm(A.detach(), axis=1)).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(np.linalg.norm(A.astype(np.float64, copy=False), axis=1))
