"""Canonical correlations of two spaces: CCA, SVCCA and PWCCA, and CCA of rows that were not used to fit it.

Nothing here forms or inverts a covariance. Each side is reduced to an orthonormal basis by QR or SVD, and the canonical
correlations are the singular values of the product of the bases (Björck and Golub 1973), so that an ill-conditioned
side costs no digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import NUMPY, blocks, device, is_tensor, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, RowsLike, Tensor
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
from congruence.metrics._base import (
    EPS,
    NOISE,
    OF_SHAPES,
    Metric,
    Spectrum,
    as_scalar,
    contrasts,
    decompose,
    equal_rows,
    float_pair,
    from_contrasts,
    narrowed,
    native_pair,
    nuclear_norm,
    own_precision,
    singular_vectors,
    spectrum,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPONENTS = ("mean", "first", "all")


def _check_options(
    components: str, rank: object, reduce: str | None, ridge: object, reductions: tuple[str | None, ...]
) -> None:
    """Check the options of CCA; ``reductions`` are the values that ``reduce`` may have."""
    check_choice(components, COMPONENTS, "components")
    check_choice(reduce, reductions, "reduce")
    check_positive(rank, "rank", integer=True)
    check_positive(ridge, "ridge", zero=True)


def _number(value: Array) -> float:
    return float(value.detach() if is_tensor(value) else value)  # torch warns about converting a tensor with a graph


def _kernel_spectrum(xp: ArrayNamespace, A: Array, name: str) -> tuple[Array, Array]:
    """Return the basis and singular values of A's centered RBF features; see ``cca`` for the bandwidth."""
    n = A.shape[0]
    C = A - A[:1, :]
    C = C - xp.mean(C, axis=0, keepdims=True)
    top = xp.max(xp.abs(C))
    if _number(top) <= NOISE * EPS * _number(xp.max(xp.abs(A))):
        raise equal_rows(name, n)
    C = C / top
    norms = xp.sum(C * C, axis=1)
    squared = xp.clip(norms[:, None] + norms[None, :] - 2 * (C @ xp.matrix_transpose(C)), 0.0, None)
    rows = xp.arange(n, device=device(A))
    pairs = xp.sort(squared[rows[:, None] < rows[None, :]])
    median = (pairs[(len(pairs) - 1) // 2] + pairs[len(pairs) // 2]) / 2
    if _number(median) <= 64 * EPS * _number(xp.max(norms)):
        raise InputError(
            f"The median distance between rows of {name} is 0.", ("Drop duplicates.", "Pass `reduce='pca'`.")
        )
    K = xp.exp(-squared / (2 * median))
    K = K - xp.mean(K, axis=0, keepdims=True)
    K = K - xp.mean(K, axis=1, keepdims=True)
    values, vectors = xp.linalg.eigh((K + xp.matrix_transpose(K)) / 2)
    values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
    r = int(xp.sum(xp.astype(values > n * EPS * values[0], xp.int64)))
    return vectors[:, :r], xp.sqrt(values[:r])


def _whitened(xp: ArrayNamespace, A: Array, name: str, rank: int, reduce: str | None, ridge: float) -> Array:
    """Return a side's orthonormal columns, shorter ones with a ridge."""
    if reduce == "kernel":
        U, s = _kernel_spectrum(xp, A, name)
        return _shrink(xp, U[:, :rank], s[:rank], ridge)
    C = contrasts(xp, A, name)
    if reduce is None and ridge == 0:
        # Only the span matters: with columns of unit length, a column in other units does not affect the numerical
        # rank. QR stays differentiable if singular values repeat, for example on whitened data, but needs full rank.
        C = C / xp.max(xp.abs(C), axis=0)
        C = C / xp.sqrt(xp.sum(C * C, axis=0))
        if C.shape[0] >= C.shape[1] or not is_tensor(C):
            Q, R = xp.linalg.qr(C) if C.shape[0] >= C.shape[1] else (xp.eye(C.shape[0]), narrowed(C))
            s = xp.linalg.svdvals(R)
            if bool(s[-1] > max(C.shape) * EPS * s[0]):
                return Q
    U, s = decompose(xp, C, rank if reduce == "pca" else None)
    return _shrink(xp, U, s, ridge)


def _quick_whitened(A: Array, rank: int) -> np.ndarray | None:
    """Return the whitened leading principal coordinates (n, rank) of many float32 rows, from products in this
    precision; None where they would lose digits, or do not tell which components lead.
    """
    if not (isinstance(A, np.ndarray) and A.dtype == np.float32 and rank < A.shape[1] < len(A)):
        return None
    if not 1e-15 < max(float(A.max()), -float(A.min())) < 1e15:  # squares would leave the range
        return None
    mean = A.mean(axis=0, dtype=np.float64)
    parts = list(blocks(len(A), 4 * A.shape[1], budget=2**22))
    gram = np.zeros((A.shape[1],) * 2)
    for part in parts:
        C = A[part] - mean.astype(np.float32)
        gram += C.T @ C
    values, vectors = np.linalg.eigh(gram)
    if not values[-1] > 0:
        return None
    leading, gap = values[-rank] / values[-1], (values[-rank] - values[-rank - 1]) / values[-1]
    if not (leading > 1e-3 and gap > 1e-5) or len(A) * float(mean @ mean) > 1e4 * values[-1]:
        return None
    axes = vectors[:, -rank:].astype(np.float32)
    rows = np.concatenate([(A[part] - mean.astype(np.float32)) @ axes for part in parts]).astype(np.float64)
    rows -= rows.mean(axis=0)
    return np.asarray(rows @ np.linalg.inv(np.linalg.cholesky(rows.T @ rows)).T)


def _shrink(xp: ArrayNamespace, U: Array, s: Array, ridge: float) -> Array:
    return U if ridge == 0 else U * gains(xp, s, ridge * xp.mean(s * s))


def _summarize(xp: Any, correlations: Any, components: str) -> Any:
    """Return the mean, the first or all correlations."""
    if components == "all":
        return correlations
    return as_scalar(correlations[0] if components == "first" else xp.mean(correlations))


def _count_kept(s: Array, keep: float | int) -> int:
    """Return the number of components that ``svcca`` keeps, from the descending singular values ``s`` (r,)."""
    if isinstance(keep, (int, np.integer)):
        return int(keep)
    variances = to_numpy(s) ** 2
    share = np.cumsum(variances) / np.sum(variances)
    # A share that is reached up to rounding error counts as reached.
    return int(np.count_nonzero(share < keep - 8 * EPS)) + 1


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

    Torch input gives torch output, in [0, 1], which is differentiable; with reduction or deficient rank only where the
    singular values of the sides are distinct.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d_x) and (n, d_y)
    components : {"mean", "first", "all"}, default="mean"
        The mean of the canonical correlations, the largest, or all, descending: as many as the narrower side, after
        reduction, has dimensions.
    rank : int, default=50
        Number of dimensions each side is reduced to, if it varies in more.
    reduce : {"pca", "kernel", None}, default="pca"
        ``"pca"``: leading principal components. ``"kernel"``: leading components of kernel PCA with the kernel
        exp(−‖a − b‖² / 2m), where m is the median of the squared distances of different rows; requires O(n²) memory.
        ``None``: all directions, and ``rank`` is not used; the only choice that is invariant to every invertible linear
        map.
    ridge : float, default=0.0
        Added to the variance in every direction, as a share of the mean variance of the directions kept: the covariance
        C becomes C + ridge · tr(C)/r · I (Vinod 1976), which shrinks the correlations.

    Notes
    -----
    In-sample correlations saturate: for independent noise, r_x + r_y − (n − 1) of them are exactly 1 if this number
    is positive, all of them if r ≥ n − 1, and from r ≈ n/2 on the first is always 1. Keep ``rank`` far below n, or
    compute correlations on rows not used in the fit, with ``fit_cca``.

    Source: Hotelling (1936), "Relations between two sets of variates".
    Björck and Golub (1973), "Numerical methods for computing angles between linear subspaces".
    """
    _check_options(components, rank, reduce, ridge, ("pca", "kernel", None))
    if reduce == "pca" and ridge == 0:
        _, *given = native_pair(X, Y)
        quick = [_quick_whitened(side, rank) for side in given]
        if quick[0] is not None and quick[1] is not None:
            return _summarize(NUMPY, canonical_correlations(NUMPY, *quick), components)
    xp, A, B = float_pair(X, Y)
    Qx, Qy = _whitened(xp, A, "X", rank, reduce, ridge), _whitened(xp, B, "Y", rank, reduce, ridge)
    return _summarize(xp, canonical_correlations(xp, Qx, Qy), components)


def svcca(
    X: RowsLike, Y: RowsLike, *, keep: float | int = 0.99, components: str = "mean", standardize: bool = False
) -> float | Array:
    """Singular vector CCA: canonical correlations of the leading principal components.

    Torch in, torch out, in [0, 1], differentiable where the singular values of the sides are distinct. Saturates as
    ``cca`` does.

    Parameters
    ----------
    keep : float or int, default=0.99
        A float in (0, 1]: the fewest components whose variances sum to this share, on each side. An int: this number of
        components, or all if there are fewer. So ``1.0`` keeps everything and ``1`` a single component.
    standardize : bool, default=False
        Divide each column by its standard deviation first, as the code of Huh et al. (2024) does; columns that do not
        vary are dropped. The papers of SVCCA and of JAM center columns only.

    Source: Raghu, Gilmer, Yosinski and Sohl-Dickstein (2017), "SVCCA: singular vector canonical correlation analysis
    for deep learning dynamics and interpretability", NeurIPS.
    """
    check_choice(components, COMPONENTS, "components")
    check_positive(keep, "keep")
    if not isinstance(keep, (int, np.integer)) and keep > 1:
        raise ParameterError(
            argument="keep", got=keep, expected="a share in (0, 1] or a whole number", fix="Pass `keep=0.99`."
        )
    xp, A, B = float_pair(X, Y)
    bases = (_leading(xp, side, name, keep, standardize) for side, name in ((A, "X"), (B, "Y")))
    return _summarize(xp, canonical_correlations(xp, *bases), components)


def _leading(xp: ArrayNamespace, A: Array, name: str, keep: float | int = 0.99, standardize: bool = False) -> Array:
    """Return an orthonormal basis of a side's leading principal components."""
    C = contrasts(xp, A, name)
    if standardize:
        C = C / xp.max(xp.abs(C), axis=0)  # before squaring, since squares of very small entries would underflow
        C = C / xp.sqrt(xp.sum(C * C, axis=0))
    U, s = decompose(xp, C)
    return U[:, : _count_kept(s, keep)]


def pwcca(X: RowsLike, Y: RowsLike, *, rank: int | None = None) -> float | Tensor:
    """Projection-weighted CCA: the canonical correlations, averaged by how much X uses each variate.

    The weight of X's variate hᵢ is Σⱼ |⟨hᵢ, zⱼ⟩| over X's centered columns zⱼ; weights are scaled to sum to 1. (The
    authors' code takes the side with fewer columns instead of X, and adds the column means.)

    In [0, 1]; torch in, torch out, differentiable where the correlations, and the singular values of the sides, are
    distinct. ``rank`` reduces each side to this many principal components before the CCA, as is necessary if n < 2d
    (with n ≤ d the result is 1); the weights are still computed from all columns.

    Source: Morcos, Raghu and Bengio (2018), "Insights on representational similarity in neural networks with canonical
    correlation", NeurIPS.
    """
    if rank is not None:
        check_positive(rank, "rank", integer=True)
    xp, A, B = float_pair(X, Y)
    return as_scalar(_compare_weighted(xp, _weighted(xp, A, "X", rank), _weighted(xp, B, "Y", rank)))


class _Weighted(NamedTuple):
    """A whitened side, the coordinates of its columns in it, which do not depend on the order of the rows, and whether
    its columns span all differences of rows.
    """

    basis: Array
    coordinates: Array
    whole: bool


def _weighted(xp: ArrayNamespace, A: Array, name: str, rank: int | None = None) -> _Weighted:
    Q = _whitened(xp, A, name, rank or 1, None if rank is None else "pca", 0.0)
    whole = Q.shape[1] == Q.shape[0] and not is_tensor(Q)
    C = contrasts(xp, A, name)
    return _Weighted(Q, C if whole else xp.matrix_transpose(Q) @ C, whole)


def _compare_weighted(xp: ArrayNamespace, first: _Weighted, second: _Weighted) -> Array:
    if first.whole or second.whole:  # all correlations are 1
        return xp.asarray(1.0)
    U, correlations, _ = xp.linalg.svd(xp.matrix_transpose(first.basis) @ second.basis, full_matrices=False)
    importance = xp.sum(xp.abs(xp.matrix_transpose(U) @ first.coordinates), axis=1)
    return xp.sum(importance / xp.sum(importance) * xp.clip(correlations, 0.0, 1.0))


# ------------------------------------------------------------------ rows that were not used in the fit


@dataclass(frozen=True, eq=False)
class CCAFit:
    """Canonical directions of two spaces, to be evaluated on rows they were not fitted on.

    - ``x_projection``, ``y_projection``, shapes (d_x, k) and (d_y, k): ``(X - x_mean) @ x_projection`` are the
      canonical variates; without ridge they have unit variance on the rows of the fit.
    - ``correlations``, shape (k,): Canonical correlations on the rows of the fit, descending.
    """

    x_mean: np.ndarray = field(repr=False)
    y_mean: np.ndarray = field(repr=False)
    x_projection: np.ndarray = field(repr=False)
    y_projection: np.ndarray = field(repr=False)
    correlations: np.ndarray

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the canonical correlations on the rows of the fit, strongest first, on ``ax`` or new axes."""
        from congruence.plotting import draw_correlations

        return draw_correlations(self.correlations.tolist(), ax, annotate=annotate)

    def transform(self, X: ArrayLike, Y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the canonical variates (n, k) of X (n, d_x) and of Y (n, d_y)."""
        A, B = as_matrix(X, "X", allow_zero_rows=True), as_matrix(Y, "Y", allow_zero_rows=True)
        check_same_rows(len(A), len(B), "X", "Y")
        check_width(A.shape[1], len(self.x_mean), "CCAFit")
        check_width(B.shape[1], len(self.y_mean), "CCAFit")
        return (
            (A.astype(np.float64) - self.x_mean) @ self.x_projection,
            (B.astype(np.float64) - self.y_mean) @ self.y_projection,
        )

    def score(self, X: ArrayLike, Y: ArrayLike, *, components: str = "mean") -> float | np.ndarray:
        """Return the correlations of the variates of new rows, in [-1, 1]; ``components`` is as for ``cca``."""
        check_choice(components, COMPONENTS, "components")
        as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
        a, b = self.transform(X, Y)
        scales = []
        for variates, name in ((a, "X"), (b, "Y")):
            noise = 64 * EPS * (np.abs(variates).max(axis=0) + 1)  # variates have size 1
            variates -= variates.mean(axis=0)
            scale = np.linalg.norm(variates, axis=0)
            if (scale <= noise * np.sqrt(len(variates))).any():
                raise InputError(
                    f"Canonical variate {int(np.argmin(scale))} does not vary on these rows of {name}.",
                    "Pass other rows.",
                )
            scales.append(scale)
        correlations = np.clip(np.einsum("ij,ij->j", a, b) / (scales[0] * scales[1]), -1.0, 1.0)
        return _summarize(NUMPY, correlations, components)


def fit_cca(X: ArrayLike, Y: ArrayLike, *, rank: int = 50, reduce: str | None = "pca", ridge: float = 0.0) -> CCAFit:
    """Find the canonical directions of paired rows X (n, d_x) and Y (n, d_y), for correlations on other rows.

    ``rank``, ``reduce`` (without ``"kernel"``, whose components are not linear projections) and ``ridge`` are as for
    ``cca``. Use the ``score`` of the result, NumPy arrays whatever the input: in-sample correlations reach 1 on noise
    if there are about half as many dimensions as rows.

    Source: Hotelling (1936), "Relations between two sets of variates".

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((2, 100, 60))
    >>> fit = fit_cca(X[:50], Y[:50], rank=40)
    >>> bool(fit.correlations.mean() > 0.8), abs(fit.score(X[50:], Y[50:])) < 0.1
    (True, True)
    """
    _check_options("mean", rank, reduce, ridge, ("pca", None))
    A, B = as_matrix(X, "X", min_rows=2, allow_zero_rows=True), as_matrix(Y, "Y", min_rows=2, allow_zero_rows=True)
    check_scale(A, "X", squares=False)
    check_scale(B, "Y", squares=False)
    check_same_rows(len(A), len(B), "X", "Y")
    means, scales, sides = [], [], []
    for side, name in ((A, "X"), (B, "Y")):
        side = side.astype(np.float64)
        origin = side[0]
        shifted = side - origin  # exact zeros in constant columns
        mean = shifted.mean(axis=0)
        C = shifted - mean
        unit = np.abs(C).max(axis=0)
        unit[unit <= NOISE * EPS * np.abs(side).max(axis=0)] = 0
        if not unit.any():
            raise equal_rows(name, len(side))
        if reduce is None and ridge == 0:  # as in _whitened: only the span matters
            unit = unit * np.linalg.norm(C / np.where(unit > 0, unit, 1), axis=0)
        else:
            unit = np.where(unit > 0, unit.max(), 0)
        inverse = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0)
        U, s, Vt = singular_vectors(NUMPY, C * inverse)
        if reduce == "pca":
            U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
        means.append(origin + mean)
        # Scales to unit variance of the variates, for rows in the caller's units.
        scales.append(inverse[:, None] * np.sqrt(len(side) - 1))
        sides.append(whiten(U, s, Vt, ridge * float(np.mean(s * s))))
    directions = canonical_directions(*sides)
    projections = scales[0] * directions.x_directions, scales[1] * directions.y_directions
    return CCAFit(means[0], means[1], *projections, directions.correlations)


# ------------------------------------------------------------------ in steps, for many re-pairings


def _prepare_cca(A: np.ndarray, name: str, found: Spectrum | None = None) -> np.ndarray:
    side = found or spectrum(A, name)
    return from_contrasts(side.basis[:, :50])


class _Leading(NamedTuple):
    """Orthonormal leading components of a side, and of the other directions if these are fewer."""

    basis: np.ndarray
    rest: np.ndarray | None


def _prepare_svcca(A: np.ndarray, name: str, found: Spectrum | None = None) -> _Leading:
    side = found or spectrum(A, name)
    basis, k = side.basis, _count_kept(side.values, 0.99)
    if 2 * k <= len(basis):
        return _Leading(own_precision(from_contrasts(basis[:, :k]), A), None)
    if basis.shape[1] < len(basis):
        basis = np.linalg.qr(basis[:, :k], mode="complete")[0]
    both = (own_precision(from_contrasts(part), A) for part in np.split(basis, [k], axis=1))
    return _Leading(*both)


def _reorder_leading(side: _Leading, order: np.ndarray) -> _Leading:
    return _Leading(side.basis[order], None if side.rest is None else side.rest[order])


def _compare_leading(first: _Leading, second: _Leading) -> float:
    """Return the mean canonical correlation; of two large subspaces by the angles of their complements, which are the
    same but for as many of 0 as the subspaces must share.
    """
    if first.rest is None or second.rest is None:
        return compare_bases(first.basis, second.basis)
    n, k, m = len(first.basis), first.basis.shape[1], second.basis.shape[1]
    return min((k + m - (n - 1) + nuclear_norm(first.rest.T @ second.rest)) / min(k, m), 1.0)


def _prepare_pwcca(A: np.ndarray, name: str, found: Spectrum | None = None) -> _Weighted:
    if A.shape[1] >= len(A) - 1:
        C, U, s = found or spectrum(A, name)
        norms = np.linalg.norm(C, axis=0)
        # Columns of unit length have all directions, too, unless their lengths differ very much.
        if len(s) == len(C) and s[-1] * norms.min() > C.size * EPS * s[0] * norms.max():
            return _Weighted(U[:0], U[:0], True)
    weighted = _weighted(NUMPY, A.astype(np.float64), name)
    return weighted._replace(basis=from_contrasts(weighted.basis))


def _reorder_weighted(side: _Weighted, order: np.ndarray) -> _Weighted:
    return side if side.whole else side._replace(basis=side.basis[order])


def compare_bases(U: np.ndarray, V: np.ndarray, components: str = "mean") -> float:
    """Return the mean or the first canonical correlation of two bases."""
    if components == "mean":
        return min(nuclear_norm(U.T @ V) / min(U.shape[1], V.shape[1]), 1.0)
    return float(_summarize(NUMPY, canonical_correlations(NUMPY, U, V), components))


METRICS = (
    Metric(cca, (0.0, 1.0), OF_SHAPES, "Hotelling (1936)", _prepare_cca, compare_bases, shared=spectrum),
    Metric(
        svcca,
        (0.0, 1.0),
        OF_SHAPES,
        "Raghu et al. (2017)",
        _prepare_svcca,
        _compare_leading,
        _reorder_leading,
        shared=spectrum,
    ),
    Metric(
        pwcca,
        (0.0, 1.0),
        frozenset({"isotropic scaling", "translation", "joint permutation"}),
        "Morcos et al. (2018)",
        _prepare_pwcca,
        lambda first, second: float(_compare_weighted(NUMPY, first, second)),
        _reorder_weighted,
        shared=spectrum,
    ),
)
