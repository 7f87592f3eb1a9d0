"""Agreement of paired rows: cosine and Euclidean distance (paper, appendix D.4.2, metric 1)."""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_scale
from congruence.metrics._base import paired
from congruence.metrics.rows import unit

__all__ = ["paired_cosine", "paired_cosines", "paired_distance"]


def paired_cosines(X: RowsLike, Y: RowsLike) -> np.ndarray:
    """Cosine between row i of X and row i of Y, for each i.

    Parameters
    ----------
    X, Y : array_like, shape (n, d)

    Returns
    -------
    ndarray of float64, shape (n,)
        In [-1, 1].

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ZeroRowError
        If a row is zero.
    IdError
        If both are embeddings with ids, which differ or are in a different order.
    """
    A, B = paired(X, Y)
    out = np.empty(len(A))
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        a = unit(A[part].astype(np.float64), "X")
        b = unit(B[part].astype(np.float64), "Y")
        out[part] = np.einsum("ij,ij->i", a, b)
    return np.clip(out, -1.0, 1.0)


def paired_cosine(X: RowsLike, Y: RowsLike) -> float:
    """Mean cosine of paired rows.

    Parameters
    ----------
    X, Y : array_like, shape (n, d)

    Returns
    -------
    float
        In [-1, 1]; 1 if the rows of each pair have the same direction.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError
        As for :func:`paired_cosines`.

    References
    ----------
    Gupta et al. (2026), appendix D.4.2, metric (1).
    """
    return float(paired_cosines(X, Y).mean())


def paired_distance(X: RowsLike, Y: RowsLike) -> float:
    """Mean Euclidean distance of paired rows, without any normalization.

    Parameters
    ----------
    X, Y : array_like, shape (n, d)

    Returns
    -------
    float
        ≥ 0, in the units of the vectors.

    Raises
    ------
    ShapeError, DtypeError
        If arrays have the wrong shape or are not real numbers.
    NotFiniteError
        If arrays contain NaN or infinity, or float64 numbers above 1e70 or all below 1e-70.
    IdError
        If both are embeddings with ids, which differ or are in a different order.

    References
    ----------
    Gupta et al. (2026), appendix D.4.2, metric (1).
    """
    A, B = paired(X, Y)
    check_scale(A, "X")
    check_scale(B, "Y")
    total = 0.0
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        total += float(np.linalg.norm(A[part].astype(np.float64) - B[part], axis=1).sum())
    return total / len(A)
