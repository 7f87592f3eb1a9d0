"""Agreement of nearest neighbors (Huh et al. 2024, the family of `platonic-rep`'s ``metrics.py``).

Each side has a table of every row's k nearest other rows of its own space; the measures compare the two tables. A table
is found block by block: a fast product in the input's precision proposes every row that rounding leaves in question,
and the few proposed are compared again by sums in float64. The answer therefore depends neither on the block size nor
on the order in which a product adds up, and copies of a row tie exactly.

The product, its O(n² d) operations, and the search of its blocks run on the GPU that holds a tensor. The host fetches the data once,
O(n d), and the places proposed; it compares them itself, so that every device gives the same table to the bit.

Memory: one block of similarities and the two tables, never an n × n array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks, device, is_remote, is_tensor, namespace, to_numpy
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_same_rows
from congruence.errors import ParameterError
from congruence.metrics._base import unit

__all__ = [
    "check_k",
    "common_length",
    "common_share",
    "cycle_knn",
    "cycle_share",
    "edit_knn",
    "edit_share",
    "home",
    "lcs_knn",
    "moderate",
    "mutual_knn",
    "nearest",
    "neighbor_table",
    "pair_values",
    "tables",
]

#: What "near" means.
NEIGHBOURS = ("inner", "cosine", "euclidean")

# Pairs compared again at once: their rows should stay in the processor's cache.
_PAIR_BYTES = 2**20
# Proposals handled at once. Ties can make every row a proposal, and then this bounds the memory.
_PROPOSALS = 2**20


def nearest(X: Any, k: int, *, metric: str = "inner", blocked: int | None = None) -> np.ndarray:
    """Find the k nearest other rows of each row.

    Parameters
    ----------
    X : array_like, shape (n, d)
    k : int
        From 1 to n − 1.
    metric : {"inner", "cosine", "euclidean"}, default="inner"
        Largest inner product, largest cosine or smallest Euclidean distance.
    blocked : int, optional
        Rows whose similarities are held at once; by default as many as fit 32 MB. It does not change the result.

    Returns
    -------
    ndarray of int, shape (n, k)
        Row numbers, nearest first; a row is not its own neighbor. Rows equally near come lowest number first. Near
        is decided by sums in float64, whatever the precision of X: copies of a row, and numbers whose products are
        exact, tie exactly, while values that are equal on paper only may differ in their last bit.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
    ZeroRowError
        A row of zeros, with ``metric="cosine"``.
    TooFewAnchorsError
        Fewer than two rows.
    ParameterError
        k ≥ n, or an option that does not exist.

    Notes
    -----
    O(n² d) time; memory for a block and the table, and a working copy of X except for ``"inner"`` on rows without a
    dominant mean. Many rows that are equally near to rounding are compared one by one, which takes longer.
    """
    check_choice(metric, NEIGHBOURS, "metric")
    A = as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
    return neighbor_table(A, k, metric, blocked, place=home(X))[0]


def mutual_knn(X: Any, Y: Any, k: int = 10, *, neighbors: str = "inner") -> float:
    """Share of a row's k nearest neighbors that both spaces agree on, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
        Row i belongs to row i of X; the widths may differ.
    k : int, default=10
        From 1 to n − 1.
    neighbors : {"inner", "cosine", "euclidean"}, default="inner"
        See :func:`nearest`. The paper takes inner products of rows made unit before, which is ``"cosine"``.

    Returns
    -------
    float
        In [0, 1]. Unrelated spaces agree on k / (n − 1) by chance.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError

    References
    ----------
    Huh et al. (2024), "The Platonic Representation Hypothesis", appendix A; ``mutual_knn`` of its code.
    """
    return common_share(*tables(X, Y, k, neighbors))


def common_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`mutual_knn` of two neighbor tables, both of shape (n, k)."""
    # A row never repeats within a list, so an entry seen twice in the two lists together is a common one.
    common = 0
    for part in blocks(len(P), 32 * P.shape[1]):
        both = np.sort(np.concatenate([P[part], Q[part]], axis=1), axis=1)
        common += int(np.count_nonzero(both[:, 1:] == both[:, :-1]))
    return common / P.size


def cycle_knn(X: Any, Y: Any, k: int = 10, *, neighbors: str = "inner") -> float:
    """Share of rows that are found again among the X-neighbors of their Y-neighbors.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    k : int, default=10
    neighbors : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, 1]. Not symmetric: the first step is taken in Y, the second in X. It need not be 1 for ``Y = X``, since
        being a neighbor is not mutual.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError

    References
    ----------
    Huh et al. (2024), appendix A; ``cycle_knn`` of its code.
    """
    return cycle_share(*tables(X, Y, k, neighbors))


def cycle_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`cycle_knn` of two neighbor tables, both of shape (n, k)."""
    n, k = P.shape
    found = 0
    for part in blocks(n, 9 * k * k, minimum=1):
        rows = np.arange(part.start, part.stop)
        found += int((P[Q[part]] == rows[:, None, None]).any(axis=(1, 2)).sum())
    return found / n


def lcs_knn(X: Any, Y: Any, k: int = 10, *, neighbors: str = "inner") -> float:
    """Length of the longest common subsequence of the two lists of neighbors, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    k : int, default=10
    neighbors : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, k]: a length, as in the paper's code, not a share. Lists run from the nearest on, so order counts.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError

    References
    ----------
    Huh et al. (2024), appendix A; ``lcs_knn`` of its code.
    """
    return common_length(*tables(X, Y, k, neighbors))


def common_length(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`lcs_knn` of two neighbor tables, both of shape (n, k)."""
    total = 0
    for part in blocks(len(P), 16 * (P.shape[1] + 1)):
        total += int(_last_row(P[part], Q[part], edit=False).sum())
    return total / len(P)


def edit_knn(X: Any, Y: Any, k: int = 10, *, neighbors: str = "inner") -> float:
    """One minus the edit distance of the two lists of neighbors relative to k, averaged over rows.

    Parameters
    ----------
    X : array_like, shape (n, d)
    Y : array_like, shape (n, e)
    k : int, default=10
    neighbors : {"inner", "cosine", "euclidean"}, default="inner"

    Returns
    -------
    float
        In [0, 1]; 1 when all lists agree in order too. An insertion, a deletion and a substitution cost one each.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError

    References
    ----------
    Huh et al. (2024), appendix A; ``edit_distance_knn`` of its code. Levenshtein (1966).
    """
    return edit_share(*tables(X, Y, k, neighbors))


def edit_share(P: np.ndarray, Q: np.ndarray) -> float:
    """Return :func:`edit_knn` of two neighbor tables, both of shape (n, k)."""
    total = 0
    for part in blocks(len(P), 16 * (P.shape[1] + 1)):
        total += int(_last_row(P[part], Q[part], edit=True).sum())
    return 1.0 - total / P.size


def _last_row(P: np.ndarray, Q: np.ndarray, *, edit: bool) -> np.ndarray:
    """Run the two classic dynamic programmes over many pairs of lists at once.

    Parameters
    ----------
    P, Q : ndarray of int, shape (m, k)
    edit : bool
        Edit distance; otherwise the length of the longest common subsequence.

    Returns
    -------
    ndarray of int, shape (m,)
    """
    k = P.shape[1]
    # Lists run along the first axis, so that every step works on contiguous memory.
    P, Q = np.ascontiguousarray(P.T), np.ascontiguousarray(Q.T)
    above = np.zeros((k + 1, P.shape[1]), dtype=np.int32)
    if edit:
        above += np.arange(k + 1, dtype=np.int32)[:, None]
    here = above.copy()
    for i in range(k):
        here[0] = i + 1 if edit else 0
        for j in range(k):
            same = P[i] == Q[j]
            if edit:
                here[j + 1] = np.minimum(np.minimum(above[j + 1], here[j]) + 1, above[j] + ~same)
            else:
                here[j + 1] = np.maximum(np.maximum(above[j + 1], here[j]), above[j] + same)
        above, here = here, above
    return above[k]


def tables(X: Any, Y: Any, k: int, neighbors: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides' neighbor tables."""
    check_choice(neighbors, NEIGHBOURS, "neighbors")
    A = as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
    B = as_matrix(Y, "Y", min_rows=2, allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    check_k(k, len(A))
    return (
        neighbor_table(A, k, neighbors, name="X", place=home(X))[0],
        neighbor_table(B, k, neighbors, name="Y", place=home(Y))[0],
    )


def home(X: Any) -> Any:
    """Return the device that X's tables are searched on: a tensor's own, or None for the host, where NumPy is quicker."""
    return X.device if is_remote(X) else None


def check_k(k: int, n: int) -> None:
    """Refuse a number of neighbors that n rows do not have.

    Raises
    ------
    ParameterError
    """
    check_positive(k, "k", integer=True)
    if k >= n:
        raise ParameterError(
            f"Got k={k} for {n} rows; expected k ≤ {n - 1}, since a row is not its own neighbor. Pass k={n - 1} or less."
        )


def moderate(A: np.ndarray) -> np.ndarray:
    """Multiply by a power of two where products of entries could overflow or vanish; nothing is rounded.

    Parameters
    ----------
    A : ndarray, shape (n, d)

    Returns
    -------
    ndarray, shape (n, d)
        A itself in the usual case.
    """
    top = max(float(A.max()), -float(A.min()))
    limit = float(np.finfo(A.dtype).max) ** 0.25
    if top == 0 or 1 / limit < top < limit:
        return A
    return np.ldexp(A, -int(np.frexp(top)[1]))


def neighbor_table(
    A: np.ndarray, k: int, metric: str, blocked: int | None = None, *, name: str = "X", place: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find each row's k nearest other rows and how near they are; see :func:`nearest`.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (n, d)
        Validated.
    k : int
    metric : {"inner", "cosine", "euclidean"}
    blocked : int, optional
    name : str
        For messages.
    place : torch.device, optional
        Where the blocks are multiplied and searched; by default in NumPy.

    Returns
    -------
    ndarray of int, shape (n, k)
    ndarray of float64, shape (n, k)
        Inner products of :func:`moderate` rows, cosines or negative squared distances.

    Raises
    ------
    ParameterError, ZeroRowError
    """
    n = len(A)
    check_k(k, n)
    if blocked is not None:
        check_positive(blocked, "blocked", integer=True)
    A = moderate(A)
    send, dropped = _courier(place, A.dtype)
    quick, shift, slack = _quick_form(A, metric, name, dropped)
    exact = _exact_similarity(A, metric, name)
    index = np.empty((n, k), dtype=np.intp)
    value = np.empty((n, k))
    size = n * A.dtype.itemsize + 64 * k
    parts = blocks(n, size) if blocked is None else blocks(n, 1, budget=int(blocked), minimum=1)
    there, shift = send(quick), None if shift is None else send(shift)
    del quick  # what was sent may be a copy
    xp = namespace(there)
    room: Any = None
    for part in parts:
        if room is None:  # one block serves all: a new one each time would stand beside the old one for a moment
            room = xp.empty((part.stop, n), dtype=there.dtype, device=device(there))
        similarity = xp.matmul(there[part], there.T, out=room[: part.stop - part.start])
        if shift is not None:
            similarity -= shift
        own = xp.arange(part.start, part.stop, device=device(there))
        similarity[own - part.start, own] = -np.inf
        # Whoever is among the k nearest is at most one error below the true k-th value, which is at most one error
        # below the k-th quick value. Rounded towards less, because the comparison happens in the quick precision.
        bound = _kth_from_below(similarity, k) - 2 * slack[part]
        proposed = similarity >= send(np.nextafter(bound.astype(A.dtype), A.dtype.type(-np.inf)))[:, None]
        proposed[own - part.start, own] = False
        for rows in _portions(to_numpy(xp.count_nonzero(proposed, axis=1))):
            i, j = map(to_numpy, xp.nonzero(proposed[rows]))
            v = exact(i + part.start + rows.start, j)
            order = np.lexsort((j, -v, i))
            i, j, v = i[order], j[order], v[order]
            rank = np.arange(len(i)) - np.searchsorted(i, np.arange(rows.stop - rows.start))[i]
            kept = rank < k
            target = slice(part.start + rows.start, part.start + rows.stop)
            index[target] = j[kept].reshape(-1, k)
            value[target] = v[kept].reshape(-1, k)
    return index, value


def _courier(place: Any, dtype: Any) -> tuple[Callable[[np.ndarray], Any], float]:
    """Return a function that sends arrays to a device, and the share of a factor that products there may drop.

    Parameters
    ----------
    place : torch.device or None
    dtype : dtype
        Of the factors: float32 or float64.

    Returns
    -------
    callable
        From an ndarray to the array or tensor to compute with.
    float
        Beyond the rounding of arithmetic in ``dtype``.
    """
    if place is None or (place.type == "mps" and dtype == np.float64):  # Apple's GPUs have no float64
        return lambda array: array, 0.0
    import torch

    dropped = 0.0
    if dtype == np.float32:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # set through the options a device has of its own, which may mean any of these
            precision = "medium"
        # Factors may be cut to TF32's 10 bits behind the point, or to bfloat16's 7, where the caller has allowed it.
        dropped = {"highest": 0.0, "high": 2.0**-10}.get(precision, 2.0**-7)
    return lambda array: torch.from_numpy(array).to(place), dropped


def _quick_form(
    A: np.ndarray, metric: str, name: str, dropped: float
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Prepare rows whose inner products, less a shift of each column, order the neighbors of a row up to rounding.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    metric : {"inner", "cosine", "euclidean"}
    name : str
    dropped : float
        The share of a factor that the product may drop.

    Returns
    -------
    ndarray, shape (n, d)
    ndarray or None, shape (n,)
    ndarray of float64, shape (n,)
        A bound, not an estimate, of what rounding does to an entry of a row: structured data reach it.
    """
    n, d = A.shape
    norms = _norms(A)
    mean = np.zeros(d)
    for part in blocks(n, 32 * d, budget=8 * 2**20):
        rows = A[part].astype(np.float64)
        mean += (unit(rows, name) if metric == "cosine" else rows).sum(axis=0) / n
    precision, double = np.finfo(A.dtype), float(np.finfo(np.float64).eps)
    shift: np.ndarray | None = None
    quick, lengths = A, norms
    # With c = x − m: ⟨x, y⟩ = ⟨c_x, c_y⟩ + ⟨m, c_y⟩ + (what is the same for all y). Where the mean dominates, the
    # centered products are small and their rounding is too. An inner product without such a mean needs no copy of A.
    if metric != "inner" or 4 * float(mean @ mean) > float(np.mean(norms**2)):
        quick, shift = np.empty_like(A), np.empty(n)
        for part in blocks(n, 32 * d, budget=8 * 2**20):
            rows = A[part].astype(np.float64)
            rows = (unit(rows, name) if metric == "cosine" else rows) - mean
            quick[part] = rows
            shift[part] = 0.5 * np.einsum("ij,ij->i", rows, rows) if metric == "euclidean" else -(rows @ mean)
        lengths = _norms(quick)
    longest = float(lengths.max())
    slack = ((d + 8) * float(precision.eps) + dropped * (2 + dropped)) * longest * lengths
    slack += d * float(precision.tiny) * (1 + 2 * longest)  # numbers too small for a normal one may count as 0
    if shift is not None:
        slack += 4 * float(precision.eps) * float(np.abs(shift).max())
        shift = shift.astype(A.dtype)
    # The float64 sums that decide are rounded as well.
    if metric == "inner":
        slack += (d + 8) * double * norms * float(norms.max())
    elif metric == "cosine":
        slack += (d + 8) * double
    else:
        slack += (d + 8) * double * (lengths + longest) ** 2
    return quick, shift, slack


def _norms(A: np.ndarray) -> np.ndarray:
    """Return row norms in float64, shape (n,)."""
    out = np.empty(len(A))
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        block = A[part].astype(np.float64)
        out[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return out


def _kth_from_below(similarity: Any, k: int) -> np.ndarray:
    """Return for each row a number not above its k-th largest entry, and seldom much below it, in float64.

    The columns are dealt into many groups; the k-th largest of the groups' maxima has k entries at or above it. Maxima
    are much quicker to find than the k-th of all entries.
    """
    m, n = similarity.shape
    groups = max(256, 16 * k)
    width = n // groups
    if width > 1:
        similarity = namespace(similarity).max(similarity[:, : groups * width].reshape(m, width, groups), axis=1)
    if is_tensor(similarity):
        return to_numpy(similarity.topk(k, dim=1, sorted=True).values[:, -1]).astype(np.float64)
    place = similarity.shape[1] - k
    return np.partition(similarity, place, axis=1)[:, place].astype(np.float64)


def _portions(counts: np.ndarray) -> Iterator[slice]:
    """Cut rows into slices with about ``_PROPOSALS`` proposals each."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _PROPOSALS, side="right")))
        yield slice(start, stop)
        start = stop


def pair_values(A: np.ndarray, i: np.ndarray, j: np.ndarray, form: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Inner products of chosen pairs of rows in float64; equal rows give equal values, wherever they stand.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    i, j : ndarray of int, shape (m,)
    form : callable
        What is done to rows (in float64) before.

    Returns
    -------
    ndarray of float64, shape (m,)
    """
    out = np.empty(len(i))
    for part in blocks(len(i), 16 * A.shape[1], budget=_PAIR_BYTES):
        left, right = form(A[i[part]].astype(np.float64)), form(A[j[part]].astype(np.float64))
        out[part] = np.einsum("ij,ij->i", left, right)
    return out


def _exact_similarity(A: np.ndarray, metric: str, name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that compares pairs of rows by sums in float64, copies of a row only once."""
    n, d = A.shape
    first = _first_copies(A)
    copies = bool((first != np.arange(n)).any())

    def compute(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        if metric == "inner":
            return pair_values(A, i, j, lambda rows: rows)
        if metric == "cosine":
            return pair_values(A, i, j, lambda rows: unit(rows, name))
        out = np.empty(len(i))
        for part in blocks(len(i), 16 * d, budget=_PAIR_BYTES):
            difference = A[i[part]].astype(np.float64) - A[j[part]]
            out[part] = -np.einsum("ij,ij->i", difference, difference)
        return out

    def exact(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        if not copies:
            return compute(i, j)
        # A row repeated a thousand times makes a million pairs of one value.
        pairs, which = np.unique(first[i] * n + first[j], return_inverse=True)
        return compute(*np.divmod(pairs, n))[which]

    return exact


def _first_copies(A: np.ndarray) -> np.ndarray:
    """Return for each row the number of the first row equal to it, shape (n,), in O(n) memory."""
    n, d = A.shape
    # Equal rows have equal projections. The converse is checked below.
    direction = np.random.default_rng(0).standard_normal(d)
    shadow = np.empty(n)
    for part in blocks(n, 16 * d, budget=8 * 2**20):
        shadow[part] = np.einsum("ij,j->i", A[part].astype(np.float64), direction)
    _, index, inverse = np.unique(shadow, return_index=True, return_inverse=True)
    first = index[inverse]
    later = np.flatnonzero(first != np.arange(n))
    for part in blocks(len(later), 2 * d * A.dtype.itemsize, budget=8 * 2**20):
        rows = later[part]
        differ = (A[rows] != A[first[rows]]).any(axis=1)
        first[rows[differ]] = rows[differ]
    return first
