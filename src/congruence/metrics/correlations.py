"""Canonical correlations of two spaces: CCA, SVCCA and PWCCA.

Nothing here forms or inverts a covariance. Each side is reduced to an orthonormal basis by QR or SVD, and the canonical
correlations are the singular values of the product of the bases (Björck and Golub 1973), so that an ill-conditioned
side costs no digits.
"""

from __future__ import annotations

from types import ModuleType
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import to_numpy
from congruence._utils.typing import Array, ArrayNamespace, RowsLike, Tensor, TensorT
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import ParameterError
from congruence.linalg.canonical import canonical_correlations
from congruence.metrics._base import as_scalar, float_pair
from congruence.metrics._bases import COMPONENTS, EPS, check_options, contrasts, spectrum, summarize, whitened

__all__ = ["cca", "count_kept", "pwcca", "svcca"]


def cca(
    X: RowsLike,
    Y: RowsLike,
    *,
    components: str = "mean",
    rank: int = 50,
    reduce: str | None = "pca",
    ridge: float = 0.0,
) -> float | Array:
    """Canonical correlations of paired rows, in sample.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
        Row i belongs to row i of X; widths may differ.
    components : {"mean", "first", "all"}, default="mean"
        The mean of the canonical correlations, the largest, or all, descending. There are min(r_x, r_y) of them, where r is the
        dimension of a side after reduction.
    rank : int, default=50
        Number of dimensions each side is reduced to, or the number of dimensions in which it varies, if smaller.
    reduce : {"pca", "kernel", None}, default="pca"
        ``"pca"``: leading principal components. ``"kernel"``: leading components of kernel PCA with the kernel
        exp(−‖a − b‖² / 2m), where m is the median of the squared distances of different rows; requires O(n²) memory.
        ``None``: all directions, and ``rank`` is not used; the only choice that is invariant to every invertible linear map.
    ridge : float, default=0.0
        Added to the variance in every direction, as a share of the mean variance of the directions kept: the covariance
        C becomes C + ridge · tr(C)/r · I (Vinod 1976), which shrinks the correlations.

    Returns
    -------
    float, ndarray of shape (k,), or tensor
        In [0, 1]. Torch input gives torch output, which is differentiable; with reduction or deficient rank only where the singular values
        of the sides are distinct.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ParameterError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or a parameter has an invalid value.
    TooFewAnchorsError
        If there are fewer than two rows.
    InputError
        If all rows of a side are equal or, for the kernel, more than half of the pairs are.

    Notes
    -----
    In-sample correlations saturate: for independent noise, r_x + r_y − (n − 1) of them are exactly 1 if this number
    is positive, all of them if r ≥ n − 1, and from r ≈ n/2 on the first is always 1. Keep ``rank`` far below n, or
    compute correlations on rows not used in the fit, with :func:`~congruence.metrics.fit_cca`.

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates".
    Björck and Golub (1973), "Numerical methods for computing angles between linear subspaces".
    """
    check_options(components, rank, reduce, ridge, ("pca", "kernel", None))
    xp, A, B = float_pair(X, Y)
    Qx, Qy = whitened(xp, A, "X", rank, reduce, ridge), whitened(xp, B, "Y", rank, reduce, ridge)
    return summarize(xp, canonical_correlations(xp, Qx, Qy), components)


def count_kept(xp: ArrayNamespace | ModuleType, s: Array, keep: float | int) -> int:
    """Return the number of components that :func:`svcca` keeps; ``s`` are the singular values, shape (r,), descending."""
    if isinstance(keep, (int, np.integer)):
        return int(keep)
    variances = to_numpy(s) ** 2
    share = np.cumsum(variances) / np.sum(variances)
    # A share that is reached up to rounding error counts as reached.
    return int(np.count_nonzero(share < keep - 8 * EPS)) + 1


def svcca(
    X: RowsLike, Y: RowsLike, *, keep: float | int = 0.99, components: str = "mean", standardize: bool = False
) -> float | Array:
    """Singular vector CCA: canonical correlations of the leading principal components.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    keep : float or int, default=0.99
        A float in (0, 1]: the fewest components whose variances sum to this share, on each side. An int: this number of components, or
        all if there are fewer. So ``1.0`` keeps everything and ``1`` a single component.
    components : {"mean", "first", "all"}, default="mean"
        The paper's similarity is the mean.
    standardize : bool, default=False
        Divide each column by its standard deviation before the principal components are taken, as the code of Huh et al. (2024) does; columns
        that do not vary are dropped. The papers of SVCCA and of JAM center columns only.

    Returns
    -------
    float, ndarray of shape (k,), or tensor
        In [0, 1]; torch in, torch out, differentiable where the singular values of the sides are distinct. The number
        of components kept is piecewise constant, so the value jumps where it changes.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity; there are too few rows; or a parameter has an invalid value.
    InputError
        If all rows of one side are equal.

    Notes
    -----
    The decomposition is complete and deterministic. Unchanged by translations, rotations and isotropic scaling of
    either side; with ``standardize`` by translations and scaling of columns, and no longer by rotations. Saturates as :func:`cca` does.

    References
    ----------
    Raghu, Gilmer, Yosinski and Sohl-Dickstein (2017), "SVCCA: singular vector canonical correlation analysis for deep
    learning dynamics and interpretability", NeurIPS.
    """
    check_choice(components, COMPONENTS, "components")
    check_positive(keep, "keep")
    if not isinstance(keep, (int, np.integer)) and keep > 1:
        raise ParameterError(
            f"Got keep={keep!r}; expected a share of variance in (0, 1] or a whole number of components. Pass keep=0.99, for example."
        )
    xp, A, B = float_pair(X, Y)
    bases = []
    for side, name in ((A, "X"), (B, "Y")):
        C = contrasts(xp, side, name)
        if standardize:
            C = C / xp.max(xp.abs(C), axis=0)  # before squaring, since squares of very small entries would underflow
            C = C / xp.sqrt(xp.sum(C * C, axis=0))
        U, s, _ = spectrum(xp, C)
        bases.append(U[:, : count_kept(xp, s, keep)])
    return summarize(xp, canonical_correlations(xp, *bases), components)


@overload
def pwcca(X: TensorT, Y: RowsLike, *, rank: int | None = None, weights: str = "X") -> TensorT: ...
@overload
def pwcca(X: ArrayLike, Y: ArrayLike, *, rank: int | None = None, weights: str = "X") -> float: ...
def pwcca(X: RowsLike, Y: RowsLike, *, rank: int | None = None, weights: str = "X") -> float | Tensor:
    """Projection-weighted CCA: the canonical correlations, averaged by how much one side uses each variate.

    The weight of variate hᵢ of the weighting side is Σⱼ |⟨hᵢ, zⱼ⟩| over that side's centered columns zⱼ; weights are scaled to sum to 1.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    rank : int, optional
        Reduce each side to this many principal components before the CCA, as is necessary if n < 2d; the weights
        are still computed from all columns. By default nothing is reduced.
    weights : {"X", "Y"}, default="X"
        The side from whose variates and columns the weights are computed, hence ``pwcca(X, Y)`` ≠ ``pwcca(Y, X)`` in general.
        The authors' code uses the side with fewer columns instead, and adds the column means to the variates.

    Returns
    -------
    float or 0-d tensor
        In [0, 1]; torch in, torch out, differentiable where the correlations, and the singular values of the sides, are
        distinct.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity; there are too few rows; or a parameter has an invalid value.
    InputError
        If all rows of one side are equal.

    Notes
    -----
    The weights depend on single columns, so they change with a rotation of the weighting side and with the scale of a
    column; they do not change with an invertible linear map of the other side. If canonical correlations are equal, their variates are an
    arbitrary basis of a common subspace, which affects only the total weight of that subspace. With n ≤ d all correlations,
    and so the result, are 1.

    References
    ----------
    Morcos, Raghu and Bengio (2018), "Insights on representational similarity in neural networks with canonical
    correlation", NeurIPS.
    """
    check_choice(weights, ("X", "Y"), "weights")
    if rank is not None:
        check_positive(rank, "rank", integer=True)
    xp, A, B = float_pair(X, Y)
    names = ("X", "Y")
    if weights == "Y":
        A, B, names = B, A, ("Y", "X")
    reduce = None if rank is None else "pca"
    Qx, Qy = (whitened(xp, side, name, rank or 1, reduce, 0.0) for side, name in ((A, names[0]), (B, names[1])))
    U, correlations, _ = xp.linalg.svd(xp.matrix_transpose(Qx) @ Qy, full_matrices=False)
    importance = xp.sum(xp.abs(xp.matrix_transpose(Qx @ U) @ contrasts(xp, A, names[0])), axis=1)
    return as_scalar(xp.sum(importance / xp.sum(importance) * xp.clip(correlations, 0.0, 1.0)))
