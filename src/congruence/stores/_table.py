"""Arrow tables with a list column: the code that Parquet, Arrow files and Lance share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.ids import refuse_missing
from congruence._utils.validation import name_rows
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence.stores._arrays import stored_dtype
from congruence.stores._base import BATCH, Source, check_all_rows, missing_key, slice_ids
from congruence.stores._columns import (
    Columns,
    Rows,
    common_columns,
    is_list,
    is_vectors,
)
from congruence.stores._sink import Sink
from congruence.stores._space_file import SPACE_KEY, read_space
from congruence.stores.ids import clean_ids, id_type_of, missing_ids
from congruence.stores.layout import TableLayout
from congruence.stores.reading import reading

#: Key of the space in a field's metadata, or in the schema's if the table has a single column of vectors.
_SPACE = SPACE_KEY.encode()

#: Maximum number of rows, and of their bytes, that are buffered before they are written together.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 * 2**20


def table_shapes(schema: pa.Schema, n: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name; every list column counts as a matrix."""
    return {f.name: (n, -1) if is_list(f.type) else (n,) for f in schema}


def rows_after(
    batches: Iterable[pa.RecordBatch], after: int, n: int, name: str, *, first_row: int = 0
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches from row ``after`` on, each with the number of its first row.

    ``batches``: consecutive rows up to the end of the table; ``name``: name of the table, for error messages;
    ``first_row``: number of the first row of ``batches``.
    """
    row = first_row
    for batch in batches:
        stop = row + len(batch)
        if stop > after:
            batch = batch.slice(max(after - row, 0))
            yield stop - len(batch), batch
        row = stop
    check_all_rows(row, n, name)


class TableSource(Source):
    """Source of the rows of a list column, with fixed or variable list size, and of their ids."""

    def _describe(
        self, path: str | Path, schema: pa.Schema, n: int, key: str | None, ids: pa.Array | str | bool | None
    ) -> None:
        """Choose the columns, and set all attributes that follow from the schema; ``dim`` is -1 for lists of variable size."""
        check_names(schema, path)
        lists = {f.name: str(f.type) for f in schema if is_list(f.type)}
        if key is None:
            numbers = [f.name for f in schema if is_vectors(f.type)] or list(lists)
            key = numbers[0] if len(numbers) == 1 else None
        if key is None or key not in lists:
            raise missing_key(key, path, lists, "column")
        self.n, self._file, self._key, self.path = n, str(path), key, f"{path}:{key}"
        self.files = (Path(path),)
        if self.n == 0:
            raise ShapeError(f"Got no rows in {path}; expected at least one. Pass a file with rows.")
        kind, value = schema.field(key).type, schema.field(key).type.value_type
        if not is_vectors(kind):
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
        saved = (schema.field(key).metadata or {}).get(_SPACE) or (schema.metadata or {}).get(_SPACE)
        self.space = read_space(saved, path)
        self._id_type = id_type_of(schema.field(self._id_column).type) if self._id_column else super().id_type
        self._needed = [self._key] + ([self._id_column] if self._id_column else [])
        self._columns = Columns(schema, self._key, self._id_column)
        self.dim = kind.list_size if pa.types.is_fixed_size_list(kind) else -1

    def _measure(self, first: pa.Array | None) -> None:
        """Set ``dim`` from the first row if the type does not determine it. Raises ShapeError."""
        if self.dim < 0:
            if first is None or not first[0].is_valid:
                raise ShapeError(
                    f"Got a missing vector in row 0 of {self.path}; expected numbers. Fill it, or drop this row."
                )
            self.dim = len(first[0])
        if self.dim == 0:
            raise ShapeError(f"Got an empty vector in row 0 of {self.path}; expected numbers. Write the vectors again.")

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return self._id_type

    @property
    def columns(self) -> list[Columns]:
        """Columns of the table other than its vectors."""
        return [self._columns]

    @abstractmethod
    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of at most ``batch`` rows with the named columns (None for all), each with the number of its first row."""

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        for start, piece in self._pieces(self._needed, after, batch):
            yield self._block(piece, start)

    def scan_table(
        self, after: int = 0, batch: int = BATCH
    ) -> Iterator[tuple[pa.Array | None, np.ndarray, Rows | None]]:
        """Yield ``(ids, vectors, rows)`` blocks; see :meth:`Source.scan_table`."""
        for start, piece in self._pieces(None, after, batch):
            yield *self._block(piece, start), piece

    def _block(self, piece: pa.RecordBatch, start: int) -> tuple[pa.Array | None, np.ndarray]:
        """Return the ids and vectors of consecutive rows."""
        with reading(self._file, pa.ArrowException):  # some damage shows only when values are accessed
            ids = self._ids_of(piece, start) if self._id_column else slice_ids(self._ids, start, start + len(piece))
            return ids, self._vectors(piece.column(self._key), start, ids)

    def _ids_of(self, piece: pa.RecordBatch, start: int) -> pa.Array:
        ids = piece.column(self._id_column)
        if len(missing_ids(ids)):  # count the missing ids of the whole file for the message
            pieces = self._pieces([str(self._id_column)], 0, BATCH)
            rows = np.concatenate([first + missing_ids(more.column(0)) for first, more in pieces])
            refuse_missing(rows, f"ids of {self._file}:{self._id_column}", floats=pa.types.is_floating(ids.type))
        return clean_ids(ids, f"{self._file}:{self._id_column}", start)

    def _vectors(self, column: pa.Array, start: int, ids: pa.Array | None) -> np.ndarray:
        """Return a list column as a matrix. Raises ShapeError for missing and ragged rows, with their numbers and ids."""

        def name(missing: np.ndarray) -> str:
            rows = np.unique(missing)
            text = f"row{'s' if len(rows) > 1 else ''} {name_rows(start + rows)}"
            return f"{text}{'' if ids is None else f' (id {name_rows(rows, ids)})'} of {self.path}"

        if column.null_count:
            empty = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            vectors = "a missing vector" if len(empty) == 1 else f"{len(empty)} missing vectors"
            raise ShapeError(
                f"Got {vectors} in {name(empty)}; expected {self.dim} numbers in each. Drop or re-encode these rows."
            )
        if not pa.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(lengths != self.dim)
            if len(odd):
                raise ShapeError(
                    f"Got {lengths[odd[0]]} numbers in {name(odd[:1])}; expected {self.dim} "
                    "as in the first row. Drop or re-encode these rows."
                )
        values = column.flatten()  # unlike .values, this respects slices
        if values.null_count:
            empty = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // self.dim
            raise ShapeError(f"Got missing numbers in {name(empty)}; expected none. Re-encode these rows.")
        flat = values.to_numpy(zero_copy_only=False)
        # A copy, because callers may keep or modify the array, and Arrow's buffers are shared.
        return np.array(flat.reshape(-1, self.dim), dtype=self.dtype)


def check_names(schema: pa.Schema, path: str | Path) -> None:
    """Check that the column names of a table are unique. Raises ParameterError."""
    if len(set(schema.names)) < len(schema.names):
        repeated = next(name for name in schema.names if schema.names.count(name) > 1)
        raise ParameterError(
            f"Got several columns named {short(repeated)!r} in {path}; expected each name once. Rename them in the file."
        )


def read_table_column(
    path: str | Path, key: str | None, schema: pa.Schema, column: Callable[[str], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """Return a column that is not a list column. Raises ParameterError."""
    check_names(schema, path)
    plain = {f.name: str(f.type) for f in schema if not is_list(f.type)}
    if key is None or key not in plain:
        raise missing_key(key, path, plain, "column")
    values = column(key)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_string())
    return values


class TableSink(Sink):
    """Writer of tables in groups of rows: the source's table with the mapped vectors, or a new table of ``id`` and ``vector``."""

    keeps_columns = True

    def _make_schema(self) -> pa.Schema:
        """Initialize the buffer of rows, and return the schema of the groups."""
        self._layout = TableLayout(
            common_columns(self.columns, self.path),
            dim=self.dim,
            dtype=self.dtype,
            has_ids=self.has_ids,
            id_type=self.id_type,
            space=self.space,
            column_out=self.column_out,
            path=self.path,
        )
        self._schema = self._layout.schema
        self._waiting: list[pa.RecordBatch] = []
        self._count = self._bytes = 0
        # Limit the buffered rows by bytes as well as by number.
        self._group = max(1024, min(_GROUP_ROWS, _GROUP_BYTES // (self.dim * self.dtype.itemsize)))
        return self._schema

    @abstractmethod
    def _write_group(self, table: pa.Table) -> None:
        """Write a group of buffered rows."""

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None:
        batch = self._layout.fill(ids, vectors, rows)
        self._waiting.append(batch)
        self._count += len(batch)
        self._bytes += 0 if rows is None else batch.nbytes  # other columns may be wide
        if self._count >= self._group or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write_group(pa.Table.from_batches(self._waiting))
            self._waiting, self._count, self._bytes = [], 0, 0

    def _finish(self) -> None:
        self._flush()
