"""A migration on a full disk, a small file system of its own: each step is done or not, and ends well with space."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from congruence import OrthogonalMap
from congruence.databases import Stage
from congruence.errors import StorageError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.passes import Retry

sys.path.append(str(Path(__file__).parents[1] / "databases"))

N, DIM = 1500, 64

#: The contract that makes a database of a kind, and reads it as its users do.
KINDS = {
    "npy": "test_npy.TestNpy",
    "parquet": "test_parquet.TestParquet",
    "faiss": "test_faiss.TestFaiss",
    "sqlite": "test_sqlite.TestSQLite",
    "duckdb": "test_duckdb.TestDuckDB",
    "lancedb": "test_lancedb.TestLanceDB",
    "qdrant": "test_qdrant.TestFolder",
    "chroma": "test_chroma.TestFolder",
    "milvus": "test_milvus.TestFile",
}


@pytest.fixture
def disk(tmp_path):
    """A file system of 16 MB."""
    if not sys.platform.startswith("linux") or os.geteuid():
        pytest.skip("only root mounts a file system, on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this machine mounts no file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.long
@pytest.mark.parametrize("free", [0, 480_000])  # bytes: none, and too few for the work of a run
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_on_a_full_disk(disk, tmp_path, kind, free):
    if (kind, free) == ("chroma", 480_000):
        pytest.skip("Chroma cannot open its own index again that it could not write to the end")
    from database_contract import make_rows

    module, _, name = KINDS[kind].partition(".")
    made = getattr(import_module(module), name)()
    ids, vectors, others = make_rows(made.id_types[0], N, DIM)
    where = made.make(disk, ids, vectors, others)
    before = made.user_rows(where)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0].astype(np.float32)
    mapping = OrthogonalMap(center=False).fit(vectors, vectors @ rotation, modality="image")
    expected = dict(zip(ids, vectors @ rotation, strict=True))
    filling = disk / "filling"

    def shown():
        """Return the side that readers see, whole."""
        made.restart()
        rows = made.user_rows(where)
        if rows == before:
            return "old"
        assert {one: row.others for one, row in rows.items()} == {one: row.others for one, row in before.items()}
        for one, row in rows.items():
            np.testing.assert_allclose(np.frombuffer(row.vector, np.float32), expected[one], atol=1e-5)
        return "new"

    def migration():
        options = {"journal": tmp_path / "journal", "retry": Retry(attempts=1)}
        given = None if (tmp_path / "journal" / "journal.json").exists() else mapping
        return Migration(made.open(where), given, modality="image", **options)

    failed = []
    for step, side, stage in (
        ("run", "old", Stage.PREPARED),
        ("verify", "old", Stage.PREPARED),
        ("switch", "new", Stage.SWITCHED),
        ("rollback", "old", Stage.PREPARED),
        ("verify", "old", Stage.PREPARED),
        ("switch", "new", Stage.SWITCHED),
        ("drop_old", "new", Stage.UNTOUCHED),
    ):
        seen = shown()
        left = os.statvfs(disk)
        filling.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - free)))
        try:
            with migration() as one:
                getattr(one, step)()
        except StorageError:
            failed.append(step)
            filling.unlink()
            with migration() as one:
                now = None if one.journal is None else one.status()["stage"]  # completes what was interrupted
            assert shown() in (seen, side)
            assert now is None or (now == Stage.SWITCHED) == (shown() == "new")
            with migration() as one:
                getattr(one, step)(**({"resume": True} if step == "run" and one.journal is not None else {}))
        filling.unlink(missing_ok=True)
        assert shown() == side
        with migration() as one:
            assert one.status()["stage"] == stage
    assert failed or free
