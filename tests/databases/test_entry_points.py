"""Kinds of databases that another package adds by entry points keep the contract: one for each of the common kinds."""

import sqlite3
from functools import partial
from typing import ClassVar

import pytest
from blob_table import quoted
from database_contract import DatabaseContract, UserRow, check_kills, killed_client, make_rows, run

import congruence.databases
from congruence.databases import Stage, open_database
from congruence.errors import ParameterError


@pytest.fixture(autouse=True)
def _installed(tmp_path_factory, monkeypatch):
    """Install a package whose entry points add the schemes ``blobs`` and ``shelf``, and the same as suffixes."""
    site = tmp_path_factory.mktemp("site")
    info = site / "blob_table-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blob-table\nVersion: 1.0\n")
    classes = {"blobs": "blob_table:BlobTable", "shelf": "blob_collections:BlobCollections"}
    points = [f"{dot}{name} = {place}" for name, place in classes.items() for dot in ("", ".")]
    (info / "entry_points.txt").write_text("\n".join(["[congruence.databases]", *points]))
    monkeypatch.syspath_prepend(site)
    congruence.databases._installed.cache_clear()
    yield
    congruence.databases._installed.cache_clear()


class TestBlobTable(DatabaseContract):
    slow = True
    suffix = ".blobs"

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        path = folder / f"photos{self.suffix}"
        kind = "INTEGER" if isinstance(ids[0], int) else "TEXT"
        names = f"{quoted(id_column)} {kind} PRIMARY KEY, {quoted(column)} BLOB, kind TEXT, title TEXT"
        with sqlite3.connect(path) as user:
            user.execute(f"CREATE TABLE {quoted(table)} ({names})")
            rows = zip(ids, map(bytes, vectors), others["kind"], others["title"], strict=True)
            user.executemany(f"INSERT INTO {quoted(table)} VALUES (?, ?, ?, ?)", rows)
        user.close()
        return str(path)

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        names = f"{quoted(id_column)}, {quoted(column)}, kind, title"
        with sqlite3.connect(where) as user:
            found = user.execute(f"SELECT {names} FROM {quoted(table)}").fetchall()
        return {one: UserRow(vector, {"kind": kind, "title": title}) for one, vector, kind, title in found}

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        names = f"{quoted(id_column)}, {quoted(column)}, kind, title"
        values = [one, None if vector is None else bytes(vector), others["kind"], others["title"]]
        with sqlite3.connect(where) as user:
            user.execute(f"INSERT OR REPLACE INTO {quoted(table)} ({names}) VALUES (?, ?, ?, ?)", values)

    def traces(self, where):
        with sqlite3.connect(where) as user:
            columns = sorted(row[1:] for row in user.execute("PRAGMA table_info(items)").fetchall())
            return columns, user.execute("SELECT type, name FROM sqlite_master ORDER BY 1, 2").fetchall()

    def user_delete(self, where, one, *, table="items", id_column="id"):
        with sqlite3.connect(where) as user:
            user.execute(f"DELETE FROM {quoted(table)} WHERE {quoted(id_column)} = ?", [one])


class TestBlobCollections(TestBlobTable):
    suffix = ".shelf"
    needed = ("items__congruence_new", "items__congruence_old")
    named: ClassVar[dict[str, str]] = {"table": "items"}

    def take(self, where, name):
        with sqlite3.connect(where) as user:
            user.execute(f"CREATE TABLE {quoted(name)} (mine TEXT)")


@pytest.fixture(params=[TestBlobTable, TestBlobCollections])
def where(tmp_path, request):
    ids, vectors, others = make_rows("int", 12)
    return request.param().make(tmp_path, ids, vectors, others)


@pytest.mark.long
@pytest.mark.parametrize("step", ["prepare", "switch", "rollback", "drop_old", "discard"])
def test_a_kill_at_any_statement_changes_nothing(where, step):
    with open_database(where) as database:
        if step != "prepare":
            run(database, 3)
        if step in ("rollback", "drop_old"):
            database.switch()
        killed = partial(killed_client, database)
        check_kills(database, step, lambda: TestBlobTable().user_rows(where), killed, 3)


def test_an_address_by_its_scheme(where):
    with open_database(f"blobs://{where}") as database:
        assert (database.kind, database.stage()) == ("blobs", Stage.UNTOUCHED)


def test_an_unknown_address_lists_the_kinds_of_other_packages():
    with pytest.raises(ParameterError, match=r"blobs://place \(blobs\)"):
        open_database("photos.unknown")
    with pytest.raises(ParameterError, match="blobs"):
        open_database("blob://photos")
