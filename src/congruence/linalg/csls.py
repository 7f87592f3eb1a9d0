"""Cross-domain similarity local scaling (CSLS): similarities corrected for hubs, rows that are near everything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import blocks


def mean_of_largest(S: np.ndarray, k: int, axis: int) -> np.ndarray:
    """Return the mean of the k largest entries of S along an axis, without −inf; 0 if none are left."""
    size = S.shape[axis]
    k = min(k, size)
    # Sorted, so that the sum does not depend on the order of the entries.
    top = np.sort(np.partition(S, size - k, axis=axis).take(range(size - k, size), axis=axis), axis=axis)
    present = top > -np.inf
    total = np.where(present, top, 0).sum(axis=axis, dtype=np.float64)
    return np.asarray(total / np.maximum(np.count_nonzero(present, axis=axis), 1))


class ScaledSimilarity:
    """CSLS(a, b) = 2 ⟨a, b⟩ − r(a) − r(b) between all unit rows A (n, d) and B (m, d), in blocks of rows of A. r is the
    mean over the ``n_neighbors`` nearest rows of the other side (Conneau et al. 2018, §2.3). The product is computed
    here and again in every pass over ``blocks``, unless it fits into one block.
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
        """Yield rows of A and their 2 ⟨a, b⟩ − r(b), shape (rows, m), which ranks B for each row of A."""
        for part, S in self._products():
            yield part, 2.0 * S - self.r_b

    def soft_means(self, U: np.ndarray, V: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Return means of V (m, d_v) for A's rows, by the softmax of CSLS, and of U (n, d_u) for B's rows."""
        # CSLS of unit rows is at most 4, so no exponential overflows, and one matrix serves rows and columns.
        of_a, of_b, total = np.empty((len(U), V.shape[1]), V.dtype), np.zeros((len(V), U.shape[1])), np.zeros(len(V))
        for part, scaled in self.blocks():
            affinity = np.exp((scaled - self.r_a[part, None]) / temperature).astype(V.dtype)
            of_a[part] = (affinity @ V) / affinity.sum(axis=1, keepdims=True)
            of_b += affinity.T @ U[part]
            total += affinity.sum(axis=0, dtype=np.float64)
        return of_a, (of_b / total[:, None]).astype(U.dtype)

    def matched(self, U: np.ndarray, V: np.ndarray, temperature: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of U and V that match: each row with its soft mean or, without a temperature, with its mutually
        nearest row.
        """
        if temperature is None:
            i, j, _ = self.mutual()
            return U[i], V[j]
        of_u, of_v = self.soft_means(U, V, temperature)
        return np.concatenate([U, of_v]), np.concatenate([of_u, V])

    def mutual(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the pairs of mutually nearest rows; see ``mutual_neighbors``."""
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
    """Return the rows of A and of B that are each other's nearest under CSLS, and the CSLS (k,)."""
    return ScaledSimilarity(A, B, n_neighbors, block_rows=block_rows).mutual()
