"""By which map each row of the store was written, so that the rows that a new map moves noticeably are known, also after a pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.upgrade.progressive._lazy import Rows, row_blocks
from congruence.upgrade.progressive.refit import Correction, Refit

__all__ = ["MOST", "Update", "Written"]

#: Maps that rows are written by at a time; beyond, the rows of the oldest are to be written again, however little they moved.
MOST = 16


@dataclass(frozen=True, eq=False)
class Update:
    """What an update changed.

    Attributes
    ----------
    remap : ndarray
        Ids of rows that are mapped still and moved noticeably, or that the oldest of more than 16 maps wrote: write :meth:`Progressive.mapped` of them.
    moved : ndarray, shape (len(remap),)
        1 − cosine between what was written and what the map gives now.
    n_waiting : int
        Rows that are still mapped vectors.
    """

    remap: np.ndarray
    moved: np.ndarray
    n_waiting: int


class Written:
    """Mapped rows as they were written.

    Parameters
    ----------
    refit : Refit
    old : ndarray or Lazy, shape (n, d_old)
    first : Correction
    rows : ndarray of float32, shape (n, d_new), optional
        What the first map gave. Without, rows are mapped again whenever they are asked for.

    Attributes
    ----------
    slot : ndarray of uint8, shape (n,)
        Key of ``maps`` for each row.
    maps : dict of int to Correction
        Oldest first; the last is the map now.
    """

    def __init__(self, refit: Refit, old: Rows, first: Correction, rows: np.ndarray | None) -> None:
        self._refit, self._old, self._rows = refit, old, rows
        self.slot = np.zeros(len(old), np.uint8)
        self.maps = {0: first}

    @property
    def now(self) -> int:
        """Key of the map now."""
        return next(reversed(self.maps))

    def restore(self, slot: np.ndarray, maps: dict[int, Correction]) -> None:
        """Go on with what was saved. Raises ValueError."""
        if slot.shape != self.slot.shape or not set(np.unique(slot).tolist()) <= set(maps):
            raise ValueError(f"maps of {slot.shape} rows, {sorted(maps)}")
        self.slot, self.maps = np.array(slot, np.uint8), maps
        if self._rows is not None:
            for part in row_blocks(self._old):
                rows = np.arange(len(self.slot))[part]
                self._rows[part] = self._map(rows, self._old[part])

    def settle(self, mapped: Rows) -> None:
        """Count all rows as written by the map now."""
        self.maps = {self.now: self.maps[self.now]}
        self.slot[:] = self.now
        if self._rows is not None:
            self._rows[:] = mapped[:]

    def take(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows as they were written, or are to be written, shape (b, d_new)."""
        if self._rows is not None:
            return np.array(self._rows[rows])
        numbers = np.arange(len(self.slot))[rows] if isinstance(rows, slice) else rows
        return self._map(numbers, self._old[rows])

    def _map(self, rows: np.ndarray, old: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), self._refit.mapping.d_target), np.float32)
        slots = self.slot[rows]
        for slot in np.unique(slots).tolist():
            here = np.flatnonzero(slots == slot)
            out[here] = self._refit.transform(old[here], self.maps[slot])
        return out

    def advance(
        self, correction: Correction, mapped: Rows, waits: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Note a new map, and count rows that it moves noticeably as written by it, a block at a time.

        Parameters
        ----------
        correction : Correction
        mapped : ndarray or Lazy, shape (n, d_new)
            All rows by it.
        waits : ndarray of bool, shape (n,)
            Rows that are still mapped vectors.
        tolerance : float
            Of 1 − cosine.

        Returns
        -------
        rows : ndarray of int, shape (b,)
        moved : ndarray, shape (b,)
        """
        if correction is not self.maps[self.now]:
            self.maps[next(slot for slot in range(256) if slot not in self.maps)] = correction
        oldest = next(iter(self.maps)) if len(self.maps) > MOST else None
        found, far = [np.empty(0, np.intp)], [np.empty(0)]
        for part in row_blocks(self._old):
            rows = part.start + np.flatnonzero(waits[part])
            if not len(rows):
                continue
            before = None if self._rows is not None else self._old[rows]
            now = mapped[rows] if before is None else self._refit.transform(before, correction)
            then = self._rows[rows] if before is None else self._map(rows, before)  # type: ignore[index]
            moved = 1 - np.einsum("ij,ij->i", now, then)
            noticed = (moved > tolerance) | (self.slot[rows] == (256 if oldest is None else oldest))
            found.append(rows[noticed])
            far.append(moved[noticed])
        rows = np.concatenate(found)
        again = ~waits
        again[rows] = True  # rows that were re-embedded are as the map now gives them, and keep no older one
        self.slot[again] = self.now
        if self._rows is not None:
            self._rows[again] = mapped[again]
        used = {*np.unique(self.slot).tolist(), self.now}
        self.maps = {slot: one for slot, one in self.maps.items() if slot in used}
        return rows, np.concatenate(far)
