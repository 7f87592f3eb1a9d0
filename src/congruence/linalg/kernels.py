"""Sums over kernel matrices for independence criteria, computed from features in blocks, without the n × n matrices."""

from __future__ import annotations

from collections.abc import Sequence
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


def linear_sums(*sides: tuple[Array, Array], pairs: Sequence[tuple[int, int]]) -> list[KernelSums]:
    """Return sums over the linear kernels of ``pairs`` of sides, rows X (n, d) and their mean: by ‖XᵀY‖² in blocks,
    n·d·e operations, or the Gram form, n²·(d + e), whichever is cheaper. Products of single-precision arrays run in
    their precision, all others in that of the means; so do sums.
    """
    xp = namespace(*(X for X, _ in sides))
    n, widths, (_, mean) = sides[0][0].shape[0], [X.shape[1] for X, _ in sides], sides[0]
    found: dict[tuple[int, int], KernelSums] = {}
    for i, j in pairs:
        if widths[i] * widths[j] > n * (widths[i] + widths[j]):
            A, B = (xp.astype(X, m.dtype) - m for X, m in (sides[i], sides[j]))
            K, L = xp.matmul(A, A.T), xp.matmul(B, B.T)
            k, m = xp.linalg.diagonal(K), xp.linalg.diagonal(L)
            found[i, j] = _of_centered(xp.sum(K * L), xp.sum(k * m), xp.sum(k), xp.sum(m), n)
    by_blocks = [pair for pair in pairs if pair not in found]
    sums = {pair: [xp.zeros((), dtype=mean.dtype, device=device(mean))] * 4 for pair in by_blocks}
    for part in blocks(n, 16 * sum(widths)) if by_blocks else ():
        rows = [_centered(X, part, m) for X, m in sides]  # once for all pairs
        for pair in by_blocks:
            (A, k), (B, m) = (rows[side] for side in pair)
            terms = xp.matmul(A.T, B), xp.sum(k * m), xp.sum(k), xp.sum(m)
            sums[pair] = [total + term for total, term in zip(sums[pair], terms, strict=True)]
    for pair, (cross, diagonal, first, second) in sums.items():
        found[pair] = _of_centered(xp.sum(cross * cross), diagonal, first, second, n)
    return [found[pair] for pair in pairs]


def _centered(X: Array, part: slice, mean: Array) -> tuple[Array, Array]:
    """Return centered rows in the precision of products, and their squared norms in that of the mean."""
    xp = namespace(X)
    rows = X[part, :]
    if isinstance(rows, np.ndarray) and rows.dtype == np.float32:
        rows = rows - to_numpy(mean).astype(np.float32)
        return rows, np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    rows = xp.astype(rows, mean.dtype) - mean
    return rows, xp.sum(rows * rows, axis=1)


def _of_centered(product: Array, diagonal: Array, first: Array, second: Array, n: int) -> KernelSums:
    """Fill in the sums of centered linear kernels, whose rows sum to zero."""
    zero = 0.0 * product
    return KernelSums(product, product - diagonal, zero, diagonal, zero, -first, zero, -second, n)


def rbf_sums(X: Array, Y: Array, x_scale: float, y_scale: float) -> tuple[KernelSums, KernelSums, KernelSums]:
    """Return sums over the kernels K = exp(−‖xᵢ − xⱼ‖² / x_scale) of X (n, d) and L of Y (n, e): for K with L, K with
    itself and L with itself. One pass over the upper triangles, in square blocks; sums are in double precision.
    """
    xp = namespace(X, Y)
    n, place = X.shape[0], device(X)
    sides = [side * (2 / scale) ** 0.5 for side, scale in ((X, x_scale), (Y, y_scale))]
    halves = [xp.sum(side * side, axis=1) / 2 for side in sides]
    inner = [xp.zeros((), dtype=xp.float64, device=place) for _ in range(3)]
    rows = [xp.zeros(n, dtype=xp.float64, device=place) for _ in range(2)]
    parts = list(blocks(n, 1024 * X.itemsize, 2**22))
    for i, part in enumerate(parts):
        for other in parts[i:]:
            K, L = (_gaussian(*side, part, other) for side in zip(sides, halves, strict=True))
            for k, (first, second) in enumerate(((K, L), (K, K), (L, L))):
                inner[k] = inner[k] + _inner(first, second) * (1 if part is other else 2)
            for total, kernel in zip(rows, (K, L), strict=True):
                total[part] += xp.sum(kernel, axis=1, dtype=xp.float64)
                if part is not other:
                    total[other] += xp.sum(kernel, axis=0, dtype=xp.float64)
    r, s = rows
    sums = zip(inner, ((r, s), (r, r), (s, s)), strict=True)
    return tuple(_of_ones(product, *sides, n) for product, sides in sums)  # type: ignore[return-value]


def _of_ones(product: Array, r: Array, s: Array, n: int) -> KernelSums:
    """Fill in the sums of kernels with row sums r and s, whose diagonals are 1."""
    xp = namespace(r)
    rows, first, second = xp.sum(r * s), xp.sum(r), xp.sum(s)
    return KernelSums(product, product - n, rows, rows - first - second + n, first, first - n, second, second - n, n)


def _gaussian(A: Array, halves: Array, part: slice, other: slice) -> Array:
    """Return exp(⟨aᵢ, aⱼ⟩ − hᵢ − hⱼ) of two blocks of rows, h half of the squared norms; exactly 1 on the diagonal."""
    xp = namespace(A)
    exponent = xp.matmul(A[part, :], A[other, :].T)
    if isinstance(exponent, np.ndarray):  # without further arrays of the size of the block
        exponent -= halves[part, None]
        exponent -= halves[other]
        np.minimum(exponent, 0, out=exponent)
        if part is other:
            np.fill_diagonal(exponent, 0)
        return np.exp(exponent, out=exponent)
    exponent = xp.clip(exponent - halves[part, None] - halves[other], None, 0.0)
    if part is other:
        i = xp.arange(exponent.shape[0], device=device(exponent))
        exponent = xp.where(i[:, None] == i, 0.0 * exponent, exponent)
    return xp.exp(exponent)


def _inner(K: Array, L: Array) -> Array:
    """Return the inner product of two blocks, in double precision from sums over their rows."""
    xp = namespace(K)
    if isinstance(K, np.ndarray):  # without an array of the size of the block
        return xp.sum(np.einsum("ij,ij->i", K, to_numpy(L)), dtype=np.float64)
    return xp.sum(xp.sum(K * L, axis=1), dtype=xp.float64)


@overload
def squared_distances(A: np.ndarray, B: np.ndarray) -> np.ndarray: ...
@overload
def squared_distances(A: Array, B: Array) -> Array: ...
def squared_distances(A: Array, B: Array) -> Array:
    """Return the squared Euclidean distances (m, n) between rows (m, d) and (n, d), never negative."""
    xp = namespace(A, B)
    square = xp.matmul(A, B.T)
    square *= -2
    square += xp.sum(A * A, axis=1)[:, None] + xp.sum(B * B, axis=1)[None]
    return xp.clip(square, 0.0, None)


MOST_MEASURED = 4_000  # rows whose distances are measured


def median_squared_distance(X: Array, most: int = MOST_MEASURED, random_state: int = 0) -> float:
    """Return the median of the nonzero squared distances of at most ``most`` random rows; 0 if all are equal."""
    check_seed(random_state)
    X = X if is_remote(X) else to_numpy(X)  # NumPy's median does not need to sort
    xp, place = namespace(X), device(X)
    if len(X) > most:
        chosen = np.random.default_rng(random_state).choice(len(X), most, replace=False)
        X = xp.take(X, xp.asarray(chosen, device=place), axis=0)
    n, start = len(X), 0
    square = xp.empty(n * (n - 1) // 2, dtype=X.dtype, device=place)
    for part in blocks(n, 4 * n * X.itemsize):
        near = squared_distances(X[part], X[part.start :])
        columns = xp.arange(n - part.start, device=place)
        near = near[columns > columns[: len(near), None]]
        square[start : start + len(near)] = near
        start += len(near)
    return median_of_positive(square)


def median_of_positive(square: Array) -> float:
    """Return the median of squared distances (p,), reordered here, without those of equal rows; 0 if all are."""
    xp = namespace(square)
    if not len(square):
        return 0.0
    # Rounding leaves tiny distances between equal rows: treat anything below this threshold as zero.
    least = 1e-14 * max(float(xp.max(square)), 1e-300)
    if float(xp.min(square)) <= least:
        square = square[square > least]
    if not len(square):
        return 0.0
    middle = (len(square) - 1) // 2, len(square) // 2
    if isinstance(square, np.ndarray):
        square.partition(middle)
    else:
        square = xp.sort(square)
    return (float(square[middle[0]]) + float(square[middle[1]])) / 2
