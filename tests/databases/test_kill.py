"""A migration of a real file is killed with SIGKILL at steps from the first to the last, and resumed."""

import importlib
import shutil
import signal

import numpy as np
import pyarrow as pa
import pytest
from database_contract import lists
from processes import Killer, fork, read_duckdb, write_duckdb

from congruence import OrthogonalMap, load
from congruence.databases import open_database
from congruence.embeddings import normalize_rows
from congruence.upgrade.migrate import Migration, passes
from congruence.upgrade.migrate import verify as checks
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.quantize import Quantizer

pytestmark = pytest.mark.long

N, D, E = 400, 6, 8


def step_through(folder, at, seen):
    """Run, verify, switch and roll back, from any state; kill the process at step ``at``."""
    killer = Killer(at, seen)
    passes.CHECKPOINT_SECONDS = 0.0
    passes.rows_per_block = lambda dim: 200
    checks.QUERIES = 4
    database = open_database(folder / "photos.duckdb", modality_column="kind")
    killer.watch(database, "prepare", "write", "flush", "build_index", "switch", "rollback")
    killer.watch(Journal, "write")
    with Migration(database, load(folder / "map"), journal=folder / "journal") as migration:
        state = migration.status().get("state")
        if state in (None, "filling"):
            migration.run(resume=state is not None)
        if migration.journal.state == "filled":
            assert migration.verify().passed
        if migration.journal.state == "verified":
            migration.switch()
        if migration.journal.state == "switched":
            assert migration.rollback()["identical"]


def test_nothing_is_lost_doubled_wrong_or_changed(tmp_path):
    for name in ("congruence.databases.duckdb", "congruence.maps.orthogonal", "sklearn.base"):
        importlib.import_module(name)  # once, and not in each of two processes a step
    rng = np.random.default_rng(0)
    X = normalize_rows((rng.normal(size=(N, D)) + 1).astype(np.float32))
    Y = normalize_rows((X @ np.linalg.qr(rng.normal(size=(E, E)))[0][:D] + 0.3).astype(np.float32))
    mapping = OrthogonalMap().fit(X[:200], Y[:200], modality="image")
    first = tmp_path / "first"
    first.mkdir()
    mapping.save(first / "map")
    ids = rng.permutation(N)
    write_duckdb(first, {"id": ids, "kind": ["image"] * N, "vector": lists(X)})
    order = np.argsort(ids)
    wanted = RowMapper(mapping)(pa.array(ids), X, pa.array(["image"] * N, pa.large_string()))[order]
    whole = shutil.copytree(first, tmp_path / "whole")
    code, total = fork(step_through, whole, -1)
    assert code == 0
    assert total > 24
    # benchmarks/migrate_faults.py kills at every kind of step.
    for at in np.unique(np.linspace(0, total - 1, 8).astype(int)).tolist():
        folder = shutil.copytree(first, tmp_path / "killed")
        assert fork(step_through, folder, at)[0] == -signal.SIGKILL, at
        assert fork(step_through, folder, -1)[0] == 0, at
        names, old = read_duckdb(folder, "vector")
        assert names == sorted(ids.tolist())
        np.testing.assert_array_equal(old, X[order])
        new_names, new = read_duckdb(folder, "vector__congruence_new")
        assert new_names == names
        assert not Quantizer("float32", wanted.shape[1]).differs(new, wanted).any()
        shutil.rmtree(folder)
