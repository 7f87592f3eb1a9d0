"""Exact nearest-neighbor search in a gallery.

Similarities are computed block by block. By default a fast product in the input's precision selects every row that may be among the nearest
in view of its rounding error, and these candidates are compared again with sums in float64. The result therefore depends neither on the block size
nor on the order in which a product is summed, and copies of a row tie exactly.

If the input is a tensor on a GPU, the product (O(m n d) operations) and the search of its blocks run there. The host fetches the data once,
O((m + n) d), and the positions of the candidates, and compares these itself, so that every device gives the same table to the bit.

Memory: one block of similarities and the table, never an m × n array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, device, is_remote, namespace, to_numpy
from congruence._utils.top_k import candidate_slices, kth_from_below, select_top_k, top_k
from congruence._utils.typing import Array, Device
from congruence._utils.validation import as_matrix, check_choice, check_positive
from congruence.errors import ParameterError, ShapeError
from congruence.metrics._comparison import centered_form, device_transfer, exact_similarity
from congruence.metrics.rows import check_same_width, unit

__all__ = ["NEIGHBORS", "check_n_neighbors", "nearest", "neighbor_table", "rescale", "search_device"]

#: Notions of nearness.
NEIGHBORS = ("inner", "cosine", "euclidean")


def nearest(
    X: ArrayLike,
    n_neighbors: int,
    gallery: ArrayLike | None = None,
    *,
    metric: str = "inner",
    exact: bool = True,
    left_out: ArrayLike | None = None,
    block_rows: int | None = None,
) -> np.ndarray:
    """Find the nearest gallery rows of each row, by default among the other rows of X.

    Parameters
    ----------
    X : array_like, shape (m, d)
    n_neighbors : int
        Between 1 and the number of candidates: n, or n − 1 if one is excluded.
    gallery : array_like, shape (n, d), optional
        By default X; a row is then not its own neighbor.
    metric : {"inner", "cosine", "euclidean"}, default="inner"
        Largest inner product, largest cosine or smallest Euclidean distance.
    exact : bool, default=True
        Compare with sums in float64, whatever the precision of X: copies of a row, and rows whose products are exact, tie
        exactly, while values that are equal only mathematically may differ in their last bit. False compares products in the
        rows' own precision, which takes about half the time; rows that are equal up to its rounding may then be in a different order.
    left_out : array_like of int, shape (m,), optional
        With a gallery: for each row of X, a gallery row that is excluded from its neighbors.
    block_rows : int, optional
        Number of rows whose similarities are in memory at once; by default as many as fit into 32 MB. It does not change the exact result.

    Returns
    -------
    ndarray of int, shape (m, n_neighbors)
        Row numbers in the gallery, nearest first. Of equally near rows, the one with the lowest number comes first.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ZeroRowError
        If there is a row of zeros and ``metric="cosine"``.
    TooFewAnchorsError
        If there are fewer than two rows and no gallery.
    ParameterError
        If ``n_neighbors`` is larger than the number of candidates, ``left_out`` is not a gallery row, or an option has an invalid value.

    Notes
    -----
    O(m n d) time. Memory: a block and the table, and a working copy of the rows except for ``"inner"`` on rows without a
    dominant mean. If many rows are equally near up to rounding, they are compared one by one, which takes longer.
    """
    check_choice(metric, NEIGHBORS, "metric")
    A = as_matrix(X, "X", min_rows=2 if gallery is None else 1, allow_zero_rows=True)
    if gallery is None:
        check_n_neighbors(n_neighbors, len(A))
        B = A
        own: np.ndarray | None = np.arange(len(A))
    else:
        B = as_matrix(gallery, "gallery", allow_zero_rows=True)
        check_same_width(A, B)
        own = None if left_out is None else _as_rows(left_out, len(A), len(B))
        check_positive(n_neighbors, "n_neighbors", integer=True)
        available = len(B) - (own is not None)
        if n_neighbors > available:
            raise ParameterError(
                f"Got n_neighbors={n_neighbors} for {available} gallery rows to choose from; expected n_neighbors ≤ {available}. Pass n_neighbors={available} or less, or a larger gallery."
            )
        if A.dtype != B.dtype:
            wider = np.result_type(A, B)
            A, B = A.astype(wider, copy=False), B.astype(wider, copy=False)
    return _search(
        A,
        B,
        n_neighbors,
        metric,
        own,
        exact,
        block_rows,
        ("X", "X" if gallery is None else "gallery"),
        search_device(X),
    )[0]


def _as_rows(left_out: ArrayLike, m: int, n: int) -> np.ndarray:
    """Return the excluded gallery row of each query. Raises ShapeError or ParameterError if ``left_out`` is not m such rows."""
    rows = to_numpy(left_out)
    if rows.shape != (m,) or rows.dtype.kind not in "iu":
        raise ShapeError(
            f"Got left_out of shape {rows.shape} and type {rows.dtype}; expected one integer for each of {m} rows. Pass an array of shape ({m},)."
        )
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
        raise ParameterError(
            f"Got left_out from {rows.min()} to {rows.max()}; expected rows of the gallery, 0 to {n - 1}. Pass left_out=… in this range."
        )
    return rows


def search_device(X: object) -> Device | None:
    """Return the device on which X's neighbors are searched: a tensor's own, or None for the host, where NumPy is faster."""
    return X.device if is_remote(X) else None


def check_n_neighbors(n_neighbors: int, n: int) -> None:
    """Check that n rows have this number of neighbors.

    Raises
    ------
    ParameterError
        If ``n_neighbors`` is not between 1 and n − 1.
    """
    check_positive(n_neighbors, "n_neighbors", integer=True)
    if n_neighbors >= n:
        raise ParameterError(
            f"Got n_neighbors={n_neighbors} for {n} rows; expected n_neighbors ≤ {n - 1}, since a row is not its own neighbor. Pass n_neighbors={n - 1} or less."
        )


def rescale(A: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """Scale by a power of two if products of entries could overflow or underflow; this is exact.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    other : ndarray, shape (m, d), optional
        Rows to be scaled by the same factor, for distances to them.

    Returns
    -------
    ndarray, shape (n, d)
        Usually A itself.
    """
    top = max(max(float(side.max()), -float(side.min())) for side in ((A,) if other is None else (A, other)))
    limit = float(np.finfo(A.dtype).max) ** 0.25
    if top == 0 or 1 / limit < top < limit:
        return A
    return np.ldexp(A, -int(np.frexp(top)[1]))


def neighbor_table(
    A: np.ndarray, k: int, metric: str, block_rows: int | None = None, *, name: str = "X", place: Device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find each row's k nearest other rows and their similarity; see :func:`nearest`.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (n, d)
        Already validated.
    k : int
    metric : {"inner", "cosine", "euclidean"}
    block_rows : int, optional
        As for :func:`nearest`.
    name : str
        Name of the argument, for error messages.
    place : torch.device, optional
        Device on which blocks are multiplied and searched; by default NumPy is used.

    Returns
    -------
    ndarray of int, shape (n, k)
    ndarray of float64, shape (n, k)
        Inner products or negative squared distances of rows scaled by :func:`rescale`, or cosines.

    Raises
    ------
    ParameterError, ZeroRowError
        If ``k`` is not between 1 and n − 1, or a row is all zeros and ``metric="cosine"``.
    """
    check_n_neighbors(k, len(A))
    return _search(A, A, k, metric, np.arange(len(A)), True, block_rows, (name, name), place)


def _search(
    Q: np.ndarray,
    G: np.ndarray,
    k: int,
    metric: str,
    left_out: np.ndarray | None,
    exact: bool,
    block_rows: int | None,
    names: tuple[str, str],
    place: Device | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find each query's k nearest gallery rows and, with ``exact``, their similarity; see :func:`nearest`."""
    m, n = len(Q), len(G)
    if block_rows is not None:
        check_positive(block_rows, "block_rows", integer=True)
    if Q is G:
        Q = G = rescale(G)
    elif metric == "euclidean":
        Q, G = rescale(Q, G), rescale(G, Q)
    else:
        Q, G = rescale(Q), rescale(G)
    send, truncation = device_transfer(place, G.dtype)
    shift: Array | None
    if exact:
        query_rows, gallery_rows, shift, slack = centered_form(Q, G, metric, names, truncation)
        compare = exact_similarity(Q, G, metric, names)
    else:
        query_rows, gallery_rows, shift = _plain_form(Q, G, metric, names)
    index = np.empty((m, k), dtype=np.intp)
    value = np.empty((m, k) if exact else (0, k))
    size = n * G.dtype.itemsize + 64 * k
    parts = blocks(m, size) if block_rows is None else blocks(m, 1, budget=int(block_rows), minimum=1)
    device_gallery, shift = send(gallery_rows), None if shift is None else send(shift)
    device_queries = device_gallery if query_rows is gallery_rows else send(query_rows)
    del query_rows, gallery_rows  # the copies in host memory, if the search runs on a device
    xp = namespace(device_gallery)
    buffer: Array | None = None
    for part in parts:
        if buffer is None:  # reused, since a new block would be allocated before the old one is freed
            buffer = xp.empty((part.stop, n), dtype=device_gallery.dtype, device=device(device_gallery))
        similarity = xp.matmul(device_queries[part], device_gallery.T, out=buffer[: part.stop - part.start])
        if shift is not None:
            similarity -= shift
        excluded = None
        if left_out is not None:
            excluded = (
                xp.arange(part.stop - part.start, device=device(device_gallery)),
                xp.asarray(left_out[part], device=device(device_gallery)),
            )
            similarity[excluded] = -np.inf
        if not exact:
            index[part] = top_k(similarity, k)
            continue
        # A true neighbor's fast value is at least the true k-th value minus slack, which is at least the k-th fast value minus 2 · slack.
        # Rounded down, because the comparison is made in the fast precision.
        bound = to_numpy(kth_from_below(similarity, k)).astype(np.float64) - 2 * slack[part]
        candidates = similarity >= send(np.nextafter(bound.astype(G.dtype), G.dtype.type(-np.inf)))[:, None]
        if excluded is not None:
            candidates[excluded] = False
        for rows in candidate_slices(to_numpy(xp.count_nonzero(candidates, axis=1))):
            i, j = map(to_numpy, xp.nonzero(candidates[rows]))
            similarities = compare(i + part.start + rows.start, j)
            target = slice(part.start + rows.start, part.start + rows.stop)
            index[target], value[target] = select_top_k(i, j, similarities, rows.stop - rows.start, k)
    return index, value


def _plain_form(
    Q: np.ndarray, G: np.ndarray, metric: str, names: tuple[str, str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Prepare rows such that inner products, minus a shift per column, rank the gallery for a query."""
    if metric == "cosine":
        gallery_rows = unit(G, names[1])
        return gallery_rows if Q is G else unit(Q, names[0]), gallery_rows, None
    return Q, G, 0.5 * np.einsum("ij,ij->i", G, G) if metric == "euclidean" else None
