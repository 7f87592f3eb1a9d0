"""The Kullback-Leibler divergence between two entropic plans and its gradient, computed in strips of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array
from congruence.transport._kernel import (
    Affinity,
    Kernel,
    Scratch,
    exponential,
    fits,
    strip_bytes,
    strip_pool_for,
    width,
)
from congruence.transport.balanced import Potentials

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """The plan of one side: its affinities, its potentials, and its marginals at convergence."""

    affinity: Affinity
    epsilon: float
    potentials: Potentials[np.ndarray]
    marginals: tuple[np.ndarray, np.ndarray]
    kernel: Kernel | None = field(default=None, repr=False)  # of the last iteration, if it may be overwritten

    def exponent(self, part: slice, out: Array) -> Array:
        """Write the rows ``part`` of log P into ``out``, and return it."""
        return self.affinity.exponent(part, self.potentials.u, self.potentials.v, self.epsilon, out)


def compare(
    student: Side,
    teacher: Side,
    memory: int,
    use: Callable[[slice, Array], T],
    then: Callable[[slice, Array], None] | None = None,
) -> list[tuple[Array, T]]:
    """Return, for each strip of rows, its part of the divergence and the result of ``use`` on P − P*.

    A part is the sum of P* log(P*/P) − P* + P, float64: over all rows the last two terms cancel up to rounding, but
    with them the sum is never negative, and the gradient is exact at any potentials. ``use``, in several threads at
    once, and then ``then``, in the order of the rows, get a slice and its strip of P − P*, which is scratch memory.
    """
    affinity = student.affinity
    xp, n = affinity.xp, affinity.shape[0]
    held = fits(affinity, memory)
    parts = list(blocks(n, width(affinity), strip_bytes(affinity.device, held)))
    scratch = Scratch(affinity)

    def strip(part: slice, number: int) -> Array:
        return scratch.rows(part.stop - part.start, number)

    def work(part: slice) -> tuple[Array, T]:
        P, Q, spare = (strip(part, number) for number in range(3))
        student.exponent(part, P)
        teacher.exponent(part, Q)
        xp.subtract(Q, P, out=spare)
        spare *= exponential(Q)
        exponential(P)
        P -= Q
        spare += P
        return xp.sum(xp.astype(xp.sum(spare, axis=1), xp.float64)), use(part, P)

    after = None if then is None else lambda part, _: then(part, strip(part, 0))
    with strip_pool_for(affinity, memory) as pool:
        return list(pool.each(work, parts, after))
