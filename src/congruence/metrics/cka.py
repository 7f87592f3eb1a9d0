"""Centered kernel alignment: linear and Gaussian, biased, debiased and in minibatches, and for cross-kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from congruence._utils.arrays import blocks, device, is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, RowsLike, Tensor
from congruence._utils.validation import check_choice, check_positive, check_seed, in_range
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.linalg import kernels
from congruence.metrics._base import (
    OF_SHAPES,
    Metric,
    as_scalar,
    check_square,
    check_varies,
    inner,
    native_pair,
    positive,
    reorder_square,
    scaled,
)

_HSIC: TypeAlias = Callable[[kernels.KernelSums], Array]

ESTIMATORS = ("debiased", "biased", "minibatch")


def linear_cka(
    X: RowsLike, Y: RowsLike, *, estimator: str = "debiased", batch_size: int = 512, random_state: int = 0
) -> float | Tensor:
    """Linear centered kernel alignment, by default debiased: near 0 for independent rows, whatever n and d.

    ``estimator="biased"`` is the usual formula, which rises towards 1 with d / n on pure noise.

    In [−1, 1], or [0, 1] if biased. 1 for spaces that are equal up to rotation, translation and isotropic scaling.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d) and (n, e)
        NumPy or torch, paired by row.
    estimator : {"debiased", "biased", "minibatch"}, default="debiased"
        ``"debiased"`` uses the unbiased HSIC, and may be below 0. ``"minibatch"`` sums the unbiased HSIC over random
        batches of ``batch_size`` rows, at least 4, before the ratio; a last batch with fewer than 4 is left out.

    Notes
    -----
    O(n·d·e) operations and O(d·e) memory besides the data, or Gram matrices if n is smaller.

    Source: Kornblith et al. (2019), "Similarity of neural network representations revisited"; Song et al. (2012);
    Nguyen et al. (2021), "Do wide and deep networks learn the same things?".

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> round(linear_cka(X, 3 * X[:, ::-1] + 1), 6)
    1.0
    """
    check_seed(random_state)
    check_choice(estimator, ESTIMATORS, "estimator")
    xp, A, B = _varying_pair(X, Y)
    A, B = in_range(A), in_range(B)
    if estimator != "minibatch":
        hsic = kernels.hsic_biased if estimator == "biased" else kernels.hsic_unbiased
        return as_scalar(_divide(*_hsic_terms(A, B, hsic), xp))
    check_positive(batch_size, "batch_size", integer=True)
    if batch_size < 4:
        raise ParameterError(argument="batch_size", got=batch_size, expected="at least 4 rows")
    order = np.random.default_rng(random_state).permutation(A.shape[0])
    batches = []
    for start in range(0, len(order) - 3, batch_size):
        rows = xp.asarray(np.sort(order[start : start + batch_size]), device=device(A))
        batches.append(_hsic_terms(xp.take(A, rows, axis=0), xp.take(B, rows, axis=0), kernels.hsic_unbiased))
    cross, first, second = (sum(terms) for terms in zip(*batches, strict=True))
    return as_scalar(_divide(cross, first, second, xp))


def _varying_pair(X: RowsLike, Y: RowsLike) -> tuple[ArrayNamespace, Array, Array]:
    """Like ``native_pair``, for at least four rows on each side, not all equal."""
    xp, A, B = native_pair(X, Y, min_rows=4)
    check_varies(xp, A, "X")
    check_varies(xp, B, "Y")
    return xp, A, B


def _hsic_terms(A: Array, B: Array, hsic: _HSIC) -> tuple[Array, Array, Array]:
    """Return HSIC of A with B, of A with itself and of B with itself, for linear kernels."""
    cross, own, other = map(hsic, kernels.linear_sums((A, _means(A)), (B, _means(B)), pairs=((0, 1), (0, 0), (1, 1))))
    return cross, own, other


def _divide(cross: Array, first: Array, second: Array, xp: ArrayNamespace) -> Array:
    for value in (first, second):
        if not float(to_numpy(value)) > 0:
            raise InputError("A kernel does not vary.", ("Drop constant vectors.", "Pass another `bandwidth=…`."))
    return cross / (xp.sqrt(first) * xp.sqrt(second))


def _means(A: Array) -> Array:
    """Return column means, summed in float64 block by block."""
    xp = namespace(A)
    total = xp.zeros(A.shape[1], dtype=xp.float64, device=device(A))
    for part in blocks(A.shape[0], 8 * A.shape[1]):
        total = total + xp.sum(xp.astype(A[part, :], xp.float64), axis=0)
    return total / A.shape[0]


def rbf_cka(
    X: RowsLike, Y: RowsLike, *, estimator: str = "debiased", bandwidth: float | str = "median", fraction: float = 1.0
) -> float | Tensor:
    """Centered kernel alignment of X (n, d) and Y (n, e) with Gaussian kernels exp(−‖x − x'‖² / 2σ²), "debiased" or
    "biased".

    σ is ``bandwidth``, in the units of the vectors; with ``"median"``, σ² is ``fraction``² times the median of the
    non-zero squared distances of each side (of at most 4,000 rows). Kornblith et al. use fractions of 0.2 to 0.8; with
    a small one every row is similar only to itself. O(n²·(d + e)) operations, O(n·(d + e)) memory.

    Source: Kornblith et al. (2019), section 4.
    """
    check_choice(estimator, ("debiased", "biased"), "estimator")
    check_positive(fraction, "fraction")
    if bandwidth != "median":
        check_positive(bandwidth, "bandwidth")
    xp, A, B = _varying_pair(X, Y)
    if bandwidth == "median":
        A, B = (_centered_rows(xp, in_range(side)) for side in (A, B))
        squares = (kernels.median_squared_distance(side.detach() if is_tensor(side) else side) for side in (A, B))
        scales = [2 * positive(square * fraction**2, name) for square, name in zip(squares, "XY", strict=True)]
    else:  # divided first, since squares of very large or small numbers would overflow or vanish
        A, B = (_centered_rows(xp, side) / float(bandwidth) for side in (A, B))
        scales = [2.0, 2.0]
    hsic = kernels.hsic_biased if estimator == "biased" else kernels.hsic_unbiased
    cross, first, second = map(hsic, kernels.rbf_sums(A, B, *scales))
    return as_scalar(_divide(cross, first, second, xp))


def _centered_rows(xp: ArrayNamespace, A: Array) -> Array:
    """Return centered rows, of a NumPy array in single precision in this precision, else in float64."""
    if isinstance(A, np.ndarray) and A.dtype == np.float32:
        return A - to_numpy(_means(A)).astype(np.float32)
    return xp.astype(A, xp.float64) - _means(A)


def cross_kernel_cka(F: RowsLike, G: RowsLike, F_other: RowsLike, G_other: RowsLike) -> float | Tensor:
    """Centered alignment, in [−1, 1], of the image–text kernels of two models, ⟨f(xᵢ), g(yⱼ)⟩ and ⟨f̃(xᵢ), g̃(yⱼ)⟩.

    ``F`` (n, d) and ``G`` (m, d) are images and texts in one model, ``F_other`` (n, e) and ``G_other`` (m, e) the same
    in the other. With centered rows, ⟨FGᵀ, F̃G̃ᵀ⟩ = Σ (FᵀF̃) ∘ (GᵀG̃): no n × m array is formed.

    Source: Gupta et al. (2026), figure 3b.
    """
    xp, A, A_other = native_pair(F, F_other, names=("F", "F_other"))
    _, B, B_other = native_pair(G, G_other, names=("G", "G_other"))
    for images, texts in ((A, B), (A_other, B_other)):
        if images.shape[1] != texts.shape[1]:
            raise ShapeError(
                f"Got {images.shape[1]}-d images and {texts.shape[1]}-d texts of a model.", "Pass those of one model."
            )
    sides = (in_range(M) for M in (A, B, A_other, B_other))
    A, B, A_other, B_other = (xp.astype(M, xp.float64) - _means(M) for M in sides)

    def product(a: Array, b: Array, c: Array, d: Array) -> Array:
        return xp.sum(xp.matmul(a.T, c) * xp.matmul(b.T, d))

    cross = product(A, B, A_other, B_other)
    return as_scalar(_divide(cross, product(A, B, A, B), product(A_other, B_other, A_other, B_other), xp))


# ------------------------------------------------------------------ in steps, for many re-pairings


def _u_center(K: np.ndarray) -> np.ndarray:
    """Center K in place so that unbiased HSIC is n (n − 3) times an inner product (Székely and Rizzo 2014)."""
    n = len(K)
    np.fill_diagonal(K, 0)
    rows = K.sum(axis=1) / (n - 2)
    K += rows.sum() / (n - 1) - rows - rows[:, None]
    np.fill_diagonal(K, 0)
    return K


class _Linear(NamedTuple):
    """A centered linear kernel of unit norm: as features, or as the Gram matrix if that is cheaper to compare."""

    matrix: np.ndarray
    is_gram: bool


def _prepare_linear(A: np.ndarray, name: str, biased: bool = False) -> _Linear:
    A = scaled(A, name)
    n, d = A.shape
    if n <= 4 * d:  # re-pairing and comparing then cost n² operations instead of n·d²
        K = A @ A.T if biased else _u_center(A @ A.T)
        return _Linear(K / positive(float(np.linalg.norm(K)), name), True)
    size = float(np.linalg.norm(A.T @ A)) if biased else np.sqrt(positive(_linear_inner(A, A), name))
    return _Linear(A / np.sqrt(size), False)


def _linear_inner(A: np.ndarray, B: np.ndarray) -> float:
    n = len(A)
    sides = ((side, np.zeros(side.shape[1])) for side in (A, B))
    return float(n * (n - 3) * kernels.hsic_unbiased(*kernels.linear_sums(*sides, pairs=((0, 1),))))


def _reorder_linear(side: _Linear, order: np.ndarray) -> _Linear:
    return _Linear(reorder_square(side.matrix, order) if side.is_gram else side.matrix[order], side.is_gram)


def _compare_linear(first: _Linear, second: _Linear) -> float:
    if first.is_gram == second.is_gram:
        return (inner if first.is_gram else _linear_inner)(first.matrix, second.matrix)
    K, B = (first.matrix, second.matrix) if first.is_gram else (second.matrix, first.matrix)
    # The inner product with a U-centered kernel is the same whether or not the other kernel is U-centered.
    return float(np.vdot(B, K @ B))


def _compare_biased(first: _Linear, second: _Linear) -> float:
    if first.is_gram or second.is_gram:
        return _compare_linear(first, second)
    return float(np.sum((first.matrix.T @ second.matrix) ** 2))


def _prepare_rbf(A: np.ndarray, name: str) -> np.ndarray:
    check_square(A, "rbf_cka")
    A = scaled(A, name)
    K = kernels.squared_distances(A, A)
    if len(A) > kernels.MOST_MEASURED:
        scale = kernels.median_squared_distance(A)
    else:
        scale = kernels.median_of_positive(K[~np.tri(len(A), dtype=bool)])
    K /= -2 * positive(scale, name)
    K = _u_center(np.exp(K, out=K))
    return K / positive(float(np.linalg.norm(K)), name)


_KORNBLITH = "Kornblith et al. (2019)"

LINEAR = Metric(
    linear_cka,
    (-1.0, 1.0),
    OF_SHAPES,
    f"{_KORNBLITH}, Song et al. (2012)",
    _prepare_linear,
    _compare_linear,
    _reorder_linear,
)

#: ``linear_cka(X, Y, estimator="biased")`` in steps.
BIASED = replace(LINEAR, prepare=partial(_prepare_linear, biased=True), compare=_compare_biased)

METRICS = (
    LINEAR,
    Metric(rbf_cka, (-1.0, 1.0), OF_SHAPES, _KORNBLITH, _prepare_rbf, inner, reorder_square, cost="n²·d"),
)
