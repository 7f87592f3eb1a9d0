"""Vectors as BLOBs in plain SQLite tables, as another package would add them: the new ones are a second table."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence.databases import Block, Capabilities, CollectionDatabase, DatabaseInfo
from congruence.errors import DatabaseError, FileError, ParameterError


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


class BlobCollections(CollectionDatabase):
    """A table with a float32 ``embedding`` as BLOB, an ``id`` and others; address ``shelf://PATH`` or ``….shelf``."""

    kind = "shelf"
    bare_rows = True
    capabilities = Capabilities("table", searches=False, filters="SQLite SQL")
    transient = (sqlite3.OperationalError,)

    def _connect(self, address, table, column, ids, modality, rows):
        self._path = Path(address.text.removeprefix("shelf://"))
        if not self._path.is_file():
            raise FileError(f"No file at {self._path}.", "Check the path.")
        # Autocommit: transactions are begun explicitly.
        self._client = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._table = self._find_table(table)
        self._column, self._ids_in, self._modality, self._rows = column or "embedding", ids or "id", modality, rows
        self._fields = [row[1] for row in self._read(f"PRAGMA table_info({quoted(self._place().old)})")]
        for option, name in (("column", self._column), ("ids", self._ids_in), ("modality_column", modality)):
            if name not in (None, *self._fields):
                raise ParameterError(f"{self._subject} has no column {name!r}.", f"Pass `{option}=…`.")
        self._id_at, self._vector_at = map(self._fields.index, (self._ids_in, self._column))
        self._count(self._place().old)  # refuses a bad condition

    def _translate(self, error):
        return DatabaseError(f"Got an error from {self._path}: {error}", "Fix the cause, and run it again.")

    def _read(self, query, values=()):
        with self._errors():
            return self._client.execute(query, values).fetchall()

    def _change(self, change):
        """Run a change in one transaction."""
        if self._client.in_transaction:
            return change()
        with self._errors():
            self._client.execute("BEGIN IMMEDIATE")
            try:
                result = change()
                self._client.execute("COMMIT")
                return result
            except BaseException:
                self._client.execute("ROLLBACK")
                raise

    # ---- collections -------------------------------------------------------------------------------------------------

    @property
    def _mark_table(self):
        return f"{self._table}__congruence_mark"

    def _names(self):
        tables = [name for (name,) in self._read("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [name for name in tables if not name.endswith("__congruence_mark")]

    def _mark_of(self, collection):
        if not self._read("SELECT 1 FROM sqlite_master WHERE name = ?", [self._mark_table]):
            return {}
        return json.loads(self._read(f"SELECT mark FROM {quoted(self._mark_table)}")[0][0])

    def _create_beside(self, place, new, mark):
        query = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
        columns = self._read(query, [place.old])[0][0].partition("(")[2]
        self._read(f"CREATE TABLE {quoted(place.new)} ({columns}")
        self._read(f"CREATE TABLE {quoted(self._mark_table)} (mark TEXT)")
        self._read(f"INSERT INTO {quoted(self._mark_table)} VALUES (?)", [json.dumps(mark)])

    def _rename(self, collection, name):
        self._read(f"ALTER TABLE {quoted(collection)} RENAME TO {quoted(name)}")

    def _drop(self, collection):
        self._read(f"DROP TABLE {quoted(collection)}")
        self._read(f"DROP TABLE {quoted(self._mark_table)}")

    def _show_new(self):
        """Copy the rows without a vector, unless they have a new one, then rename, in the same transaction."""
        place, bare = self._place(), f"WHERE {quoted(self._column)} IS NULL"
        self._read(f"DELETE FROM {quoted(place.new)} {bare}")
        self._read(f"INSERT OR IGNORE INTO {quoted(place.new)} SELECT * FROM {quoted(place.old)} {bare}")
        super()._show_new()

    # ---- rows, as tuples of all columns ------------------------------------------------------------------------------

    def info(self):
        old = self._place().old
        id_type = self._read(f"SELECT typeof({quoted(self._ids_in)}) FROM {quoted(old)} LIMIT 1")
        rows = self._count(old)
        return DatabaseInfo(
            place=str(self._path),
            rows=rows,
            rows_without=self._read(f"SELECT count(*) FROM {quoted(old)} WHERE {self._where}")[0][0] - rows,
            dim=self._width(old),
            id_type="int" if id_type == [("integer",)] else "text",
        )

    @property
    def _where(self):
        return "TRUE" if self._rows is None else f"({self._rows}\n)"

    def _width(self, collection):
        column, table = quoted(self._column), quoted(collection)
        some = self._read(f"SELECT length({column}) FROM {table} WHERE {column} IS NOT NULL LIMIT 1")
        return some[0][0] // 4 if some else 0

    def _count(self, collection, *, all_rows=False):
        where = "TRUE" if all_rows else self._where
        return self._read(f"SELECT count({quoted(self._column)}) FROM {quoted(collection)} WHERE {where}")[0][0]

    def _ids(self, collection, *, after=None):
        ids = quoted(self._ids_in)
        following, values = ("TRUE", []) if after is None else (f"{ids} > ?", [after])
        condition = f"{self._where} AND {quoted(self._column)} IS NOT NULL AND {following}"
        found = self._read(f"SELECT {ids} FROM {quoted(collection)} WHERE {condition} ORDER BY {ids}", values)
        yield [one for (one,) in found]

    def _records(self, collection, ids, *, whole=False):
        return [record for record in self._others(collection, ids) if record[self._vector_at] is not None]

    def _others(self, collection, ids):
        condition = f"{quoted(self._ids_in)} IN (SELECT value FROM json_each(?)) ORDER BY {quoted(self._ids_in)}"
        return self._read(f"SELECT * FROM {quoted(collection)} WHERE {condition}", [json.dumps(ids)])

    def _store(self, collection, records, vectors):
        at, places = self._vector_at, ", ".join("?" * len(self._fields))
        blobs = [None] * len(records) if vectors is None else map(bytes, vectors)
        rows = [(*record[:at], blob, *record[at + 1 :]) for record, blob in zip(records, blobs, strict=True)]
        insert = f"INSERT OR REPLACE INTO {quoted(collection)} VALUES ({places})"
        self._change(lambda: self._client.executemany(insert, rows))

    def _delete(self, collection, ids):
        delete = f"DELETE FROM {quoted(collection)} WHERE {quoted(self._ids_in)} = ?"
        self._change(lambda: self._client.executemany(delete, [(one,) for one in ids]))

    def _id_of(self, record):
        return record[self._id_at]

    def _same(self, record, copy):
        at = self._vector_at
        return record[:at] + record[at + 1 :] == copy[:at] + copy[at + 1 :]

    def _block(self, collection, records, width):
        ids = [self._id_of(record) for record in records]
        vectors = b"".join(record[self._vector_at] for record in records)
        modalities = None
        if self._modality:
            at = self._fields.index(self._modality)
            modalities = pa.array([record[at] for record in records], pa.large_string())
        return Block(
            pa.array(ids, pa.int64() if ids and isinstance(ids[0], int) else pa.large_string()),
            np.frombuffer(vectors, np.float32).reshape(len(records), -1 if records else width),
            modalities,
            ids[-1] if ids else 0,
        )

    def close(self):
        self._client.close()
