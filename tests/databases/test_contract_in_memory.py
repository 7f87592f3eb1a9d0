"""The contract on a database in memory, which shows tests of the contract that cannot pass, or cannot fail."""

from contextlib import contextmanager

import numpy as np
from database_contract import ERRORS, DatabaseContract, UserRow
from memory_database import MemoryDatabase, Table

TABLES: dict[str, Table] = {}


class TestMemory(DatabaseContract):
    any_names = False

    def make(self, folder, ids, vectors, others, **names):
        rows = {one: {key: column[k] for key, column in others.items()} for k, one in enumerate(ids)}
        TABLES[str(folder)] = Table(rows, {one: row.copy() for one, row in zip(ids, vectors, strict=True)})
        return str(folder)

    def open(self, where, *, rows=None, table=None, column=None, modality_column=None, **options):
        from congruence.errors import ParameterError

        if table or column or modality_column not in (None, "kind"):
            raise ParameterError(
                f"Got table={table!r}, column={column!r}, modality_column={modality_column!r}.", "Leave them out."
            )
        database = MemoryDatabase(TABLES[where])
        if modality_column is None:
            database._block = lambda *a: MemoryDatabase._block(database, *a)._replace(modalities=None)
        return database

    def user_rows(self, where, **names):
        table = TABLES[where]
        shown = table.new if table.switched else table.old
        found = {one: shown.get(one) for one in table.rows}
        return {
            one: UserRow(None if vector is None else vector.tobytes(), dict(table.rows[one]))
            for one, vector in found.items()
        }

    def user_add(self, where, one, vector, others, **names):
        table = TABLES[where]
        table.rows[one] = dict(others)
        shown = table.new if table.switched else table.old
        shown.pop(one, None)
        if vector is not None:
            shown[one] = np.asarray(vector, np.float32)

    @contextmanager
    def failing(self, where, database, fault, after):
        def fail(step):
            if len(database.calls) > calls + after:
                raise ERRORS[fault]("the test", "Nothing.")

        database.fail, calls = fail, len(database.calls)
        yield

    def traces(self, where):
        table = TABLES[where]
        return sorted(table.rows), table.made, table.switched, bool(table.new)

    def user_delete(self, where, one, **names):
        del TABLES[where].rows[one]
        (TABLES[where].new if TABLES[where].switched else TABLES[where].old).pop(one, None)
