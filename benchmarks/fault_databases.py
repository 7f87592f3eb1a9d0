"""The databases that ``migrate_faults.py`` migrates: created, copied and read with their own clients, as users do."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "databases"))

#: Rows per batch of reads and writes.
BATCH = 8192

#: Ids, int64 of shape (b,), and vectors, float32 of shape (b, dim).
Rows = tuple[np.ndarray, np.ndarray]


class Kind:
    """A kind of database with a table ``items``: ids, the modality (image or text) in ``kind``, and vectors in
    ``embedding``.

    Attributes
    ----------
    modules : tuple of str
        Modules that a process of the migration imports.
    inner : tuple of str
        Functions in ``congruence.databases`` or in the client that change something and are called by the methods of a
        database.
    several_processes : bool
        Whether another process can write while a migration runs.
    allows_repeated_ids : bool
        Whether an id can occur twice.
    """

    modules: ClassVar[tuple[str, ...]]
    inner: ClassVar[tuple[str, ...]] = ()
    several_processes: ClassVar[bool] = False
    allows_repeated_ids: ClassVar[bool] = False

    def __init__(self, disk: Path | None = None) -> None:
        """Start the server, if there is one, on the given disk or in the folder of temporary files."""

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        """Create the table inside an existing folder."""
        raise NotImplementedError

    def where(self, place: Path) -> str:
        """Return the address of the table that :meth:`make` created there."""
        raise NotImplementedError

    def copy(self, first: Path, place: Path) -> None:
        shutil.copytree(first, place)

    def remove(self, place: Path) -> None:
        shutil.rmtree(place)

    def options(self) -> dict[str, str]:
        return {"table": "items", "modality_column": "kind"}

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        """Yield the rows that have a vector: those that readers see (``shown``), those of the old side, or those of the
        new one.
        """
        raise NotImplementedError

    def change(
        self,
        place: Path,
        added: list[tuple[int, np.ndarray, str]],
        changed: list[tuple[int, np.ndarray]],
        gone: list[int],
    ) -> None:
        """Add rows, give rows another vector, and delete rows, as an application does."""
        raise NotImplementedError

    def application(self, place: Path) -> Kind:
        """Return an object that can be passed to another process to :meth:`change` the table."""
        return self

    def close(self) -> None:
        """Stop the server, if there is one."""


def suffix(side: str, switched: bool) -> str:
    """Return the suffix of the name of a column, table or collection."""
    return {"shown": "", "old": "__congruence_old" * switched, "new": "" if switched else "__congruence_new"}[side]


def lists(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def from_lists(column: pa.Array) -> np.ndarray:
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    return np.asarray(column.flatten()).reshape(len(column), -1)


class Lance(Kind):
    modules = ()  # Lance must not be imported before a fork
    inner = (
        "congruence.databases.lancedb.ColumnWriter.add",
        "congruence.databases.lancedb.ColumnWriter.close",
        "congruence.databases.lancedb.commit",
        "lance.LanceDataset.alter_columns",
        "lance.LanceDataset.update_field_metadata",
    )
    several_processes = True
    allows_repeated_ids = True

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        import lancedb

        table = None
        size = -(-len(ids) // 5)  # five fragments
        for start in range(0, len(ids), size):
            some = slice(start, start + size)
            columns = {"id": ids[some], "kind": kinds[some], "embedding": lists(rows[some])}
            if table is None:
                table = lancedb.connect(place).create_table("items", pa.table(columns))
            else:
                table.add(pa.table(columns))

    def where(self, place: Path) -> str:
        return str(place / "items.lance")

    def copy(self, first: Path, place: Path) -> None:
        # Lance never writes to a file that a version refers to; the first table is compared at the end.
        same = first.stat().st_dev == place.parent.stat().st_dev
        shutil.copytree(first, place, copy_function=os.link if same else shutil.copy2)

    def options(self) -> dict[str, str]:
        return {"modality_column": "kind"}

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        import lance

        column = "embedding" + suffix(side, switched)
        data = lance.dataset(self.where(place))
        for batch in data.to_batches(columns=["id", column], filter=f"{column} IS NOT NULL", batch_size=BATCH):
            if len(batch):
                yield np.asarray(batch.column("id")), from_lists(batch.column(column))

    def change(self, place: Path, added: list[Any], changed: list[Any], gone: list[int]) -> None:
        import lancedb

        table = lancedb.connect(place).open_table("items")
        if added:
            ids, rows, kinds = zip(*added, strict=True)
            columns = {"id": pa.array(ids, pa.int64()), "kind": list(kinds), "embedding": lists(np.stack(rows))}
            table.add(pa.table(columns))
        for one, row in changed:
            table.update(where=f"id = {one}", values={"embedding": row.tolist()})
        if gone:
            table.delete(f"id IN ({', '.join(map(str, gone))})")


class Duck(Kind):
    modules = ("duckdb",)
    inner = ("congruence.databases.duckdb.DuckDB._run",)
    allows_repeated_ids = True

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        import duckdb

        key = " PRIMARY KEY" if len(set(ids.tolist())) == len(ids) else ""
        table = pa.table({"id": ids, "kind": kinds, "embedding": lists(rows)})
        with duckdb.connect(self.where(place)) as connection:
            connection.register("given", table)
            connection.execute(f"CREATE TABLE items (id BIGINT{key}, kind VARCHAR, embedding FLOAT[{rows.shape[1]}])")
            connection.execute("INSERT INTO items SELECT * FROM given")

    def where(self, place: Path) -> str:
        return str(place / "photos.duckdb")

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        import duckdb

        column = "embedding" + suffix(side, switched)
        with duckdb.connect(self.where(place)) as connection:
            found = connection.execute(
                f'SELECT id, "{column}" FROM items WHERE "{column}" IS NOT NULL'
            ).to_arrow_reader(BATCH)
            for batch in found:
                yield np.asarray(batch.column(0)), from_lists(batch.column(1))


class Sqlite(Kind):
    modules = ("sqlite_vec",)
    several_processes = True

    def _connect(self, place: Path) -> Any:
        import sqlite_vec

        try:
            import pysqlite3.dbapi2 as sqlite3  # if Python's own sqlite3 cannot load extensions
        except ImportError:
            import sqlite3

        connection = sqlite3.connect(self.where(place), isolation_level=None, timeout=30)
        connection.enable_load_extension(True)
        sqlite_vec.load(connection)
        return connection

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        connection = self._connect(place)
        connection.execute(
            f"CREATE VIRTUAL TABLE items USING vec0(id integer primary key, embedding float[{rows.shape[1]}] "
            "distance_metric=cosine, kind text)"
        )
        connection.execute("BEGIN")
        given = zip(ids.tolist(), rows, kinds.tolist(), strict=True)
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", given)
        connection.execute("COMMIT")
        connection.close()

    def where(self, place: Path) -> str:
        return str(place / "photos.sqlite")

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        connection = self._connect(place)
        found = connection.execute(f'SELECT id, embedding FROM "items{suffix(side, switched)}"')
        while some := found.fetchmany(BATCH):
            ids, rows = zip(*some, strict=True)
            yield np.array(ids), np.frombuffer(b"".join(rows), "<f4").reshape(len(ids), -1)
        connection.close()

    def change(self, place: Path, added: list[Any], changed: list[Any], gone: list[int]) -> None:
        connection = self._connect(place)
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", added)
        connection.executemany("UPDATE items SET embedding = ? WHERE id = ?", [(row, one) for one, row in changed])
        connection.executemany("DELETE FROM items WHERE id = ?", [(one,) for one in gone])
        connection.close()


class ChromaDb(Kind):
    modules = ("chromadb",)
    inner = ("chromadb.api.models.Collection.Collection.modify",)

    def _client(self, place: Path) -> Any:
        import chromadb

        return chromadb.PersistentClient(path=str(place / "db"))

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        configuration = {"hnsw": {"space": "cosine"}}
        made = self._client(place).create_collection("items", configuration=configuration, embedding_function=None)
        for start in range(0, len(ids), 4096):
            some = slice(start, start + 4096)
            metadatas = [{"kind": str(one)} for one in kinds[some]]
            made.add(ids=[str(one) for one in ids[some]], embeddings=rows[some], metadatas=metadatas)

    def where(self, place: Path) -> str:
        return f"chroma://{place}/db"

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        collection = self._client(place).get_collection("items" + suffix(side, switched), embedding_function=None)
        for start in range(0, collection.count(), 4096):
            found = collection.get(include=["embeddings"], limit=4096, offset=start)
            yield np.array(found["ids"]).astype(np.int64), np.asarray(found["embeddings"], np.float32)


class QdrantDb(Kind):
    """A folder in the client's local mode. Readers use the alias ``items``."""

    modules = ("qdrant_client",)

    def _client(self, place: Path) -> Any:
        from qdrant_client import QdrantClient

        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        return QdrantClient(path=str(place / "db"))

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        from qdrant_client import models

        client = self._client(place)
        client.create_collection("items_v1", models.VectorParams(size=rows.shape[1], distance=models.Distance.DOT))
        for start in range(0, len(ids), BATCH):
            some = slice(start, start + BATCH)
            payloads = [{"kind": str(one)} for one in kinds[some]]
            client.upsert(
                "items_v1", models.Batch(ids=ids[some].tolist(), vectors=rows[some].tolist(), payloads=payloads)
            )
        alias = models.CreateAlias(collection_name="items_v1", alias_name="items")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        client.close()

    def where(self, place: Path) -> str:
        return f"qdrant://{place}/db"

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        client = self._client(place)
        name = {"shown": "items", "old": "items_v1", "new": "items_v1__congruence_new"}[side]
        offset: Any = None
        while True:
            found, offset = client.scroll(name, limit=BATCH, offset=offset, with_vectors=True, with_payload=False)
            if found:
                yield np.array([one.id for one in found]), np.array([one.vector for one in found], np.float32)
            if offset is None:
                break
        client.close()


class Postgres(Kind):
    """A separate server; each copy of the table is one of its databases."""

    address = ""
    modules = ("psycopg",)
    several_processes = True

    def __init__(self, disk: Path | None = None) -> None:
        from postgres_server import PostgresServer

        tempfile.tempdir = None if disk is None else str(disk)
        self.server = PostgresServer()
        tempfile.tempdir = None

    def _run(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(statement)

    def make(self, place: Path, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> None:
        import psycopg

        self._run(f"CREATE DATABASE {place.name}")
        with psycopg.connect(self.where(place), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            unique = "PRIMARY KEY" if len(set(ids.tolist())) == len(ids) else ""
            connection.execute(f"CREATE TABLE items (id bigint {unique}, kind text, embedding vector({rows.shape[1]}))")
            with connection.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
                for one, kind, row in zip(ids.tolist(), kinds.tolist(), rows, strict=True):
                    copy.write_row((one, kind, shown(row)))
            connection.execute(
                "CREATE INDEX ON items USING hnsw (embedding vector_cosine_ops) WITH (m = 8, ef_construction = 32)"
            )

    def where(self, place: Path) -> str:
        # As in the default settings of a server: committed data survives a crash.
        return self.address or self.server.url(place.name, options="-csynchronous_commit=on")

    def copy(self, first: Path, place: Path) -> None:
        shutil.copytree(first, place)
        self._run(f"CREATE DATABASE {place.name} TEMPLATE {first.name} STRATEGY file_copy")

    def remove(self, place: Path) -> None:
        shutil.rmtree(place)
        self._run(f"DROP DATABASE {place.name} WITH (FORCE)")

    def read(self, place: Path, side: str, switched: bool = False) -> Iterator[Rows]:
        import psycopg

        column = "embedding" + suffix(side, switched)
        with psycopg.connect(self.where(place)) as connection, connection.cursor("rows", binary=True) as cursor:
            cursor.execute(f"SELECT id, {column} FROM items WHERE {column} IS NOT NULL")
            while some := cursor.fetchmany(BATCH):
                ids, rows = zip(*some, strict=True)
                dim = int.from_bytes(rows[0][:2], "big")
                words = np.frombuffer(b"".join(rows), ">f4").reshape(len(ids), dim + 1)
                yield np.array(ids), words[:, 1:].astype(np.float32)

    def change(self, place: Path, added: list[Any], changed: list[Any], gone: list[int]) -> None:
        import psycopg

        with psycopg.connect(self.where(place), autocommit=True) as connection:
            for one, row, kind in added:
                connection.execute(
                    "INSERT INTO items (id, kind, embedding) VALUES (%s, %s, %s)", (one, kind, shown(row))
                )
            for one, row in changed:
                connection.execute("UPDATE items SET embedding = %s WHERE id = %s", (shown(row), one))
            for one in gone:
                connection.execute("DELETE FROM items WHERE id = %s", (one,))

    def application(self, place: Path) -> Kind:
        other = copy.copy(self)
        other.address = self.where(place)
        del other.server
        return other

    def restart(self) -> None:
        """Close all connections and restart the server, like ``pg_ctl restart -m immediate``."""
        self.server.process.send_signal(signal.SIGQUIT)
        self.server.process.wait(30)
        self.server.start()

    def close(self) -> None:
        self.server.remove()


def shown(row: np.ndarray) -> str:
    """Return a vector in pgvector's text format."""
    return "[" + ",".join(map(repr, row.tolist())) + "]"


KINDS: dict[str, Callable[[], Kind]] = {
    "lancedb": Lance, "duckdb": Duck, "pgvector": Postgres, "qdrant": QdrantDb, "sqlite-vec": Sqlite,
    "chroma": ChromaDb,
}  # fmt: skip
