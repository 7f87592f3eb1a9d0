"""SQLite with sqlite-vec: new vectors are in a second vec0 table; the switch renames both in one transaction."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.databases import _refusals as refusals
from congruence.databases._base import (
    BATCH,
    NEW,
    OLD,
    Address,
    Block,
    Capabilities,
    Cursor,
    Database,
    DatabaseInfo,
    Name,
    Stage,
    VectorSide,
    free_bytes,
    pack,
    quoted,
    time_scratch,
    unpack,
)
from congruence.errors import CongruenceError, DatabaseUnavailableError, FileError

#: Seconds to wait for another writer.
BUSY_SECONDS = 5.0

#: Number of recently read rows whose other columns are cached: to return another column of a row, vec0 also reads the
#: whole vector.
_REMEMBERED = 2**17

#: Size of the page cache. vec0 stores 1,024 vectors in one value, a chain of pages that SQLite follows for each vector
#: it reads; without the cache, the chain would be read from disk again for each row.
_CACHE_BYTES = 64 * 2**20

_DISTANCES = {"cosine": "cosine", "l2": "l2"}


class SQLite(Database):
    """A vec0 table with float, int8 or bit vectors, in a file whose address is its path or ``sqlite:///file``.

    vec0 has no NULL, no UPSERT and no way to add a column, and its ``ALTER TABLE … RENAME`` does not rename the tables
    that hold its data; the switch renames these too. The new table has copies of the other columns, updated at the
    switch. The application then writes to the new table only, so a rollback shows the rows as they were.
    """

    kind = "sqlite-vec"
    capabilities = Capabilities(container="table", element_types=("float32", "int8", "binary"))

    _column: str | None = None

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        refusals.check_options("a vec0 table, from which rows left out would be missing after the switch", rows=rows)
        self._path = Path(re.sub(r"^sqlite:///?", "", address.text))
        if not self._path.is_file():
            raise FileError(f"{self._path} is not a file.", "Pass the path of an SQLite database.")
        self._module = sqlite_module()
        self._lock = RLock()  # held during each query, and during a whole transaction
        with self._errors():
            # Autocommit: transactions are begun explicitly.
            self._client = self._module.connect(
                str(self._path), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            load_vec(self._client)
            self._client.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            # With this, renaming a table does not change views: a view shows the table that currently has the name.
            self._client.execute("PRAGMA legacy_alter_table = ON")
        self._others: dict[int | str, tuple[Any, ...]] = {}
        names = [name for name in self._statements() if not name.endswith((NEW, OLD))]
        self._table = refusals.only_name(names, "vec0 tables", self._path, "table") if table is None else table
        refusals.check_name(self._table, names, self._path, "table")
        self._place = f"{self._path} {self._table}"
        vec0 = self._vec0(column)
        self._column, self._modality = vec0.column, modality
        refusals.check_name(ids, [vec0.ids], f"the primary key of {self._table!r}", "ids")
        refusals.check_name(modality, vec0.others, self._table, "modality_column")

    def _translate(self, error: Exception) -> CongruenceError | None:
        if not isinstance(error, self._module.Error):
            return None
        text = str(error)
        if "locked" in text or "busy" in text:
            return DatabaseUnavailableError(
                f"Got no lock on {self._path} within {BUSY_SECONDS:g} s ({text}).",
                "Try again when no other process writes to it.",
            )
        if "not a database" in text or "malformed" in text:
            return refusals.damaged(self._path, text)
        return refusals.full_disk(self._path, text) if "disk is full" in text else refusals.rejected(self._path, text)

    def _read(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            rows: list[tuple[Any, ...]] = self._client.execute(statement, values).fetchall()
            return rows

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the client in a transaction that holds the write lock; commit it, or roll it back after an error."""
        with self._lock, self._errors():
            self._client.execute("BEGIN IMMEDIATE")
            try:
                yield self._client
                self._client.execute("COMMIT")
            except BaseException:
                if self._client.in_transaction:
                    self._client.execute("ROLLBACK")
                raise

    def _statements(self) -> dict[str, str]:
        tables = self._read(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
        )
        return {name: text for name, text in tables if re.search(r"\busing\s+vec0\s*\(", text, re.IGNORECASE)}

    def _vec0(self, column: str | None = None, side: VectorSide = "old") -> Vec0:
        name = self._name(side)
        return Vec0.parse(name, self._statements()[name], column or self._column)

    def _name(self, side: VectorSide) -> str:
        switched = self.stage() is Stage.SWITCHED
        if side == "old":
            return f"{self._table}__congruence_old" if switched else self._table
        return self._table if switched else f"{self._table}__congruence_new"

    @property
    def _note_table(self) -> str:
        return f"{self._table}__congruence_note"

    def _keys(self, table: str, vec0: Vec0) -> str:
        """Return a subquery over the ordinary table of ids that vec0 keeps, as vec0 has no stable order."""
        return f"(SELECT {'id' if vec0.id_type == 'text' else 'rowid'} AS id FROM {quoted(table + '_rowids')})"

    def info(self) -> DatabaseInfo:
        vec0 = self._vec0()
        return DatabaseInfo(
            place=self._place,
            rows=self.count(),
            dim=vec0.dim,
            element_type=vec0.element_type,
            distance=None if vec0.element_type == "binary" else _DISTANCES.get(vec0.metric),
            id_type=vec0.id_type,
            columns=vec0.others,
            free_bytes=free_bytes(self._path.resolve().parent),
        )

    def stage(self) -> Stage:
        tables = self._statements()
        if f"{self._table}__congruence_old" in tables:
            return Stage.SWITCHED
        return Stage.PREPARED if f"{self._table}__congruence_new" in tables else Stage.UNTOUCHED

    def note(self) -> Mapping[str, str]:
        if not self._read("SELECT 1 FROM sqlite_master WHERE name = ?", [self._note_table]):
            return {}
        rows = self._read(f"SELECT note FROM {quoted(self._note_table)}")
        return dict(json.loads(rows[0][0])) if rows else {}

    def _read_rows(self, side: VectorSide, id_query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return modality, id, vector and the other columns of the rows whose ids a subquery returns, in its order."""
        name, vec0 = self._name(side), self._vec0(side=side)
        modality = f"CAST(t.{quoted(self._modality)} AS TEXT)" if self._modality else "NULL"
        columns = ", ".join(f"t.{column}" for column in (vec0.ids, vec0.column, *vec0.others))
        # CROSS JOIN makes SQLite look up each row by its id instead of reading the whole vec0 table.
        join = f"CROSS JOIN {quoted(name)} AS t ON t.{vec0.ids} = k.id"
        return self._read(f"SELECT {modality}, {columns} FROM {id_query} AS k {join}", values)

    def _read_block(self, side: VectorSide, id_query: str, values: Sequence[object]) -> Block:
        """Return the rows whose ids a subquery returns, and cache the other columns of old ones."""
        vec0, rows = self._vec0(side=side), self._read_rows(side, id_query, values)
        # Not if there are other vector columns, which would need too much memory.
        if side == "old" and rows and not any(isinstance(value, bytes) for value in rows[0][3:]):
            with self._lock:
                self._others |= {row[1]: row[3:] for row in rows}
                for id_ in list(self._others)[: max(0, len(self._others) - _REMEMBERED)]:
                    del self._others[id_]
        modalities, ids, vectors = zip(*(row[:3] for row in rows), strict=True) if rows else ((), (), ())
        return Block(
            pa.array(ids, vec0.id_array_type),
            vec0.numbers(vectors),
            pa.array(modalities, pa.large_string()) if self._modality else None,
            ids[-1] if ids else 0,
        )

    def scan(self, side: VectorSide = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        if side == "new" and self.stage() is Stage.UNTOUCHED:
            return
        while True:
            keys = self._keys(self._name(side), self._vec0(side=side))
            condition = "" if after is None else "WHERE id > ?"
            block = self._read_block(
                side,
                f"(SELECT id FROM {keys} {condition} ORDER BY id LIMIT {int(batch)})",
                [] if after is None else [after],
            )
            if not len(block.ids):
                return
            yield block
            after = block.cursor

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        if side == "new" and self.stage() is Stage.UNTOUCHED:
            vec0 = self._vec0()
            return Block(ids.slice(0, 0), np.empty((0, vec0.dim), np.float32), None, 0)
        return self._read_block(side, "(SELECT value AS id FROM json_each(?))", [json.dumps(ids.to_pylist())])

    def count(self, side: VectorSide = "old") -> int:
        if side == "new" and self.stage() is Stage.UNTOUCHED:
            return 0
        return int(self._read(f"SELECT count(*) FROM {quoted(self._name(side) + '_rowids')}")[0][0])

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Search exactly, as vec0 does: it has no index."""
        name, vec0 = self._name(side), self._vec0(side=side)
        where = f"{vec0.column} MATCH {vec0.value} AND k = {int(k)}"
        statement = f"SELECT {vec0.ids} FROM {quoted(name)} WHERE {where} ORDER BY distance"
        results = [self._read(statement, [blob.tobytes()]) for blob in vec0.blobs(np.asarray(queries))]
        return [pa.array([id_ for (id_,) in rows], vec0.id_array_type) for rows in results]

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows were deleted; none after the switch."""
        if self.stage() is not Stage.PREPARED:
            return
        vec0, after = self._vec0(), None
        values: list[int | str]
        while True:
            condition, values = ("", []) if after is None else ("id > ? AND", [after])
            rows = self._read(f"{self._orphaned(vec0, condition)} ORDER BY id LIMIT {int(batch)}", values)
            if not rows:
                return
            after = rows[-1][0]
            yield pa.array([id_ for (id_,) in rows], vec0.id_array_type)

    def _orphaned(self, vec0: Vec0, condition: str = "") -> str:
        """Return a query for the ids of new vectors whose rows were deleted."""
        new, old = (self._keys(self._name(side), vec0) for side in ("new", "old"))
        return f"SELECT n.id FROM {new} AS n WHERE {condition} NOT EXISTS (SELECT 1 FROM {old} AS o WHERE o.id = n.id)"

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create a table with the same columns and vectors of the new width and type."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        wanted_note = {str(key): str(value) for key, value in (note or {}).items()}
        with self._writing() as connection:
            if self.stage() is not Stage.UNTOUCHED:
                existing, existing_note = self._vec0(side="new"), dict(self.note())
                have = (existing.dim, existing.element_type, existing_note)
                refusals.check_same(self._place, have, (dim, element_type, wanted_note))
                return
            connection.execute(self._vec0().create(self._name("new"), dim, element_type))
            connection.execute(f"CREATE TABLE {quoted(self._note_table)} (note TEXT NOT NULL)")
            connection.execute(f"INSERT INTO {quoted(self._note_table)} VALUES (?)", [json.dumps(wanted_note)])

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Insert rows with the other columns of the user's table; each call is a transaction."""
        with self._writing() as connection:
            self._write(connection, ids, vectors)

    def _write(self, connection: sqlite3.Connection, ids: pa.Array, vectors: np.ndarray) -> None:
        refusals.refuse_untouched(self.stage() is Stage.UNTOUCHED, self._place)
        vec0, new, old = self._vec0(), self._name("new"), self._name("old")
        names: list[int | str] = ids.to_pylist()
        in_new = f"SELECT id FROM {self._keys(new, vec0)} WHERE id IN (SELECT value FROM json_each(?))"
        replaced = connection.execute(in_new, [json.dumps(names)]).fetchall()
        connection.executemany(f"DELETE FROM {quoted(new)} WHERE {vec0.ids} = ?", replaced)
        # Cached columns that have changed since are updated at the switch.
        others = {name: self._others.get(name) for name in names}
        if uncached := [name for name in names if others[name] is None]:
            id_query = "(SELECT value AS id FROM json_each(?))"
            others |= {row[1]: row[3:] for row in self._read_rows("old", id_query, [json.dumps(uncached)])}
        in_old = f"SELECT id FROM {self._keys(old, vec0)} WHERE id IN (SELECT value FROM json_each(?))"
        existing = {name for (name,) in connection.execute(in_old, [json.dumps(names)])}
        columns = (vec0.column, vec0.ids, *vec0.others)
        new_vec0 = self._vec0(side="new")
        blobs = new_vec0.blobs(vectors)
        values = ", ".join([new_vec0.value, *("?" * (len(columns) - 1))])
        connection.executemany(
            f"INSERT INTO {quoted(new)} ({', '.join(columns)}) VALUES ({values})",
            ((blobs[k], name, *(others[name] or ())) for k, name in enumerate(names) if name in existing),
        )

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        def make(folder: Path, n: int) -> SQLite:
            path = str(folder / "scratch.sqlite")
            with self._errors(), closing(self._module.connect(path, isolation_level=None)) as connection:
                load_vec(connection)
                connection.execute("CREATE VIRTUAL TABLE scratch USING vec0(id integer primary key, vector int8[8])")
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO scratch VALUES (?, vec_int8(?))", ((k, bytes(8)) for k in range(n)))
                connection.execute("COMMIT")
            return SQLite(Address.parse(path))

        return time_scratch(self._path.resolve().parent, make, vectors, element_type)

    def delete(self, ids: pa.Array) -> None:
        vec0, new = self._vec0(), self._name("new")
        with self._writing() as connection:
            statement = f"DELETE FROM {quoted(new)} WHERE {vec0.ids} = ?"
            connection.executemany(statement, [(id_,) for id_ in ids.to_pylist()])

    def switch(self) -> None:
        """Rename both tables in one transaction, after updating the other columns."""
        with self._writing() as connection:
            stage = self.stage()
            if stage is Stage.SWITCHED:
                return
            refusals.refuse_untouched(stage is Stage.UNTOUCHED, self._place)
            vec0, old, new = self._vec0(), self._name("old"), self._name("new")
            for orphan in connection.execute(self._orphaned(vec0)).fetchall():
                connection.execute(f"DELETE FROM {quoted(new)} WHERE {vec0.ids} = ?", orphan)
            refusals.check_missing(self.count("old") - self.count("new"), self._place)
            if vec0.others:
                differs = " OR ".join(f"o.{name} IS NOT n.{name}" for name in vec0.others)
                changed = connection.execute(
                    f"SELECT o.{vec0.ids} FROM {quoted(old)} AS o CROSS JOIN {quoted(new)} AS n "
                    f"ON n.{vec0.ids} = o.{vec0.ids} WHERE {differs}"
                ).fetchall()
                if changed:
                    self._others.clear()
                    block = self.fetch(pa.array([id_ for (id_,) in changed]), "new")
                    self._write(connection, block.ids, block.vectors)
            rename(connection, old, f"{self._table}__congruence_old")
            rename(connection, new, self._table)

    def rollback(self) -> None:
        with self._writing() as connection:
            if self.stage() is Stage.SWITCHED:
                rename(connection, self._table, f"{self._table}__congruence_new")
                rename(connection, f"{self._table}__congruence_old", self._table)

    def drop_old(self) -> None:
        with self._writing() as connection:
            refusals.refuse_unswitched(self.stage() is not Stage.SWITCHED, self._place)
            self._remove(connection, self._name("old"))

    def discard(self) -> None:
        with self._writing() as connection:
            stage = self.stage()
            refusals.refuse_switched(stage is Stage.SWITCHED, self._place)
            if stage is Stage.PREPARED:
                self._remove(connection, self._name("new"))

    def _remove(self, connection: sqlite3.Connection, name: str) -> None:
        connection.execute(f"DROP TABLE {quoted(name)}")
        connection.execute(f"DROP TABLE {quoted(self._note_table)}")

    def close(self) -> None:
        self._client.close()


def sqlite_module() -> ModuleType:
    """Return an SQLite module that can load extensions; the standard library's often cannot."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3
    return require("pysqlite3.dbapi2", extra="sqlite-vec")


def load_vec(connection: sqlite3.Connection) -> None:
    """Load sqlite-vec into a connection."""
    connection.enable_load_extension(True)
    require("sqlite_vec", extra="sqlite-vec").load(connection)
    connection.enable_load_extension(False)


# ---- vec0 ------------------------------------------------------------------------------------------------------------

_VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\](.*)", re.IGNORECASE | re.DOTALL)
_METRIC = re.compile(r"distance_metric\s*=\s*(\w+)", re.IGNORECASE)
_KEY = re.compile(r"(\w+)\s+(integer|int|text)\s+primary\s+key", re.IGNORECASE)
_OTHER = re.compile(r"\+?\s*(\w+)\s+\w+(\s+partition\s+key)?", re.IGNORECASE)


@dataclass(frozen=True)
class Vec0:
    """A vec0 table, as declared by its CREATE statement."""

    arguments: tuple[str, ...]  # of ``vec0(…)``
    at: int  # position of the vectors' column among them
    column: str
    type: str
    dim: int
    metric: str
    ids: str  # the primary key, or rowid
    id_type: str  # int or text
    others: tuple[str, ...]  # metadata columns, partition keys, auxiliary columns, and other columns of vectors

    @classmethod
    def parse(cls, table: str, statement: str, column: str | None) -> Vec0:
        """Parse a CREATE statement."""
        body = statement[statement.index("(") + 1 : statement.rindex(")")]
        arguments = tuple(" ".join(argument.split()) for argument in body.split(",") if argument.strip())
        vectors = {
            match[1]: (k, match) for k, argument in enumerate(arguments) if (match := _VECTOR.fullmatch(argument))
        }
        column = refusals.only_name(vectors, "columns of vectors", table, "column") if column is None else column
        refusals.check_name(column, vectors, table, "column")
        at, declaration = vectors[column]
        key = next((match for argument in arguments if (match := _KEY.fullmatch(argument))), None)
        others = [
            (_VECTOR.fullmatch(argument) or _OTHER.fullmatch(argument))
            for argument in arguments
            if not _KEY.fullmatch(argument) and "=" not in argument.split(" ")[0]
        ]
        metric = _METRIC.search(declaration[4])
        return cls(
            arguments,
            at,
            column,
            declaration[2].lower(),
            int(declaration[3]),
            metric[1].lower() if metric else "l2",
            key[1] if key else "rowid",
            "text" if key and key[2].lower() == "text" else "int",
            tuple(match[1] for match in others if match and match[1] != column),
        )

    @property
    def id_array_type(self) -> pa.DataType:
        """Arrow type of the ids in a block."""
        return pa.int64() if self.id_type == "int" else pa.large_string()

    @property
    def element_type(self) -> str:
        """Element type in the terms of ``congruence.databases.DatabaseInfo``."""
        return {"int8": "int8", "i8": "int8", "bit": "binary"}.get(self.type, "float32")

    @property
    def value(self) -> str:
        """SQL placeholder for a vector; sqlite-vec takes a blob for float32 unless it is wrapped in a function."""
        return {"float32": "?", "int8": "vec_int8(?)", "binary": "vec_bit(?)"}[self.element_type]

    def blobs(self, vectors: np.ndarray) -> np.ndarray:
        """Encode vectors as blobs; the lowest bit is the first component, as in ``vec_quantize_binary``."""
        if self.element_type == "binary":
            return pack(vectors, "little")
        return np.ascontiguousarray(vectors, "<f4" if self.element_type == "float32" else np.int8)

    def numbers(self, blobs: Sequence[bytes]) -> np.ndarray:
        """Decode blobs to vectors, float32 of shape (b, dim); bits become 1 and -1."""
        joined = b"".join(blobs)
        if self.element_type == "binary":
            return unpack(np.frombuffer(joined, np.uint8).reshape(len(blobs), self.dim // 8), self.dim, "little")
        kind = np.dtype("<f4" if self.element_type == "float32" else "i1")
        return np.frombuffer(joined, kind).reshape(len(blobs), self.dim).astype(np.float32)

    def create(self, name: str, dim: int, element_type: str) -> str:
        """Return the statement that creates the same table with vectors of another width and type."""
        declaration = _VECTOR.fullmatch(self.arguments[self.at])
        options = declaration[4] if declaration else ""
        if element_type == "binary":  # bits are compared by the Hamming distance, and accept no other metric
            options = _METRIC.sub("", options).rstrip()
        type_ = {"float32": "float", "int8": "int8", "binary": "bit"}[element_type]
        vector = f"{self.column} {type_}[{int(dim)}]{options}"
        arguments = [*self.arguments[: self.at], vector, *self.arguments[self.at + 1 :]]
        return f"CREATE VIRTUAL TABLE {quoted(name)} USING vec0({', '.join(arguments)})"


def rename(connection: sqlite3.Connection, old: str, new: str) -> None:
    """Rename a vec0 table and its shadow tables, which vec0 locates by its own name but does not rename."""
    connection.execute(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
    shadow = re.compile(
        re.escape(old) + r"(_(info|chunks|rowids|auxiliary|(vector_chunks|metadatachunks|metadatatext)\d+))"
    )
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if suffix := shadow.fullmatch(name):
            connection.execute(f"ALTER TABLE {quoted(name)} RENAME TO {quoted(new + suffix[1])}")
