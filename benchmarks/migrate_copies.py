"""Tables for ``bench_migrate.py``: created as users of each database create them, and copied with its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

#: Rows per batch of a copy.
BATCH = 4096


def rows(start: int, stop: int, dim: int) -> np.ndarray:
    found = np.random.default_rng([7, start]).standard_normal((stop - start, dim)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def lists(matrix: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def tables(n: int, dim: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, n, 8192):
        stop = min(start + 8192, n)
        ids = pa.array([f"photo {k}" for k in range(start, stop)])
        yield pa.record_batch(
            [pa.array(range(start, stop)), ids, lists(rows(start, stop, dim))], ["id", "name", "embedding"]
        )


class Product:
    """The product that a mapped copy applies to each batch, with the matrix that ``bench_migrate.py`` wrote to the
    folder.
    """

    def __init__(self, folder: Path) -> None:
        self.matrix = np.load(folder / "matrix.npy")

    def __call__(self, matrix: np.ndarray) -> np.ndarray:
        return matrix @ self.matrix


# ---- the databases: created as their users do, and copied with their own clients
# -----------------------------------------


class LanceDB:
    file = "items.lance"

    @staticmethod
    def make(folder: Path, n: int, dim: int) -> None:
        import lancedb

        batches = tables(n, dim)
        first = next(batches)
        table = lancedb.connect(folder).create_table("items", pa.Table.from_batches([first]))
        if n > len(first):
            table.add(pa.RecordBatchReader.from_batches(first.schema, batches))

    @staticmethod
    def copy(place: Path, dim: int, product: Product | None) -> None:
        import lance

        data = lance.dataset(str(place))  # a data set that is being changed cannot be read

        def copied() -> Iterator[pa.RecordBatch]:
            for batch in lance.dataset(str(place)).to_batches(columns=["embedding"], batch_size=BATCH):
                column = batch.column(0)
                if product is not None:
                    column = lists(product(column.flatten().to_numpy().reshape(len(column), dim)))
                yield pa.record_batch([column], ["copied"])

        schema = pa.schema([("copied", pa.list_(pa.float32(), dim))])
        data.add_columns(pa.RecordBatchReader.from_batches(schema, copied()))


class DuckDB:
    file = "items.duckdb"

    @staticmethod
    def make(folder: Path, n: int, dim: int) -> None:
        import duckdb

        with duckdb.connect(str(folder / DuckDB.file)) as connection:
            connection.execute(f"CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR, embedding FLOAT[{dim}])")
            for batch in tables(n, dim):
                connection.register("batch", pa.Table.from_batches([batch]))
                connection.execute("INSERT INTO items SELECT * FROM batch")

    @staticmethod
    def copy(place: Path, dim: int, product: Product | None) -> None:
        import duckdb

        with duckdb.connect(str(place)) as connection:
            connection.execute(f"CREATE TABLE copied (id BIGINT PRIMARY KEY, embedding FLOAT[{dim}])")
            reader = connection.cursor().sql("SELECT id, embedding FROM items").to_arrow_reader(BATCH)
            connection.execute("BEGIN")
            for batch in reader:
                ids, column = batch.columns
                if product is not None:
                    column = lists(product(column.flatten().to_numpy().reshape(len(column), dim)))
                connection.register("batch", pa.table({"id": ids, "embedding": column}))
                connection.execute("INSERT INTO copied SELECT * FROM batch")
            connection.execute("COMMIT")

    @staticmethod
    def inside(place: Path, dim: int) -> None:
        import duckdb

        with duckdb.connect(str(place)) as connection:
            connection.execute(f"CREATE TABLE copied (id BIGINT PRIMARY KEY, embedding FLOAT[{dim}])")
            connection.execute("INSERT INTO copied SELECT id, embedding FROM items")


class SQLite:
    file = "items.sqlite"

    @staticmethod
    def connect(place: Path) -> Any:
        import sqlite_vec

        from congruence.databases.sqlite import sqlite_module

        connection = sqlite_module().connect(str(place), isolation_level=None)
        connection.enable_load_extension(True)
        sqlite_vec.load(connection)
        connection.execute(
            "PRAGMA cache_size = -65536"
        )  # with SQLite's default of 2 MB a copy takes four times as long
        return connection

    @staticmethod
    def make(folder: Path, n: int, dim: int) -> None:
        connection = SQLite.connect(folder / SQLite.file)
        connection.execute(
            f"CREATE VIRTUAL TABLE items USING vec0(id INTEGER PRIMARY KEY, embedding float[{dim}], +name TEXT)"
        )
        connection.execute("BEGIN")
        for batch in tables(n, dim):
            matrix = batch.column(2).flatten().to_numpy().reshape(-1, dim)
            values = zip(batch.column(0).to_pylist(), matrix, batch.column(1).to_pylist(), strict=True)
            connection.executemany("INSERT INTO items (id, embedding, name) VALUES (?, ?, ?)", values)
        connection.execute("COMMIT")
        connection.close()

    @staticmethod
    def copy(place: Path, dim: int, product: Product | None) -> None:
        connection = SQLite.connect(place)
        connection.execute(
            f"CREATE VIRTUAL TABLE copied USING vec0(id INTEGER PRIMARY KEY, embedding float[{dim}], +name TEXT)"
        )
        connection.execute("BEGIN")
        cursor = connection.execute("SELECT id, embedding, name FROM items")
        while found := cursor.fetchmany(BATCH):
            if product is not None:
                matrix = np.frombuffer(b"".join(one for _, one, _ in found), np.float32).reshape(-1, dim)
                found = [(one, row, name) for (one, _, name), row in zip(found, product(matrix), strict=True)]
            connection.executemany("INSERT INTO copied (id, embedding, name) VALUES (?, ?, ?)", found)
        connection.execute("COMMIT")
        connection.close()

    @staticmethod
    def inside(place: Path, dim: int) -> None:
        connection = SQLite.connect(place)
        connection.execute(
            f"CREATE VIRTUAL TABLE copied USING vec0(id INTEGER PRIMARY KEY, embedding float[{dim}], +name TEXT)"
        )
        connection.execute("INSERT INTO copied (id, embedding, name) SELECT id, embedding, name FROM items")
        connection.close()


class PgVector:
    """One server for all variants; each has its own database, created from one template."""

    file = "server"

    @staticmethod
    def make(folder: Path, n: int, dim: int) -> None:
        import psycopg

        with psycopg.connect((folder / PgVector.file).read_text()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION vector")
            cursor.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, name text, embedding vector({dim}))")
            from congruence.databases.pgvector import copy_stream, encode_vectors

            for batch in tables(n, dim):
                matrix = batch.column(2).flatten().to_numpy().reshape(-1, dim)
                with cursor.copy("COPY items (id, embedding) FROM STDIN (FORMAT BINARY)") as copy:
                    ids = batch.column(0).to_numpy().astype(">i8").view(np.uint8).reshape(-1, 8)
                    copy.write(copy_stream(ids, encode_vectors(matrix, "vector")))
            cursor.execute("UPDATE items SET name = 'photo ' || id")
            connection.commit()
            connection.autocommit = True
            cursor.execute("VACUUM FULL items")
            cursor.execute("CHECKPOINT")

    @staticmethod
    def copy(place: Path, dim: int, product: Product | None) -> None:
        import psycopg

        address = place.read_text()
        with psycopg.connect(address) as source, psycopg.connect(address) as sink:
            sink.execute(f"CREATE TABLE copied (id bigint PRIMARY KEY, embedding vector({dim}))")
            into = "COPY copied (id, embedding) FROM STDIN (FORMAT BINARY)"
            with (
                source.cursor().copy("COPY (SELECT id, embedding FROM items) TO STDOUT (FORMAT BINARY)") as reader,
                sink.cursor().copy(into) as writer,
            ):
                for piece in PgVector.mapped(reader, dim, product) if product is not None else reader:
                    writer.write(piece)

    @staticmethod
    def mapped(reader: Any, dim: int, product: Product) -> Iterator[bytes]:
        """Yield the stream with mapped vectors.

        Rows have a fixed width: fields, length and id, length, dimensions, zero and numbers.
        """
        kind = np.dtype([("head", "V14"), ("tail", "V8"), ("vector", ">f4", (dim,))])
        buffer = bytearray()
        begun = False
        for piece in reader:
            buffer += piece
            if not begun and len(buffer) >= 19:
                yield bytes(buffer[:19])
                del buffer[:19]
                begun = True
            n = len(buffer) // kind.itemsize
            if n >= BATCH:
                yield PgVector._product(buffer, n, kind, product)
        n = len(buffer) // kind.itemsize
        if n:
            yield PgVector._product(buffer, n, kind, product)
        yield bytes(buffer)

    @staticmethod
    def _product(buffer: bytearray, n: int, kind: np.dtype, product: Product) -> bytes:
        found = np.frombuffer(bytes(buffer[: n * kind.itemsize]), kind).copy()
        found["vector"] = product(found["vector"].astype(np.float32))
        del buffer[: n * kind.itemsize]
        return found.tobytes()

    @staticmethod
    def inside(place: Path, dim: int) -> None:
        import psycopg

        with psycopg.connect(place.read_text()) as connection:
            connection.execute(f"CREATE TABLE copied (id bigint PRIMARY KEY, embedding vector({dim}))")
            connection.execute("INSERT INTO copied SELECT id, embedding FROM items")


KINDS: dict[str, Any] = {"lancedb": LanceDB, "duckdb": DuckDB, "sqlite-vec": SQLite, "pgvector": PgVector}
