"""Which rows were requested and re-embedded, and why; the meter's rows remain a random sample."""

from __future__ import annotations

import numpy as np

__all__ = ["LEARN", "METER", "SELECTED", "WAITING", "RowStates"]

#: Roles of a row: not requested; chosen by the order; random, for the fit; random, for the meter.
WAITING, SELECTED, LEARN, METER = range(4)


class RowStates:
    """State of each row of the store.

    Parameters
    ----------
    n : int
    random_state : int

    Notes
    -----
    Random rows come from the front of one permutation of the store that was drawn at the start. Every second one is the meter's: neither the fit nor the
    order uses its new vector, so the order treats it like any row that was not requested. When the order reaches it, it is *due*: from then on it counts as
    a chosen row, and its vector, which is already known, is used. Chosen rows therefore do not depend on which rows the meter has, and the meter's rows that
    are not due are a simple random sample of all rows that are neither due nor LEARN.
    """

    def __init__(self, n: int, random_state: int) -> None:
        self.role = np.zeros(n, np.uint8)
        #: Rows that the order has reached, whatever their role.
        self.due = np.zeros(n, bool)
        self.embedded = np.zeros(n, bool)
        self.permutation = (
            np.random.default_rng([random_state, 7]).permutation(n).astype(np.int32 if n < 2**31 else np.int64)
        )
        self.place = 0
        self.drawn = 0

    def draw(self, count: int) -> np.ndarray:
        """Return the next random rows that were not requested yet, and mark them as requested: every second one for the meter."""
        drawn: list[int] = []
        while len(drawn) < count and self.place < len(self.permutation):
            row = int(self.permutation[self.place])
            self.place += 1
            if self.role[row] == WAITING and not self.due[row]:
                self.role[row] = METER if self.drawn % 2 == 0 else LEARN
                self.drawn += 1
                drawn.append(row)
        return np.array(drawn, np.intp)

    @property
    def measured(self) -> np.ndarray:
        """The meter's rows that represent the rows that are still mapped."""
        return np.flatnonzero((self.role == METER) & self.embedded & ~self.due)

    @property
    def shown(self) -> np.ndarray:
        """Mask of the re-embedded rows that the fit and the order may use, shape (n,)."""
        return np.asarray(self.embedded & ((self.role != METER) | self.due))

    @property
    def rest(self) -> int:
        """Number of rows that are still mapped vectors."""
        return int(np.count_nonzero(~self.embedded))
