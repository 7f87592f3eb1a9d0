"""SQLite with sqlite-vec: the contract on vec0 tables, which sqlite-vec itself renames only in part."""

import sqlite3
from contextlib import closing
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from database_contract import BETWEEN, DatabaseContract, UserRow, check_kills, killed_client

from congruence.databases import Stage, open_database
from congruence.errors import CorruptFileError, DatabaseUnavailableError, FileError, MigrationError, ParameterError

sqlite_vec = pytest.importorskip("sqlite_vec")
if not hasattr(sqlite3.Connection, "enable_load_extension"):
    sqlite3 = pytest.importorskip("pysqlite3.dbapi2", reason="this Python's sqlite3 cannot load extensions")


def connect(where):
    connection = sqlite3.connect(where, isolation_level=None)
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    return connection


@pytest.mark.parametrize("wal", [False, True])
@pytest.mark.parametrize(("n", "dim"), [(40, 32), (1500, 64), (2500, 256)])
def test_the_plan_knows_how_much_disk_a_second_table_takes(tmp_path, n, dim, wal):
    """vec0 takes whole chunks of 1,024 rows, and SQLite logs what it writes."""
    where, vectors = tmp_path / "a.sqlite", np.random.default_rng(0).standard_normal((n, dim)).astype(np.float32)
    with closing(connect(where)) as connection:
        connection.execute(f"PRAGMA journal_mode = {'wal' if wal else 'delete'}")
        connection.execute(f"CREATE VIRTUAL TABLE items USING vec0(id text PRIMARY KEY, v float[{dim}], +body TEXT)")
        connection.execute("BEGIN")
        rows = ((f"item {k}", vector, "word " * (k % 50)) for k, vector in enumerate(vectors))
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    before = where.stat().st_size
    with open_database(str(where)) as database:
        needed = database.bytes_needed(database.info(), dim, "float32")
        database.prepare(dim)
        for block in database.scan("old"):
            database.write(block.ids, -block.vectors)
        database.flush()
        with closing(connect(where)) as connection:
            connection.execute("PRAGMA wal_checkpoint")  # as SQLite does by itself from 1,000 pages on
        log = sum(file.stat().st_size for file in tmp_path.glob("a.sqlite-wal"))
        taken = where.stat().st_size - before + log
    assert taken <= needed <= 1.5 * taken + 2**17


class TestSQLite(DatabaseContract):
    kind = "sqlite-vec"
    times_writing = True
    any_names = False
    rows_without = False
    needed = tuple(f"items__congruence_{part}" for part in ("new", "old", "mark", "new_rowids", "NEW"))

    def take(self, where, name):
        with closing(connect(where)) as connection:
            connection.execute(f"CREATE TABLE {name} (x)")

    def make(self, folder, ids, vectors, others, **names):
        where = str(folder / "photos.sqlite")
        with connect(where) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            key = "integer" if isinstance(ids[0], int) else "text"
            connection.execute(
                f"CREATE VIRTUAL TABLE items USING vec0(id {key} PRIMARY KEY, embedding float[{vectors.shape[1]}] "
                "distance_metric=cosine, kind text, +title text, chunk_size=64)"
            )
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?)", zip(ids, vectors, others["kind"], others["title"], strict=True)
            )
            connection.execute("COMMIT")
        connection.close()
        return where

    def user_rows(self, where, **names):
        with closing(connect(where)) as connection:
            found = connection.execute("SELECT id, embedding, kind, title FROM items").fetchall()
        return {one: UserRow(vector, {"kind": kind, "title": title}) for one, vector, kind, title in found}

    def traces(self, where):
        with closing(connect(where)) as connection:
            quoted = (
                "SELECT type, name, replace(sql, '\"', '') FROM sqlite_master ORDER BY 1, 2"  # as a rename leaves it
            )
            return connection.execute(quoted).fetchall()

    _MADE: ClassVar[dict[str, str]] = {
        "seen": "CREATE VIEW seen AS SELECT id, vec_to_json(embedding) AS v FROM items",
        "told": "CREATE TABLE other (x); CREATE TRIGGER told AFTER INSERT ON other BEGIN DELETE FROM items; END",
        "items__congruence_old": "CREATE TABLE items__congruence_old (x)",
        "items__congruence_new": "CREATE TABLE items__congruence_new (x)",
    }
    between = BETWEEN["sqlite-vec"]

    def make_between(self, where, what):
        with closing(connect(where)) as connection:
            connection.executescript(self._MADE[what])

    def unmake(self, where, what):
        with closing(connect(where)) as connection:
            connection.execute(f"DROP TABLE {what}")

    def holds(self, where, what):
        with closing(connect(where)) as connection:
            shown = "SELECT id, vec_to_json(embedding) FROM items"
            if what == "seen":
                return connection.execute("SELECT * FROM seen").fetchall() == connection.execute(shown).fetchall()
            connection.execute("INSERT INTO other VALUES (1)")
            return not connection.execute(shown).fetchall()

    def give(self, where, situation):
        with closing(connect(where)) as connection:
            connection.executescript(
                "CREATE TABLE kept AS SELECT id, embedding, embedding, kind, title FROM items; "
                "DROP TABLE items; CREATE VIRTUAL TABLE items USING vec0(id integer PRIMARY KEY, embedding float[8], "
                "second float[8], kind text, +title text); INSERT INTO items SELECT * FROM kept"
            )

    def user_add(self, where, one, vector, others, **names):
        self.user_delete(where, one)
        with closing(connect(where)) as connection:
            given = [one, vector, others["kind"], others["title"]]
            connection.execute("INSERT INTO items VALUES (?, ?, ?, ?)", given)

    def user_delete(self, where, one, **names):
        with closing(connect(where)) as connection:
            connection.execute("DELETE FROM items WHERE id = ?", [one])


@pytest.fixture
def items(tmp_path):
    """A table with a partition key, a second column of vectors, and a view of the user's."""
    where = str(tmp_path / "photos.db")
    connection = connect(where)
    connection.execute(
        "CREATE VIRTUAL TABLE items USING vec0(id integer primary key, owner integer partition key, embedding "
        "float[4], other float[2])"
    )
    connection.execute("CREATE VIEW shown AS SELECT id, embedding FROM items")
    for k in range(1, 6):
        connection.execute(
            "INSERT INTO items VALUES (?, ?, ?, ?)", [k, k % 2, np.full(4, k, np.float32), np.full(2, -k, np.float32)]
        )
    yield where, connection
    connection.close()


def fill(database):
    database.prepare(3)
    for block in database.scan():
        database.write(block.ids, block.vectors[:, :3] + 1)


def test_an_application_goes_on_behind_the_switch(items):
    where, connection = items
    with open_database(where, column="embedding") as database:
        fill(database)
        connection.execute("UPDATE items SET other = ? WHERE id = 2", [np.full(2, 9, np.float32)])
        connection.execute("DELETE FROM items WHERE id = 5")
        database.switch()
        nearest = "SELECT id, vec_to_json(other) FROM items WHERE embedding MATCH ? AND k = 1 AND owner = 0"
        assert connection.execute(nearest, [np.full(3, 3, np.float32)]).fetchall() == [(2, "[9.000000,9.000000]")]
        connection.execute("INSERT INTO items VALUES (7, 1, ?, ?)", [np.ones(3, np.float32), np.ones(2, np.float32)])
        assert [len(one) for _, one in connection.execute("SELECT * FROM shown ORDER BY id")] == [12] * 5
        assert list(database.orphans()) == []
        database.drop_old()
    left = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%congruence%'").fetchall()
    assert left == []
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)


def test_a_row_added_at_the_last_moment_is_not_lost(items):
    where, connection = items
    with open_database(where, column="embedding") as database:
        fill(database)
        connection.execute("INSERT INTO items VALUES (7, 1, ?, ?)", [np.ones(4, np.float32), np.ones(2, np.float32)])
        with pytest.raises(MigrationError, match="1 rows"):
            database.switch()
        assert database.stage() is Stage.PREPARED
        fill(database)
        database.switch()
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (6,)


@pytest.mark.parametrize("step", ["prepare", "switch", "rollback", "drop_old", "discard"])
def test_a_kill_at_any_statement_changes_nothing(items, step):
    where, connection = items

    with open_database(where, column="embedding") as database:
        if step != "prepare":
            fill(database)
        if step in ("rollback", "drop_old"):
            database.switch()
        rows, killed = "SELECT * FROM items ORDER BY id", partial(killed_client, database)
        check_kills(database, step, lambda: connection.execute(rows).fetchall(), killed, 4)


def test_another_writer_is_waited_for_and_then_said(items, monkeypatch):
    where, connection = items
    monkeypatch.setattr("congruence.databases.sqlite.BUSY_SECONDS", 0.05)
    with open_database(where, column="embedding") as database:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError, match="no lock"):
            database.prepare(3)
        connection.execute("ROLLBACK")
        database.prepare(3)


def test_what_is_no_vec0_table_is_refused(items, tmp_path):
    where, connection = items
    with pytest.raises(FileError, match="not a file"):
        open_database(tmp_path / "nowhere.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptFileError, match="damaged"):
        open_database(tmp_path / "bad.sqlite")
    connection.execute("CREATE VIRTUAL TABLE bits USING vec0(v bit[8], w int8[4])")
    for options, result in (
        ({}, "'bits', 'items'"),
        ({"table": "items"}, "2 columns of vectors .'embedding', 'other'"),
        ({"table": "items", "column": "other", "rows": "id > 1"}, "rows='id > 1'"),
        ({"table": "items", "column": "other", "ids": "owner"}, "ids='owner'"),
    ):
        with pytest.raises(ParameterError, match=result):
            open_database(where, **options)
    with open_database(f"sqlite:///{where}", table="items", column="other") as database:
        assert database.info().dim == 2


def test_bits_and_int8_are_what_the_applications_own_functions_make(tmp_path):
    """vec_quantize_binary puts the first component into the lowest bit; bits support only the Hamming distance."""
    where = str(tmp_path / "photos.db")
    connection = connect(where)
    connection.execute(
        "CREATE VIRTUAL TABLE items USING vec0(id integer primary key, v float[16] distance_metric=cosine)"
    )
    rows = np.random.default_rng(0).normal(size=(30, 16)).astype(np.float32)
    connection.executemany("INSERT INTO items VALUES (?, ?)", list(enumerate(rows)))
    bits = [connection.execute("SELECT vec_quantize_binary(?)", [row]).fetchone()[0] for row in rows]
    with open_database(where) as database:
        database.prepare(16, "binary")
        block = next(iter(database.scan()))
        database.write(block.ids, block.vectors)
        database.switch()
        assert [one for (one,) in connection.execute("SELECT v FROM items ORDER BY id")] == bits
        nearest = "SELECT id FROM items WHERE v MATCH vec_quantize_binary(?) AND k = 1"
        assert connection.execute(nearest, [rows[7]]).fetchone() == (7,)
        assert database.info().distance == "cosine"  # of the old side
        database.drop_old()
        assert database.info().distance is None
        database.prepare(16, "int8")
        codes = np.rint(40 * rows).clip(-128, 127)
        database.write(block.ids, codes)
        database.switch()
        found = connection.execute("SELECT v FROM items ORDER BY id").fetchall()
        assert [one for (one,) in found] == [row.astype(np.int8).tobytes() for row in codes]
    connection.close()
