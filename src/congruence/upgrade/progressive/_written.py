"""Record of the map with which each row of the store was written, to find the rows that a new map moves noticeably, even after a pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.upgrade.progressive._lazy import Rows, row_blocks
from congruence.upgrade.progressive.refit import Correction, Refit

__all__ = ["MOST", "Update", "Written"]

#: Largest number of maps that are kept. If there are more, rows written with the oldest map are written again, however little they moved.
MOST = 16


@dataclass(frozen=True, eq=False)
class Update:
    """Rows to write again after an update.

    Attributes
    ----------
    remap : ndarray
        Ids of rows that are still mapped and either moved noticeably or were written with the oldest of more than 16 maps: replace their vectors in the store
        by :meth:`Progressive.mapped` of these ids.
    moved : ndarray, shape (len(remap),)
        1 − cosine between the vector that was written and that of the current map.
    n_waiting : int
        Number of rows that are still mapped vectors.
    """

    remap: np.ndarray
    moved: np.ndarray
    n_waiting: int


class Written:
    """Mapped rows as they were written to the store.

    Parameters
    ----------
    refit : Refit
        Applies a map to rows.
    old : ndarray or Lazy, shape (n, d_old)
        Rows of the old model.
    first : Correction
        The first map.
    rows : ndarray of float32, shape (n, d_new), optional
        Rows mapped by the first map; updated in place. If omitted, rows are mapped again whenever they are needed.

    Attributes
    ----------
    slot : ndarray of uint8, shape (n,)
        Key in ``maps`` of the map with which each row was written.
    maps : dict of int to Correction
        Oldest first; the last is the current map.
    """

    def __init__(self, refit: Refit, old: Rows, first: Correction, rows: np.ndarray | None) -> None:
        self._refit, self._old, self._rows = refit, old, rows
        self.slot = np.zeros(len(old), np.uint8)
        self.maps = {0: first}

    @property
    def current(self) -> int:
        """Key in ``maps`` of the current map."""
        return next(reversed(self.maps))

    def restore(self, slot: np.ndarray, maps: dict[int, Correction]) -> None:
        """Restore a saved state. Raises ValueError if it does not fit."""
        if slot.shape != self.slot.shape or not set(np.unique(slot).tolist()) <= set(maps):
            raise ValueError(f"slots of shape {slot.shape} for the maps {sorted(maps)}")
        self.slot, self.maps = np.array(slot, np.uint8), maps
        if self._rows is not None:
            for part in row_blocks(self._old):
                rows = np.arange(len(self.slot))[part]
                self._rows[part] = self._map(rows, self._old[part])

    def mark_written(self, mapped: Rows) -> None:
        """Mark all rows as written with the current map; ``mapped``, shape (n, d_new), holds them as it maps them."""
        self.maps = {self.current: self.maps[self.current]}
        self.slot[:] = self.current
        if self._rows is not None:
            self._rows[:] = mapped[:]

    def take(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows as they were, or should be, written, shape (b, d_new)."""
        if self._rows is not None:
            return np.array(self._rows[rows])
        numbers = np.arange(len(self.slot))[rows] if isinstance(rows, slice) else rows
        return self._map(numbers, self._old[rows])

    def _map(self, rows: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Map old rows, each with the map with which it was written."""
        out = np.empty((len(rows), self._refit.mapping.d_target), np.float32)
        slots = self.slot[rows]
        for slot in np.unique(slots).tolist():
            here = np.flatnonzero(slots == slot)
            out[here] = self._refit.transform(old[here], self.maps[slot])
        return out

    def advance(
        self, correction: Correction, mapped: Rows, waits: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a new map, and mark the rows that it moves noticeably as written with it, one block at a time.

        Parameters
        ----------
        correction : Correction
            The new map.
        mapped : ndarray or Lazy, shape (n, d_new)
            All rows, mapped by it.
        waits : ndarray of bool, shape (n,)
            Rows that are still mapped vectors.
        tolerance : float
            Rows are written again if 1 − cosine exceeds this.

        Returns
        -------
        rows : ndarray of int, shape (b,)
            Rows to write again.
        moved : ndarray, shape (b,)
            1 − cosine between their written and their new vectors.
        """
        if correction is not self.maps[self.current]:
            self.maps[next(slot for slot in range(256) if slot not in self.maps)] = correction
        oldest = next(iter(self.maps)) if len(self.maps) > MOST else None
        moved_rows, distances = [np.empty(0, np.intp)], [np.empty(0)]
        for part in row_blocks(self._old):
            rows = part.start + np.flatnonzero(waits[part])
            if not len(rows):
                continue
            old = None if self._rows is not None else self._old[rows]
            current = mapped[rows] if old is None else self._refit.transform(old, correction)
            written = self._rows[rows] if old is None else self._map(rows, old)  # type: ignore[index]
            moved = 1 - np.einsum("ij,ij->i", current, written)
            noticed = (moved > tolerance) | (self.slot[rows] == (256 if oldest is None else oldest))
            moved_rows.append(rows[noticed])
            distances.append(moved[noticed])
        rows = np.concatenate(moved_rows)
        updated = ~waits  # re-embedded rows are assigned to the current map, so that they keep no older map in use
        updated[rows] = True
        self.slot[updated] = self.current
        if self._rows is not None:
            self._rows[updated] = mapped[updated]
        used = {*np.unique(self.slot).tolist(), self.current}
        self.maps = {slot: kept for slot, kept in self.maps.items() if slot in used}
        return rows, np.concatenate(distances)
