"""Centered kernel nearest-neighbor alignment (CKNNA): CKA restricted to the neighborhoods that two spaces share.

The Gram matrices are masked to at most k entries per row, so every sum runs over neighbor tables: O(n k) memory
besides a block, and never an n × n array.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import Device, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows
from congruence.errors import InputError
from congruence.metrics._comparison import pair_values
from congruence.metrics.rows import unit
from congruence.metrics.search import check_n_neighbors, neighbor_table, rescale, search_device

__all__ = ["Masked", "cknna", "compare_masked", "masked_gram", "prepare_masked", "reorder_masked"]


def cknna(
    X: RowsLike, Y: RowsLike, n_neighbors: int = 10, *, definition: str = "huh", normalize: bool = False
) -> float:
    r"""Alignment of two spaces over pairs of rows that are near each other in both.

    Write K = X Xᵀ and L = Y Yᵀ, and N_K(i) for the ``n_neighbors`` rows j ≠ i with the largest K_ij (lowest row number first among
    equals, see :func:`~congruence.metrics.nearest`), likewise N_L(i). The value is
    ``align(K, L) / sqrt(align(K, K) · align(L, L))``.

    Parameters
    ----------
    X : array_like, shape (n, d)
        n ≥ 4. Nothing is centered beforehand.
    Y : array_like, shape (n, e)
        Row i belongs to row i of X; the widths may differ.
    n_neighbors : int, default=10
        From 1 to n − 1.
    definition : {"huh", "jam"}, default="huh"
        ``"huh"``: the published code of Huh et al. (2024) with ``unbiased=True``. ``"jam"``: eq. (6) to (9) of the
        JAM paper (Yoon et al.). Both are described below; their values differ.
    normalize : bool, default=False
        Scale rows to unit norm first, as the code of Huh et al. does. The JAM paper does not mention it.

    Returns
    -------
    float
        ``"huh"``: 1 for ``Y = X``; not bounded by 1 in general; 0 if no neighbor is shared. ``"jam"``: in [−1, 1].

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ParameterError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or a parameter has an invalid value.
    ZeroRowError
        If there is a row of zeros and ``normalize`` is set.
    TooFewAnchorsError
        If n < 4: the unbiased estimate divides by n − 3.
    InputError
        If align(K, K) or align(L, L) is not positive, so that the value is undefined. One reason is that all rows are equal; with
        ``"huh"`` and few neighbors, another is that hardly any neighbors are reciprocal. Returning 0 instead would suggest a measured
        lack of alignment.

    Notes
    -----
    **huh.** With the mask α(i, j) = 1 where j ∈ N_K(i) and j ∈ N_L(i), A = α ∘ K and B = α ∘ L,

    n (n − 3) align(K, L) = tr(AB) + (1ᵀA1)(1ᵀB1) / ((n − 1)(n − 2)) − 2 / (n − 2) · 1ᵀAB1,

    Song et al.'s unbiased HSIC of the masked matrices. The masks of align(K, K) and align(L, L) are N_K and N_L. A and B
    are not symmetric, since being a neighbor is not mutual. Two things follow. tr(AB) = Σ A_ij B_ji, so a pair contributes
    to it only if i and j are neighbors of each other in both spaces. And 1ᵀAB1 ≠ 1ᵀBA1, so the value changes slightly if X
    and Y are exchanged. With n − 1 neighbors the masks are symmetric and the value is debiased CKA. The published code also
    adds 10⁻⁶ to the denominator and refuses n_neighbors=1; neither is done here.

    **jam.** The text leaves four points open; this implementation uses the first reading of each.

    - K̄ in eq. (8) is HKH, centered on both sides, as defined before eq. (3). Eq. (7), stated to be equal, subtracts row
      means only, and differs.
    - The neighbors of eq. (6) are those of the kernel as first defined, uncentered inner products; centered inner products or
      distances would give other neighbors.
    - In the denominator eq. (6) is read with the same space in both places, so each Gram matrix has its own mask, as in
      ``"huh"``; it could be the mask of the numerator.
    - Row means are over all n rows, including row i. Because eq. (6) leaves the diagonal out, n − 1 neighbors do not quite
      give the CKA of eq. (4), contrary to the remark after eq. (9).

    O(n² (d + e)) time.

    References
    ----------
    Huh et al. (2024), "The Platonic Representation Hypothesis", appendix A, and ``cknna`` of its code. Song et al.
    (2012), "Feature selection via dependence maximization", JMLR 13, eq. (5). Yoon, Yue and Kim, "Escaping Plato's
    Cave: JAM for Aligning Independently Trained Vision and Language Models", appendix B.2.2.
    """
    check_choice(definition, ("huh", "jam"), "definition")
    A = as_matrix(X, "X", min_rows=4, allow_zero_rows=True)
    B = as_matrix(Y, "Y", min_rows=4, allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    n = len(A)
    check_n_neighbors(n_neighbors, n)
    if normalize:
        A, B = unit(A, "X"), unit(B, "Y")
    first, second = (
        masked_gram(side, n_neighbors, centered=definition == "jam", place=search_device(own))
        for side, own in ((A, X), (B, Y))
    )
    scale = math.prod(
        math.sqrt(_with_itself(gram, n, n_neighbors, name, definition)) for gram, name in ((first, "X"), (second, "Y"))
    )
    return _numerator(first, second, n, definition) / scale


def _with_itself(gram: tuple[np.ndarray, np.ndarray], n: int, k: int, name: str, definition: str) -> float:
    """Return align(K, K); raise an error if it is not positive."""
    keys, K = gram
    value, rounding = _unbiased_hsic(keys, K, K, n) if definition == "huh" else _product(K, K)
    if value <= rounding:
        raise InputError(
            f"Got an alignment of {name} with itself that is not positive (n_neighbors={k}, n={n}); expected neighborhoods that vary and are partly mutual. Pass a larger n_neighbors=…, or rows of {name} that differ."
        )
    return value


def _numerator(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], n: int, definition: str = "huh"
) -> float:
    """Return align(K, L)."""
    (keys_k, K), (keys_l, L) = first, second
    common, in_k, in_l = np.intersect1d(keys_k, keys_l, assume_unique=True, return_indices=True)
    if definition == "huh":
        return _unbiased_hsic(common, K[in_k], L[in_l], n)[0]
    return _product(K[in_k], L[in_l])[0]


class Masked(NamedTuple):
    """One side of :func:`cknna`: its masked Gram matrix and the root of its alignment with itself."""

    keys: np.ndarray
    values: np.ndarray
    scale: float
    n: int
    definition: str = "huh"


def prepare_masked(A: np.ndarray, name: str, k: int = 10, definition: str = "huh") -> Masked:
    """Prepare one side of :func:`cknna`.

    Parameters
    ----------
    A : ndarray, shape (n, d)
        Already validated.
    name : str
        Name of the argument, for error messages.
    k : int, default=10
        Number of neighbors.
    definition : {"huh", "jam"}, default="huh"

    Returns
    -------
    Masked

    Raises
    ------
    ParameterError
        If ``k`` is not between 1 and n − 1.
    InputError
        If align(K, K) is not positive.
    """
    n = len(A)
    check_n_neighbors(k, n)
    gram = masked_gram(A, k, centered=definition == "jam")
    return Masked(*gram, math.sqrt(_with_itself(gram, n, k, name, definition)), n, definition)


def reorder_masked(side: Masked, order: np.ndarray) -> Masked:
    """Return the result of preparing ``A[order]``, without computing neighbors again."""
    i, j = np.divmod(side.keys, side.n)
    new_position = np.argsort(order)
    keys = new_position[i] * side.n + new_position[j]
    ascending = np.argsort(keys)
    return side._replace(keys=keys[ascending], values=side.values[ascending])


def compare_masked(first: Masked, second: Masked) -> float:
    """Return :func:`cknna` of two prepared sides."""
    return _numerator(first[:2], second[:2], first.n, first.definition) / (first.scale * second.scale)


def masked_gram(A: np.ndarray, k: int, *, centered: bool, place: Device | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of a Gram matrix at each row's k nearest neighbors.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    k : int
    centered : bool
        Return entries of HKH instead of K. The neighbors are those of K in both cases.
    place : torch.device, optional
        Device on which neighbors are searched.

    Returns
    -------
    ndarray of int, shape (n k,)
        Positions i n + j, ascending.
    ndarray of float64, shape (n k,)
        Entries there, up to a common factor.
    """
    n = len(A)
    A = rescale(A)
    index, value = neighbor_table(A, k, "inner", place=place)
    order = np.argsort(index, axis=1)
    index = np.take_along_axis(index, order, axis=1)
    value = np.take_along_axis(value, order, axis=1).ravel()
    keys = (index + n * np.arange(n)[:, None]).ravel()
    if centered:
        # Relative to the first row, so that the mean of equal rows is exactly that row.
        origin, total = A[0].astype(np.float64), np.zeros(A.shape[1])
        for part in blocks(n, 16 * A.shape[1], budget=8 * 2**20):
            total += (A[part] - origin).sum(axis=0)
        mean = origin + total / n
        value = pair_values(A, keys // n, keys % n, lambda rows: rows - mean)
    largest = float(np.abs(value).max())
    return keys, value / largest if largest > 0 else value


def _unbiased_hsic(keys: np.ndarray, a: np.ndarray, b: np.ndarray, n: int) -> tuple[float, float]:
    """Return Song et al.'s eq. (5) for two matrices whose nonzero entries are at the same positions.

    Parameters
    ----------
    keys : ndarray of int, shape (m,)
        Positions i n + j, ascending, none on the diagonal.
    a, b : ndarray of float64, shape (m,)
        Entries of the two matrices.
    n : int
        Number of rows.

    Returns
    -------
    float
        n (n − 3) times the estimate.
    float
        Bound on the rounding error of a zero estimate.
    """
    if not len(keys):
        return 0.0, 0.0
    i, j = np.divmod(keys, n)
    # tr(AB) multiplies each entry of A by the transposed entry of B, which often is not a neighbor.
    transposed = j * n + i
    position = np.minimum(np.searchsorted(keys, transposed), len(keys) - 1)
    mutual = keys[position] == transposed
    trace = float(a[mutual] @ b[position[mutual]])
    columns = np.bincount(j, weights=a, minlength=n)
    rows = np.bincount(i, weights=b, minlength=n)
    terms = (trace, float(a.sum()) * float(b.sum()) / ((n - 1) * (n - 2)), -2 * float(columns @ rows) / (n - 2))
    return math.fsum(terms), 64 * float(np.finfo(float).eps) * sum(map(abs, terms))


def _product(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Return the sum of products, and the value it must exceed to count as positive."""
    return float(a @ b), 0.0
