"""SQLite with sqlite-vec: new vectors are written to a second vec0 table, and the switch renames both tables in one transaction."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_choice
from congruence.databases._address import Address
from congruence.databases._base import BATCH, Block, Capabilities, Cursor, Database, DatabaseInfo, Side, Stage
from congruence.databases._scratch import time_scratch
from congruence.databases._sqlite_connection import Connection, make_scratch, quoted
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.databases._vec0 import Vec0, rename
from congruence.errors import FileError, MigrationError, ParameterError

if TYPE_CHECKING:
    from congruence.databases._client_types import Row, SQLConnection

__all__ = ["SQLite"]

#: Seconds to wait for another writer.
BUSY_SECONDS = 5.0

#: Number of recently read rows whose other columns are cached: to return another column of a row, vec0 also reads the whole vector.
_REMEMBERED = 2**17

_DISTANCES = {"cosine": "cosine", "l2": "l2"}


class SQLite(Database):
    """A vec0 table with float, int8 or bit vectors.

    vec0 has no NULL, no UPSERT and no way to add a column, and its ``ALTER TABLE … RENAME`` does not rename the tables that hold its data;
    the switch renames these too. The new table has copies of the other columns, which are updated at the switch.
    After the switch, the application writes to the new table only, so a rollback shows the rows as they were at the switch.

    Parameters
    ----------
    address : Address
        Path of the file, or ``sqlite:///file``.
    table, column, ids, modality_column : str, optional
        See :func:`congruence.databases.open_database`.
    rows : str, optional
        Not supported: rows without a new vector would be missing from the new table.

    Raises
    ------
    ParameterError, FileError, CorruptFileError, DatabaseError, DatabaseUnavailableError, MissingExtraError
        If a parameter has an invalid value; a file cannot be read; a file is damaged; the database rejects the request; the database does
        not answer; or an optional dependency is not installed.
    """

    kind = "sqlite-vec"
    capabilities = Capabilities(
        container="table",
        atomic_switch=True,
        concurrent_writes=True,
        follows_deletes=False,
        searches=True,
        element_types=("float32", "int8", "binary"),
    )

    _column: str | None = None

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
        if rows is not None:
            raise ParameterError(
                f"Got rows={rows!r} for a vec0 table; expected none, since rows that are left out would be missing after the switch. "
                "Leave rows= out."
            )
        self._path = Path(re.sub(r"^sqlite:///?", "", address.text))
        if not self._path.is_file():
            raise FileError(
                f"Got {self._path}, which is not a file; expected an SQLite database. Pass the path of one."
            )
        self._connection = Connection(self._path, BUSY_SECONDS)
        self._others: dict[int | str, Row] = {}
        self._table = self._find_table(table)
        self._place = f"{self._path} {self._table}"
        vec0 = self._vec0(column)
        self._column, self._modality = vec0.column, modality_column
        if ids not in (None, vec0.ids):
            raise ParameterError(f"Got ids={ids!r}; expected {vec0.ids!r}, the primary key. Leave ids= out.")
        if modality_column is not None and modality_column not in vec0.others:
            raise ParameterError(
                f"Got modality_column={modality_column!r}; expected one of {', '.join(vec0.others)}. "
                "Pass the name of a column (modality_column=)."
            )

    def _statements(self) -> dict[str, str]:
        """Return the vec0 tables with their CREATE statements."""
        tables = self._connection.read(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
        )
        return {name: text for name, text in tables if re.search(r"\busing\s+vec0\s*\(", text, re.IGNORECASE)}

    def _find_table(self, table: str | None) -> str:
        names = [name for name in self._statements() if not re.search(r"__congruence_(old|new)$", name)]
        if table is None and len(names) == 1:
            return names[0]
        if table not in names:
            raise ParameterError(
                f"Got table={table!r} for {self._path}; expected one of {', '.join(names) or 'none, since there is no vec0 table'}. "
                "Pass the name of a vec0 table (table=)."
            )
        return table

    def _vec0(self, column: str | None = None, side: Side = "old") -> Vec0:
        name = self._name(side)
        return Vec0.parse(name, self._statements()[name], column or self._column)

    def _name(self, side: Side) -> str:
        """Return the current name of a side's table."""
        switched = self.stage() is Stage.SWITCHED
        if side == "old":
            return f"{self._table}__congruence_old" if switched else self._table
        return self._table if switched else f"{self._table}__congruence_new"

    @property
    def _note_table(self) -> str:
        return f"{self._table}__congruence_note"

    def _keys(self, table: str, vec0: Vec0) -> str:
        """Return a subquery over the ordinary table of ids that vec0 keeps: a vec0 table itself cannot be read in a stable order."""
        return f"(SELECT {'id' if vec0.id_type == 'text' else 'rowid'} AS id FROM {quoted(table + '_rowids')})"

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the table; sqlite-vec has no index and searches exactly."""
        vec0 = self._vec0()
        return DatabaseInfo(
            place=self._place,
            rows=self.count(),
            dim=vec0.dim,
            element_type=vec0.element_type,
            distance=None if vec0.element_type == "binary" else _DISTANCES.get(vec0.metric),
            id_type=vec0.id_type,
            columns=vec0.others,
            free_bytes=shutil.disk_usage(self._path.resolve().parent).free,
        )

    def stage(self) -> Stage:
        """Return the state of the migration, according to the names of the tables."""
        tables = self._statements()
        if f"{self._table}__congruence_old" in tables:
            return Stage.SWITCHED
        return Stage.PREPARED if f"{self._table}__congruence_new" in tables else Stage.UNTOUCHED

    def note(self) -> Mapping[str, str]:
        """Return the note, which is stored in a separate table."""
        if not self._connection.read("SELECT 1 FROM sqlite_master WHERE name = ?", [self._note_table]):
            return {}
        rows = self._connection.read(f"SELECT note FROM {quoted(self._note_table)}")
        return dict(json.loads(rows[0][0])) if rows else {}

    def _read_rows(self, side: Side, id_query: str, values: Sequence[object]) -> list[Row]:
        """Return modality, id, vector and the other columns of the rows whose ids a subquery returns, in the same order."""
        name, vec0 = self._name(side), self._vec0(side=side)
        modality = f"CAST(t.{quoted(self._modality)} AS TEXT)" if self._modality else "NULL"
        columns = ", ".join(f"t.{column}" for column in (vec0.ids, vec0.column, *vec0.others))
        # CROSS JOIN makes SQLite look up each row by its id instead of reading the whole vec0 table.
        join = f"CROSS JOIN {quoted(name)} AS t ON t.{vec0.ids} = k.id"
        return self._connection.read(f"SELECT {modality}, {columns} FROM {id_query} AS k {join}", values)

    def _read_block(self, side: Side, id_query: str, values: Sequence[object]) -> Block:
        """Return the rows whose ids a subquery returns, and cache the other columns of old ones."""
        vec0, rows = self._vec0(side=side), self._read_rows(side, id_query, values)
        # Not if there are other vector columns, which would need too much memory.
        if side == "old" and rows and not any(isinstance(value, bytes) for value in rows[0][3:]):
            with self._connection.lock:
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

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows in the order of their ids."""
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

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return the rows of these ids that exist."""
        if side == "new" and self.stage() is Stage.UNTOUCHED:
            vec0 = self._vec0()
            return Block(ids.slice(0, 0), np.empty((0, vec0.dim), np.float32), None, 0)
        return self._read_block(side, "(SELECT value AS id FROM json_each(?))", [json.dumps(ids.to_pylist())])

    def count(self, side: Side = "old") -> int:
        """Return how many rows there are; each has a vector."""
        if side == "new" and self.stage() is Stage.UNTOUCHED:
            return 0
        return int(self._connection.read(f"SELECT count(*) FROM {quoted(self._name(side) + '_rowids')}")[0][0])

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query, by vec0's exact search."""
        name, vec0 = self._name(side), self._vec0(side=side)
        statement = f"SELECT {vec0.ids} FROM {quoted(name)} WHERE {vec0.column} MATCH {vec0.value} AND k = {int(k)} ORDER BY distance"
        results = [self._connection.read(statement, [blob.tobytes()]) for blob in vec0.blobs(np.asarray(queries))]
        return [pa.array([id_ for (id_,) in rows], vec0.id_array_type) for rows in results]

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows were deleted; nothing after the switch, because rows are then added to the new table only."""
        if self.stage() is not Stage.PREPARED:
            return
        vec0, after = self._vec0(), None
        values: list[int | str]
        while True:
            condition, values = ("", []) if after is None else ("id > ? AND", [after])
            rows = self._connection.read(f"{self._orphaned(vec0, condition)} ORDER BY id LIMIT {int(batch)}", values)
            if not rows:
                return
            after = rows[-1][0]
            yield pa.array([id_ for (id_,) in rows], vec0.id_array_type)

    def _orphaned(self, vec0: Vec0, condition: str = "") -> str:
        """Return a query for the ids of new vectors whose rows were deleted."""
        new, old = (self._keys(self._name(side), vec0) for side in ("new", "old"))
        return f"SELECT n.id FROM {new} AS n WHERE {condition} NOT EXISTS (SELECT 1 FROM {old} AS o WHERE o.id = n.id)"

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create a table with the same columns and vectors of the new width and type."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        wanted_note = {str(key): str(value) for key, value in (note or {}).items()}
        with self._connection.writing() as connection:
            if self.stage() is not Stage.UNTOUCHED:
                existing, existing_note = self._vec0(side="new"), dict(self.note())
                if (existing.dim, existing.element_type, existing_note) != (dim, element_type, wanted_note):
                    raise MigrationError(
                        f"Got {element_type}[{dim}] with the note {wanted_note} for {self._place}, whose new table already has "
                        f"{existing.type}[{existing.dim}] with {existing_note}; expected the same. Discard the new vectors first."
                    )
                return
            connection.execute(self._vec0().create(self._name("new"), dim, element_type))
            connection.execute(f"CREATE TABLE {quoted(self._note_table)} (note TEXT NOT NULL)")
            connection.execute(f"INSERT INTO {quoted(self._note_table)} VALUES (?)", [json.dumps(wanted_note)])

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Insert rows with the other columns of the user's table; each call is a transaction."""
        with self._connection.writing() as connection:
            self._write(connection, ids, vectors)

    def _write(self, connection: SQLConnection, ids: pa.Array, vectors: np.ndarray) -> None:
        if self.stage() is Stage.UNTOUCHED:
            raise no_new_vectors(self._place)
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
        """Insert rows of an id and a vector into a temporary file next to this one; see :meth:`Database.time_write`."""

        def make(folder: Path, n: int) -> SQLite:
            with self._connection.errors():
                make_scratch(folder / "scratch.sqlite", n)
            return SQLite(Address.parse(str(folder / "scratch.sqlite")))

        return time_scratch(self._path.resolve().parent, make, vectors, element_type)

    def delete(self, ids: pa.Array) -> None:
        """Remove rows of the new table."""
        vec0, new = self._vec0(), self._name("new")
        with self._connection.writing() as connection:
            statement = f"DELETE FROM {quoted(new)} WHERE {vec0.ids} = ?"
            connection.executemany(statement, [(id_,) for id_ in ids.to_pylist()])

    # ---- switch and rollback -----------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Rename both tables in one transaction, after updating the other columns.

        Raises
        ------
        MigrationError
            If there are no new vectors, or some rows have none.
        """
        with self._connection.writing() as connection:
            stage = self.stage()
            if stage is Stage.SWITCHED:
                return
            if stage is Stage.UNTOUCHED:
                raise no_new_vectors(self._place)
            vec0, old, new = self._vec0(), self._name("old"), self._name("new")
            for orphan in connection.execute(self._orphaned(vec0)).fetchall():
                connection.execute(f"DELETE FROM {quoted(new)} WHERE {vec0.ids} = ?", orphan)
            missing = self.count("old") - self.count("new")
            if missing:
                raise MigrationError(
                    f"Got {missing} rows of {self._place} without a new vector; expected one for each row. Write the missing vectors, then switch."
                )
            if vec0.others:
                differs = " OR ".join(f"o.{name} IS NOT n.{name}" for name in vec0.others)
                changed = connection.execute(
                    f"SELECT o.{vec0.ids} FROM {quoted(old)} AS o CROSS JOIN {quoted(new)} AS n ON n.{vec0.ids} = o.{vec0.ids} WHERE {differs}"
                ).fetchall()
                if changed:
                    self._others.clear()
                    block = self.fetch(pa.array([id_ for (id_,) in changed]), "new")
                    self._write(connection, block.ids, block.vectors)
            rename(connection, old, f"{self._table}__congruence_old")
            rename(connection, new, self._table)

    def rollback(self) -> None:
        """Rename both tables back in one transaction."""
        with self._connection.writing() as connection:
            if self.stage() is Stage.SWITCHED:
                rename(connection, self._table, f"{self._table}__congruence_new")
                rename(connection, f"{self._table}__congruence_old", self._table)

    def drop_old(self) -> None:
        """Drop the old table."""
        with self._connection.writing() as connection:
            if self.stage() is not Stage.SWITCHED:
                raise not_switched(self._place)
            self._remove(connection, self._name("old"))

    def discard(self) -> None:
        """Drop the new table."""
        with self._connection.writing() as connection:
            stage = self.stage()
            if stage is Stage.SWITCHED:
                raise already_switched(self._place)
            if stage is Stage.PREPARED:
                self._remove(connection, self._name("new"))

    def _remove(self, connection: SQLConnection, name: str) -> None:
        connection.execute(f"DROP TABLE {quoted(name)}")
        connection.execute(f"DROP TABLE {quoted(self._note_table)}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
