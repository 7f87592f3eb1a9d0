"""Comparison of rows: products in the input's precision with a bound on their error, and exact values by sums in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array, Device
from congruence.metrics.rows import unit

#: Bytes of the rows that are compared at a time, chosen to fit in the processor's cache.
_PAIR_BYTES = 2**20


def device_transfer(place: Device | None, dtype: np.dtype) -> tuple[Callable[[np.ndarray], Array], float]:
    """Return a function that sends arrays to a device, and the relative error from reduced-precision products there.

    Parameters
    ----------
    place : torch.device or None
    dtype : dtype
        Data type of the factors: float32 or float64.

    Returns
    -------
    callable
        Takes an ndarray, and returns the array or tensor to compute with.
    float
        Relative error of a factor when products truncate it, beyond the rounding of arithmetic in ``dtype``.
    """
    if place is None or (place.type == "mps" and dtype == np.float64):  # Apple's GPUs have no float64
        return lambda array: array, 0.0
    import torch

    truncation = 0.0
    if dtype == np.float32:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # set by device-specific options, which may mean any of these
            precision = "medium"
        # Factors may be truncated to the 10 fraction bits of TF32, or to the 7 of bfloat16, if the caller has allowed it.
        truncation = {"highest": 0.0, "high": 2.0**-10}.get(precision, 2.0**-7)
    return lambda array: torch.from_numpy(array).to(place), truncation


def centered_form(
    Q: np.ndarray, G: np.ndarray, metric: str, names: tuple[str, str], truncation: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return rows whose inner products, minus a shift per gallery row, rank the gallery for each query, up to rounding error.

    Parameters
    ----------
    Q : ndarray, shape (m, d)
        Queries; the same object as ``G`` if a gallery is searched for its own rows.
    G : ndarray, shape (n, d)
        Gallery.
    metric : {"inner", "cosine", "euclidean"}
    names : tuple of str
        Names of the queries and the gallery, for error messages.
    truncation : float
        Relative error of a factor in the product, as returned by :func:`device_transfer`.

    Returns
    -------
    ndarray, shape (m, d)
        Rows for the queries.
    ndarray, shape (n, d)
        Rows for the gallery.
    ndarray or None, shape (n,)
        Shift of each gallery row; None if there is none.
    ndarray of float64, shape (m,)
        Upper bound on the rounding error of each query's values. It is not an estimate: structured data reach it.
    """
    n, d = G.shape
    norms = _norms(G)
    mean = np.zeros(d)
    for part in blocks(n, 32 * d, budget=8 * 2**20):
        rows = G[part].astype(np.float64)
        mean += (unit(rows, names[1]) if metric == "cosine" else rows).sum(axis=0) / n
    precision, double = np.finfo(G.dtype), float(np.finfo(np.float64).eps)
    shift: np.ndarray | None = None
    query_rows, gallery_rows = Q, G
    # With c_x = x − m, m the gallery's mean: ⟨x, y⟩ = ⟨c_x, c_y⟩ + ⟨m, c_y⟩ + (terms that are the same for all y). If the mean
    # dominates, the centered products are small, and so is their rounding error. An inner product without such a mean needs no copy.
    centered = metric != "inner" or 4 * float(mean @ mean) > float(np.mean(norms**2))
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
    slack += d * float(precision.tiny) * (1 + longest + max(longest, float(query_norms.max())))
    if shift is not None:
        slack += 4 * float(precision.eps) * float(np.abs(shift).max())
        shift = shift.astype(G.dtype)
    # The float64 sums that decide the ranking are rounded as well.
    if metric == "inner":
        slack += (d + 8) * double * (norms if Q is G else _norms(Q)) * float(norms.max())
    elif metric == "cosine":
        slack += (d + 8) * double
    else:
        slack += (d + 8) * double * (query_norms + longest) ** 2
    return query_rows, gallery_rows, shift, slack


def _centered(A: np.ndarray, metric: str, name: str, mean: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of rows in float64, scaled to unit norm for the cosine, minus ``mean``."""
    for part in blocks(len(A), 32 * A.shape[1], budget=8 * 2**20):
        rows = A[part].astype(np.float64)
        yield part, (unit(rows, name) if metric == "cosine" else rows) - mean


def _norms(A: np.ndarray) -> np.ndarray:
    """Return the row norms in float64, shape (n,)."""
    out = np.empty(len(A))
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        block = A[part].astype(np.float64)
        out[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return out


def pair_values(
    A: np.ndarray,
    i: np.ndarray,
    j: np.ndarray,
    form: Callable[[np.ndarray], np.ndarray],
    B: np.ndarray | None = None,
) -> np.ndarray:
    """Return inner products of chosen pairs of rows in float64; equal rows give equal values, at any position.

    Parameters
    ----------
    A : ndarray, shape (n, d)
    i, j : ndarray of int, shape (m,)
        Row numbers of each pair.
    form : callable
        Applied to the rows, in float64, before the product.
    B : ndarray, shape (n', d), optional
        Array that ``j`` indexes; by default ``A``.

    Returns
    -------
    ndarray of float64, shape (m,)
    """
    B = A if B is None else B
    out = np.empty(len(i))
    for part in blocks(len(i), 16 * A.shape[1], budget=_PAIR_BYTES):
        left, right = form(A[i[part]].astype(np.float64)), form(B[j[part]].astype(np.float64))
        out[part] = np.einsum("ij,ij->i", left, right)
    return out


def exact_similarity(
    Q: np.ndarray, G: np.ndarray, metric: str, names: tuple[str, str]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that compares queries with gallery rows by sums in float64; over many pairs, duplicate rows are computed once."""
    n, d = G.shape
    compared = 0
    duplicates: tuple[np.ndarray, np.ndarray, bool] | None = None

    def find_duplicates() -> tuple[np.ndarray, np.ndarray, bool]:
        first_g = _first_copies(G)
        first_q = first_g if Q is G else _first_copies(Q)
        return first_q, first_g, any(bool((rows != np.arange(len(rows))).any()) for rows in (first_g, first_q))

    def compute(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        if metric == "inner":
            return pair_values(Q, i, j, lambda rows: rows, G)
        if metric == "cosine":
            return pair_values(Q, i, j, lambda rows: unit(rows, names[1]), G)
        out = np.empty(len(i))
        for part in blocks(len(i), 16 * d, budget=_PAIR_BYTES):
            difference = Q[i[part]].astype(np.float64) - G[j[part]]
            out[part] = -np.einsum("ij,ij->i", difference, difference)
        return out

    def exact(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        nonlocal compared, duplicates
        compared += len(i)
        # The search for duplicates costs len(Q) + n products and a sort, so it saves nothing for fewer pairs.
        if duplicates is None and compared <= len(Q) + n:
            return compute(i, j)
        if duplicates is None:
            duplicates = find_duplicates()
        first_q, first_g, any_duplicates = duplicates
        if not any_duplicates:
            return compute(i, j)
        # A row repeated a thousand times gives a million pairs of equal value.
        pairs, inverse = np.unique(first_q[i] * n + first_g[j], return_inverse=True)
        return compute(*np.divmod(pairs, n))[inverse]

    return exact


def _first_copies(A: np.ndarray) -> np.ndarray:
    """Return the number of the first row equal to each row, shape (n,), in O(n) memory."""
    n, d = A.shape
    # Equal rows have equal projections onto a random direction. The converse is checked below.
    direction = np.random.default_rng(0).standard_normal(d)
    projections = np.empty(n)
    for part in blocks(n, 16 * d, budget=8 * 2**20):
        projections[part] = np.einsum("ij,j->i", A[part].astype(np.float64), direction)
    _, index, inverse = np.unique(projections, return_index=True, return_inverse=True)
    first = index[inverse]
    later = np.flatnonzero(first != np.arange(n))
    for part in blocks(len(later), 2 * d * A.dtype.itemsize, budget=8 * 2**20):
        rows = later[part]
        differ = (A[rows] != A[first[rows]]).any(axis=1)
        first[rows[differ]] = rows[differ]
    return first
