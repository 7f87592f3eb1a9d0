"""A small data set of several files, and engines that simulate failing machines."""

import contextlib
import pickle
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence import OrthogonalMap
from congruence.databases import open_database
from congruence.engines import LocalEngine
from congruence.synthetic import rigid_problem
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.mapper import RowMapper

FILES, ROWS, WIDTH, OUT = 4, 300, 24, 32
P = rigid_problem(FILES * ROWS, WIDTH, OUT, noise=0.1, random_state=0)
X, Y = P.X.astype("f4"), P.Y.astype("f4")


MAP = OrthogonalMap().fit(P.X[:400], P.Y[:400])


def table(start=0, stop=None, vectors=X):
    block = np.ascontiguousarray(vectors[start:stop])
    rows, lists = np.arange(start, start + len(block)), pa.FixedSizeListArray.from_arrays(block.ravel(), block.shape[1])
    return pa.table({"id": rows, "vector": lists, "title": [f"row {k}" for k in rows]})


def write_parts(folder, vectors=X, group=100):
    folder.mkdir(parents=True)
    for k in range(FILES):
        part = table(k * ROWS, (k + 1) * ROWS, vectors)
        pq.write_table(part, folder / f"part-{k}.parquet", row_group_size=group)
    return folder


def read_parts(folder):
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.rglob("[!_]*.parquet"))])


class Killed(BaseException):
    """The driver has died; only what a dead process leaves on disk remains."""


class Dying(LocalEngine):
    """A driver that dies after some results; its workers may have written one more."""

    def __init__(self, after, *, unseen=True):
        self.after, self.unseen = after, unseen

    def run(self, work, fragments):
        for k, result in enumerate(super().run(work, fragments)):
            if k == self.after:
                raise Killed
            yield result


class Pickled(LocalEngine):
    """Pickles the work as a cluster does, for one worker per task, which runs in another working directory."""

    def run(self, work, fragments):
        content = pickle.dumps(work)
        for one in fragments:
            with tempfile.TemporaryDirectory() as elsewhere, contextlib.chdir(elsewhere):
                found = list(super().run(pickle.loads(content), [one]))
            yield from found


def migrate(where, journal, engine=None, steps=("run", "verify", "switch"), migration=None, **options):
    """Take steps of a migration by the map; return what each returned."""
    with Migration(open_database(str(where)), MAP, journal=journal, engine=engine, **(migration or {})) as one:
        return {step: getattr(one, step)(**(options if step == "run" else {})) for step in steps}


def count_mapped(monkeypatch):
    """Return a list to which each call of a migration's mapper adds its number of rows."""
    mapped, call = [], RowMapper.__call__
    monkeypatch.setattr(RowMapper, "__call__", lambda self, *given: mapped.append(len(given[0])) or call(self, *given))
    return mapped
