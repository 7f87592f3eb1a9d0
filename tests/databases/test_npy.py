""".npy files: the contract on matrices that NumPy saves, and special cases."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from database_contract import NASTY, DatabaseContract, UserRow, make_rows, run
from failing_files import FailingFiles
from processes import fork

from congruence.databases import npy, open_database
from congruence.errors import MigrationError, StorageError
from congruence.upgrade.migrate import Migration


class TestNpy(FailingFiles, DatabaseContract):
    kind = "npy"
    rows_without = False
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
        return {
            one: UserRow(row.tobytes(), {}) for one, row in zip(ids, np.load(where).astype(np.float32), strict=True)
        }

    def user_add(self, where, one, vector, others, **names):
        self.save(where, {**self.user_rows(where), one: UserRow(vector.tobytes(), {})})

    def user_delete(self, where, one, **names):
        self.save(where, {name: row for name, row in self.user_rows(where).items() if name != one})

    def empty(self, where):
        np.save(where, np.load(where)[:0])
        np.save(Path(where).parent / "ids.npy", np.load(Path(where).parent / "ids.npy")[:0])

    def save(self, where, rows):
        np.save(where, np.stack([np.frombuffer(row.vector, np.float32) for row in rows.values()]))
        np.save(Path(where).parent / "ids.npy", np.array(list(rows)))

    def give(self, where, situation):
        np.save(where, np.asfortranarray(np.load(where).astype(">f8")))

    def rules(self, where):
        found = np.load(where)
        return found.dtype.str, found.flags.f_contiguous

    def said(self, where):
        return self.rules(where), np.load(where).shape

    def user_change(self, where, one, vector, others):
        rows = np.load(where)
        rows[np.load(Path(where).parent / "ids.npy").tolist().index(one)] = vector
        np.save(where, rows)


@pytest.mark.parametrize("kind", ["<f4", ">f2", ">f4", "<f8"])
@pytest.mark.parametrize("order", "CF")
def test_order_and_byte_order_stay_with_any_width(tmp_path, monkeypatch, kind, order):
    monkeypatch.setattr(npy, "_COLUMN_BYTES", 500)
    vectors = make_rows("int")[1]
    where, stored = tmp_path / "vectors.npy", np.array(vectors, kind, order=order)
    np.save(where, stored)
    with open_database(where) as database:
        run(database, 3, "float16" if "2" in kind else "float32")
        database.switch()
        found = np.load(where)
        np.testing.assert_array_equal(found, stored[:, :3])
        assert (found.dtype, found.flags.f_contiguous) == (stored.dtype, order == "F")
        database.rollback()
        assert np.load(where).tobytes("A") == stored.tobytes("A")
        database.switch()
        database.drop_old()
    assert [one.name for one in tmp_path.iterdir()] == ["vectors.npy"]


def test_the_plan_says_that_whole_numbers_become_floats(tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(48, dtype=np.int8).reshape(12, 4))
    with open_database(tmp_path / "vectors.npy") as database:
        block = next(iter(database.scan()))
        assert [said for *_, said in database.rehearse(block.ids, block.vectors, "float32")] == [
            "the file stores int8, and the new vectors are float64"
        ]


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


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_written_is_found_by_the_plan(tmp_path):
    vectors = make_rows("int")[1]
    mapping, _ = DatabaseContract().rotated(vectors)
    open_to_all, elsewhere = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    elsewhere.chmod(0o777)
    np.save(open_to_all / "vectors.npy", vectors)

    def plan(found):
        os.seteuid(65534)
        for journal, value in ((open_to_all / "j", 1), (elsewhere / "j", 2)):
            with pytest.raises(StorageError, match="creating a file in"):
                Migration(open_database(open_to_all / "vectors.npy"), mapping, journal=journal, modality="image").plan()
            found.value += value

    open_to_all.chmod(0o555)
    try:
        assert fork(plan) == (0, 3)
    finally:
        shutil.rmtree(open_to_all)
