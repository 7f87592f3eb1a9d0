"""Interface of databases that several processes read and write at the same time, each a range of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias, TypedDict

import numpy as np

from congruence.databases._base import Database, PairedBlock

__all__ = ["Change", "Partitioned", "WrittenFile"]

#: Function from a block of rows with both vectors to a mask of the rows to write, shape (b,), and the new vectors of these rows; None if there are none.
Change: TypeAlias = Callable[[PairedBlock], tuple[np.ndarray, np.ndarray] | None]


class WrittenFile(TypedDict):
    """Description, as plain data, of a file with new vectors that is not yet part of the database."""

    fragment: int
    rows: int
    field: int
    other_files: list[str]
    file: dict[str, object]


class Partitioned(Database):
    """A database that can be pickled and used in another process that sees the same files."""

    #: Unit of the numbers that delimit a range, for messages.
    unit: ClassVar[str]

    @property
    def whole_files_only(self) -> bool:
        """Whether new vectors can be written only by :meth:`revise` and :meth:`take`, not row by row."""
        return False

    @abstractmethod
    def ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (start, stop), excluding stop, that together cover all current rows.

        Parameters
        ----------
        most : int
            Target number of rows per range; ranges that cannot be divided, such as a fragment, may be larger.
        """

    @abstractmethod
    def revise(self, start: int, stop: int, batch: int, change: Change) -> list[WrittenFile]:
        """Read a range, and write the new vectors that a function returns; may be called again for the same range.

        Parameters
        ----------
        start, stop : int
            A range from :meth:`ranges`.
        batch : int
            Maximum number of rows per block.
        change : callable

        Returns
        -------
        list of WrittenFile
            Files that :meth:`take` must make part of the database.
        """

    @abstractmethod
    def take(self, files: Sequence[WrittenFile]) -> int:
        """Make files part of the database, from one process; return how many no longer fit, because others have changed the rows."""
