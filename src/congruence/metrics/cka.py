"""Centered kernel alignment: linear and Gaussian, biased, debiased and in minibatches, and for cross-kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, device, is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, RowsLike, Tensor, TensorT
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.linalg import kernels
from congruence.metrics._base import as_scalar, native_pair

__all__ = ["cross_kernel_cka", "linear_cka", "rbf_cka"]

_HSIC: TypeAlias = Callable[[kernels.KernelSums], Array]

ESTIMATORS = ("debiased", "biased", "minibatch")


@overload
def linear_cka(
    X: TensorT, Y: RowsLike, *, estimator: str = "debiased", batch_size: int = 512, random_state: int = 0
) -> TensorT: ...
@overload
def linear_cka(
    X: ArrayLike, Y: ArrayLike, *, estimator: str = "debiased", batch_size: int = 512, random_state: int = 0
) -> float: ...
def linear_cka(
    X: RowsLike, Y: RowsLike, *, estimator: str = "debiased", batch_size: int = 512, random_state: int = 0
) -> float | Tensor:
    """Linear centered kernel alignment.

    Parameters
    ----------
    X : array_like, shape (n, d)
        NumPy or torch.
    Y : array_like, shape (n, e)
        Row i belongs to row i of ``X``.
    estimator : {"debiased", "biased", "minibatch"}, default="debiased"
        ``"debiased"`` uses the unbiased HSIC: near 0 for independent data, whatever n and d, and possibly below.
        ``"biased"`` is the usual formula; it rises towards 1 with d / n on pure noise.
        ``"minibatch"`` sums the unbiased HSIC over batches before the ratio.
    batch_size : int, default=512
        Rows of a minibatch, at least 4; a last batch with fewer than 4 is left out.
    random_state : int, default=0
        Seed of the assignment of rows to minibatches.

    Returns
    -------
    float, or 0-d torch tensor for torch input
        In [−1, 1], or [0, 1] if biased. 1 for spaces that are equal up to rotation, translation and isotropic scaling.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, IdError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or their rows are not paired.
    TooFewAnchorsError
        If there are fewer than 4 rows.
    ParameterError
        If an option has an invalid value.
    InputError
        If one side is constant.

    Notes
    -----
    O(n·d·e) operations and O(d·e) memory besides the data, or Gram matrices if n is smaller.

    References
    ----------
    Kornblith et al. (2019), "Similarity of neural network representations revisited"; Song et al. (2012); Nguyen et al.
    (2021), "Do wide and deep networks learn the same things?".

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> round(linear_cka(X, 3 * X[:, ::-1] + 1), 6)
    1.0
    """
    check_seed(random_state)
    check_choice(estimator, ESTIMATORS, "estimator")
    xp, A, B = native_pair(X, Y, min_rows=4)
    if estimator != "minibatch":
        return as_scalar(_ratio(A, B, kernels.hsic_biased if estimator == "biased" else kernels.hsic_unbiased))
    check_positive(batch_size, "batch_size", integer=True)
    if batch_size < 4:
        raise ParameterError(f"Got batch_size={batch_size}; expected at least 4 rows. Pass batch_size=4 or more.")
    order = np.random.default_rng(random_state).permutation(A.shape[0])
    totals = [xp.zeros((), dtype=xp.float64, device=device(A)) for _ in range(3)]
    for start in range(0, len(order) - 3, batch_size):
        rows = xp.asarray(np.sort(order[start : start + batch_size]), device=device(A))
        a, b = xp.take(A, rows, axis=0), xp.take(B, rows, axis=0)
        for k, value in enumerate(_hsic_terms(a, b, kernels.hsic_unbiased)):
            totals[k] = totals[k] + value
    return as_scalar(_divide(totals[0], totals[1], totals[2], xp))


def _hsic_terms(A: Array, B: Array, hsic: _HSIC) -> tuple[Array, Array, Array]:
    """Return HSIC of A with B, of A with itself and of B with itself, for linear kernels."""
    a, b = _means(A), _means(B)
    return (
        hsic(kernels.linear_sums(A, B, a, b)),
        hsic(kernels.linear_sums(A, A, a, a)),
        hsic(kernels.linear_sums(B, B, b, b)),
    )


def _ratio(A: Array, B: Array, hsic: _HSIC) -> Array:
    return _divide(*_hsic_terms(A, B, hsic), namespace(A, B))


def _divide(cross: Array, first: Array, second: Array, xp: ArrayNamespace) -> Array:
    for value in (first, second):
        if not float(to_numpy(value)) > 0:
            raise InputError(
                "Got a kernel that does not vary between pairs; expected some rows more alike than others. "
                "Drop constant vectors, or pass another bandwidth=…."
            )
    return cross / (xp.sqrt(first) * xp.sqrt(second))


def _means(A: Array) -> Array:
    """Column means in float64, computed block by block so that half precision is never summed directly."""
    xp = namespace(A)
    total = xp.zeros(A.shape[1], dtype=xp.float64, device=device(A))
    for part in blocks(A.shape[0], 8 * A.shape[1]):
        total = total + xp.sum(xp.astype(A[part, :], xp.float64), axis=0)
    return total / A.shape[0]


@overload
def rbf_cka(
    X: TensorT,
    Y: RowsLike,
    *,
    estimator: str = "debiased",
    bandwidth: float | str = "median",
    fraction: float = 1.0,
) -> TensorT: ...
@overload
def rbf_cka(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    estimator: str = "debiased",
    bandwidth: float | str = "median",
    fraction: float = 1.0,
) -> float: ...
def rbf_cka(
    X: RowsLike,
    Y: RowsLike,
    *,
    estimator: str = "debiased",
    bandwidth: float | str = "median",
    fraction: float = 1.0,
) -> float | Tensor:
    """Centered kernel alignment with Gaussian kernels.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    estimator : {"debiased", "biased"}, default="debiased"
    bandwidth : "median" or float, default="median"
        σ in exp(−‖x − x'‖² / 2σ²). ``"median"``: σ² is ``fraction``² times the median of the non-zero squared
        distances of each side (of at most 4,000 rows).
    fraction : float, default=1.0
        Factor of the median distance; Kornblith et al. use 0.2 to 0.8.

    Returns
    -------
    float, or 0-d torch tensor for torch input

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, IdError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or their rows are not paired.
    TooFewAnchorsError
        If there are fewer than 4 rows.
    ParameterError
        If an option has an invalid value.
    InputError
        If one side is constant, or its kernel is, because of the bandwidth.

    Notes
    -----
    O(n²·(d + e)) operations, O(n·(d + e)) memory. With a small ``fraction`` every row is similar only to itself.
    A fixed ``bandwidth`` is in the units of the vectors.

    References
    ----------
    Kornblith et al. (2019), section 4.
    """
    check_choice(estimator, ("debiased", "biased"), "estimator")
    check_positive(fraction, "fraction")
    if bandwidth != "median":
        check_positive(bandwidth, "bandwidth")
    xp, A, B = native_pair(X, Y, min_rows=4)
    A, B = (xp.astype(side, xp.float64) - _means(side) for side in (A, B))
    scales = []
    for side in (A, B):
        square = float(bandwidth) ** 2 if bandwidth != "median" else _median(side) * fraction**2
        if square == 0:
            raise InputError(
                "Got rows that are all equal; expected rows that differ. Pass the encoder different items."
            )
        scales.append(2 * square)
    hsic = kernels.hsic_biased if estimator == "biased" else kernels.hsic_unbiased
    cross = hsic(kernels.rbf_sums(A, B, *scales))
    first = hsic(kernels.rbf_sums(A, A, scales[0], scales[0]))
    second = hsic(kernels.rbf_sums(B, B, scales[1], scales[1]))
    return as_scalar(_divide(cross, first, second, xp))


def _median(side: Array) -> float:
    return kernels.median_squared_distance(side.detach() if is_tensor(side) else side)


@overload
def cross_kernel_cka(F: TensorT, G: RowsLike, F_other: RowsLike, G_other: RowsLike) -> TensorT: ...
@overload
def cross_kernel_cka(F: ArrayLike, G: ArrayLike, F_other: ArrayLike, G_other: ArrayLike) -> float: ...
def cross_kernel_cka(F: RowsLike, G: RowsLike, F_other: RowsLike, G_other: RowsLike) -> float | Tensor:
    """Centered alignment of the image–text kernels of two models, ⟨f(xᵢ), g(yⱼ)⟩ and ⟨f̃(xᵢ), g̃(yⱼ)⟩.

    Parameters
    ----------
    F, G : array_like, shape (n, d) and (m, d)
        Images and texts in one model.
    F_other, G_other : array_like, shape (n, e) and (m, e)
        The same images and texts in the other model.

    Returns
    -------
    float, or 0-d torch tensor for torch input
        In [−1, 1]. Rows and columns of both kernels are centered before the comparison.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, IdError, TooFewAnchorsError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity; their rows are not paired; or there are fewer
        than two images or texts.
    InputError
        If a centered kernel is zero.

    Notes
    -----
    With centered F and G, ⟨FGᵀ, F̃G̃ᵀ⟩ = Σ (FᵀF̃) ∘ (GᵀG̃): no n × m array is formed.

    References
    ----------
    Gupta et al. (2026), figure 3b.
    """
    xp, A, A_other = native_pair(F, F_other, names=("F", "F_other"))
    _, B, B_other = native_pair(G, G_other, names=("G", "G_other"))
    for images, texts in ((A, B), (A_other, B_other)):
        if images.shape[1] != texts.shape[1]:
            raise ShapeError(
                f"Got images {images.shape[1]}-d and texts {texts.shape[1]}-d of one model; expected one width. Pass the arguments in the order images, texts of one model, then of the other."
            )
    A, B, A_other, B_other = (xp.astype(M, xp.float64) - _means(M) for M in (A, B, A_other, B_other))

    def inner(a: Array, b: Array, c: Array, d: Array) -> Array:
        return xp.sum(xp.matmul(a.T, c) * xp.matmul(b.T, d))

    cross = inner(A, B, A_other, B_other)
    return as_scalar(_divide(cross, inner(A, B, A, B), inner(A_other, B_other, A_other, B_other), xp))
