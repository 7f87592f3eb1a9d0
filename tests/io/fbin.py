"""``.fbin``, the format of the Big ANN benchmarks, as another package would add it: two counts and rows of float32."""

from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, ParameterError
from congruence.io import RawSource, Sink


class FbinSink(Sink):
    """Writer of rows, float32."""

    keeps_ids, widest = False, np.float32

    def _open(self, temporary, stack):
        self._file = stack.enter_context(open(temporary, "wb"))
        self._file.write(np.array([self.n, self.dim], "<u4").tobytes())

    def _write(self, ids, vectors, rows=None):
        self._file.write(vectors.astype("<f4").tobytes())


class FbinSource(RawSource):
    """Rows of a file; its ids come from another one."""

    sink = FbinSink

    def __init__(self, path, key=None, ids=None):
        if key is not None:
            raise ParameterError(f"Got key {key!r} for {path}; expected none.", "Pass the path alone.")
        self.path = self._file = str(path)
        self.files, self._offset = (Path(path),), 8
        self.dtype = self._stored = np.dtype("<f4")
        with open(path, "rb") as file:
            self.n, self.dim = (int.from_bytes(file.read(4), "little") for _ in "nd")
        if not self.n * self.dim or Path(path).stat().st_size != 8 + 4 * self.n * self.dim:
            raise CorruptFileError(f"The file {path} is truncated or damaged.", "Copy it again.")
        self._ids = None if isinstance(ids, bool) else ids
