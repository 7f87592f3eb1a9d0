"""A migration on a small file system of its own that is full: each step is done or not, and ends well with room."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from congruence import OrthogonalMap
from congruence.databases import Stage
from congruence.errors import StorageError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.passes import Retry

N, DIM = 1500, 64

STEPS = (
    ("run", "old", Stage.PREPARED),
    ("discard", "old", Stage.UNTOUCHED),
    ("run", "old", Stage.PREPARED),
    ("verify", "old", Stage.PREPARED),
    ("switch", "new", Stage.SWITCHED),
    ("rollback", "old", Stage.PREPARED),
    ("verify", "old", Stage.PREPARED),
    ("switch", "new", Stage.SWITCHED),
    ("drop_old", "new", Stage.UNTOUCHED),
)


@contextmanager
def small_disk(size):
    """Mount a file system of this size, and yield its folder."""
    if not sys.platform.startswith("linux") or os.geteuid():
        pytest.skip("only root mounts a file system, on Linux")
    folder = Path(tempfile.mkdtemp(prefix="d"))
    folder.chmod(0o755)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"this machine mounts no file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


class FullDisk:
    """The steps of a migration with ``free`` bytes on the disk; a subclass opens the store and reads its rows."""

    errors = (StorageError,)
    steps = STEPS[2:]

    def __init__(self, disk, journal, vectors, free):
        turn = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0].astype(np.float32)
        self.mapping = OrthogonalMap(center=False).fit(vectors, vectors @ turn, modality="image")
        self.disk, self.journal, self.filling, self.free, self.new = (
            disk,
            journal,
            disk / "filling",
            free,
            vectors @ turn,
        )

    def open(self):
        raise NotImplementedError

    def rows(self):
        """Return other fields and vector of each row, by id in the order of the vectors, as its users read them."""
        raise NotImplementedError

    def fill(self):
        left = os.statvfs(self.disk)
        self.filling.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - self.free)))

    def recover(self):
        self.filling.unlink(missing_ok=True)

    def migration(self):
        given = None if (self.journal / "journal.json").exists() else self.mapping
        return Migration(self.open(), given, modality="image", journal=self.journal, retry=Retry(attempts=1))

    def shown(self):
        """Return the side that readers see, whole."""
        found = self.rows()
        assert {one: others for one, (others, _) in found.items()} == {one: o for one, (o, _) in self.before.items()}
        if all(np.array_equal(vector, self.before[one][1]) for one, (_, vector) in found.items()):
            return "old"
        for one, (_, vector) in found.items():
            np.testing.assert_allclose(vector, self.expected[one], atol=1e-5)
        return "new"

    def check(self, ids):
        self.before, self.expected, failed = self.rows(), dict(zip(ids, self.new, strict=True)), []
        for step, side, stage in self.steps:
            seen = self.shown()
            self.fill()
            try:
                with self.migration() as one:
                    getattr(one, step)()
            except self.errors:
                failed.append(step)
                self.recover()
                with self.migration() as one:  # completes what was interrupted
                    status = None if one.journal is None else one.status()
                assert self.shown() in (seen, side)
                assert status is None or (status["stage"] == Stage.SWITCHED) == (self.shown() == "new")
                assert status is None or not (status["refused"] or status["obstacles"])
                with self.migration() as one:
                    ended = one.journal is None if step == "discard" else one.journal and one.journal.state == "dropped"
                    if not ended:
                        resume = {"resume": True} if step == "run" and one.journal is not None else {}
                        getattr(one, step)(**resume)
            self.recover()
            assert self.shown() == side
            with self.migration() as one:
                assert (one.status()["stage"] if one.journal else one.database.stage()) == stage
        assert failed or self.free
