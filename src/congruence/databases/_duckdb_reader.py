"""Read a DuckDB table for a migration: the old and the new vectors, and the state of the migration."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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
from congruence.databases._duckdb_table import NEW, OLD, Table, find_table, quoted, translated_errors
from congruence.databases._metadata import MARK_KEY, space_in
from congruence.databases._stage_errors import no_new_vectors
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["DuckDBReader"]

#: Number of row ids that are searched at once for the next row after an empty range.
_GAP_ROWS = 2**20


class DuckDBReader(Database):
    """Read-only part of :class:`congruence.databases.duckdb.DuckDB`, with the same parameters."""

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
        duckdb = require("duckdb", extra="duckdb")
        text = address.text[len("duckdb://") :] if address.scheme == "duckdb" else address.text
        self._place, self._rows = Path(text), rows
        if not self._place.is_file():
            raise ParameterError(
                f"Got {address.shown}, where there is no file; expected a DuckDB database. Check the path."
            )
        with self._errors():
            self._connection = duckdb.connect(str(self._place))
        try:
            with self._errors():
                self._table: Table = find_table(self._connection, str(self._place), table, column, ids, modality_column)
            if rows is not None:
                self._check_condition(rows)
        except BaseException:
            self.close()
            raise

    def reader(self) -> Self:
        """Return a reader with its own cursor, since a DuckDB connection serves one thread at a time."""
        other = copy(self)
        with self._errors():
            other._connection = self._connection.cursor()
        return other

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(str(self._place), self._rows)

    def _check_condition(self, rows: str) -> None:
        """Raise ParameterError if the condition contains more than one statement, or DuckDB rejects it."""
        with self._errors():
            # The line break ends a comment in the condition, which would otherwise hide the bracket.
            query = f"SELECT count(*) FROM {self._table.path} WHERE ({rows}\n)"
            statements = self._connection.extract_statements(query)
            if len(statements) != 1 or str(statements[0].type) != "StatementType.SELECT":
                raise ParameterError(
                    f"Got rows={rows!r}, which is more than a condition; expected a condition for WHERE. Pass rows=… with a single condition."
                )
            self._read(f"{query} AND false")

    # ---- description -------------------------------------------------------------------------------------------------

    def _read(self, query: str, *values: object) -> pa.Table:
        """Run a query, and return its complete result."""
        with self._errors():
            return self._connection.sql(query, params=list(values)).to_arrow_table()

    def _columns(self) -> dict[str, tuple[str, str]]:
        """Return the current type and comment of each column, by name."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT column_name, data_type, coalesce(comment, '') FROM duckdb_columns() WHERE database_name = current_database() "
                "AND schema_name = ? AND table_name = ? ORDER BY column_index",
                [self._table.schema, self._table.name],
            ).fetchall()
        return {name: (kind, comment) for name, kind, comment in rows}

    def _names(self, names: Mapping[str, object] | None = None) -> tuple[Stage, str, str]:
        """Return the stage and the names of the old and the new column, given the result of :meth:`_columns` (by default its current one)."""
        shown, names = self._table.column, self._columns() if names is None else names
        new, old = shown + NEW, shown + OLD
        if shown not in names or {new, old} <= set(names):
            raise DatabaseError(
                f"Got columns {', '.join(sorted({shown, new, old} & set(names)))} in {self._place}; expected {shown} and one of {new} "
                f"and {old} at most. Rename or drop the columns that another program created."
            )
        if old in names:
            return Stage.SWITCHED, old, shown
        return (Stage.PREPARED if new in names else Stage.UNTOUCHED), shown, new

    def _new_facts(self, columns: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Any]:
        """Return the width and the note from the comment of the new column."""
        columns = self._columns() if columns is None else columns
        try:
            metadata = json.loads(columns[self._names(columns)[2]][1])[MARK_KEY]
            return {
                "dim": int(metadata["dim"]),
                "note": {str(key): str(value) for key, value in metadata["note"].items()},
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DatabaseError(
                f"Got new vectors in {self._place} without this library's comment on their column; expected that comment. Drop the column, or "
                "restore the comment."
            ) from error

    def _side(self, side: Side) -> tuple[str, int]:
        """Return the column of a side and its width. Raises MigrationError if there are no new vectors."""
        columns = self._columns()  # one query only: this runs for each block that is written or read
        stage, old, new = self._names(columns)
        if side == "new":
            if stage is Stage.UNTOUCHED:
                raise no_new_vectors(str(self._place))
            return new, self._new_facts(columns)["dim"]
        kind = columns[old][0]
        width = kind.rpartition("[")[2].rstrip("]")
        if not width:
            found = self._read(
                f"SELECT len({quoted(old)}) AS n FROM {self._table.path} WHERE {quoted(old)} IS NOT NULL LIMIT 1"
            )
            width = str(found["n"][0].as_py() if len(found) else 0)
        return old, int(width)

    def _where(self, *conditions: str) -> str:
        all_conditions = [*([] if self._rows is None else [f"({self._rows}\n)"]), *conditions]
        return f"WHERE {' AND '.join(all_conditions)}" if all_conditions else ""

    def info(self) -> DatabaseInfo:
        """Describe the old vectors; see :meth:`Database.info`."""
        old, dim = self._side("old")
        columns = self._columns()
        own = {old, self._names(columns)[2], self._table.ids}
        counts = self._read(
            f"SELECT count(*) AS rows, count({quoted(old)}) AS full FROM {self._table.path} {self._where()}"
        )
        rows, full = counts["rows"][0].as_py(), counts["full"][0].as_py()
        try:
            metadata = json.loads(columns[old][1])
        except ValueError:
            metadata = {}
        return DatabaseInfo(
            place=f"{self._place}, {self._table.schema}.{self._table.name}",
            rows=full,
            rows_without=rows - full,
            dim=dim,
            element_type="int8" if columns[old][0].startswith("TINYINT") else "float32",
            id_type={"VARCHAR": "text", "UUID": "uuid"}.get(self._table.id_type, "int"),
            columns=tuple(name for name in columns if name not in own),
            space=space_in(metadata if isinstance(metadata, dict) else {}, str(self._place)),
            free_bytes=shutil.disk_usage(self._place.absolute().parent).free,
        )

    def stage(self) -> Stage:
        """Return the state of the migration; see :meth:`Database.stage`."""
        return self._names()[0]

    def note(self) -> Mapping[str, str]:
        """Return the note that :meth:`prepare` stored in the comment of the new column."""
        return {} if self.stage() is Stage.UNTOUCHED else self._new_facts()["note"]

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _vectors(self, column: str, dim: int) -> str:
        return f"CAST({quoted(column)} AS FLOAT[{dim}])"

    def _selected(self, *columns: tuple[str, int]) -> str:
        modalities = [f"CAST({quoted(self._table.modalities)} AS VARCHAR)"] if self._table.modalities else []
        expressions = [self._table.id_text, *(self._vectors(*column) for column in columns), *modalities]
        return ", ".join(f"{expression} AS c{k}" for k, expression in enumerate(expressions))

    def _pages(
        self, columns: list[tuple[str, int]], after: Cursor | None, batch: int
    ) -> Iterator[tuple[pa.Table, Cursor]]:
        """Yield rows by ranges of row ids, with one query per range, up to the last row id at the start of the scan.

        In a table with a primary key, an update moves the row to the end of the table, beyond that last row id: no row is read twice. A single
        transaction for the whole scan would keep everything that is written meanwhile in memory.
        """
        start: int = -1
        stop: int | None = self._read(f"SELECT max(rowid) AS last FROM {self._table.path}")["last"][0].as_py()
        if after is not None:
            if not (isinstance(after, list) and len(after) == 2 and all(type(number) is int for number in after)):
                raise ParameterError(
                    f"Got cursor {after!r}; expected two integers. Pass a cursor from a scan of this table."
                )
            start, stop = int(after[0]), int(after[1])
        full = f"{quoted(columns[0][0])} IS NOT NULL"
        rows = f"FROM {self._table.path} {self._where('rowid > ?', 'rowid <= ?', full)}"
        query = f"SELECT {self._selected(*columns)} {rows}"
        while stop is not None and start < stop:
            end = min(start + batch, stop)
            page = self._read(query, start, end)
            start = end
            if len(page):
                yield page.combine_chunks(), [start, stop]
            elif start < stop:  # rows that moved or do not satisfy the condition leave many empty ranges
                end = min(start + _GAP_ROWS, stop)
                following = self._read(f"SELECT min(rowid) AS first {rows}", start, end)["first"][0].as_py()
                start = end if following is None else following - 1

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield rows in the order of their row ids; see :meth:`Database.scan`."""
        self.flush()
        for page, cursor in self._pages([self._side(side)], after, batch):
            yield self._block(page, cursor)

    def _block(self, page: pa.Table, cursor: Cursor) -> Block:
        return Block(self._ids_of(page), _matrix(page["c1"]), self._modalities_of(page), cursor)

    def _ids_of(self, page: pa.Table) -> pa.Array:
        column = page["c0"]
        if column.null_count:
            raise DatabaseError(
                f"Got rows without {self._table.ids} in {self._place}; expected an id in each row. Fill them in, or exclude these rows "
                "with a condition."
            )
        if column.type == pa.uint64():
            return _combined(column)
        return _combined(column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.large_string()))

    def _modalities_of(self, page: pa.Table) -> pa.Array | None:
        return _combined(page.column(page.num_columns - 1).cast(pa.large_string())) if self._table.modalities else None

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return rows by id; see :meth:`Database.fetch`."""
        self.flush()
        column, dim = self._side(side)
        with self._registered(pa.table({"id": ids})) as name:
            page = self._read(
                f"SELECT {self._selected((column, dim))} FROM {self._table.path} WHERE {quoted(column)} IS NOT NULL AND "
                f"{quoted(self._table.ids)} IN (SELECT TRY_CAST(id AS {self._table.id_type}) FROM {name})"
            ).combine_chunks()
        return self._block(page, 0)

    @contextmanager
    def _registered(self, table: pa.Table) -> Iterator[str]:
        """Make an Arrow table available to queries under the name that is yielded."""
        self._connection.register("congruence_given", table)
        try:
            yield "congruence_given"
        finally:
            self._connection.unregister("congruence_given")

    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""
        self.flush()
        column, _ = self._side(side)
        return int(
            self._read(f"SELECT count({quoted(column)}) AS n FROM {self._table.path} {self._where()}")["n"][0].as_py()
        )

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield rows with both vectors, from a single read."""
        self.flush()
        for page, _ in self._pages([self._side("old"), self._side("new")], None, batch):
            has_new = page["c2"].is_valid().to_numpy()
            yield PairedBlock(
                self._ids_of(page), _matrix(page["c1"]), _matrix(page["c2"]), has_new, self._modalities_of(page)
            )

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have."""
        column = quoted(self._table.ids)
        found = self._read(
            f"SELECT CAST({column} AS VARCHAR) AS id FROM {self._table.path} {self._where()} GROUP BY {column} HAVING count(*) > 1 LIMIT 10"
        )
        return [str(one) for one in found["id"].to_pylist()]

    @abstractmethod
    def flush(self) -> None:
        """Write all pending vectors to the table; methods that read it call this first."""


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it has one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of vectors as a matrix, with zeros for null vectors."""
    array = _combined(column)
    values, width = array.values, array.type.list_size
    flat = np.frombuffer(values.buffers()[1] or b"", np.float32, len(values), 4 * values.offset).reshape(-1, width)
    rows = flat[array.offset : array.offset + len(array)]
    has = array.is_valid().to_numpy(zero_copy_only=False)
    if values.null_count:  # null components become NaN
        valid = values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, width)
        rows = np.where(valid[array.offset : array.offset + len(array)], rows, np.float32("nan"))
    return np.ascontiguousarray(rows if has.all() else np.where(has[:, None], rows, np.float32(0)))
