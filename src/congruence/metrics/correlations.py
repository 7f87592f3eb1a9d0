"""Canonical correlations of two spaces: CCA, SVCCA and PWCCA.

Nothing here forms or inverts a covariance. Each side is reduced to an orthonormal basis by QR or SVD, and the canonical
correlations are the singular values of the product of the bases (Björck and Golub 1973), so that an ill-conditioned
side costs no digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence._utils.arrays import device, namespace, to_numpy
from congruence._utils.validation import (
    as_matrix,
    check_choice,
    check_positive,
    check_same_rows,
    check_scale,
    check_width,
)
from congruence.errors import InputError, ParameterError
from congruence.linalg.canonical import canonical_correlations, canonical_directions, gains, whiten
from congruence.metrics._base import float_pair

__all__ = ["CCAFit", "cca", "fit_cca", "kept", "pwcca", "spectrum", "svcca"]

_EPS = float(np.finfo(np.float64).eps)
_COMPONENTS = ("mean", "first", "all")


# ------------------------------------------------------------------ input


def _check_options(components: str, rank: Any, reduce: Any, ridge: Any, reductions: tuple[Any, ...]) -> None:
    check_choice(components, _COMPONENTS, "components")
    if reduce not in reductions:
        raise ParameterError(
            f"Got reduce={reduce!r}; expected one of {', '.join(map(repr, reductions))}. Choose one of these."
        )
    check_positive(rank, "rank", integer=True)
    check_positive(ridge, "ridge", zero=True)


def _constant(name: str, n: int) -> InputError:
    return InputError(
        f"Got {n} equal rows in {name}; expected rows that differ, since a correlation needs variance. Drop repeated items, or look at the encoder's outputs."
    )


def _contrasts(xp: Any, A: Any, name: str) -> Any:
    """Return n − 1 orthonormal contrasts of A's rows, columns without variance dropped, largest entry 1.

    Inner products of columns are those of the centered columns, but no direction is lost: with fewer rows than columns
    a centered matrix has a singular value of 0, which spoils the gradient of its decomposition.
    """
    n = A.shape[0]
    # Subtracting the first row leaves exact zeros in constant columns. What follows is Householder's reflection that
    # turns the mean into the first axis, without that axis.
    C = A[1:, :] - A[:1, :]
    C = C - xp.sum(C, axis=0, keepdims=True) / (n - n**0.5)
    size = xp.max(xp.abs(C), axis=0)
    varies = size > 4 * _EPS * xp.max(xp.abs(A), axis=0)  # else: rounding of the caller's own arithmetic
    if not bool(xp.any(varies)):
        raise _constant(name, n)
    C = C[:, varies]
    return C / xp.max(size)  # keeps squares from overflowing or vanishing


def _number(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value)  # torch warns of leaving the graph


# ------------------------------------------------------------------ bases


def spectrum(xp: Any, C: Any) -> tuple[Any, Any, Any]:
    """Return U, s and Vᵀ of C without the directions that are only rounding."""
    U, s, Vt = xp.linalg.svd(C, full_matrices=False)
    r = int(xp.sum(xp.astype(s > max(C.shape) * _EPS * s[0], xp.int64)))
    return U[:, :r], s[:r], Vt[:r, :]


def _kernel_spectrum(xp: Any, A: Any, name: str) -> tuple[Any, Any]:
    """Return basis and singular values of A's centered RBF features; see :func:`cca` for the bandwidth."""
    n = A.shape[0]
    C = A - A[:1, :]
    C = C - xp.mean(C, axis=0, keepdims=True)
    top = xp.max(xp.abs(C))
    if _number(top) <= 4 * _EPS * _number(xp.max(xp.abs(A))):
        raise _constant(name, n)
    C = C / top
    norms = xp.sum(C * C, axis=1)
    squared = xp.clip(norms[:, None] + norms[None, :] - 2 * (C @ xp.matrix_transpose(C)), 0.0, None)
    rows = xp.arange(n, device=device(A))
    pairs = xp.sort(squared[rows[:, None] < rows[None, :]])
    median = (pairs[(len(pairs) - 1) // 2] + pairs[len(pairs) // 2]) / 2
    if _number(median) <= 64 * _EPS * _number(xp.max(norms)):
        raise InputError(
            f"Got a median distance of 0 between rows of {name}; expected rows that differ mostly, since the "
            "kernel's bandwidth is that median. Drop duplicates, or pass reduce='pca'."
        )
    K = xp.exp(-squared / (2 * median))
    K = K - xp.mean(K, axis=0, keepdims=True)
    K = K - xp.mean(K, axis=1, keepdims=True)
    values, vectors = xp.linalg.eigh((K + xp.matrix_transpose(K)) / 2)
    values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
    r = int(xp.sum(xp.astype(values > n * _EPS * values[0], xp.int64)))
    return vectors[:, :r], xp.sqrt(values[:r])


def _gains(xp: Any, s: Any, ridge: float) -> Any:
    """Return what a ridge leaves of each basis direction; λ is a share of the mean variance."""
    return gains(xp, s, ridge * xp.mean(s * s))


def _basis(xp: Any, A: Any, name: str, rank: int, reduce: str | None, ridge: float) -> Any:
    """Return the whitened side: orthonormal columns, or shorter ones where a ridge damps them."""
    if reduce == "kernel":
        U, s = _kernel_spectrum(xp, A, name)
        U, s = U[:, :rank], s[:rank]
        return U if ridge == 0 else U * _gains(xp, s, ridge)
    C = _contrasts(xp, A, name)
    if reduce is None and ridge == 0:
        # The span is all that counts: columns of one length make a column in other units no rank question. QR keeps
        # the gradient where singular values repeat, for example on whitened data, but needs full rank.
        C = C / xp.max(xp.abs(C), axis=0)
        C = C / xp.sqrt(xp.sum(C * C, axis=0))
        if C.shape[0] >= C.shape[1]:
            Q, R = xp.linalg.qr(C)
            s = xp.linalg.svdvals(R)
            if bool(s[-1] > max(C.shape) * _EPS * s[0]):
                return Q
    U, s, _ = spectrum(xp, C)
    if reduce == "pca":
        U, s = U[:, :rank], s[:rank]
    return U if ridge == 0 else U * _gains(xp, s, ridge)


def _summary(xp: Any, correlations: Any, components: str) -> Any:
    """Return the correlations asked for: a float of NumPy's, a tensor of torch's."""
    if components == "all":
        return correlations
    value = correlations[0] if components == "first" else xp.mean(correlations)
    return value if hasattr(value, "detach") else float(value)


# ------------------------------------------------------------------ measures


def cca(
    X: Any,
    Y: Any,
    *,
    components: str = "mean",
    rank: int = 50,
    reduce: str | None = "pca",
    ridge: float = 0.0,
) -> Any:
    """Canonical correlations of paired rows, in sample.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
        Row i belongs to row i of X; widths may differ.
    components : {"mean", "first", "all"}, default="mean"
        The mean of the canonical correlations, the largest, or all, descending. There are min(r_x, r_y) of them, r the
        dimension of a side after reduction.
    rank : int, default=50
        Dimensions each side is reduced to, or as many as it varies in, if these are fewer.
    reduce : {"pca", "kernel", None}, default="pca"
        ``"pca"``: leading principal components. ``"kernel"``: leading components of kernel PCA with the kernel
        exp(−‖a − b‖² / 2m), m the median of the squared distances of different rows; needs O(n²) memory.
        ``None``: all directions, and ``rank`` is not used; the only choice that is invariant to every invertible map.
    ridge : float, default=0.0
        Added to the variance in every direction, as a share of the mean variance of the directions kept: the covariance
        C becomes C + ridge · tr(C)/r · I (Vinod 1976), which shrinks the correlations.

    Returns
    -------
    float, ndarray of shape (k,), or tensor
        In [0, 1]. Torch in, torch out, and differentiable: with reduction or deficient rank where the singular values
        of the sides are distinct, always else.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ParameterError
    TooFewAnchorsError
        Fewer than two rows.
    InputError
        All rows of a side are equal; or, for the kernel, more than half of the pairs are.

    Notes
    -----
    In-sample correlations saturate: of independent noise, r_x + r_y − (n − 1) of them are exactly 1 once this number
    is positive, all of them for r ≥ n − 1, and from r ≈ n/2 on the first is always 1. Keep ``rank`` far below n, or ask
    for correlations on rows not fitted, :func:`fit_cca`.

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates".
    Björck and Golub (1973), "Numerical methods for computing angles between linear subspaces".
    """
    _check_options(components, rank, reduce, ridge, ("pca", "kernel", None))
    xp, A, B = float_pair(X, Y)
    Qx, Qy = _basis(xp, A, "X", rank, reduce, ridge), _basis(xp, B, "Y", rank, reduce, ridge)
    return _summary(xp, canonical_correlations(xp, Qx, Qy), components)


def kept(xp: Any, s: Any, keep: float | int) -> int:
    """Return how many components :func:`svcca` keeps, by number or by share of the variance."""
    if isinstance(keep, (int, np.integer)):
        return int(keep)
    variances = to_numpy(s) ** 2
    share = np.cumsum(variances) / np.sum(variances)
    # A share reached but for rounding counts as reached.
    return int(np.count_nonzero(share < keep - 8 * _EPS)) + 1


def svcca(X: Any, Y: Any, *, keep: float | int = 0.99, components: str = "mean", standardize: bool = False) -> Any:
    """Singular vector CCA: canonical correlations of the leading principal components.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    keep : float or int, default=0.99
        A float in (0, 1]: the fewest components whose variances sum to this share, on each side. An int: that many, or
        all there are. So ``1.0`` keeps everything and ``1`` a single component.
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
    InputError
        All rows of a side are equal.

    Notes
    -----
    The decomposition is complete and deterministic. Unchanged by translations, rotations and isotropic scaling of
    either side; with ``standardize`` by translations and scaling of columns, and no longer by rotations. Saturates as :func:`cca` does.

    References
    ----------
    Raghu, Gilmer, Yosinski and Sohl-Dickstein (2017), "SVCCA: singular vector canonical correlation analysis for deep
    learning dynamics and interpretability", NeurIPS.
    """
    check_choice(components, _COMPONENTS, "components")
    check_positive(keep, "keep")
    if not isinstance(keep, (int, np.integer)) and keep > 1:
        raise ParameterError(
            f"Got keep={keep!r}; expected a share of variance in (0, 1] or a whole number of components. Pass keep=0.99, for example."
        )
    xp, A, B = float_pair(X, Y)
    bases = []
    for side, name in ((A, "X"), (B, "Y")):
        C = _contrasts(xp, side, name)
        if standardize:
            C = C / xp.max(xp.abs(C), axis=0)  # first: squares of a column far smaller than the rest would vanish
            C = C / xp.sqrt(xp.sum(C * C, axis=0))
        U, s, _ = spectrum(xp, C)
        bases.append(U[:, : kept(xp, s, keep)])
    return _summary(xp, canonical_correlations(xp, *bases), components)


def pwcca(X: Any, Y: Any, *, rank: int | None = None, weights: str = "X") -> Any:
    """Projection-weighted CCA: the canonical correlations, averaged by how much one side uses each variate.

    Variate hᵢ of the weighting side counts Σⱼ |⟨hᵢ, zⱼ⟩|, zⱼ that side's centered columns; weights are scaled to sum 1.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    rank : int, optional
        Reduce each side to this many principal components before the CCA, which every n < 2d asks for; the weights
        still see all columns. By default nothing is reduced.
    weights : {"X", "Y"}, default="X"
        The side whose variates and columns make the weights, hence ``pwcca(X, Y)`` ≠ ``pwcca(Y, X)`` in general.
        The authors' program takes the side with fewer columns instead, and adds the column means to the variates.

    Returns
    -------
    float or 0-d tensor
        In [0, 1]; torch in, torch out, differentiable where the correlations, and the singular values of the sides, are
        distinct.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, TooFewAnchorsError, ParameterError
    InputError
        All rows of a side are equal.

    Notes
    -----
    Columns enter one by one, so the weights change with a rotation of the weighting side, and with the scale of a
    column; the other side may undergo any invertible map. Equal canonical correlations share their subspace, and variates there
    are arbitrary; this matters only for how the group's weight compares with the others'. With n ≤ d all correlations,
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
    Qx, Qy = (_basis(xp, side, name, rank or 1, reduce, 0.0) for side, name in ((A, names[0]), (B, names[1])))
    U, correlations, _ = xp.linalg.svd(xp.matrix_transpose(Qx) @ Qy, full_matrices=False)
    used = xp.sum(xp.abs(xp.matrix_transpose(Qx @ U) @ _contrasts(xp, A, names[0])), axis=1)
    value = xp.sum(used / xp.sum(used) * xp.clip(correlations, 0.0, 1.0))
    return value if hasattr(value, "detach") else float(value)


# ------------------------------------------------------------------ held out


@dataclass(frozen=True, eq=False)
class CCAFit:
    """Canonical directions of two spaces, to be tried on rows they were not fitted on.

    Attributes
    ----------
    x_mean : ndarray of float64, shape (d_x,)
    y_mean : ndarray of float64, shape (d_y,)
    x_projection : ndarray of float64, shape (d_x, k)
        ``(X - x_mean) @ x_projection`` are the canonical variates, of unit variance on the rows fitted (without ridge).
    y_projection : ndarray of float64, shape (d_y, k)
    correlations : ndarray of float64, shape (k,)
        Canonical correlations on the rows fitted, descending.
    """

    x_mean: np.ndarray = field(repr=False)
    y_mean: np.ndarray = field(repr=False)
    x_projection: np.ndarray = field(repr=False)
    y_projection: np.ndarray = field(repr=False)
    correlations: np.ndarray

    def transform(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the canonical variates of both sides.

        Parameters
        ----------
        X : array_like, shape (n, d_x)
        Y : array_like, shape (n, d_y)

        Returns
        -------
        tuple of ndarray of float64, each of shape (n, k)

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
        """
        A, B = as_matrix(X, "X", allow_zero_rows=True), as_matrix(Y, "Y", allow_zero_rows=True)
        check_same_rows(len(A), len(B), "X", "Y")
        check_width(A.shape[1], len(self.x_mean), "CCAFit")
        check_width(B.shape[1], len(self.y_mean), "CCAFit")
        return (
            (A.astype(np.float64) - self.x_mean) @ self.x_projection,
            (B.astype(np.float64) - self.y_mean) @ self.y_projection,
        )

    def score(self, X: Any, Y: Any, *, components: str = "mean") -> Any:
        """Correlate the two sides' variates on new rows.

        Parameters
        ----------
        X : array_like, shape (n, d_x)
        Y : array_like, shape (n, d_y)
        components : {"mean", "first", "all"}, default="mean"
            In the order of the fit, in which held-out correlations need not descend.

        Returns
        -------
        float or ndarray of shape (k,)
            In [-1, 1]: around 0 where the fit found nothing but noise.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ParameterError
        TooFewAnchorsError
            Fewer than two rows.
        InputError
            A variate does not vary on these rows.
        """
        check_choice(components, _COMPONENTS, "components")
        as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
        a, b = self.transform(X, Y)
        scales = []
        for variates, name in ((a, "X"), (b, "Y")):
            noise = 64 * _EPS * (np.abs(variates).max(axis=0) + 1)  # variates are of size 1
            variates -= variates.mean(axis=0)
            scale = np.linalg.norm(variates, axis=0)
            if (scale <= noise * np.sqrt(len(variates))).any():
                raise InputError(
                    f"Got rows of {name} on which canonical variate {int(np.argmin(scale))} does not vary; expected "
                    "rows that differ, since a correlation needs variance. Pass other or more rows."
                )
            scales.append(scale)
        return _summary(np, np.clip(np.einsum("ij,ij->j", a, b) / (scales[0] * scales[1]), -1.0, 1.0), components)


def fit_cca(X: Any, Y: Any, *, rank: int = 50, reduce: str | None = "pca", ridge: float = 0.0) -> CCAFit:
    """Find the canonical directions of paired rows, for correlations on other rows.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    rank, ridge
        As in :func:`cca`.
    reduce : {"pca", None}, default="pca"
        As in :func:`cca`; kernel components have no projection.

    Returns
    -------
    CCAFit
        In NumPy, whatever came in. Its ``score`` is the honest number: in sample, CCA reaches 1 on noise as soon as
        the dimensions are about half as many as the rows (see :func:`cca`).

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, TooFewAnchorsError, ParameterError
    InputError
        All rows of a side are equal.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((2, 100, 60))
    >>> fit = fit_cca(X[:50], Y[:50], rank=40)
    >>> bool(fit.correlations.mean() > 0.8), abs(fit.score(X[50:], Y[50:])) < 0.1
    (True, True)

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates".
    """
    _check_options("mean", rank, reduce, ridge, ("pca", None))
    A, B = as_matrix(X, "X", min_rows=2, allow_zero_rows=True), as_matrix(Y, "Y", min_rows=2, allow_zero_rows=True)
    check_scale(A, "X", squares=False)
    check_scale(B, "Y", squares=False)
    check_same_rows(len(A), len(B), "X", "Y")
    means, scales, whitened = [], [], []
    for side, name in ((A, "X"), (B, "Y")):
        side = side.astype(np.float64)
        origin = side[0]
        shifted = side - origin  # exact zeros in constant columns
        mean = shifted.mean(axis=0)
        C = shifted - mean
        unit = np.abs(C).max(axis=0)
        unit[unit <= 4 * _EPS * np.abs(side).max(axis=0)] = 0
        if not unit.any():
            raise _constant(name, len(side))
        if reduce is None and ridge == 0:  # as in _basis: the span is all that counts
            unit = unit * np.linalg.norm(C / np.where(unit > 0, unit, 1), axis=0)
        else:
            unit = np.where(unit > 0, unit.max(), 0)
        inverse = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0)
        U, s, Vt = spectrum(namespace(C), C * inverse)
        if reduce == "pca":
            U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
        means.append(origin + mean)
        scales.append(inverse[:, None] * np.sqrt(len(side) - 1))  # variates of unit variance, in the caller's units
        whitened.append(whiten(U, s, Vt, ridge * float(np.mean(s * s))))
    found = canonical_directions(*whitened)
    return CCAFit(
        means[0], means[1], scales[0] * found.x_directions, scales[1] * found.y_directions, found.correlations
    )
