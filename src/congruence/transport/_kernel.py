"""Strips of rows of the kernel exp(u_i + A_ij/ε + v_j), kept in memory or recomputed on each use.

Works with NumPy and torch: it uses only operations with the same name in both.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import scipy.sparse

from congruence._utils.arrays import blocks, device, namespace, to_numpy
from congruence._utils.typing import Array, ArrayNamespace, DType
from congruence.transport._strip_pool import CALLING_THREAD, StripPool, times_columns, times_rows

T = TypeVar("T")

#: Bytes of one strip. A held strip is read twice in a row and should stay in the cache. A computed strip is the result
#: of a matrix product, which needs some hundred rows to be efficient. On a GPU each strip costs a kernel launch. A
#: small matrix is divided into SHARES held strips of at least LEAST_BYTES, so that threads can share the work.
HELD_BYTES = 4 * 2**20
LEAST_BYTES = 2**20
SHARES = 8
COMPUTED_BYTES = 48 * 2**20
REMOTE_BYTES = 2**30
#: Lower bound of exponents, by bytes per number. It keeps entries times scalings above the subnormal numbers, for which
#: exp and products are several times slower.
FLOOR = {4: -65.0, 8: -650.0}
#: Largest max |log a| + max |log b| of scalings for which a sparse kernel is accurate, and the largest share of nonzero
#: entries for which one is used, because a multiplication with a sparse entry takes about ten times as long as with a
#: dense one.
GROWTH = 8.0
SPARSE = 0.05


def exponential(L: Array) -> Array:
    """Compute exp(L) in place, with exponents below ``FLOOR`` raised to it, and return L."""
    if not remote(device(L)):  # NumPy's exp takes half as long as torch's
        entries = to_numpy(L)
        np.exp(np.maximum(entries, FLOOR[entries.itemsize], out=entries), out=entries)
        return L
    xp = namespace(L)
    floor = xp.asarray(FLOOR[8 if L.dtype == xp.float64 else 4], dtype=L.dtype, device=device(L))
    return xp.exp(xp.maximum(L, floor, out=L), out=L)


def strip_bytes(where: object, held: bool, total: int) -> int:
    """Return the number of bytes per strip on the device ``where``, for a matrix of ``total`` bytes."""
    if remote(where):
        return REMOTE_BYTES
    return min(HELD_BYTES, max(LEAST_BYTES, total // SHARES)) if held else COMPUTED_BYTES


def remote(where: object) -> bool:
    """Return whether a device has its own memory (anything but a CPU)."""
    return "cpu" not in str(where)


class Dense:
    """Affinities A given as a matrix (n, m), for a computation in ``dtype``."""

    def __init__(self, A: Array, dtype: DType) -> None:
        self.A, self.dtype, self.shape = A, dtype, tuple(A.shape)
        self.xp, self.device = namespace(A), device(A)

    def every(self, step: int) -> Dense:
        """Return the affinities of every ``step``-th row."""
        return Dense(self.A[::step, :], self.dtype)

    def bound(self) -> float:
        """Return the largest absolute affinity."""
        xp = self.xp
        parts = blocks(self.shape[0], 8 * self.shape[1])
        return max(float(xp.max(xp.abs(self.A[part, :]))) for part in parts)

    def exponent(self, part: slice, u: Array, v: Array, epsilon: float, out: Array) -> Array:
        """Write u_i + A_ij/ε + v_j for the rows ``part`` into ``out``, and return it."""
        if self.A.dtype == self.dtype:
            self.xp.multiply(self.A[part, :], 1 / epsilon, out=out)
        else:
            out[...] = self.A[part, :]
            out *= 1 / epsilon
        out += u[part][:, None]
        out += v
        return out


class Products:
    """Affinities that are inner products of the rows of X (n, d) and Y (m, d); the full matrix is never formed."""

    def __init__(self, X: Array, Y: Array, dtype: DType) -> None:
        self.X, self.Y, self.dtype, self.shape = X, Y, dtype, (X.shape[0], Y.shape[0])
        self.xp, self.device = namespace(X), device(X)
        # With u and v as two more dimensions, (x/ε, u, 1)·(y, 1, v) is the whole exponent in one matrix product.
        self._wide = self.xp.ones((Y.shape[0], Y.shape[1] + 2), dtype=dtype, device=self.device)
        self._wide[:, :-2] = Y

    def every(self, step: int) -> Products:
        """Return the affinities of every ``step``-th row."""
        return Products(self.X[::step, :], self.Y, self.dtype)

    def bound(self) -> float:
        """Return an upper bound on the absolute affinities: the product of the largest row norms."""
        xp, top = self.xp, 1.0
        for side in (self.X, self.Y):
            norms = [
                xp.max(xp.sum(xp.astype(side[part, :], xp.float64) ** 2, axis=1))
                for part in blocks(side.shape[0], 16 * side.shape[1])
            ]
            top *= max(float(norm) for norm in norms) ** 0.5
        return top

    def exponent(self, part: slice, u: Array, v: Array, epsilon: float, out: Array) -> Array:
        """Write u_i + ⟨x_i, y_j⟩/ε + v_j for the rows ``part`` into ``out``, and return it."""
        rows = self.xp.ones((out.shape[0], self.X.shape[1] + 2), dtype=self.dtype, device=self.device)
        rows[:, :-2] = self.X[part, :]
        rows[:, :-2] *= 1 / epsilon
        rows[:, -2] = u[part]
        self._wide[:, -1] = v  # other threads may write it at the same time, but the same values
        return self.xp.matmul(rows, self._wide.T, out=out)


Affinity: TypeAlias = Dense | Products


class Kernel:
    """The kernel exp(u_i + A_ij/ε + v_j) for base potentials u and v, with rows kept in up to ``memory`` bytes.

    Rows with very few significant entries are kept as a sparse matrix: with marginals r, c, entries below
    r_i·min(c)·e^-CUT are dropped, where CUT is GROWTH plus the negative logarithm of the unit roundoff, so that
    scalings with max |log a| + max |log b| ≤ GROWTH change the sums by at most a rounding error. ``reach`` is the
    largest such growth for which the kernel is accurate; None if it is for any.
    """

    def __init__(self, affinity: Affinity, epsilon: float, memory: int, pool: StripPool) -> None:
        self.affinity, self.epsilon, self.xp, self.memory = affinity, epsilon, affinity.xp, memory
        self._strip_pool = pool
        n, m = affinity.shape
        self._width = width(affinity)
        self.fits = fits(affinity, memory)
        self._sparse: tuple[slice, SparseStrip] | None = None
        self._held: dict[int, Array] = {}
        self._held_parts: list[slice] = []
        self._parts: list[slice] = []
        self.u, self.v = self.zeros(n), self.zeros(m)
        self.reach: float | None = None
        self.buffer: Array | None = None  # memory of the rows that are kept

    def zeros(self, n: int) -> Array:
        """Return a vector of zeros."""
        return self.xp.zeros(n, dtype=self.affinity.dtype, device=self.affinity.device)

    def empty(self, rows: int) -> Array:
        """Return uninitialized memory for a number of rows."""
        return self.xp.empty((rows, self.affinity.shape[1]), dtype=self.affinity.dtype, device=self.affinity.device)

    def exponents(self, work: Callable[[slice, Array], T], u: Array, v: Array) -> Iterator[T]:
        """Yield the results of ``work`` on each slice of rows and its exponents u_i + A_ij/ε + v_j, in scratch memory
        that belongs to the call.
        """
        held = self.fits or isinstance(self.affinity, Dense)
        parts = list(blocks(self.affinity.shape[0], self._width, self._strip_bytes(held)))
        return in_exponents(work, self._builders(), self.affinity, self.epsilon, u, v, parts)

    def rebase(self, u: Array, v: Array, marginals: tuple[Array, Array] | None = None) -> None:
        """Set new base potentials u (n,) and v (m,), and recompute the rows kept in memory; sparse ones need the
        ``marginals``.
        """
        self.u, self.v = u, v
        self._held, self._held_parts, self._sparse, self._parts, self.reach = {}, [], None, [], None
        left, n = self.memory, self.affinity.shape[0]
        if marginals is not None and left and not remote(self.affinity.device):
            left -= self._hold_sparse(*marginals)
        start = self._sparse[0].stop if self._sparse else 0
        stop = min(n, start + left // self._width)
        self._held_parts = shifted(blocks(stop - start, self._width, self._strip_bytes(True)), start)

        if self.buffer is None or len(self.buffer) < stop - start:
            self.buffer = None  # not two at once
            self.buffer = self.empty(stop - start)
        rows = self.buffer

        def hold(part: slice) -> None:
            strip = rows[part.start - start : part.stop - start, :]
            self._held[part.start] = exponential(self.affinity.exponent(part, u, v, self.epsilon, strip))

        for _ in self._builders().each(hold, self._held_parts):
            pass
        self._parts = shifted(blocks(n - stop, self._width, self._strip_bytes(False)), stop)

    def _strip_bytes(self, held: bool) -> int:
        return strip_bytes(self.affinity.device, held, self.affinity.shape[0] * self._width)

    def _builders(self) -> StripPool:
        """Return the pool that computes strips; products run on this thread if the library would start its own."""
        avoid_blas = self._strip_pool.avoid_blas and isinstance(self.affinity, Products)
        return CALLING_THREAD if avoid_blas else self._strip_pool

    def _hold_sparse(self, r: Array, c: Array) -> int:
        """Keep rows up to the first dense strip as a sparse matrix, within the memory; return the bytes used."""
        least = self.xp.log(r * self.xp.min(c)) + math.log(self.xp.finfo(self.affinity.dtype).eps / 2) - GROWTH
        entry_bytes = self._width // self.affinity.shape[1] + 4
        # Set at the first dense strip: strips are taken in order, so later ones can be skipped.
        dense = threading.Event()

        def keep(part: slice, L: Array) -> scipy.sparse.csr_matrix | None:
            if dense.is_set():
                return None
            kept = to_numpy(least[part][:, None] < L)
            if np.count_nonzero(kept) > SPARSE * kept.size:
                dense.set()
                return None
            return exponential_of(to_numpy(L), kept)

        pieces: list[scipy.sparse.csr_matrix] = []
        taken = 0
        for piece in self.exponents(keep, self.u, self.v):
            # Twice, because the pieces and the stacked matrix exist at the same time.
            taken += 0 if piece is None else 2 * piece.nnz * entry_bytes
            if piece is None or taken > self.memory:
                break
            pieces.append(piece)
        if not pieces:
            return 0
        self.reach = GROWTH
        K = scipy.sparse.vstack(pieces, format="csr")
        self._sparse = slice(0, K.shape[0]), SparseStrip(K, self.xp)
        return int(K.nnz * entry_bytes)

    def strips(self, work: Callable[[slice, Strip], T]) -> Iterator[T]:
        """Yield the results of ``work`` on each slice of rows and its strip of the kernel, which it must not modify."""
        if self._sparse is not None:
            part, sparse = self._sparse
            yield work(part, sparse)
        yield from self._strip_pool.each(
            lambda part: work(part, DenseStrip(self._held[part.start], self._strip_pool.avoid_blas)), self._held_parts
        )
        yield from in_exponents(
            lambda part, L: work(part, DenseStrip(exponential(L))),
            CALLING_THREAD,
            self.affinity,
            self.epsilon,
            self.u,
            self.v,
            self._parts,
        )


class DenseStrip:
    """Rows of the kernel as a dense array; ``avoid_blas`` as for ``StripPool``."""

    def __init__(self, entries: Array, avoid_blas: bool = False) -> None:
        self.entries, self._avoid_blas = entries, avoid_blas

    def times(self, b: Array) -> Array:
        """Return K b."""
        return times_columns(self.entries, b, self._avoid_blas)

    def transposed_times(self, a: Array) -> Array:
        """Return Kᵀ a."""
        return times_rows(self.entries, a, self._avoid_blas)


class SparseStrip:
    """Rows of the kernel as a sparse matrix that multiplies vectors of either array library."""

    def __init__(self, matrix: scipy.sparse.csr_matrix, xp: ArrayNamespace) -> None:
        self._matrix, self._xp = matrix, xp

    def times(self, b: Array) -> Array:
        """Return K b with every entry at least the smallest positive normal number, so that one can divide by it."""
        return self._product(self._matrix, b)

    def transposed_times(self, a: Array) -> Array:
        """Return Kᵀ a, bounded below in the same way."""
        return self._product(self._matrix.T, a)

    def _product(self, matrix: scipy.sparse.spmatrix, vector: Array) -> Array:
        product = matrix @ to_numpy(vector)
        return self._xp.asarray(np.maximum(product, np.finfo(product.dtype).tiny))


Strip: TypeAlias = DenseStrip | SparseStrip


def exponential_of(L: np.ndarray, kept: np.ndarray) -> scipy.sparse.csr_matrix:
    """Return exp(L) as a sparse matrix of the entries at which ``kept`` is true."""
    flat = np.flatnonzero(kept)
    starts = np.concatenate(([0], np.cumsum(np.count_nonzero(kept, axis=1))))
    columns = (flat % L.shape[1]).astype(np.int32)
    return scipy.sparse.csr_matrix((np.exp(L.reshape(-1)[flat]), columns, starts.astype(np.int32)), shape=L.shape)


def shifted(parts: Iterable[slice], by: int) -> list[slice]:
    """Return the slices shifted by ``by`` rows."""
    return [slice(part.start + by, part.stop + by) for part in parts]


class Scratch(threading.local):
    """Reusable thread-local memory for strips of one width."""

    def __init__(self, affinity: Affinity) -> None:
        self._affinity = affinity
        self._strips: dict[int, Array] = {}

    def rows(self, n: int, number: int = 0) -> Array:
        """Return memory for ``n`` rows; calls with the same ``number`` share the memory."""
        affinity, strip = self._affinity, self._strips.get(number)
        if strip is None or len(strip) < n:
            strip = affinity.xp.empty((n, affinity.shape[1]), dtype=affinity.dtype, device=affinity.device)
            self._strips[number] = strip
        return strip[:n, :]


def in_exponents(
    work: Callable[[slice, Array], T],
    pool: StripPool,
    affinity: Affinity,
    epsilon: float,
    u: Array,
    v: Array,
    parts: list[slice],
) -> Iterator[T]:
    """Yield the results of ``work`` on each part and the exponents u_i + A_ij/ε + v_j, in scratch memory."""
    scratch = Scratch(affinity)
    return pool.each(
        lambda part: work(part, affinity.exponent(part, u, v, epsilon, scratch.rows(part.stop - part.start))), parts
    )


def width(affinity: Affinity) -> int:
    """Return the number of bytes of a row."""
    return affinity.shape[1] * (8 if affinity.dtype == affinity.xp.float64 else 4)


def fits(affinity: Affinity, memory: int) -> bool:
    """Return whether the whole kernel fits in ``memory`` bytes."""
    return memory >= affinity.shape[0] * width(affinity)


def strip_pool_for(affinity: Affinity, memory: int) -> StripPool:
    """Return the thread pool for an affinity; if the kernel does not fit, strips are large, and the library threads."""
    n, m = affinity.shape
    return StripPool(affinity.A if isinstance(affinity, Dense) else affinity.X, n * m, fits(affinity, memory))
