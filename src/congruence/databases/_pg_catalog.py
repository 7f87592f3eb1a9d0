"""Find the vectors in PostgreSQL and the state of their migration, from the system catalog."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from congruence._utils.optional import require
from congruence.databases._base import Stage
from congruence.databases._metadata import MARK_KEY
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from psycopg.sql import Composed, Identifier

    from congruence.databases._client_types import Cursor

__all__ = ["ID_TYPES", "State", "Table", "find_table", "read_state", "side_comment"]

#: ``id_type`` of :class:`congruence.databases.DatabaseInfo`, by PostgreSQL type.
ID_TYPES = {"int2": "int", "int4": "int", "int8": "int", "text": "text", "varchar": "text", "uuid": "uuid"}

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
    SELECT c.oid, n.nspname, d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid JOIN pg_namespace n ON n.oid = c.relnamespace
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
    """Return a name for an object that belongs to a table, unique within PostgreSQL's limit of 63 bytes, to which longer names are truncated."""
    whole = "__".join([*names, suffix])
    if len(whole.encode()) <= 63:
        return whole
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
    room = 63 - len(suffix) - len(digest) - 3
    return f"{names[0].encode()[:room].decode(errors='ignore')}_{digest}__{suffix}"


@dataclass(frozen=True)
class Table:
    """The user's table, and the names of the objects that a migration creates for it.

    Attributes
    ----------
    schema, name, column, ids : str
        Names before the migration.
    modality : str or None
    oid, attnum : int
        Object id of the table and number of its column of vectors; both survive a rename.
    kind : str
        vector, halfvec or bit.
    dim : int or None
        None if the column is declared without a width.
    id_kind : str
        PostgreSQL type of the ids.
    others : tuple of str
        Other columns of the table.
    extension : str
        Schema in which pgvector is installed.
    """

    schema: str
    name: str
    column: str
    ids: str
    modality: str | None
    oid: int
    attnum: int
    kind: str
    dim: int | None
    id_kind: str
    others: tuple[str, ...]
    extension: str

    @property
    def renamed(self) -> str:
        """Name of the table while a view has its original name."""
        return _unique_name(self.name, suffix="congruence_old")

    @property
    def side(self) -> str:
        """Name of the table of new vectors, with columns id, vector, and own: whether the application wrote the vector after the switch."""
        return _unique_name(self.name, self.column, suffix="congruence_new")

    @property
    def writer(self) -> str:
        """Name of the view's trigger function."""
        return _unique_name(self.name, self.column, suffix="congruence_write")

    @property
    def finder(self) -> str:
        """Name of the function that returns a row's new vector while the column is rewritten."""
        return _unique_name(self.name, self.column, suffix="congruence_find")

    def identifier(self, name: str) -> Identifier:
        """Return the quoted name of an object in the table's schema."""
        return require("psycopg.sql", extra="pgvector").Identifier(self.schema, name)

    def vector_type(self, kind: str, dim: int) -> Composed:
        """Return a vector type as SQL."""
        sql = require("psycopg.sql", extra="pgvector")
        name = sql.Identifier("pg_catalog" if kind == "bit" else self.extension, kind)
        return sql.SQL("{}({})").format(name, sql.SQL(str(int(dim))))


@dataclass(frozen=True)
class State:
    """State of a migration.

    Attributes
    ----------
    stage : Stage
    rows : str
        Current name of the table with the user's rows.
    kind, dim : str and int, or None
        PostgreSQL type and width of the new vectors.
    note : mapping
    required : bool
        Whether the column of vectors was NOT NULL before the switch.
    """

    stage: Stage
    rows: str
    kind: str | None = None
    dim: int | None = None
    note: Mapping[str, str] = field(default_factory=dict)
    required: bool = False


def side_comment(table: Table, note: Mapping[str, str], required: bool = False) -> str:
    """Return the comment for the side table."""
    facts = {
        "table": table.name,
        "column": table.column,
        "renamed": table.renamed,
        "note": dict(note),
        "required": required,
    }
    return json.dumps({MARK_KEY: facts})


def _facts(comment: str | None) -> dict[str, Any]:
    """Return the facts that :func:`side_comment` put in a comment; empty for any other comment."""
    try:
        facts = json.loads(comment or "")[MARK_KEY]
        return facts if isinstance(facts, dict) else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


class _VectorColumn(NamedTuple):
    """A row of :data:`_COLUMNS`, with the table's name before a migration."""

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
    cursor: Cursor, place: str, table: str | None, column: str | None, ids: str | None, modality: str | None
) -> Table:
    """Find the table and its columns. Raises ParameterError if a name does not exist or must be specified, or the type of the ids is not supported."""
    sides = cursor.execute(_SIDES, [f'{{"{MARK_KEY}"%']).fetchall()
    side_oids = {oid for oid, _, _ in sides}
    names = {
        (schema, facts.get("renamed")): str(facts.get("table")) for _, schema, text in sides for facts in [_facts(text)]
    }
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
            f"Got table={table!r} for {place}; expected one of {known or 'none, since no table has a vector or halfvec column'}. "
            "Pass the name of a table (table=)."
        )
    if column is not None:
        columns = [row.column for row in chosen]
        chosen = [row for row in chosen if row.column == column]
        if not chosen:
            raise ParameterError(
                f"Got column={column!r}; expected one of {', '.join(columns)}. Pass the name of a column of vectors (column=)."
            )
    if len(chosen) > 1:
        raise ParameterError(
            f"Got several columns of vectors: {', '.join(row.column for row in chosen)}; expected one. Pass its name (column=)."
        )
    schema, name, oid, _, column, attnum, kind, width, extension = chosen[0]
    types: dict[str, str] = dict(cursor.execute(_ATTRIBUTES, [oid]).fetchall())
    ids = _find_ids(cursor, oid, ids, types)
    if modality is not None and modality not in types:
        raise ParameterError(
            f"Got modality_column={modality!r}; expected one of {', '.join(types)}. Pass the name of a column (modality_column=)."
        )
    others = tuple(other for other in types if other not in (ids, column))
    dim = width if width > 0 else None
    return Table(schema, name, column, ids, modality, oid, attnum, kind, dim, types[ids], others, extension)


def _find_ids(cursor: Cursor, oid: int, ids: str | None, types: Mapping[str, str]) -> str:
    if ids is None:
        key = [name for (name,) in cursor.execute(_PRIMARY_KEY, [oid]).fetchall()]
        key = key or [name for name in types if name == "id"]
        if len(key) != 1:
            raise ParameterError(
                f"Got a primary key of {len(key)} columns; expected one. Pass the column of the ids (ids=), or add one with a unique index."
            )
        ids = key[0]
    if ids not in types:
        raise ParameterError(f"Got ids={ids!r}; expected one of {', '.join(types)}. Pass the column of the ids (ids=).")
    if types[ids] not in ID_TYPES:
        raise ParameterError(
            f"Got ids of type {types[ids]} in {ids!r}; expected one of {', '.join(ID_TYPES)}. Pass another column (ids=)."
        )
    return ids


def read_state(cursor: Cursor, table: Table) -> State:
    """Return the state of the migration, from the catalog only. Raises DatabaseError if the table no longer exists under its name."""
    row = cursor.execute(_STATE, [table.schema, table.name, table.renamed, table.side]).fetchone()
    relation, renamed, comment, vector_type = row or (None, None, None, None)
    facts = _facts(comment)
    switched = relation == "v" and renamed == table.oid and bool(facts)
    if not switched and relation not in ("r", "p"):
        raise DatabaseError(
            f"Got no table {table.schema}.{table.name}; expected the one that was opened. Open the database again with the table's current name."
        )
    if not facts or vector_type is None:
        return State(Stage.UNTOUCHED, table.name)
    kind, dim = vector_type.split(" ")
    stage, rows = (Stage.SWITCHED, table.renamed) if switched else (Stage.PREPARED, table.name)
    note = {str(key): str(value) for key, value in (facts.get("note") or {}).items()}
    return State(stage, rows, kind, int(dim), note, facts.get("required") is True)
