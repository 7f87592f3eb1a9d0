"""Which rows were asked for and re-embedded, why, and in which order: kept so that the meter stays a random sample."""

from __future__ import annotations

import numpy as np

__all__ = ["LEARN", "METER", "SELECTED", "WAITING", "RowStates"]

#: Why a row was asked for.
WAITING, SELECTED, LEARN, METER = range(4)


class RowStates:
    """Rows of the store and what became of them.

    Parameters
    ----------
    n : int
    random_state : int

    Notes
    -----
    Random rows come from the front of one permutation of the store that was drawn at the start. Every second one is the meter's: neither fit nor order
    sees its new vector, so the order treats it like any row that waits. When its turn comes there, it is *due*: from then on it is a chosen
    row, which costs nothing more. Chosen rows therefore do not depend on which rows the meter has, and those of its rows that are not due are a simple
    random sample of all rows that are not due and not LEARN.
    """

    def __init__(self, n: int, random_state: int) -> None:
        self.role = np.zeros(n, np.uint8)
        #: Rows whose turn has come in the order, whatever their role.
        self.due = np.zeros(n, bool)
        self.embedded = np.zeros(n, bool)
        self.permutation = (
            np.random.default_rng([random_state, 7]).permutation(n).astype(np.int32 if n < 2**31 else np.int64)
        )
        self.place = 0
        self.drawn = 0

    def draw(self, count: int) -> np.ndarray:
        """Ask for the next random rows that were not asked for, every second one for the meter."""
        found: list[int] = []
        while len(found) < count and self.place < len(self.permutation):
            row = int(self.permutation[self.place])
            self.place += 1
            if self.role[row] == WAITING and not self.due[row]:
                self.role[row] = METER if self.drawn % 2 == 0 else LEARN
                self.drawn += 1
                found.append(row)
        return np.array(found, np.intp)

    @property
    def measured(self) -> np.ndarray:
        """Rows of the meter that stand for those that are mapped still."""
        return np.flatnonzero((self.role == METER) & self.embedded & ~self.due)

    @property
    def shown(self) -> np.ndarray:
        """Re-embedded rows that fit and order may see, ndarray of bool."""
        return np.asarray(self.embedded & ((self.role != METER) | self.due))

    @property
    def rest(self) -> int:
        """Rows that are still mapped vectors."""
        return int(np.count_nonzero(~self.embedded))
