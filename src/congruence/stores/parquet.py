"""``.parquet``: vectors as lists, streamed a row group's stretch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.embeddings import Space
from congruence.errors import DtypeError, IdError, ShapeError
from congruence.stores._base import (
    BATCH,
    SPACE_KEY,
    Sink,
    Source,
    check_all_rows,
    missing_file,
    missing_key,
    read_space,
    reading,
    slice_ids,
    space_json,
    stored_dtype,
)

#: Rows gathered before a row group is written.
_GROUP_ROWS = 65_536


#: What pyarrow raises about damaged files: its I/O errors are plain OSErrors, and names may be no UTF-8.
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


@contextmanager
def _open(path: str | Path) -> Iterator[pq.ParquetFile]:
    if not Path(path).is_file():
        raise missing_file(path)
    # Pre-buffering would read every row group ahead, the whole file in the end.
    with (
        reading(path, *_DAMAGE),
        pq.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=2**20) as file,
    ):
        yield file


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def parquet_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name; lists of any length count as matrices. Raises FileError, CorruptFileError."""
    with _open(path) as file:
        n = file.metadata.num_rows
        return {f.name: (n, -1) if _is_list(f.type) else (n,) for f in file.schema_arrow}


class ParquetSource(Source):
    """Rows of a list column in a ``.parquet`` file, of fixed or variable list size.

    Parameters
    ----------
    path : path-like
    key : str, optional
        Name of the column; may be left out when there is only one column of lists.
    ids : pyarrow.Array, str or False, optional
        Ids, or the column that holds them; by default a column named ``id`` or ``ids``, if there is one.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        with _open(path) as file:
            schema, self.n = file.schema_arrow, file.metadata.num_rows
            lists = {f.name: str(f.type) for f in schema if _is_list(f.type)}
            if key is None and len(lists) == 1:
                key = next(iter(lists))
            if key not in lists:
                raise missing_key(key, path, lists, "column")
            self._file, self._key, self.path = str(path), key, f"{path}:{key}"
            if self.n == 0:
                raise ShapeError(f"Got no rows in {path}; expected some; do check the file.")
            kind = schema.field(key).type
            value = kind.value_type
            if not (pa.types.is_floating(value) or pa.types.is_integer(value)):
                raise DtypeError(f"Got lists of {value} in {self.path}; expected numbers; do convert the column.")
            self.dtype = stored_dtype(np.dtype(value.to_pandas_dtype()), self.path)
            plain = {f.name: str(f.type) for f in schema if not _is_list(f.type)}
            self._ids = ids if isinstance(ids, pa.Array) else None
            self._id_column = ids if isinstance(ids, str) else None
            if ids is None:
                self._id_column = next((name for name in ("id", "ids") if name in plain), None)
            elif self._id_column is not None and self._id_column not in plain:
                raise missing_key(self._id_column, path, plain, "id column")
            self.has_ids = self._ids is not None or self._id_column is not None
            self.space = read_space((schema.metadata or {}).get(SPACE_KEY.encode()), path)
            if pa.types.is_fixed_size_list(kind):
                self.dim = kind.list_size
            else:
                first = next(iter(file.iter_batches(batch_size=1, columns=[key]))).column(0)
                if not first[0].is_valid:
                    raise ShapeError(f"Got a missing vector in row 0 of {self.path}; expected numbers; do fill it.")
                self.dim = len(first[0])
            if self.dim == 0:
                raise ShapeError(f"Got an empty vector in row 0 of {self.path}; expected numbers; do check the file.")

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        columns = [self._key] + ([self._id_column] if self._id_column else [])
        with _open(self._file) as file:
            # Row groups that lie wholly before `after` need not be read.
            first, skipped = 0, 0
            while first < file.num_row_groups - 1 and skipped + file.metadata.row_group(first).num_rows <= after:
                skipped += file.metadata.row_group(first).num_rows
                first += 1
            row = skipped
            batches = file.iter_batches(
                batch_size=batch, columns=columns, row_groups=range(first, file.num_row_groups), use_threads=False
            )
            for piece in batches:
                stop = row + len(piece)
                if stop > after:
                    piece = piece.slice(max(after - row, 0))
                    start = stop - len(piece)
                    ids = self._ids_of(piece, start) if self._id_column else slice_ids(self._ids, start, stop)
                    yield ids, self._vectors(piece.column(self._key), start, ids)
                row = stop
            check_all_rows(row, self.n, self.path)

    def _ids_of(self, piece: pa.RecordBatch, start: int) -> pa.Array:
        ids = piece.column(self._id_column)
        if ids.null_count:
            raise IdError(
                f"Got a missing id near row {start} of {self._file}; expected one a row; do fill the column "
                f"{self._id_column!r}."
            )
        ids = ids.cast(pa.string())
        ids.validate(full=True)  # a damaged page may hold bytes that are no UTF-8
        return ids

    def _vectors(self, column: pa.Array, start: int, ids: pa.Array | None) -> np.ndarray:
        """Turn a list column into a matrix, refusing missing and ragged rows by number and id."""

        def name(row: int) -> str:
            return f"row {start + row}{'' if ids is None else f' (id {str(ids[row])!r})'} of {self.path}"

        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise ShapeError(f"Got a missing vector in {name(row)}; expected {self.dim} numbers; do fill it.")
        if not pa.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(lengths != self.dim)
            if len(odd):
                raise ShapeError(
                    f"Got {lengths[odd[0]]} numbers in {name(int(odd[0]))}; expected {self.dim} "
                    "as in the first row; do drop or re-encode such rows."
                )
        values = column.flatten()  # unlike .values, this respects slices
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // self.dim
            raise ShapeError(f"Got missing numbers in {name(row)}; expected none; do re-encode such rows.")
        flat = values.to_numpy(zero_copy_only=False)
        # A copy: callers may keep or change what they are given, and Arrow's buffers are shared.
        return np.array(flat.reshape(-1, self.dim), dtype=self.dtype)


def read_parquet_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read a plain column as strings.

    Raises
    ------
    ParameterError, CorruptFileError, IdError
    """
    with _open(path) as file:
        plain = {f.name: str(f.type) for f in file.schema_arrow if not _is_list(f.type)}
        if key not in plain:
            raise missing_key(key, path, plain, "column")
        column = file.read([key]).column(key)
        if column.null_count:
            raise IdError(f"Got missing entries in {path}:{key}; expected one a row; do fill them.")
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.string())
        return np.array([str(value) for value in column.to_pylist()], dtype=str)


class ParquetSink(Sink):
    """Writes a ``.parquet`` with fixed-size lists in ``vector`` and, when there are ids, ``id``."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        value = pa.from_numpy_dtype(self.dtype)
        fields = [pa.field("id", pa.string())] if self.has_ids else []
        fields.append(pa.field("vector", pa.list_(value, self.dim)))
        metadata = {} if self.space == Space() else {SPACE_KEY: space_json(self.space)}
        self._schema = pa.schema(fields, metadata=metadata)
        # Random mantissas do not compress: plain encoding without a dictionary is smaller and several times faster.
        self._writer = stack.enter_context(
            pq.ParquetWriter(temporary, self._schema, compression="none", use_dictionary=False, write_statistics=False)
        )
        self._waiting: list[pa.RecordBatch] = []
        self._count = 0
        # Bound what waits in memory by bytes as well as by rows.
        self._group = max(1024, min(_GROUP_ROWS, 64 * 2**20 // (self.dim * self.dtype.itemsize)))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dim)
        columns = [ids, lists] if self.has_ids else [lists]
        self._waiting.append(pa.record_batch(columns, schema=self._schema))
        self._count += len(vectors)
        if self._count >= self._group:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._count)
            self._waiting, self._count = [], 0

    def _finish(self) -> None:
        self._flush()
