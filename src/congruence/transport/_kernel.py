"""Strips of rows of the matrix exp(u_i + A_ij/ε + v_j), held in memory or computed anew each time they are asked for.

NumPy and torch alike: only operations that both spell the same way are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import scipy.sparse

from congruence._utils.arrays import blocks, device, namespace, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, DType

#: Bytes of one strip. Held, it is read twice in a row and should stay in the cache; computed, it is one side of a matrix product,
#: which needs some hundred rows; on a GPU each strip costs a launch.
HELD_BYTES = 4 * 2**20
COMPUTED_BYTES = 48 * 2**20
REMOTE_BYTES = 2**30
#: Exponents are cut off here, by bytes of a number, so that entries times scalings stay above the subnormal numbers, with which exp and
#: products are several times slower.
FLOOR = {4: -65.0, 8: -650.0}
#: Largest max |log a| + max |log b| of the scalings with which a sparse kernel is used, and the largest share of entries that one has:
#: an entry costs some ten times as much to multiply there.
GROWTH = 8.0
SPARSE = 0.05


def exponential(L: Array) -> Array:
    """Replace L by exp(L), and return it."""
    xp = namespace(L)
    floor = xp.asarray(FLOOR[8 if L.dtype == xp.float64 else 4], dtype=L.dtype, device=device(L))
    return xp.exp(xp.maximum(L, floor, out=L), out=L)


def strip_bytes(where: object, held: bool) -> int:
    """Return how large strips are to be on a device."""
    return REMOTE_BYTES if remote(where) else HELD_BYTES if held else COMPUTED_BYTES


def remote(where: object) -> bool:
    """Say whether a device has a memory of its own."""
    return "cpu" not in str(where)


class Dense:
    """Affinities given as a matrix.

    Parameters
    ----------
    A : array or tensor, shape (n, m)
    dtype : dtype
        In which to compute.
    """

    def __init__(self, A: Array, dtype: DType) -> None:
        self.A, self.dtype, self.shape = A, dtype, tuple(A.shape)
        self.xp, self.device = namespace(A), device(A)

    def bound(self) -> float:
        """Return the largest magnitude."""
        xp = self.xp
        parts = blocks(self.shape[0], 8 * self.shape[1])
        return max(float(xp.max(xp.abs(self.A[part, :]))) for part in parts)

    def exponent(self, part: slice, u: Array, v: Array, epsilon: float, out: Array) -> Array:
        """Write u_i + A_ij/ε + v_j of some rows into ``out``, and return it."""
        out[...] = self.A[part, :]
        out *= 1 / epsilon
        out += u[part][:, None]
        out += v
        return out


class Products:
    """Affinities that are the inner products of the rows of two matrices, never formed as a whole.

    Parameters
    ----------
    X : array or tensor, shape (n, d)
    Y : array or tensor, shape (m, d)
    dtype : dtype
        In which to compute.
    """

    def __init__(self, X: Array, Y: Array, dtype: DType) -> None:
        self.X, self.Y, self.dtype, self.shape = X, Y, dtype, (X.shape[0], Y.shape[0])
        self.xp, self.device = namespace(X), device(X)
        # u and v ride along as two more dimensions: (x/ε, u, 1)·(y, 1, v) is the whole exponent in one matrix product.
        self._wide = self.xp.ones((Y.shape[0], Y.shape[1] + 2), dtype=dtype, device=self.device)
        self._wide[:, :-2] = Y

    def bound(self) -> float:
        """Return what no magnitude exceeds: the product of the largest norms."""
        xp, top = self.xp, 1.0
        for side in (self.X, self.Y):
            norms = [
                xp.max(xp.sum(xp.astype(side[part, :], xp.float64) ** 2, axis=1))
                for part in blocks(side.shape[0], 16 * side.shape[1])
            ]
            top *= max(float(norm) for norm in norms) ** 0.5
        return top

    def exponent(self, part: slice, u: Array, v: Array, epsilon: float, out: Array) -> Array:
        """Write u_i + ⟨x_i, y_j⟩/ε + v_j of some rows into ``out``, and return it."""
        rows = self.xp.ones((out.shape[0], self.X.shape[1] + 2), dtype=self.dtype, device=self.device)
        rows[:, :-2] = self.X[part, :]
        rows[:, :-2] *= 1 / epsilon
        rows[:, -2] = u[part]
        self._wide[:, -1] = v
        return self.xp.matmul(rows, self._wide.T, out=out)


Affinity: TypeAlias = Dense | Products


class Kernel:
    """exp(u_i + A_ij/ε + v_j) for base potentials u, v, as many rows of it held in memory as may be.

    Rows of which hardly an entry counts are held as a sparse matrix: with marginals r, c, what is below r_i·min(c)·e^-CUT is left out.
    For scalings with max |log a| + max |log b| ≤ GROWTH that makes the sums of rows and columns of the scaled kernel wrong by at most a
    rounding error of their marginals, CUT being GROWTH and the logarithm of the precision.

    Parameters
    ----------
    affinity : Dense or Products
    epsilon : float
    memory : int
        Bytes that may be held. Rows beyond are computed each time.

    Attributes
    ----------
    u, v : array, shapes (n,) and (m,)
        Base potentials.
    fits : bool
        Whether all of it may be held.
    reach : float or None
        Largest max |log a| + max |log b| for which this is the kernel; None if it is for any.
    """

    def __init__(self, affinity: Affinity, epsilon: float, memory: int) -> None:
        self.affinity, self.epsilon, self.xp, self.memory = affinity, epsilon, affinity.xp, memory
        n, m = affinity.shape
        self._width = m * (8 if affinity.dtype == affinity.xp.float64 else 4)
        self.fits = memory >= n * self._width
        self._held: list[tuple[slice, Array | Sparse]] = []
        self._parts: list[slice] = []
        self.u, self.v = self.zeros(n), self.zeros(m)
        self.reach: float | None = None

    def zeros(self, n: int) -> Array:
        """Return a vector of zeros."""
        return self.xp.zeros(n, dtype=self.affinity.dtype, device=self.affinity.device)

    def empty(self, rows: int) -> Array:
        """Return room for some rows."""
        return self.xp.empty((rows, self.affinity.shape[1]), dtype=self.affinity.dtype, device=self.affinity.device)

    def exponents(self, u: Array, v: Array) -> Iterator[tuple[slice, Array]]:
        """Yield rows and u_i + A_ij/ε + v_j for them, in a scratch strip that is the caller's until the next."""
        given = isinstance(self.affinity, Dense)
        parts = blocks(self.affinity.shape[0], self._width, strip_bytes(self.affinity.device, given))
        yield from exponents(self.affinity, self.epsilon, u, v, list(parts))

    def rebase(self, u: Array, v: Array, marginals: tuple[Array, Array] | None = None) -> None:
        """Take new base potentials, and compute again what is held.

        Parameters
        ----------
        u, v : array, shapes (n,) and (m,)
        marginals : tuple of array, optional
            Of rows and of columns. Only with them are rows held as a sparse matrix.
        """
        self.u, self.v = u, v
        self._held, self._parts, self.reach = [], [], None
        left, n = self.memory, self.affinity.shape[0]
        if marginals is not None and left and not remote(self.affinity.device):
            left -= self._hold_sparse(*marginals)
        start = self._held[0][0].stop if self._held else 0
        stop = min(n, start + left // self._width)
        for part in shifted(blocks(stop - start, self._width, strip_bytes(self.affinity.device, True)), start):
            K = self.affinity.exponent(part, u, v, self.epsilon, self.empty(part.stop - part.start))
            self._held.append((part, exponential(K)))
        self._parts = shifted(blocks(n - stop, self._width, strip_bytes(self.affinity.device, False)), stop)

    def _hold_sparse(self, r: Array, c: Array) -> int:
        """Hold the first rows as a sparse matrix until they are too many or not sparse, and return the bytes that takes."""
        least = self.xp.log(r * self.xp.min(c)) + math.log(self.xp.finfo(self.affinity.dtype).eps / 2) - GROWTH
        entry_bytes = self._width // self.affinity.shape[1] + 4
        pieces: list[scipy.sparse.csr_matrix] = []
        taken = stop = 0
        for part, L in self.exponents(self.u, self.v):
            kept = to_numpy(least[part][:, None] < L)
            count = int(np.count_nonzero(kept))
            taken += 2 * count * entry_bytes  # for a moment they are there in pieces and in one
            if taken > self.memory or count > SPARSE * kept.size:
                break
            pieces.append(exponential_of(to_numpy(L), kept))
            stop = part.stop
        if not pieces:
            return 0
        self.reach = GROWTH
        K = scipy.sparse.vstack(pieces, format="csr")
        self._held.append((slice(0, stop), Sparse(K, self.xp)))
        return int(K.nnz * entry_bytes)

    def strips(self) -> Iterator[tuple[slice, Array | Sparse]]:
        """Yield rows and the kernel for them, to be read only."""
        yield from self._held
        for part, strip in exponents(self.affinity, self.epsilon, self.u, self.v, self._parts):
            yield part, exponential(strip)


class Sparse:
    """Rows of the kernel as a sparse matrix, to be multiplied with a vector of either array library."""

    def __init__(self, matrix: scipy.sparse.csr_matrix, xp: ArrayNamespace) -> None:
        self._matrix, self._xp = matrix, xp

    @property
    def T(self) -> Sparse:
        """Transposed, without a copy."""
        return Sparse(self._matrix.T, self._xp)

    def __matmul__(self, vector: Array) -> Array:
        """Return the product; where it has no terms, the smallest number, by which one can still divide."""
        product = self._matrix @ to_numpy(vector)
        return self._xp.asarray(np.maximum(product, np.finfo(product.dtype).tiny))


def exponential_of(L: np.ndarray, kept: np.ndarray) -> scipy.sparse.csr_matrix:
    """Return exp(L) as a sparse matrix of the entries that are to be kept."""
    found = np.flatnonzero(kept)
    starts = np.concatenate(([0], np.cumsum(np.count_nonzero(kept, axis=1))))
    columns = (found % L.shape[1]).astype(np.int32)
    return scipy.sparse.csr_matrix((np.exp(L.reshape(-1)[found]), columns, starts.astype(np.int32)), shape=L.shape)


def shifted(parts: Iterable[slice], by: int) -> list[slice]:
    """Return slices moved up."""
    return [slice(part.start + by, part.stop + by) for part in parts]


def exponents(
    affinity: Affinity, epsilon: float, u: Array, v: Array, parts: list[slice]
) -> Iterator[tuple[slice, Array]]:
    """Yield each part and u_i + A_ij/ε + v_j for its rows, all in one scratch strip."""
    rows = max((part.stop - part.start for part in parts), default=0)
    scratch = affinity.xp.empty((rows, affinity.shape[1]), dtype=affinity.dtype, device=affinity.device)
    for part in parts:
        yield part, affinity.exponent(part, u, v, epsilon, scratch[: part.stop - part.start, :])
