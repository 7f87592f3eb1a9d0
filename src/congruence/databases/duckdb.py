"""DuckDB tables: the new vectors are a second column of the same rows; the switch renames both in a transaction."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence._utils.refusals import describe_refusal
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import NEW, OLD, Address, Block, Cursor, Name, NewVectors, Stage, VectorSide, quoted
from congruence.databases._columns import ColumnDatabase, choose_columns
from congruence.errors import (
    CongruenceError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    MigrationError,
    ParameterError,
    ShapeError,
    StorageError,
)
from congruence.io import SPACE_KEY

_BLOCK, _EMPTY = 2**18, 2**22  # bytes of a block of a file, and of the few that are begun
_GROUP_ROWS = 122_880  # of DuckDB's storage
_GAP_ROWS = 2**20  # number of row ids that are searched at once for the next row after an empty range

#: Errors of the system that a write may end with.
_DISK = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EROFS, errno.EIO)

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_VECTOR = re.compile(r"(FLOAT|DOUBLE|TINYINT)\[\d*\]")

#: Conditions for the catalog's functions: of this file, and of a table.
_HERE = "WHERE database_name = current_database()"
_OF_TABLE = f"{_HERE} AND schema_name = $1 AND table_name = $2"

#: The steps that are left, by stage.
_LEFT = {Stage.UNTOUCHED: ("run",), Stage.PREPARED: ("switch", "discard"), Stage.SWITCHED: ("rollback", "drop-old")}


_ONWARD = (("switch", "show new"), ("rollback", "show old"), ("drop-old", "show new"), ("drop-old", "drop old"))

#: The changes of the steps that are left, by stage, each path up to its end.
_PATHS = {
    Stage.UNTOUCHED: ((("run", "create"), *_ONWARD),),
    Stage.PREPARED: (_ONWARD, (("discard", "drop new"),)),
    Stage.SWITCHED: ((("rollback", "show old"), ("rollback", "drop new")), (("drop-old", "drop old"),)),
}


class DuckColumn(NamedTuple):
    """A column as DuckDB's catalog describes it."""

    type: str
    comment: str
    required: bool  # NOT NULL
    default: str | None


class DuckDB(ColumnDatabase):
    """A table of a DuckDB file, whose address is its path or ``duckdb://PATH``; only one process can have it open.

    Vectors are ``FLOAT[n]``, ``DOUBLE[n]``, ``FLOAT[]``, ``DOUBLE[]``, or ``TINYINT[n]`` for int8. ``rows`` is an SQL
    condition, the caller's own and trusted; the only check is that it forms a single query. DuckDB cannot rename a
    column of a table with indexes, so the switch drops and recreates these in its transaction. NOT NULL, the default
    and the comment move with the name that readers use; the hidden column has this library's comment.
    """

    kind = "duckdb"
    searches_by = "cosine"
    capabilities = base.Capabilities(
        container="column",
        concurrent_writes=False,
        follows_deletes=True,
        filters="DuckDB SQL",
        element_types=("float32", "int8"),
    )

    rows_move = True  # UPDATE appends the rows again; once their first copies are freed, all others get lower row ids
    _rehearsing = False  # whether a transaction is open that will be undone
    _rehearsed: tuple[object, dict[object, list[tuple[str, str]]]] = None, {}  # a state, and obstacles by path

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        self._duckdb = require("duckdb", extra="duckdb")
        text = address.text[len("duckdb://") :] if address.scheme == "duckdb" else address.text
        self._place, self._rows = Path(text), rows
        self._subject = self._place
        self._file = self._place.resolve()  # DuckDB's log is next to the file itself, not to a link
        self._folder = self._file.parent
        if not self._place.is_file():
            raise ParameterError(f"There is no file at {address.shown}.", "Check the path.")
        with self._errors():
            self._connection = self._duckdb.connect(str(self._place))
            self._table = self._find_table(table, column, ids, modality)
            self._column = self._table.column
        if rows is not None:
            with self._errors():
                # The line break ends a comment in the condition, which would otherwise hide the bracket.
                query = f"SELECT count(*) FROM {self._table.path} WHERE ({rows}\n)"
                statements = self._connection.extract_statements(query)
                if len(statements) != 1 or str(statements[0].type) != "StatementType.SELECT":
                    example = "a single condition for WHERE"
                    raise refusals.refusal("condition", rows, "more than a condition", example=example)
                self._read(f"{query} AND false")

    def reader(self) -> Self:
        other = copy(self)
        other._pending = ()
        with self._errors():
            other._connection = self._connection.cursor()
        return other

    def bytes_needed(self, info: base.DatabaseInfo, dim: int, element_type: str) -> int:
        """Return the size of all rows, which DuckDB writes again with their new vectors, and of its log of a flush."""
        stored = "count(DISTINCT block_id) AS n FROM pragma_storage_info(?) WHERE block_id >= 0"
        blocks = self._number(stored, self._table.path) or 0
        double = 1 if self.exact else 2
        new, old = (double * base.bytes_a_row(*kind) for kind in ((dim, element_type), (info.dim, info.element_type)))
        rows = info.rows * new + max(info.rows * old, blocks * _BLOCK)
        flushed = min(self._most_pending // (4 * dim), info.rows)
        log = rows * flushed / info.rows if flushed < _GROUP_ROWS else 0  # whole groups are not logged
        return int(1.2 * rows + 1.1 * log) + _EMPTY

    def version(self) -> object | None:
        """Return when the file and its log were written: this process alone can write, on other connections, too."""
        return base.files_version([self._file, *sorted(self._file.parent.glob(f"{escape(self._file.name)}?*"))])

    def _find_table(self, table: Name, column: Name, ids: Name, modality: Name) -> DuckTable:
        query = f"SELECT schema_name, table_name FROM duckdb_tables() {_HERE} AND NOT internal AND NOT temporary"
        tables = self._connection.execute(query).fetchall()
        names = {name if schema == "main" else f"{schema}.{name}": (schema, name) for schema, name in tables}
        table = refusals.only_name(names, "tables", self._place, "table") if table is None else table
        matching = [pair for pair in tables if table in (pair[1], ".".join(pair))]
        if len(matching) != 1:
            matching = [names[str(refusals.check_name(table, sorted(names), self._place, "table"))]]
        schema, name = matching[0]
        columns = {one: facts.type for one, facts in self._columns_of(schema, name).items()}
        if hidden := [one for one in columns if one.lower() == "rowid"]:
            raise DatabaseError(f"{name} has a column {hidden[0]!r}, which hides DuckDB's own row ids.", "Rename it.")
        query = f"SELECT constraint_column_names FROM duckdb_constraints() {_OF_TABLE} AND constraint_type = $3"
        keys = self._connection.execute(query, [schema, name, "PRIMARY KEY"]).fetchall()
        vectors = [one for one, kind in columns.items() if _VECTOR.fullmatch(kind)]
        coded = [one for one in vectors if columns[one].startswith("TINYINT")]
        options: dict[str, Any] = {"vectors": vectors, "coded": coded, "keys": keys[0][0] if keys else []}
        column, ids = choose_columns(columns, name, column, ids, modality, **options)
        refusals.refuse(columns[ids] not in (*_INTEGERS, "VARCHAR", "UUID"), "ids", ids, kind=columns[ids])
        return DuckTable(schema, name, column, ids, columns[ids], modality)

    def _translate(self, error: Exception) -> CongruenceError | None:
        duckdb, place, text = self._duckdb, self._place, str(error)
        if not isinstance(error, duckdb.Error):
            return None
        reason = (text.splitlines() or [""])[0][:500]
        for number in _DISK:  # DuckDB reports no numbers
            if os.strerror(number) in text:
                refused = OSError(number, os.strerror(number))
                return StorageError(describe_refusal(refused, f"from the disk at {place}"))
        if "set lock" in text or isinstance(error, (duckdb.TransactionException, duckdb.InterruptException)):
            return refusals.refusal("in use", place, reason)
        condition = (duckdb.ParserException, duckdb.BinderException, duckdb.ConversionException)
        if self._rows is not None and isinstance(error, condition):
            return refusals.refusal("condition", self._rows, reason, example="a condition for WHERE in DuckDB's SQL")
        if re.search(r"not a valid DuckDB|corrupt|checksum|serializ", text, re.IGNORECASE):
            return refusals.refusal("damaged", place, reason)
        if isinstance(error, duckdb.IOException):
            return FileError(f"{place} cannot be read or written ({reason}).", "Check the path and its permissions.")
        return refusals.refusal("rejected", place, reason)

    def _read(self, query: str, *values: object) -> pa.Table:
        with self._errors():
            return self._connection.sql(query, params=list(values)).to_arrow_table()

    def _run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        around = ([], []) if self._rehearsing else (["BEGIN"], ["COMMIT"])
        with self._errors():
            try:
                for statement in (*around[0], *statements, *around[1]):
                    self._connection.execute(statement)
            except BaseException:
                if not self._rehearsing:
                    self._undo()
                raise

    def _undo(self) -> None:
        with suppress(self._duckdb.Error):  # raised for a transaction that it has already ended
            self._connection.execute("ROLLBACK")

    def _columns_of(self, schema: str, table: str) -> dict[str, DuckColumn]:
        facts = "column_name, data_type, coalesce(comment, ''), NOT is_nullable, column_default"
        query = f"SELECT {facts} FROM duckdb_columns() {_OF_TABLE} ORDER BY column_index"
        with self._errors():
            rows = self._connection.execute(query, [schema, table]).fetchall()
        return {name: DuckColumn(*facts) for name, *facts in rows}

    def _columns(self) -> dict[str, DuckColumn]:
        return self._columns_of(self._table.schema, self._table.name)

    def _column_names(self) -> Collection[str]:
        return self._columns()

    def _made(self) -> NewVectors:
        return self._made_of(self._columns())

    def _mark_of(self, columns: Mapping[str, DuckColumn]) -> dict[str, Any]:
        """Return what the comment of the hidden column says: width and note, and the old column's own comment."""
        stage, old, new = self._names(columns)
        return self._mark_in(columns[old if stage is Stage.SWITCHED else new].comment)

    def _made_of(self, columns: Mapping[str, DuckColumn]) -> NewVectors:
        mark, kind = self._mark_of(columns), columns[self._name("new", columns)].type
        return NewVectors(mark["dim"], "int8" if kind.startswith("TINYINT") else "float32", mark["note"])

    def _side(self, side: VectorSide) -> tuple[str, int]:
        columns = self._columns()  # one query only: this runs for each block that is written or read
        if side == "new":
            return self._name("new", columns), self._made_of(columns).dim
        old = self._name("old", columns)
        width = columns[old].type.rpartition("[")[2].rstrip("]")
        if not width:
            found = self._read(
                f"SELECT len({quoted(old)}) AS n FROM {self._table.path} WHERE len({quoted(old)}) > 0 LIMIT 1"
            )
            if not len(found):
                raise ShapeError(f"No rows with a vector in {self._place}.", "Check the table and the column.")
            width = str(found["n"][0].as_py())
        return old, int(width)

    def _where(self, *conditions: str) -> str:
        all_conditions = [*([] if self._rows is None else [f"({self._rows}\n)"]), *conditions]
        return f"WHERE {' AND '.join(all_conditions)}" if all_conditions else ""

    def info(self) -> base.DatabaseInfo:
        old, dim = self._side("old")
        columns = self._columns()
        stage, _, new = self._names(columns)
        others = [name for name in columns if name not in (old, new)]
        comment = self._mark_of(columns).get("comment", "") if stage is Stage.SWITCHED else columns[old].comment
        several = any(_VECTOR.fullmatch(columns[name].type) for name in others)
        full, rows = self.count(), self._number(f"count(*) AS n FROM {self._table.path} {self._where()}")
        return base.DatabaseInfo(
            place=f"{self._place}, {self._table.schema}.{self._table.name}" + (f".{self._column}" if several else ""),
            rows=full,
            rows_without=rows - full,
            dim=dim,
            element_type="int8" if columns[old].type.startswith("TINYINT") else "float32",
            id_type={"VARCHAR": "text", "UUID": "uuid"}.get(self._table.id_type, "int"),
            space=base.space_in(comment, self._place),
        )

    def _vectors(self, column: str, dim: int) -> str:
        return f"CAST({quoted(column)} AS FLOAT[{dim}])"

    def _selected(self, *columns: tuple[str, int]) -> str:
        modalities = [f"CAST({quoted(self._table.modalities)} AS VARCHAR)"] if self._table.modalities else []
        expressions = [self._table.id_text, *(self._vectors(*column) for column in columns), *modalities]
        return ", ".join(f"{expression} AS c{k}" for k, expression in enumerate(expressions))

    def _pages(
        self, columns: list[tuple[str, int]], after: Cursor | None, batch: int, *conditions: str
    ) -> Iterator[tuple[pa.Table, Cursor]]:
        """Yield rows by ranges of row ids, with one query per range, up to the last row id at the start of the scan."""
        start: int = -1
        stop: int | None = self._number(f"max(rowid) AS n FROM {self._table.path}")
        if after is not None:
            position: Any = after
            good = isinstance(position, list) and [type(number) for number in position] == [int, int]
            refusals.refuse(not good, "cursor", after)
            start, stop = position
        full = f"{quoted(columns[0][0])} IS NOT NULL"
        rows = f"FROM {self._table.path} {self._where('rowid > ?', 'rowid <= ?', full, *conditions)}"
        query = f"SELECT {self._selected(*columns)} {rows}"
        while stop is not None and start < stop:
            end = min(start + batch, stop)
            page = self._read(query, start, end)
            start = end
            if len(page):
                yield page.combine_chunks(), [start, stop]
            elif start < stop:  # rows that moved or do not satisfy the condition leave many empty ranges
                end = min(start + _GAP_ROWS, stop)
                following = self._number(f"min(rowid) AS n {rows}", start, end)
                start = end if following is None else following - 1

    def scan(
        self, side: VectorSide = "old", *, after: Cursor | None = None, batch: int = base.BATCH
    ) -> Iterator[Block]:
        for page, cursor in self._pages([self._side(side)], after, batch):
            yield self._block(page, cursor)

    def unmapped(self, *, after: Cursor | None = None, batch: int = base.BATCH) -> Iterator[Block]:
        old, lacking = self._side("old"), f"{quoted(self._name('new'))} IS NULL"
        for page, cursor in self._pages([old], after, batch, lacking):
            yield self._block(page, cursor)

    def _block(self, page: pa.Table, cursor: Cursor) -> Block:
        last = page.column(page.num_columns - 1)
        modalities = _combined(last.cast(pa.large_string())) if self._table.modalities else None
        return Block(self._ids_of(page), _matrix(page["c1"]), modalities, cursor)

    def _ids_of(self, page: pa.Table) -> pa.Array:
        refusals.check_ids(page["c0"], self._table.ids, self._place)
        return base.as_ids(_combined(page["c0"]))

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        column, dim = self._side(side)
        with self._registered(pa.table({"id": ids})) as name:
            page = self._read(
                f"SELECT {self._selected((column, dim))} FROM {self._table.path} WHERE {quoted(column)} IS NOT "
                f"NULL AND {quoted(self._table.ids)} IN (SELECT TRY_CAST(id AS {self._table.id_type}) FROM {name})"
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

    def _number(self, what: str, *values: object) -> Any:
        """Return the number ``n`` that a query selects."""
        return self._read(f"SELECT {what}", *values)["n"][0].as_py()

    def count(self, side: VectorSide = "old") -> int:
        column = quoted(self._name(side))
        return int(self._number(f"count({column}) AS n FROM {self._table.path} {self._where()}"))

    def _count_lacking(self, side: VectorSide) -> int:
        other = self._name("old" if side == "new" else "new")
        lacking = f"{quoted(other)} IS NOT NULL AND {quoted(self._name(side))} IS NULL"
        return int(self._number(f"count(*) AS n FROM {self._table.path} WHERE {lacking}"))

    def _pairs(self, side: VectorSide, batch: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray, np.ndarray]]:
        sides = self._side(side), self._side("new" if side == "old" else "old")
        for page, cursor in self._pages([*sides], None, batch):
            has = page["c2"].is_valid().to_numpy()
            yield self._block(page, cursor), _matrix(page["c2"]), has, np.ones(len(page), bool)

    def repeated_ids(self) -> list[str]:
        column = quoted(self._table.ids)
        found = self._read(
            f"SELECT CAST({column} AS VARCHAR) AS id FROM {self._table.path} {self._where()} "
            f"GROUP BY {column} HAVING count(*) > 1 LIMIT 10"
        )
        return [str(one) for one in found["id"].to_pylist()]

    def check(self, new: NewVectors) -> None:
        super().check(new)
        if new.element_type == "int8" and any("HNSW" in index["sql"].upper() for index in self._indices()):
            raise MigrationError(
                f"{self._place} has an HNSW index, and DuckDB indexes only FLOAT columns by HNSW.",
                "Pass `element_type='float32'`, or drop the index.",
            )

    def _create(self, new: NewVectors) -> None:
        columns = self._columns()
        _, old, column = self._names(columns)
        kind = self._type_like(columns[old].type, new.dim, new.element_type)
        comment = json.dumps({base.MARK_KEY: {"dim": new.dim, "note": new.note}})
        self._run(
            f"ALTER TABLE {self._table.path} ADD COLUMN {quoted(column)} {kind}",
            f"COMMENT ON COLUMN {self._table.path}.{quoted(column)} IS {literal(comment)}",
        )

    def _type_like(self, old: str, dim: int, element_type: str) -> str:
        number = "TINYINT" if element_type == "int8" else "DOUBLE" if old.startswith("DOUBLE") else "FLOAT"
        return f"{number}[]" if old.endswith("[]") else f"{number}[{dim}]"

    @property
    def bare_rows(self) -> bool:
        return not self._columns()[self._column].required

    @property
    def exact(self) -> bool:
        return not self._columns()[self._name("old")].type.startswith("DOUBLE")

    def obstacles(self, new: NewVectors, steps: Collection[str] = base.ALL_STEPS) -> list[tuple[str, str]]:
        columns, name, table = self._columns(), self._column, self._table
        stage, column = self._names(columns)[0], columns[name]

        def mentions(expression: str) -> bool:
            return bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", _LITERAL.sub("", expression)))

        facts = "table_name, constraint_type AS kind, constraint_text AS text, expression, referenced_table AS other"
        query = f"SELECT {facts} FROM duckdb_constraints() {_HERE} AND schema_name = ?"
        constraints = self._read(query, table.schema).to_pylist()
        found = [
            ("drop-old", f"the constraint {row['text']}, which DuckDB drops with the column")
            for row in constraints
            if row["table_name"] == table.name and row["kind"] == "CHECK" and mentions(row["expression"])
        ]
        found += [
            (step, f"the foreign key of {row['table_name']} to it, so that DuckDB refuses to update it")
            for row in constraints
            if row["kind"] == "FOREIGN KEY" and row["other"] == table.name
            for step in _LEFT[stage]
        ]
        found += [
            (step, f"the trigger {row['name']}, so that DuckDB refuses to rename or drop its columns")
            for row in self._triggers()
            for step in (("switch",) if stage is Stage.UNTOUCHED else _LEFT[stage])
        ]
        found += [
            ("drop-old", f"the generated column {other}, which needs {name}")
            for other, facts in columns.items()
            if other != name and facts.default and mentions(facts.default)
        ]
        if column.default and stage is not Stage.SWITCHED:
            kind = self._type_like(column.type, new.dim, new.element_type)
            try:
                self._connection.execute(f"SELECT CAST(({column.default}) AS {kind})")
            except self._duckdb.Error:
                found.append(("switch", f"the default {column.default} of {name}, which is no {kind}"))
        if not found:
            state = self.version(), new.dim, new.element_type
            if state[0] is None or self._rehearsed[0] != state:
                self._rehearsed = state, {}
            for path in _PATHS[stage]:
                if {step for step, _ in path} & {*steps}:
                    if path not in self._rehearsed[1]:
                        self._rehearsed[1][path] = self._rehearse(new, path)
                    found += self._rehearsed[1][path]
        return found

    def _rehearse(self, new: NewVectors, steps: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        """Return why DuckDB refuses one of the steps, or which view or macro one of them breaks; all are undone."""
        changes = {
            "create": lambda: self._create(new),
            "show new": lambda: self._rename(NEW, OLD),
            "show old": lambda: self._rename(OLD, NEW),
            "drop new": lambda: self._drop(self._column + NEW),
            "drop old": lambda: self._drop(self._column + OLD),
        }
        columns = self._columns()
        stage, old, _ = self._names(columns)
        hidden, type_ = {self._column + OLD, self._column + NEW}, columns[old].type
        wide = stage is not Stage.SWITCHED and type_ != self._type_like(type_, new.dim, new.element_type)
        readers = self._readers()
        shown = {path: found for path in readers if isinstance(found := self._shown_by(path), list)}
        step = steps[0][0]
        self._connection.execute("BEGIN")
        self._rehearsing = True
        try:
            for step, change in steps:
                changes[change]()
                for path, before in shown.items():
                    after = self._shown_by(path)
                    if isinstance(after, str):
                        return [(step, f"the view {path}, which it would break ({after})")]
                    # A view that names the columns it shows by position would show the old vectors as the new ones.
                    if set(after) - set(before) - hidden:
                        return [(step, f"the view {path}, which would show {self._column + OLD} under another name")]
                for path, text in readers.items() if wide and step == "switch" else ():
                    if type_ in text.upper():
                        return [(step, f"the view or macro {path}, which needs vectors of type {type_}")]
        except DatabaseError as error:
            if isinstance(error, DatabaseUnavailableError):
                raise
            return [(step, f"columns that DuckDB does not rename or drop ({error.__cause__ or error})")]
        finally:
            self._rehearsing = False
            self._undo()
        return []

    def _triggers(self) -> list[dict[str, str]]:
        if int(self._duckdb.__version__.partition(".")[0]) < 2:
            return []
        query = f"SELECT trigger_name AS name FROM duckdb_triggers() {_OF_TABLE}"
        return list(self._read(query, self._table.schema, self._table.name).to_pylist())

    def _readers(self) -> dict[str, str]:
        """Return the definitions of the views and macros that read the table, directly or through one another."""
        rest: dict[tuple[str, str], str] = {}
        for catalog, name, text in (
            ("duckdb_views()", "view_name", "sql"),
            ("duckdb_functions()", "function_name", "macro_definition"),
        ):
            query = f"SELECT schema_name, {name}, {text} FROM {catalog} {_HERE} AND NOT internal"
            rows = self._connection.execute(f"{query} AND {text} IS NOT NULL AND schema_name <> 'temp'").fetchall()
            rest |= {(schema, one): found for schema, one, found in rows}
        readers, names = {}, [self._table.name]
        while names:  # by name alone: a view of another table of this name is tried in vain
            mentions = re.compile(rf"(?<!\w){re.escape(names.pop())}(?!\w)", re.IGNORECASE)
            for schema, name in [
                key for key, text in rest.items() if mentions.search(text.partition(" AS ")[2] or text)
            ]:
                readers[quoted(schema, name)] = rest.pop((schema, name))
                names.append(name)
        return readers

    def _shown_by(self, view: str) -> list[str] | str:
        """Return the names of the columns of a view, or why it cannot be read."""
        try:
            return [column[0] for column in self._connection.execute(f"SELECT * FROM {view} LIMIT 0").description]
        except self._duckdb.Error as error:
            return (str(error).splitlines() or [""])[0]

    def rehearse(self, ids: pa.Array, vectors: np.ndarray, element_type: str) -> Iterator[tuple[str, str, str]]:
        """Announce what the second column changes for statements that do not name their columns."""
        words = "until drop-old, INSERT without column names is refused, and SELECT * shows one column more"
        yield "columns", "unknown", f"{words}; the vectors become the last column at the switch"

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        def make(folder: Path, n: int) -> DuckDB:
            with self._errors(), self._duckdb.connect(str(folder / "scratch.duckdb")) as connection:
                connection.execute("CREATE TABLE scratch (id BIGINT PRIMARY KEY, vector FLOAT[1])")
                connection.execute(f"INSERT INTO scratch SELECT range, [0] FROM range({int(n)})")
            return DuckDB(Address.parse(str(folder / "scratch.duckdb")))

        return base.time_scratch(self._file.parent, make, vectors, element_type)

    def _store(self, ids: pa.Array, vectors: np.ndarray | None, side: VectorSide = "new") -> None:
        column, dim = self._side(side)
        table = self._table
        rows = {"id": ids}
        if vectors is not None:
            rows["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
        with self._registered(pa.table(rows)) as name:
            self._run(
                f"UPDATE {table.path} AS t SET {quoted(column)} = {'NULL' if vectors is None else 'g.vector'} "
                f"FROM {name} AS g WHERE t.{quoted(table.ids)} = TRY_CAST(g.id AS {table.id_type})"
            )

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Search by cosine: with an HNSW index if DuckDB uses one, otherwise exactly."""
        column, dim = self._side(side)
        rows = f"FROM {self._table.path} {self._where(f'{quoted(column)} IS NOT NULL')}"
        near = f"array_cosine_distance({self._vectors(column, dim)}, CAST(? AS FLOAT[{dim}]))"
        asked, size = [row.tolist() for row in np.asarray(queries, np.float32)], int(k)
        if not self._indices() and len(asked) > 1:  # one scan for all queries instead of one each
            nearest = ", ".join(f"arg_min({self._table.id_text}, {near}, {size}) AS c{at}" for at in range(len(asked)))
            found = self._read(f"SELECT {nearest} {rows}", *asked)
            return [self._ids_of(pa.table({"c0": column.combine_chunks().flatten()})) for column in found.columns]
        query = f"SELECT {self._table.id_text} AS c0 {rows} ORDER BY {near} LIMIT {size}"
        return [self._ids_of(self._read(query, row)) for row in asked]

    def _indices(self) -> list[dict[str, str]]:
        query = f"SELECT index_name AS name, sql FROM duckdb_indexes() {_OF_TABLE} AND sql IS NOT NULL"
        return list(self._read(query, self._table.schema, self._table.name).to_pylist())

    def _without_indices(self, *statements: str) -> None:
        """Run statements that DuckDB does not allow on indexed tables: without the indexes, in one transaction."""
        indices = self._indices()
        self._run(
            *(f"DROP INDEX {quoted(self._table.schema, index['name'])}" for index in indices),
            *statements,
            *(index["sql"] for index in indices if not self._rehearsing),
        )

    def _rename(self, shown: str, hidden: str) -> None:
        """Exchange the names; NOT NULL, the default and the comment stay with the name that readers use."""
        columns, path = self._columns(), self._table.path
        name, away, back = (quoted(self._column + suffix) for suffix in ("", hidden, shown))
        readers, mark = columns[self._column], self._mark_of(columns)
        kept = mark.pop("comment", "")
        if shown == NEW:
            made, coming = self._made_of(columns), columns[self._hidden(NEW)].type
            if (wanted := self._type_like(readers.type, made.dim, made.element_type)) != coming:
                raise MigrationError(
                    f"The type of {self._column} in {self._place} has become {readers.type} since the run, and the new "
                    f"vectors are {coming}, not {wanted}.",
                    "Discard the new vectors, and run it again.",
                )
            mark["comment"] = readers.comment
        comment = readers.comment or kept
        if shown == NEW and SPACE_KEY in comment:  # it names the old model
            comment = ""
        statements = [
            f"ALTER TABLE {path} RENAME COLUMN {name} TO {away}",
            f"ALTER TABLE {path} RENAME COLUMN {back} TO {name}",
            f"COMMENT ON COLUMN {path}.{away} IS {literal(json.dumps({base.MARK_KEY: mark}))}",
            f"COMMENT ON COLUMN {path}.{name} IS {literal(comment) if comment else 'NULL'}",
        ]
        if readers.required:
            statements.append(f"ALTER TABLE {path} ALTER {away} DROP NOT NULL")
            if not self._rehearsing:  # without vectors
                statements.append(f"ALTER TABLE {path} ALTER {name} SET NOT NULL")
        if readers.default:
            statements.append(f"ALTER TABLE {path} ALTER {away} DROP DEFAULT")
            statements.append(f"ALTER TABLE {path} ALTER {name} SET DEFAULT {readers.default}")
        self._without_indices(*statements)

    def _drop(self, column: str, unmark: str | None = None) -> None:
        self._without_indices(f"ALTER TABLE {self._table.path} DROP COLUMN {quoted(column)}")

    def close(self) -> None:
        """Close the file, so that others can open it. New vectors that were not flushed are lost."""
        super().close()
        self._connection.close()


class DuckTable(NamedTuple):
    """A table and the columns that a migration uses; ``column`` is the one from which readers take the vectors."""

    schema: str
    name: str
    column: str
    ids: str
    id_type: str
    modalities: str | None

    @property
    def path(self) -> str:
        return quoted(self.schema, self.name)

    @property
    def id_text(self) -> str:
        """SQL expression for the ids as in a block: integers unchanged, UUIDs as text."""
        return f"CAST({quoted(self.ids)} AS VARCHAR)" if self.id_type == "UUID" else quoted(self.ids)


def literal(text: str) -> str:
    """Return a string as an SQL literal, for statements that do not support parameters."""
    return "'" + text.replace("'", "''") + "'"


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it has one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of vectors as a matrix, with zeros for null vectors."""
    rows, has = base.matrix_of(_combined(column))
    return np.ascontiguousarray(rows if has.all() else np.where(has[:, None], rows, np.float32(0)))
