"""A progressive re-embedding of a DuckDB file is killed with SIGKILL repeatedly until it completes."""

import shutil
import signal

import numpy as np
import pytest
from database_contract import lists
from processes import Killer, fork, read_duckdb, write_duckdb

from congruence import OrthogonalMap, load, persist
from congruence.databases import open_database
from congruence.embeddings import normalize_rows
from congruence.upgrade.migrate import Migration, stages
from congruence.upgrade.migrate.journal import Journal

pytestmark = pytest.mark.long

N, D, E = 240, 6, 8
BUDGET, CHUNK = 48, 8


def go(folder, at, seen):
    """Re-embed a fifth, from any state; kill the process at step ``at``."""
    killer = Killer(at, seen)

    def encode(ids):
        with open(folder / "asked.txt", "a") as stream:
            stream.writelines(f"{one}\n" for one in ids)
        return truth[[int(one) for one in ids]]

    truth = np.load(folder / "truth.npy")
    stages.CHUNK = CHUNK
    database = open_database(folder / "photos.duckdb")
    for owner, name in ((Journal, "write"), (persist, "write_folder"), (database, "write")):
        killer.watch(owner, name)
    with Migration(database, load(folder / "map"), journal=folder / "journal") as migration:
        stages.reembed(migration, encode, size=16, budget=BUDGET)
        assert migration.verify().passed


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """A migrated and switched table."""
    folder = tmp_path_factory.mktemp("first")
    rng = np.random.default_rng(0)
    old = normalize_rows((rng.normal(size=(N, D)) + 1).astype(np.float32))
    new = normalize_rows((old @ np.linalg.qr(rng.normal(size=(E, E)))[0][:D] + 0.3).astype(np.float32))
    OrthogonalMap().fit(old[:100], new[:100]).save(folder / "map")
    np.save(folder / "truth.npy", normalize_rows(new + 0.2 * rng.normal(size=new.shape).astype(np.float32)))
    write_duckdb(folder, {"id": np.arange(N), "vector": lists(old)})
    assert fork(migrate, folder)[0] == 0
    return folder


def migrate(folder, _):
    database = open_database(folder / "photos.duckdb")
    with Migration(database, load(folder / "map"), journal=folder / "journal") as migration:
        migration.run()
        assert migration.verify().passed
        migration.switch()


def test_killed_again_and_again_it_ends_as_an_unbroken_run(switched, tmp_path):
    copy, folder = shutil.copytree(switched, tmp_path / "copy"), switched  # a journal is of one place
    code, total = fork(go, folder, -1)
    assert code == 0
    assert total > 30
    (ids, wanted), truth = read_duckdb(folder, "vector"), np.load(switched / "truth.npy")
    assert ids == list(range(N))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    own = np.flatnonzero(np.abs(wanted - truth).max(axis=1) < 1e-6)
    assert len(own) == BUDGET
    kills = np.linspace(0, total // 2, 5).astype(int).tolist()
    for at in kills:
        assert fork(go, folder, at)[0] in (-signal.SIGKILL, 0)  # 0: it had less left to do than the first run
    assert fork(go, folder, -1)[0] == 0
    ids, found = read_duckdb(folder, "vector")
    assert ids == list(range(N))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    asked = (folder / "asked.txt").read_text().split()
    assert set(map(int, asked)) == set(own.tolist())
    assert len(asked) <= BUDGET + CHUNK * len(kills)  # a chunk that was encoded and not on the disk yet
    assert not list((folder / "journal").glob("*.tmp"))
    assert not list((folder / "journal" / "progressive").glob(".*.tmp"))
