"""PostgreSQL with pgvector: new vectors are a second column of the same rows, and the switch renames both columns.

The column is filled in short transactions that wait for no row and fire none of the user's triggers where the role may
do so. A trigger of our own makes a row's new vector pending when its old one changes. The switch renames both columns
in one transaction; whatever is bound to the column follows by definitions that the server itself writes
(``pgvector_bound``). Rows, keys, triggers and rights stay the table's own throughout.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases import pgvector_bound as catalog
from congruence.databases._base import BATCH, NEW, OLD, Block, DatabaseInfo, Name, NewVectors, Stage, VectorSide, quoted
from congruence.databases._columns import ColumnDatabase, choose_columns
from congruence.errors import CongruenceError, DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError

if TYPE_CHECKING:
    import psycopg

#: Seconds to wait for a lock. Together with the time that another lock is held meanwhile this is less than the server's
#: ``deadlock_timeout``, so that we give up before the server cancels a statement of the application.
LOCK_SECONDS = 0.3

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # seconds between attempts to get a lock
SNAPSHOT_SECONDS = 30.0  # seconds to wait for transactions that are older than the last new vectors

#: Seconds that a transaction of the fill should take at most; the number of its rows is adapted.
FILL_SECONDS, MOST_ROWS = 0.1, 4096

#: Rows in a round of the switch, which maps what has changed; and how many rounds there are at most.
REST_ROWS, REST_ROUNDS = 1000, 200

REHEARSED = 20  # rows with which a migration is rehearsed
VECTOR_TYPES = {"float32": "vector", "float16": "halfvec", "binary": "bit"}  # column type by element type
GUARD = "~~~congruence"  # name of our trigger, before the column's: triggers fire in the order of their names

_SERVER_REFUSES = partial(catalog.refusing, "The server refuses the migration", "Remove the cause it names.")

_T = TypeVar("_T")

#: ``id_type`` of ``congruence.databases.DatabaseInfo``, by PostgreSQL type.
ID_TYPES = {"int2": "int", "int4": "int", "int8": "int", "text": "text", "varchar": "text", "uuid": "uuid"}


class _Locked(DatabaseUnavailableError):
    """A lock was not available in time."""


class PgVector(ColumnDatabase):
    """A column of type vector or halfvec, or of bits (``bit(n)``, which must be named if the table has others).

    The address is ``postgresql://user@host:port/database``; omitted parts come from the environment, as in libpq. Ids
    are unique integers, strings or UUIDs, and the first column of an index. ``rows`` is an SQL condition, the user's
    own, run unchanged in read-only transactions.
    """

    kind = "pgvector"
    searches_by = "cosine"
    capabilities = base.Capabilities(
        container="column", follows_deletes=True, filters="SQL", element_types=("float32", "float16", "binary")
    )
    _most_pending = 0  # each block is written at once, while it is known which versions of the rows were read

    def _connect(self, address: base.Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        self._client = Client(address)
        self._cursor: Any = None  # of the transaction of a change
        self._lacking: VectorSide | None = None  # side whose missing vectors are mapped before a change
        self._rows = rows
        self._places: deque[dict[int | str, bytes]] = deque(maxlen=8)  # versions of the rows read last, by id
        self._fill_rows = 256  # of the next transaction
        self._replica: bool | None = None  # whether the role may set session_replication_role, if it was tried
        with self._client.reading() as cursor:
            found = self._table = find_table(cursor, address.shown, table, column, ids, modality)
            self._untyped = read_columns(cursor, found.oid)[found.column].dim is None
        self.mixes_widths = self._untyped and rows is not None
        self._column = found.column
        # With the column, so that each migration of a table has a journal of its own.
        self._place = self._subject = f"{address.shown} {found.schema}.{found.name}.{self._column}"
        self._guard = catalog.hidden_name(f"{GUARD}:{self._column}", "")
        self._guard_function = found.schema, catalog.hidden_name(f"{found.name}__{self._column}", "__congruence_guard")
        self._id_type = "int8" if ID_TYPES[found.id_kind] == "int" else ID_TYPES[found.id_kind]
        self._these = f"{quoted(found.ids)} = ANY($1::{self._id_type}[])"  # rows of the ids of a parameter
        self._id = "t.id::text" if found.id_kind == "uuid" else "t.id"  # as the client receives it
        self._row = f"{self._id}, t.vector, t.modality, t.place"  # what ``_block`` takes

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _hidden(self, suffix: str) -> str:
        return catalog.hidden_name(self._column, suffix)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Yield a cursor for one query: of the change in progress, or of a read-only transaction."""
        with self._client.reading() if self._cursor is None else nullcontext(self._cursor) as cursor:
            yield cursor

    def _column_names(self) -> Collection[str]:
        with self._reading() as cursor:
            return read_columns(cursor, self._table.oid)

    def _state(self, cursor: Any = None) -> PgState:
        with self._reading() if cursor is None else nullcontext(cursor) as cursor:
            columns = read_columns(cursor, self._table.oid)
            stage, old, new = self._names(columns)
            mark, names = None, catalog.Mark.__dataclass_fields__
            if stage is not Stage.UNTOUCHED:
                row = cursor.execute(_MARK, [self._table.oid, self._guard]).fetchone()
                said = self._mark_in((row or ("",))[0], *names)
                mark = catalog.Mark(**{name: said[name] for name in names})
            return PgState(stage, old, columns[old], new, columns.get(new), mark)

    def _made(self) -> NewVectors:
        mark, type_ = self._state().made(self._place)
        return NewVectors(mark.dim, element_type_of(type_.kind), dict(mark.note))

    def _source(self, column: str, extra: str = "NULL", *, all_rows: bool = False, where: str | None = None) -> str:
        """Return a subquery t of id, vector, modality, version and another expression, of rows that have a vector."""
        table, name = self._table, quoted(column)
        conditions = [f"{name} IS NOT NULL" if where is None else where]
        if self._rows is not None and not all_rows:
            conditions.append(f"({self._rows}\n)")
        modality = f"{quoted(table.modality)}::text" if table.modality else "NULL"
        version = "oidsend(tableoid) || tidsend(ctid) || xidsend(xmin)"
        columns = [f"{quoted(table.ids)} AS id", f"{name} AS vector", f"{modality} AS modality"]
        columns += [f"{version} AS place", f"{extra} AS extra"]
        return f"(SELECT {', '.join(columns)} FROM {table.path} WHERE {' AND '.join(conditions)}) AS t"

    def _side(self, cursor: Any, state: PgState, side: VectorSide) -> tuple[str, str, int]:
        if side == "new":
            mark, type_ = state.made(self._place)
            return state.new, type_.kind, mark.dim
        dim = state.old_type.dim
        if dim is None:
            function = quoted(self._table.extension, "vector_dims")
            row = cursor.execute(f"SELECT {function}(t.vector) FROM {self._source(state.old)} LIMIT 1").fetchone()
            if row is None:
                raise DatabaseError(
                    f"{self._place} has neither vectors nor a width in the column's type.", "Pass another `column=…`."
                )
            dim = int(row[0])
        return state.old, state.old_type.kind, dim

    def _ids(self, values: Sequence[object]) -> pa.Array:
        return pa.array(values, pa.int64() if self._id_type == "int8" else pa.large_string())

    def _parameter(self, ids: pa.Array) -> list[int | str]:
        """Convert ids to a query parameter, without strings in which a column of UUIDs has no row."""
        values: list[int | str] = ids.to_pylist()
        if self._table.id_kind == "uuid":
            values = [value for value in values if base.UUID.fullmatch(str(value))]
        return values

    def _block(self, rows: Sequence[tuple[Any, ...]], kind: str, dim: int) -> Block:
        """Return rows of id, vector, modality and version, which will be mapped if they do not change."""
        ids, values, names, places = zip(*rows, strict=True) if rows else ((), (), (), ())
        self._places.append(dict(zip(ids, places, strict=True)))
        vectors = decode_vectors(values, kind, self._place) if rows else np.empty((0, dim), np.float32)
        modalities = pa.array(names, pa.large_string()) if self._table.modality else None
        return Block(self._ids(ids), vectors, modalities, ids[-1] if ids else 0)

    def info(self) -> DatabaseInfo:
        table = self._table
        with self._client.reading() as cursor:
            state = self._state(cursor)
            source = self._source(state.old, where="true")
            rows, without = one_row(cursor, f"SELECT count(t.vector), count(*) - count(t.vector) FROM {source}")
            _, kind, dim = self._side(cursor, state, "old")
            indexes = self._searchable(cursor, state.old)
            comment = one_row(
                cursor,
                "SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = $1 AND attname = $2",
                [table.oid, state.old],
            )[0]
        return DatabaseInfo(
            place=self._place,
            rows=rows,
            rows_without=without,
            dim=dim,
            element_type=element_type_of(kind),
            distance=next((index.distance for index in indexes if index.distance), None),
            index="; ".join(map(str, indexes)) or None,
            id_type=ID_TYPES[table.id_kind],
            space=base.space_in(comment, self._place),
        )

    def _blocks(
        self,
        side: VectorSide,
        after: base.Cursor | None,
        batch: int,
        extra: Callable[[PgState], str] = lambda state: "NULL",
        where: Callable[[PgState], str] | None = None,
    ) -> Iterator[tuple[Block, list[Any]]]:
        """Yield blocks of a side in the order of the ids, with the value of an expression for each row."""
        if side == "new":
            self.flush()
        while True:
            with self._client.reading() as cursor:
                state = self._state(cursor)
                column, kind, dim = self._side(cursor, state, side)
                chosen = None if where is None else where(state)
                source = self._source(column, extra(state), where=chosen)
                following = "" if after is None else f"WHERE t.id > $1::{self._id_type}"
                query = f"SELECT {self._row}, t.extra FROM {source} {following} ORDER BY t.id LIMIT {int(batch)}"
                rows = cursor.execute(query, [] if after is None else [after]).fetchall()
            if not rows:
                return
            yield self._block([row[:4] for row in rows], kind, dim), [row[4] for row in rows]
            after = rows[-1][0]

    def scan(
        self, side: VectorSide = "old", *, after: base.Cursor | None = None, batch: int = BATCH
    ) -> Iterator[Block]:
        for block, _ in self._blocks(side, after, batch):
            yield block

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        if side == "new":
            self.flush()
        with self._client.reading() as cursor:
            state = self._state(cursor)
            column, kind, dim = self._side(cursor, state, side)
            source = self._source(column)
            where = f"WHERE t.id = ANY($1::{self._id_type}[])"
            query = f"SELECT {self._row} FROM {source} {where}"
            return self._block(cursor.execute(query, [self._parameter(ids)]).fetchall(), kind, dim)

    def count(self, side: VectorSide = "old") -> int:
        name = self._name(side)
        with self._client.reading() as cursor:
            return int(one_row(cursor, f"SELECT count(*) FROM {self._source(name)}")[0])

    def repeated_ids(self) -> list[str]:
        with self._client.reading() as cursor:
            state = self._state(cursor)
            source = self._source(state.old)
            query = f"SELECT t.id::text FROM {source} GROUP BY t.id HAVING count(*) > 1 LIMIT 10"
            return [str(id_) for (id_,) in cursor.execute(query).fetchall()]

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[base.PairedBlock]:
        self._name("new")
        for block, values in self._blocks("old", None, batch, lambda state: quoted(state.new)):
            made = self._made()
            has_new = np.array([value is not None for value in values])
            new = np.zeros((len(values), made.dim), np.float32)
            if has_new.any():
                present = [value for value in values if value is not None]
                new[has_new] = decode_vectors(present, VECTOR_TYPES[made.element_type], self._place)
            yield base.PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def scan_new(self, *, batch: int = BATCH) -> Iterator[base.NewBlock]:
        for block, has_old in self._blocks("new", None, batch, lambda state: f"{quoted(state.old)} IS NOT NULL"):
            same = np.ones(len(has_old), bool)
            yield base.NewBlock(block.ids, block.vectors, np.array(has_old, bool), same)

    def without_new(self, *, batch: int = BATCH) -> Iterator[tuple[pa.Array, np.ndarray]]:
        self._name("new")
        for block, _ in self._blocks("old", None, batch, where=lambda state: _lacking(state.old, state.new)):
            yield block.ids, np.ones(len(block.ids), bool)

    # ---- changes of the table ----------------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], _T]) -> _T:
        """Run a step that needs a lock, and try again after a pause, in which the application goes on."""
        for pause in PAUSES:
            try:
                return step()
            except _Locked:
                time.sleep(pause)
        return step()

    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a change in one transaction, with ``_cursor``."""

        def once() -> _T:
            if self._lacking is not None:
                self._catch_up(self._lacking)
            with self._client.writing(lock=True) as self._cursor:
                try:
                    return change()
                finally:
                    self._cursor = None

        return self._attempt(once)

    def _tree(self, cursor: Any) -> list[catalog.Relation]:
        return catalog.read_tree(cursor, self._table.oid)

    def _set_guard(self, cursor: Any, mark: catalog.Mark, hidden: str, *, switched: bool) -> None:
        """Create or replace our trigger's function, and the trigger where it is missing; it bears the mark.

        Before the switch a new vector becomes pending when the old one changes; after it the old vector is removed when
        another new one is written, and cannot be written.
        """
        table, guard, function = self._table, quoted(self._guard), quoted(*self._guard_function)
        message = f"the column {hidden} keeps the old vectors; name the columns of this INSERT or COPY without it"
        names = {"column": quoted(self._column), "hidden": quoted(hidden), "message": catalog.literal(message)}
        pending = _ALWAYS_PENDING if self.mixes_widths else _PENDING
        changes = (_KEPT if switched else pending).format(**names).strip()
        body = catalog.literal(_GUARD_BODY.format(changes=changes))
        cursor.execute(f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {body}")
        owner, user = one_row(
            cursor, "SELECT pg_get_userbyid(relowner), current_user FROM pg_class WHERE oid = $1", [table.oid]
        )
        if owner != user:
            cursor.execute(f"ALTER FUNCTION {function}() OWNER TO {quoted(owner)}")
        exists = "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND tgname = $2)"
        for relation in self._tree(cursor):
            if not relation.partition and not one_row(cursor, exists, [relation.oid, self._guard])[0]:
                cursor.execute(
                    f"CREATE TRIGGER {guard} BEFORE INSERT OR UPDATE ON {relation.name} "
                    f"FOR EACH ROW EXECUTE FUNCTION {function}()"
                )
                # Also in sessions with ``session_replication_role``, such as those that restore data.
                cursor.execute(f"ALTER TABLE {relation.name} ENABLE ALWAYS TRIGGER {guard}")
        self._set_mark(cursor, mark)

    def _set_mark(self, cursor: Any, mark: catalog.Mark) -> None:
        comment = catalog.literal(json.dumps({base.MARK_KEY: asdict(mark)}))
        cursor.execute(f"COMMENT ON TRIGGER {quoted(self._guard)} ON {self._table.path} IS {comment}")

    def _create(self, new: NewVectors) -> None:
        """Add the column, and rehearse what comes later, so that it is refused now."""
        with _SERVER_REFUSES():
            self._add_column(new)
            with self._cursor.connection.transaction(force_rollback=True):
                self._rehearse_moves()

    def obstacles(self, new: NewVectors, steps: Collection[str] = base.ALL_STEPS) -> list[tuple[str, str]]:
        """Return what the catalog says; ``rehearse`` and ``prepare`` find what only the server knows."""
        table = self._table
        with self._reading() as cursor:
            stage = self._names(read_columns(cursor, table.oid))[0]
            moving, dropping = ("rollback", "drop-old") if stage is Stage.SWITCHED else ("switch", "discard")
            with catalog.empty_search_path(cursor):
                tree = self._tree(cursor)
                reasons = [(moving, words) for words in catalog.obstacles(cursor, tree, self._column, self._guard)]
                if stage is not Stage.UNTOUCHED:  # whatever depends on the hidden column is not ours
                    other = self._hidden(OLD if stage is Stage.SWITCHED else NEW)
                    bound = catalog.kept_by(cursor, tree, other)
                    reasons += [(step, f"{what} (drop it)") for what in bound for step in (moving, dropping)]
                    if stage is Stage.SWITCHED:
                        kept = {index.name for index in catalog.read_indexes(cursor, catalog.oids_of(tree), other)}
                        reasons += [
                            ("rollback", f"the unique index {index.name}, which the old vectors do not have (drop it)")
                            for index in catalog.read_indexes(cursor, catalog.oids_of(tree), self._column)
                            if index.unique and catalog.hidden_name(index.name, OLD) not in kept
                        ]
                    return reasons
            oids = catalog.oids_of(tree)
            if self._untyped and self._cursor is None:  # the condition runs in read-only transactions alone
                function = quoted(table.extension, "vector_dims")
                widths = f"SELECT DISTINCT {function}(t.vector) FROM {self._source(self._column)} ORDER BY 1 LIMIT 2"
                check_widths([width for (width,) in cursor.execute(widths).fetchall()], self._place)
            indexes = catalog.read_indexes(cursor, oids, self._column)
            hidden = [catalog.hidden_name(index.name, suffix) for index in indexes for suffix in (NEW, OLD)]
            columns = [self._hidden(suffix) for suffix in (NEW, OLD)]
            taken = cursor.execute(_TAKEN, [oids, columns, *self._guard_function, hidden]).fetchall()
            reasons += [("run", f"{what}, whose name migrations need (rename it)") for (what,) in taken]
            indexed, nulls = one_row(cursor, _USABLE, [table.oid, table.ids])
            if not indexed:
                reasons.append(("run", f"no index whose first column is {table.ids!r} (create one)"))
            without = f"{quoted(table.ids)} IS NULL AND {quoted(self._column)} IS NOT NULL"
            if nulls and one_row(cursor, f"SELECT EXISTS (SELECT FROM {table.path} WHERE {without})")[0]:
                reasons.append(("run", f"rows without an id in {table.ids!r} (fill them in)"))
        return reasons

    @property
    def bare_rows(self) -> bool:
        with self._reading() as cursor:
            return not one_row(cursor, _NOT_NULL, [self._table.oid, self._column])[0]

    def _add_column(self, new: NewVectors) -> None:
        table, cursor = self._table, self._cursor
        kind, hidden = VECTOR_TYPES[new.element_type], self._hidden(NEW)
        old = read_columns(cursor, table.oid)[self._column]
        type_ = table.vector_type(kind, None if old.dim is None and kind != "bit" else new.dim)
        cursor.execute(f"ALTER TABLE {table.path} ADD COLUMN {quoted(hidden)} {type_}")
        tree = self._tree(cursor)
        for relation in tree:
            catalog.copy_attributes(cursor, relation, self._column, hidden, old.kind == kind)
        with catalog.empty_search_path(cursor):
            catalog.publish(cursor, tree, self._column, hidden, add=True)
        self._set_guard(cursor, catalog.Mark(new.dim, dict(new.note), kind=old.kind), hidden, switched=False)

    def _rehearse_moves(self, tell: Callable[[str], object] = lambda step: None) -> None:
        """Switch, drop the old column, and, without having dropped it, switch back; the caller undoes all of it."""
        cursor = self._cursor
        tell("switch")
        self._rename(NEW, OLD, rehearsal=True)
        tell("drop-old")
        with _SERVER_REFUSES(), cursor.connection.transaction(force_rollback=True):
            self._drop(self._hidden(OLD))
        tell("rollback")
        self._rename(OLD, NEW, rehearsal=True)

    def rehearse(self, ids: pa.Array, vectors: np.ndarray, element_type: str) -> Iterator[tuple[str, str, str]]:
        """Do the whole migration with some rows in a transaction that is rolled back; others wait less than 0.1 s."""
        if self.stage() is not Stage.UNTOUCHED:
            return
        found: list[tuple[str, str, str]] = []
        steps = ["run"]
        ids, vectors = ids[:REHEARSED], vectors[:REHEARSED]
        new = NewVectors(vectors.shape[1], element_type, {})

        def once() -> None:
            found.clear()
            if self.obstacles(new):
                return
            with self._cursor.connection.transaction(force_rollback=True):
                try:
                    with _SERVER_REFUSES():
                        bound = self._cursor.execute(_BOUND, [catalog.oids_of(self._tree(self._cursor)), self._column])
                        following = [words for (words,) in bound.fetchall()]
                        self._add_column(new)
                        rows = PgRows.of(ids, self._versions(self._cursor, ids), vectors)
                        self._update(self._cursor, self._state(), rows, "new")
                        found.extend(("schema", "unknown", words) for words in self._announcements(new))
                        self._rehearse_moves(steps.append)
                        steps.append("switch")
                        self._check_rows(ids)
                        left = tuple(name for name, _ in self._planned_indexes(self._cursor)[1])
                        if following := [words for words in following if not (left and words.endswith(left))]:
                            found.append(("schema", "good", f"these follow the new vectors: {', '.join(following)}"))
                except MigrationError as error:
                    words = str(error)
                    found.append((steps[-1], "bad", words[0].lower() + words[1:].rstrip(".")))

        self._change(once)
        yield from found

    def _check_rows(self, ids: pa.Array) -> None:
        """Check the constraints of the table on the rehearsed rows, in a copy."""
        cursor, table = self._cursor, self._table
        with cursor.connection.transaction(force_rollback=True):
            self._rename(NEW, OLD, rehearsal=True)
            cursor.execute(f"CREATE TEMP TABLE congruence_checked (LIKE {table.path} INCLUDING CONSTRAINTS)")
            insert = f"INSERT INTO pg_temp.congruence_checked SELECT * FROM {table.path} WHERE {self._these}"
            cursor.execute(insert, [self._parameter(ids)])

    def _announcements(self, new: NewVectors) -> Iterator[str]:
        """Return what changes for the application although nothing is refused."""
        cursor, table, column = self._cursor, self._table, self._column
        hidden, tree = self._hidden(NEW), self._tree(cursor)
        yield (
            f"SELECT *, whole rows, and INSERT and COPY without column names: {hidden!r} is the last column until "
            f"drop-old, and then {column!r} is; prepared SELECT * must be prepared again"
        )
        published = cursor.execute(_PUBLISHED, [catalog.oids_of(tree)]).fetchall()
        if published:
            type_ = table.vector_type(VECTOR_TYPES[new.element_type], new.dim)
            names = ", ".join(name for (name,) in published)
            old = self._hidden(OLD)
            yield (
                f"subscribers of {names}: there, first run ALTER TABLE {table.path} ADD COLUMN {quoted(hidden)} "
                f"{type_}; the switch stops replication until ALTER TABLE {table.path} RENAME COLUMN "
                f"{quoted(column)} TO {quoted(old)}; ALTER TABLE {table.path} RENAME COLUMN {quoted(hidden)} TO "
                f"{quoted(column)} is run there too (not before it has stopped), and a rollback until the reverse is"
            )
        triggers = self._firing(cursor)
        if triggers and not self._may_silence(cursor):
            names = ", ".join(name for _, name in triggers)
            yield (
                f"triggers {names}: this role may not set session_replication_role, so they are disabled inside each "
                "batch, for which other writers wait up to 0.1 s"
            )
        always = [f"{name} of {rel}" for rel, name, when in self._triggers(cursor) if when in "AR"]
        if always:
            yield f"triggers {', '.join(always)}: enabled ALWAYS or as REPLICA, they fire for each row that is filled"
        if len(tree) > 1:
            yield f"ATTACH PARTITION and INHERIT need a table that has {hidden!r} too"
        for name, reason in self._planned_indexes(cursor)[1]:
            yield f"index {name}: it is not built over the new vectors ({reason})"

    # ---- filling -----------------------------------------------------------------------------------------------------

    def _store(self, ids: pa.Array, vectors: np.ndarray | None, side: VectorSide = "new") -> None:
        """Write or remove vectors in short transactions, which pass over rows that changed since they were read."""
        state, names, pages = self._state(), ids.to_pylist(), list(self._places)
        read = ChainMap(*reversed(pages))
        with self._client.reading() as cursor:
            strided = any(index.method == "hnsw" for index in self._searchable(cursor, state.old))
            read = read.new_child(
                self._versions(cursor, ids.filter(pa.array([one not in read for one in names], pa.bool_())))
            )
        every = PgRows.of(ids, read, vectors)
        for rows in _strides(every.places) if strided else [np.arange(len(every.ids))]:
            start = 0
            while start < len(rows):
                part = every.take(rows[start : start + self._fill_rows])
                began = time.monotonic()
                self._attempt(partial(self._write_some, state, part, side, strided))
                for page in pages:  # these versions are the former ones now
                    for one in part.ids.to_pylist():
                        page.pop(one, None)
                start += len(part.ids)
                seconds = time.monotonic() - began
                if len(part.ids) == self._fill_rows or seconds > FILL_SECONDS:
                    wanted = int(len(part.ids) * FILL_SECONDS / max(seconds, 1e-3))
                    self._fill_rows = max(16, min(MOST_ROWS, wanted, 2 * self._fill_rows))

    def _versions(self, cursor: Any, ids: pa.Array) -> dict[int | str, bytes]:
        """Return the present versions of rows."""
        source = self._source(self._column, all_rows=True, where="true")
        query = f"SELECT {self._id}, t.place FROM {source} WHERE t.id = ANY($1::{self._id_type}[])"
        return dict(cursor.execute(query, [self._parameter(ids)]).fetchall()) if len(ids) else {}

    def _write_some(self, state: PgState, rows: PgRows, side: VectorSide, strided: bool = False) -> None:
        with self._client.writing(lock=True) as cursor:
            if strided:  # unlike a read by place, one by the index frees what earlier transactions left in the pages
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute(
                    f"SELECT count(xmin) FROM {self._table.path} WHERE {self._these}", [self._parameter(rows.ids)]
                )
            self._update(cursor, state, rows, side)

    def _update(self, cursor: Any, state: PgState, rows: PgRows, side: VectorSide) -> None:
        """Store vectors of those rows that still are of the version that was read, and are not locked."""
        table, name = self._table, quoted(state.column(side))
        # The user's triggers do not fire in this transaction.
        silenced = [] if self._may_silence(cursor) else self._firing(cursor)
        for relation, trigger in silenced:
            cursor.execute(f"ALTER TABLE {relation} DISABLE TRIGGER {quoted(trigger)}")
        # Our trigger lets these updates pass; the plan has to go by the version or the index, without statistics.
        cursor.execute("SET LOCAL congruence.writing = 'on'")
        for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            cursor.execute(f"SET LOCAL {setting} = off")
        if rows.vectors is None and not rows.copied:
            cursor.execute(f"UPDATE {table.path} SET {name} = NULL WHERE {self._these}", [self._parameter(rows.ids)])
        else:
            type_ = state.old_type if side == "old" else state.new_type
            assert type_ is not None
            kind, value, stored = type_.kind, "f.vector", quoted(table.extension, type_.kind)
            places, names = np.split(rows.places, [4, 10], axis=1), "rel, place, seen"
            if rows.vectors is None:
                value = f"t.{quoted(state.column('new' if side == 'old' else 'old'))}"
            else:
                places, names = [*places, encode_vectors(rows.vectors, kind)], f"{names}, vector"
            if kind == "bit" and rows.vectors is not None:
                value, stored = f"f.vector::bit({rows.vectors.shape[1]})", "bit varying"
            temporary = f"congruence_{kind}"
            columns = f"rel oid, place tid, seen xid, vector {stored}"
            cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {temporary} ({columns}) ON COMMIT DELETE ROWS")
            cursor.execute(f"DELETE FROM pg_temp.{temporary}")  # of an earlier update in this transaction
            with cursor.copy(f"COPY pg_temp.{temporary} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(copy_stream(*places))
            match = "t.ctid = n.place AND t.tableoid = n.rel AND t.xmin = n.seen"
            cursor.execute(
                f"WITH free AS MATERIALIZED (SELECT t.tableoid AS rel, t.ctid AS place, n.vector "
                f"FROM pg_temp.{temporary} n JOIN {table.path} t ON {match} FOR NO KEY UPDATE OF t SKIP LOCKED) "
                f"UPDATE {table.path} t SET {name} = {value} FROM free f WHERE t.ctid = f.place AND t.tableoid = f.rel"
            )
        for relation, trigger in silenced:
            cursor.execute(f"ALTER TABLE {relation} ENABLE TRIGGER {quoted(trigger)}")

    def _triggers(self, cursor: Any) -> list[tuple[str, str, str]]:
        return list(cursor.execute(_FIRING, [catalog.oids_of(self._tree(cursor)), f"{GUARD}:%"]).fetchall())

    def _firing(self, cursor: Any) -> list[tuple[str, str]]:
        return [(relation, name) for relation, name, when in self._triggers(cursor) if when == "O"]

    def _may_silence(self, cursor: Any) -> bool:
        """Set ``session_replication_role`` until the transaction ends, and return whether the role may do so."""
        psycopg = require("psycopg", extra="pgvector")
        if self._replica is not False:
            try:
                with cursor.connection.transaction():
                    cursor.execute("SET LOCAL session_replication_role = replica")
                self._replica = True
            except psycopg.errors.InsufficientPrivilege:
                self._replica = False
        return self._replica

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Copy rows into a temporary table, which has no write-ahead log: the migration takes longer."""
        kind = VECTOR_TYPES[element_type]
        with self._client.writing() as cursor:
            type_ = self._table.vector_type(kind, vectors.shape[1])
            create = "CREATE TEMP TABLE congruence_rows (id int8 PRIMARY KEY, vector {}) ON COMMIT DROP"
            cursor.execute(create.format(type_))
            started = time.perf_counter()
            with cursor.copy("COPY pg_temp.congruence_rows (id, vector) FROM STDIN (FORMAT BINARY)") as copy:
                ids = np.arange(len(vectors), dtype=">i8")[:, None].view(np.uint8)
                copy.write(copy_stream(ids, encode_vectors(vectors, kind)))
            return time.perf_counter() - started

    # ---- the index ---------------------------------------------------------------------------------------------------

    def _searchable(self, cursor: Any, column: str) -> list[catalog.PgIndex]:
        """Return the indexes by which pgvector searches a column."""
        return [index for index in catalog.read_indexes(cursor, [self._table.oid], column) if index.searches]

    def _planned_indexes(self, cursor: Any) -> tuple[list[NewIndex], list[tuple[str, str]]]:
        """Return the indexes to build over the new column before the switch, and those that cannot be built, and why.

        The columns are renamed for a moment, so that the server writes the definitions.
        """
        table, tree, hidden = self._table, self._tree(cursor), self._hidden(NEW)
        state = self._state(cursor)
        mark, type_ = state.made(self._place)
        buildable, left_out = [], []
        with cursor.connection.transaction(force_rollback=True):
            cursor.execute("SET LOCAL search_path = ''")
            aside = quoted(self._hidden("__congruence_aside"))
            for old, new in ((quoted(hidden), aside), (quoted(self._column), quoted(hidden))):
                cursor.execute(f"ALTER TABLE {table.path} RENAME COLUMN {old} TO {new}")
            found = catalog.read_indexes(cursor, catalog.oids_of(tree), hidden)
        planned = [
            NewIndex(index, definition_like(index, table, hidden, state.old_type.dim, mark.dim, type_))
            for index in found
            if index.valid
        ]
        with cursor.connection.transaction(force_rollback=True):
            cursor.execute(f"CREATE TEMP TABLE congruence_indexed (LIKE {table.path})")
            for index in planned:
                words = f"The unique index {index.old.name} cannot be built over the new vectors"
                where = f"{quoted(hidden)} IS NOT NULL AND ({index.old.predicate or 'true'})"
                some = f"SELECT * FROM {table.path} WHERE {where} LIMIT {REHEARSED}"
                reason = ""
                # An index over rows that keep vectors of their own width stays as it is.
                own = [index._replace(rest=using(index.old))] * (state.old_type.dim is None)
                for tried in [*([index] * (index.rest is not None)), *own]:
                    try:
                        with catalog.refusing(words, "Drop it."), cursor.connection.transaction(force_rollback=True):
                            cursor.execute(f"INSERT INTO pg_temp.congruence_indexed {some}")
                            cursor.execute(tried.statement("pg_temp.congruence_indexed"))
                        buildable.append(tried)
                        break
                    except catalog.ServerRefusal as refusal:
                        if index.old.unique:
                            raise
                        reason = reason or refusal.reason
                else:
                    reason = reason or f"pgvector has none for {mark.dim} components of this type"
                    left_out.append((index.old.name, reason))
        return buildable, left_out

    def build_index(self) -> str | None:
        """Build an index like each one over the old vectors, concurrently; a partial one with its condition.

        Vectors of more than 2,000 dimensions are indexed as halfvec; those of more than 4,000 are not indexed. An HNSW
        graph that does not fit into the server's ``maintenance_work_mem`` takes many times longer to build.
        """
        self.flush()
        if self._made() and self.stage() is Stage.PREPARED:
            self._copy_others("new")
            planned, _ = self._change(lambda: self._planned_indexes(self._cursor))
            with self._client.outside() as cursor:
                cursor.execute("SET statement_timeout = 0")
                for index in planned:
                    index.build(cursor)
                for index in planned:
                    index.attach(cursor, planned)
                cursor.execute("RESET statement_timeout")
        with self._client.reading() as cursor:
            indexes = self._searchable(cursor, self._state(cursor).new)
        return "; ".join(map(str, indexes)) or None

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Search with the distance of the index; ``hnsw.ef_search`` is ``k``, but at least 40 and at most 1,000."""
        table = self._table
        self.flush()
        with self._client.reading() as cursor:
            state = self._state(cursor)
            column, kind, dim = self._side(cursor, state, side)
            old = self._searchable(cursor, state.old)
            distance = next((index.distance for index in old if index.distance), "cosine")
            if kind == "bit":
                distance = "hamming"
            indexes = old if side == "old" else self._searchable(cursor, column)
            index = next((index for index in indexes if distance in (index.distance, index.metric)), None)
            type_ = table.vector_type(index.kind if index else kind, dim)
            vector = f"(t.vector::{type_})" if index is not None and index.cast else "t.vector"
            order = f"{vector} OPERATOR({quoted(table.extension)}.{OPERATORS[distance]}) $1::{type_}"
            query = f"SELECT {self._id} FROM {self._source(column)} ORDER BY {order} LIMIT {int(k)}"
            cursor.execute("SELECT set_config('hnsw.ef_search', $1, true)", [str(min(1000, max(40, k)))])
            results = []
            for row in np.asarray(queries, np.float32):
                text = "[" + ",".join(map(repr, row.tolist())) + "]"
                if kind == "bit":
                    text = "".join("1" if bit else "0" for bit in (row > 0).tolist())
                results.append(self._ids([id_ for (id_,) in cursor.execute(query, [text]).fetchall()]))
        return results

    # ---- the switch --------------------------------------------------------------------------------------------------

    def switch(self) -> None:
        if self.stage() is Stage.PREPARED:
            with self._client.reading() as cursor:
                oids, columns = catalog.oids_of(self._tree(cursor)), (self._column, self._hidden(NEW))
                old, new = ({index.name for index in catalog.read_indexes(cursor, oids, column)} for column in columns)
            if {catalog.hidden_name(name, NEW) for name in old} - new:  # others created one since the run
                self.build_index()
        self._move("new", super().switch)

    def rollback(self) -> None:
        self._move("old", super().rollback)

    def _move(self, side: VectorSide, step: Callable[[], None]) -> None:
        """Switch or roll back; rows that the application has written meanwhile are mapped, if ``rest`` is set."""
        self._lacking = side
        try:
            step()
        finally:
            self._lacking = None
        self._validate()

    def _catch_up(self, side: VectorSide) -> None:
        """Map rows without a vector of this side, until so few are left that they can be mapped under a lock."""
        stage = self.stage()
        if stage is not (Stage.PREPARED if side == "new" else Stage.SWITCHED):
            return
        self._copy_others(side)
        for _ in range(REST_ROUNDS):
            began = time.monotonic()
            if not self._map_rest(None, side) or time.monotonic() - began < LOCK_SECONDS / 2:
                break
        if side == "new":
            self._await_readers()

    def _await_readers(self) -> None:
        """Wait for transactions with a snapshot in which rows still have no new vector."""
        with self._client.writing() as cursor:
            (last,) = one_row(cursor, "SELECT pg_current_xact_id()::xid")
        until = time.monotonic() + SNAPSHOT_SECONDS
        older = (
            "SELECT min(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_xmin IS NOT NULL AND age(backend_xmin) > age($1::text::xid)"
        )
        while True:
            with self._client.reading() as cursor:
                (pid,) = one_row(cursor, older, [str(last)])
            if pid is None:
                return
            if time.monotonic() > until:
                raise DatabaseUnavailableError(
                    f"The server's process {pid} has a transaction that is older than the new vectors.",
                    "Try again when it has ended.",
                )
            time.sleep(0.05)

    @contextmanager
    def _reading_beside(self, cursor: Any) -> Iterator[Any]:
        """Yield a cursor that cannot write, in the transaction of another, if there is one."""
        if cursor is None:
            with self._client.reading() as reader:
                yield reader
            return
        with cursor.connection.transaction(force_rollback=True), cursor.connection.cursor(binary=True) as reader:
            reader.execute("SET TRANSACTION READ ONLY")
            yield reader

    def _copy_others(self, side: VectorSide, cursor: Any = None) -> None:
        """Give rows that the condition leaves out this side's vector as it is on the other, if the widths may differ.

        Under the lock of a cursor, and for the old side, only where one of the two is missing.
        """
        if not self.mixes_widths:
            return
        after: Any = None
        while True:
            with self._reading_beside(cursor) as reader:
                state = self._state(reader)
                other = state.column("new" if side == "old" else "old")
                there, lacking = quoted(other), quoted(state.column(side))
                differ = f"({there} IS NULL) <> ({lacking} IS NULL)"
                if side == "new" and cursor is None:  # also rows that the condition has chosen before
                    differ = f"ROW({there})::record *<> ROW({lacking})::record"
                source = self._source(other, all_rows=True, where=f"({self._rows}\n) IS NOT TRUE AND {differ}")
                following = "" if after is None else f"WHERE t.id > $1::{self._id_type}"
                page = f"ORDER BY t.id LIMIT {MOST_ROWS}" if cursor is None else ""  # few are left under the lock
                query = f"SELECT {self._id}, t.place FROM {source} {following} {page}"
                versions = dict(reader.execute(query, [] if after is None else [after]).fetchall())
            if not versions:
                return
            after = list(versions)[-1]
            every = PgRows.of(self._ids(list(versions)), versions, None)._replace(copied=True)
            for start in range(0, len(every.ids), self._fill_rows):
                part = every.take(np.arange(start, min(start + self._fill_rows, len(every.ids))))
                if cursor is None:
                    self._attempt(partial(self._write_some, state, part, side))
                else:
                    self._update(cursor, state, part, side)
            if cursor is not None:
                return

    def _map_rest(self, cursor: Any, side: VectorSide) -> int:
        """Map rows that lack a vector of a side, under the lock of a cursor or in own transactions; return how many."""
        if self.rest is None:
            return 0
        other: VectorSide = "old" if side == "new" else "new"
        with self._reading_beside(cursor) as reader:
            state = self._state(reader)
            column, kind, dim = self._side(reader, state, other)
            whole = not self.mixes_widths
            source = self._source(column, all_rows=whole, where=_lacking(column, state.column(side)))
            query = f"SELECT {self._row} FROM {source} LIMIT {REST_ROWS}"
            rows = reader.execute(query).fetchall()
        if rows:
            block = self._block(rows, kind, dim)
            written = PgRows.of(block.ids, self._places[-1], self.rest(block))
            if cursor is not None:
                self._update(cursor, state, written, side)
            else:
                self._attempt(partial(self._write_some, state, written, side))
        return len(rows)

    def _count_lacking(self, side: VectorSide) -> int:
        """Return how many rows, selected or not, have a vector of the other side only."""
        with self._reading() as cursor:
            state = self._state(cursor)
            there, lacking = (state.old, state.new) if side == "new" else (state.new, state.old)
            source = self._source(there, all_rows=True, where=_lacking(there, lacking))
            return int(one_row(cursor, f"SELECT count(*) FROM {source}")[0])

    def _keep_writers_out(self, side: VectorSide) -> int:
        """Lock the table, map what is left, and count the rows without a vector of this side."""
        self._cursor.execute(f"LOCK TABLE {self._table.path} IN SHARE ROW EXCLUSIVE MODE")
        until = time.monotonic() + LOCK_SECONDS
        self._copy_others(side, self._cursor)
        while self._map_rest(self._cursor, side):
            if time.monotonic() > until:
                raise _Locked(
                    f"Rows of {self._place} are written faster than they are mapped.", "Try again when it is less busy."
                )
        return self._count_lacking(side)

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield nothing: a trigger removes the new vector of a row whose old one is removed."""
        return iter(())

    def _missing(self) -> int:
        return self._keep_writers_out("new")

    def _losing(self) -> int:
        self._cursor.execute(f"LOCK TABLE {self._table.path} IN SHARE ROW EXCLUSIVE MODE")
        return self._count_lacking("new")

    def _show_old(self) -> None:
        bare, allowed = self._keep_writers_out("old"), self.bare_rows
        if bare and not (allowed and self.leaves_bare):
            reason, keep = "" if allowed else f", and {self._column!r} is NOT NULL", "`new_rows='keep'` or "
            raise MigrationError(
                f"{bare:,} rows of {self._place} have only a new vector{reason}.",
                f"Roll back with {keep if allowed else ''}`new_rows='map-back'`.",
            )
        if emptied := self._count_lacking("new"):
            raise MigrationError(
                f"{emptied:,} rows of {self._place} have lost their vector since the switch.",
                "Roll back with `new_rows='keep'` or `new_rows='map-back'`.",
            )
        super()._show_old()

    def _rename(self, shown: str, hidden: str, *, rehearsal: bool = False) -> None:
        cursor, table = self._cursor, self._table
        cursor.execute(f"LOCK TABLE {table.path} IN ACCESS EXCLUSIVE MODE")
        state = self._state()
        mark = state.mark
        assert mark is not None
        # The new column would take the place of one whose type it does not have.
        if shown == NEW and state.old_type.kind != mark.kind:
            raise MigrationError(
                f"The type of {self._column} in {self._place} has become {state.old_type.kind} since the run, and was "
                f"{mark.kind}.",
                "Discard the new vectors, and run it again.",
            )
        with _SERVER_REFUSES():
            names = self._column, shown, hidden
            catalog.move(cursor, self._tree(cursor), *names, mark, table.extension, rehearsal=rehearsal)
        self._set_guard(cursor, mark, self._hidden(hidden), switched=hidden == OLD)

    def _validate(self) -> None:
        """Validate the constraints that the switch has added without reading the table under its lock."""
        mark = self._state().mark
        if mark is None or not mark.unvalidated:
            return
        psycopg = require("psycopg", extra="pgvector")

        def validate(relation: str, name: str) -> None:
            try:
                with self._cursor.connection.transaction():
                    self._cursor.execute(f"ALTER TABLE {relation} VALIDATE CONSTRAINT {quoted(name)}")
            except (psycopg.errors.CheckViolation, psycopg.errors.UndefinedObject):
                pass  # rows without a vector of this side: it holds for what is written from now on

        for relation, name in mark.unvalidated:
            self._change(partial(validate, relation, name))
        self._change(lambda: self._set_mark(self._cursor, replace(mark, unvalidated=[])))

    def _drop(self, column: str, unmark: str | None = None) -> None:
        cursor, table = self._cursor, self._table
        cursor.execute(f"LOCK TABLE {table.path} IN ACCESS EXCLUSIVE MODE")
        tree = self._tree(cursor)
        with catalog.empty_search_path(cursor):
            catalog.publish(cursor, tree, self._column, column, add=False)
        for relation in tree:
            if not relation.partition:
                cursor.execute(f"DROP TRIGGER IF EXISTS {quoted(self._guard)} ON {relation.name}")
        cursor.execute(f"DROP FUNCTION IF EXISTS {quoted(*self._guard_function)}()")
        cursor.execute(f"ALTER TABLE {table.path} DROP COLUMN {quoted(column)}")

    def close(self) -> None:
        super().close()
        self._client.close()


def _strides(places: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows in groups with at most one row of each page.

    An update leaves a page room for the next one only after it was committed. If a transaction changes one row of a
    page, most updates therefore stay in the page, and no index has to be changed.
    """
    _, page = np.unique(places[:, :8], axis=0, return_inverse=True)
    page = page.reshape(-1)
    order = np.argsort(page, kind="stable")
    first = np.r_[True, np.diff(page[order]) != 0]
    rank = np.arange(len(page)) - np.maximum.accumulate(np.where(first, np.arange(len(page)), 0))
    by_rank = np.argsort(rank, kind="stable")
    ends = np.flatnonzero(np.diff(rank[by_rank])) + 1
    yield from np.split(order[by_rank], ends)


_GUARD_BODY = """
BEGIN
    IF pg_catalog.current_setting('congruence.writing', true) OPERATOR(pg_catalog.=) 'on' THEN RETURN NEW; END IF;
    {changes}
    RETURN NEW;
END"""

_PENDING = """
    IF TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN NEW.{hidden} := NULL;
    ELSIF ROW(NEW.{column})::pg_catalog.record OPERATOR(pg_catalog.*<>) ROW(OLD.{column})::pg_catalog.record THEN
        NEW.{hidden} := NULL;
    END IF;"""

#: A row that changes may be one that the condition chooses from now on, or no longer does.
_ALWAYS_PENDING = "NEW.{hidden} := NULL;"

#: An INSERT of both vectors is a copy of a row, or a row that moves to another partition; one of the old vector alone
#: may be such a row, too, if the UPDATE before it was of a row without a new one.
_KEPT = """
    IF TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN
        IF NEW.{hidden} IS NOT NULL AND NEW.{column} IS NULL AND NEW.{hidden}::pg_catalog.text
            OPERATOR(pg_catalog.<>) coalesce(pg_catalog.current_setting('congruence.emptied', true), '')
        THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF;
    ELSIF ROW(NEW.{hidden})::pg_catalog.record OPERATOR(pg_catalog.*<>) ROW(OLD.{hidden})::pg_catalog.record THEN
        IF NEW.{hidden} IS NOT NULL THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF;
    ELSIF NEW.{column} IS NULL THEN
        PERFORM pg_catalog.set_config('congruence.emptied', NEW.{hidden}::pg_catalog.text, true);
    ELSIF ROW(NEW.{column})::pg_catalog.record OPERATOR(pg_catalog.*<>) ROW(OLD.{column})::pg_catalog.record THEN
        NEW.{hidden} := NULL;
    END IF;"""


def _lacking(there: str, lacking: str) -> str:
    """Return the condition for rows that have a vector in one column and none in the other."""
    return f"{quoted(there)} IS NOT NULL AND {quoted(lacking)} IS NULL"


def element_type_of(kind: str) -> str:
    """Return the element type of a column's type in the terms of ``DatabaseInfo``."""
    return next(name for name, known in VECTOR_TYPES.items() if known == kind)


# ---- connections -----------------------------------------------------------------------------------------------------

#: Messages of failed connections for which a retry does not help; these errors have no code.
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|(database|role) \".*\" does not exist|no password supplied"
    r"|invalid (URI|connection)|missing \"=\"|invalid percent-encoded",
    re.IGNORECASE,
)

#: Codes of errors after which a retry may succeed: connections, too many of them, memory, locks, shutdown, a canceled
#: statement.
_TRANSIENT = re.compile(r"08...|53[23]00|40...|55P03|57...|25P0[34]")


class Client:
    """Two connections, one read-only and one for writing, opened on demand and reopened after they were lost."""

    def __init__(self, address: base.Address) -> None:
        self.address = address
        self._psycopg = require("psycopg", extra="pgvector")
        self._open: dict[bool, psycopg.Connection] = {}
        self._locks = {True: RLock(), False: RLock()}

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Yield a cursor in a read-only transaction, with results in binary format."""
        with self._locks[True], self._transaction(True) as cursor:
            yield cursor

    @contextmanager
    def writing(self, *, lock: bool = False) -> Iterator[Any]:
        """Yield a cursor in a transaction, which is rolled back after an error; ``lock`` sets a timeout for locks."""
        with self._locks[False], self._transaction(False) as cursor:
            if lock:
                cursor.execute(f"SET LOCAL lock_timeout = '{int(1000 * LOCK_SECONDS)}ms'")
            yield cursor

    @contextmanager
    def _transaction(self, reads: bool) -> Iterator[Any]:
        with self._translating_errors(reads):
            connection = self._connect(reads)
            with connection.transaction(), connection.cursor(binary=reads) as cursor:
                yield cursor

    @contextmanager
    def outside(self) -> Iterator[Any]:
        """Yield a cursor whose statements are transactions of their own, as some must be."""
        with self._locks[False], self._translating_errors(False), self._connect(False).cursor() as cursor:
            yield cursor

    def _connect(self, reads: bool) -> psycopg.Connection:
        connection = self._open.get(reads)
        if connection is None or connection.closed:
            connection = self._psycopg.connect(
                self.address.text,
                autocommit=True,
                application_name="congruence",
                connect_timeout=10,
                # Behind a connection pooler, the next transaction may run in another server process, without the
                # prepared statement.
                prepare_threshold=None,
                # Placeholders are $1, so that a percent sign in a name or in the user's condition has no special
                # meaning.
                cursor_factory=self._psycopg.RawCursor,
            )
            connection.read_only = reads
            # A policy that hides rows from this role is an error, instead of rows that are never migrated.
            connection.execute("SET row_security = off")
            # Where the server may forget commits that it has confirmed, the journal would tell of a step that is gone.
            connection.execute(
                "SELECT pg_catalog.set_config(name, 'on', false) FROM pg_catalog.pg_settings"
                " WHERE name = 'synchronous_commit' AND setting = 'off'"
            )
            self._open[reads] = connection
        return connection

    @contextmanager
    def _translating_errors(self, reads: bool) -> Iterator[None]:
        """Translate the client's errors, and close the connection if it was lost."""
        try:
            yield
        except self._psycopg.Error as error:
            connection = self._open.get(reads)
            lost = connection is None or connection.closed or connection.broken
            if connection is not None and lost:
                connection.close()
                del self._open[reads]
            # Without the cause: the client's own message may contain the secrets that are removed here.
            raise self._translate(error, lost) from None

    def _translate(self, error: psycopg.Error, lost: bool) -> CongruenceError:
        text = " ".join(str(error).split()) or type(error).__name__
        text = base.hide_secrets(self.address.hide(text), tuple(filter(None, [os.environ.get("PGPASSWORD")])))
        code = error.sqlstate or ""
        place = self.address.shown
        if code in ("55P03", "40P01"):
            return _Locked(
                f"Got no lock within {LOCK_SECONDS} s from {place} ({text}).",
                "Try again when no long query is running, and no prepared transaction holds the table.",
            )
        if _TRANSIENT.fullmatch(code) or (not code and lost and not _REFUSED.search(text)):
            return refusals.refusal("no answer", place, text)
        if code == "53100":
            return refusals.refusal("full disk", place, text)
        if not code and lost:
            return DatabaseError(
                f"{place} refused the connection ({text}).",
                "Check its host, user and database, and the password in PGPASSWORD or ~/.pgpass.",
            )
        hint = {
            "42501": "Run it as the owner of the table; if row-level security is forced on the owner, as a superuser.",
            "25006": "Connect to the primary server, and remove functions that write from `rows=…`.",
        }.get(code)
        return (
            DatabaseError(f"Got an error from {place}: {text}", hint)
            if hint
            else refusals.refusal("rejected", place, text)
        )

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def one_row(cursor: Any, query: object, values: Sequence[object] | None = None) -> tuple[Any, ...]:
    """Return the row of a query that always has one, unless the table no longer exists."""
    row: tuple[Any, ...] | None = cursor.execute(query, values).fetchone()
    if row is None:
        raise DatabaseError("A table that is being migrated no longer exists.", "Open the database again.")
    return row


# ---- the catalog -----------------------------------------------------------------------------------------------------

_COLUMNS = """
    SELECT n.nspname, c.relname, c.oid, pg_table_is_visible(c.oid), a.attname, t.typname,
           (SELECT nspname FROM pg_namespace WHERE oid = e.extnamespace)
    FROM pg_extension e
    JOIN pg_type t ON t.typnamespace = e.extnamespace AND t.typname IN ('vector', 'halfvec') OR t.oid = 'bit'::regtype
    JOIN pg_attribute a ON a.atttypid = t.oid AND NOT a.attisdropped
    JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_(temp|toast)'
    WHERE e.extname = 'vector' ORDER BY 1, 2, a.attnum"""

_PRIMARY_KEY = """
    SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = $1 AND i.indisprimary"""

#: Whether an index begins with the ids, and whether ids may be NULL.
_USABLE = """
    SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                   WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND a.attname = $2),
           EXISTS (SELECT FROM pg_attribute WHERE attrelid = $1 AND attname = $2 AND NOT attnotnull)"""

_NOT_NULL = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = $1 AND attname = $2 AND attnotnull)"

#: What the server knows to use a column.
_BOUND = """
    SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid)
    FROM pg_depend AS d JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY($1::oid[]) AND a.attname = $2
    ORDER BY 1
"""

#: Columns, functions and indexes of the user's that have a name of ours. A table that was dropped leaves our function.
_TAKEN = """
    SELECT format('the column %s of %s', attname, attrelid::regclass) FROM pg_attribute
    WHERE attrelid = ANY($1::oid[]) AND attname = ANY($2::text[])
    UNION ALL SELECT format('the function %s', p.oid::regproc) FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = $3 AND p.proname = $4 AND p.prosrc NOT LIKE '%congruence.writing%'
    UNION ALL SELECT format('the relation %s', c.oid::regclass) FROM pg_class c
    WHERE c.relnamespace IN (SELECT relnamespace FROM pg_class WHERE oid = ANY($1::oid[]))
    AND c.relname = ANY($5::text[])"""

_TYPES = """
    SELECT a.attname, t.typname, a.atttypmod FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_MARK = "SELECT obj_description(oid, 'pg_trigger') FROM pg_trigger WHERE tgrelid = $1 AND tgname = $2"

#: Publications of a table, its partitions and its heirs.
_PUBLISHED = """
    SELECT DISTINCT p.pubname FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE c.oid = ANY($1::oid[]) ORDER BY 1"""

#: Triggers of the user that an update of a column added at the end fires.
_FIRING = r"""
    SELECT format('%I.%I', n.nspname, c.relname), g.tgname, g.tgenabled::text
    FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE g.tgrelid = ANY($1::oid[])
    AND NOT g.tgisinternal AND g.tgparentid = 0 AND g.tgenabled <> 'D' AND g.tgtype & 16 <> 0
    AND (g.tgattr = '' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY(g.tgattr)
                                  AND a.attname LIKE '%\_\_congruence\_new'))
    AND g.tgname NOT LIKE $2 ORDER BY 1, 2"""


class PgColumn(NamedTuple):
    """The type of a column, and its width, None if it is declared without one."""

    kind: str  # vector, halfvec, bit or another type
    dim: int | None


@dataclass(frozen=True)
class PgTable:
    """The user's table and the columns that a migration uses; ``column`` is the one from which readers take vectors."""

    schema: str
    name: str
    column: str
    ids: str
    modality: str | None
    oid: int
    id_kind: str
    extension: str  # schema in which pgvector is installed

    @property
    def path(self) -> str:
        return quoted(self.schema, self.name)

    def vector_type(self, kind: str, dim: int | None) -> str:
        name = quoted("pg_catalog" if kind == "bit" else self.extension, kind)
        return name if dim is None else f"{name}({int(dim)})"


class PgRows(NamedTuple):
    """Rows to write: their ids, versions (b, 14), and vectors (b, dim), or None for none or the other side's."""

    ids: pa.Array
    places: np.ndarray
    vectors: np.ndarray | None
    copied: bool = False  # whether a row gets its vector of the other side

    @classmethod
    def of(cls, ids: pa.Array, versions: Mapping[int | str, bytes], vectors: np.ndarray | None) -> PgRows:
        """Return those of the rows that have a version."""
        found = [versions.get(one, b"") for one in ids.to_pylist()]
        places = np.frombuffer(b"".join(found), np.uint8).reshape(-1, 14)
        rows = np.flatnonzero([bool(one) for one in found])
        return cls(ids.take(pa.array(rows)), places, None if vectors is None else vectors[rows])

    def take(self, rows: np.ndarray) -> PgRows:
        vectors = None if self.vectors is None else self.vectors[rows]
        return PgRows(self.ids.take(pa.array(rows)), self.places[rows], vectors, self.copied)


class PgState(NamedTuple):
    """State of a migration: the names and types of both columns, and what our trigger notes."""

    stage: Stage
    old: str
    old_type: PgColumn
    new: str
    new_type: PgColumn | None
    mark: catalog.Mark | None

    def column(self, side: VectorSide) -> str:
        return self.old if side == "old" else self.new

    def made(self, place: str) -> tuple[catalog.Mark, PgColumn]:
        """Return the note and the type of the new column. Raises MigrationError if there is none."""
        refusals.refuse(self.mark is None or self.new_type is None, "untouched", place)
        assert self.mark is not None
        assert self.new_type is not None
        return self.mark, self.new_type


def read_columns(cursor: Any, oid: int) -> dict[str, PgColumn]:
    """Return the present columns of a table."""
    rows = cursor.execute(_TYPES, [oid]).fetchall()
    if not rows:
        raise DatabaseError("The table no longer exists.", "Open the database again with the table's current name.")
    return {name: PgColumn(kind, typmod if typmod > 0 else None) for name, kind, typmod in rows}


def find_table(
    cursor: Any, place: str, table: str | None, column: str | None, ids: str | None, modality: str | None
) -> PgTable:
    """Find the table and its columns."""
    rows = [row for row in cursor.execute(_COLUMNS).fetchall() if not row[4].endswith((NEW, OLD))]
    # A column of bits need not hold vectors: it counts if it is named, or if the table has no other vectors.
    floats = any(row[5] != "bit" for row in rows)
    rows = [row for row in rows if row[5] != "bit" or row[4] == column or (column is None and not floats)]
    chosen = rows
    if table is not None:
        chosen = [row for row in rows if row[1] == table]
        chosen = [row for row in chosen if row[3]] or chosen  # visible
        chosen = chosen or [row for row in rows if f"{row[0]}.{row[1]}" == table]
    if len({row[2] for row in chosen}) != 1:
        known = sorted({f"{row[0]}.{row[1]}" for row in rows})
        raise ParameterError(
            f"Got `table={table!r}`; expected one of those in {place} that have vectors: {', '.join(known) or 'none'}.",
            "Pass `table=…` with the name of one.",
            argument="table",
            expected=known,
        )
    columns = {row[4]: row for row in chosen}
    schema, name, oid, _, _, _, extension = chosen[0]
    types = {one: found.kind for one, found in read_columns(cursor, oid).items()}
    keys = [one for (one,) in cursor.execute(_PRIMARY_KEY, [oid]).fetchall()]
    options: dict[str, Any] = {"vectors": columns, "coded": (), "keys": keys}
    column, ids = choose_columns(types, f"{place} {schema}.{name}", column, ids, modality, **options)
    refusals.refuse(types[ids] not in ID_TYPES, "ids", ids, kind=types[ids])
    return PgTable(schema, name, column, ids, modality, oid, types[ids], extension)


# ---- indexes ---------------------------------------------------------------------------------------------------------

#: Maximum width that an index supports, by type. A wider vector is indexed as halfvec, a wider halfvec not at all.
WIDEST = {"vector": 2000, "halfvec": 4000, "bit": 64_000}

OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->", "hamming": "<~>"}


def definition_like(
    index: catalog.PgIndex, table: PgTable, column: str, old_dim: int | None, dim: int, type_: PgColumn
) -> str | None:
    """Return what follows USING in the definition of an index like another, over new vectors; None if there is none.

    The server has written the other's definition for this column. A wide vector is indexed as halfvec; where the column
    declares no width, a cast does.
    """
    rest = using(index)
    if not index.searches:
        return rest
    if index.kind == "bit" and index.cast:  # over bits that are computed from the vectors
        return rest if old_dim is None else rest.replace(f"bit({old_dim})", f"bit({dim})")
    kind, metric, cast = type_.kind, index.metric, False
    if "bit" in (kind, index.kind):
        metric = metric if kind == index.kind else "hamming" if kind == "bit" else "cosine"
    else:
        kind = "halfvec" if "halfvec" in (kind, index.kind) or dim > WIDEST["vector"] else "vector"
        cast = kind != type_.kind or type_.dim is None
    if index.kind not in WIDEST or dim > WIDEST[kind]:
        return None
    expression = f"({quoted(column)}::{table.vector_type(kind, dim)})" if cast else quoted(column)
    pairs = (option.partition("=") for option in index.options)
    options = ", ".join(f"{quoted(key)} = {catalog.literal(value)}" for key, _, value in pairs)
    operators = quoted(table.extension, f"{kind}_{metric}_ops")
    parameters = f" WITH ({options})" if options else ""
    where = f" WHERE {index.predicate}" if index.predicate else ""
    return f"{quoted(index.method)} ({expression} {operators}){parameters}{where}"


def using(index: catalog.PgIndex) -> str:
    """Return what follows USING in the definition of an index."""
    only = "ONLY " if index.partitioned else ""
    return str(index.definition).split(f" ON {only}{index.table} USING ", 1)[1]


class NewIndex(NamedTuple):
    """An index to build over the new vectors before the switch."""

    old: catalog.PgIndex
    rest: str | None  # of the definition, after USING; None if pgvector does not support it

    @property
    def name(self) -> str:
        return catalog.hidden_name(self.old.name, NEW)

    @property
    def path(self) -> str:
        return quoted(self.old.schema, self.name)

    def statement(self, on: str, concurrently: str = "") -> str:
        """Return the statement that creates the index on a table."""
        unique = "UNIQUE " if self.old.unique else ""
        return f"CREATE {unique}INDEX {concurrently}{quoted(self.name)} ON {on} USING {self.rest}"

    def build(self, cursor: Any) -> None:
        """Build the index, unless it exists; to that of a partitioned table, those of its parts are attached later."""
        old = self.old
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
        found = cursor.execute(valid, [self.path]).fetchone()
        if found is not None and not found[0] and not old.partitioned:  # a build that was interrupted
            cursor.execute(f"DROP INDEX CONCURRENTLY {self.path}")
            found = None
        if found is None:
            cursor.execute(f"SET default_tablespace = {catalog.literal(old.tablespace or '')}")
            on = (f"ONLY {old.table}",) if old.partitioned else (old.table, "CONCURRENTLY ")
            cursor.execute(self.statement(*on))
            cursor.execute("RESET default_tablespace")

    def attach(self, cursor: Any, planned: Sequence[NewIndex]) -> None:
        """Make the index a part of that of the partitioned table."""
        parent = next((index for index in planned if index.old.oid == self.old.parent), None)
        attached = "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass($1))"
        if parent is not None and not one_row(cursor, attached, [self.path])[0]:
            cursor.execute(f"ALTER INDEX {parent.path} ATTACH PARTITION {self.path}")


# ---- binary format ---------------------------------------------------------------------------------------------------

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"

#: NumPy types of the components of a vector and of a halfvec; they follow two 16-bit integers, the width and zero.
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}


def check_widths(widths: Sequence[int], place: str) -> None:
    """Raise DatabaseError if vectors are of several widths."""
    if len(widths) > 1:
        dims = " and ".join(map(str, widths[:2]))
        raise DatabaseError(
            f"{place} has vectors of {dims} dimensions.", "Select the rows of one width by a condition (`rows=…`)."
        )


def decode_vectors(values: Sequence[bytes], kind: str, place: str) -> np.ndarray:
    """Decode the values of a binary cursor, without NULL, into float32 of shape (b, dim); bits become 1 and -1."""
    if kind == "bit":  # the number of bits, which is the same in all rows of a column, then the bits
        rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        return base.unpack(rows[:, 4:], int.from_bytes(values[0][:4], "big"))
    number = np.dtype(_NUMBERS[kind])
    check_widths([(width - 4) // number.itemsize for width in sorted({len(value) for value in values})], place)
    bytes_of_rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    return np.ascontiguousarray(bytes_of_rows[:, 4:]).view(number).astype(np.float32)


def encode_vectors(vectors: np.ndarray, kind: str) -> np.ndarray:
    """Encode vectors, shape (b, dim), for ``copy_stream``; a bit is 1 above 0."""
    b, dim = vectors.shape
    if kind == "bit":
        return np.hstack([np.tile(np.frombuffer(dim.to_bytes(4), np.uint8), (b, 1)), base.pack(vectors)])
    with np.errstate(over="ignore"):  # values beyond the range of float16 become infinite, which the server refuses
        numbers = np.ascontiguousarray(vectors.astype(_NUMBERS[kind])).view(np.uint8)
    return np.hstack([np.tile(np.frombuffer(dim.to_bytes(2) + b"\0\0", np.uint8), (b, 1)), numbers])


def copy_stream(*columns: np.ndarray) -> bytes:
    """Encode columns, uint8 of shape (b, bytes), for COPY … FROM STDIN (FORMAT BINARY)."""
    sizes = [len(columns).to_bytes(2), *(column.shape[1].to_bytes(4) for column in columns)]
    heads = [np.tile(np.frombuffer(size, np.uint8), (len(columns[0]), 1)) for size in sizes]
    parts = [heads[0], *(part for pair in zip(heads[1:], columns, strict=True) for part in pair)]
    return _HEADER + np.hstack(parts).tobytes() + _TRAILER
