"""Faults of a whole migration on files: a full disk, repeated ids, an interrupted switch, edited journals."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from database_contract import Killed, lists

from congruence import OrthogonalMap
from congruence.databases import open_database
from congruence.embeddings import normalize_rows
from congruence.errors import CorruptFileError, IdError, StorageError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.journal import Journal

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

N, D = 60, 8


@pytest.fixture(scope="module")
def rows():
    return normalize_rows((np.random.default_rng(0).normal(size=(N, D)) + 1).astype(np.float32))


@pytest.fixture(scope="module")
def mapping(rows):
    """Both models have the same width, so columns can be told apart only by their names."""
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0].astype(np.float32)
    return OrthogonalMap().fit(rows, normalize_rows(rows @ rotation + 0.3), modality="image")


def lance_table(folder, rows, ids=None):
    lancedb = pytest.importorskip("lancedb")
    table = pa.table({"id": pa.array(range(N) if ids is None else ids), "embedding": lists(rows)})
    lancedb.connect(folder / "photos").create_table("items", table)
    return folder / "photos" / "items.lance"


def begin(where, mapping, folder):
    return Migration(open_database(where), mapping, journal=folder / "journal", modality="image")


def files(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def embeddings(where):
    import lance

    table = lance.dataset(where).to_table(columns=["id", "embedding"]).sort_by("id")
    return table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, D)


def test_a_full_disk_is_said_so_whatever_the_client_calls_it(tmp_path):
    """DuckDB reports a failed transaction, PostgreSQL a lack of resources; neither is retried."""
    duckdb, psycopg = pytest.importorskip("duckdb"), pytest.importorskip("psycopg")
    from congruence.databases import Address
    from congruence.databases.pgvector import Client

    with duckdb.connect(str(tmp_path / "photos.duckdb")) as user:
        user.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, v FLOAT[2])")
    said = "TransactionContext Error: Failed to commit: Could not write file: No space left on device"

    def full():
        raise duckdb.TransactionException(said)

    with open_database(tmp_path / "photos.duckdb") as database, pytest.raises(StorageError, match="No space left"):
        database._call(full)
    client = Client(Address.parse("postgresql://server/photos"))
    found = client._translate(psycopg.errors.DiskFull("could not extend file"), lost=False)
    assert isinstance(found, StorageError)


@pytest.mark.parametrize("step", ["switch", "rollback"])
def test_what_a_kill_between_two_commits_left_is_completed(tmp_path, rows, mapping, monkeypatch, step):
    """A kill after the columns were renamed, before a search without a column name finds the other one."""
    where = lance_table(tmp_path, rows)
    lance, lancedb = pytest.importorskip("lance"), pytest.importorskip("lancedb")
    new = normalize_rows(mapping.transform(rows))

    def killed(*arguments, **options):
        raise Killed

    def found(wanted, *column):
        table = lancedb.connect(tmp_path / "photos").open_table("items")
        nearest = [table.search(row, *column).limit(1).to_list()[0] for row in wanted[:3]]
        assert max(one["_distance"] for one in nearest) < 1e-6
        return [one["id"] for one in nearest]

    with begin(where, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        if step == "rollback":
            migration.switch()
        with monkeypatch.context() as patch:
            patch.setattr(lance.LanceDataset, "update_field_metadata", killed)
            with pytest.raises(Killed):
                getattr(migration, step)()
    # A search that names no column still finds what it found before, one that names it what comes.
    assert found(rows if step == "switch" else new) == [0, 1, 2]
    assert found(new if step == "switch" else rows, "embedding") == [0, 1, 2]
    with begin(where, None, tmp_path) as migration:
        assert migration.status()["state"] == ("switched" if step == "switch" else "rolled back")
        getattr(migration, step)()
    assert found(new if step == "switch" else rows) == [0, 1, 2]


@pytest.fixture
def damaged(tmp_path):
    import fuzz_migrate

    table, mapping = fuzz_migrate.made()
    folder = tmp_path / "journal"
    with Migration(fuzz_migrate.MemoryDatabase(table), mapping, journal=folder, modality="image") as migration:
        migration.run()
        assert migration.verify().passed
    return table, folder


def test_a_sample_of_other_ids_is_said(damaged):
    import fuzz_migrate

    table, folder = damaged
    journal = Journal.read(folder)
    journal.sample = ["a"]
    journal.write(folder)
    for step in (Migration.verify, Migration.fit_thresholds):
        with pytest.raises(CorruptFileError, match="sample has other ids"):
            step(Migration(fuzz_migrate.MemoryDatabase(table), journal=folder))


def test_ids_of_several_rows_are_refused_before_anything_is_written(tmp_path, rows, mapping):
    where = lance_table(tmp_path, rows, [*range(N - 1), 7])
    before = files(tmp_path)
    with begin(where, mapping, tmp_path) as migration, pytest.raises(IdError, match="several rows have the id 7"):
        migration.run()
    assert files(tmp_path) == before
