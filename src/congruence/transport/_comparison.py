"""The Kullback-Leibler divergence of two entropic plans and its gradient, a strip of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array
from congruence.transport._kernel import Affinity, Scratch, crew_for, exponential, fits, strip_bytes, width
from congruence.transport._scaling import Potentials

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """Affinities, the potentials of their plan, and the marginals that it has if they are converged."""

    affinity: Affinity
    epsilon: float
    potentials: Potentials
    marginals: tuple[Array, Array]

    def exponent(self, part: slice, out: Array) -> Array:
        """Write log P of some rows into ``out``, and return it."""
        return self.affinity.exponent(part, self.potentials.u, self.potentials.v, self.epsilon, out)


def compare(
    student: Side,
    teacher: Side,
    memory: int,
    use: Callable[[slice, Array], T],
    then: Callable[[slice, Array], None] | None = None,
) -> list[tuple[Array, T]]:
    """Return the parts of the divergence, and what ``use`` makes of P − P*, strip by strip.

    Parameters
    ----------
    student, teacher : Side
        P and P*, both of mass 1.
    memory : int
        Bytes of a kernel that may be held. If all of it is less, threads share small strips out, which stay in the cache.
    use : callable
        Of rows and of P − P* for them, a scratch strip that is its own until it returns. Of several threads at once.
    then : callable, optional
        Of rows and the same strip after ``use``: in the order of the rows, one at a time.

    Returns
    -------
    list of
        scalar array of float64
            The sum of P* log(P*/P) − P* + P over some rows. The last two terms cancel over all rows but for rounding; with them the sum
            is never negative and the gradient below exact at any potentials.
        object
            What ``use`` returned.
    """
    affinity = student.affinity
    xp, n = affinity.xp, affinity.shape[0]
    small = fits(affinity, memory)
    parts = list(blocks(n, width(affinity), strip_bytes(affinity.device, small, n * width(affinity))))
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
    with crew_for(affinity, memory) as crew:
        return list(crew.each(work, parts, after))
