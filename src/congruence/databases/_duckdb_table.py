"""Find the table and columns in a DuckDB file, quote names, and translate DuckDB's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    ParameterError,
    StorageError,
)

if TYPE_CHECKING:
    from types import ModuleType

    from congruence.databases._client_types import SQLConnection

__all__ = ["NEW", "OLD", "Table", "find_table", "literal", "quoted", "translated_errors"]

#: Suffixes of the additional column's name: new vectors before the switch, old ones after it.
NEW, OLD = "__congruence_new", "__congruence_old"

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_VECTOR = re.compile(r"(FLOAT|DOUBLE|TINYINT)\[\d*\]")


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string as an SQL literal, for statements that do not support parameters."""
    return "'" + text.replace("'", "''") + "'"


class Table(NamedTuple):
    """A table and the columns that a migration uses.

    Attributes
    ----------
    schema, name : str
    column : str
        Column from which readers take the vectors.
    ids, id_type : str
    modalities : str or None
    """

    schema: str
    name: str
    column: str
    ids: str
    id_type: str
    modalities: str | None

    @property
    def path(self) -> str:
        """The qualified table name in SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def id_text(self) -> str:
        """SQL expression for the ids as in a block: integers unchanged, UUIDs as text."""
        return f"CAST({quoted(self.ids)} AS VARCHAR)" if self.id_type == "UUID" else quoted(self.ids)


def find_table(
    connection: SQLConnection, place: str, table: str | None, column: str | None, ids: str | None, modality: str | None
) -> Table:
    """Return the table and its columns. Raises ParameterError if a name does not exist or must be specified, DatabaseError if a type is not supported."""
    tables = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = current_database() AND NOT internal AND NOT temporary"
    ).fetchall()
    matching = [name for name in tables if table is None or table in (name[1], ".".join(name))]
    if len(matching) != 1:
        names = ", ".join(sorted(name if schema == "main" else f"{schema}.{name}" for schema, name in tables)) or "none"
        raise ParameterError(
            f"Got table={table!r} for {place}, which has {names}; expected one of its tables. Pass table= with the name of one."
        )
    schema, name = matching[0]
    columns: dict[str, str] = dict(
        connection.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = ? ORDER BY column_index",
            [schema, name],
        ).fetchall()
    )
    for option, value in (("column", column), ("ids", ids), ("modality_column", modality)):
        if value is not None and value not in columns:
            raise ParameterError(
                f"Got {option}={value!r} for {name}; expected one of its columns, {', '.join(columns)}. Pass {option}= with the name of one."
            )
    if column is None:
        vectors = [
            field for field, kind in columns.items() if _VECTOR.fullmatch(kind) and not field.endswith((NEW, OLD))
        ]
        # Small integers need not be vectors, so a column of floats is preferred.
        column = _only_column([field for field in vectors if not columns[field].startswith("TINYINT")] or vectors, name)
    if not _VECTOR.fullmatch(columns[column]):
        raise DatabaseError(
            f"Got column {column!r} of {columns[column]}; expected FLOAT[n], DOUBLE[n] or TINYINT[n], or these without a width. Pass another column=."
        )
    if ids is None:
        keys = connection.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = ? AND constraint_type = 'PRIMARY KEY'",
            [schema, name],
        ).fetchall()
        single = [key[0][0] for key in keys if len(key[0]) == 1]
        ids = single[0] if single else "id" if "id" in columns else None
    if ids is None:
        raise ParameterError(
            f"Got {name} without a primary key of one column or a column id; expected a column of ids. Pass ids= with its name."
        )
    if columns[ids] not in (*_INTEGERS, "VARCHAR", "UUID"):
        raise DatabaseError(
            f"Got ids of {columns[ids]} in {ids!r}; expected integers, strings or UUIDs. Pass another column as ids=."
        )
    return Table(schema, name, column, ids, columns[ids], modality)


def _only_column(vectors: list[str], table: str) -> str:
    if len(vectors) != 1:
        names = ", ".join(vectors) or "none"
        raise ParameterError(
            f"Got {len(vectors)} columns of vectors in {table} ({names}); expected exactly one, or the name of one. Pass column=."
        )
    return vectors[0]


@contextmanager
def translated_errors(place: str, rows: str | None) -> Iterator[None]:
    """Translate DuckDB's errors to those of this library."""
    import duckdb

    try:
        yield
    except CongruenceError:
        raise
    except duckdb.Error as error:
        raise _translate(duckdb, error, place, rows) from error


def _translate(duckdb: ModuleType, error: Exception, place: str, rows: str | None) -> CongruenceError:
    text = str(error)
    reason = (text.splitlines() or [""])[0][:500]
    if "No space left" in text:
        return StorageError(f"Got a full disk at {place} ({reason}); expected free space. Free disk space there.")
    if "set lock" in text or isinstance(error, (duckdb.TransactionException, duckdb.InterruptException)):
        return DatabaseUnavailableError(
            f"Got {place} in use ({reason}); expected no other process to use it. Close the other program, or try again."
        )
    if rows is not None and isinstance(
        error, (duckdb.ParserException, duckdb.BinderException, duckdb.ConversionException)
    ):
        return ParameterError(
            f"Got the condition {rows!r}, which DuckDB rejects ({reason}); expected a condition for WHERE. Pass rows=… in DuckDB's SQL."
        )
    if re.search(r"not a valid DuckDB|corrupt|checksum|serializ", text, re.IGNORECASE):
        return CorruptFileError(
            f"Got a damaged file, {place} ({reason}); expected a DuckDB database. Restore it from a backup."
        )
    if isinstance(error, duckdb.IOException):
        return FileError(
            f"Got an error while reading or writing {place} ({reason}); expected a readable and writable file. Check the path and its permissions."
        )
    if "cannot drop this column" in text.lower():
        return DatabaseError(
            f"Got {place}, in which DuckDB cannot drop a column that precedes a column of a key ({reason}); expected no key after it. Copy the table "
            "without the column, or keep the old vectors."
        )
    return DatabaseError(
        f"Got an error from DuckDB for {place} ({reason}); expected the statement to succeed. Fix the cause in DuckDB's message, and run it again."
    )
