"""Strips of rows of the matrix exp(u_i + A_ij/ε + v_j), held in memory or computed anew each time they are asked for.

NumPy and torch alike: only operations that both spell the same way are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from congruence._arrays import blocks, device, namespace

#: Bytes of one strip. Held, it is read twice in a row and should stay in the cache; computed, it is one side of a matrix product,
#: which needs some hundred rows; on a GPU each strip costs a launch.
HELD_BYTES = 4 * 2**20
COMPUTED_BYTES = 48 * 2**20
REMOTE_BYTES = 2**30
#: Exponents are cut off here, by bytes of a number, so that entries times scalings stay above the subnormal numbers, with which exp and
#: products are several times slower.
FLOOR = {4: -65.0, 8: -650.0}


def exponential(L: Any) -> Any:
    """Replace L by exp(L), and return it."""
    xp = namespace(L)
    floor = xp.asarray(FLOOR[8 if L.dtype == xp.float64 else 4], dtype=L.dtype, device=device(L))
    return xp.exp(xp.maximum(L, floor, out=L), out=L)


def strip_bytes(where: Any, held: bool) -> int:
    """Return how large strips are to be on a device."""
    return REMOTE_BYTES if "cpu" not in str(where) else HELD_BYTES if held else COMPUTED_BYTES


class Dense:
    """Affinities given as a matrix.

    Parameters
    ----------
    A : array or tensor, shape (n, m)
    dtype : dtype
        In which to compute.
    """

    def __init__(self, A: Any, dtype: Any) -> None:
        self.A, self.dtype, self.shape = A, dtype, tuple(A.shape)
        self.xp, self.device = namespace(A), device(A)

    def bound(self) -> float:
        """Return the largest magnitude."""
        xp = self.xp
        parts = blocks(self.shape[0], 8 * self.shape[1])
        return max(float(xp.max(xp.abs(self.A[part, :]))) for part in parts)

    def exponent(self, part: slice, u: Any, v: Any, epsilon: float, out: Any) -> Any:
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

    def __init__(self, X: Any, Y: Any, dtype: Any) -> None:
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

    def exponent(self, part: slice, u: Any, v: Any, epsilon: float, out: Any) -> Any:
        """Write u_i + ⟨x_i, y_j⟩/ε + v_j of some rows into ``out``, and return it."""
        rows = self.xp.ones((out.shape[0], self.X.shape[1] + 2), dtype=self.dtype, device=self.device)
        rows[:, :-2] = self.X[part, :]
        rows[:, :-2] *= 1 / epsilon
        rows[:, -2] = u[part]
        self._wide[:, -1] = v
        return self.xp.matmul(rows, self._wide.T, out=out)


Affinity = Dense | Products


class Kernel:
    """exp(u_i + A_ij/ε + v_j) for base potentials u, v, the first rows of it held in memory.

    Parameters
    ----------
    affinity : Dense or Products
    epsilon : float
    memory : int
        Bytes that may be held. Rows beyond are computed each time.
    """

    def __init__(self, affinity: Affinity, epsilon: float, memory: int) -> None:
        self.affinity, self.epsilon, self.xp = affinity, epsilon, affinity.xp
        n, m = affinity.shape
        width = m * (8 if affinity.dtype == affinity.xp.float64 else 4)
        count = min(n, memory // width)
        self._held_parts = list(blocks(count, width, strip_bytes(affinity.device, True)))
        rest = blocks(n - count, width, strip_bytes(affinity.device, False))
        self._parts = [slice(part.start + count, part.stop + count) for part in rest]
        self._held = self.empty(count)
        self.u, self.v = self.zeros(n), self.zeros(m)

    def zeros(self, n: int) -> Any:
        """Return a vector of zeros."""
        return self.xp.zeros(n, dtype=self.affinity.dtype, device=self.affinity.device)

    def empty(self, rows: int) -> Any:
        """Return room for some rows."""
        return self.xp.empty((rows, self.affinity.shape[1]), dtype=self.affinity.dtype, device=self.affinity.device)

    def exponents(self, u: Any, v: Any) -> Iterator[tuple[slice, Any]]:
        """Yield rows and u_i + A_ij/ε + v_j for them, in a scratch strip that is the caller's until the next."""
        yield from exponents(self.affinity, self.epsilon, u, v, [*self._held_parts, *self._parts])

    def rebase(self, u: Any, v: Any) -> None:
        """Take new base potentials, and compute again what is held."""
        self.u, self.v = u, v
        for part in self._held_parts:
            exponential(self.affinity.exponent(part, u, v, self.epsilon, self._held[part, :]))

    def strips(self) -> Iterator[tuple[slice, Any]]:
        """Yield rows and the kernel for them, to be read only."""
        for part in self._held_parts:
            yield part, self._held[part, :]
        for part, strip in exponents(self.affinity, self.epsilon, self.u, self.v, self._parts):
            yield part, exponential(strip)


def exponents(affinity: Affinity, epsilon: float, u: Any, v: Any, parts: list[slice]) -> Iterator[tuple[slice, Any]]:
    """Yield each part and u_i + A_ij/ε + v_j for its rows, all in one scratch strip."""
    rows = max((part.stop - part.start for part in parts), default=0)
    scratch = affinity.xp.empty((rows, affinity.shape[1]), dtype=affinity.dtype, device=affinity.device)
    for part in parts:
        yield part, affinity.exponent(part, u, v, epsilon, scratch[: part.stop - part.start, :])
