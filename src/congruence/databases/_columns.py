"""Migrations into a second column of the same rows: the switch renames both columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from congruence.databases import _refusals as refusals
from congruence.databases._base import NEW, OLD, Database, Stage, VectorSide
from congruence.errors import DatabaseError


class ColumnDatabase(Database):
    """A database whose new vectors are in a column next to the old ones, with the suffix ``__congruence_new``.

    The switch renames the old column to ``…__congruence_old``, and the new one to its name.
    """

    _column: str  # that readers use

    @abstractmethod
    def _column_names(self) -> Collection[str]:
        """Return the names of the table's columns, read from the database now."""

    @abstractmethod
    def _rename(self, shown: str, hidden: str) -> None:
        """Give the column with the suffix ``shown`` the name that readers use, and theirs the suffix ``hidden``."""

    @abstractmethod
    def _drop(self, column: str, unmark: str | None = None) -> None:
        """Drop a column, and remove the description of the new vectors from the column ``unmark``."""

    def _names(self, names: Collection[str] | None = None) -> tuple[Stage, str, str]:
        """Return the stage and the names of the old and the new column, given those of all columns."""
        names = self._column_names() if names is None else names
        column, new, old = self._column, self._column + NEW, self._column + OLD
        if column not in names or {new, old} <= set(names):
            found = ", ".join(sorted({column, new, old} & set(names)))
            raise DatabaseError(
                f"{self._subject} has the columns {found}, which no migration leaves: it has {column} and one of {new} "
                f"and {old} at most.",
                "Rename or drop the columns that another program created.",
            )
        if old in names:
            return Stage.SWITCHED, old, column
        return (Stage.PREPARED if new in names else Stage.UNTOUCHED), column, new

    def _name(self, side: VectorSide, names: Collection[str] | None = None) -> str:
        """Return the name of the column of a side, which must exist."""
        stage, old, new = self._names(names)
        refusals.refuse_untouched(side == "new" and stage is Stage.UNTOUCHED, self._subject)
        return old if side == "old" else new

    def stage(self) -> Stage:
        return self._names()[0]

    def _show_new(self) -> None:
        self._rename(NEW, OLD)

    def _show_old(self) -> None:
        self._rename(OLD, NEW)

    def _remove_old(self) -> None:
        _, old, new = self._names()
        self._drop(old, unmark=new)

    def _remove_new(self) -> None:
        self._drop(self._names()[2])
