"""PostgreSQL with pgvector: new vectors are written to a side table, and a view switches to them in one transaction.

The new vectors are copied into a side table (id, vector), so that nothing is written to the user's table. An UPDATE of
that table would fire its triggers, leave a dead row per update, and insert each row into all of its indexes again.

The switch renames the table in one transaction, and a view over it and the side table takes its name. The rows of the
table are not rewritten. It keeps its indexes, constraints, foreign keys from and to it, triggers, sequences and grants
under its new name. The application's SELECT, INSERT, UPDATE, DELETE and COPY … FROM work on the view as on the table:
SELECT uses the side table's index, the others a trigger. INSERT … ON CONFLICT, TRUNCATE, new foreign keys and new
indexes require a table, and are refused by the server until ``restore_table`` has replaced the view by the table
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _refusals as refusals
from congruence.databases._base import (
    BATCH,
    MARK_KEY,
    UUID,
    Address,
    Block,
    Capabilities,
    Cursor,
    Database,
    DatabaseInfo,
    Name,
    NewVectors,
    PairedBlock,
    Stage,
    VectorSide,
    hide_secrets,
    pack,
    unpack,
)
from congruence.databases._base import quoted as quoted_name
from congruence.embeddings import Space
from congruence.errors import CongruenceError, DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError
from congruence.io import SPACE_KEY

if TYPE_CHECKING:
    import psycopg

#: Seconds to wait for the locks of a switch; meanwhile, new readers queue behind it.
LOCK_SECONDS = 5

#: Column type by element type.
VECTOR_TYPES = {"float32": "vector", "float16": "halfvec", "binary": "bit"}

_T = TypeVar("_T")

#: ``id_type`` of ``congruence.databases.DatabaseInfo``, by PostgreSQL type.
ID_TYPES = {"int2": "int", "int4": "int", "int8": "int", "text": "text", "varchar": "text", "uuid": "uuid"}

#: NumPy types of integer ids (big-endian), by PostgreSQL type.
INT_TYPES = {"int2": ">i2", "int4": ">i4", "int8": ">i8"}


class PgVector(Database):
    """A column of type vector or halfvec, or of bits (``bit(n)``, which must be named if the table has others).

    The address is ``postgresql://user@host:port/database``; omitted parts come from the environment, as in libpq. Ids
    are unique integers, strings or UUIDs. ``rows`` is an SQL condition, the user's own, run unchanged in read-only
    transactions.
    """

    kind = "pgvector"
    capabilities = Capabilities(container="table", filters="SQL", element_types=("float32", "float16", "binary"))

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        self._client = Client(address)
        self._cursor: Any = None  # of the transaction of a change
        self._rows = rows
        with self._client.reading() as cursor:
            self._table = find_table(cursor, address.shown, table, column, ids, modality)
        self._place = f"{address.shown} {self._table.schema}.{self._table.name}"

    def _source(self, state: PgState, *, all_rows: bool = False, empty: bool = False) -> str:
        """Return a subquery t of id, vector and modality, from the user's rows."""
        table = self._table
        conditions = [] if empty else [f"{quoted(table.column)} IS NOT NULL"]
        if self._rows is not None and not all_rows:
            conditions.append(f"({self._rows}\n)")
        modality = f"{quoted(table.modality)}::text" if table.modality else "NULL"
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = f"{quoted(table.ids)} AS id, {quoted(table.column)} AS vector, {modality} AS modality"
        return f"(SELECT {columns} FROM {table.identifier(state.rows)}{where}) AS t"

    def _new(self, state: PgState) -> str:
        """Return a subquery t of id, vector and modality, from the new vectors and the user's rows."""
        table = self._table
        side, rows, ids = table.identifier(table.side), table.identifier(state.rows), quoted(table.ids)
        if not table.modality:
            return f"(SELECT id, vector, NULL AS modality FROM {side} WHERE vector IS NOT NULL) AS t"
        columns = f"s.id, s.vector, u.{quoted(table.modality)}::text AS modality"
        return f"(SELECT {columns} FROM {side} s LEFT JOIN {rows} u ON u.{ids} = s.id WHERE s.vector IS NOT NULL) AS t"

    def _of(self, state: PgState, side: VectorSide) -> str:
        return self._source(state) if side == "old" else self._new(state)

    @property
    def _id(self) -> str:
        """SQL expression for the id as the client receives it."""
        return "t.id::text" if self._table.id_kind == "uuid" else "t.id"

    @property
    def _id_type(self) -> str:
        kind = self._table.id_kind
        return "int8" if kind in INT_TYPES else "uuid" if kind == "uuid" else "text"

    def _ids(self, values: Sequence[object]) -> pa.Array:
        return pa.array(values, pa.int64() if self._table.id_kind in INT_TYPES else pa.large_string())

    def _parameter(self, ids: pa.Array) -> list[int | str]:
        """Convert ids to a query parameter, without strings in which a column of UUIDs has no row."""
        values: list[int | str] = ids.to_pylist()
        if self._table.id_kind == "uuid":
            values = [value for value in values if UUID.fullmatch(str(value))]
        return values

    def _block(self, rows: Sequence[tuple[object, ...]], kind: str, dim: int) -> Block:
        ids, values, names = zip(*rows, strict=True) if rows else ((), (), ())
        vectors = decode_vectors(values, kind, self._place) if rows else np.empty((0, dim), np.float32)
        modalities = pa.array(names, pa.large_string()) if self._table.modality else None
        return Block(self._ids(ids), vectors, modalities, ids[-1] if ids else 0)

    def _shape(self, cursor: Any, state: PgState, side: VectorSide) -> tuple[str, int]:
        if side == "new":
            return state.kind or self._table.kind, state.dim or self._dim(cursor, state)
        return self._table.kind, self._dim(cursor, state)

    def _dim(self, cursor: Any, state: PgState) -> int:
        if self._table.dim is not None:
            return self._table.dim
        function = quoted(self._table.extension, "vector_dims")
        row = cursor.execute(f"SELECT {function}(t.vector) FROM {self._source(state)} LIMIT 1").fetchone()
        if row is None:
            raise DatabaseError(
                f"{self._place} has neither vectors nor a width in the column's type.", "Pass another `column=…`."
            )
        return int(row[0])

    @property
    def _subject(self) -> object:
        return self._place

    def _state(self) -> PgState:
        with self._client.reading() if self._cursor is None else nullcontext(self._cursor) as cursor:
            return read_state(cursor, self._table)

    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a change in one transaction, with ``_cursor``."""
        with self._client.writing(lock=True) as self._cursor:
            try:
                return change()
            finally:
                self._cursor = None

    def _require_new(self, cursor: Any) -> PgState:
        """Return the state of the migration, which must have new vectors."""
        state = read_state(cursor, self._table)
        refusals.refuse_untouched(state.kind is None or state.dim is None, self._place)
        return state

    def info(self) -> DatabaseInfo:
        table = self._table
        with self._client.reading() as cursor:
            state = read_state(cursor, table)
            source = self._source(state, empty=True)
            rows, without = one_row(cursor, f"SELECT count(t.vector), count(*) - count(t.vector) FROM {source}")
            dim = self._dim(cursor, state)
            indexes = read_indexes(cursor, table.oid, table.attnum)
            comment = one_row(cursor, "SELECT col_description($1, $2)", [table.oid, table.attnum])[0]
        return DatabaseInfo(
            place=self._place,
            rows=rows,
            rows_without=without,
            dim=dim,
            element_type=element_type_of(table.kind),
            distance=next((index.distance for index in indexes if index.distance), None),
            index="; ".join(map(str, indexes)) or None,
            id_type=ID_TYPES[table.id_kind],
            columns=table.others,
            space=_space(comment),
        )

    def stage(self) -> Stage:
        return self._state().stage

    def _made(self) -> NewVectors:
        state, table = self._state(), self._table
        return NewVectors(state.dim or 0, element_type_of(state.kind or table.kind), dict(state.note))

    def scan(self, side: VectorSide = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        def select(state: PgState) -> str:
            return f"SELECT {self._id}, t.vector, t.modality FROM {self._of(state, side)} WHERE true"

        for rows, kind, dim in self._pages(select, side, after, batch):
            yield self._block(rows, kind, dim)

    def _pages(
        self, select: Callable[[PgState], str], side: VectorSide, after: Cursor | None, batch: int
    ) -> Iterator[tuple[list[Any], str, int]]:
        """Yield pages of a query's rows in the order of t.id, with type and width of a side's vectors, if it exists."""
        while True:
            with self._client.reading() as cursor:
                state = read_state(cursor, self._table)
                if side == "new" and state.kind is None:
                    return
                kind, dim = self._shape(cursor, state, side)
                following = "" if after is None else f"AND t.id > $1::{self._id_type}"
                query = f"{select(state)} {following} ORDER BY t.id LIMIT {int(batch)}"
                rows = cursor.execute(query, [] if after is None else [after]).fetchall()
            if not rows:
                return
            yield rows, kind, dim
            after = rows[-1][0]

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            kind, dim = self._shape(cursor, state, side)
            if side == "new" and state.kind is None:
                return self._block([], kind, dim)
            source = self._source(state, all_rows=True) if side == "old" else self._new(state)
            where = f"WHERE t.id = ANY($1::{self._id_type}[])"
            query = f"SELECT {self._id}, t.vector, t.modality FROM {source} {where}"
            return self._block(cursor.execute(query, [self._parameter(ids)]).fetchall(), kind, dim)

    def count(self, side: VectorSide = "old") -> int:
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            if side == "new" and state.kind is None:
                return 0
            return int(one_row(cursor, f"SELECT count(*) FROM {self._of(state, side)}")[0])

    def repeated_ids(self) -> list[str]:
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            query = f"SELECT t.id::text FROM {self._source(state)} GROUP BY t.id HAVING count(*) > 1 LIMIT 10"
            return [str(id_) for (id_,) in cursor.execute(query).fetchall()]

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        if self._state().kind is None:
            yield from super().scan_pairs(batch=batch)
            return

        def select(state: PgState) -> str:
            side = self._table.identifier(self._table.side)
            joined = f"{self._source(state)} LEFT JOIN {side} s ON s.id = t.id"
            return f"SELECT {self._id}, t.vector, t.modality, s.vector FROM {joined} WHERE true"

        for rows, kind, dim in self._pages(select, "new", None, batch):
            block = self._block([row[:3] for row in rows], self._table.kind, dim)
            has_new = np.array([row[3] is not None for row in rows])
            new = np.zeros((len(rows), dim), np.float32)
            if has_new.any():
                new[has_new] = decode_vectors([row[3] for row in rows if row[3] is not None], kind, self._place)
            yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose row is gone or, unless the application wrote them, without old vector."""
        side = self._table.identifier(self._table.side)

        def select(state: PgState) -> str:
            return f"SELECT {self._id} FROM {side} t WHERE {self._orphaned('t', state)}"

        for rows, _, _ in self._pages(select, "new", None, batch):
            yield self._ids([id_ for (id_,) in rows])

    def _orphaned(self, alias: str, state: PgState) -> str:
        """Return an SQL condition for the rows of ``orphans``, given the alias of the side table."""
        rows, ids = self._table.identifier(state.rows), quoted(self._table.ids)
        has = f"u.{ids} = {alias}.id AND ({alias}.own OR u.{quoted(self._table.column)} IS NOT NULL)"
        return f"{alias}.vector IS NOT NULL AND NOT EXISTS (SELECT FROM {rows} u WHERE {has})"

    def _create(self, new: NewVectors) -> None:
        """Create the side table. Refused if the view could not replace the user's table without loss."""
        table, cursor = self._table, self._cursor
        self._refuse(obstacles(cursor, table))
        side, kind = table.identifier(table.side), VECTOR_TYPES[new.element_type]
        # CREATE TABLE AS, so that the id has exactly the type and collation of the user's column.
        ids = f"SELECT {quoted(table.ids)} AS id FROM {table.identifier(table.name)}"
        cursor.execute(f"CREATE TABLE {side} AS {ids} WITH NO DATA")
        cursor.execute(
            f"ALTER TABLE {side} ADD PRIMARY KEY (id), ADD vector {table.vector_type(kind, new.dim)}, "
            "ADD own boolean NOT NULL DEFAULT false"
        )
        cursor.execute(f"COMMENT ON TABLE {side} IS {literal(side_comment(table, new.note))}")

    def _refuse(self, obstacles: list[str]) -> None:
        if obstacles:
            raise MigrationError(
                f"{self._place} cannot be switched, as it has {'; '.join(obstacles)}.",
                "Remove them before the migration.",
            )

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Copy rows into the side table, by COPY alone if none of them exists there; each call is one transaction."""
        if not len(ids):
            return
        psycopg, table = require("psycopg", extra="pgvector"), self._table
        with self._client.writing() as cursor:
            # ``flush`` waits for the disk, once for many writes.
            cursor.execute("SET LOCAL synchronous_commit = off")
            state = self._require_new(cursor)
            stream = copy_stream(ids, np.asarray(vectors, np.float32), table.id_kind, state.kind or "")
            side, into = table.identifier(table.side), "COPY {} (id, vector) FROM STDIN (FORMAT BINARY)"
            try:
                with cursor.connection.transaction(), cursor.copy(into.format(side)) as copy:
                    copy.write(stream)
                return
            except psycopg.errors.UniqueViolation:  # some rows exist: replace them, from a temporary table
                pass
            temporary = quoted("pg_temp", "congruence_rows")
            cursor.execute(f"CREATE TEMP TABLE congruence_rows (LIKE {side}) ON COMMIT DROP")
            cursor.execute(f"ALTER TABLE {temporary} ALTER own SET DEFAULT false")
            with cursor.copy(into.format(temporary)) as copy:
                copy.write(stream)
            cursor.execute(
                f"INSERT INTO {side} AS s (id, vector) SELECT n.id, n.vector FROM {temporary} n WHERE EXISTS "
                f"(SELECT FROM {table.identifier(state.rows)} u WHERE u.{quoted(table.ids)} = n.id) "
                "ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector, own = false"
            )

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Copy rows into a temporary table, which has no write-ahead log: the migration takes longer."""
        kind = VECTOR_TYPES[element_type]
        with self._client.writing() as cursor:
            type_ = self._table.vector_type(kind, vectors.shape[1])
            create = "CREATE TEMP TABLE congruence_rows (id int8 PRIMARY KEY, vector {}) ON COMMIT DROP"
            cursor.execute(create.format(type_))
            started = time.perf_counter()
            with cursor.copy("COPY pg_temp.congruence_rows (id, vector) FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(copy_stream(pa.array(range(len(vectors))), vectors, "int8", kind))
            return time.perf_counter() - started

    def flush(self) -> None:
        """Wait until all committed rows are on the server's disk."""
        with self._client.writing() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            # Only a transaction with an id waits for the disk, and then for all earlier transactions too.
            cursor.execute("SELECT pg_current_xact_id()")

    def delete(self, ids: pa.Array) -> None:
        """Remove rows of the side table; after the switch, only their vectors, as the view hides rows without."""
        with self._client.writing() as cursor:
            state = self._require_new(cursor)
            verb = "UPDATE {} SET vector = NULL" if state.stage is Stage.SWITCHED else "DELETE FROM {}"
            query = f"{verb} WHERE id = ANY($1::{self._id_type}[])"
            cursor.execute(query.format(self._table.identifier(self._table.side)), [self._parameter(ids)])

    def _planned_indexes(self, cursor: Any, state: PgState) -> list[PgIndex]:
        """Return the indexes to build over the new vectors, with the names of the old indexes."""
        if state.kind is None or state.dim is None:
            return []
        old = read_indexes(cursor, self._table.oid, self._table.attnum)
        return [new for index in old if (new := index.like(state.kind, state.dim)) is not None]

    def _side_indexes(self, cursor: Any) -> list[PgIndex]:
        table = self._table
        query = (
            "SELECT a.attrelid, a.attnum FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = 'vector'"
        )
        oid, attnum = one_row(cursor, query, [table.schema, table.side])
        return read_indexes(cursor, oid, attnum)

    def build_index(self) -> str | None:
        """Build an index like each one over the old vectors, but without its condition.

        Vectors of more than 2,000 dimensions are indexed as halfvec; those of more than 4,000 are not indexed. An HNSW
        graph that does not fit into the server's ``maintenance_work_mem`` takes many times longer to build.
        """
        with self._client.writing() as cursor:
            state = self._require_new(cursor)
            if not self._side_indexes(cursor):
                for index in self._planned_indexes(cursor, state):
                    index.create(cursor, self._table, self._table.side, "vector", state.dim or 0)
            indexes = self._side_indexes(cursor)
        return "; ".join(map(str, indexes)) or None

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Search with the distance of the index; ``hnsw.ef_search`` is ``k``, but at least 40 and at most 1,000."""
        table = self._table
        with self._client.reading() as cursor:
            state = read_state(cursor, table)
            kind, dim = self._shape(cursor, state, side)
            old = read_indexes(cursor, table.oid, table.attnum)
            distance = next((index.distance for index in old if index.distance), "cosine")
            if kind == "bit":
                distance = "hamming"
            indexes = old if side == "old" else self._side_indexes(cursor)
            index = next((index for index in indexes if distance in (index.distance, index.metric)), None)
            type_ = table.vector_type(index.kind if index else kind, dim)
            vector = f"(t.vector::{type_})" if index is not None and index.cast else "t.vector"
            order = f"{vector} OPERATOR({quoted(table.extension)}.{OPERATORS[distance]}) $1::{type_}"
            query = f"SELECT {self._id} FROM {self._of(state, side)} ORDER BY {order} LIMIT {int(k)}"
            cursor.execute("SELECT set_config('hnsw.ef_search', $1, true)", [str(min(1000, max(40, k)))])
            results = []
            for row in np.asarray(queries, np.float32):
                text = "[" + ",".join(map(repr, row.tolist())) + "]"
                if kind == "bit":
                    text = "".join("1" if bit else "0" for bit in (row > 0).tolist())
                results.append(self._ids([id_ for (id_,) in cursor.execute(query, [text]).fetchall()]))
        return results

    def _locked(self) -> PgState:
        """Lock the user's table and the side table, and return the state."""
        state = self._state()
        names = [self._table.identifier(name) for name in (state.rows, self._table.side)]
        self._cursor.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
        return state

    def _missing(self) -> int:
        source = self._source(self._locked())
        side = self._table.identifier(self._table.side)
        missing = f"SELECT count(*) FROM {source} LEFT JOIN {side} s ON s.id = t.id WHERE s.vector IS NULL"
        return int(one_row(self._cursor, missing)[0])

    def _show_new(self) -> None:
        """Replace the table by a view with the new vectors."""
        table, cursor, state = self._table, self._cursor, self._locked()
        self._refuse(obstacles(cursor, table))
        side = table.identifier(table.side)
        cursor.execute(f"DELETE FROM {side} s WHERE {self._orphaned('s', state)}")
        # After several switches, ``state.required`` still is the value from before the first.
        required = make_view(cursor, table) or state.required
        comment = literal(side_comment(table, state.note, required))
        cursor.execute(f"COMMENT ON TABLE {side} IS {comment}")
        # The planner needs statistics of the side table to choose the new index.
        cursor.execute(f"ANALYZE {side} (id)")

    def _show_old(self) -> None:
        """Remove the view and restore the table's name; rows written through the view are kept."""
        state = self._locked()
        restore_table(self._cursor, self._table, required=state.required)

    def _remove_old(self) -> None:
        """Rewrite the column and its indexes, and remove the view; meanwhile none can read."""
        table, cursor, state = self._table, self._cursor, self._locked()
        assert state.kind is not None
        assert state.dim is not None
        indexes = self._planned_indexes(cursor, state)
        for index in read_indexes(cursor, table.oid, table.attnum):
            cursor.execute(f"DROP INDEX {table.identifier(index.name)}")
        restore_table(cursor, table, required=False)
        make_table(cursor, table, state.kind, state.dim, required=state.required)
        for index in indexes:
            index.create(cursor, table, table.name, table.column, state.dim, index.name)
        self._remove_new()

    def drop_old(self) -> None:
        made = self._made()
        super().drop_old()
        self._table = replace(self._table, kind=VECTOR_TYPES[made.element_type], dim=made.dim)

    def _remove_new(self) -> None:
        self._cursor.execute(f"DROP TABLE {self._table.identifier(self._table.side)}")

    def close(self) -> None:
        self._client.close()


def element_type_of(kind: str) -> str:
    """Return the element type of a column's type in the terms of ``DatabaseInfo``."""
    return next(name for name, known in VECTOR_TYPES.items() if known == kind)


def _space(comment: str | None) -> Space:
    """Return the space in the comment on a column, as in files of vectors; unknown for any other comment."""
    try:
        facts = json.loads(comment or "")[SPACE_KEY]
        return Space.from_dict(json.loads(facts) if isinstance(facts, str) else facts)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return Space()


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

    def __init__(self, address: Address) -> None:
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
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            yield cursor

    @contextmanager
    def _transaction(self, reads: bool) -> Iterator[Any]:
        with self._translating_errors(reads):
            connection = self._connect(reads)
            with connection.transaction(), connection.cursor(binary=reads) as cursor:
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
        text = hide_secrets(self.address.hide(text), tuple(filter(None, [os.environ.get("PGPASSWORD")])))
        code = error.sqlstate or ""
        place = self.address.shown
        if code == "55P03":
            return DatabaseUnavailableError(
                f"Got no lock within {LOCK_SECONDS} s from {place} ({text}).",
                "Try again when no long query is running.",
            )
        if _TRANSIENT.fullmatch(code) or (not code and lost and not _REFUSED.search(text)):
            return refusals.no_answer(place, text, "the server")
        if code == "53100":
            return refusals.full_disk(place, text)
        if not code and lost:
            return DatabaseError(
                f"{place} refused the connection ({text}).",
                "Check its host, user and database, and the password in PGPASSWORD or ~/.pgpass.",
            )
        hint = {
            "42501": "Run it as the owner of the table.",
            "25006": "Connect to the primary server, and remove functions that write from `rows=…`.",
        }.get(code)
        return DatabaseError(f"Got an error from {place}: {text}", hint) if hint else refusals.rejected(place, text)

    def close(self) -> None:
        """Close both connections."""
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
    SELECT n.nspname, c.relname, c.oid, pg_table_is_visible(c.oid), a.attname, a.attnum, t.typname, a.atttypmod,
           (SELECT nspname FROM pg_namespace WHERE oid = e.extnamespace)
    FROM pg_extension e
    JOIN pg_type t ON t.typnamespace = e.extnamespace AND t.typname IN ('vector', 'halfvec') OR t.oid = 'bit'::regtype
    JOIN pg_attribute a ON a.atttypid = t.oid AND NOT a.attisdropped
    JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_(temp|toast)'
    WHERE e.extname = 'vector' ORDER BY 1, 2, 6"""

_SIDES = """
    SELECT c.oid, n.nspname, d.description
    FROM pg_description d JOIN pg_class c ON c.oid = d.objoid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE d.classoid = 'pg_class'::regclass AND d.objsubid = 0 AND d.description LIKE $1"""

_ATTRIBUTES = """
    SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_PRIMARY_KEY = """
    SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = $1 AND i.indisprimary"""

_STATE = """
    SELECT (SELECT relkind::text FROM pg_class WHERE relnamespace = n.oid AND relname = $2),
           (SELECT oid FROM pg_class WHERE relnamespace = n.oid AND relname = $3),
           (SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE relnamespace = n.oid AND relname = $4),
           (SELECT t.typname || ' ' || a.atttypmod
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
            WHERE c.relnamespace = n.oid AND c.relname = $4 AND a.attname = 'vector')
    FROM pg_namespace n WHERE n.nspname = $1"""


def _unique_name(*names: str, suffix: str) -> str:
    """Return a name for an object of a table, unique within 63 bytes, to which PostgreSQL truncates longer names."""
    whole = "__".join([*names, suffix])
    if len(whole.encode()) <= 63:
        return whole
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
    room = 63 - len(suffix) - len(digest) - 3
    return f"{names[0].encode()[:room].decode(errors='ignore')}_{digest}__{suffix}"


def quoted(*names: str) -> str:
    """Return a name, or one in a schema, as a quoted SQL identifier."""
    return ".".join(map(quoted_name, names))


def literal(text: str) -> str:
    """Return a string as an SQL literal, for statements that do not support parameters."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


@dataclass(frozen=True)
class PgTable:
    """The user's table, by its names before the migration, and the names of what a migration creates for it."""

    schema: str
    name: str
    column: str
    ids: str
    modality: str | None
    oid: int  # this and ``attnum``, the number of the column of vectors, survive a rename
    attnum: int
    kind: str  # vector, halfvec or bit
    dim: int | None  # None if the column is declared without a width
    id_kind: str
    others: tuple[str, ...]
    extension: str  # schema in which pgvector is installed

    @property
    def renamed(self) -> str:
        """Name of the table while a view has its original name."""
        return _unique_name(self.name, suffix="congruence_old")

    @property
    def side(self) -> str:
        """Name of the table of new vectors: id, vector, and own, whether the application wrote the vector."""
        return _unique_name(self.name, self.column, suffix="congruence_new")

    def function(self, role: str) -> str:
        """Return the quoted name of a function: ``write`` is the view's trigger, ``find`` finds a new vector."""
        return self.identifier(_unique_name(self.name, self.column, suffix=f"congruence_{role}"))

    def identifier(self, name: str) -> str:
        """Return the quoted name of an object in the table's schema."""
        return quoted(self.schema, name)

    def vector_type(self, kind: str, dim: int) -> str:
        """Return a vector type as SQL."""
        name = quoted("pg_catalog" if kind == "bit" else self.extension, kind)
        return f"{name}({int(dim)})"


@dataclass(frozen=True)
class PgState:
    """PgState of a migration."""

    stage: Stage
    rows: str  # current name of the table with the user's rows
    kind: str | None = None  # type and width of the new vectors
    dim: int | None = None
    note: Mapping[str, str] = field(default_factory=dict)
    required: bool = False  # whether the column of vectors was NOT NULL before the switch


def side_comment(table: PgTable, note: Mapping[str, str], required: bool = False) -> str:
    """Return the comment for the side table."""
    names = {"table": table.name, "column": table.column, "renamed": table.renamed}
    return json.dumps({MARK_KEY: {**names, "note": dict(note), "required": required}})


def _facts(comment: str | None) -> dict[str, Any]:
    """Return the facts that ``side_comment`` put in a comment; empty for any other comment."""
    try:
        facts = json.loads(comment or "")[MARK_KEY]
        return facts if isinstance(facts, dict) else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


class _VectorColumn(NamedTuple):
    """A row of ``_COLUMNS``, with the table's name before a migration."""

    schema: str
    table: str
    oid: int
    visible: bool
    column: str
    attnum: int
    kind: str
    width: int
    extension: str


def find_table(
    cursor: Any, place: str, table: str | None, column: str | None, ids: str | None, modality: str | None
) -> PgTable:
    """Find the table and its columns."""
    sides = cursor.execute(_SIDES, [f'{{"{MARK_KEY}"%']).fetchall()
    side_oids = {oid for oid, _, _ in sides}
    marks = [(schema, _facts(text)) for _, schema, text in sides]
    names = {(schema, facts.get("renamed")): str(facts.get("table")) for schema, facts in marks}
    rows = [_VectorColumn(*row) for row in cursor.execute(_COLUMNS).fetchall()]
    candidates = [
        row._replace(table=names.get((row.schema, row.table), row.table)) for row in rows if row.oid not in side_oids
    ]
    # A column of bits need not hold vectors: it counts if it is named, or if the table has no other vectors.
    floats = {row.oid for row in candidates if row.kind != "bit"}
    candidates = [
        row for row in candidates if row.kind != "bit" or row.column == column or (column is None and not floats)
    ]
    chosen = candidates
    if table is not None:
        chosen = [row for row in candidates if row.table == table]
        chosen = [row for row in chosen if row.visible] or chosen
        chosen = chosen or [row for row in candidates if f"{row.schema}.{row.table}" == table]
    if len({row.oid for row in chosen}) != 1:
        known = ", ".join(sorted({f"{row.schema}.{row.table}" for row in candidates}))
        raise ParameterError(
            f"Got `table={table!r}`; expected one of those in {place} that have vectors: {known or 'none'}.",
            "Pass `table=…` with the name of one.",
        )
    columns = [row.column for row in chosen]
    column = refusals.only_name(columns, "columns of vectors", place, "column") if column is None else column
    refusals.check_name(column, columns, place, "column")
    chosen = [row for row in chosen if row.column == column]
    schema, name, oid, _, column, attnum, kind, width, extension = chosen[0]
    types: dict[str, str] = dict(cursor.execute(_ATTRIBUTES, [oid]).fetchall())
    if ids is None:
        key = [one for (one,) in cursor.execute(_PRIMARY_KEY, [oid]).fetchall()]
        key = key or [one for one in types if one == "id"]
        if len(key) != 1:
            raise ParameterError(
                f"The table has a primary key of {len(key)} columns, not one.",
                "Pass `ids=…`, or add a column of ids with a unique index.",
            )
        ids = key[0]
    if types[refusals.check_name(ids, types, name, "ids")] not in ID_TYPES:
        raise ParameterError(
            f"The ids in {ids!r} are of type {types[ids]}, not one of {', '.join(ID_TYPES)}.", "Pass another `ids=…`."
        )
    refusals.check_name(modality, types, name, "modality_column")
    others = tuple(other for other in types if other not in (ids, column))
    dim = width if width > 0 else None
    return PgTable(schema, name, column, ids, modality, oid, attnum, kind, dim, types[ids], others, extension)


def read_state(cursor: Any, table: PgTable) -> PgState:
    """Return the state of the migration, from the catalog only."""
    row = cursor.execute(_STATE, [table.schema, table.name, table.renamed, table.side]).fetchone()
    relation, renamed, comment, vector_type = row or (None, None, None, None)
    facts = _facts(comment)
    switched = relation == "v" and renamed == table.oid and bool(facts)
    if not switched and relation not in ("r", "p"):
        raise DatabaseError(
            f"The table {table.schema}.{table.name} no longer exists.",
            "Open the database again with the table's current name.",
        )
    if not facts or vector_type is None:
        return PgState(Stage.UNTOUCHED, table.name)
    kind, dim = vector_type.split(" ")
    stage, rows = (Stage.SWITCHED, table.renamed) if switched else (Stage.PREPARED, table.name)
    note = {str(key): str(value) for key, value in (facts.get("note") or {}).items()}
    return PgState(stage, rows, kind, int(dim), note, facts.get("required") is True)


# ---- indexes ---------------------------------------------------------------------------------------------------------

#: Maximum width that an index supports, by type. A wider vector is indexed as halfvec, a wider halfvec not at all.
WIDEST = {"vector": 2000, "halfvec": 4000, "bit": 64_000}

DISTANCES = {"cosine": "cosine", "ip": "dot", "l2": "l2"}
OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->", "hamming": "<~>"}

_INDEXES = """
    SELECT c.relname, am.amname, o.opcname, coalesce(c.reloptions, '{}'),
           pg_get_expr(i.indexprs, i.indrelid), i.indpred IS NOT NULL
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
    JOIN pg_opclass o ON o.oid = i.indclass[0]
    WHERE i.indrelid = $1 AND i.indisvalid AND am.amname IN ('hnsw', 'ivfflat') AND (i.indkey[0] = $2 OR EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
        AND d.refobjid = i.indrelid AND d.refobjsubid = $2))
    ORDER BY c.relname"""


@dataclass(frozen=True)
class PgIndex:
    """An index over a column of vectors, or over an expression of it."""

    name: str
    method: str  # hnsw or ivfflat
    kind: str  # type of the indexed values: vector, halfvec or bit
    metric: str  # as in the operator class: cosine, ip, l2, l1, …
    options: tuple[str, ...]  # storage parameters, such as m=16
    cast: bool  # whether it is over the vectors cast to ``kind``; a query uses it only with the same cast
    partial: bool  # whether it has a condition; the one over the side table, which lacks the other columns, has none

    @property
    def distance(self) -> str | None:
        """Distance in the terms of ``congruence.databases.DatabaseInfo``; None if it has no such name."""
        return DISTANCES.get(self.metric)

    def __str__(self) -> str:
        parameters = [f"{self.kind}_{self.metric}_ops", *self.options]
        cast = f", over a cast to {self.kind}: only queries with the same cast use it" if self.cast else ""
        return f"{self.method} ({', '.join(parameters)}){cast}"

    def like(self, kind: str, dim: int) -> PgIndex | None:
        """Return the same index for vectors of another type and width; None if pgvector does not support it."""
        # A bit index with a cast is over bits computed from the vectors.
        if self.kind not in WIDEST or (self.kind == "bit" and self.cast):
            return None
        if "bit" in (kind, self.kind):
            if dim > WIDEST[kind]:
                return None
            metric = self.metric if kind == self.kind else "hamming" if kind == "bit" else "cosine"
            return PgIndex(self.name, self.method, kind, metric, self.options, False, False)
        target = "halfvec" if "halfvec" in (kind, self.kind) or dim > WIDEST["vector"] else "vector"
        if dim > WIDEST[target]:
            return None
        return PgIndex(self.name, self.method, target, self.metric, self.options, target != kind, False)

    def create(self, cursor: Any, table: PgTable, on: str, column: str, dim: int, name: str | None = None) -> None:
        """Create the index over a column of the table ``on``."""
        expression = quoted(column)
        if self.cast:
            expression = f"({expression}::{table.vector_type(self.kind, dim)})"
        options = ", ".join(
            f"{quoted(key)} = {literal(value)}" for key, _, value in (option.partition("=") for option in self.options)
        )
        target = f"{quoted(name) if name else ''} ON {table.identifier(on)} USING {quoted(self.method)}"
        operators = quoted(table.extension, f"{self.kind}_{self.metric}_ops")
        parameters = f" WITH ({options})" if self.options else ""
        cursor.execute(f"CREATE INDEX {target} ({expression} {operators}){parameters}")


def read_indexes(cursor: Any, oid: int, attnum: int) -> list[PgIndex]:
    """Return the valid pgvector indexes over a column, or over an expression of it."""
    indexes = []
    for name, method, operators, options, expression, partial in cursor.execute(_INDEXES, [oid, attnum]).fetchall():
        kind, _, metric = re.sub(r"_ops$", "", operators).partition("_")
        indexes.append(PgIndex(name, method, kind, metric, tuple(options), expression is not None, partial))
    return indexes


# ---- binary format ---------------------------------------------------------------------------------------------------

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"

#: NumPy types of the components of a vector and of a halfvec; they follow two 16-bit integers, the width and zero.
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}


def decode_vectors(values: Sequence[bytes], kind: str, place: str) -> np.ndarray:
    """Decode the values of a binary cursor, without NULL, into float32 of shape (b, dim); bits become 1 and -1."""
    if kind == "bit":  # the number of bits, which is the same in all rows of a column, then the bits
        rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        return unpack(rows[:, 4:], int.from_bytes(values[0][:4], "big"))
    number = np.dtype(_NUMBERS[kind])
    widths = {len(value) for value in values}
    if len(widths) > 1:
        dims = " and ".join(str((width - 4) // number.itemsize) for width in sorted(widths)[:2])
        raise DatabaseError(
            f"{place} has vectors of {dims} dimensions.", "Select the rows of one width by a condition (`rows=…`)."
        )
    bytes_of_rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    return np.ascontiguousarray(bytes_of_rows[:, 4:]).view(number).astype(np.float32)


def copy_stream(ids: pa.Array, vectors: np.ndarray, id_kind: str, kind: str) -> bytes:
    """Encode ids and vectors, shape (b, dim), for COPY … FROM STDIN (FORMAT BINARY); a bit is 1 above 0."""
    b, dim = vectors.shape
    fixed: np.ndarray | None = None
    if id_kind in INT_TYPES:
        fixed = np.asarray(ids.to_numpy(zero_copy_only=False)).astype(INT_TYPES[id_kind])[:, None].view(np.uint8)
    elif id_kind == "uuid":
        digits = "".join(ids.to_pylist()).replace("-", "")
        fixed = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(b, 16)
    head = [] if fixed is None else [("n", ">i2"), ("id_bytes", ">i4"), ("id", np.uint8, (fixed.shape[1],))]
    if kind == "bit":
        width = -(-dim // 8)
        rows = np.empty(b, np.dtype([*head, ("bytes", ">i4"), ("bits", ">i4"), ("vector", np.uint8, (width,))]))
        rows["bytes"], rows["bits"], rows["vector"] = 4 + width, dim, pack(vectors)
    else:
        number = np.dtype(_NUMBERS[kind])
        tail = [("bytes", ">i4"), ("dim", ">u2"), ("zero", ">u2"), ("vector", number, (dim,))]
        rows = np.empty(b, np.dtype([*head, *tail]))
        rows["bytes"], rows["dim"], rows["zero"] = 4 + dim * number.itemsize, dim, 0
        with np.errstate(over="ignore"):  # values beyond the range of float16 become infinite, which the server refuses
            rows["vector"] = vectors
    if fixed is not None:
        rows["n"], rows["id_bytes"], rows["id"] = 2, fixed.shape[1], fixed
        return _HEADER + rows.tobytes() + _TRAILER
    data, width = memoryview(rows.tobytes()), rows.itemsize
    parts: list[bytes | memoryview] = [_HEADER]
    for k, text in enumerate(ids.to_pylist()):
        encoded = text.encode()
        parts += (b"\0\2", len(encoded).to_bytes(4, "big"), encoded, data[k * width : (k + 1) * width])
    parts.append(_TRAILER)
    return b"".join(parts)


# ---- the switch ------------------------------------------------------------------------------------------------------

_VIEWS = """
    SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
    WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid = $1 AND d.refobjsubid = $2"""

_SECURITY = """
    SELECT c.relrowsecurity, EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL),
           EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                   WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                   AND i.indnkeyatts = 1 AND a.attname = $2)
    FROM pg_class c WHERE c.oid = $1"""

_DETAILS = """
    SELECT a.attname, a.attnotnull, a.attidentity::text, a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid),
           CASE WHEN a.attidentity <> '' THEN pg_get_serial_sequence($2, a.attname) END
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_GRANTS = """
    SELECT privilege_type, is_grantable, CASE WHEN grantee = 0 THEN NULL ELSE pg_get_userbyid(grantee) END
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl)
    WHERE c.oid = $1 AND grantee <> c.relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')"""

_WRITER = """
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM {rows} WHERE {ids} = OLD.{ids};
        IF NOT FOUND THEN RETURN NULL; END IF;
        DELETE FROM {side} WHERE id = OLD.{ids};
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {rows} ({inserted}) OVERRIDING SYSTEM VALUE VALUES ({inserted_new}) RETURNING {all} INTO {all_new};
        IF NOT FOUND THEN RETURN NULL; END IF;
        INSERT INTO {side} (id, vector, own) VALUES (NEW.{ids}, NEW.{column}, true)
            ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector, own = true;
        RETURN NEW;
    END IF;
    -- The view's row was read without a lock: what another transaction has changed since must not be overwritten.
    PERFORM FROM {rows} t WHERE {ids} = OLD.{ids} AND ROW({all_rows})::record *= ROW({all_old})::record FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'could not update: another transaction has changed the row'
            USING ERRCODE = 'serialization_failure';
    END IF;
    {update}
    IF NEW.{column} IS DISTINCT FROM OLD.{column} THEN
        UPDATE {side} SET vector = NEW.{column}, own = true WHERE id = OLD.{ids};
    END IF;
    UPDATE {side} SET id = NEW.{ids} WHERE id = OLD.{ids} AND id <> NEW.{ids};
    RETURN NEW;
END"""


class TableColumn(NamedTuple):
    """A column of the user's table, as a row of ``_DETAILS``."""

    name: str
    required: bool
    identity: str
    generated: str
    default: str | None
    sequence: str | None


def obstacles(cursor: Any, table: PgTable) -> list[str]:
    """Return the reasons, each a phrase, why a view would not show the new vectors only, to those who may see them."""
    reasons = []
    views = sorted(name for (name,) in cursor.execute(_VIEWS, [table.oid, table.attnum]).fetchall() if name is not None)
    if views:
        reasons.append(
            f"views that would still show the old vectors: {', '.join(views)} (drop them, and create them "
            "again after the switch)"
        )
    row_security, column_grants, unique = one_row(cursor, _SECURITY, [table.oid, table.ids])
    if row_security:
        reasons.append("row-level security, which a view bypasses")
    if column_grants:
        reasons.append("grants of single columns, which a view would not keep")
    if not unique:
        reasons.append(f"no unique index on {table.ids!r}")
    return reasons


def _columns(cursor: Any, table: PgTable, rows: str) -> list[TableColumn]:
    details = cursor.execute(_DETAILS, [table.oid, table.identifier(rows)]).fetchall()
    return [TableColumn(*row) for row in details]


def make_view(cursor: Any, table: PgTable) -> bool:
    """Rename the locked table, and create a view under its name with all its columns and the new vectors.

    Returns whether the old vectors were NOT NULL, which is dropped: rows added after the switch have none.
    """
    columns = _columns(cursor, table, table.name)
    rows, side, view = (table.identifier(target) for target in (table.renamed, table.side, table.name))
    owner, user = one_row(
        cursor, "SELECT pg_get_userbyid(relowner), current_user FROM pg_class WHERE oid = $1", [table.oid]
    )
    grants = cursor.execute(_GRANTS, [table.oid]).fetchall()
    # The view joins both tables, so a row without a row in the side table would not be visible.
    cursor.execute(
        f"INSERT INTO {side} (id, own) SELECT {quoted(table.ids)}, true FROM {view} ON CONFLICT (id) DO NOTHING"
    )
    required = next(column.required for column in columns if column.name == table.column)
    if required:
        cursor.execute(f"ALTER TABLE {view} ALTER COLUMN {quoted(table.column)} DROP NOT NULL")
    cursor.execute(f"ALTER TABLE {view} RENAME TO {quoted(table.renamed)}")
    shown = ", ".join(
        f"s.vector AS {quoted(column.name)}" if column.name == table.column else f"t.{quoted(column.name)}"
        for column in columns
    )
    cursor.execute(f"CREATE VIEW {view} AS SELECT {shown} FROM {rows} t JOIN {side} s ON s.id = t.{quoted(table.ids)}")
    for column in columns:
        default = column.default if column.default and not column.generated else None
        if column.sequence:
            default = f"nextval({literal(column.sequence)}::regclass)"
        if default is not None:
            cursor.execute(f"ALTER VIEW {view} ALTER COLUMN {quoted(column.name)} SET DEFAULT {default}")
    writer = table.function("write")
    cursor.execute(
        f"CREATE FUNCTION {writer}() RETURNS trigger LANGUAGE plpgsql AS {literal(_writer_body(table, columns))}"
    )
    cursor.execute(
        f"CREATE TRIGGER congruence_write INSTEAD OF INSERT OR UPDATE OR DELETE ON {view} "
        f"FOR EACH ROW EXECUTE FUNCTION {writer}()"
    )
    text = f"{table.renamed} with the new vectors of {table.side}, until the old ones are dropped"
    cursor.execute(f"COMMENT ON VIEW {view} IS {literal(text)}")
    for privilege, grantable, grantee in grants:
        to, option = quoted(grantee) if grantee else "PUBLIC", " WITH GRANT OPTION" if grantable else ""
        cursor.execute(f"GRANT {privilege} ON {view}, {side} TO {to}{option}")
    if owner != user:
        for kind, target in (("VIEW", view), ("TABLE", side), ("FUNCTION", f"{writer}()")):
            cursor.execute(f"ALTER {kind} {target} OWNER TO {quoted(owner)}")
    return required


def _writer_body(table: PgTable, columns: list[TableColumn]) -> str:

    def each(pattern: str, which: list[TableColumn]) -> str:
        return ", ".join(pattern.format(quoted(column.name)) for column in which)

    kept = [column for column in columns if column.name != table.column]
    inserted = [column for column in kept if not column.generated]
    updated = [column for column in inserted if column.identity != "a"]
    rows = table.identifier(table.renamed)
    update = ""
    if updated:
        changes = ", ".join(f"{quoted(column.name)} = NEW.{quoted(column.name)}" for column in updated)
        kept_rows = f"RETURNING {each('{}', kept)} INTO {each('NEW.{}', kept)}"
        update = f"UPDATE {rows} SET {changes} WHERE {quoted(table.ids)} = OLD.{quoted(table.ids)} {kept_rows};"
    return _WRITER.format(
        rows=rows,
        side=table.identifier(table.side),
        ids=quoted(table.ids),
        column=quoted(table.column),
        inserted=each("{}", inserted),
        inserted_new=each("NEW.{}", inserted),
        all=each("{}", kept),
        all_new=each("NEW.{}", kept),
        all_rows=each("t.{}", kept),
        all_old=each("OLD.{}", kept),
        update=update,
    )


def restore_table(cursor: Any, table: PgTable, *, required: bool) -> None:
    """Drop the view, and give the table its original name; ``required`` makes the old vectors NOT NULL again."""
    view, rows = table.identifier(table.name), table.identifier(table.renamed)
    cursor.execute(f"DROP VIEW {view}")
    cursor.execute(f"DROP FUNCTION {table.function('write')}()")
    cursor.execute(f"ALTER TABLE {rows} RENAME TO {quoted(table.name)}")
    if required:
        _require(cursor, table)


def _require(cursor: Any, table: PgTable) -> None:
    """Make the column of vectors NOT NULL again, unless it contains NULL."""
    rows, column = table.identifier(table.name), quoted(table.column)
    if not one_row(cursor, f"SELECT EXISTS (SELECT FROM {rows} WHERE {column} IS NULL)")[0]:
        cursor.execute(f"ALTER TABLE {rows} ALTER COLUMN {column} SET NOT NULL")


def make_table(cursor: Any, table: PgTable, kind: str, dim: int, *, required: bool) -> None:
    """Replace the old vectors by the new ones, by rewriting the column, over which there must be no index.

    A rewrite fires no trigger, leaves no dead rows, and keeps the column's position, grants and constraints.
    """
    type_ = table.vector_type(kind, dim)
    id_type = one_row(
        cursor,
        "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = $1 AND attname = $2",
        [table.oid, table.ids],
    )[0]
    finder = table.function("find")
    body = f"SELECT vector FROM {table.identifier(table.side)} WHERE id = $1"
    cursor.execute(f"CREATE FUNCTION {finder}({id_type}) RETURNS {type_} LANGUAGE sql STABLE AS {literal(body)}")
    cursor.execute(
        f"ALTER TABLE {table.identifier(table.name)} ALTER COLUMN {quoted(table.column)} TYPE {type_} "
        f"USING {finder}({quoted(table.ids)})"
    )
    cursor.execute(f"DROP FUNCTION {finder}({id_type})")
    if required:
        _require(cursor, table)
