"""Strips of rows of the matrix exp(u_i + A_ij/ε + v_j), held in memory or computed anew each time they are asked for.

NumPy and torch alike: only operations that both spell the same way are used.
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
from congruence.transport._crew import ONE, Crew, times_columns, times_rows

T = TypeVar("T")

#: Bytes of one strip. Held, it is read twice in a row and should stay in the cache; computed, it is one side of a matrix product,
#: which needs some hundred rows; on a GPU each strip costs a launch. A small matrix has SHARES held strips, if they are not
#: less than LEAST_BYTES, so that threads can share them.
HELD_BYTES = 4 * 2**20
LEAST_BYTES = 2**20
SHARES = 8
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


def strip_bytes(where: object, held: bool, total: int) -> int:
    """Return how large strips are to be on a device, of a matrix of so many bytes."""
    if remote(where):
        return REMOTE_BYTES
    return min(HELD_BYTES, max(LEAST_BYTES, total // SHARES)) if held else COMPUTED_BYTES


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
        if self.A.dtype == self.dtype:
            self.xp.multiply(self.A[part, :], 1 / epsilon, out=out)
        else:
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
        self._wide[:, -1] = v  # which other threads of a crew do as well: of the same numbers
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
    crew : Crew
        Who shares the strips out.

    Attributes
    ----------
    u, v : array, shapes (n,) and (m,)
        Base potentials.
    fits : bool
        Whether all of it may be held.
    reach : float or None
        Largest max |log a| + max |log b| for which this is the kernel; None if it is for any.
    """

    def __init__(self, affinity: Affinity, epsilon: float, memory: int, crew: Crew) -> None:
        self.affinity, self.epsilon, self.xp, self.memory = affinity, epsilon, affinity.xp, memory
        self._crew = crew
        n, m = affinity.shape
        self._width = width(affinity)
        self.fits = fits(affinity, memory)
        self._sparse: tuple[slice, Sparse] | None = None
        self._held: dict[int, Array] = {}
        self._held_parts: list[slice] = []
        self._parts: list[slice] = []
        self.u, self.v = self.zeros(n), self.zeros(m)
        self.reach: float | None = None

    def zeros(self, n: int) -> Array:
        """Return a vector of zeros."""
        return self.xp.zeros(n, dtype=self.affinity.dtype, device=self.affinity.device)

    def empty(self, rows: int) -> Array:
        """Return room for some rows."""
        return self.xp.empty((rows, self.affinity.shape[1]), dtype=self.affinity.dtype, device=self.affinity.device)

    def exponents(self, work: Callable[[slice, Array], T], u: Array, v: Array) -> Iterator[T]:
        """Return what ``work`` gives for rows and u_i + A_ij/ε + v_j of them, in a scratch strip that is its own until it returns."""
        held = self.fits or isinstance(self.affinity, Dense)
        parts = list(blocks(self.affinity.shape[0], self._width, self._strip_bytes(held)))
        return in_exponents(work, self._builders(), self.affinity, self.epsilon, u, v, parts)

    def rebase(self, u: Array, v: Array, marginals: tuple[Array, Array] | None = None) -> None:
        """Take new base potentials, and compute again what is held.

        Parameters
        ----------
        u, v : array, shapes (n,) and (m,)
        marginals : tuple of array, optional
            Of rows and of columns. Only with them are rows held as a sparse matrix.
        """
        self.u, self.v = u, v
        self._held, self._held_parts, self._sparse, self._parts, self.reach = {}, [], None, [], None
        left, n = self.memory, self.affinity.shape[0]
        if marginals is not None and left and not remote(self.affinity.device):
            left -= self._hold_sparse(*marginals)
        start = self._sparse[0].stop if self._sparse else 0
        stop = min(n, start + left // self._width)
        self._held_parts = shifted(blocks(stop - start, self._width, self._strip_bytes(True)), start)

        def hold(part: slice) -> None:
            strip = self.empty(part.stop - part.start)
            self._held[part.start] = exponential(self.affinity.exponent(part, u, v, self.epsilon, strip))

        for _ in self._builders().each(hold, self._held_parts):
            pass
        self._parts = shifted(blocks(n - stop, self._width, self._strip_bytes(False)), stop)

    def _strip_bytes(self, held: bool) -> int:
        return strip_bytes(self.affinity.device, held, self.affinity.shape[0] * self._width)

    def _builders(self) -> Crew:
        """Return who computes strips: a crew that is apart has no matrix products of its own."""
        return ONE if self._crew.apart and isinstance(self.affinity, Products) else self._crew

    def _hold_sparse(self, r: Array, c: Array) -> int:
        """Hold the first rows as a sparse matrix until they are too many or not sparse, and return the bytes that takes."""
        least = self.xp.log(r * self.xp.min(c)) + math.log(self.xp.finfo(self.affinity.dtype).eps / 2) - GROWTH
        entry_bytes = self._width // self.affinity.shape[1] + 4
        dense = threading.Event()  # some strip is: strips are taken in order, so that those after it may be left out

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
            taken += (
                0 if piece is None else 2 * piece.nnz * entry_bytes
            )  # for a moment they are there in pieces and in one
            if piece is None or taken > self.memory:
                break
            pieces.append(piece)
        if not pieces:
            return 0
        self.reach = GROWTH
        K = scipy.sparse.vstack(pieces, format="csr")
        self._sparse = slice(0, K.shape[0]), Sparse(K, self.xp)
        return int(K.nnz * entry_bytes)

    def strips(self, work: Callable[[slice, Strip], T]) -> Iterator[T]:
        """Return what ``work`` gives for rows and the kernel for them, to be read only."""
        if self._sparse is not None:
            part, sparse = self._sparse
            yield work(part, sparse)
        yield from self._crew.each(
            lambda part: work(part, Whole(self._held[part.start], self._crew.apart)), self._held_parts
        )
        yield from in_exponents(
            lambda part, L: work(part, Whole(exponential(L))),
            ONE,
            self.affinity,
            self.epsilon,
            self.u,
            self.v,
            self._parts,
        )


class Whole:
    """Rows of the kernel with all their entries.

    Parameters
    ----------
    entries : array or tensor
    apart : bool, default=False
        See :class:`Crew`.
    """

    def __init__(self, entries: Array, apart: bool = False) -> None:
        self.entries, self._apart = entries, apart

    def times(self, b: Array) -> Array:
        """Return K b."""
        return times_columns(self.entries, b, self._apart)

    def transposed_times(self, a: Array) -> Array:
        """Return Kᵀ a."""
        return times_rows(self.entries, a, self._apart)


class Sparse:
    """Rows of the kernel as a sparse matrix, to be multiplied with a vector of either array library."""

    def __init__(self, matrix: scipy.sparse.csr_matrix, xp: ArrayNamespace) -> None:
        self._matrix, self._xp = matrix, xp

    def times(self, b: Array) -> Array:
        """Return the product; where it has no terms, the smallest number, by which one can still divide."""
        return self._product(self._matrix, b)

    def transposed_times(self, a: Array) -> Array:
        """Return the product with the transpose in the same way."""
        return self._product(self._matrix.T, a)

    def _product(self, matrix: scipy.sparse.spmatrix, vector: Array) -> Array:
        product = matrix @ to_numpy(vector)
        return self._xp.asarray(np.maximum(product, np.finfo(product.dtype).tiny))


Strip: TypeAlias = Whole | Sparse


def exponential_of(L: np.ndarray, kept: np.ndarray) -> scipy.sparse.csr_matrix:
    """Return exp(L) as a sparse matrix of the entries that are to be kept."""
    found = np.flatnonzero(kept)
    starts = np.concatenate(([0], np.cumsum(np.count_nonzero(kept, axis=1))))
    columns = (found % L.shape[1]).astype(np.int32)
    return scipy.sparse.csr_matrix((np.exp(L.reshape(-1)[found]), columns, starts.astype(np.int32)), shape=L.shape)


def shifted(parts: Iterable[slice], by: int) -> list[slice]:
    """Return slices moved up."""
    return [slice(part.start + by, part.stop + by) for part in parts]


class Scratch(threading.local):
    """Strips of one width that a thread writes again and again."""

    def __init__(self, affinity: Affinity) -> None:
        self._affinity = affinity
        self._strips: dict[int, Array] = {}

    def rows(self, n: int, number: int = 0) -> Array:
        """Return room for n rows, the same memory each time for one number."""
        affinity, strip = self._affinity, self._strips.get(number)
        if strip is None or len(strip) < n:
            strip = affinity.xp.empty((n, affinity.shape[1]), dtype=affinity.dtype, device=affinity.device)
            self._strips[number] = strip
        return strip[:n, :]


def in_exponents(
    work: Callable[[slice, Array], T],
    crew: Crew,
    affinity: Affinity,
    epsilon: float,
    u: Array,
    v: Array,
    parts: list[slice],
) -> Iterator[T]:
    """Return what ``work`` gives for each part and u_i + A_ij/ε + v_j for its rows, in a scratch strip."""
    scratch = Scratch(affinity)
    return crew.each(
        lambda part: work(part, affinity.exponent(part, u, v, epsilon, scratch.rows(part.stop - part.start))), parts
    )


def width(affinity: Affinity) -> int:
    """Return the bytes of a row."""
    return affinity.shape[1] * (8 if affinity.dtype == affinity.xp.float64 else 4)


def fits(affinity: Affinity, memory: int) -> bool:
    """Say whether the whole kernel may be held."""
    return memory >= affinity.shape[0] * width(affinity)


def crew_for(affinity: Affinity, memory: int) -> Crew:
    """Return who computes with an affinity: its library alone where strips are large, since not all may be held."""
    n, m = affinity.shape
    return Crew(affinity.A if isinstance(affinity, Dense) else affinity.X, n * m, fits(affinity, memory))
