"""Vectors as BLOBs in a plain SQLite table, as another package would add them: the new ones are a second column."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence.databases import BATCH, Block, Capabilities, ColumnDatabase, DatabaseInfo, NewVectors
from congruence.errors import DatabaseError, FileError, ParameterError


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


class BlobTable(ColumnDatabase):
    """A table with a column of float32 vectors as BLOBs, whose address is ``blobs://PATH`` or a path ``….blobs``."""

    kind = "blobs"
    bare_rows = True
    capabilities = Capabilities("column", follows_deletes=True, searches=False, filters="SQLite SQL")
    transient = (sqlite3.OperationalError,)

    def _connect(self, address, table, column, ids, modality, rows):
        self._path = Path(address.text.removeprefix("blobs://"))
        if not self._path.is_file():
            raise FileError(f"No file at {self._path}.", "Check the path.")
        # Autocommit: transactions are begun explicitly.
        self._client = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        tables = [name for (name,) in self._read("SELECT name FROM sqlite_master WHERE type = 'table'")]
        marks = "__congruence_mark"
        self._table = self._choose("table", table, [name for name in tables if not name.endswith(marks)])
        self._marks = self._table + marks
        names = [name for name in self._column_names() if "__congruence" not in name]
        blobs = [name for name in names if self._column_names()[name] == "BLOB"]
        self._column = self._choose("column", column, blobs)
        self._ids = self._choose("ids", ids, names if ids else ["id"])
        self._modality = None if modality is None else self._choose("modality_column", modality, names)
        self._rows = rows
        self._count(self._column)  # refuses a bad condition

    def _choose(self, option, name, names):
        """Return the name that was given, or the only one."""
        if name not in names and (name is not None or len(names) != 1):
            raise ParameterError(
                f"Got {option}={name!r} for {self._path}; expected one of {names}.", f"Pass `{option}=…`."
            )
        return name or names[0]

    def _translate(self, error):
        return DatabaseError(f"Got an error from {self._path}: {error}", "Fix the cause, and run it again.")

    def _read(self, query, values=()):
        with self._errors():
            return self._client.execute(query, values).fetchall()

    def _change(self, change):
        """Run a change in one transaction."""
        with self._errors():
            self._client.execute("BEGIN IMMEDIATE")
            try:
                result = change()
                self._client.execute("COMMIT")
                return result
            except BaseException:
                self._client.execute("ROLLBACK")
                raise

    # ---- the state, and its changes ----------------------------------------------------------------------------------

    @property
    def _subject(self):
        return f"{self._path} {self._table}"

    def _column_names(self):
        return {row[1]: row[2] for row in self._read(f"PRAGMA table_info({quoted(self._table)})")}

    def _made(self):
        ((mark,),) = self._read(f"SELECT mark FROM {quoted(self._marks)}")
        return NewVectors(**json.loads(mark))

    def _create(self, new):
        _, _, column = self._names()
        self._read(f"ALTER TABLE {quoted(self._table)} ADD COLUMN {quoted(column)} BLOB")
        self._read(f"CREATE TABLE {quoted(self._marks)} (mark TEXT)")
        self._read(f"INSERT INTO {quoted(self._marks)} VALUES (?)", [json.dumps(new._asdict())])

    def _rename(self, shown, hidden):
        for old, new in ((self._column, self._column + hidden), (self._column + shown, self._column)):
            self._read(f"ALTER TABLE {quoted(self._table)} RENAME COLUMN {quoted(old)} TO {quoted(new)}")

    def _drop(self, column, unmark=None):
        self._read(f"ALTER TABLE {quoted(self._table)} DROP COLUMN {quoted(column)}")
        self._read(f"DROP TABLE {quoted(self._marks)}")

    # ---- rows --------------------------------------------------------------------------------------------------------

    def info(self):
        column = self._name("old")
        rows = self._count(column)
        first = self._read(f"SELECT {quoted(self._ids)}, {quoted(column)} FROM {quoted(self._table)} LIMIT 1")
        id_, vector = first[0] if first else ("", b"")
        return DatabaseInfo(
            place=self._subject,
            rows=rows,
            rows_without=self._count(self._ids) - rows,
            dim=len(vector or b"") // 4,
            id_type="int" if isinstance(id_, int) else "text",
        )

    @property
    def _where(self):
        return "TRUE" if self._rows is None else f"({self._rows}\n)"

    def _count(self, column):
        query = f"SELECT count({quoted(column)}) FROM {quoted(self._table)} WHERE {self._where}"
        return self._read(query)[0][0]

    def count(self, side="old"):
        return self._count(self._name(side))

    def _block(self, side, condition, values):
        column, ids = quoted(self._name(side)), quoted(self._ids)
        modality = quoted(self._modality) if self._modality else "NULL"
        rows = self._read(
            f"SELECT {ids}, {column}, {modality} FROM {quoted(self._table)} WHERE {column} IS NOT NULL AND {condition}",
            values,
        )
        names, vectors, kinds = zip(*rows, strict=True) if rows else ((), (), ())
        return Block(
            pa.array(names, pa.int64() if names and isinstance(names[0], int) else pa.large_string()),
            np.frombuffer(b"".join(vectors), np.float32).reshape(len(rows), -1 if rows else 0),
            pa.array(kinds, pa.large_string()) if self._modality else None,
            names[-1] if names else 0,
        )

    def scan(self, side="old", *, after=None, batch=BATCH):
        ids = quoted(self._ids)
        while True:
            following, values = ("TRUE", []) if after is None else (f"{ids} > ?", [after])
            block = self._block(side, f"{self._where} AND {following} ORDER BY {ids} LIMIT {int(batch)}", values)
            if not len(block.ids):
                return
            yield block
            after = block.cursor

    def fetch(self, ids, side="old"):
        condition = f"{quoted(self._ids)} IN (SELECT value FROM json_each(?))"
        return self._block(side, condition, [json.dumps(ids.to_pylist())])

    def _store(self, ids, vectors, side="new"):
        blobs = [None] * len(ids) if vectors is None else map(bytes, vectors)
        update = f"UPDATE {quoted(self._table)} SET {quoted(self._name(side))} = ? WHERE {quoted(self._ids)} = ?"
        self._change(lambda: self._client.executemany(update, zip(blobs, ids.to_pylist(), strict=True)))

    def close(self):
        super().close()
        self._client.close()
