"""Databases whose rows several processes read and write at a time, each a stretch of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias, TypedDict

import numpy as np

from congruence.databases._base import Database, PairedBlock

__all__ = ["Change", "Stretched", "WrittenFile"]

#: From rows with both vectors to those that are to be written, a mask of shape (b,), and their new vectors, as many rows; None if nothing is.
Change: TypeAlias = Callable[[PairedBlock], tuple[np.ndarray, np.ndarray] | None]


class WrittenFile(TypedDict):
    """A file with new vectors that is not yet part of the database, as plain data."""

    fragment: int
    rows: int
    field: int
    beside: list[str]
    file: dict[str, object]


class Stretched(Database):
    """A database that can be pickled, and is then the same one in another process that sees its files."""

    #: What the numbers of a stretch count.
    unit: ClassVar[str]

    @property
    def whole_files_only(self) -> bool:
        """Whether new vectors can be written by :meth:`revise` and :meth:`take` only, and not row by row."""
        return False

    @abstractmethod
    def stretches(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first number and the number behind the last of stretches that together are all rows as they are now.

        Parameters
        ----------
        most : int
            Rows from which a stretch is divided, as far as it can be.
        """

    @abstractmethod
    def revise(self, start: int, stop: int, batch: int, change: Change) -> list[WrittenFile]:
        """Go over a stretch, and write the new vectors that a function gives; may be called again for the same stretch.

        Parameters
        ----------
        start, stop : int
            Of :meth:`stretches`.
        batch : int
            The most rows of a block.
        change : callable

        Returns
        -------
        list of WrittenFile
            What :meth:`take` has to make part of the database.
        """

    @abstractmethod
    def take(self, files: Sequence[WrittenFile]) -> int:
        """Make files part of the database, in one process; return how many no longer fit, because others have changed the rows meanwhile."""
