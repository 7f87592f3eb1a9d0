""".npy files: the contract on matrices that NumPy saves, and special cases."""

from pathlib import Path

import numpy as np
from database_contract import NASTY, DatabaseContract, UserRow


class TestNpy(DatabaseContract):
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
