"""Vectors that were encoded for a progressive migration and are not in its plan yet: on the disk before anything else is done with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence.upgrade.migrate.journal import PROGRESSIVE
from congruence.upgrade.migrate.native import NativeRows

__all__ = ["Paid", "keep_paid"]

#: In the folder of a journal.
_FOLDER = "encoded"


class Paid:
    """Encoded rows by id, one small folder a chunk.

    Parameters
    ----------
    folder : Path
        Of the journal.
    dim : int
        Of the new model.

    Attributes
    ----------
    rows : dict of str to ndarray
    """

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder = folder / _FOLDER
        self.rows: dict[str, np.ndarray] = {}
        self._count = 0
        for path in sorted(self.folder.glob("part-*")) if self.folder.is_dir() else []:
            arrays, config = persist.read_folder(path)
            self._count = max(self._count, int(path.name.removeprefix("part-")) + 1)
            names, vectors = config.get("ids"), arrays.get("vectors")
            if isinstance(names, list) and vectors is not None and vectors.shape == (len(names), dim):
                self.rows |= {str(name): row for name, row in zip(names, vectors, strict=True)}

    def add(self, ids: list[str], vectors: np.ndarray) -> None:
        """Keep a chunk, on the disk first. Raises StorageError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"part-{self._count:06d}"
        persist.write_folder(path, {"vectors": vectors}, {"kind": "encoded rows", "ids": ids}, "# Encoded rows\n")
        self._count += 1
        self.rows |= dict(zip(ids, vectors, strict=True))

    def forget(self, ids: list[str]) -> None:
        """Let go of rows that the plan has taken in; the files go with the last of them."""
        for one in ids:
            self.rows.pop(one, None)
        if not self.rows:
            shutil.rmtree(self.folder, ignore_errors=True)


def keep_paid(folder: Path, native: NativeRows) -> None:
    """Turn a plan's folder into encoded rows: the plan goes, and what was paid for stays. Raises StorageError."""
    kept = Paid(folder, native.new.width)
    for part in blocks(len(native.ids), 4 * native.new.width):
        names = [str(one) for one in native.ids[part].tolist()]
        kept.add(names, native.take(np.arange(len(native.ids))[part]))
    shutil.rmtree(folder / PROGRESSIVE, ignore_errors=True)
