"""Reader and writer of ``.safetensors`` files, streamed without memory maps.

A file consists of the length of its header (eight bytes, little-endian), a JSON header with the dtype, shape and
position of each tensor, and the tensors' bytes. The safetensors library maps the whole file, which would count toward
resident memory.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors

from congruence.embeddings import Space
from congruence.errors import DtypeError
from congruence.io._base import SPACE_KEY, NamedArrays, RawSource, Sink, read_space, space_json
from congruence.io.reading import as_column, read_exactly, reading, write_all

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io.columns import TableRows

_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"},
}

#: Maximum number of bytes of the header that the format allows.
_MAX_HEADER = 100_000_000


def _read_header(path: str | Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the descriptions of the tensors by name, the metadata, and the offset of the first data byte."""
    damage = (safetensors.SafetensorError, AttributeError, TypeError, ValueError, RecursionError)
    with reading(path, *damage), open(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(stream.read(length))
        metadata = header.pop("__metadata__", None)
        with safetensors.safe_open(str(path), "np"):  # checks types, shapes and positions, and reads no tensor
            pass
    return header, metadata if isinstance(metadata, dict) else {}, 8 + length


class SafetensorsSink(Sink):
    """Writer of a ``.safetensors`` with one tensor, ``vectors``, and the space in its metadata; ids are not kept."""

    keeps_ids = False

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        kind, size = f"F{8 * self.dtype.itemsize}", self.n * self.dim * self.dtype.itemsize
        header: dict[str, object] = {"vectors": {"dtype": kind, "shape": [self.n, self.dim], "data_offsets": [0, size]}}
        if self.space != Space():
            header["__metadata__"] = {SPACE_KEY: space_json(self.space)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # data must begin at a multiple of eight
        self._file = stack.enter_context(open(temporary, "wb", buffering=0))
        write_all(self._file, np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        write_all(self._file, vectors)


class SafetensorsSource(RawSource, NamedArrays):
    """Rows of one tensor in a ``.safetensors`` file, by default the only matrix; bfloat16 is converted to float32."""

    sink, own_ids = SafetensorsSink, False

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        header, metadata, start = _read_header(path)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        entry = header[self._choose(path, key, shapes)]
        if entry["dtype"] not in _DTYPES:
            problem = f"Got dtype {entry['dtype']} in {self.path}; expected one of {', '.join(_DTYPES)}."
            raise DtypeError(problem, "Save the tensor as one of these.")
        self._bfloat = entry["dtype"] == "BF16"
        self._stored = np.dtype(_DTYPES[entry["dtype"]])
        self._set_matrix(tuple(entry["shape"]), np.dtype(np.float32) if self._bfloat else self._stored)
        self._offset = start + entry["data_offsets"][0]
        self._set_ids(ids, shapes)
        self.space = read_space(metadata.get(SPACE_KEY), path)

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        return {name: tuple(entry["shape"]) for name, entry in _read_header(path)[0].items()}

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional tensor of numbers."""
        header, _, start = _read_header(path)
        stored = header[key]["dtype"]
        if stored not in _DTYPES or stored == "BF16":
            raise DtypeError(f"Got dtype {stored} in {path}:{key}; expected integers.", "Save the tensor as int64.")
        column = np.empty(header[key]["shape"], dtype=_DTYPES[stored])
        with reading(path), open(path, "rb") as stream:
            stream.seek(start + header[key]["data_offsets"][0])
            read_exactly(stream, column, str(path))
        return as_column(column, str(path))

    def _converted(self, rows: np.ndarray) -> np.ndarray:
        # A bfloat16 is the upper half of a float32.
        return (rows.astype(np.uint32) << 16).view(np.float32) if self._bfloat else super()._converted(rows)
