"""PostgreSQL with pgvector: new vectors are written to a side table, and a view switches to them in one transaction.

The new vectors are copied into a side table (id, vector), so that nothing is written to the user's table. An UPDATE of that table would fire
its triggers, leave a dead row per update, and insert each row into all of its indexes again. The switch is implemented in :mod:`._pg_switch`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.databases import _pg_switch as ddl
from congruence.databases._base import Capabilities, Side, Stage
from congruence.databases._pg_catalog import State, read_state, side_comment
from congruence.databases._pg_client import one_row
from congruence.databases._pg_index import VectorIndex, order_by, read_indexes
from congruence.databases._pg_reader import VECTOR_TYPES, PgReader
from congruence.databases._pg_wire import copy_stream
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import MigrationError

if TYPE_CHECKING:
    from congruence.databases._client_types import Cursor

__all__ = ["PgVector"]


class PgVector(PgReader):
    """A column of type vector or halfvec, or of bits (``bit(n)``, which must be named if the table also has one of the other types).

    Parameters
    ----------
    address : Address
        ``postgresql://user@host:port/database``. Omitted parts come from the environment (``PGPASSWORD``, …), as usual in libpq.
    table, column, ids, modality_column : str, optional
        See :func:`congruence.databases.open_database`. A table is ``name`` or ``schema.name``. Its ids must be unique integers, strings or UUIDs.
    rows : str, optional
        An SQL condition, as in a WHERE clause. It is the user's own SQL, and is run unchanged in read-only transactions.

    Raises
    ------
    ParameterError, DatabaseError, DatabaseUnavailableError, MissingExtraError
        If a parameter has an invalid value; the database rejects the request; the database does not answer; or an optional dependency is
        not installed.
    """

    kind = "pgvector"
    capabilities = Capabilities(
        container="table",
        atomic_switch=True,
        concurrent_writes=True,
        follows_deletes=False,
        searches=True,
        filters="SQL",
        element_types=("float32", "float16", "binary"),
    )

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the side table; see :meth:`Database.prepare`. Also raises MigrationError if the view could not replace the user's table without loss."""
        sql, table = self._sql, self._table
        kind = VECTOR_TYPES[check_choice(element_type, self.capabilities.element_types, "element_type")]
        note = {str(key): str(value) for key, value in (note or {}).items()}
        with self._client.writing(lock=True) as cursor:
            state = read_state(cursor, table)
            if state.kind is not None:
                if (state.kind, state.dim, dict(state.note)) != (kind, dim, note):
                    raise MigrationError(
                        f"Got {kind}({dim}) with the note {note}, while {table.side} already has {state.kind}({state.dim}) with {dict(state.note)}; "
                        "expected the same. Discard the new vectors first."
                    )
                return
            self._refuse(ddl.obstacles(cursor, table))
            side = table.identifier(table.side)
            # CREATE TABLE AS, so that the id has exactly the type and collation of the user's column.
            cursor.execute(
                sql.SQL("CREATE TABLE {} AS SELECT {} AS id FROM {} WITH NO DATA").format(
                    side, sql.Identifier(table.ids), table.identifier(table.name)
                )
            )
            cursor.execute(
                sql.SQL(
                    "ALTER TABLE {} ADD PRIMARY KEY (id), ADD vector {}, ADD own boolean NOT NULL DEFAULT false"
                ).format(side, table.vector_type(kind, dim))
            )
            cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(side, sql.Literal(side_comment(table, note))))

    def _refuse(self, obstacles: list[str]) -> None:
        if obstacles:
            raise MigrationError(
                f"Got {self._place} with {'; '.join(obstacles)}; expected none of these. Remove them before the migration."
            )

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Copy rows into the side table, by COPY alone if none of them exists there; each call is one transaction."""
        if not len(ids):
            return
        psycopg, sql, table = require("psycopg", extra="pgvector"), self._sql, self._table
        with self._client.writing() as cursor:
            # :meth:`flush` waits for the disk, once for many writes.
            cursor.execute("SET LOCAL synchronous_commit = off")
            state = self._require_new(cursor)
            stream = copy_stream(ids, np.asarray(vectors, np.float32), table.id_kind, state.kind or "")
            into = sql.SQL("COPY {} (id, vector) FROM STDIN (FORMAT BINARY)")
            side = table.identifier(table.side)
            try:
                with cursor.connection.transaction(), cursor.copy(into.format(side)) as copy:
                    copy.write(stream)
                return
            except psycopg.errors.UniqueViolation:  # some rows exist: replace them, from a temporary table
                pass
            temporary = sql.Identifier("pg_temp", "congruence_rows")
            cursor.execute(sql.SQL("CREATE TEMP TABLE congruence_rows (LIKE {}) ON COMMIT DROP").format(side))
            cursor.execute(sql.SQL("ALTER TABLE {} ALTER own SET DEFAULT false").format(temporary))
            with cursor.copy(into.format(temporary)) as copy:
                copy.write(stream)
            cursor.execute(
                sql.SQL(
                    "INSERT INTO {} AS s (id, vector) SELECT n.id, n.vector FROM {} n WHERE EXISTS (SELECT FROM {} u WHERE u.{} = n.id) "
                    "ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector, own = false"
                ).format(side, temporary, table.identifier(state.rows), sql.Identifier(table.ids))
            )

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Copy rows into a temporary table, which only this connection sees and which is dropped at the end of the transaction.

        Temporary tables have no write-ahead log, so the migration itself will take longer than the measured time.
        """
        sql, kind = self._sql, VECTOR_TYPES[element_type]
        with self._client.writing() as cursor:
            type_ = self._table.vector_type(kind, vectors.shape[1])
            create = sql.SQL("CREATE TEMP TABLE congruence_rows (id int8 PRIMARY KEY, vector {}) ON COMMIT DROP")
            cursor.execute(create.format(type_))
            started = time.perf_counter()
            with cursor.copy("COPY pg_temp.congruence_rows (id, vector) FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(copy_stream(pa.array(range(len(vectors))), vectors, "int8", kind))
            return time.perf_counter() - started

    def _require_new(self, cursor: Cursor) -> State:
        """Return the state of the migration. Raises MigrationError if there are no new vectors."""
        state = read_state(cursor, self._table)
        if state.kind is None or state.dim is None:
            raise no_new_vectors(self._place)
        return state

    def flush(self) -> None:
        """Wait until all committed rows are on the server's disk."""
        with self._client.writing() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            # Only a transaction with an id waits for the disk, and then for all earlier transactions too.
            cursor.execute("SELECT pg_current_xact_id()")

    def delete(self, ids: pa.Array) -> None:
        """Remove rows of the side table; after the switch, only set their vectors to null, since the view hides rows without a side row."""
        with self._client.writing() as cursor:
            state = self._require_new(cursor)
            verb = "UPDATE {} SET vector = NULL" if state.stage is Stage.SWITCHED else "DELETE FROM {}"
            query = self._sql.SQL(f"{verb} WHERE id = ANY($1::{self._id_type}[])")
            cursor.execute(query.format(self._table.identifier(self._table.side)), [self._parameter(ids)])

    # ---- index -------------------------------------------------------------------------------------------------------

    def _planned_indexes(self, cursor: Cursor, state: State) -> list[VectorIndex]:
        """Return the indexes to build over the new vectors, with the names of the old indexes."""
        if state.kind is None or state.dim is None:
            return []
        old = read_indexes(cursor, self._table.oid, self._table.attnum)
        return [new for index in old if (new := index.like(state.kind, state.dim)) is not None]

    def _side_indexes(self, cursor: Cursor) -> list[VectorIndex]:
        """Return the indexes over the new vectors."""
        table = self._table
        query = (
            "SELECT a.attrelid, a.attnum FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = 'vector'"
        )
        oid, attnum = one_row(cursor, query, [table.schema, table.side])
        return read_indexes(cursor, oid, attnum)

    def build_index(self) -> str | None:
        """Build an index for each index over the old vectors, with the same method, distance and parameters, but without a WHERE condition.

        Vectors of more than 2,000 dimensions are indexed as halfvec; those of more than 4,000 are not indexed. An HNSW graph that does not fit
        into the server's ``maintenance_work_mem`` takes many times longer to build.
        """
        with self._client.writing() as cursor:
            state = self._require_new(cursor)
            if not self._side_indexes(cursor):
                for index in self._planned_indexes(cursor, state):
                    index.create(cursor, self._table, self._table.side, "vector", state.dim or 0)
            indexes = self._side_indexes(cursor)
        return "; ".join(map(str, indexes)) or None

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Search with the distance of the index, one query at a time; ``hnsw.ef_search`` is ``k``, but at least 40 and at most 1,000."""
        sql, table = self._sql, self._table
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
            order = order_by(table, sql.SQL("t.vector"), type_, distance, index is not None and index.cast, sql)
            query = sql.SQL("SELECT {} FROM {} ORDER BY {} LIMIT {}").format(
                self._id, self._source(state) if side == "old" else self._new(state), order, sql.Literal(k)
            )
            cursor.execute("SELECT set_config('hnsw.ef_search', $1, true)", [str(min(1000, max(40, k)))])
            results = []
            for row in np.asarray(queries, np.float32):
                text = "[" + ",".join(map(repr, row.tolist())) + "]"
                if kind == "bit":
                    text = "".join("1" if bit else "0" for bit in (row > 0).tolist())
                results.append(self._ids([id_ for (id_,) in cursor.execute(query, [text]).fetchall()]))
        return results

    # ---- switch and rollback -----------------------------------------------------------------------------------------

    def _lock(self, cursor: Cursor, state: State) -> None:
        names = [self._table.identifier(name) for name in (state.rows, self._table.side)]
        cursor.execute(self._sql.SQL("LOCK TABLE {}, {} IN ACCESS EXCLUSIVE MODE").format(*names))

    def switch(self) -> None:
        """Replace the table by a view with the new vectors, in one transaction.

        Raises
        ------
        MigrationError
            If there are no new vectors, some rows have none, or the view could not replace the table without loss.
        DatabaseUnavailableError
            If the table stays locked, for example by a long query.
        """
        sql, table = self._sql, self._table
        with self._client.writing(lock=True) as cursor:
            state = self._require_new(cursor)
            if state.stage is Stage.SWITCHED:
                return
            self._lock(cursor, state)
            self._refuse(ddl.obstacles(cursor, table))
            side = table.identifier(table.side)
            missing = sql.SQL("SELECT count(*) FROM {} LEFT JOIN {} s ON s.id = t.id WHERE s.vector IS NULL").format(
                self._source(state), side
            )
            (rows,) = one_row(cursor, missing)
            if rows:
                raise MigrationError(
                    f"Got {rows} rows of {self._place} without a new vector; expected one for each row. Write the missing vectors, then switch."
                )
            cursor.execute(sql.SQL("DELETE FROM {} s WHERE {}").format(side, self._orphaned("s", state)))
            # After several switches, ``state.required`` still is the value from before the first.
            required = ddl.make_view(cursor, table) or state.required
            comment = sql.Literal(side_comment(table, state.note, required))
            cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(side, comment))
            # The planner needs statistics of the side table to choose the new index.
            cursor.execute(sql.SQL("ANALYZE {} (id)").format(side))

    def rollback(self) -> None:
        """Remove the view and restore the table's name, in one transaction; rows written through the view are kept."""
        with self._client.writing(lock=True) as cursor:
            state = read_state(cursor, self._table)
            if state.stage is Stage.SWITCHED:
                self._lock(cursor, state)
                ddl.restore_table(cursor, self._table, required=state.required)

    def drop_old(self) -> None:
        """Rewrite the column with the new vectors, build its indexes, and remove the view and the side table, in one transaction.

        Until the table and its indexes are copied, the table cannot be read. Needs disk space for a second copy.
        """
        sql, table = self._sql, self._table
        with self._client.writing(lock=True) as cursor:
            state = read_state(cursor, table)
            if state.stage is not Stage.SWITCHED or state.kind is None or state.dim is None:
                raise not_switched(self._place)
            self._lock(cursor, state)
            indexes = self._planned_indexes(cursor, state)
            for index in read_indexes(cursor, table.oid, table.attnum):
                cursor.execute(sql.SQL("DROP INDEX {}").format(table.identifier(index.name)))
            ddl.restore_table(cursor, table, required=False)
            ddl.make_table(cursor, table, state.kind, state.dim, required=state.required)
            for index in indexes:
                index.create(cursor, table, table.name, table.column, state.dim, index.name)
            cursor.execute(sql.SQL("DROP TABLE {}").format(table.identifier(table.side)))
        self._table = replace(table, kind=state.kind, dim=state.dim)

    def discard(self) -> None:
        """Remove the side table. Raises MigrationError after the switch."""
        with self._client.writing(lock=True) as cursor:
            state = read_state(cursor, self._table)
            if state.stage is Stage.SWITCHED:
                raise already_switched(self._place)
            if state.kind is not None:
                cursor.execute(self._sql.SQL("DROP TABLE {}").format(self._table.identifier(self._table.side)))
