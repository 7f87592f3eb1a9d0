"""The Kullback-Leibler divergence of two entropic plans and its gradient, a strip of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array
from congruence.transport._kernel import Affinity, exponential, exponents, strip_bytes
from congruence.transport._scaling import Potentials


@dataclass(frozen=True)
class Side:
    """Affinities and the potentials of their plan."""

    affinity: Affinity
    epsilon: float
    potentials: Potentials

    def exponents(self, parts: list[slice]) -> Iterator[tuple[slice, Array]]:
        """Yield log P of some rows."""
        return exponents(self.affinity, self.epsilon, self.potentials.u, self.potentials.v, parts)


def compare(student: Side, teacher: Side, held: bool) -> Iterator[tuple[slice, Array, Array]]:
    """Yield rows, their part of the divergence, and P − P* for them in a scratch strip.

    Parameters
    ----------
    student, teacher : Side
        P and P*, both of mass 1.
    held : bool
        Whether the affinities are in memory, so that small strips, which stay in the cache, are best.

    Yields
    ------
    slice
    scalar array of float64
        The sum of P* log(P*/P) − P* + P over these rows. The last two terms cancel over all rows but for rounding; with them the sum
        is never negative and the gradient below exact at any potentials.
    array, shape (rows, m)
    """
    xp, (n, m) = student.affinity.xp, student.affinity.shape
    itemsize = 8 if student.affinity.dtype == xp.float64 else 4
    parts = list(blocks(n, m * itemsize, strip_bytes(student.affinity.device, held)))
    spare = None
    for (part, P), (_, Q) in zip(student.exponents(parts), teacher.exponents(parts), strict=True):
        spare = xp.empty_like(P) if spare is None else spare[: len(P), :]
        spare[...] = Q
        spare -= P
        spare *= exponential(Q)
        exponential(P)
        P -= Q
        spare += P
        yield part, xp.sum(xp.astype(xp.sum(spare, axis=1), xp.float64)), P
