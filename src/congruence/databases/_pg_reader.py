"""Read a PostgreSQL table for a migration: the user's table, the side table of new vectors, and both joined."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases._address import Address
from congruence.databases._base import (
    BATCH,
    Block,
    Cursor,
    Database,
    DatabaseInfo,
    PairedBlock,
    Side,
    Stage,
)
from congruence.databases._metadata import SPACE_KEY
from congruence.databases._pg_catalog import ID_TYPES, State, find_table, read_state
from congruence.databases._pg_client import Client, one_row
from congruence.databases._pg_index import read_indexes
from congruence.databases._pg_wire import INT_TYPES, decode_vectors
from congruence.embeddings import Space
from congruence.errors import DatabaseError

if TYPE_CHECKING:
    from psycopg.sql import SQL, Composed

    from congruence.databases._client_types import Cursor as PgCursor

__all__ = ["VECTOR_TYPES", "PgReader"]

#: Column type by element type.
VECTOR_TYPES = {"float32": "vector", "float16": "halfvec", "binary": "bit"}

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PgReader(Database):
    """Read-only part of :class:`congruence.databases.pgvector.PgVector`, with the same parameters."""

    def __init__(
        self,
        address: Address,
        *,
        table: str | None = None,
        column: str | None = None,
        ids: str | None = None,
        modality_column: str | None = None,
        rows: str | None = None,
    ) -> None:
        self._client = Client(address)
        self._sql = require("psycopg.sql", extra="pgvector")
        self._rows = rows
        with self._client.reading() as cursor:
            self._table = find_table(cursor, address.shown, table, column, ids, modality_column)
        self._place = f"{address.shown} {self._table.schema}.{self._table.name}"

    # ---- statements --------------------------------------------------------------------------------------------------

    def _source(self, state: State, *, all_rows: bool = False, empty: bool = False) -> Composed:
        """Return a subquery t of id, vector and modality, from the user's rows."""
        sql, table = self._sql, self._table
        conditions = [] if empty else [sql.SQL("{} IS NOT NULL").format(sql.Identifier(table.column))]
        if self._rows is not None and not all_rows:
            conditions.append(sql.SQL("({}\n)").format(sql.SQL(self._rows)))
        modality = sql.SQL("{}::text").format(sql.Identifier(table.modality)) if table.modality else sql.SQL("NULL")
        return sql.SQL("(SELECT {} AS id, {} AS vector, {} AS modality FROM {}{}) AS t").format(
            sql.Identifier(table.ids),
            sql.Identifier(table.column),
            modality,
            table.identifier(state.rows),
            sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL(""),
        )

    def _new(self, state: State) -> Composed:
        """Return a subquery t of id, vector and modality, from the new vectors; the modality comes from the user's rows."""
        sql, table = self._sql, self._table
        if not table.modality:
            query = sql.SQL("SELECT id, vector, NULL AS modality FROM {} WHERE vector IS NOT NULL")
            return sql.SQL("({}) AS t").format(query.format(table.identifier(table.side)))
        query = sql.SQL(
            "SELECT s.id, s.vector, u.{}::text AS modality FROM {} s LEFT JOIN {} u ON u.{} = s.id WHERE s.vector IS NOT NULL"
        )
        return sql.SQL("({}) AS t").format(
            query.format(
                sql.Identifier(table.modality),
                table.identifier(table.side),
                table.identifier(state.rows),
                sql.Identifier(table.ids),
            )
        )

    @property
    def _id(self) -> SQL:
        """SQL expression for the id as the client receives it."""
        return self._sql.SQL("t.id::text" if self._table.id_kind == "uuid" else "t.id")

    @property
    def _id_type(self) -> str:
        """SQL type of ids in query parameters."""
        kind = self._table.id_kind
        return "int8" if kind in INT_TYPES else "uuid" if kind == "uuid" else "text"

    def _ids(self, values: Sequence[object]) -> pa.Array:
        return pa.array(values, pa.int64() if self._table.id_kind in INT_TYPES else pa.large_string())

    def _parameter(self, ids: pa.Array) -> list[int | str]:
        """Convert ids to a query parameter; for a UUID column, strings that are not UUIDs are dropped, since no row has them."""
        values: list[int | str] = ids.to_pylist()
        if self._table.id_kind == "uuid":
            values = [value for value in values if _UUID.fullmatch(str(value).lower())]
        return values

    def _block(self, rows: Sequence[tuple[object, ...]], kind: str, dim: int) -> Block:
        """Convert rows of id, vector and modality to a block."""
        ids, values, names = zip(*rows, strict=True) if rows else ((), (), ())
        vectors = decode_vectors(values, kind, self._place) if rows else np.empty((0, dim), np.float32)
        modalities = pa.array(names, pa.large_string()) if self._table.modality else None
        return Block(self._ids(ids), vectors, modalities, ids[-1] if ids else 0)

    def _shape(self, cursor: PgCursor, state: State, side: Side) -> tuple[str, int]:
        """Return the type and width of a side's vectors."""
        if side == "new":
            return state.kind or self._table.kind, state.dim or self._dim(cursor, state)
        return self._table.kind, self._dim(cursor, state)

    def _dim(self, cursor: PgCursor, state: State) -> int:
        if self._table.dim is not None:
            return self._table.dim
        sql = self._sql
        query = sql.SQL("SELECT {}(t.vector) FROM {} LIMIT 1").format(
            sql.Identifier(self._table.extension, "vector_dims"), self._source(state)
        )
        row = cursor.execute(query).fetchone()
        if row is None:
            raise DatabaseError(
                f"Got no vectors in {self._place}, and no width in the column's type; expected at least one vector, or a width. Pass another column (column=)."
            )
        return int(row[0])

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors."""
        table, sql = self._table, self._sql
        with self._client.reading() as cursor:
            state = read_state(cursor, table)
            count = sql.SQL("SELECT count(t.vector), count(*) - count(t.vector) FROM {}")
            rows, without = one_row(cursor, count.format(self._source(state, empty=True)))
            dim = self._dim(cursor, state)
            indexes = read_indexes(cursor, table.oid, table.attnum)
            comment = one_row(cursor, "SELECT col_description($1, $2)", [table.oid, table.attnum])[0]
        return DatabaseInfo(
            place=self._place,
            rows=rows,
            rows_without=without,
            dim=dim,
            element_type=next(name for name, kind in VECTOR_TYPES.items() if kind == table.kind),
            distance=next((index.distance for index in indexes if index.distance), None),
            index="; ".join(map(str, indexes)) or None,
            id_type=ID_TYPES[table.id_kind],
            columns=table.others,
            space=_space(comment),
        )

    def stage(self) -> Stage:
        """Return the state of the migration, according to the catalog."""
        return self._state().stage

    def note(self) -> Mapping[str, str]:
        """Return the note in the comment on the side table."""
        return self._state().note

    def _state(self) -> State:
        with self._client.reading() as cursor:
            return read_state(cursor, self._table)

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows in the order of their ids."""
        sql = self._sql
        while True:
            with self._client.reading() as cursor:
                state = read_state(cursor, self._table)
                if side == "new" and state.kind is None:
                    return
                kind, dim = self._shape(cursor, state, side)
                query = sql.SQL("SELECT {}, t.vector, t.modality FROM {} {} ORDER BY t.id LIMIT {}").format(
                    self._id,
                    self._source(state) if side == "old" else self._new(state),
                    self._after(after),
                    sql.Literal(batch),
                )
                rows = cursor.execute(query, [] if after is None else [after]).fetchall()
            if not rows:
                return
            block = self._block(rows, kind, dim)
            yield block
            after = block.cursor

    def _after(self, after: Cursor | None) -> Composed:
        return self._sql.SQL("" if after is None else f"WHERE t.id > $1::{self._id_type}")

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist and have a vector."""
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            kind, dim = self._shape(cursor, state, side)
            if side == "new" and state.kind is None:
                return self._block([], kind, dim)
            query = self._sql.SQL(
                f"SELECT {{}}, t.vector, t.modality FROM {{}} WHERE t.id = ANY($1::{self._id_type}[])"
            ).format(self._id, self._source(state, all_rows=True) if side == "old" else self._new(state))
            return self._block(cursor.execute(query, [self._parameter(ids)]).fetchall(), kind, dim)

    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            if side == "new" and state.kind is None:
                return 0
            source = self._source(state) if side == "old" else self._new(state)
            return int(one_row(cursor, self._sql.SQL("SELECT count(*) FROM {}").format(source))[0])

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have."""
        with self._client.reading() as cursor:
            state = read_state(cursor, self._table)
            query = self._sql.SQL("SELECT t.id::text FROM {} GROUP BY t.id HAVING count(*) > 1 LIMIT 10")
            return [str(id_) for (id_,) in cursor.execute(query.format(self._source(state))).fetchall()]

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors, from a single read."""
        sql, after = self._sql, None
        while True:
            with self._client.reading() as cursor:
                state = read_state(cursor, self._table)
                if state.kind is None:
                    break
                kind, dim = self._shape(cursor, state, "new")
                query = sql.SQL(
                    "SELECT {}, t.vector, t.modality, s.vector FROM {} LEFT JOIN {} s ON s.id = t.id {} ORDER BY t.id LIMIT {}"
                ).format(
                    self._id,
                    self._source(state),
                    self._table.identifier(self._table.side),
                    self._after(after),
                    sql.Literal(batch),
                )
                rows = cursor.execute(query, [] if after is None else [after]).fetchall()
            if not rows:
                return
            block = self._block([row[:3] for row in rows], self._table.kind, dim)
            has_new = np.array([row[3] is not None for row in rows])
            new = np.zeros((len(rows), dim), np.float32)
            if has_new.any():
                new[has_new] = decode_vectors([row[3] for row in rows if row[3] is not None], kind, self._place)
            yield PairedBlock(block.ids, block.vectors, new, has_new, block.modalities)
            after = block.cursor
        yield from super().scan_pairs(batch=batch)

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose row no longer exists or, unless the application wrote the new vector, has lost its old one."""
        sql, after = self._sql, None
        while True:
            with self._client.reading() as cursor:
                state = read_state(cursor, self._table)
                if state.kind is None:
                    return
                condition = "" if after is None else f"t.id > $1::{self._id_type} AND"
                query = sql.SQL(f"SELECT {{}} FROM {{}} t WHERE {condition} {{}} ORDER BY t.id LIMIT {{}}").format(
                    self._id, self._table.identifier(self._table.side), self._orphaned("t", state), sql.Literal(batch)
                )
                rows = cursor.execute(query, [] if after is None else [after]).fetchall()
            if not rows:
                return
            after = rows[-1][0]
            yield self._ids([id_ for (id_,) in rows])

    def _orphaned(self, alias: str, state: State) -> Composed:
        """Return an SQL condition for the rows of :meth:`orphans`, given the alias of the side table."""
        sql, table = self._sql, self._table
        return sql.SQL(
            "{s}.vector IS NOT NULL AND NOT EXISTS (SELECT FROM {rows} u WHERE u.{ids} = {s}.id AND ({s}.own OR u.{column} IS NOT NULL))"
        ).format(
            s=sql.Identifier(alias),
            rows=table.identifier(state.rows),
            ids=sql.Identifier(table.ids),
            column=sql.Identifier(table.column),
        )

    def close(self) -> None:
        """Close both connections."""
        self._client.close()


def _space(comment: str | None) -> Space:
    """Return the space in the comment on a column, which is JSON with the key that files of vectors use; an unknown space for any other comment."""
    try:
        facts = json.loads(comment or "")[SPACE_KEY]
        return Space.from_dict(json.loads(facts) if isinstance(facts, str) else facts)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return Space()
