"""Cross-domain similarity local scaling (CSLS): similarities corrected for hubs, rows that are near everything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import blocks


def mean_of_largest(S: np.ndarray, k: int, axis: int) -> np.ndarray:
    """Return the mean of the k largest entries along an axis; for cosines this is r of CSLS.

    ``S`` (n, m): −inf marks a missing entry, which is left out of the mean; the mean is 0 if there are none left;
    ``k``: if there are fewer entries, all are used; ``axis``: 0 for a mean per column, 1 for a mean per row. Returns
    (m,).
    """
    size = S.shape[axis]
    k = min(k, size)
    # Sorted, so that the sum does not depend on the order of the entries.
    top = np.sort(np.partition(S, size - k, axis=axis).take(range(size - k, size), axis=axis), axis=axis)
    present = top > -np.inf
    total = np.where(present, top, 0).sum(axis=axis, dtype=np.float64)
    return np.asarray(total / np.maximum(np.count_nonzero(present, axis=axis), 1))


class ScaledSimilarity:
    """CSLS(a, b) = 2 ⟨a, b⟩ − r(a) − r(b) between all rows of two sets, one block of rows of the first set at a time.

    ``A`` (n, d): rows of unit norm, so that inner products are cosines; ``B`` (m, d): the same, in the same space as A;
    ``n_neighbors``: number of nearest rows of the other set over which r is averaged; all of them if there are fewer;
    ``block_rows``: rows of A whose similarities are in memory at once; by default as many as fit into 32 MB. ``r_a``
    (n,): r of the rows of A; ``r_b`` (m,): r of the rows of B.

    Notes
    -----
    The product of A and B, O(n m d), is computed once here and again in every pass over :meth:`blocks`, unless all
    similarities fit into one block. Memory: a block, and ``n_neighbors`` numbers per row of B.

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data", §2.3.
    """

    def __init__(self, A: np.ndarray, B: np.ndarray, n_neighbors: int, *, block_rows: int | None = None) -> None:
        dtype = np.result_type(A, B)
        self._A, self._B = A.astype(dtype, copy=False), B.astype(dtype, copy=False)
        n, m = len(A), len(B)
        # A block, its partition, and the partition of its columns are in memory together.
        self._parts = list(
            blocks(n, 3 * m * dtype.itemsize) if block_rows is None else blocks(n, 1, budget=block_rows, minimum=1)
        )
        self._whole = self._A @ self._B.T if len(self._parts) == 1 else None
        self.r_a = np.empty(n)
        top = np.full((0, m), -np.inf, dtype)
        for part, S in self._products():
            self.r_a[part] = mean_of_largest(S, n_neighbors, axis=1)
            stacked = S if not len(top) else np.concatenate([top, S])
            keep = min(n_neighbors, n, len(stacked))
            top = np.partition(stacked, len(stacked) - keep, axis=0)[len(stacked) - keep :]
        self.r_b = mean_of_largest(top, n_neighbors, axis=0)

    def _products(self) -> Iterator[tuple[slice, np.ndarray]]:
        for part in self._parts:
            yield part, self._A[part] @ self._B.T if self._whole is None else self._whole

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows of A and their 2 ⟨a, b⟩ − r(b), which ranks B for each row of A.

        Yields (rows, m): A new array, which the caller may modify.
        """
        for part, S in self._products():
            yield part, 2.0 * S - self.r_b

    def mutual(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the pairs of mutually nearest rows; see :func:`mutual_neighbors`."""
        n, m = len(self._A), len(self._B)
        to_b = np.empty(n, np.intp)
        of_a = np.empty(n)
        to_a = np.zeros(m, np.intp)
        best = np.full(m, -np.inf)
        for part, scaled in self.blocks():
            to_b[part] = np.argmax(scaled, axis=1)
            of_a[part] = scaled[np.arange(len(scaled)), to_b[part]]
            scaled += self.r_b
            scaled -= self.r_a[part, None]
            rows = np.argmax(scaled, axis=0)
            largest = scaled[rows, np.arange(m)]
            better = largest > best
            best[better] = largest[better]
            to_a[better] = rows[better] + part.start
        i = np.flatnonzero(to_a[to_b] == np.arange(n))
        return i, to_b[i], of_a[i] - self.r_a[i]


def mutual_neighbors(
    A: np.ndarray, B: np.ndarray, n_neighbors: int = 10, *, block_rows: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the pairs of rows that are each other's nearest under CSLS.

    CSLS(a, b) = 2 ⟨a, b⟩ − r(a) − r(b), where r is the mean inner product of a row with its nearest rows of the other
    set. It lowers the similarities of hubs, rows that are near everything and would otherwise be nearest to many rows.

    ``A`` (n, d): rows of unit norm, so that inner products are cosines; ``B`` (m, d): the same, in the same space as A;
    ``n_neighbors``: number of rows over which r is averaged; all of the other set if there are fewer; ``block_rows``:
    rows of A whose similarities are in memory at once; by default as many as fit into 32 MB. ``i`` (k,); ``j`` (k,):
    the row of B matched to each; without repetition; ``score`` (k,): CSLS of each pair, in [-4, 4].

    Notes
    -----
    Two products of A and B, O(n m d) each, or one if all similarities fit into one block. Memory: a block, and
    ``n_neighbors`` numbers per row of B. Equal scores go to the lowest row number.

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data", §2.3.
    """
    return ScaledSimilarity(A, B, n_neighbors, block_rows=block_rows).mutual()
