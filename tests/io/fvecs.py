"""``.fvecs``, the format of the SIFT data sets, as another package would add it: each row after its width, as int32."""

from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, ParameterError
from congruence.io import Sink, Source


class FvecsSink(Sink):
    """Writer of rows, float32."""

    keeps_ids = False

    def _open(self, temporary, stack):
        self._file = stack.enter_context(open(temporary, "wb"))

    def _write(self, ids, vectors, rows=None):
        widths = np.full((len(vectors), 1), self.dim, "<i4")
        self._file.write(np.hstack([widths, vectors.astype("<f4").view("<i4")]).tobytes())


class FvecsSource(Source):
    """Rows of a file; its ids come from another one."""

    sink = FvecsSink

    def __init__(self, path, key=None, ids=None):
        if key is not None:
            raise ParameterError(f"Got key {key!r} for {path}; expected none.", "Pass the path alone.")
        self.path, self.files, self.dtype = str(path), (Path(path),), np.dtype(np.float32)
        size = Path(path).stat().st_size
        with open(path, "rb") as file:
            self.dim = int.from_bytes(file.read(4), "little")
        if not self.dim or size % (4 * self.dim + 4):
            raise CorruptFileError(f"The file {path} is truncated or damaged.", "Copy it again.")
        self.n, self._ids = size // (4 * self.dim + 4), None if isinstance(ids, bool) else ids

    def _blocks(self, after, batch):
        with open(self.path, "rb") as file:
            file.seek(after * (4 * self.dim + 4))
            for start in range(after, self.n, batch):
                rows = np.fromfile(file, "<i4", min(batch, self.n - start) * (self.dim + 1)).reshape(-1, self.dim + 1)
                if (rows[:, 0] != self.dim).any():
                    raise CorruptFileError(f"The file {self.path} has rows of several widths.", "Write it again.")
                yield np.ascontiguousarray(rows[:, 1:]).view("<f4")
