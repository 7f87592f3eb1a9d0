"""A migration of a real file is killed with SIGKILL at steps from the first to the last, and resumed."""

import importlib
import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pytest
from database_contract import lists
from processes import fork

from congruence import OrthogonalMap, load
from congruence.databases import open_database
from congruence.upgrade.migrate import Migration, passes
from congruence.upgrade.migrate import verify as checks
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.quantize import Quantizer

pytestmark = pytest.mark.long

N, D, E = 400, 6, 8

STEPS = ("prepare", "write", "flush", "build_index", "switch", "rollback")


def step_through(folder, at, seen):
    """Run, verify, switch and roll back, from any state; kill the process at step ``at``."""
    count = 0

    def step():
        nonlocal count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        seen.value = count

    def watched(call):
        def run(*arguments, **options):
            step()
            result = call(*arguments, **options)
            step()
            return result

        return run

    passes.CHECKPOINT_SECONDS = 0.0
    passes.rows_per_block = lambda dim: 200
    checks.QUERIES = 4
    database = open_database(folder / "photos.duckdb", modality_column="kind")
    for name in STEPS:
        setattr(database, name, watched(getattr(database, name)))
    Journal.write = watched(Journal.write)
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


def contents(folder, column):
    import duckdb

    with duckdb.connect(str(folder / "photos.duckdb")) as connection:
        found = connection.execute(f'SELECT id, "{column}" FROM items ORDER BY id').fetchnumpy()
    return found["id"].tolist(), np.stack(found[column]).astype(np.float32)


def test_nothing_is_lost_doubled_wrong_or_changed(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    for name in ("congruence.databases.duckdb", "congruence.maps.orthogonal", "sklearn.base"):
        importlib.import_module(name)  # once, and not in each of two processes a step
    rng = np.random.default_rng(0)

    def unit(X):
        return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)

    X = unit(rng.normal(size=(N, D)) + 1)
    Y = unit(X @ np.linalg.qr(rng.normal(size=(E, E)))[0][:D] + 0.3)
    mapping = OrthogonalMap().fit(X[:200], Y[:200], modality="image")
    first = tmp_path / "first"
    first.mkdir()
    mapping.save(first / "map")
    ids = rng.permutation(N)
    rows = pa.table({"id": ids, "kind": ["image"] * N, "vector": lists(X)})
    with duckdb.connect(str(first / "photos.duckdb")) as connection:
        connection.register("rows", rows)
        connection.execute(f"CREATE TABLE items (id BIGINT PRIMARY KEY, kind VARCHAR, vector FLOAT[{D}])")
        connection.execute("INSERT INTO items SELECT * FROM rows")
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
        names, old = contents(folder, "vector")
        assert names == sorted(ids.tolist())
        np.testing.assert_array_equal(old, X[order])
        new_names, new = contents(folder, "vector__congruence_new")
        assert new_names == names
        assert not Quantizer("float32", wanted.shape[1]).differs(new, wanted).any()
        shutil.rmtree(folder)
