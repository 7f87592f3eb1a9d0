"""Arrow tables with a list column of vectors: what Parquet, Arrow files and Lance share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.ids import refuse_missing
from congruence._utils.validation import name_rows
from congruence.embeddings import Space
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence.io._base import BATCH, SPACE_KEY, Sink, Source, read_space, space_json
from congruence.io.columns import Columns, TableRows, is_list, is_vectors
from congruence.io.ids import clean_ids, id_type_of, missing_ids
from congruence.io.nested import with_value
from congruence.io.reading import missing_key, reading, stored_dtype

if TYPE_CHECKING:
    from congruence.io._base import Block

#: Exceptions that pyarrow and Lance raise for damaged files: I/O errors are plain OSErrors, and names may not be UTF-8.
ARROW_DAMAGE = (pa.ArrowException, OSError, ValueError, RuntimeError)

#: Key of the space in a field's metadata, or in the schema's if the table has a single column of vectors.
_SPACE = SPACE_KEY.encode()

#: Keys of an extension type in a field's metadata, where its library is not loaded.
_EXTENSION, _SHAPE = b"ARROW:extension:name", b"ARROW:extension:metadata"

#: Maximum number of rows, and of their bytes, that are buffered before they are written together.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 * 2**20

#: Rows of a single column that are read at a time.
_COLUMN_ROWS = 65_536

#: Consecutive batches, each with the number of its first row.
Pieces: TypeAlias = Iterator[tuple[int, pa.RecordBatch]]


def is_multi(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds several vectors a row."""
    return is_list(kind) and is_vectors(kind.value_type)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the lists in which an extension type is stored: a tensor of two dimensions as lists of lists."""
    if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) == 2:
        return pa.list_(pa.list_(kind.value_type, kind.shape[1]), kind.shape[0])
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _stored_field(field: pa.Field, dim: int, dtype: np.dtype) -> pa.Field:
    """Return a field as its ``storage_type``; an array of ``datasets`` stays one, of the new width and type."""
    known = dict(field.metadata or {})
    if isinstance(field.type, pa.ExtensionType):
        known |= {_EXTENSION: field.type.extension_name.encode(), _SHAPE: field.type.__arrow_ext_serialize__()}
    name, facts = known.pop(_EXTENSION, b""), known.pop(_SHAPE, b"")
    if name.startswith(b"datasets."):
        try:
            (*shape, _), _ = json.loads(facts)
        except (TypeError, ValueError):
            shape = []
        known |= {} if not shape else {_EXTENSION: name, _SHAPE: json.dumps([[*shape, dim], dtype.name]).encode()}
    return pa.field(field.name, storage_type(field.type), field.nullable, known or None)


def _list_like(kind: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return the type of lists of other values."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def stored(column: pa.Array) -> pa.Array:
    """Return a column as its ``storage_type``."""
    if isinstance(column.type, pa.FixedShapeTensorType) and len(column.type.shape) == 2:
        rows, dim = column.type.shape
        inner = pa.FixedSizeListArray.from_arrays(column.storage.flatten(), dim)
        return pa.FixedSizeListArray.from_arrays(inner, rows)
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def list_array(vectors: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return the rows of a matrix as a list column of type ``kind``."""
    flat = pa.array(vectors.reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    large = pa.types.is_large_list(kind)
    ends = np.arange(len(vectors) + 1, dtype=np.int64 if large else np.int32) * vectors.shape[1]
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(pa.array(ends), flat, type=kind)


def vectors_in(rows: Any, column: str) -> np.ndarray:
    """Return the number of vectors in each row of a batch with lists of vectors."""
    lengths: np.ndarray = stored(rows.column(column)).value_lengths().to_numpy(zero_copy_only=False)
    return lengths


class TableLayout:
    """An output table: the source's columns with the mapped vectors, or ``vector`` and, if there are ids, ``id``.

    The mapped vectors replace the source's column, which keeps its index, name, metadata and list type, or get the new
    column ``column_out``; ``at`` is the index of their column in ``schema``, whose metadata state their space.
    """

    def __init__(
        self,
        columns: Columns | None,
        *,
        dim: int,
        dtype: np.dtype,
        has_ids: bool,
        id_type: pa.DataType,
        space: Space = Space(),  # noqa: B008 - frozen
        column_out: str | None = None,
        path: str | Path,
    ) -> None:
        taken = [] if columns is None else [*columns.schema.names, *columns.cells]
        if column_out is not None and (not column_out or column_out in taken):
            problem = f"Got `column_out={column_out!r}` for {path}, which has the columns {', '.join(taken)}."
            raise ParameterError(problem, "Pass `column_out=…` with an unused name.")
        self.new_ids = has_ids and (columns is None or columns.id is None)
        if self.new_ids and "id" in taken:
            problem = "Got separate ids for a table that has a column 'id'."
            raise ParameterError(problem, "Pass `ids='id'` to use that column, or rename it.")
        if columns is not None and columns.mixed:
            problem = f"Got values of different types in {', '.join(map(repr, columns.mixed))}."
            raise DtypeError(problem, "Write a .jsonl, which keeps them as they are.")
        self.dim, self.dtype = dim, dtype
        self._columns, self._replaces = columns, columns is not None and column_out is None
        fields, metadata = ([], {}) if columns is None else (list(columns.schema), dict(columns.schema.metadata or {}))
        self.at = len(fields) if columns is None or column_out else columns.schema.get_field_index(columns.vector)
        number = pa.from_numpy_dtype(dtype)
        if columns is None:
            field = pa.field(column_out or "vector", pa.list_(number, dim))
        else:
            old = _stored_field(columns.schema.field(columns.vector), dim, dtype)
            vector = old.type.value_type if columns.multi else old.type
            value = vector.value_field.with_type(number)
            lists = pa.large_list(value) if pa.types.is_large_list(old.type) else pa.list_(value)
            inner = pa.list_(value, dim) if pa.types.is_fixed_size_list(vector) else lists
            field = old.with_type(_list_like(old.type, inner) if columns.multi else inner)
            if column_out:  # a field's metadata, for example its field id in an Iceberg table, is not the new field's
                field = field.with_name(column_out).remove_metadata()
            _update_hugging_face(metadata, columns.vector, field.name, dtype, dim)
        # The space of the only column of vectors is the table's, else that of the column.
        own_space = {} if space == Space() else {_SPACE: space_json(space).encode()}
        own = {key: value for key, value in (field.metadata or {}).items() if key != _SPACE}
        if columns and (column_out or columns.other_vectors):
            own |= own_space
        else:
            metadata = {key: value for key, value in metadata.items() if key != _SPACE} | own_space
        fields[self.at : self.at + 1] = [field.with_metadata(own or None)]
        if self.new_ids:
            fields, self.at = [pa.field("id", id_type), *fields], self.at + 1
        self.schema: pa.Schema = pa.schema(fields, metadata=metadata or None)

    def fill(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> pa.RecordBatch:
        """Return mapped vectors, shape (b, dim), and the same rows of the source as a batch of the output table."""
        kind = self.schema.field(self.at).type
        if self._columns is not None and self._columns.multi and isinstance(rows, pa.RecordBatch):
            counts = vectors_in(rows, self._columns.vector)
            ends, whole = pa.array(np.cumsum([0, *counts]), pa.int64()), list_array(vectors, kind.value_type)
            lists = pa.LargeListArray.from_arrays(ends, whole).cast(kind)
        else:
            lists = list_array(vectors, kind)
        arrays = []
        if rows is not None and self._columns is not None:
            schema = self._columns.schema
            if not isinstance(rows, pa.RecordBatch):
                # The old vectors do not stay inside of other objects.
                kept = [with_value(row, self._columns.vector, None) for row in rows] if self._replaces else rows
                rows = pa.RecordBatch.from_pylist(kept, schema=schema)
            arrays = list(rows.columns)  # type: ignore[union-attr]
        if self.new_ids:
            arrays.insert(0, ids)
        if self._replaces:
            arrays[self.at] = lists
        else:
            arrays.append(lists)
        return pa.record_batch(arrays, schema=self.schema)

    def parquet_options(self) -> dict[str, object]:
        """Return the options of pyarrow's Parquet writer.

        The vectors are written without compression and dictionary: random mantissas do not compress, and writing is
        several times faster without a dictionary.
        """
        others = [f.name for k, f in enumerate(self.schema) if k != self.at and not pa.types.is_nested(f.type)]
        kept = others if self._columns is not None else []
        codecs = dict.fromkeys(kept, "snappy") or "none"
        return {"compression": codecs, "use_dictionary": kept or False, "write_statistics": kept or False}


def _update_hugging_face(metadata: dict[bytes, bytes], old: str, new: str, dtype: np.dtype, dim: int) -> None:
    """Update width and type in the metadata from which Hugging Face ``datasets`` reads the features."""
    try:
        info = json.loads(metadata[b"huggingface"])
        feature = dict(info["info"]["features"][old])
        if "shape" in feature:  # several vectors a row
            feature |= {"shape": [*feature["shape"][:-1], dim], "dtype": dtype.name}
        else:
            length = -1 if feature.get("length", -1) == -1 else dim
            feature |= {"feature": {**feature["feature"], "dtype": dtype.name}, "length": length}
    except (KeyError, TypeError, ValueError):
        return
    info["info"]["features"][new] = feature
    metadata[b"huggingface"] = json.dumps(info).encode()


# ------------------------------------------------------------------ readers


class Table(ABC):
    """Rows with columns, in order: those of a file, of some of its row groups, or of a Lance fragment.

    ``name`` stands for it in messages, ``n`` is the number of rows, and ``row_bytes`` about the size of a row.
    """

    name: str
    schema: pa.Schema
    n: int
    row_bytes: int = 0

    @abstractmethod
    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        """Yield batches of the named columns (None for all), each with the number of its first row."""


class MemoryTable(Table):
    """Rows in memory; or none, for what the caller reads elsewhere."""

    def __init__(self, name: str | Path, rows: pa.RecordBatch) -> None:
        self.name, self.schema, self.n, self._rows = str(name), rows.schema, len(rows), rows

    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        for start in range(after, self.n, batch):
            piece = self._rows.slice(start, batch)
            yield start, piece if names is None else piece.select(names)


class TableSource(Source):
    """Source of the rows of a list column, with fixed or variable list size, and of their ids.

    ``key`` may be left out if there is only one column of lists; ``ids`` are an Arrow array, the column that holds them
    (by default ``id`` or ``ids``, if there is one), or False. ``dim`` is the width of lists of variable size; by
    default that of the first row.
    """

    key, names_ids = "column", True

    #: Opens the table at a path.
    table_class: ClassVar[type[Any]]

    def __init__(
        self,
        path: str | Path,
        key: str | None = None,
        ids: pa.Array | str | bool | None = None,
        *,
        table: Table | None = None,
        dim: int | None = None,
    ) -> None:
        self.table: Table = self.table_class(path) if table is None else table
        schema = self.table.schema
        check_names(schema, path)
        kinds = {f.name: storage_type(f.type) for f in schema}
        lists = {name: str(kind) for name, kind in kinds.items() if is_list(kind)}
        self._element: int | None = None
        if key is not None and key not in lists and (found := re.fullmatch(r"(.+)\[(\d{1,9})\]", key, re.DOTALL)):
            key, self._element = found[1], int(found[2])
        if key is None:
            numbers = [name for name, kind in kinds.items() if is_vectors(kind)] or list(lists)
            key = numbers[0] if len(numbers) == 1 else None
        if key is None or key not in lists:
            raise missing_key(key, path, lists, "column")
        self.column = key if self._element is None else f"{key}[{self._element}]"
        self._file, self._key, self.path, self.files = str(path), key, f"{path}:{self.column}", (Path(path),)
        if self.table.n == 0 and dim is None:
            raise ShapeError(f"Got no rows in {path}.", "Pass a file with rows.")
        kind, several = kinds[key], is_multi(kinds[key])
        if self._element is not None and not several:
            raise DtypeError(f"Got one vector a row in {self.path}.", f"Pass {path}:{key}.")
        kind = kind.value_type if several else kind
        value = kind.value_type
        if not is_vectors(kind):
            raise DtypeError(f"Got lists of {value} in {self.path}.", "Convert the column to lists of float32.")
        self.dtype = stored_dtype(np.dtype(value.to_pandas_dtype()), self.path)
        plain = plain_columns(schema)
        self._ids = ids if isinstance(ids, pa.Array) else None
        self._id_column = ids if isinstance(ids, str) else None
        if ids is None:
            self._id_column = next((name for name in ("id", "ids") if name in plain), None)
        elif self._id_column is not None and self._id_column not in plain:
            raise missing_key(self._id_column, path, plain, "id column")
        saved = (schema.field(key).metadata or {}).get(_SPACE) or (schema.metadata or {}).get(_SPACE)
        self.space = read_space(saved, path)
        self._needed = [self._key] + ([self._id_column] if self._id_column else [])
        self._multi = several and self._element is None
        self._columns = Columns(schema, self._key, self._id_column, multi=self._multi)
        self.table_rows = self.table.n
        self.dim = kind.list_size if pa.types.is_fixed_size_list(kind) else dim or -1
        if self.dim < 0:
            vectors = (self._lists(piece, 0) for _, piece in self.table.pieces([self._key], 0, 1))
            inner = (column.flatten() if self._multi else column for column in vectors)
            first = next((one[0] for one in inner if len(one)), None)
            if first is None:
                raise ShapeError(f"Got no vectors in {self.path}.", "Pass a file with vectors.")
            if not first.is_valid:
                raise ShapeError(f"Got a missing vector in row 0 of {self.path}.", "Fill it, or drop this row.")
            self.dim = len(first)
        if self.dim == 0:
            raise ShapeError(f"Got an empty vector in row 0 of {self.path}.", "Write the vectors again.")

    @cached_property
    def n(self) -> int:  # type: ignore[override]
        """Number of vectors; where a row has several, they are counted in one pass, since nothing else says it."""
        if not self._multi:
            return self.table.n
        with reading(self._file, pa.ArrowException):
            found = sum(len(self._lists(piece, start).flatten()) for start, piece in self.table.pieces([self._key]))
        if not found:
            raise ShapeError(f"Got no vectors in {self.path}.", "Pass a file with vectors.")
        return found

    @classmethod
    def shapes(cls, path: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a table's columns by name; lists of any length count as matrices, of width -1."""
        table = cls.table_class(path)
        shapes: dict[str, tuple[int, ...]] = {}
        for field in table.schema:
            shapes[field.name], kind = (table.n,), storage_type(field.type)
            while is_list(kind):
                shapes[field.name] += (getattr(kind, "list_size", -1),)
                kind = kind.value_type
        return shapes

    @classmethod
    def read_column(cls, path: str, key: str | None) -> pa.ChunkedArray:
        """Read a column that is not a list column."""
        table = cls.table_class(path)
        check_names(table.schema, path)
        plain = plain_columns(table.schema)
        if key is None or key not in plain:
            raise missing_key(key, path, plain, "column")
        values = pa.chunked_array(
            [piece.column(0) for _, piece in table.pieces([key], 0, _COLUMN_ROWS)], table.schema.field(key).type
        )
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            with reading(path, pa.ArrowException):
                values = values.cast(pa.large_string())
        return values

    @property
    def id_type(self) -> pa.DataType:
        return id_type_of(self._columns.schema.field(self._id_column).type) if self._id_column else super().id_type

    @property
    def columns(self) -> list[Columns]:
        return [self._columns]

    @property
    def row_bytes(self) -> int:
        return max(self.table.row_bytes, super().row_bytes)

    def _scan(self, after: int, batch: int, *, table: bool) -> Iterator[Block]:
        needed, several = None if table else self._needed, self._multi
        row = 0  # of the vectors
        for start, piece in self.table.pieces(needed, 0 if several else after, batch):
            ids, vectors = self.block(piece, start, row if several else start)
            if table or not several:
                yield ids, vectors, piece
            for first in range(max(after - row, 0), 0 if table or not several else len(vectors), batch):
                yield (None if ids is None else ids[first : first + batch]), vectors[first : first + batch].copy(), None
            row += len(vectors)

    def _lists(self, piece: pa.RecordBatch, start: int) -> pa.Array:
        """Return the column of vectors, or of lists of vectors, of consecutive rows; errors name missing ones."""
        column = stored(piece.column(self._key))
        if (self._multi or self._element is not None) and column.null_count:
            rows = name_rows(start + np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)))
            problem = f"Got no vectors in row {rows} of {self.path}."
            raise ShapeError(problem, "Write an empty list, or drop these rows.")
        if self._element is not None:
            counts = column.value_lengths().to_numpy(zero_copy_only=False)
            few = np.flatnonzero(counts <= self._element)
            if len(few):
                problem = f"Got {counts[few[0]]} vectors in row {start + few[0]} of {self.path}."
                raise ShapeError(problem, f"Pass a number below {counts.min()}, or no number for all vectors.")
            import pyarrow.compute as pc

            return pc.list_element(column, self._element)
        return column

    #: Whether rows of another width can be put aside.
    _apart = False

    def _widths(self) -> Counter[int]:
        """Return the number of vectors by width."""
        found: Counter[int] = Counter()
        for start, piece in self.table.pieces([self._key]):
            column = self._lists(piece, start)
            found.update((column.flatten() if self._multi else column).value_lengths().drop_null().to_pylist())
        return found

    def block(self, piece: pa.RecordBatch, start: int, first: int | None = None) -> tuple[pa.Array | None, np.ndarray]:
        """Return the ids and vectors of consecutive rows, of which the first has the number ``start``.

        Of several vectors a row, the j-th has the id ``id[j]``, and the first of all has the number ``first``.
        """
        with reading(self._file, pa.ArrowException):  # some damage shows only when values are accessed
            ids = self._ids_of(piece, start) if self._id_column else self._slice_ids(start, len(piece))
            lists = self._lists(piece, start)
            if self._multi and ids is not None:
                counts = lists.value_lengths().to_pylist()
                texts = zip(ids.cast(pa.string()).to_pylist(), counts, strict=True)
                ids = pa.array([f"{name}[{j}]" for name, count in texts for j in range(count)], pa.string())
            vectors = lists.flatten() if self._multi else lists
            return ids, self.vectors(vectors, start if first is None else first, ids)

    def _ids_of(self, piece: pa.RecordBatch, start: int) -> pa.Array:
        ids = piece.column(self._id_column)
        if len(missing_ids(ids)):  # count the missing ids of the whole file for the message
            pieces = self.table.pieces([str(self._id_column)])
            rows = np.concatenate([first + missing_ids(more.column(0)) for first, more in pieces])
            refuse_missing(rows, f"ids of {self._file}:{self._id_column}", floats=pa.types.is_floating(ids.type))
        return clean_ids(ids, f"{self._file}:{self._id_column}", start)

    def vectors(self, column: pa.Array, start: int = 0, ids: pa.Array | None = None) -> np.ndarray:
        """Return a list column as a matrix; errors for missing and ragged rows name their numbers and ids."""
        code = list_faults(column, self.dim)
        if code.any():
            kind = int(code[code > 0].min())
            rows = np.flatnonzero(code == kind)[: 1 if kind == 2 else None]
            where = f"row{'s' if len(rows) > 1 else ''} {name_rows(start + rows)}"
            where += f"{'' if ids is None else f' (id {name_rows(rows, ids)})'} of {self.path}"
            if kind == 2:
                width = len(column[int(rows[0])])
                raise another_width(width, self.dim, where, self._widths(), by_fragments=self._apart)
            missing = "a missing vector" if len(rows) == 1 else f"{len(rows)} missing vectors"
            got = missing if kind == 1 else "missing numbers"
            raise ShapeError(f"Got {got} in {where}; expected {self.dim} numbers.", "Drop or re-encode these rows.")
        # A copy, because callers may keep or modify the array, and Arrow's buffers are shared. Unlike .values, flatten
        # respects slices.
        return np.array(column.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim), dtype=self.dtype)


def another_width(got: int, dim: int, where: str, counts: Counter[int], *, by_fragments: bool = False) -> ShapeError:
    """Return the error for a row of another width; ``counts``: the number of rows by width, as far as known."""
    most = ", ".join(f"{width} in {n} rows" for width, n in counts.most_common(4))
    rest = f" ({most}{', …' if len(counts) > 4 else ''})" if len(counts) > 1 else ""
    split = "Write the rows of each width to a file of their own."
    fix = ("Pass `bad_rows='others.parquet'` to put the others aside.", split) if by_fragments else split
    return ShapeError(f"Got {got} numbers in {where}; expected {dim} numbers as in the first row{rest}.", fix)


def list_faults(column: pa.Array, dim: int) -> np.ndarray:
    """Return for each row of a list column 0, or 1 if it has no vector, 2 another width, 3 missing numbers; int8."""
    code = np.zeros(len(column), np.int8)
    if column.null_count:
        code[column.is_null().to_numpy(zero_copy_only=False)] = 1
    if not pa.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths()
        lengths = lengths.fill_null(dim) if column.null_count else lengths
        code[lengths.to_numpy(zero_copy_only=False) != dim] = 2
    if column.flatten().null_count:
        rows = np.flatnonzero(code == 0)
        empty = column.take(pa.array(rows)).flatten().is_null().to_numpy(zero_copy_only=False)
        code[rows[empty.reshape(-1, dim).any(axis=1)]] = 3
    return code


def check_names(schema: pa.Schema, path: str | Path) -> None:
    """Check that the column names of a table are unique."""
    if len(set(schema.names)) < len(schema.names):
        repeated = next(name for name in schema.names if schema.names.count(name) > 1)
        raise ParameterError(f"Got several columns named {short(repeated)!r} in {path}.", "Rename them in the file.")


def plain_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the types of the columns that are not lists, by name."""
    return {f.name: str(f.type) for f in schema if not is_list(storage_type(f.type))}


# ------------------------------------------------------------------ writers


class RowGroups:
    """Collects batches, and hands them to ``write`` in groups limited by rows and by bytes."""

    def __init__(self, write: Callable[[pa.Table], None], most_rows: int = _GROUP_ROWS) -> None:
        self._write, self._most_rows = write, most_rows
        self._waiting: list[pa.RecordBatch] = []
        self._count = self._bytes = 0

    def add(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Add a batch that counts with so many bytes."""
        self._waiting.append(batch)
        self._count, self._bytes = self._count + len(batch), self._bytes + nbytes
        if self._count >= self._most_rows or self._bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        if self._waiting:
            self._write(pa.Table.from_batches(self._waiting))
            self._waiting, self._count, self._bytes = [], 0, 0


class TableSink(Sink):
    """Writer of tables in groups of rows, with the columns of a ``TableLayout``."""

    keeps_columns = True

    def _common_columns(self) -> Columns | None:
        """Return the columns of the source, which must be the same in all parts of a folder."""
        for other in self.columns[1:]:
            if not other.schema.equals(self.columns[0].schema):
                ours, theirs = ({f"{f.name} ({f.type})" for f in c.schema} for c in (self.columns[0], other))
                differ = ", ".join(sorted(ours ^ theirs) or ["their order"])
                problem = f"Got parts with different columns for one table, {self.path}: {differ}."
                raise ParameterError(problem, "Write a folder of parts, which keeps the columns of each part.")
        return self.columns[0] if self.columns else None

    def _make_schema(self) -> pa.Schema:
        """Initialize the buffer of rows, and return the schema of the groups."""
        self._layout = TableLayout(
            self._common_columns(),
            dim=self.dim,
            dtype=self.dtype,
            has_ids=self.has_ids,
            id_type=self.id_type or pa.string(),
            space=self.space,
            column_out=self.column_out,
            path=self.path,
        )
        self._schema = self._layout.schema
        most_rows = max(1024, min(_GROUP_ROWS, _GROUP_BYTES // (self.dim * self.dtype.itemsize)))
        self._groups = RowGroups(self._write_group, most_rows)
        return self._schema

    @abstractmethod
    def _write_group(self, table: pa.Table) -> None: ...

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        batch = self._layout.fill(ids, vectors, rows)
        self._groups.add(batch, 0 if rows is None else batch.nbytes)  # other columns may be wide

    def _finish(self) -> None:
        self._groups.flush()
