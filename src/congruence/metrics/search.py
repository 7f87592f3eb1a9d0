"""Exact nearest-neighbor search in a gallery.

Similarities are computed block by block. By default a fast product in the input's precision selects every row that may
be among the nearest in view of its rounding error, and these candidates are compared again with sums in float64. The
result therefore depends neither on the block size nor on the order in which a product is summed, and copies of a row
tie exactly. Tensors on a GPU are multiplied and searched there, and the host compares the candidates, so that every
device gives the same table to the bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import UNIT_TOLERANCE, blocks, device, is_remote, namespace, normalize_rows, to_numpy
from congruence._utils.threads import calm_threads
from congruence._utils.top_k import candidate_slices, kth_from_below, select_top_k, share_top_k, top_k, true_entries
from congruence._utils.typing import Array, Device
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_same_width
from congruence.errors import ParameterError, ShapeError
from congruence.splits import equal_rows

#: Bytes of the rows that are compared at a time, chosen to fit in the processor's cache.
_PAIR_BYTES = 2**20

#: Notions of nearness.
NEIGHBORS = ("inner", "cosine", "euclidean")

_NAMES = ("queries", "gallery")


def nearest(
    X: ArrayLike,
    n_neighbors: int,
    gallery: ArrayLike | None = None,
    *,
    metric: str = "inner",
    exact: bool = True,
    left_out: ArrayLike | None = None,
) -> np.ndarray:
    """Return the row numbers (m, n_neighbors) of the nearest gallery rows of each row of X (m, d), nearest first.

    Of equally near rows, the one with the lowest number comes first.

    Parameters
    ----------
    gallery : array_like, shape (n, d), optional
        By default X; a row is then not its own neighbor.
    metric : {"inner", "cosine", "euclidean"}, default="inner"
        Largest inner product, largest cosine or smallest Euclidean distance.
    exact : bool, default=True
        Compare with sums in float64, whatever the precision of X. False compares products in the rows' own precision,
        in about half the time; rows that are equal up to its rounding may then be in a different order.
    left_out : array_like of int, shape (m,), optional
        With a gallery: for each row of X, a gallery row that is excluded from its neighbors.

    Notes
    -----
    Memory: a block and the table, and a copy of the rows except for ``"inner"`` on rows without a dominant mean.
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
        available = len(B) - (own is not None)
        if check_positive(n_neighbors, "n_neighbors", integer=True) > available:
            raise ParameterError(
                f"Got `n_neighbors={n_neighbors}` for {available} gallery rows to choose from.",
                f"Pass `n_neighbors={available}` or less.",
            )
        wider = np.result_type(A, B)
        A, B = A.astype(wider, copy=False), B.astype(wider, copy=False)
    names, place = ("X", "X" if gallery is None else "gallery"), search_device(X)
    index = np.empty((len(A), n_neighbors), dtype=np.intp)
    if exact:
        for part, i, j, similarity, _ in _candidates(A, B, n_neighbors, metric, own, names, place):
            index[part] = select_top_k(i, j, similarity, part.stop - part.start, n_neighbors)[0]
        return index
    Q, G = _rescaled(A, B, metric)
    shift = None
    if metric == "cosine":
        G = normalize_rows(G, names[1])
        Q = G if A is B else normalize_rows(Q, names[0])
    elif metric == "euclidean":
        shift = 0.5 * np.einsum("ij,ij->i", G, G)
    for part, block, _ in _products(Q, G, shift, own, n_neighbors, place):
        index[part] = top_k(block, n_neighbors)
    return index


def _as_rows(left_out: ArrayLike, m: int, n: int) -> np.ndarray:
    """Return the excluded gallery row of each of m queries, after checking it."""
    rows = to_numpy(left_out)
    if rows.shape != (m,) or rows.dtype.kind not in "iu":
        raise ShapeError(f"Got left_out of shape {rows.shape} and type {rows.dtype}.", f"Pass {m} row numbers.")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
        raise ParameterError(f"Got left_out from {rows.min()} to {rows.max()}.", f"Pass rows from 0 to {n - 1}.")
    return rows


def search_device(X: object) -> Device | None:
    """Return a tensor's own device, on which its neighbors are searched, or None for the host and NumPy."""
    return X.device if is_remote(X) else None


def check_n_neighbors(n_neighbors: int, n: int) -> None:
    """Check that n rows have this number of neighbors."""
    if check_positive(n_neighbors, "n_neighbors", integer=True) >= n:
        raise ParameterError(
            f"Got `n_neighbors={n_neighbors}` for {n} rows; expected n_neighbors ≤ {n - 1}.",
            f"Pass `n_neighbors={n - 1}` or less.",
        )


def rescale(A: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """Scale rows by a power of two, which is exact, if products (with ``other``) could overflow or underflow."""
    top = max(max(float(side.max()), -float(side.min())) for side in ((A,) if other is None else (A, other)))
    limit = float(np.finfo(A.dtype).max) ** 0.25
    if top == 0 or 1 / limit < top < limit:
        return A
    return np.ldexp(A, -int(np.frexp(top)[1]))


def neighbor_shares(
    A: np.ndarray, k: int, metric: str = "inner", *, name: str = "X", place: Device | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each checked row's nearest other rows, as positions i n + j, ascending, with their similarities (inner
    products or negative squared distances after ``rescale``, or cosines) and the probabilities that they are among the
    k nearest if ties are broken at random; shapes (p,), without ties n k.
    """
    check_n_neighbors(k, len(A))
    return _shares(A, A, k, metric, np.arange(len(A)), (name, name), place)


def neighbor_overlap(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    k: int,
    metric: str = "cosine",
    *,
    left_out: np.ndarray | None = None,
) -> np.ndarray:
    """Return the expected share (m,) of each query's k nearest rows that two searches, of (m, d) in (n, d), share."""
    sides = []
    for given in (first, second):
        Q, G = (as_matrix(rows, name, allow_zero_rows=True) for rows, name in zip(given, _NAMES, strict=True))
        check_same_width(Q, G)
        wider = np.result_type(Q, G)
        Q, G = Q.astype(wider, copy=False), G.astype(wider, copy=False)
        sides.append(_shares(Q, G, min(k, len(G) - (left_out is not None)), metric, left_out, _NAMES, None))
    (keys, _, ours), (others, _, theirs) = sides
    same, place = common_keys(keys, others)
    query = keys[same] // len(G)
    return np.asarray(np.bincount(query, ours[same] * theirs[place], minlength=len(Q)) / k)


def common_keys(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where keys, ascending on both sides, are the same."""
    place = np.minimum(np.searchsorted(second, first), len(second) - 1)
    same = np.flatnonzero(second[place] == first)
    return same, place[same]


@calm_threads()
def _shares(
    Q: np.ndarray,
    G: np.ndarray,
    k: int,
    metric: str,
    left_out: np.ndarray | None,
    names: tuple[str, str],
    place: Device | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``neighbor_shares`` of queries in a gallery, checked and of one type."""
    parts, rng = [], own_rng(G)
    for part, i, j, similarity, tie in _candidates(Q, G, k, metric, left_out, names, place):
        i, j, similarity, share = share_top_k(i, j, similarity, part.stop - part.start, k, tie, rng)
        keys = (i + part.start) * len(G) + j
        order = np.argsort(keys)
        parts.append((keys[order], similarity[order], share[order]))
    keys, value, share = map(np.concatenate, zip(*parts, strict=True))
    return keys, value, share


def own_rng(A: np.ndarray) -> np.random.Generator:
    """Return a generator seeded by the rows themselves: two spaces break their ties independently, and always alike."""
    return np.random.default_rng(zlib.crc32(np.ascontiguousarray(A).data))


def _rescaled(Q: np.ndarray, G: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    if Q is G:
        Q = G = rescale(G)
        return Q, G
    if metric == "euclidean":
        return rescale(Q, G), rescale(G, Q)
    return rescale(Q), rescale(G)


def _products(
    query_rows: np.ndarray,
    gallery_rows: np.ndarray,
    shift: np.ndarray | None,
    left_out: np.ndarray | None,
    k: int,
    place: Device | None,
) -> Iterator[tuple[slice, Array, tuple[Array, Array] | None]]:
    """Yield blocks of fast products on the device, minus the shift, −inf at what is left out, and where that is."""
    n = len(gallery_rows)
    parts = blocks(len(query_rows), n * gallery_rows.dtype.itemsize + 64 * k)
    send, _ = device_transfer(place, gallery_rows.dtype)
    device_gallery, device_shift = send(gallery_rows), None if shift is None else send(shift)
    device_queries = device_gallery if query_rows is gallery_rows else send(query_rows)
    del query_rows, gallery_rows  # the copies in host memory, if the search runs on a device
    xp = namespace(device_gallery)
    buffer: Array | None = None
    for part in parts:
        if buffer is None:  # reused, since a new block would be allocated before the old one is freed
            buffer = xp.empty((part.stop, n), dtype=device_gallery.dtype, device=device(device_gallery))
        similarity = xp.matmul(device_queries[part], device_gallery.T, out=buffer[: part.stop - part.start])
        if device_shift is not None:
            similarity -= device_shift
        excluded = None
        if left_out is not None:
            excluded = (
                xp.arange(part.stop - part.start, device=device(device_gallery)),
                xp.asarray(left_out[part], device=device(device_gallery)),
            )
            similarity[excluded] = -np.inf
        yield part, similarity, excluded


def _candidates(
    Q: np.ndarray,
    G: np.ndarray,
    k: int,
    metric: str,
    left_out: np.ndarray | None,
    names: tuple[str, str],
    place: Device | None,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield slices of queries, the pairs (row in the slice, gallery row) that may be among the k nearest, their
    similarities, and for each query the difference up to which these count as equal.
    """
    Q, G = _rescaled(Q, G, metric)
    send, truncation = device_transfer(place, G.dtype)
    query_rows, gallery_rows, shift, slack, tie = centered_form(Q, G, metric, names, truncation)
    compare = exact_similarity(Q, G, metric, names)
    if query_rows is gallery_rows and left_out is not None and place is None and _halves(G, left_out, k):
        half = _by_symmetry(gallery_rows, shift, slack, k)
        if half is not None:
            del query_rows, gallery_rows
            for rows, i, j in half:
                yield rows, i, j, compare(i + rows.start, j), tie[rows]
            return
    steps = _products(query_rows, gallery_rows, shift, left_out, k, place)
    del query_rows, gallery_rows
    for part, similarity, excluded in steps:
        xp = namespace(similarity)
        # A true neighbor's fast value is at least the true k-th value minus slack, which is at least the k-th fast
        # value minus 2 · slack. Rounded down, because the comparison is made in the fast precision.
        bound = to_numpy(kth_from_below(similarity, k)).astype(np.float64) - 2 * slack[part]
        candidates = similarity >= send(np.nextafter(bound.astype(G.dtype), G.dtype.type(-np.inf)))[:, None]
        if excluded is not None:
            candidates[excluded] = False
        for rows in candidate_slices(to_numpy(xp.count_nonzero(candidates, axis=1))):
            i, j = true_entries(candidates[rows])
            target = slice(part.start + rows.start, part.start + rows.stop)
            yield target, i, j, compare(i + target.start, j), tie[target]


# ------------------------------------------------------------------ half of the products, of rows with each other

_MANY, _COSTLY = 4096, 100_000  # rows, and their entries for each of k places, from which this saves time
_SAMPLE = 8  # one of so many rows bounds the k-th similarity, which about k times as many pairs of each row reach
_MOST_KEPT = 4  # times as many, beyond which rows tie


def _halves(G: np.ndarray, left_out: np.ndarray, k: int) -> bool:
    """Return whether rows search each other, and are enough for ``_by_symmetry``."""
    itself = len(left_out) == len(G) and bool((left_out == np.arange(len(G))).all())
    return itself and G.dtype == np.float32 and len(G) >= max(_MANY, 4 * _SAMPLE * k) and G.size >= _COSTLY * k


def _by_symmetry(
    rows: np.ndarray, shift: np.ndarray | None, slack: np.ndarray, k: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]] | None:
    """Return what ``_candidates`` compares, by slices of the queries, from each product of two rows computed once; None
    if very many pairs may be near, as where rows tie.
    """
    n, found, count = len(rows), [], 0
    sample = np.sort(np.random.default_rng(0).choice(n, n // _SAMPLE, replace=False))
    some, least = rows[sample], np.empty((n, 1), np.float32)
    for part in blocks(n, 4 * len(sample)):
        values = rows[part] @ some.T
        if shift is not None:
            values -= shift[sample]
        own = np.arange(*np.searchsorted(sample, (part.start, part.stop)))
        values[sample[own] - part.start, own] = -np.inf
        least[part, 0] = _below(kth_from_below(values, k), slack[part])
    parts = list(blocks(n, 8 * n))
    buffer = np.empty(parts[0].stop * n, np.float32)
    for part in parts:
        shape = part.stop - part.start, n - part.start
        products = np.matmul(rows[part], rows[part.start :].T, out=buffer[: shape[0] * shape[1]].reshape(shape))
        np.fill_diagonal(products, -np.inf)
        later = slice(part.stop, n)
        for queries, gallery, near in (
            (part, slice(part.start, n), products),
            (later, part, products[:, shape[0] :].T),
        ):
            values = near if shift is None else near - shift[gallery]
            i, j = true_entries(values >= least[queries])
            found.append(((i + queries.start).astype(np.int32), (j + gallery.start).astype(np.int32), values[i, j]))
            count += len(i)
        if count > _MOST_KEPT * _SAMPLE * k * n:
            return None
    del buffer, products, near, values
    i, j, value = (np.concatenate(side) for side in zip(*found, strict=True))
    found.clear()
    order = np.argsort(i, kind="stable")
    return _nearest_of(i[order], j[order], value[order], slack, k)


def _nearest_of(
    i: np.ndarray, j: np.ndarray, value: np.ndarray, slack: np.ndarray, k: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield by slices of the rows those pairs, in the order of the rows i, that are no worse than the k-th of a row."""
    counts = np.bincount(i, minlength=len(slack))
    ends = np.cumsum(counts)
    for part in candidate_slices(counts):
        pairs = slice(int(ends[part.start] - counts[part.start]), int(ends[part.stop - 1]))
        row, size = i[pairs].astype(np.intp) - part.start, value[pairs]
        # Row and value as one integer, since integers are sorted ten times as fast as pairs. The order of floats is
        # that of their bits, if those of negative numbers are inverted, but for the sign.
        bits = size.view(np.int32)
        keys = (row << 32) - (bits ^ ((bits >> 31) & 0x7FFFFFFF))
        keys.sort()
        place = ends[part] - counts[part] - pairs.start + k - 1
        bits = ((np.arange(len(place)) << 32) - keys[place]).astype(np.int32)
        kth = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)
        kept = size >= _below(kth, slack[part])[row]
        yield part, row[kept], j[pairs][kept].astype(np.intp)


def _below(kth: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Return the least fast value, in single precision, of what may be as near as the row of the k-th fast value."""
    return np.nextafter((kth.astype(np.float64) - 2 * slack).astype(np.float32), np.float32(-np.inf))


# ------------------------------------------------------------------ fast products with a bound, and exact sums


def device_transfer(place: Device | None, dtype: np.dtype) -> tuple[Callable[[np.ndarray], Array], float]:
    """Return a function that sends arrays to a device, and the relative error of factors that its products truncate."""
    if place is None or (place.type == "mps" and dtype == np.float64):  # Apple's GPUs have no float64
        return lambda array: array, 0.0
    import torch

    truncation = 0.0
    if dtype == np.float32:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # set by device-specific options, which may mean any of these
            precision = "medium"
        # The caller may have allowed factors with the 10 fraction bits of TF32, or with the 7 of bfloat16.
        truncation = {"highest": 0.0, "high": 2.0**-10}.get(precision, 2.0**-7)
    return lambda array: torch.from_numpy(array).to(place), truncation


def centered_form(
    Q: np.ndarray, G: np.ndarray, metric: str, names: tuple[str, str], truncation: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Return queries (m, d) and gallery rows (n, d) whose inner products minus a shift, (n,) or None, rank the gallery,
    and for each query (m,) bounds on the rounding error and on that of float64 sums alone.
    """
    n, d = G.shape
    norms = _norms(G)
    mean, off = np.zeros(d), float(np.abs(norms - 1).max())
    # For few queries among unit rows, a centered copy of the gallery would take longer than the search.
    few = metric == "cosine" and 100 * len(Q) <= n and off < UNIT_TOLERANCE / 50
    for part in () if few else blocks(n, 32 * d, budget=8 * 2**20):
        rows = G[part].astype(np.float64)
        mean += (normalize_rows(rows, names[1]) if metric == "cosine" else rows).sum(axis=0) / n
    precision, double = np.finfo(G.dtype), float(np.finfo(np.float64).eps)
    shift: np.ndarray | None = None
    query_rows, gallery_rows = normalize_rows(Q, names[0]) if few else Q, G
    # With c_x = x − m, m the gallery's mean: ⟨x, y⟩ = ⟨c_x, c_y⟩ + ⟨m, c_y⟩ + (terms that are the same for all y). If
    # the mean dominates, the centered products are small, and so is their rounding error. An inner product without such
    # a mean needs no copy.
    centered = not few and (metric != "inner" or 4 * float(mean @ mean) > float(np.mean(norms**2)))
    if centered:
        gallery_rows, shift = np.empty_like(G), np.empty(n)
        for part, rows in _centered(G, metric, names[1], mean):
            gallery_rows[part] = rows
            shift[part] = 0.5 * np.einsum("ij,ij->i", rows, rows) if metric == "euclidean" else -(rows @ mean)
        query_rows = gallery_rows
        if Q is not G:
            query_rows = np.empty_like(Q)
            for part, rows in _centered(Q, metric, names[0], mean):
                query_rows[part] = rows
    gallery_norms = _norms(gallery_rows) if centered else norms
    query_norms = gallery_norms if Q is G else _norms(query_rows)
    longest = float(gallery_norms.max())
    slack = ((d + 8) * float(precision.eps) + truncation * (2 + truncation)) * longest * query_norms
    # Subnormal numbers may be flushed to 0.
    slack += off * few + d * float(precision.tiny) * (1 + longest + max(longest, float(query_norms.max())))
    if shift is not None:
        slack += 4 * float(precision.eps) * float(np.abs(shift).max())
        shift = shift.astype(G.dtype)
    # The float64 sums that decide the ranking are rounded as well.
    if metric == "inner":
        tie = (d + 8) * double * (norms if Q is G else _norms(Q)) * float(norms.max())
    elif metric == "cosine":
        tie = np.full(len(Q), (d + 8) * double)
    else:
        tie = (d + 8) * double * (query_norms + longest) ** 2
    return query_rows, gallery_rows, shift, slack + tie, tie


def _centered(A: np.ndarray, metric: str, name: str, mean: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of rows in float64, scaled to unit norm for the cosine, minus ``mean``."""
    for part in blocks(len(A), 32 * A.shape[1], budget=8 * 2**20):
        rows = A[part].astype(np.float64)
        yield part, (normalize_rows(rows, name) if metric == "cosine" else rows) - mean


def _norms(A: np.ndarray) -> np.ndarray:
    """Return the row norms in float64, shape (n,)."""
    out = np.empty(len(A))
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        block = A[part].astype(np.float64)
        out[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return out


def pair_values(
    A: np.ndarray, i: np.ndarray, j: np.ndarray, form: Callable[[np.ndarray], np.ndarray], B: np.ndarray | None = None
) -> np.ndarray:
    """Return inner products (m,) of rows i of A with rows j of B, by default A, in float64 after ``form``."""
    B = A if B is None else B
    out = np.empty(len(i))
    for part in blocks(len(i), 16 * A.shape[1], budget=_PAIR_BYTES):
        left, right = form(A[i[part]].astype(np.float64)), form(B[j[part]].astype(np.float64))
        out[part] = np.einsum("ij,ij->i", left, right)
    return out


def exact_similarity(
    Q: np.ndarray, G: np.ndarray, metric: str, names: tuple[str, str]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that compares rows by sums in float64; among many pairs, duplicate rows are computed once."""
    n, d = G.shape
    compared = 0
    copies: tuple[np.ndarray, np.ndarray] | None = None

    def compute(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        if metric != "euclidean":
            name = names[1] if metric == "cosine" else None
            return pair_values(Q, i, j, lambda rows: rows if name is None else normalize_rows(rows, name), G)
        out = np.empty(len(i))
        for part in blocks(len(i), 16 * d, budget=_PAIR_BYTES):
            difference = Q[i[part]].astype(np.float64) - G[j[part]]
            out[part] = -np.einsum("ij,ij->i", difference, difference)
        return out

    def exact(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        nonlocal compared, copies
        compared += len(i)
        if copies is None and compared > len(Q) + n:  # finding copies costs as many products and a sort
            first_g = equal_rows(G)
            copies = (first_g if Q is G else equal_rows(Q)), first_g
        if copies is None or all((first == np.arange(len(first))).all() for first in copies):
            return compute(i, j)
        # A row repeated a thousand times gives a million pairs of equal value.
        pairs, inverse = np.unique(copies[0][i] * n + copies[1][j], return_inverse=True)
        return compute(*np.divmod(pairs, n))[inverse]

    return exact
