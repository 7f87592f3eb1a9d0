"""Processes that kill themselves at a step."""

import multiprocessing
import os
import signal

CONTEXT = multiprocessing.get_context("fork")  # nothing of a database is open in the process that forks


def fork(target, *arguments):
    """Call a function in a process, with a shared number as its last argument; return the exit code and the number."""
    seen = CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=target, args=(*arguments, seen))
    process.start()
    process.join(120)
    return process.exitcode, seen.value


class Killer:
    """Kills its process at a step, counted from 0: before and after each call that is watched."""

    def __init__(self, at, seen):
        self.at, self.seen = at, seen

    def step(self):
        if self.seen.value == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.value += 1

    def watch(self, owner, *names):
        for name in names:
            setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, call):
        def run(*arguments, **options):
            self.step()
            result = call(*arguments, **options)
            self.step()
            return result

        return run


def write_duckdb(folder, columns):
    """Create a table ``items`` in ``photos.duckdb`` from Arrow columns, of which the first is the key."""
    import duckdb
    import pyarrow as pa

    rows = pa.table(columns)
    with duckdb.connect(str(folder / "photos.duckdb")) as connection:
        connection.register("rows", rows)
        connection.execute("CREATE TABLE items AS SELECT * FROM rows")
        connection.execute(f"ALTER TABLE items ADD PRIMARY KEY ({rows.column_names[0]})")


def read_duckdb(folder, column):
    """Return the ids of ``items``, sorted, and their vectors."""
    import duckdb
    import numpy as np

    with duckdb.connect(str(folder / "photos.duckdb")) as connection:
        found = connection.execute(f'SELECT id, "{column}" FROM items ORDER BY id').fetchnumpy()
    return found["id"].tolist(), np.stack(found[column]).astype(np.float32)
