"""Shape distances: the distance between two clouds of paired rows after the best rotation."""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import NUMPY, is_tensor, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, RowsLike, Tensor
from congruence._utils.validation import in_range
from congruence.linalg.moments import CrossMoments
from congruence.metrics._base import (
    OF_SHAPES,
    Metric,
    Spectrum,
    as_scalar,
    contrasts,
    float_pair,
    from_contrasts,
    native_pair,
    nuclear_norm,
    own_precision,
    spectrum,
)


def _detached(A: Array) -> Array:
    return A.detach() if is_tensor(A) else A


def _alignment_factors(xp: ArrayNamespace, A: Array, B: Array) -> tuple[Array, Array]:
    """Return semi-orthogonal L and R such that ⟨AL, BR⟩ is the nuclear norm of AᵀB, without a gradient."""
    a, b = _detached(A), _detached(B)
    n, da, db = a.shape[0], a.shape[1], b.shape[1]
    # Multiplication counts, up to constants; a singular value decomposition costs about ten products of its size.
    features = n * da * db + 10 * min(da, db) ** 2 * max(da, db)
    gram = 2 * n * n * (da + db) + 10 * n**3
    if n <= min(da, db) and gram < features:
        # With Aᵀ = QS and Bᵀ = PT, AᵀB = Q (STᵀ) Pᵀ has an n × n core, and no small singular value is squared.
        Q, S = xp.linalg.qr(xp.matrix_transpose(a))
        P, T = xp.linalg.qr(xp.matrix_transpose(b))
        U, _, Vt = xp.linalg.svd(S @ xp.matrix_transpose(T), full_matrices=False)
        return Q @ U, P @ xp.matrix_transpose(Vt)
    U, _, Vt = xp.linalg.svd(xp.matrix_transpose(a) @ b, full_matrices=False)
    return U, xp.matrix_transpose(Vt)


def _squared_distance(xp: ArrayNamespace, A: Array, B: Array) -> Array:
    """Return ‖A‖² + ‖B‖² − 2ν, ν the nuclear norm of AᵀB; near 0, and for gradients, as a sum of squares, where the
    difference would lose half its digits. ν is the maximum of ⟨AL, BR⟩, so its gradient is that with L and R held
    fixed, finite also if singular values repeat or vanish.
    """
    if not is_tensor(A) and min(A.shape[1], B.shape[1]) <= len(A):
        sizes = xp.sum(A * A) + xp.sum(B * B)
        squared = sizes - 2 * nuclear_norm(to_numpy(xp.matrix_transpose(A) @ B))
        if float(squared) > 1e-3 * float(sizes):
            return squared
    L, R = _alignment_factors(xp, A, B)
    AL, BR = A @ L, B @ R
    total = xp.sum((AL - BR) ** 2)
    for side, projected, factor in ((A, AL, L), (B, BR, R)):
        if factor.shape[0] > factor.shape[1]:  # the component in dimensions that the other side does not have
            total = total + xp.sum((side - projected @ xp.matrix_transpose(factor)) ** 2)
    return total


def procrustes_distance(X: RowsLike, Y: RowsLike) -> float | Tensor:
    """Angle between two shapes (n, d_x) and (n, d_y), paired by row: 0 if they are equal up to translation, rotation,
    reflection and scale, π/2 at most.

    Columns are centered, each side is scaled to unit Frobenius norm, and with ν the nuclear norm of XᵀY the angle is
    arccos ν, a metric. The narrower side is treated as padded with zeros. Torch input gives torch output, which is
    differentiable once, except where the distance is 0.

    Source: Williams, Kunz, Kornblith and Linderman (2021), "Generalized shape metrics on neural representations",
    NeurIPS.
    """
    quick = _quick_angle(X, Y)
    if quick is not None:
        return quick
    xp, A, B = float_pair(X, Y)
    return as_scalar(_angle(xp, _shape(xp, A, "X"), _shape(xp, B, "Y")))


def _quick_angle(X: RowsLike, Y: RowsLike) -> float | None:
    """Return the angle of two float32 arrays from products in that precision, unless these would lose digits."""
    if not (isinstance(X, np.ndarray) and isinstance(Y, np.ndarray) and X.dtype == Y.dtype == np.float32):
        return None
    _, *sides = native_pair(X, Y)
    A, B = (in_range(to_numpy(side)) for side in sides)
    if min(A.shape[1], B.shape[1]) > len(A):
        return None
    moments = CrossMoments.of(A, B)
    sizes = moments.source_scatter, moments.target_scatter
    means = [len(A) * float(mean @ mean) for mean in (moments.source_mean, moments.target_mean)]
    # A mean that is far larger than the spread leaves rounding errors of its own size.
    if not 1e-20 < min(sizes) <= max(sizes) < 1e20 or means[0] > 1e6 * sizes[0] or means[1] > 1e6 * sizes[1]:
        return None
    alike = nuclear_norm(moments.cross) / np.sqrt(sizes[0] * sizes[1])
    return float(np.arccos(alike)) if alike < 0.99 else None  # near 1 the cosine loses half of the angle's digits


def _shape(xp: ArrayNamespace, A: Array, name: str) -> Array:
    """Return contrasts of unit Frobenius norm."""
    C = contrasts(xp, A, name)
    return C / xp.sqrt(xp.sum(C * C))


def _angle(xp: ArrayNamespace, A: Array, B: Array) -> Array:
    squared = _squared_distance(xp, A, B)
    # The derivative of the root is infinite at 0; the square is used there, which gives zero gradients instead of NaN.
    distance = squared if float(_detached(squared)) == 0 else xp.sqrt(squared)
    return 2 * xp.asin(xp.clip(distance, 0.0, 2**0.5) / 2)  # arccos ν, with all digits near ν = 1


# ------------------------------------------------------------------ in steps, for many re-pairings


def _prepare_shape(A: np.ndarray, name: str, found: Spectrum | None = None) -> np.ndarray:
    """Return centered rows of unit Frobenius norm in principal coordinates, so that products of these with others have
    few digits where they are small; many in their own precision.
    """
    if found is None and A.shape[1] < len(A):
        C = contrasts(NUMPY, A.astype(np.float64), name)
        values, vectors = np.linalg.eigh(C.T @ C)
        C = C @ vectors[:, ::-1][:, : np.count_nonzero(values > 1e-12 * values.sum())]
    else:
        _, U, s = found or spectrum(A, name)
        C = U * s
    return own_precision(from_contrasts(C / np.linalg.norm(C)), A)


def _compare_shapes(A: np.ndarray, B: np.ndarray) -> float:
    alike = nuclear_norm(A.T @ B)
    return float(np.arccos(alike)) if alike < 0.999 else float(_angle(NUMPY, A, B))


METRICS = (
    Metric(
        procrustes_distance,
        (0.0, 1.5707963267948966),
        OF_SHAPES,
        "Williams et al. (2021)",
        _prepare_shape,
        _compare_shapes,
        larger_is_closer=False,
        shared=spectrum,
    ),
)
