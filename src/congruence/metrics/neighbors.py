"""Agreement of nearest neighbors between two spaces (Huh et al. 2024; the measures in `platonic-rep`'s ``metrics.py``).

Each side is represented by every row's k nearest other rows in its own space (``search``), in O(n k) memory besides a
block.

Ties carry no information, so none may come from the order of the rows. Where t rows tie for the last r of a row's k
places, each is a neighbor with probability r / t, independently in the two spaces. ``mutual_knn`` is the expected value
over these orders, Σ p_ij q_ij / (n k); ``cknna`` has p_ij q_ij in place of its masks. The other measures, which depend
on the order of a list, are means over ``_ORDERS`` random orders of all ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.typing import Device, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows
from congruence.errors import InputError
from congruence.metrics._base import Metric
from congruence.metrics.search import (
    NEIGHBORS,
    check_n_neighbors,
    common_keys,
    neighbor_shares,
    own_rng,
    pair_values,
    rescale,
    search_device,
)

#: Random orders of ties over which measures of ordered lists are averaged.
_ORDERS = 8


def mutual_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Share of a row's nearest neighbors that are the same in both spaces, averaged over rows, in [0, 1].

    Rows X (n, d) and Y (n, e) are paired by position; unrelated spaces agree on n_neighbors / (n − 1) by chance.
    ``metric`` is as for ``nearest``; the paper uses inner products of unit rows, which is ``"cosine"``. Rows that tie
    for the last places count with their probability in a random order.

    Source: Huh et al. (2024), "The Platonic Representation Hypothesis", appendix A; ``mutual_knn`` of its code.
    """
    return _common_share(*_both(X, Y, n_neighbors, metric))


def cycle_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Share of rows that are among the X-neighbors of their own Y-neighbors; arguments as for ``mutual_knn``.

    Not symmetric: the first step uses neighbors in Y, the second in X. It need not be 1 for ``Y = X``, since being a
    neighbor is not mutual. Source: Huh et al. (2024), ``cycle_knn`` of its code.
    """
    return _cycle_share(*map(_orders, _both(X, Y, n_neighbors, metric)))


def lcs_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """Length of the longest common subsequence of a row's two lists of neighbors; arguments as for ``mutual_knn``.

    The mean over rows, in [0, n_neighbors]: a length, as in the paper's code, not a share. Lists start with the nearest
    row, so order matters. Source: Huh et al. (2024), ``lcs_knn`` of its code.
    """
    return _common_length(*map(_orders, _both(X, Y, n_neighbors, metric)))


def edit_knn(X: ArrayLike, Y: ArrayLike, n_neighbors: int = 10, *, metric: str = "inner") -> float:
    """One minus the relative edit distance of a row's two lists of neighbors; arguments as for ``mutual_knn``.

    The mean over rows, in [0, 1]; 1 if all lists agree, including their order. Insertion, deletion and substitution
    cost one each (Levenshtein 1966). Source: Huh et al. (2024), ``edit_distance_knn`` of its code.
    """
    return _edit_share(*map(_orders, _both(X, Y, n_neighbors, metric)))


class _Neighbors(NamedTuple):
    """Each row's k nearest other rows at positions ``keys`` i n + j, ascending, with their similarities and
    probabilities, as of ``neighbor_shares``. For CKNNA, ``values`` are entries of the Gram matrix up to a common
    factor, and ``scale`` is the root of its alignment with itself.
    """

    keys: np.ndarray
    values: np.ndarray
    shares: np.ndarray
    n: int
    k: int
    rng: np.random.Generator
    scale: float = 1.0
    definition: str = "huh"


def _both(X: ArrayLike, Y: ArrayLike, n_neighbors: int, metric: str) -> tuple[_Neighbors, _Neighbors]:
    """Validate both sides, and return their neighbors."""
    check_choice(metric, NEIGHBORS, "metric")
    A, B = (as_matrix(side, name, min_rows=2, allow_zero_rows=True) for side, name in ((X, "X"), (Y, "Y")))
    check_same_rows(len(A), len(B), "X", "Y")
    check_n_neighbors(n_neighbors, len(A))
    first = _prepare(A, "X", n_neighbors, metric, search_device(X))
    return first, _prepare(B, "Y", n_neighbors, metric, search_device(Y))


def _prepare(A: np.ndarray, name: str, k: int = 10, metric: str = "inner", place: Device | None = None) -> _Neighbors:
    return _Neighbors(*neighbor_shares(A, k, metric, name=name, place=place), len(A), k, own_rng(A))


def _reorder(side: _Neighbors, order: np.ndarray) -> _Neighbors:
    # New row i is the former row order[i]; its neighbors have new row numbers as well.
    i, j = np.divmod(side.keys, side.n)
    new_position = np.argsort(order)
    keys = new_position[i] * side.n + new_position[j]
    ascending = np.argsort(keys)
    return side._replace(keys=keys[ascending], values=side.values[ascending], shares=side.shares[ascending])


def _common_share(first: _Neighbors, second: _Neighbors) -> float:
    ours, theirs = common_keys(first.keys, second.keys)
    return float(first.shares[ours] @ second.shares[theirs]) / (first.n * first.k)


# ------------------------------------------------------------------ lists of neighbors, in order


def _orders(side: _Neighbors) -> np.ndarray:
    """Return every row's list of neighbors, nearest first, shape (orders, n, k): one order if nothing ties."""
    i, j = np.divmod(side.keys, side.n)
    starts = np.searchsorted(i, np.arange(side.n))
    order = np.lexsort((-side.values, i))
    value = side.values[order]
    # Values of one row that differ by rounding only are the same place in the list.
    step = 16 * np.finfo(float).eps * np.maximum(np.abs(value[1:]), np.abs(value[:-1]))
    new = np.concatenate([[True], (i[1:] != i[:-1]) | (value[:-1] - value[1:] > step)])
    place = np.cumsum(new)
    count = 1 if new.all() else _ORDERS
    tables = np.empty((count, side.n, side.k), dtype=np.intp)
    within = np.arange(len(i)) - starts[i] < side.k
    for table in tables:
        drawn = order if count == 1 else order[np.lexsort((side.rng.random(len(i)), place))]
        table[:] = j[drawn[within]].reshape(table.shape)
    return tables


def _over_orders(measure: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return the mean of a measure of two tables over random orders of ties."""

    def mean(P: np.ndarray, Q: np.ndarray) -> float:
        count = max(len(P), len(Q))
        return sum(measure(P[r % len(P)], Q[r % len(Q)]) for r in range(count)) / count

    return mean


@_over_orders
def _cycle_share(P: np.ndarray, Q: np.ndarray) -> float:
    n, k = P.shape
    cycles = 0
    for part in blocks(n, 9 * k * k, minimum=1):
        rows = np.arange(part.start, part.stop)
        cycles += int((P[Q[part]] == rows[:, None, None]).any(axis=(1, 2)).sum())
    return cycles / n


@_over_orders
def _common_length(P: np.ndarray, Q: np.ndarray) -> float:
    return _total(P, Q, edit=False) / len(P)


@_over_orders
def _edit_share(P: np.ndarray, Q: np.ndarray) -> float:
    return 1.0 - _total(P, Q, edit=True) / P.size


def _total(P: np.ndarray, Q: np.ndarray, *, edit: bool) -> int:
    """Return the sum over rows of the edit distance or of the length of the longest common subsequence."""
    return sum(int(_last_row(P[part], Q[part], edit=edit).sum()) for part in blocks(len(P), 16 * (P.shape[1] + 1)))


def _last_row(P: np.ndarray, Q: np.ndarray, *, edit: bool) -> np.ndarray:
    """Run the dynamic program over all pairs of lists P and Q, shape (m, k), at once; returns shape (m,)."""
    k = P.shape[1]
    # Lists run along the first axis, so that every step works on contiguous memory.
    P, Q = np.ascontiguousarray(P.T), np.ascontiguousarray(Q.T)
    above = np.zeros((k + 1, P.shape[1]), dtype=np.int32)
    if edit:
        above += np.arange(k + 1, dtype=np.int32)[:, None]
    current = above.copy()
    for i in range(k):
        current[0] = i + 1 if edit else 0
        for j in range(k):
            same = P[i] == Q[j]
            if edit:
                current[j + 1] = np.minimum(np.minimum(above[j + 1], current[j]) + 1, above[j] + ~same)
            else:
                current[j + 1] = np.maximum(np.maximum(above[j + 1], current[j]), above[j] + same)
        above, current = current, above
    return above[k]


def cknna(
    X: RowsLike, Y: RowsLike, n_neighbors: int = 10, *, definition: str = "huh", normalize: bool = False
) -> float:
    r"""Alignment of two spaces over pairs of rows that are near each other in both.

    Write K = X Xᵀ and L = Y Yᵀ, and N_K(i) for the ``n_neighbors`` rows j ≠ i with the largest K_ij (ties with
    their probability in a random order), likewise N_L(i). The value is ``align(K, L) /
    sqrt(align(K, K) · align(L, L))``.

    ``"huh"``: 1 for ``Y = X``; not bounded by 1 in general; 0 if no neighbor is shared. ``"jam"``: in [−1, 1].

    Parameters
    ----------
    X, Y : array_like, shapes (n, d) and (n, e), n ≥ 4
        Nothing is centered beforehand.
    definition : {"huh", "jam"}, default="huh"
        ``"huh"``: the published code of Huh et al. (2024) with ``unbiased=True``. ``"jam"``: eq. (6) to (9) of the
        JAM paper (Yoon et al.). Both are described below; their values differ.
    normalize : bool, default=False
        Scale rows to unit norm first, as the code of Huh et al. does. The JAM paper does not mention it.

    Notes
    -----
    **huh.** With the mask α(i, j) = P(j ∈ N_K(i)) P(j ∈ N_L(i)), which is 0 or 1 without ties, A = α ∘ K and B = α ∘ L,

    n (n − 3) align(K, L) = tr(AB) + (1ᵀA1)(1ᵀB1) / ((n − 1)(n − 2)) − 2 / (n − 2) · 1ᵀAB1,

    Song et al.'s unbiased HSIC of the masked matrices. The masks of align(K, K) and align(L, L) are N_K and N_L. A and
    B are not symmetric, since being a neighbor is not mutual: tr(AB) = Σ A_ij B_ji counts only pairs that are neighbors
    of each other in both spaces, and 1ᵀAB1 ≠ 1ᵀBA1, so the value changes slightly if X and Y are exchanged. With n − 1
    neighbors the value is debiased CKA. The published code also adds 10⁻⁶ to the denominator.

    **jam.** The text leaves four points open; docs/research/similarity.md says how they are read here.

    Source: Huh et al. (2024), "The Platonic Representation Hypothesis", appendix A, and ``cknna`` of its code. Song et
    al. (2012), "Feature selection via dependence maximization", JMLR 13, eq. (5). Yoon, Yue and Kim, "Escaping Plato's
    Cave: JAM for Aligning Independently Trained Vision and Language Models", appendix B.2.2.
    """
    check_choice(definition, ("huh", "jam"), "definition")
    A, B = (as_matrix(side, name, min_rows=4, allow_zero_rows=True) for side, name in ((X, "X"), (Y, "Y")))
    check_same_rows(len(A), len(B), "X", "Y")
    first, second = (
        prepare_cknna(side, name, k=n_neighbors, definition=definition, normalize=normalize, place=search_device(own))
        for side, name, own in ((A, "X", X), (B, "Y", Y))
    )
    return _compare_cknna(first, second)


def prepare_cknna(
    A: np.ndarray,
    name: str,
    found: _Neighbors | None = None,
    k: int = 10,
    *,
    definition: str = "huh",
    normalize: bool = False,
    place: Device | None = None,
) -> _Neighbors:
    """Return one side of ``cknna`` from its checked rows; ``found`` are its neighbors, if they are known."""
    n = len(A)
    check_n_neighbors(k, n)
    side = _masked_gram(normalize_rows(A, name) if normalize else A, k, definition == "jam", place, found)
    own = side.shares * side.values
    size, rounding = _unbiased_hsic(side.keys, own, own, n) if definition == "huh" else (float(own @ side.values), 0.0)
    if size <= rounding:
        raise InputError(
            f"The alignment of {name} with itself is not positive (`n_neighbors={k}`, {n} rows).",
            f"Pass a larger `n_neighbors=…`, or rows of {name} that differ.",
        )
    return side._replace(scale=math.sqrt(size), definition=definition)


def _compare_cknna(first: _Neighbors, second: _Neighbors) -> float:
    ours, theirs = common_keys(first.keys, second.keys)
    mask = first.shares[ours] * second.shares[theirs]
    K, L = mask * first.values[ours], second.values[theirs]
    aligned = _unbiased_hsic(first.keys[ours], K, mask * L, first.n)[0] if first.definition == "huh" else float(K @ L)
    return aligned / (first.scale * second.scale)


def _masked_gram(A: np.ndarray, k: int, centered: bool, place: Device | None, found: _Neighbors | None) -> _Neighbors:
    """Return the neighbors by K, with values of HKH if ``centered``, else of K."""
    n = len(A)
    A = rescale(A)
    side = found or _prepare(A, "X", k, place=place)
    value = side.values
    if centered:
        # Relative to the first row, so that the mean of equal rows is exactly that row.
        origin, total = A[0].astype(np.float64), np.zeros(A.shape[1])
        for part in blocks(n, 16 * A.shape[1], budget=8 * 2**20):
            total += (A[part] - origin).sum(axis=0)
        mean = origin + total / n
        value = pair_values(A, *np.divmod(side.keys, n), lambda rows: rows - mean)
    largest = float(np.abs(value).max())
    return side._replace(values=value / largest if largest > 0 else value)


def _unbiased_hsic(keys: np.ndarray, a: np.ndarray, b: np.ndarray, n: int) -> tuple[float, float]:
    """Return n (n − 3) times Song et al.'s eq. (5) for two matrices with entries ``a`` and ``b`` at the positions
    ``keys``, i n + j, ascending and off the diagonal, and a bound on the rounding error of a zero estimate.
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


# ------------------------------------------------------------------ in steps, for many re-pairings


_FACTS = frozenset({"rotation", "isotropic scaling", "joint permutation", "symmetry"})


_ONE_WAY = _FACTS - {"symmetry"}
_APPENDIX = "Huh et al. (2024), appendix A"
_STEPS: dict[str, Any] = {"reorder": _reorder, "cost": "n²·d", "shared": _prepare}


def _known(A: np.ndarray, name: str, found: _Neighbors | None = None) -> _Neighbors:
    return found or _prepare(A, name)


def _known_orders(A: np.ndarray, name: str, found: _Neighbors | None = None) -> np.ndarray:
    """Return lists of neighbors, with a generator of their own, whose draws do not depend on what else is compared."""
    return _orders(_known(A, name, found)._replace(rng=own_rng(A)))


_SHARE = _STEPS | {"prepare": _known}
_CKNNA = _STEPS | {"prepare": prepare_cknna}
_LISTS = _STEPS | {
    "prepare": _known_orders,
    "reorder": lambda tables, order: np.argsort(order)[tables[:, order]],
}

METRICS = (
    Metric(cknna, (-math.inf, math.inf), _ONE_WAY, _APPENDIX, compare=_compare_cknna, **_CKNNA),
    Metric(mutual_knn, (0.0, 1.0), _FACTS, "Huh et al. (2024), eq. 11", compare=_common_share, **_SHARE),
    Metric(cycle_knn, (0.0, 1.0), _ONE_WAY, _APPENDIX, compare=_cycle_share, **_LISTS),
    Metric(lcs_knn, (0.0, math.inf), _FACTS, _APPENDIX, compare=_common_length, **_LISTS),
    Metric(edit_knn, (0.0, 1.0), _FACTS, _APPENDIX, compare=_edit_share, **_LISTS),
)
