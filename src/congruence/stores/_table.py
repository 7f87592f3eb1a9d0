"""Arrow tables with a column of lists: what Parquet and Lance share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.errors import DtypeError, IdError, ShapeError
from congruence.stores._base import (
    SPACE_KEY,
    Sink,
    Source,
    missing_key,
    read_space,
    slice_ids,
    space_json,
    stored_dtype,
)

#: Rows gathered before they are written together, and the bytes they may take.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 * 2**20


def is_list(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds vectors."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def table_shapes(schema: pa.Schema, n: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name; lists of any length count as matrices."""
    return {f.name: (n, -1) if is_list(f.type) else (n,) for f in schema}


class TableSource(Source):
    """Rows of a list column, of fixed or variable list size, and the column of their ids."""

    def _describe(
        self, path: str | Path, schema: pa.Schema, n: int, key: str | None, ids: pa.Array | str | bool | None
    ) -> None:
        """Choose the columns and set everything that the schema tells; lists of variable size do not tell ``dim``."""
        lists = {f.name: str(f.type) for f in schema if is_list(f.type)}
        if key is None and len(lists) == 1:
            key = next(iter(lists))
        if key not in lists:
            raise missing_key(key, path, lists, "column")
        self.n, self._file, self._key, self.path = n, str(path), key, f"{path}:{key}"
        if self.n == 0:
            raise ShapeError(f"Got no rows in {path}; expected at least one. Pass a file with rows.")
        kind = schema.field(key).type
        value = kind.value_type
        if not (pa.types.is_floating(value) or pa.types.is_integer(value)):
            raise DtypeError(
                f"Got lists of {value} in {self.path}; expected lists of numbers. Convert the column to lists of float32."
            )
        self.dtype = stored_dtype(np.dtype(value.to_pandas_dtype()), self.path)
        plain = {f.name: str(f.type) for f in schema if not is_list(f.type)}
        self._ids = ids if isinstance(ids, pa.Array) else None
        self._id_column = ids if isinstance(ids, str) else None
        if ids is None:
            self._id_column = next((name for name in ("id", "ids") if name in plain), None)
        elif self._id_column is not None and self._id_column not in plain:
            raise missing_key(self._id_column, path, plain, "id column")
        self.has_ids = self._ids is not None or self._id_column is not None
        self.space = read_space((schema.metadata or {}).get(SPACE_KEY.encode()), path)
        self._columns = [self._key] + ([self._id_column] if self._id_column else [])
        self.dim = kind.list_size if pa.types.is_fixed_size_list(kind) else -1

    def _measure(self, first: pa.Array | None) -> None:
        """Take ``dim`` from the first row where the type does not tell it."""
        if self.dim < 0:
            if first is None or not first[0].is_valid:
                raise ShapeError(
                    f"Got a missing vector in row 0 of {self.path}; expected numbers. Fill it, or drop this row."
                )
            self.dim = len(first[0])
        if self.dim == 0:
            raise ShapeError(f"Got an empty vector in row 0 of {self.path}; expected numbers. Write the vectors again.")

    def _block(self, piece: pa.RecordBatch, start: int) -> tuple[pa.Array | None, np.ndarray]:
        """Return the ids and vectors of consecutive rows."""
        ids = self._ids_of(piece, start) if self._id_column else slice_ids(self._ids, start, start + len(piece))
        return ids, self._vectors(piece.column(self._key), start, ids)

    def _ids_of(self, piece: pa.RecordBatch, start: int) -> pa.Array:
        ids = piece.column(self._id_column)
        if ids.null_count:
            raise IdError(
                f"Got a missing id near row {start} of {self._file}; expected one a row. Fill the column "
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
            raise ShapeError(
                f"Got a missing vector in {name(row)}; expected {self.dim} numbers. Fill it, or drop this row."
            )
        if not pa.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(lengths != self.dim)
            if len(odd):
                raise ShapeError(
                    f"Got {lengths[odd[0]]} numbers in {name(int(odd[0]))}; expected {self.dim} "
                    "as in the first row. Drop or re-encode such rows."
                )
        values = column.flatten()  # unlike .values, this respects slices
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // self.dim
            raise ShapeError(f"Got missing numbers in {name(row)}; expected none. Re-encode such rows.")
        flat = values.to_numpy(zero_copy_only=False)
        # A copy: callers may keep or change what they are given, and Arrow's buffers are shared.
        return np.array(flat.reshape(-1, self.dim), dtype=self.dtype)


def read_table_column(
    path: str | Path, key: str | None, schema: pa.Schema, column: Callable[[str], pa.ChunkedArray]
) -> np.ndarray:
    """Read a plain column as strings. Raises ParameterError, IdError."""
    plain = {f.name: str(f.type) for f in schema if not is_list(f.type)}
    if key is None or key not in plain:
        raise missing_key(key, path, plain, "column")
    values = column(key)
    if values.null_count:
        raise IdError(f"Got missing entries in {path}:{key}; expected one a row. Fill the missing entries.")
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.string())
    return np.array([str(value) for value in values.to_pylist()], dtype=str)


class TableSink(Sink):
    """Gathers rows into groups with fixed-size lists in ``vector`` and, when there are ids, ``id``."""

    def _make_schema(self) -> pa.Schema:
        """Start without rows waiting, and return the schema of the groups."""
        fields = [pa.field("id", pa.string())] if self.has_ids else []
        fields.append(pa.field("vector", pa.list_(pa.from_numpy_dtype(self.dtype), self.dim)))
        metadata = {} if self.space == Space() else {SPACE_KEY: space_json(self.space)}
        self._schema = pa.schema(fields, metadata=metadata)
        self._waiting: list[pa.RecordBatch] = []
        self._count = 0
        # Bound what waits in memory by bytes as well as by rows.
        self._group = max(1024, min(_GROUP_ROWS, _GROUP_BYTES // (self.dim * self.dtype.itemsize)))
        return self._schema

    @abstractmethod
    def _write_group(self, table: pa.Table) -> None:
        """Write rows that have been gathered."""

    def _write(self, ids: pa.Array | None, vectors: np.ndarray) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dim)
        columns = [ids, lists] if self.has_ids else [lists]
        self._waiting.append(pa.record_batch(columns, schema=self._schema))
        self._count += len(vectors)
        if self._count >= self._group:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write_group(pa.Table.from_batches(self._waiting))
            self._waiting, self._count = [], 0

    def _finish(self) -> None:
        self._flush()
