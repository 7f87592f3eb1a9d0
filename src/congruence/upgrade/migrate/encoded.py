"""Store vectors encoded for a progressive migration that are not in its plan yet, so that a kill does not lose them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence.upgrade.migrate.journal import PROGRESSIVE
from congruence.upgrade.migrate.native import NativeRows

__all__ = ["EncodedRows", "keep_encoded"]

#: Name of the folder, in the journal's folder.
_FOLDER = "encoded"


class EncodedRows:
    """Encoded rows by id, stored as one small folder per chunk.

    Parameters
    ----------
    folder : Path
        Folder of the journal.
    dim : int
        Width of the new model.

    Attributes
    ----------
    rows : dict of str to ndarray, shape (dim,)
        Vectors by id.
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
        """Store a chunk, on disk before in memory. Raises StorageError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"part-{self._count:06d}"
        persist.write_folder(path, {"vectors": vectors}, {"kind": "encoded rows", "ids": ids}, "# Encoded rows\n")
        self._count += 1
        self.rows |= dict(zip(ids, vectors, strict=True))

    def forget(self, ids: list[str]) -> None:
        """Remove rows that are now in the plan; the files are deleted with the last of them."""
        for name in ids:
            self.rows.pop(name, None)
        if not self.rows:
            shutil.rmtree(self.folder, ignore_errors=True)


def keep_encoded(folder: Path, native: NativeRows) -> None:
    """Remove a plan, but keep the vectors that were encoded for it. Raises StorageError."""
    encoded = EncodedRows(folder, native.new.width)
    for part in blocks(len(native.ids), 4 * native.new.width):
        names = [str(name) for name in native.ids[part].tolist()]
        encoded.add(names, native.take(np.arange(len(native.ids))[part]))
    shutil.rmtree(folder / PROGRESSIVE, ignore_errors=True)
