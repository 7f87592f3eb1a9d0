"""Strips of rows of the kernel exp(u_i + A_ij/ε + v_j), kept in memory or recomputed on each use.

Works with NumPy and torch: it uses only operations with the same name in both.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse

from congruence._utils.arrays import blocks, device, is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, DType
from congruence.transport._strip_pool import CALLING_THREAD, StripPool, times_columns, times_rows

T = TypeVar("T")

#: Bytes of one strip. A held strip is read twice in a row and should stay in the cache. A computed strip is the result
#: of a matrix product, which needs some hundred rows to be efficient. On a GPU each strip costs a kernel launch.
HELD_BYTES = 2 * 2**20
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
    entries: Any = L
    floor = FLOOR[entries.dtype.itemsize]
    if is_tensor(L):
        if entries.dtype.itemsize == 4:  # torch's exp2 takes a third of the time of its exp, and half of NumPy's
            entries.mul_(math.log2(math.e)).clamp_(min=floor * math.log2(math.e)).exp2_()
            return L
        entries.clamp_(min=floor)
        if remote(L.device):
            entries.exp_()
            return L
        entries = to_numpy(L)
    elif entries.min() < floor:
        np.maximum(entries, floor, out=entries)
    np.exp(entries, out=entries)  # takes half as long as torch's
    return L


def strip_bytes(where: object, held: bool) -> int:
    """Return the number of bytes per strip on the device ``where``."""
    return REMOTE_BYTES if remote(where) else HELD_BYTES if held else COMPUTED_BYTES


def remote(where: object) -> bool:
    """Return whether a device has its own memory (anything but a CPU)."""
    return "cpu" not in str(where)


class _Affinity:
    """What both kinds of affinities have: a shape, and a library, a device and a precision of the computation."""

    shape: tuple[int, int]

    def __init__(self, like: Array, dtype: DType) -> None:
        self.xp, self.device, self.dtype = namespace(like), device(like), dtype
        self.itemsize = 8 if dtype == self.xp.float64 else 4

    def vector(self, values: np.ndarray) -> Array:
        """Return a vector in the library, precision and memory of the computation."""
        return self.xp.asarray(values, dtype=self.dtype, device=self.device)


class Dense(_Affinity):
    """Affinities A given as a matrix (n, m), for a computation in ``dtype``."""

    def __init__(self, A: Array, dtype: DType) -> None:
        super().__init__(A, dtype)
        self.A, self.shape = A, (A.shape[0], A.shape[1])

    @cached_property
    def bound(self) -> float:
        """The largest absolute affinity."""
        least, most = self.A.aminmax() if is_tensor(self.A) else (self.A.min(), self.A.max())
        return max(float(most), -float(least))

    def exponent(self, part: slice, u: np.ndarray, v: np.ndarray, epsilon: float, out: Array) -> Array:
        """Write u_i + A_ij/ε + v_j for the rows ``part`` into ``out``, and return it."""
        rows = self.vector(u[part])[:, None]
        if is_tensor(out):
            import torch

            torch.add(rows, self.A[part, :], alpha=1 / epsilon, out=out)
        else:
            np.multiply(to_numpy(self.A[part, :]), 1 / epsilon, out=to_numpy(out))
            out += rows
        if v.any():
            out += self.vector(v)
        return out


class Products(_Affinity):
    """Affinities that are inner products of the rows of X (n, d) and Y (m, d); the full matrix is never formed."""

    def __init__(self, X: Array, Y: Array, dtype: DType) -> None:
        super().__init__(X, dtype)
        self.X, self.Y, self.shape = X, Y, (X.shape[0], Y.shape[0])

    @cached_property
    def _wide(self) -> Array:
        # With u and v as two more dimensions, (x/ε, u, 1)·(y, 1, v) is the whole exponent in one matrix product.
        wide = self.xp.ones((self.Y.shape[0], self.Y.shape[1] + 2), dtype=self.dtype, device=self.device)
        wide[:, :-2] = self.Y
        return wide

    def formed(self) -> Dense:
        """Return the affinities as a matrix."""
        A = self.xp.empty(self.shape, dtype=self.dtype, device=self.device)
        X, Y = (self.xp.astype(side, self.dtype) for side in (self.X, self.Y))
        parts = list(blocks(self.shape[0], width(self), strip_bytes(self.device, True)))
        with strip_pool_for(self, self.shape[0] * width(self)) as pool:
            list(pool.each(lambda part: self.xp.matmul(X[part, :], Y.T, out=A[part, :]), parts))
        return Dense(A, self.dtype)

    @cached_property
    def bound(self) -> float:
        """An upper bound on the absolute affinities: the product of the largest row norms."""
        xp, top = self.xp, 1.0
        for side in (self.X, self.Y):
            norms = [
                xp.max(xp.sum(xp.astype(side[part, :], xp.float64) ** 2, axis=1))
                for part in blocks(side.shape[0], 16 * side.shape[1])
            ]
            top *= max(float(norm) for norm in norms) ** 0.5
        return top

    def exponent(self, part: slice, u: np.ndarray, v: np.ndarray, epsilon: float, out: Array) -> Array:
        """Write u_i + ⟨x_i, y_j⟩/ε + v_j for the rows ``part`` into ``out``, and return it."""
        rows = self.xp.ones((out.shape[0], self.X.shape[1] + 2), dtype=self.dtype, device=self.device)
        rows[:, :-2] = self.X[part, :]
        rows[:, :-2] *= 1 / epsilon
        rows[:, -2] = self.vector(u[part])
        self._wide[:, -1] = self.vector(v)  # other threads may write it at the same time, but the same values
        return self.xp.matmul(rows, self._wide.T, out=out)


Affinity: TypeAlias = Dense | Products


class Kernel:
    """The kernel exp(u_i + A_ij/ε + v_j) for base potentials u and v, with rows kept in up to ``memory`` bytes.

    Rows with very few significant entries are kept as a sparse matrix, without entries so small that they change sums
    by a rounding error at most while max |log a| + max |log b| ≤ ``reach`` (GROWTH; None if nothing is dropped).
    """

    def __init__(
        self, affinity: Affinity, epsilon: float, memory: int, pool: StripPool, buffer: Array | None = None
    ) -> None:
        self.affinity, self.epsilon, self.xp, self.memory = affinity, epsilon, affinity.xp, memory
        self.real = np.dtype(f"f{affinity.itemsize}")  # of the vectors that it is multiplied by
        self._strip_pool = pool
        n, m = affinity.shape
        self.fits = fits(affinity, memory)
        self._sparse: tuple[slice, Strip] | None = None
        self._held: dict[int, Strip] = {}
        self._held_parts: list[slice] = []
        self._parts: list[slice] = []
        self.u, self.v = np.zeros(n), np.zeros(m)
        self.reach: float | None = None
        self.buffer = buffer  # memory of the rows that are kept

    def exponents(self, work: Callable[[slice, Array], T], u: np.ndarray, v: np.ndarray) -> Iterator[T]:
        """Yield the results of ``work`` on each slice of rows and its exponents, in scratch memory."""
        held = self.fits or isinstance(self.affinity, Dense)
        parts = list(blocks(self.affinity.shape[0], width(self.affinity), strip_bytes(self.affinity.device, held)))
        return in_exponents(work, self._builders(), self.affinity, self.epsilon, u, v, parts)

    def rebase(
        self,
        u: np.ndarray | None,
        v: np.ndarray,
        marginals: tuple[np.ndarray, np.ndarray] | None = None,
        rows: np.ndarray | None = None,
    ) -> None:
        """Set base potentials u (n,) and v (m,), and recompute the rows kept in memory, sparse ones only with the
        ``marginals``. Without u, the largest exponents of the rows become ``rows`` (n,).
        """
        self._held, self._held_parts, self._sparse, self._parts, self.reach = {}, [], None, [], None
        A, left, n = self.affinity, self.memory, self.affinity.shape[0]
        self.u, self.v = np.zeros(n) if u is None else u, v
        if marginals is not None and left and not remote(A.device):
            left -= self._hold_sparse(*marginals)
        start = self._sparse[0].stop if self._sparse else 0
        stop = min(n, start + left // width(A))
        self._held_parts = shifted(blocks(stop - start, width(A), strip_bytes(A.device, True)), start)

        if self.buffer is None or len(self.buffer) < stop - start:
            self.buffer = None  # not two at once
            self.buffer = self.xp.empty((stop - start, A.shape[1]), dtype=A.dtype, device=A.device)
        kept = self.buffer

        def hold(part: slice) -> None:
            strip = A.exponent(part, self.u, v, self.epsilon, kept[part.start - start : part.stop - start, :])
            if rows is not None:
                self.u[part] = rows[part] - to_numpy(self.xp.max(strip, axis=1))
                strip += A.vector(self.u[part])[:, None]
            self._held[part.start] = Strip(exponential(strip), self._strip_pool.avoid_blas)

        for _ in self._builders().each(hold, self._held_parts):
            pass
        self._parts = shifted(blocks(n - stop, width(A), strip_bytes(A.device, False)), stop)

    def _builders(self) -> StripPool:
        """Return the pool that computes strips; products run on this thread if the library would start its own."""
        A = self.affinity
        threaded = isinstance(A, Products) and not is_tensor(A.X) and self._strip_pool.avoid_blas
        return CALLING_THREAD if threaded else self._strip_pool

    def _hold_sparse(self, r: np.ndarray, c: np.ndarray) -> int:
        """Keep rows up to the first dense strip as a sparse matrix, within the memory; return the bytes used."""
        least = np.log(r * c.min()) + math.log(np.finfo(self.real).eps / 2) - GROWTH
        entry_bytes = self.affinity.itemsize + 4
        # Set at the first dense strip: strips are taken in order, so later ones can be skipped.
        dense = threading.Event()

        def keep(part: slice, L: Array) -> scipy.sparse.csr_matrix | None:
            if dense.is_set():
                return None
            kept = least[part][:, None].astype(self.real) < to_numpy(L)
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
        self._sparse = slice(0, K.shape[0]), Strip(K)
        return int(K.nnz * entry_bytes)

    def strips(self, work: Callable[[slice, Strip], T]) -> Iterator[T]:
        """Yield the results of ``work`` on each slice of rows and its strip of the kernel, which it must not modify."""
        if self._sparse is not None:
            part, sparse = self._sparse
            yield work(part, sparse)
        yield from self._strip_pool.each(lambda part: work(part, self._held[part.start]), self._held_parts)
        if not self._parts:
            return
        yield from in_exponents(
            lambda part, L: work(part, Strip(exponential(L))),
            CALLING_THREAD,
            self.affinity,
            self.epsilon,
            self.u,
            self.v,
            self._parts,
        )


class Strip:
    """Rows of the kernel, dense or sparse, that multiply NumPy vectors; ``avoid_blas`` as for ``StripPool``."""

    def __init__(self, entries: Array | scipy.sparse.csr_matrix, avoid_blas: bool = False) -> None:
        self._entries, self._avoid_blas = entries, avoid_blas
        self._sparse = scipy.sparse.issparse(entries)
        near = not self._sparse and not remote(device(entries))
        self._near = to_numpy(entries) if near else None

    def times(self, b: np.ndarray) -> np.ndarray:
        """Return K b; of a sparse strip at least the smallest normal number, so that one can divide by it."""
        if self._near is not None:
            return times_columns(self._near, b, self._avoid_blas)
        return self._product(self._entries, b)

    def transposed_times(self, a: np.ndarray) -> np.ndarray:
        """Return Kᵀ a, bounded below in the same way."""
        return self._product(self._entries.T, a) if self._near is None else times_rows(self._near, a, self._avoid_blas)

    def _product(self, K: Any, vector: np.ndarray) -> np.ndarray:
        if self._sparse:
            return np.maximum(K @ vector, np.finfo(vector.dtype).tiny)
        return to_numpy(K @ namespace(K).asarray(vector, device=device(K)))


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
    u: np.ndarray,
    v: np.ndarray,
    parts: list[slice],
) -> Iterator[T]:
    """Yield the results of ``work`` on each part and the exponents u_i + A_ij/ε + v_j, in scratch memory."""
    scratch = Scratch(affinity)
    return pool.each(
        lambda part: work(part, affinity.exponent(part, u, v, epsilon, scratch.rows(part.stop - part.start))), parts
    )


def width(affinity: Affinity) -> int:
    """Return the number of bytes of a row."""
    return affinity.shape[1] * affinity.itemsize


def fits(affinity: Affinity, memory: int) -> bool:
    """Return whether the whole kernel fits in ``memory`` bytes."""
    return memory >= affinity.shape[0] * width(affinity)


def strip_pool_for(affinity: Affinity, memory: int) -> StripPool:
    """Return the thread pool for an affinity; if the kernel does not fit, strips are large, and the library threads."""
    n, m = affinity.shape
    return StripPool(affinity.A if isinstance(affinity, Dense) else affinity.X, n * m, fits(affinity, memory))
