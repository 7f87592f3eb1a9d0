"""Migrations into a second collection or table: the new vectors are copied rows, and the switch swaps names."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, NEW, OLD, Block, Cursor, Database, NewVectors, Stage, VectorSide
from congruence.errors import CongruenceError, DatabaseError, MigrationError, ParameterError

_QUERIES = 64  # number of queries per request

#: Suffix of the collections of a migration; a second migration behind the same alias writes ``…_new2``, and so on.
ROLE = re.compile(r"__congruence_(?:old|new(\d*))$")


@dataclass(frozen=True)
class Collections:
    """The names of the collections of a migration, of which only the old one exists at first."""

    old: str
    new: str  # if it does not exist, the name under which it is created
    exists: bool = False  # whether the new collection exists
    switched: bool = False  # whether readers see the new vectors
    alias: bool = False  # whether the name that readers use is an alias, not a collection's own name
    mark: Mapping[str, Any] = field(default_factory=dict)  # data stored with the new collection

    @classmethod
    def named(cls, table: str, names: Collection[str]) -> Collections:
        """Find the collections by their names, where the switch renames them."""
        if table + OLD in names:
            return cls(table + OLD, table, exists=True, switched=True)
        return cls(table, table + NEW, table + NEW in names)

    @classmethod
    def behind(cls, target: str, names: Collection[str], mark_of: Callable[[str], Mapping[str, Any]]) -> Collections:
        """Find the collections by the one that readers see through an alias; the switch moves the alias."""
        suffix, new = ROLE.search(target), target + NEW
        if suffix is not None:
            old = mark_of(target).get("of")
            if old in names and old != target:
                return cls(str(old), target, exists=True, switched=True, alias=True)
            new = f"{target[: suffix.start()]}{NEW}{int(suffix[1] or 1) + 1}"
        return cls(target, new, new in names, alias=True)


class CollectionDatabase(Database):
    """A database whose new vectors are in a second collection or table, with copies of the rows' other fields.

    The switch moves an alias, or renames the old collection to ``…__congruence_old`` and the new one to its name. If
    the process is killed between the renames, the old one gets its name back when the database is next opened. A
    backend reads and writes rows as records of its client, with all their fields if ``whole``, else
    with those of a block.
    """

    longest_name: ClassVar[int] = 255  # maximum number of letters of a collection's name
    alias_only: ClassVar[str] = ""  # how users create an alias, if collections cannot be renamed
    _called: ClassVar[str] = "aliases and collections"  # in messages

    _table: str  # name that readers use
    _column: str = ""

    @abstractmethod
    def _names(self) -> Collection[str]:
        """Return the names of all collections."""

    @abstractmethod
    def _mark_of(self, collection: str) -> Mapping[str, Any]:
        """Return the data that a migration stored with a collection; empty if no migration created it."""

    @abstractmethod
    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        """Create the new collection like the old one, with its mark."""

    @abstractmethod
    def _drop(self, collection: str) -> None: ...

    @abstractmethod
    def _delete(self, collection: str, ids: list[Any]) -> None: ...

    def _move_alias(self, collection: str) -> None:
        """Make the alias that readers use point to a collection, atomically; where readers may use an alias."""
        raise NotImplementedError

    def _rename(self, collection: str, name: str) -> None:
        """Rename a collection; where readers may use its own name."""
        raise NotImplementedError

    def _find(self) -> Collections:
        """Find the collections, without the mark, behind an alias or by their names.

        If a switch or rollback was interrupted between its renames, readers get the old collection back.
        """
        names, aliases, table = set(self._names()), self._aliases(), self._table
        if aliases.get(table) in names:
            return Collections.behind(aliases[table], names, self._mark_of)
        if table not in names and {table + OLD, table + NEW} <= names and self._mark_of(table + NEW):
            self._rename(table + OLD, table)
            names = {*names, table} - {table + OLD}
        if {table, table + OLD, table + NEW} <= names:  # a migration has two of them, and others made one since
            names -= {table + (OLD if self._mark_of(table + NEW) else NEW)}
        if table not in names:
            refusals.check_name(table, sorted({*names, *aliases} - {table}), self._address.shown, "table")
        if not self.alias_only:
            return Collections.named(table, names)
        place = Collections.behind(table, names, self._mark_of)
        if place.switched:
            problem = f"{table!r} is the {self.capabilities.container} that a migration of {place.old!r} writes."
            raise ParameterError(problem, f"Pass `table={place.old!r}` or an alias.")
        # If the database was opened by the collection's name, its alias is unknown: any alias of the new one counts.
        return replace(place, alias=False, switched=place.exists and place.new in aliases.values())

    def _require_alias(self) -> None:
        place = self._find()
        if place.alias or not self.alias_only:
            return
        aliases = sorted([*self._aliases_of(place.old), *(self._aliases_of(place.new) if place.exists else ())])
        create = f"Create an alias of {self._table!r} ({self.alias_only}), let the application read through"
        raise MigrationError(
            f"{self._table!r} names the {self.capabilities.container} itself, and only an alias can be switched.",
            f"Let the application read through its alias, and pass `table={aliases[0]!r}`."
            if aliases
            else f"{create} it, and pass `table=ALIAS`.",
        )

    def _find_table(self, table: str | None) -> str:
        """Return the only alias, or the only collection without one; the collections of a migration count as one.

        A pattern is answered with the names of all.
        """
        if table is None or "*" in table:
            groups: dict[str, list[str]] = {}
            for name in self._names():
                groups.setdefault(ROLE.sub("", name), []).append(name)
            for target in (aliases := self._aliases()).values():
                groups.pop(ROLE.sub("", target), None)
            # A collection whose old one was dropped may keep the name that it had behind an alias.
            others = [group[0] if len(group) == 1 else name for name, group in groups.items()]
            known, place = sorted([*aliases, *others]), self._address.shown
            refusals.check_name(table, known, place, "table")
            table = refusals.only_name(known, self._called, place, "table")
        self._subject = repr(table)
        return table

    def _aliases(self) -> Mapping[str, str]:
        return {}

    def _aliases_of(self, collection: str) -> list[str]:
        return [alias for alias, target in self._aliases().items() if target == collection]

    def _unmark(self, collection: str) -> None:
        """Remove the mark of a collection, which is the only one from now on, if there is one."""
        return

    def tidy(self) -> None:
        place = self._find()
        if not place.exists:
            self._unmark(place.old)

    def _place(self) -> Collections:
        """Return the collections; a new one must be of a migration of this column."""
        place = self._find()
        if not place.exists:
            return place
        mark = self._mark_of(place.new)
        if not mark or (place.alias and mark.get("of") != place.old):
            raise refusals.refusal("not ours", place.old if place.switched else place.new)
        other = mark.get("column", self._column)
        refusals.refuse(other != self._column, "other column", self._subject, other=other)
        return replace(place, mark=mark)

    def _place_with_new(self) -> Collections:
        """Return the collections, of which the new one must exist."""
        place = self._place()
        refusals.refuse(not place.exists, "untouched", self._subject)
        return place

    def stage(self) -> Stage:
        place = self._place()
        return Stage.SWITCHED if place.switched else Stage.PREPARED if place.exists else Stage.UNTOUCHED

    def _made(self) -> NewVectors:
        mark = self._place().mark
        return NewVectors(mark.get("dim", 0), mark.get("element_type", "float32"), dict(mark.get("note") or {}))

    def check(self, new: NewVectors) -> None:
        self._require_alias()
        super().check(new)
        place, aliases = self._place(), self._aliases()
        names = {place.new} if place.alias else {place.new, self._table + OLD}
        for name in sorted(names & aliases.keys()):
            raise refusals.refusal("not ours", name)
        if (longest := max(map(len, names))) > self.longest_name:
            raise DatabaseError(
                f"The name of {place.old!r} is too long: migrations need one of {longest} letters, more than "
                f"{self.longest_name}.",
                "Rename it, or copy it under a shorter name.",
            )
        if not place.alias and ROLE.search(self._table):
            raise DatabaseError(f"{self._table!r} is a name that migrations use.", "Rename the collection.")

    def obstacles(self, new: NewVectors, steps: Collection[str] = base.ALL_STEPS) -> list[tuple[str, str]]:
        place = self._place()
        others = () if place.switched else sorted({*self._aliases_of(place.old)} - {self._table})
        found = [("switch", f"the alias {alias!r}, which stays as only {self._table!r} is moved") for alias in others]
        if place.exists:
            moving, dropping = ("rollback", "drop-old") if place.switched else ("switch", "discard")
            hidden, needed = (place.old, NEW) if place.switched else (place.new, OLD)
            needed = self._table + needed
            aliases = self._aliases_of(hidden)
            found += [(dropping, f"the alias {alias!r} of {hidden!r}, which is to be deleted") for alias in aliases]
            if not place.alias and needed != place.new and self._is_taken(needed):
                found.append((moving, f"something else named {needed!r}"))
            shown = place.new if place.switched else place.old
            ours, theirs = self._settings(shown), self._settings(hidden)
            changed = ", ".join(name for name in ours if ours[name] != theirs[name])
            if changed:
                found.append((moving, f"a {changed} in {shown!r} that {hidden!r} lacks (change it there, too)"))
        return found

    def _settings(self, collection: str) -> Mapping[str, object]:
        """Return the settings, by name, that readers of a collection rely on, and that others may change."""
        return {}

    def _is_taken(self, name: str) -> bool:
        """Return whether no collection can get a name."""
        return name in {*self._names(), *self._aliases()}

    def _create(self, new: NewVectors) -> None:
        place = self._place()
        self._create_beside(place, new, {"of": place.old, "column": self._column, **new._asdict()})

    def delete(self, ids: pa.Array) -> None:
        place = self._place_with_new()
        refusals.refuse(place.switched, "switched", self._subject)
        self._delete(place.new, ids.to_pylist())

    def _bare(self, collection: Any) -> Iterator[list[Any]]:
        """Yield pages of complete records without a vector, to be copied before the switch; none if there cannot be."""
        return iter(())

    def _show_new(self) -> None:
        """Copy the records without a vector as they are, and let readers see the new collection."""
        self._require_alias()
        place = self._place()
        old, new = self._open(place.old), self._open(place.new)
        for records in self._bare(new):  # of before
            self._delete(place.new, [self._id_of(record) for record in records])
        for records in self._bare(old):
            ids = [self._id_of(record) for record in records]
            written = {self._id_of(record) for record in self._records(new, ids)}
            self._store(new, [record for record in records if self._id_of(record) not in written], None)
        self._complete()
        self._show(place.new, OLD)

    def _show_old(self) -> None:
        place = self._place()
        self._index_like(place.new, place.old)
        self._show(place.old, NEW)

    def _complete(self) -> None:
        place = self._place()
        self._index_like(place.old, place.new)

    def _index_like(self, like: str, collection: str) -> None:
        """Give a collection the indexes of another that it lacks, where they are made one by one."""

    def _show(self, collection: str, hidden: str) -> None:
        """Let readers see a collection; if names are exchanged, the other is hidden with a suffix, until an error."""
        self._require_alias()
        if self._find().alias:
            self._move_alias(collection)
            return
        try:
            self._rename(self._table, self._table + hidden)
            self._rename(collection, self._table)
        except BaseException:
            with suppress(CongruenceError):
                self._find()
            raise

    def _remove_old(self) -> None:
        self._require_alias()  # it continues to point to the new collection, which keeps its name
        place = self._place()
        self._drop(place.old)
        self._unmark(place.new)

    def _remove_new(self) -> None:
        self._drop(self._place().new)

    # ---- rows, as records of the client ------------------------------------------------------------------------------

    def _open(self, collection: str) -> Any:
        """Return what the methods below need of a collection: by default, its name."""
        return collection

    @abstractmethod
    def _width(self, collection: Any) -> int:
        """Return the width of the old vectors, for blocks without rows."""

    def _pages(
        self, collection: Any, *, after: Cursor | None = None, batch: int = BATCH, whole: bool = False
    ) -> Iterator[list[Any]]:
        """Yield the selected records in the order of their ids, starting after the id ``after``, which may be gone."""
        for ids in self._ids(collection, after=after):
            for start in range(0, len(ids), batch):
                if records := self._records(collection, ids[start : start + batch], whole=whole):
                    yield records

    def _ids(self, collection: Any, *, after: Cursor | None = None) -> Iterator[list[Any]]:
        """Yield the ids of the selected records that have a vector, sorted; not needed with other ``_pages``."""
        raise NotImplementedError

    @abstractmethod
    def _records(self, collection: Any, ids: list[Any], *, whole: bool = False) -> list[Any]:
        """Return the records of these ids that exist and have a vector."""

    @abstractmethod
    def _others(self, collection: Any, ids: list[Any]) -> list[Any]:
        """Return the records of these ids that exist, with all fields except the vector."""

    @abstractmethod
    def _store(self, collection: Any, records: list[Any], vectors: Any) -> None:
        """Store records with vectors, shape (b, dim), or None if ``bare_rows``; they replace those of the same ids."""

    def _replace(self, collection: Any, records: list[Any], vectors: np.ndarray) -> None:
        """Replace the vectors, shape (b, dim), of existing records."""
        self._store(collection, records, vectors)

    @abstractmethod
    def _count(self, collection: Any, *, all_rows: bool = False) -> int:
        """Return how many records have a vector, among the selected ones or among all."""

    def _key(self, id_: Any) -> Any:
        """Return an id of a block as the client represents it."""
        return id_

    @abstractmethod
    def _id_of(self, record: Any) -> object: ...

    @abstractmethod
    def _block(self, collection: Any, records: list[Any], width: int) -> Block: ...

    @abstractmethod
    def _same(self, record: Any, copy: Any) -> bool:
        """Return whether a copy has the same fields as a record, apart from the vector."""

    def _side(self, side: VectorSide) -> tuple[Any, int]:
        """Return the collection of a side, or None if it does not exist, and the width of its vectors."""
        place = self._place()
        if side == "new":
            return (self._open(place.new), int(place.mark["dim"])) if place.exists else (None, 0)
        old = self._open(place.old)
        return old, self._width(old)

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        if not self.capabilities.searches:
            return super().search(queries, k, side)
        collection = self._open(self._place().old if side == "old" else self._place_with_new().new)
        rows, found = np.asarray(queries, np.float32), list[pa.Array]()
        for start in range(0, len(rows), _QUERIES):
            found += self._nearest(collection, rows[start : start + _QUERIES], k)
        return found

    def _nearest(self, collection: Any, queries: np.ndarray, k: int) -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query; if the database searches."""
        raise NotImplementedError

    def count(self, side: VectorSide = "old") -> int:
        collection, _ = self._side(side)
        return 0 if collection is None else self._count(collection)

    def _missing(self) -> int:
        place = self._place()
        old, new = (self._count(self._open(name), all_rows=True) for name in (place.old, place.new))
        return old - new

    def scan(self, side: VectorSide = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        collection, width = self._side(side)
        if collection is not None:
            for records in self._pages(collection, after=after, batch=batch):
                yield self._block(collection, records, width)

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        collection, width = self._side(side)
        records = [] if collection is None else self._records(collection, ids.to_pylist())
        return self._block(collection, records, width)

    def _losing(self) -> int:
        return super()._losing() if self.bare_rows else 0

    def _pairs(self, side: VectorSide, batch: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray, np.ndarray]]:
        (ours, width), (theirs, other) = self._side(side), self._side("new" if side == "old" else "old")
        for records in () if ours is None else self._pages(ours, batch=batch, whole=True):
            ids = [self._id_of(record) for record in records]
            found = [] if theirs is None else self._records(theirs, ids, whole=True)
            copies = {self._id_of(copy): copy for copy in found}
            has = np.array([id_ in copies for id_ in ids], bool)
            rows = zip(ids, records, strict=True)
            same = np.array([id_ in copies and self._same(record, copies[id_]) for id_, record in rows], bool)
            vectors = self._block(theirs, [copies[id_] for id_ in ids if id_ in copies], other).vectors
            others = np.zeros((len(ids), vectors.shape[1]), np.float32)
            others[has] = vectors
            yield self._block(ours, records, width), others, has, same

    def exist(self, ids: pa.Array, side: VectorSide) -> np.ndarray:
        collection, _ = self._side(side)
        keys = [self._key(id_) for id_ in ids.to_pylist()]
        found = set() if collection is None else {self._id_of(record) for record in self._others(collection, keys)}
        return np.array([key in found for key in keys], bool)

    def put_old(self, ids: pa.Array, vectors: np.ndarray | None) -> None:
        place = self._place_with_new()
        records, rows = self._with_others(self._open(place.new), ids)
        old = self._open(place.old)
        self._change(lambda: self._store(old, records, None if vectors is None else vectors[rows]))

    def _with_others(self, collection: Any, ids: pa.Array) -> tuple[list[Any], list[int]]:
        """Return the records of these ids that exist, with all fields except the vector, and their positions."""
        row = {self._key(id_): k for k, id_ in enumerate(ids.to_pylist())}
        records = self._others(collection, list(row))
        return records, [row[self._id_of(record)] for record in records]

    def forget_old(self, ids: pa.Array) -> None:
        self._delete(self._place_with_new().old, ids.to_pylist())

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store new vectors with a copy of the current other fields; after the switch, the new collection's own."""
        self._write(self._place_with_new(), ids, vectors)

    def _write(self, place: Collections, ids: pa.Array, vectors: np.ndarray) -> None:
        new = self._open(place.new)
        records, rows = self._with_others(new if place.switched else self._open(place.old), ids)
        (self._replace if place.switched else self._store)(new, records, vectors[rows])
