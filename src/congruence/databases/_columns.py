"""Migrations into a second column of the same rows: the switch renames both columns."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, MARK_KEY, NEW, OLD, Database, Name, NewVectors, Stage, VectorSide, owned
from congruence.errors import DatabaseError, ParameterError


def choose_columns(
    types: Mapping[str, object],
    place: object,
    column: Name,
    ids: Name,
    modality: Name,
    *,
    vectors: Collection[str],
    coded: Collection[str],
    keys: Sequence[str],
) -> tuple[str, str]:
    """Return the columns of the vectors and of the ids.

    ``vectors`` are the columns that may have vectors, of which those of floats are preferred to the ``coded``, since
    bytes need not be vectors; ``keys`` are the columns of the primary key.
    """
    refusals.check_columns(types, place, column, ids, modality)
    if column is None:
        free = [name for name in vectors if not name.endswith((NEW, OLD))]
        floats = [name for name in free if name not in coded]
        column = refusals.only_name(floats or free, "columns of vectors", place, "column")
    if column not in vectors:
        names = ", ".join(map(repr, vectors)) or "none"
        raise ParameterError(
            f"Got column={column!r} of type {types[column]}; expected one of those in {place} of vectors: {names}.",
            "Pass another `column=…`.",
        )
    if ids is None:
        ids = keys[0] if len(keys) == 1 else "id" if "id" in types else None
    if ids is None:
        raise ParameterError(f"{place} has no primary key of one column and no column id.", "Pass `ids=…`.")
    return column, ids


class ColumnDatabase(Database):
    """A database whose new vectors are in a column next to the old ones, with the suffix ``__congruence_new``.

    The switch renames the old column to ``…__congruence_old``, and the new one to its name. Written vectors are kept in
    memory, up to 64 MB, until the next flush; whatever needs the new column flushes first.
    """

    _column: str  # that readers use
    _most_pending = 64 * 2**20  # bytes of new vectors kept in memory until the next flush
    _pending: tuple[tuple[pa.Array, np.ndarray], ...] = ()
    _dim = 0  # of the pending vectors

    @abstractmethod
    def _column_names(self) -> Collection[str]:
        """Return the names of the table's columns, read from the database now."""

    @abstractmethod
    def _rename(self, shown: str, hidden: str) -> None:
        """Give the column with the suffix ``shown`` the name that readers use, and theirs the suffix ``hidden``."""

    @abstractmethod
    def _drop(self, column: str, unmark: str | None = None) -> None:
        """Drop a column, and remove the description of the new vectors from the column ``unmark``."""

    @abstractmethod
    def _store(self, ids: pa.Array, vectors: np.ndarray | None, side: VectorSide = "new") -> None:
        """Write vectors, shape (b, dim), of the rows that exist, or remove them; each id occurs once."""

    def _hidden(self, suffix: str) -> str:
        return self._column + suffix

    def _names(self, names: Collection[str] | None = None) -> tuple[Stage, str, str]:
        """Return the stage and the names of the old and the new column, given those of all columns."""
        names = self._column_names() if names is None else names
        column, new, old = self._column, self._hidden(NEW), self._hidden(OLD)
        if column.endswith((NEW, OLD)):
            raise ParameterError(f"The column {column!r} has a name that migrations use.", "Pass another `column=…`.")
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
        if side == "new":
            self.flush()
        stage, old, new = self._names(names)
        refusals.refuse(side == "new" and stage is Stage.UNTOUCHED, "untouched", self._subject)
        return old if side == "old" else new

    def stage(self) -> Stage:
        stage = self._names()[0]
        if stage is not Stage.UNTOUCHED:
            self._made()  # raises if no migration created the columns
        return stage

    def _mark_in(self, comment: str | None, *keys: str) -> dict[str, Any]:
        """Return what a comment says of new vectors: width, note and these keys. Raises DatabaseError without it."""
        try:
            mark: dict[str, Any] = json.loads(comment or "")[MARK_KEY]
            note = {str(key): str(value) for key, value in mark["note"].items()}
            return {**mark, **{key: mark[key] for key in keys}, "dim": int(mark["dim"]), "note": note}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._unmarked() from error

    def _unmarked(self) -> DatabaseError:
        """Return the error for a column that has a name of ours, without the note of a migration."""
        stage, old, new = self._names()
        name = old if stage is Stage.SWITCHED else new
        return DatabaseError(
            f"{self._subject} has a column {name!r}, a name that migrations use, and {new!r} has no note of one.",
            "Rename that column; or restore the note (comment or metadata) if a migration is under way.",
        )

    def check(self, new: NewVectors) -> None:
        """Also refuse a column with one of our names in capitals, which some databases do not tell apart."""
        super().check(new)
        ours = {(self._column + suffix).casefold() for suffix in (NEW, OLD)}
        for name in self._column_names():
            if name.casefold() in ours:
                raise DatabaseError(f"{self._subject} has a column {name!r}, whose name migrations use.", "Rename it.")

    def _show_new(self) -> None:
        self._rename(NEW, OLD)

    def _show_old(self) -> None:
        self._rename(OLD, NEW)

    def _remove_old(self) -> None:
        _, old, new = self._names()
        self._drop(old, unmark=new)

    def _remove_new(self) -> None:
        self._drop(self._names()[2])

    def _count_lacking(self, side: VectorSide) -> int:
        """Return how many rows, selected or not, have no vector of a side and one of the other."""
        if side == "new":
            return super()._missing()
        return sum(int((~block.has_old).sum()) for block in self.without_condition().scan_new())

    def _missing(self) -> int:
        return self._count_lacking("new")

    def _losing(self) -> int:
        return self._missing()

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows have no old one any more."""
        if self.stage() is not Stage.PREPARED:
            return
        if self._count_lacking("old"):
            for block in self.without_condition().scan_new(batch=batch):
                if not block.has_old.all():
                    yield block.ids.filter(pa.array(~block.has_old))

    def put_old(self, ids: pa.Array, vectors: np.ndarray | None) -> None:
        self._store(ids, vectors, "old")

    def forget_old(self, ids: pa.Array) -> None:
        self._store(ids, None, "old")

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Keep new vectors in memory, up to 64 MB, until ``flush``."""
        if not self._pending:  # once per flush: reading the table's description takes as long as writing a block
            self._dim = self._made().dim
        refusals.check_shape(vectors, (len(ids), self._dim))
        if len(ids):  # copies: the caller may reuse the array before the flush
            self._pending += ((owned(ids), np.array(vectors, np.float32)),)
        if sum(rows.nbytes for _, rows in self._pending) > self._most_pending:
            self.flush()

    def delete(self, ids: pa.Array) -> None:
        self.flush()
        self._store(ids, None)

    def flush(self) -> None:
        """Write the pending vectors; of those of the same id, the last one."""
        if not (pending := self._pending):
            return
        ids, vectors = pa.concat_arrays([ids for ids, _ in pending]), np.concatenate([rows for _, rows in pending])
        numbered = pa.table({"id": ids, "row": np.arange(len(ids))})
        last = numbered.group_by("id").aggregate([("row", "max")])["row_max"].combine_chunks().sort()
        if len(last) < len(ids):
            ids, vectors = ids.take(last), vectors[last.to_numpy()]
        self._pending = ()
        try:
            self._store(ids, vectors)
        except BaseException:
            self._pending = pending
            raise

    def discard(self) -> None:
        self._pending = ()
        super().discard()

    def close(self) -> None:
        """Release connections and files. New vectors that were not flushed are lost."""
        self._pending = ()
