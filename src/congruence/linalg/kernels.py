"""Sums over kernel matrices for independence criteria, computed from features in blocks, without the n × n matrices."""

from __future__ import annotations

from typing import NamedTuple, overload

import numpy as np

from congruence._utils.arrays import blocks, device, is_remote, namespace, to_numpy
from congruence._utils.typing import Array
from congruence._utils.validation import check_seed


class KernelSums(NamedTuple):
    """Sums over two kernel matrices K and L of n items, from which biased and unbiased HSIC follow: Σᵢⱼ KᵢⱼLᵢⱼ, Σᵢ (Σⱼ
    Kᵢⱼ)(Σⱼ Lᵢⱼ), Σᵢⱼ Kᵢⱼ and Σᵢⱼ Lᵢⱼ, each also without (``_off``) the diagonals.
    """

    product: Array
    product_off: Array
    rows: Array
    rows_off: Array
    first: Array
    first_off: Array
    second: Array
    second_off: Array
    n: int


def hsic_biased(sums: KernelSums) -> Array:
    """Return tr(K H L H), the biased HSIC up to a factor of (n − 1)² (Gretton et al. 2005)."""
    n = sums.n
    return sums.product - 2 / n * sums.rows + sums.first * sums.second / n**2


def hsic_unbiased(sums: KernelSums) -> Array:
    """Return the unbiased estimate of HSIC from n ≥ 4 items (Song et al. 2012, eq. 5)."""
    n = sums.n
    total = sums.product_off + sums.first_off * sums.second_off / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * sums.rows_off) / (n * (n - 3))


def linear_sums(X: Array, Y: Array, x_mean: Array, y_mean: Array) -> KernelSums:
    """Return sums over the linear kernels of the centered rows X (n, d) and Y (n, e), in the precision of the means: by
    ‖XᵀY‖² in blocks, n·d·e operations, or the Gram form, n²·(d + e), whichever is cheaper.
    """
    xp = namespace(X, Y)
    n, d, e = X.shape[0], X.shape[1], Y.shape[1]
    if d * e > n * (d + e):
        A, B = xp.astype(X, x_mean.dtype) - x_mean, xp.astype(Y, y_mean.dtype) - y_mean
        K, L = xp.matmul(A, A.T), xp.matmul(B, B.T)
        k, m = xp.linalg.diagonal(K), xp.linalg.diagonal(L)
        return _of_centered(xp.sum(K * L), xp.sum(k * m), xp.sum(k), xp.sum(m), n)
    cross, diagonal, first, second = (xp.zeros((), dtype=x_mean.dtype, device=device(X)) for _ in range(4))
    for part in blocks(n, 8 * (d + e)):
        A, B = xp.astype(X[part, :], x_mean.dtype) - x_mean, xp.astype(Y[part, :], y_mean.dtype) - y_mean
        cross = cross + xp.matmul(A.T, B)
        k, m = xp.sum(A * A, axis=1), xp.sum(B * B, axis=1)
        diagonal, first, second = diagonal + xp.sum(k * m), first + xp.sum(k), second + xp.sum(m)
    return _of_centered(xp.sum(cross * cross), diagonal, first, second, n)


def _of_centered(product: Array, diagonal: Array, first: Array, second: Array, n: int) -> KernelSums:
    """Fill in the sums of centered linear kernels, whose rows sum to zero."""
    zero = 0.0 * product
    return KernelSums(product, product - diagonal, zero, diagonal, zero, -first, zero, -second, n)


def rbf_sums(X: Array, Y: Array, x_scale: float, y_scale: float) -> KernelSums:
    """Return sums over the kernels exp(−‖xᵢ − xⱼ‖² / scale) of X (n, d) and Y (n, e), in blocks of rows."""
    xp = namespace(X, Y)
    n = X.shape[0]
    totals = [xp.zeros((), dtype=X.dtype, device=device(X)) for _ in range(4)]
    for part in blocks(n, 8 * n * 6):
        K = xp.exp(-squared_distances(X[part, :], X) / x_scale)
        L = K if Y is X and x_scale == y_scale else xp.exp(-squared_distances(Y[part, :], Y) / y_scale)
        r, s = xp.sum(K, axis=1), xp.sum(L, axis=1)
        for k, value in enumerate((xp.sum(K * L), xp.sum(r * s), xp.sum(r), xp.sum(s))):
            totals[k] = totals[k] + value
    product, rows, first, second = totals
    # The diagonal of a Gaussian kernel is exactly 1, even if rounding makes a row's distance from itself nonzero.
    return KernelSums(product, product - n, rows, rows - first - second + n, first, first - n, second, second - n, n)


@overload
def squared_distances(A: np.ndarray, B: np.ndarray) -> np.ndarray: ...
@overload
def squared_distances(A: Array, B: Array) -> Array: ...
def squared_distances(A: Array, B: Array) -> Array:
    """Return the squared Euclidean distances (m, n) between rows (m, d) and (n, d), never negative."""
    xp = namespace(A, B)
    square = xp.sum(A * A, axis=1)[:, None] + xp.sum(B * B, axis=1)[None] - 2 * xp.matmul(A, B.T)
    return xp.clip(square, 0.0, None)


def median_squared_distance(X: Array, most: int = 4_000, random_state: int = 0) -> float:
    """Return the median of the nonzero squared distances of at most ``most`` random rows; 0 if all are equal."""
    check_seed(random_state)
    X = X if is_remote(X) else to_numpy(X)  # NumPy's median does not need to sort
    xp, place = namespace(X), device(X)
    if len(X) > most:
        chosen = np.random.default_rng(random_state).choice(len(X), most, replace=False)
        X = xp.take(X, xp.asarray(chosen, device=place), axis=0)
    rows = xp.arange(len(X), device=place)
    square = squared_distances(X, X)[rows[:, None] < rows]
    # Rounding leaves tiny distances between equal rows: treat anything below this threshold as zero.
    square = square[square > 1e-14 * max(float(xp.max(square)), 1e-300)] if len(X) > 1 else square
    if not len(square):
        return 0.0
    if isinstance(square, np.ndarray):
        return float(np.median(square))
    square = xp.sort(square)
    return float(square[(len(square) - 1) // 2] + square[len(square) // 2]) / 2
