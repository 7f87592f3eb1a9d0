"""Processes that search one migrated DuckDB table lazily, are killed with SIGKILL."""

import shutil
import signal

import numpy as np
import pytest
from processes import Killer, fork, read_duckdb
from test_reembed_kill import N, switched  # noqa: F401  # a fixture

from congruence import LazySearch, Migration, persist
from congruence.databases import open_database
from congruence.upgrade.migrate.journal import Journal

pytestmark = pytest.mark.long


def go(folder, at, seen):
    """Search and write back, from any state; kill the process at step ``at``."""
    killer, truth = Killer(at, seen), np.load(folder / "truth.npy")

    def encode(ids):
        with open(folder / "asked.txt", "a") as stream:
            stream.writelines(f"{one}\n" for one in ids)
        return truth[[int(one) for one in ids]]

    database = open_database(folder / "photos.duckdb")
    for owner, name in ((Journal, "write"), (persist, "write_folder"), (database, "write")):
        killer.watch(owner, name)
    with Migration(database, journal=folder / "journal") as migration:
        search = LazySearch(migration, None, encode, budget=10, check=False)
        if search.rows.n_native < 60:
            search.reembed(truth[:6], budget=60 - search.rows.n_native)
        search.write()
        assert search.rows.n_native == 60
        assert migration.verify().passed


def test_killed_again_and_again_each_row_is_encoded_and_written_once(switched, tmp_path):  # noqa: F811
    copy, folder = shutil.copytree(switched, tmp_path / "copy"), switched  # a journal is of one place
    old, truth = read_duckdb(folder, "vector"), np.load(folder / "truth.npy")
    code, total = fork(go, folder, -1)
    assert code == 0
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    kills = np.linspace(0, total - 1, 6).astype(int).tolist()
    for at in kills:
        assert fork(go, folder, at)[0] in (-signal.SIGKILL, 0)
    assert fork(go, folder, -1)[0] == 0
    ids, found = read_duckdb(folder, "vector")
    assert ids == list(range(N))
    own = np.flatnonzero(np.abs(found - truth).max(axis=1) < 1e-6)
    asked = (folder / "asked.txt").read_text().split()
    assert set(own.tolist()) <= set(map(int, asked))
    assert len(own) == 60
    assert len(asked) <= 60 + 12 * len(kills)  # a batch that was encoded and not on the disk yet
    assert old[0] == ids
