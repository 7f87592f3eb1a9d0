""".npy files: the contract on matrices that NumPy saves, and special cases."""

from pathlib import Path

import numpy as np
import pytest
from database_contract import NASTY, DatabaseContract, UserRow, make_rows
from failing_files import FailingFiles

from congruence.databases import open_database
from congruence.errors import MigrationError
from congruence.upgrade.migrate import Migration


class TestNpy(FailingFiles, DatabaseContract):
    rows_without = False
    has_columns = False
    needed = (".vectors.npy.congruence", ".vectors.npy.congruence-begun", ".vectors.npy.congruence-dropped")

    def make(self, folder, ids, vectors, others, **names):
        np.save(folder / "vectors.npy", vectors)
        np.save(folder / "ids.npy", np.array(ids))
        (folder / "kind.txt").write_text("\n".join(others["kind"]))
        return str(folder / "vectors.npy")

    def open(self, where, *, table=None, column=None, ids=None, modality_column=None, rows=None):
        folder = Path(where).parent
        if table == NASTY:
            table = column = None
        if modality_column == "kind":
            modality_column = str(folder / "kind.txt")
        return super().open(
            where, table=table, column=column, ids=str(folder / "ids.npy"), modality_column=modality_column, rows=rows
        )

    def user_rows(self, where, **names):
        ids = np.load(Path(where).parent / "ids.npy").tolist()
        return {one: UserRow(row.tobytes(), {}) for one, row in zip(ids, np.load(where), strict=True)}

    def user_change(self, where, one, vector, others):
        rows = np.load(where)
        rows[np.load(Path(where).parent / "ids.npy").tolist().index(one)] = vector
        np.save(where, rows)


def test_a_file_that_was_written_after_the_switch_is_not_rolled_back(tmp_path):
    vectors = make_rows("int")[1]
    where, journal = tmp_path / "vectors.npy", tmp_path / "journal"
    np.save(where, vectors)
    mapping, _ = DatabaseContract().rotated(vectors)
    with Migration(open_database(where), mapping, journal=journal, modality="image") as migration:
        migration.run()
        migration.verify()
        migration.switch()
    written = np.load(where)
    written[3] *= -1  # as large as before, and far from the beginning, the middle and the end
    np.save(where, np.vstack([written, -written[:5]]))
    for new_rows in ("refuse", "keep", "map-back"):
        with (
            pytest.raises(MigrationError, match="5 rows .* added, 1 changed and 0 deleted.*whole files"),
            Migration(open_database(where), journal=journal) as migration,
        ):
            migration.rollback(new_rows)
    assert len(np.load(where)) == len(vectors) + 5
