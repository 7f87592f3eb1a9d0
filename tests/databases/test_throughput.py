"""Regressions of speed and memory: what once made migrations slow, or their memory grow with the table."""

import numpy as np
import pyarrow as pa
import pytest
from database_contract import lists

from congruence import OrthogonalMap
from congruence.databases import open_database
from congruence.embeddings import normalize_rows
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.mapper import RowMapper

DIM = 8


def rows(n):
    return normalize_rows(np.random.default_rng(0).normal(size=(n, DIM)).astype(np.float32))


@pytest.fixture
def mapping():
    return OrthogonalMap().fit(rows(40), rows(40)[:, ::-1])


def in_lance(folder, n, kind=str):
    lance = pytest.importorskip("lance")
    where = str(folder / "items.lance")
    lance.write_dataset(pa.table({"id": [kind(k) for k in range(n)], "embedding": lists(rows(n))}), where)
    return where


@pytest.mark.parametrize("kind", [int, str])
def test_what_is_remembered_of_a_scan_keeps_no_vectors_in_memory(tmp_path, monkeypatch, kind):
    """A column that came through Arrow's C interface keeps all columns of its batch."""
    from congruence.databases import lancedb

    given = []

    def watched(*arguments, **options):
        for batch in stream(*arguments, **options):
            given.append(batch)
            yield batch

    stream = lancedb.stream
    monkeypatch.setattr(lancedb, "stream", watched)
    with open_database(in_lance(tmp_path, 100, kind)) as database:
        blocks = list(database.scan(batch=30))
        theirs = {buffer.address for batch in given for column in batch for buffer in column.buffers() if buffer}
        kept = [block.ids for block in blocks]
        assert len(theirs) >= 3
        assert len(kept) == 4
        assert not theirs & {buffer.address for ids in kept for buffer in ids.buffers() if buffer}


@pytest.mark.long
def test_a_search_that_reads_all_rows_is_asked_ten_times_and_an_index_200_times(tmp_path, mapping):
    where = in_lance(tmp_path, 400)
    asked = []
    with Migration(open_database(where), mapping, journal=tmp_path / "journal") as migration:
        search = migration.database.search
        migration.database.search = lambda queries, k, side: asked.append(len(queries)) or search(queries, k, side)
        migration.run()
        assert migration.verify().index_recall == 1.0
        assert asked == [10]  # of the new side, which finds all; then the old side has nothing to explain
        asked.clear()
        migration.database._open().create_index("embedding", "IVF_FLAT", metric="l2", num_partitions=1)
        migration.database.build_index()
        assert migration.verify().index_recall == 1.0
        assert asked == [200, 200]


def test_the_other_columns_that_a_scan_saw_are_not_read_again(tmp_path):
    """vec0 reads the vector of a row to return another column of it; a row that is not cached is still looked up."""
    from test_sqlite import connect

    where = str(tmp_path / "photos.db")
    user = connect(where)
    user.execute(f"CREATE VIRTUAL TABLE items USING vec0(id integer primary key, embedding float[{DIM}], +name text)")
    user.executemany("INSERT INTO items VALUES (?, ?, ?)", [(k, row, f"n{k}") for k, row in enumerate(rows(50))])
    with open_database(where) as database:
        database.prepare(DIM)
        statements = []
        database._client.set_trace_callback(statements.append)
        blocks = list(database.scan(batch=20))
        statements.clear()
        for block in blocks[:2]:
            database.write(block.ids, block.vectors)
        assert not [one for one in statements if 'JOIN "items"' in one]
        database._remembered.clear()
        user.execute("DELETE FROM items WHERE id = 45")
        database.write(blocks[2].ids, blocks[2].vectors)
        assert [one for one in statements if 'JOIN "items"' in one]
        database._client.set_trace_callback(None)
        user.execute("UPDATE items SET name = 'changed' WHERE id = 3")
        database.switch()
    wanted = {k: "changed" if k == 3 else f"n{k}" for k in range(50) if k != 45}
    assert dict(user.execute("SELECT id, name FROM items").fetchall()) == wanted
    user.close()


def test_mapped_rows_have_unit_norm_whatever_their_size_and_given_ones_stay(mapping):
    mapper = RowMapper(mapping, normalize=True)
    X, ids = rows(30) * np.float32(3), pa.array(range(30))
    before = X.copy()
    np.testing.assert_allclose(mapper(ids, X, None), normalize_rows(mapping.transform(X)), atol=3e-7)
    huge = X * np.float32(1e25)
    np.testing.assert_allclose(np.linalg.norm(mapper(ids, huge, None).astype(np.float64), axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(X, before)
