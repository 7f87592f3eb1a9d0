"""DuckDB: the contract on files that its own client writes, and special cases."""

import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from database_contract import BETWEEN, DIM, DatabaseContract, UserRow, lists, make_rows, run

from congruence.databases import NewVectors, Stage, open_database
from congruence.databases.duckdb import DuckDB
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    MigrationError,
    ParameterError,
    StorageError,
)
from congruence.upgrade.migrate import passes


def q(name):
    return '"' + name.replace('"', '""') + '"'


class TestDuckDB(DatabaseContract):
    kind = "duckdb"
    slow = True
    times_writing = True
    id_types = ("int", "uuid")
    needed = ("embedding__congruence_new", "embedding__congruence_old", "Embedding__Congruence_New")

    def take(self, where, name):
        with duckdb.connect(where) as user:
            user.execute(f"ALTER TABLE items ADD COLUMN {name} VARCHAR")

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        where = str(folder / "photos.duckdb")
        kind = "BIGINT" if isinstance(ids[0], int) else "UUID"
        with duckdb.connect(where) as user:
            user.execute(
                f"CREATE TABLE {q(table)} ({q(id_column)} {kind} PRIMARY KEY, kind VARCHAR, title VARCHAR NOT NULL, "
                f"{q(column)} FLOAT[{vectors.shape[1]}])"
            )
            user.execute(f"CREATE INDEX by_kind ON {q(table)} (kind)")
            user.register("given", pa.table({"id": ids, **others, "vector": lists(vectors)}))
            user.execute(f"INSERT INTO {q(table)} SELECT id, kind, title, vector FROM given")
        return where

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        with duckdb.connect(where) as user:
            rows = user.execute(f"SELECT {q(id_column)}, kind, title, {q(column)} FROM {q(table)}").fetchall()
        return {
            one if isinstance(one, int) else str(one): UserRow(
                None if vector is None else np.array(vector, np.float32).tobytes(), {"kind": kind, "title": title}
            )
            for one, kind, title, vector in rows
        }

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        with duckdb.connect(where) as user:
            given = None if vector is None else vector.tolist()
            user.execute(
                f"INSERT INTO {q(table)} ({q(id_column)}, kind, title, {q(column)}) VALUES (?, ?, ?, ?)",
                [one, others["kind"], others["title"], given],
            )

    def user_change(self, where, one, vector, others):
        with duckdb.connect(where) as user:
            values = [None if vector is None else vector.tolist(), others["kind"], others["title"], one]
            user.execute("UPDATE items SET embedding = ?, kind = ?, title = ? WHERE id = ?", values)

    def give(self, where, situation):
        columns = "id BIGINT PRIMARY KEY, kind VARCHAR, title VARCHAR NOT NULL, embedding FLOAT[8]"
        recreate = (
            "CREATE TABLE kept AS SELECT * FROM items; DROP TABLE items; CREATE TABLE items ({}); "
            "INSERT INTO items (id, kind, title, embedding) SELECT id, kind, title, embedding FROM kept"
        )
        statements = {
            "NOT NULL": "DROP INDEX by_kind; ALTER TABLE items ALTER embedding SET NOT NULL",
            "default": "DROP INDEX by_kind; ALTER TABLE items ALTER embedding SET DEFAULT [0, 0, 0, 0, 0, 0, 0, 1]",
            "check": recreate.format(f"{columns} CHECK (len(embedding) = 8)"),
            "generated column": recreate.format(f"{columns}, width INT GENERATED ALWAYS AS (len(embedding))"),
            "comment": "COMMENT ON COLUMN items.embedding IS 'of the photo'",
            "type": "DROP INDEX by_kind; ALTER TABLE items ALTER embedding TYPE DOUBLE[8]",
            "foreign key": "CREATE TABLE likes (item BIGINT REFERENCES items (id)); "
            "INSERT INTO likes SELECT id FROM items",
            "two columns": "DROP INDEX by_kind; ALTER TABLE items ADD COLUMN second FLOAT[8]; "
            "UPDATE items SET second = embedding",
        }
        with duckdb.connect(where) as user:
            user.execute(statements[situation])

    def rules(self, where):
        with duckdb.connect(where) as user:
            return user.execute(
                "SELECT data_type, is_nullable, column_default, comment FROM duckdb_columns() "
                "WHERE table_name = 'items' AND column_name = 'embedding'"
            ).fetchall()

    def traces(self, where):
        catalog = {
            "duckdb_tables()": "table_name, comment",
            "duckdb_columns()": "table_name, column_name, data_type, is_nullable, column_default, comment",
            "duckdb_constraints()": "table_name, constraint_text",
            "duckdb_indexes()": "table_name, index_name, sql, comment",
            "duckdb_views()": "view_name, sql",
            "duckdb_functions()": "function_name, macro_definition",
        }
        with duckdb.connect(where) as user:
            return {
                name: sorted(user.execute(f"SELECT {what} FROM {name} WHERE NOT {internal}").fetchall(), key=str)
                for name, what in catalog.items()
                for internal in ["false" if "const" in name or "indexes" in name else "internal"]
            }

    _VIEWS: ClassVar[dict[str, str]] = {
        "seen": "VIEW seen AS SELECT id, embedding FROM items",
        "whole": "VIEW whole AS SELECT * FROM items",
        "placed": "VIEW placed(a, b, c, d, e) AS SELECT * FROM items",
        "raw": "VIEW raw AS SELECT {} FROM items",
        "near": "MACRO near(q) AS TABLE SELECT id, array_distance(embedding, q::FLOAT[8]) AS d FROM items",
    }
    between = (
        BETWEEN["duckdb"] if duckdb.__version__ >= "2" else {k: v for k, v in BETWEEN["duckdb"].items() if k != "told"}
    )

    def make_between(self, where, what):
        with duckdb.connect(where) as user:
            columns = [one for (one,) in user.execute("SELECT column_name FROM (DESCRIBE items)").fetchall()]
            hidden = [one for one in columns if "__congruence" in one]
            statements = {
                "told": "CREATE TABLE log (x INT); CREATE TRIGGER told AFTER UPDATE ON items FOR EACH STATEMENT "
                "INSERT INTO log VALUES (1)",
                "likes": "CREATE TABLE likes (item BIGINT REFERENCES items (id))",
                "by_title": "CREATE INDEX by_title ON items (title)",
                "a comment": "COMMENT ON COLUMN items.embedding IS 'mine'",
                "a default": f"DROP INDEX by_kind; ALTER TABLE items ALTER embedding SET DEFAULT {[0] * 7 + [1]}",
            }
            user.execute(statements.get(what) or f"CREATE {self._VIEWS[what].format(*hidden)}")

    def unmake(self, where, what):
        with duckdb.connect(where) as user:
            gone = {"likes": "TABLE likes", "told": "TRIGGER told ON items"}
            user.execute(f"DROP {gone.get(what, f'VIEW {what}')}")

    def holds(self, where, what):
        with duckdb.connect(where) as user:
            vectors = dict(user.execute("SELECT id, embedding FROM items").fetchall())
            if what in ("seen", "whole"):
                return dict(user.execute(f"SELECT id, embedding FROM {what}").fetchall()) == vectors
            if what == "near":
                one = next(iter(vectors))
                near = f"SELECT id FROM near({list(vectors[one])}) ORDER BY d LIMIT 1"
                return user.execute(near).fetchall() == [(one,)]
            if what == "by_title":
                return ("by_title",) in user.execute("SELECT index_name FROM duckdb_indexes()").fetchall()
            return {"a comment": "mine", "a default": "[0"}[what] in str(self.rules(where)).replace("list_value(", "[")

    def user_delete(self, where, one, *, table="items", id_column="id"):
        with duckdb.connect(where) as user:
            user.execute(f"DELETE FROM {q(table)} WHERE {q(id_column)} = ?", [one])


def small(folder, kind="FLOAT[4]", n=30, sql=""):
    where = str(folder / "s.duckdb")
    vectors = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    with duckdb.connect(where) as user:
        user.execute(f"CREATE TABLE items (name VARCHAR PRIMARY KEY, v {kind}); {sql}")
        user.executemany(
            "INSERT INTO items VALUES (?, ?)", [[f"n{k:02d}", row.tolist()] for k, row in enumerate(vectors)]
        )
    return where, vectors


def test_a_column_that_hides_the_row_ids_is_refused(tmp_path):
    where, _ = small(tmp_path)
    with duckdb.connect(where) as user:
        user.execute("ALTER TABLE items ADD COLUMN RowId VARCHAR")
    with pytest.raises(DatabaseError, match=r"'RowId'.*Rename"):
        open_database(where)


@pytest.mark.parametrize("kind", ["FLOAT[]", "DOUBLE[4]"])
def test_each_row_comes_once_although_writing_moves_it(tmp_path, kind):
    where, vectors = small(
        tmp_path, kind, sql='COMMENT ON COLUMN items.v IS \'{"congruence.space": "{\\"model\\": \\"clip\\"}"}\''
    )
    with open_database(where) as database:
        info = database.info()
        assert (info.dim, info.id_type, info.space.model) == (4, "text", "clip")
        database.prepare(2, "float32", {"map": 'it\'s "m"'})
        assert database.note() == {"map": 'it\'s "m"'}
        seen, cursor = [], None
        for block in database.scan(batch=8):
            seen += block.ids.to_pylist()
            database.write(block.ids, block.vectors[:, :2])
            database.write(block.ids, 2 * block.vectors[:, :2])  # of an id that is written twice the last counts
            database.flush()
            if len(seen) == 16:
                cursor = block.cursor
                break
        seen += [one for block in database.scan(after=cursor, batch=5) for one in block.ids.to_pylist()]
        assert sorted(seen) == [f"n{k:02d}" for k in range(30)]
        for block in database.scan(after=cursor, batch=5):
            database.write(block.ids, 2 * block.vectors[:, :2])
        database.switch()
        database.delete(pa.array(["n03"]))
        assert database.count("new") == 29
    with duckdb.connect(where) as user:
        wanted = kind.replace("4", "2")
        assert user.execute("SELECT typeof(v) FROM items LIMIT 1").fetchone() == (wanted,)
        rows = dict(user.execute("SELECT name, v FROM items").fetchall())
    assert {k for k, row in rows.items() if row is None} == {"n03"}
    np.testing.assert_array_equal(rows["n29"], 2 * vectors[29, :2])


def test_numbers_that_no_row_has_are_passed_over(tmp_path, monkeypatch):
    """Each write moves the rows to the end: after twenty, batches of five would take 126 queries for 30 rows."""
    where, _ = small(tmp_path)
    asked = []
    with open_database(where) as database:
        for _ in range(20):
            run(database, 4)
            database.flush()
        read = database._read
        assert read("SELECT max(rowid) AS last FROM items")["last"][0].as_py() > 600
        monkeypatch.setattr(database, "_read", lambda *query: asked.append(query) or read(*query))
        found = sorted(one for block in database.scan(batch=5) for one in block.ids.to_pylist())
    assert found == [f"n{k:02d}" for k in range(30)]
    assert len(asked) < 12


def test_a_switch_that_fails_changes_nothing(tmp_path):
    where, _ = small(tmp_path, sql="CREATE INDEX mine ON items (name)")
    with open_database(where) as database:
        run(database, 4)
        with pytest.raises(DatabaseError):
            database._without_indices(
                "ALTER TABLE items RENAME COLUMN v TO w", "ALTER TABLE items RENAME COLUMN none TO v"
            )
        assert database.stage() is Stage.PREPARED
        database.switch()
        assert database.stage() is Stage.SWITCHED
    with duckdb.connect(where) as user:
        assert user.execute("SELECT index_name FROM duckdb_indexes()").fetchall() == [("mine",)]


def test_a_file_that_another_process_has_open(tmp_path):
    where, _ = small(tmp_path)
    script = f"import duckdb; c = duckdb.connect({where!r}); print('open', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(DatabaseUnavailableError):
            open_database(where)
    finally:
        other.communicate(b"\n")
    with open_database(where) as database:
        assert database.count() == 30


def test_what_is_refused(tmp_path):
    where, _ = small(
        tmp_path, sql="CREATE TABLE other (id INTEGER, a FLOAT[2], b FLOAT[2], c VARCHAR, k INTEGER UNIQUE)"
    )
    for rows in ("true); DROP TABLE items; --", "true; DROP TABLE items", "no_such = 3", "name = = 3", "true) -- "):
        with pytest.raises(ParameterError):
            open_database(where, table="items", rows=rows)
    for options in ({}, {"table": "other"}, {"table": "items", "ids": "none"}):
        with pytest.raises(ParameterError, match="table=|columns of vectors|ids="):
            open_database(where, **options)
    with pytest.raises(ParameterError, match="of type VARCHAR"):
        open_database(where, table="other", column="c")
    with duckdb.connect(where) as user:
        user.execute(
            "INSERT INTO other VALUES (1, [1, 2], [1, 2], 'x', 1), (1, [1, 2], [1, 2], 'x', 2), (NULL, [3, "
            "4], NULL, 'x', 3)"
        )
    with open_database(f"duckdb://{where}", table="main.other", column="a") as database:
        assert database.repeated_ids() == ["1"]
        with pytest.raises(DatabaseError, match="without id"):
            list(database.scan())
        with pytest.raises(DatabaseError, match="does not rename or drop"):  # a column that precedes a key
            database.prepare(2)
        assert database.stage() is Stage.UNTOUCHED
    (tmp_path / "bad.duckdb").write_bytes(b"x" * 5000)
    with pytest.raises(CorruptFileError):
        open_database(tmp_path / "bad.duckdb")
    assert open_database(where, table="items").count() == 30


def test_a_limit_of_the_size_of_files_is_named(tmp_path):
    resource = pytest.importorskip("resource")
    where, vectors = small(tmp_path)
    with open_database(where) as database:
        database.prepare(4)
        block = next(iter(database.scan()))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            database.write(block.ids, block.vectors)
            with pytest.raises(StorageError, match=r"File too large.*ulimit -f"):
                database.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with open_database(where) as database:
        assert (database.stage(), database.count("new"), database.count()) == (Stage.PREPARED, 0, len(vectors))


def test_int8_is_a_column_of_tinyint_which_no_hnsw_index_takes(tmp_path, monkeypatch):
    where = str(tmp_path / "photos.duckdb")
    with duckdb.connect(where) as user:
        user.execute("CREATE TABLE items (id INT PRIMARY KEY, v FLOAT[4], flags TINYINT[2])")
        user.execute("INSERT INTO items VALUES (1, [1, 2, 3, 4], [0, 1])")
    with open_database(where) as database:  # the column of floats is meant
        (block,) = database.scan()
        with monkeypatch.context() as patch:  # the extension that makes such indices is not here
            patch.setattr(
                database, "_indices", lambda: [{"name": "i", "sql": "CREATE INDEX i ON items USING HNSW (v)"}]
            )
            with pytest.raises(MigrationError, match="only FLOAT columns by HNSW"):
                database.prepare(4, "int8")
        database.prepare(4, "int8")
        database.write(block.ids, np.array([[-128, 127, 0, 5]], np.float32))
        database.switch()
    with duckdb.connect(where) as user:
        assert user.execute("SELECT v, typeof(v) FROM items").fetchone() == ((-128, 127, 0, 5), "TINYINT[4]")


@pytest.mark.parametrize(
    ("situation", "step", "name"),
    [
        pytest.param("check", "drop-old", "CHECK((len(embedding) = 8))", marks=pytest.mark.long),
        pytest.param("generated column", "drop-old", "width", marks=pytest.mark.long),
        ("foreign key", "run", "likes"),
    ],
)
def test_the_plan_names_the_step_that_fails_and_what_is_in_the_way(tmp_path, here, situation, step, name):
    contract = TestDuckDB()
    ids, vectors, others = make_rows("int")
    where, (mapping, _) = contract.make(tmp_path, ids, vectors, others), contract.rotated(vectors)
    contract.give(where, situation)
    mapping.save(tmp_path / "map")
    said = here("migrate", where, "plan", "--map", "map", "--table", "items", "--modality", "image", "--json")
    assert all(word in said.ends(2).err for word in (name, step))
    checks = {check["check"]: check for check in json.loads(said.out)["checks"]}
    assert [one for one in checks if checks[one]["outcome"] == "bad"] == [step]
    assert name in checks[step]["detail"]

    def checked():
        with duckdb.connect(where) as user:
            return user.execute("SELECT count(*) FROM duckdb_constraints() WHERE constraint_type = 'CHECK'").fetchone()

    before, failed = checked(), None
    with pytest.MonkeyPatch.context() as patch:  # what would happen if the plan did not refuse
        patch.setattr(DuckDB, "obstacles", lambda self, *_: [])
        for one, do in (
            ("run", lambda database: run(database, 8)),
            ("switch", lambda database: database.switch()),
            ("rollback", lambda database: (database.rollback(), database.switch())),
            ("drop-old", lambda database: database.drop_old()),
        ):
            try:
                with open_database(where, table="items") as database:
                    do(database)
                    database.flush()
                assert checked() == before
            except (CongruenceError, AssertionError):
                failed = one
                break
    assert failed == step


@pytest.mark.parametrize(
    ("view", "step", "dim"),
    [
        ("seen(a, b, c) AS SELECT id, title, embedding FROM items", None, 6),
        ("seen AS SELECT * FROM items", None, 6),
        ("seen(a, b, c, d) AS SELECT * FROM items", "switch", 8),
        ("seen AS SELECT * FROM items UNION ALL SELECT * FROM other", "run", 8),
        ("seen AS SELECT id, CAST(embedding AS FLOAT[8]) AS vector FROM items", "switch", 6),
        ("seen AS SELECT id, CAST(embedding AS FLOAT[8]) AS vector FROM items", None, 8),
        ("seen AS SELECT array_distance(embedding, [1, 0, 0, 0, 0, 0, 0, 0]::FLOAT[8]) FROM items", "switch", 6),
        ("seen AS SELECT * FROM first", "run", 8),
        ("seen AS SELECT * FROM missing", None, 8),
    ],
)
def test_a_view_that_a_step_would_break_is_refused_before_anything_is_written(tmp_path, view, step, dim):
    ids, vectors, others = make_rows("int", n=12)
    where = TestDuckDB().make(tmp_path, ids, vectors, others)
    with duckdb.connect(where) as user:
        user.execute("CREATE TABLE other AS SELECT * FROM items; CREATE TABLE missing (id BIGINT)")
        user.execute("CREATE VIEW first AS SELECT * FROM items UNION ALL SELECT * FROM other")
        if "first" not in view:
            user.execute("DROP VIEW first")
        user.execute(f"CREATE VIEW {view}")
        if "missing" in view:
            user.execute("DROP TABLE missing")
    with open_database(where, table="items") as database:
        found = database.obstacles(NewVectors(dim, "float32", {}))
        assert [name for name, words in found] == ([step] if step else [])
        assert all("view" in words for name, words in found)
        if step:
            with pytest.raises(DatabaseError, match="the view"):
                database.prepare(dim)
        else:
            run(database, dim=dim)
            database.switch()
    if step is None and "missing" not in view:
        with duckdb.connect(where) as user:
            rows = user.execute("SELECT * FROM seen").fetchall()
            assert len(rows) == 12
            assert any(isinstance(value, tuple) and len(value) == dim for value in rows[0])


def test_words_in_the_rules_of_other_columns_are_no_obstacle(tmp_path):
    where = str(tmp_path / "photos.duckdb")
    with duckdb.connect(where) as user:
        rules = "kind VARCHAR DEFAULT 'embedding' CHECK (kind <> 'an embedding')"
        user.execute(f"CREATE TABLE items (id BIGINT PRIMARY KEY, {rules}, embedding FLOAT[2])")
        user.execute("INSERT INTO items VALUES (1, 'a', [1, 2])")
    with open_database(where) as database:
        run(database, dim=2)
        database.switch()
        database.drop_old()
    with duckdb.connect(where) as user:
        user.execute("INSERT INTO items (id) VALUES (2)")
        assert user.execute("SELECT kind FROM items WHERE id = 2").fetchall() == [("embedding",)]
        with pytest.raises(duckdb.ConstraintException):
            user.execute("INSERT INTO items (id, kind) VALUES (3, 'an embedding')")


def test_a_type_that_has_changed_since_the_run_is_not_lost(tmp_path):
    where = TestDuckDB().make(tmp_path, *make_rows("int", n=12))
    with open_database(where) as database:
        run(database, dim=6)
        database.flush()
    with duckdb.connect(where) as user:
        user.execute("DROP INDEX by_kind; ALTER TABLE items ALTER embedding TYPE DOUBLE[8]")
    with open_database(where) as database:
        with pytest.raises(MigrationError, match=r"DOUBLE\[8\] since the run.* FLOAT\[6\], not DOUBLE\[6\]"):
            database.switch()
        database.discard()
        run(database, dim=6)
        database.switch()
    with duckdb.connect(where) as user:
        assert user.execute("SELECT typeof(embedding) FROM items LIMIT 1").fetchall() == [("DOUBLE[6]",)]


@pytest.mark.long
def test_status_names_what_is_in_the_way_and_what_to_do_with_an_emptied_table(tmp_path, here):
    contract = TestDuckDB()
    ids, vectors, others = make_rows("int")
    where, (mapping, _) = contract.make(tmp_path, ids, vectors, others), contract.rotated(vectors)
    mapping.save(tmp_path / "map")
    here("migrate", where, "run", "--map", "map", "--table", "items", "--modality", "image", "--yes").ends(0)
    contract.make_between(where, "placed")
    said = here("migrate", where, "status").ends(0).out
    assert '"main"."placed"' in said
    assert "in the way of drop-old" in said
    refused = here("migrate", where, "switch").ends(2).err
    assert '"main"."placed"' in refused
    contract.unmake(where, "placed")
    assert said != here("migrate", where, "status").ends(0).out
    with duckdb.connect(where) as user:
        user.execute("TRUNCATE items")
    said = here("migrate", where, "status").ends(0).out
    assert "Left to do: discard" in said
    assert "No row of" in said
    assert f"Next: congruence migrate {where} discard" in said
    assert "congruence migrate" in here("migrate", where, "switch").ends(2).err
    here("migrate", where, "discard", "--yes").ends(0)


@pytest.mark.parametrize("path", ["link", "relative"])
def test_what_others_write_is_seen_by_every_path_to_the_file(tmp_path, monkeypatch, path):
    """DuckDB logs next to the file that a link points to; and the process may leave the folder of its paths."""
    contract, folder = TestDuckDB(), tmp_path / "data"
    folder.mkdir()
    ids, vectors, others = make_rows("int")
    where = contract.make(folder, ids, vectors, others)
    mapping, mapped = contract.rotated(vectors)
    wanted, opened = dict(zip(ids, mapped, strict=True)), where
    if path == "link":
        opened = str(tmp_path / "other.duckdb")
        Path(opened).symlink_to(where)
    else:
        monkeypatch.chdir(folder)
        opened = Path(where).name
    with contract.migrating(opened, tmp_path, mapping) as migration:
        migration.run()
        monkeypatch.chdir(tmp_path)
        assert migration.verify().passed
        values = {name: column[5] for name, column in others.items()}
        contract.user_change(where if path == "relative" else opened, ids[3], vectors[5], values)
        wanted[ids[3]] = mapped[5]
        migration.switch()
    contract.check_vectors(contract.user_rows(where), wanted)


def test_rows_that_move_below_the_scan_are_mapped_by_the_first_pass(tmp_path, monkeypatch):
    """UPDATE appends rows, and a checkpoint that frees their first copies gives all that follow lower row ids."""
    where, n, moved, scans = str(tmp_path / "photos.duckdb"), 120_000, [], []
    vectors = np.random.default_rng(0).standard_normal((n, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mapping, mapped = TestDuckDB().rotated(vectors)
    with duckdb.connect(where) as user:
        user.execute(f"CREATE TABLE items (id BIGINT PRIMARY KEY, title VARCHAR, embedding FLOAT[{DIM}])")
        user.register("given", pa.table({"id": np.arange(n), "vector": lists(vectors)}))
        user.execute("INSERT INTO items SELECT id, 'of ' || id, vector FROM given")
    store, pages, lowest = DuckDB._store, DuckDB._pages, "SELECT min(rowid) FROM items WHERE id = 119999"

    def store_and_free(self, *arguments, **options):
        """Checkpoint, as DuckDB does by itself once 16 MB are logged."""
        store(self, *arguments, **options)
        try:
            self._connection.execute("CHECKPOINT")
        except duckdb.TransactionException:  # the scan is reading
            return
        moved.append(self._connection.execute(lowest).fetchone()[0] < n - 1)

    def counted(self, *arguments):
        scans.append(0)
        for page in pages(self, *arguments):
            scans[-1] += len(page[0])
            yield page

    monkeypatch.setattr(passes, "rows_per_block", lambda dim: 2048)
    monkeypatch.setattr(DuckDB, "_most_pending", 36_000 * 4 * DIM)
    monkeypatch.setattr(DuckDB, "_store", store_and_free)
    monkeypatch.setattr(DuckDB, "_pages", counted)
    with TestDuckDB().migrating(where, tmp_path, mapping) as migration:
        migration.run(stage=lambda words: scans.clear() if words == "mapping" else None)
        assert any(moved)
        assert len(scans) > 1
        assert sum(scans) == migration.journal.rows == n  # no row twice
        assert not migration.journal.passes
        assert migration.verify().passed
        migration.switch()
    with duckdb.connect(where) as user:
        found = user.execute("SELECT id, title, embedding FROM items ORDER BY id").fetchnumpy()
    assert (found["id"] == np.arange(n)).all()
    assert found["title"].tolist() == [f"of {k}" for k in range(n)]
    np.testing.assert_allclose(np.array(found["embedding"].tolist()), mapped, atol=1e-6)
