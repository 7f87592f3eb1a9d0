"""SQLite with sqlite-vec: new vectors are in a second vec0 table; the switch renames both in one transaction."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, OLD, Address, Block, DatabaseInfo, Name, NewVectors, VectorSide, quoted
from congruence.databases._collections import CollectionDatabase, Collections
from congruence.errors import CongruenceError, DatabaseUnavailableError, FileError, StorageError

BUSY_SECONDS = 5.0  # seconds to wait for another writer

#: Number of recently read rows whose other columns are cached: to return another column of a row, vec0 also reads the
#: whole vector.
_REMEMBERED = 2**17

#: Size of the page cache. vec0 stores 1,024 vectors in one value, a chain of pages that SQLite follows for each vector
#: it reads; without the cache, the chain would be read from disk again for each row.
_CACHE_BYTES = 64 * 2**20

#: Number of rows whose other columns are measured, and bytes of an empty table, in pages of its parts.
_SIZED, _EMPTY = 512, 2**17

_DISTANCES = {"cosine": "cosine", "l2": "l2"}

_MARK = "(mark TEXT NOT NULL)"  # column of the table with the mark of a migration

_T = TypeVar("_T")


class SQLite(CollectionDatabase):
    """A vec0 table with float, int8 or bit vectors, in a file whose address is its path or ``sqlite:///file``.

    vec0 has no NULL, no UPSERT and no way to add a column, and its ``ALTER TABLE … RENAME`` does not rename the tables
    that hold its data; the switch renames these too, and updates the copies of the other columns.
    """

    kind = "sqlite-vec"
    longest_name = 10**9
    _called = "vec0 tables"
    capabilities = base.Capabilities(container="table", element_types=("float32", "int8", "binary"))

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        refusals.check_options("a vec0 table, from which rows left out would be missing after the switch", rows=rows)
        self._path = Path(re.sub(r"^sqlite:///?", "", address.text))
        if not self._path.is_file():
            raise FileError(f"{self._path} is not a file.", "Pass the path of an SQLite database.")
        self._folder, self._module = self._path.resolve().parent, sqlite_module()
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
        self._remembered: dict[int | str, tuple[Any, ...]] = {}
        self._table = self._find_table(table)
        self._subject, self._mark_table = f"{self._path} {self._table}", f"{self._table}__congruence_mark"
        self._column = column or ""
        vec0 = self._open(self._find().old)
        self._column, self._modality, self._id_type = vec0.column, modality, vec0.id_array_type
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
            return refusals.refusal("damaged", self._path, text)
        return refusals.refusal("rejected", self._path, text)

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
        tables = self._read("SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'")
        return {name: text for name, text in tables if _USING.search(text)}

    _same_at: tuple[object, int] | None = None  # see ``_pairs``

    def bytes_needed(self, info: DatabaseInfo, dim: int, element_type: str) -> int:
        """Return the size of a second table, whose chunks are whole from their first row on, and of the log."""
        vec0 = self._open(self._place().old)
        size, slots = self._read(f"SELECT max(size), sum(size) FROM {quoted(vec0.table + '_chunks')}")[0]
        if not any("partition" in argument.lower() for argument in vec0.arguments):  # each partition has its own chunks
            slots = -(-info.rows // size) * size
        records = self._spread(vec0, info.rows, _SIZED)
        values = [value for record in records for value in record[3:]]
        blobs = sum(len(value) for value in values if isinstance(value, bytes)) / len(records)  # of other vectors
        texts = sum(len(str(value).encode()) + 16 for value in values if not isinstance(value, bytes)) / len(records)
        if vec0.id_type == "text":  # in a table and its index
            texts += 2 * sum(len(record[1].encode()) + 12 for record in records) / len(records)
        row = 1.01 * (base.bytes_a_row(dim, element_type) + 8 + blobs)
        table = slots * row + info.rows * 1.1 * (24 + texts) + _EMPTY
        if self._read("PRAGMA journal_mode")[0][0] == "wal":  # which holds a block of rows
            table += min(table, 1.1 * (2**21 // info.dim + 64 + size) * (row + texts))
        return int(table)

    def version(self) -> object | None:
        """Return SQLite's counter of the commits of other connections."""
        return self._read("PRAGMA data_version")[0][0]

    def _names(self) -> Collection[str]:
        return self._statements()

    def _mark_of(self, collection: str) -> Mapping[str, Any]:
        found = self._read("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", [self._mark_table])
        if not found or not found[0][0].endswith(_MARK):
            return {}
        mark = next((base.mark_in(mark) for (mark,) in self._read(f"SELECT mark FROM {quoted(self._mark_table)}")), {})
        return mark if mark.get("switched", False) == (collection == self._table) else {}

    def _open(self, collection: str) -> Vec0:
        return Vec0.parse(collection, self._statements()[collection], self._column or None)

    def _width(self, collection: Vec0) -> int:
        return collection.dim

    def info(self) -> DatabaseInfo:
        vec0 = self._open(self._place().old)
        return DatabaseInfo(
            place=self._subject,
            rows=self.count(),
            dim=vec0.dim,
            element_type=vec0.element_type,
            distance=None if vec0.element_type == "binary" else _DISTANCES.get(vec0.metric),
            id_type=vec0.id_type,
        )

    def _read_rows(self, vec0: Vec0, id_query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return modality, id, vector and the other columns of the rows whose ids a subquery returns, in its order."""
        modality = f"CAST(t.{quoted(self._modality)} AS TEXT)" if self._modality else "NULL"
        columns = ", ".join(f"t.{column}" for column in (vec0.ids, vec0.column, *vec0.others))
        # CROSS JOIN makes SQLite look up each row by its id instead of reading the whole vec0 table.
        join = f"CROSS JOIN {quoted(vec0.table)} AS t ON t.{vec0.ids} = k.id"
        return self._read(f"SELECT {modality}, {columns} FROM {id_query} AS k {join}", values)

    def _pages(
        self, collection: Vec0, *, after: base.Cursor | None = None, batch: int = BATCH, whole: bool = False
    ) -> Iterator[list[tuple[Any, ...]]]:
        while True:
            condition = "" if after is None else "WHERE id > ?"
            id_query = f"(SELECT id FROM {collection.keys} {condition} ORDER BY id LIMIT {int(batch)})"
            rows = self._read_rows(collection, id_query, [] if after is None else [after])
            if not rows:
                return
            self._remember(collection, rows)
            yield rows
            after = rows[-1][1]

    def _remember(self, vec0: Vec0, rows: list[tuple[Any, ...]]) -> None:
        """Cache the other columns of rows of the user's table, unless they are vectors, which need too much memory."""
        if vec0.table != self._find().old or any(isinstance(value, bytes) for value in rows[0][3:]):
            return
        with self._lock:
            self._remembered |= {row[1]: row[3:] for row in rows}
            for id_ in list(self._remembered)[: max(0, len(self._remembered) - _REMEMBERED)]:
                del self._remembered[id_]

    def _records(self, collection: Vec0, ids: list[Any], *, whole: bool = False) -> list[tuple[Any, ...]]:
        if not ids:
            return []
        return self._read_rows(collection, "(SELECT value AS id FROM json_each(?))", [json.dumps(ids)])

    def _others(self, collection: Vec0, ids: list[Any]) -> list[tuple[Any, ...]]:
        """Return the rows that exist, from the cache if possible; what has changed since is updated at the switch."""
        known = {}
        if collection.table == self._find().old:
            known = {id_: self._remembered[id_] for id_ in ids if id_ in self._remembered}
        in_table = f"SELECT id FROM {collection.keys} WHERE id IN (SELECT value FROM json_each(?))"
        existing = {id_ for (id_,) in self._read(in_table, [json.dumps(ids)])}
        rows = self._records(collection, [id_ for id_ in ids if id_ in existing and id_ not in known])
        return [*((None, id_, None, *known[id_]) for id_ in known if id_ in existing), *rows]

    def _id_of(self, record: tuple[Any, ...]) -> object:
        return record[1]

    def _same(self, record: tuple[Any, ...], copy: tuple[Any, ...]) -> bool:
        return record[3:] == copy[3:]

    def _block(self, collection: Vec0 | None, records: list[tuple[Any, ...]], width: int) -> Block:
        modalities, ids, vectors = zip(*(row[:3] for row in records), strict=True) if records else ((), (), ())
        return Block(
            pa.array(ids, self._id_type),
            np.empty((0, width), np.float32) if collection is None else collection.numbers(vectors),
            pa.array(modalities, pa.large_string()) if self._modality else None,
            ids[-1] if ids else 0,
        )

    def spread(self, rows: int, n: int) -> Iterator[Block]:
        """Look rows up by their ids: vec0 takes as long to read a vector in a scan."""
        vec0, width = self._side("old")
        yield self._block(vec0, self._spread(vec0, rows, n), width)

    def _spread(self, vec0: Vec0, rows: int, n: int) -> list[tuple[Any, ...]]:
        numbered = f"SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM {vec0.keys}"
        ids = self._read(f"SELECT id FROM ({numbered}) WHERE place % ? = 0", [max(rows // n, 1)])
        return self._records(vec0, [id_ for (id_,) in ids])

    def _pairs(self, side: VectorSide, batch: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray, np.ndarray]]:
        """Also remember at which state of the file all copies were there, with the same fields."""
        state, whole = self._state(), side == "old"
        for found in super()._pairs(side, batch):
            whole &= bool(found[3].all())
            yield found
        self._same_at = state if whole else None

    def _state(self) -> tuple[object, int]:
        """Return what changes with each commit of any connection, this one's changes included."""
        return self.version(), self._client.total_changes

    def _count(self, collection: Vec0, *, all_rows: bool = False) -> int:
        return int(self._read(f"SELECT count(*) FROM {quoted(collection.table + '_rowids')}")[0][0])

    def _nearest(self, vec0: Vec0, queries: np.ndarray, k: int) -> list[pa.Array]:
        """Search exactly, as vec0 does: it has no index."""
        where = f"{vec0.column} MATCH {vec0.value} AND k = {int(k)}"
        statement = f"SELECT {vec0.ids} FROM {quoted(vec0.table)} WHERE {where} ORDER BY distance"
        results = [self._read(statement, [blob.tobytes()]) for blob in vec0.blobs(queries)]
        return [pa.array([id_ for (id_,) in rows], vec0.id_array_type) for rows in results]

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        if self.stage() is not base.Stage.PREPARED:
            return
        ids = self._unmatched("new", "old")
        for start in range(0, len(ids), batch):
            yield pa.array(ids[start : start + batch], self._id_type)

    def _unmatched(self, side: VectorSide, other: VectorSide, what: str = "n.id") -> list[Any]:
        """Return the ids of rows on one side that are not on the other, or what is selected of these rows."""
        (ours, _), (theirs, _) = self._side(side), self._side(other)
        absent = f"NOT EXISTS (SELECT 1 FROM {theirs.keys} AS o WHERE o.id = n.id)"
        return [found for (found,) in self._read(f"SELECT {what} FROM {ours.keys} AS n WHERE {absent}")]

    def check(self, new: NewVectors) -> None:
        """Raise DatabaseError if any table, view or index has a name that the new table or one of its parts needs."""
        super().check(new)
        ours = f"{self._table}__congruence_".casefold()
        for (name,) in self._read("SELECT name FROM sqlite_master"):
            refusals.refuse(name.casefold().startswith(ours), "not ours", name)
        if not os.access(self._path, os.W_OK):
            raise StorageError(f"{self._path} cannot be written.", "Change its permissions.")

    def _is_taken(self, name: str) -> bool:
        return bool(self._read("SELECT 1 FROM sqlite_master WHERE instr(lower(name), lower(?)) = 1", [name]))

    def _create_beside(self, place: Collections, new: NewVectors, mark: Mapping[str, Any]) -> None:
        self._client.execute(self._open(place.old).create(place.new, new.dim, new.element_type))
        self._client.execute(f"CREATE TABLE {quoted(self._mark_table)} {_MARK}")
        self._client.execute(f"INSERT INTO {quoted(self._mark_table)} VALUES (?)", [json.dumps(mark)])

    def _change(self, change: Callable[[], _T]) -> _T:
        with self._writing():
            return change()

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        with self._writing():
            super().write(ids, vectors)

    def _store(self, collection: Vec0, records: list[tuple[Any, ...]], vectors: np.ndarray) -> None:
        self._delete_rows(collection, [record[1] for record in records])
        columns = (collection.column, collection.ids, *collection.others)
        values = ", ".join([collection.value, *("?" * (len(columns) - 1))])
        rows = zip(collection.blobs(vectors), records, strict=True)
        self._client.executemany(
            f"INSERT INTO {quoted(collection.table)} ({', '.join(columns)}) VALUES ({values})",
            ((blob, record[1], *record[3:]) for blob, record in rows),
        )

    def _delete_rows(self, vec0: Vec0, ids: list[Any]) -> None:
        existing = f"SELECT id FROM {vec0.keys} WHERE id IN (SELECT value FROM json_each(?))"
        rows = self._client.execute(existing, [json.dumps(ids)]).fetchall()
        self._client.executemany(f"DELETE FROM {quoted(vec0.table)} WHERE {vec0.ids} = ?", rows)

    def _delete(self, collection: str, ids: list[Any]) -> None:
        with self._writing():
            self._delete_rows(self._open(collection), ids)

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

        return base.time_scratch(self._path.resolve().parent, make, vectors, element_type)

    def _missing(self) -> int:
        return int(self._unmatched("old", "new", "count(*)")[0])

    def _show_new(self) -> None:
        """Delete rows that the application has deleted, and update the other columns, before the tables are renamed."""
        (old, _), (new, _) = self._side("old"), self._side("new")
        self._delete_rows(new, self._unmatched("new", "old"))
        if old.others and self._same_at != self._state():
            differs = " OR ".join(f"o.{name} IS NOT n.{name}" for name in old.others)
            changed = self._read(
                f"SELECT o.{old.ids} FROM {quoted(old.table)} AS o CROSS JOIN {quoted(new.table)} AS n "
                f"ON n.{old.ids} = o.{old.ids} WHERE {differs}"
            )
            self._remembered.clear()
            ids = [id_ for (id_,) in changed]
            vectors = {record[1]: record[2] for record in self._records(new, ids)}
            records = self._others(old, ids)
            self._store(new, records, new.numbers([vectors[record[1]] for record in records]))
        super()._show_new()

    def _show(self, collection: str, hidden: str) -> None:
        super()._show(collection, hidden)
        switched = "true" if hidden == OLD else "false"
        mark = f"json_set(mark, '$.switched', json('{switched}'))"
        self._client.execute(f"UPDATE {quoted(self._mark_table)} SET mark = {mark}")

    def _rename(self, collection: str, name: str) -> None:
        rename(self._client, collection, name)

    def _drop(self, collection: str) -> None:
        self._client.execute(f"DROP TABLE {quoted(collection)}")
        self._client.execute(f"DROP TABLE {quoted(self._mark_table)}")

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

_USING = re.compile(r"\busing\s+vec0\s*\(", re.IGNORECASE)
_VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\](.*)", re.IGNORECASE | re.DOTALL)
_METRIC = re.compile(r"distance_metric\s*=\s*(\w+)", re.IGNORECASE)
_KEY = re.compile(r"(\w+)\s+(integer|int|text)\s+primary\s+key", re.IGNORECASE)
_OTHER = re.compile(r"\+?\s*(\w+)\s+\w+(\s+partition\s+key)?", re.IGNORECASE)


@dataclass(frozen=True)
class Vec0:
    """A vec0 table, as declared by its CREATE statement."""

    table: str
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
        begin = _USING.search(statement)
        body = statement[begin.end() if begin else 0 : statement.rindex(")")]
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
            table,
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
    def keys(self) -> str:
        """A subquery over the ordinary table of ids that vec0 keeps, as vec0 has no stable order."""
        return f"(SELECT {'id' if self.id_type == 'text' else 'rowid'} AS id FROM {quoted(self.table + '_rowids')})"

    @property
    def id_array_type(self) -> pa.DataType:
        return pa.int64() if self.id_type == "int" else pa.large_string()

    @property
    def element_type(self) -> str:
        return {"int8": "int8", "i8": "int8", "bit": "binary"}.get(self.type, "float32")

    @property
    def value(self) -> str:
        """SQL placeholder for a vector; sqlite-vec takes a blob for float32 unless it is wrapped in a function."""
        return {"float32": "?", "int8": "vec_int8(?)", "binary": "vec_bit(?)"}[self.element_type]

    def blobs(self, vectors: np.ndarray) -> np.ndarray:
        """Encode vectors as blobs; the lowest bit is the first component, as in ``vec_quantize_binary``."""
        if self.element_type == "binary":
            return base.pack(vectors, "little")
        return np.ascontiguousarray(vectors, "<f4" if self.element_type == "float32" else np.int8)

    def numbers(self, blobs: Sequence[bytes]) -> np.ndarray:
        joined = b"".join(blobs)
        if self.element_type == "binary":
            return base.unpack(np.frombuffer(joined, np.uint8).reshape(len(blobs), self.dim // 8), self.dim, "little")
        kind = np.dtype("<f4" if self.element_type == "float32" else "i1")
        return np.frombuffer(joined, kind).reshape(len(blobs), self.dim).astype(np.float32)

    def create(self, name: str, dim: int, element_type: str) -> str:
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
