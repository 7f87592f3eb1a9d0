"""DuckDB tables: the new vectors are a second column of the same rows, and the switch renames both columns in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_choice
from congruence.databases._address import Address
from congruence.databases._base import Capabilities, Side, Stage, owned
from congruence.databases._duckdb_reader import DuckDBReader
from congruence.databases._duckdb_table import NEW, OLD, literal, quoted
from congruence.databases._metadata import MARK_KEY
from congruence.databases._scratch import time_scratch
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import MigrationError, ParameterError

__all__ = ["DuckDB"]

#: Maximum number of bytes of new vectors kept in memory until the next flush.
_PENDING = 64 * 2**20


class DuckDB(DuckDBReader):
    """A table of a DuckDB file.

    Parameters
    ----------
    address : Address
        Path of the file, or ``duckdb://PATH``.
    table : str, optional
        ``table`` or ``schema.table``; required if there are several.
    column : str, optional
        Column of the vectors: ``FLOAT[n]``, ``DOUBLE[n]``, ``FLOAT[]``, ``DOUBLE[]``, or ``TINYINT[n]`` for int8. May be omitted if there is
        only one such column, or only one of floats.
    ids : str, optional
        Column of the ids (integers, strings or UUIDs); by default the primary key, or ``id``.
    modality_column : str, optional
    rows : str, optional
        An SQL condition, as in a WHERE clause. It is the caller's own SQL and is trusted; the only check is that it forms a single
        query without a further statement.

    Raises
    ------
    ParameterError, FileError, DatabaseError, DatabaseUnavailableError, CorruptFileError
        If a parameter has an invalid value; a file cannot be read; the database rejects the request; the database does not answer; or a
        file is damaged.

    Notes
    -----
    Before the switch, the new vectors are in the column ``COLUMN__congruence_new``; after it, the old ones are in ``COLUMN__congruence_old``.
    Only one process can open a file for writing: while this object is open, other processes cannot open the file. DuckDB cannot rename a
    column of a table that has indexes created by CREATE INDEX, so the switch drops and recreates these in its transaction; an index over the
    vectors is then built over the new ones.
    """

    kind = "duckdb"
    capabilities = Capabilities(
        container="column",
        atomic_switch=True,
        concurrent_writes=False,
        follows_deletes=True,
        searches=True,
        filters="DuckDB SQL",
        element_types=("float32", "int8"),
    )

    def __init__(self, address: Address, **options: str | None) -> None:
        self._pending: list[pa.Table] = []
        self._dim = 0  # of the pending vectors
        super().__init__(address, **options)

    def _run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self._errors():
            self._connection.execute("BEGIN")
            try:
                for statement in statements:
                    self._connection.execute(statement)
                self._connection.execute("COMMIT")
            except BaseException:
                with _quiet():
                    self._connection.execute("ROLLBACK")
                raise

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Add the column and its comment in one transaction; see :meth:`Database.prepare`."""
        check_choice(element_type, self.capabilities.element_types, "element_type")
        number = "TINYINT" if element_type == "int8" else "FLOAT"
        wanted = {"dim": int(dim), "note": dict(note or {})}
        stage, old, new = self._names()
        if stage is not Stage.UNTOUCHED:
            kind = self._columns()[new][0]
            if (existing := self._new_facts()) != wanted or not kind.startswith(number):
                raise MigrationError(
                    f"Got new vectors of type {kind} with {existing}; expected {number} with {wanted}. Discard the new vectors first (discard)."
                )
            return
        if element_type == "int8" and any("HNSW" in index["sql"].upper() for index in self._indices()):
            raise MigrationError(
                f"Got element_type='int8' for {self._place}, which has an HNSW index; expected none, since DuckDB indexes only FLOAT columns by HNSW. "
                "Pass element_type='float32', or drop the index."
            )
        kind = f"{number}[]" if self._columns()[old][0].endswith("[]") else f"{number}[{int(dim)}]"
        self._run(
            f"ALTER TABLE {self._table.path} ADD COLUMN {quoted(new)} {kind}",
            f"COMMENT ON COLUMN {self._table.path}.{quoted(new)} IS {literal(json.dumps({MARK_KEY: wanted}))}",
        )

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Keep new vectors in memory, up to 64 MB, until :meth:`flush`; see :meth:`Database.write`."""
        # Once per flush: reading the table's description takes as long as writing a block.
        if not self._pending:
            _, self._dim = self._side("new")
        dim = self._dim
        if vectors.shape != (len(ids), dim):
            raise ParameterError(
                f"Got vectors of shape {vectors.shape}; expected {(len(ids), dim)}. Pass one row per id."
            )
        # A copy: the caller may reuse the array before the flush.
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.array(vectors, np.float32).reshape(-1)), dim)
        self._pending.append(pa.table({"id": owned(ids), "vector": lists}))
        if sum(table.nbytes for table in self._pending) > _PENDING:
            self.flush()

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Write rows to a scratch table in a temporary file on the same disk; see :meth:`Database.time_write`."""

        def make(folder: Path, n: int) -> DuckDB:
            import duckdb

            with self._errors(), duckdb.connect(str(folder / "scratch.duckdb")) as connection:
                connection.execute("CREATE TABLE scratch (id BIGINT PRIMARY KEY, vector FLOAT[1])")
                connection.execute(f"INSERT INTO scratch SELECT range, [0] FROM range({int(n)})")
            return DuckDB(Address.parse(str(folder / "scratch.duckdb")))

        return time_scratch(self._place.absolute().parent, make, vectors, element_type)

    def delete(self, ids: pa.Array) -> None:
        """Set new vectors to null; see :meth:`Database.delete`."""
        self.flush()
        column, _ = self._side("new")
        with self._registered(pa.table({"id": ids})) as name:
            self._run(
                f"UPDATE {self._table.path} SET {quoted(column)} = NULL WHERE {quoted(self._table.ids)} IN "
                f"(SELECT TRY_CAST(id AS {self._table.id_type}) FROM {name})"
            )

    def flush(self) -> None:
        """Write the pending vectors in one transaction; see :meth:`Database.flush`."""
        if not self._pending:
            return
        column, _ = self._side("new")
        table = self._table
        # For an id that was written twice, UPDATE would use either row: keep the last one.
        rows = pa.concat_tables(self._pending)
        numbered = pa.table({"id": rows["id"], "row": np.arange(len(rows))})
        last = numbered.group_by("id").aggregate([("row", "max")])["row_max"]
        if len(last) < len(rows):
            rows = rows.take(last.combine_chunks())
        with self._registered(rows) as name:
            self._run(
                f"UPDATE {table.path} AS t SET {quoted(column)} = g.vector FROM {name} AS g "
                f"WHERE t.{quoted(table.ids)} = CAST(g.id AS {table.id_type})"
            )
        self._pending.clear()

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the nearest rows by cosine: from an HNSW index if DuckDB uses one, otherwise exact."""
        self.flush()
        column, dim = self._side(side)
        query = (
            f"SELECT {self._table.id_text} AS c0 FROM {self._table.path} {self._where(f'{quoted(column)} IS NOT NULL')} "
            f"ORDER BY array_cosine_distance({self._vectors(column, dim)}, CAST(? AS FLOAT[{dim}])) LIMIT {int(k)}"
        )
        return [self._ids_of(self._read(query, row.tolist())) for row in np.asarray(queries, np.float32)]

    # ---- switch ------------------------------------------------------------------------------------------------------

    def _indices(self) -> list[dict[str, str]]:
        """Return the indexes created by CREATE INDEX: name and statement."""
        indices: list[dict[str, str]] = self._read(
            "SELECT index_name AS name, sql FROM duckdb_indexes() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = ? AND sql IS NOT NULL",
            self._table.schema,
            self._table.name,
        ).to_pylist()
        return indices

    def _without_indices(self, *statements: str) -> None:
        """Run statements that DuckDB does not allow on indexed tables: drop the indexes, run them, recreate the indexes, in one transaction."""
        indices = self._indices()
        schema = quoted(self._table.schema)
        self._run(
            *(f"DROP INDEX {schema}.{quoted(index['name'])}" for index in indices),
            *statements,
            *(index["sql"] for index in indices),
        )

    def switch(self) -> None:
        """Rename both columns in one transaction; see :meth:`Database.switch`."""
        self.flush()
        stage = self.stage()
        if stage is Stage.UNTOUCHED:
            raise no_new_vectors(str(self._place))
        if stage is Stage.PREPARED:
            self._rename(NEW, OLD)

    def rollback(self) -> None:
        """Rename both columns back in one transaction; see :meth:`Database.rollback`."""
        self.flush()
        if self.stage() is Stage.SWITCHED:
            self._rename(OLD, NEW)

    def _rename(self, shown: str, hidden: str) -> None:
        path, name = self._table.path, self._table.column
        self._without_indices(
            f"ALTER TABLE {path} RENAME COLUMN {quoted(name)} TO {quoted(name + hidden)}",
            f"ALTER TABLE {path} RENAME COLUMN {quoted(name + shown)} TO {quoted(name)}",
        )

    def drop_old(self) -> None:
        """Drop the old column; see :meth:`Database.drop_old`."""
        stage, old, new = self._names()
        if stage is not Stage.SWITCHED:
            raise not_switched(str(self._place))
        self.flush()
        path = self._table.path
        self._without_indices(
            f"ALTER TABLE {path} DROP COLUMN {quoted(old)}", f"COMMENT ON COLUMN {path}.{quoted(new)} IS NULL"
        )

    def discard(self) -> None:
        """Drop the new column; see :meth:`Database.discard`."""
        stage, _, new = self._names()
        if stage is Stage.SWITCHED:
            raise already_switched(str(self._place))
        self._pending.clear()
        if stage is Stage.PREPARED:
            self._without_indices(f"ALTER TABLE {self._table.path} DROP COLUMN {quoted(new)}")

    def close(self) -> None:
        """Close the file, so that others can open it. New vectors that were not flushed are lost."""
        self._pending.clear()
        self._connection.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore the client's error for rolling back a transaction that it has already ended."""
    import duckdb

    try:
        yield
    except duckdb.Error:
        return
