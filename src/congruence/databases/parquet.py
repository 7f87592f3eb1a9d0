"""Parquet and Arrow data sets: complete new files are written next to the old ones, and the switch exchanges them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence.databases import _refusals as refusals
from congruence.databases._base import (
    BATCH,
    MARK_KEY,
    Address,
    DatabaseInfo,
    Name,
    RowRange,
    Stage,
    as_ids,
    note_in,
    space_in,
)
from congruence.databases._files import FILES, FileDatabase, FilePiece, HiddenFolder, RowVectors, copy_mode, path_of
from congruence.embeddings import Space
from congruence.errors import DatabaseError, FileError, ParameterError, ShapeError
from congruence.io import parse_spec
from congruence.io.arrow import ArrowTable, open_arrow
from congruence.io.columns import Columns, is_list, list_array
from congruence.io.dataset import data_files
from congruence.io.locations import Location
from congruence.io.parquet import ParquetTable, open_parquet
from congruence.io.reading import reading
from congruence.io.tables import Table, TableLayout

#: File name suffixes of Parquet files, and of Arrow files and streams.
SUFFIXES = (".parquet", ".arrow", ".feather")

#: Target size in bytes of a row group when writing; a whole group is held in memory.
_GROUP_BYTES = 64 * 2**20

#: Files that describe the row groups of other files, which change in the new folder.
_SUMMARIES = ("_metadata", "_common_metadata")

#: Codecs whose name in a file footer differs from the name that the writer expects.
_CODECS = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4", "LZO": "snappy"}


class Tables(FileDatabase):
    """A table in a ``.parquet``, ``.arrow`` or ``.feather`` file, or in a folder of such files of one kind.

    The address is a path, ``PATH:COLUMN``, or ``parquet://PATH``. Ids are in a column ``id`` or ``ids``, or row numbers
    from 0. New files have the names, columns, metadata, codecs and row groups of the old ones (groups over 64 MiB are
    split); their vectors are not compressed. Other files are copied, except descriptions of the old ones
    (``_metadata``).
    """

    kind = "parquet"
    capabilities = replace(FILES, shared=True)

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        path, key = parse_spec(path_of(address, ("parquet", "arrow")))
        refusals.check_options(f"{path}, which is a single table that is mapped as a whole", table=table, rows=rows)
        self._open_path(path)
        ids, modality = self._remember(ids, modality)
        first = TableFile.open(find_parts(self._original)[0], 0, None, None).schema
        self._column = _choose_column(first, column or key, path)
        plain = [field.name for field in first if not pa.types.is_nested(field.type)]
        refusals.check_columns(plain, path, None, ids, modality)
        known = self._place.record()
        refusals.check_column(self._column, (known.options if known else {}).get("column", self._column))
        self._options["column"] = self._column
        self._id_column = ids or next((name for name in ("id", "ids") if name in plain), None)
        self._modality = modality
        if sum(is_vectors(field.type) for field in first) > 1:
            self._shown = f"{path}:{self._column}"
        self._reopen()

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another working directory.
        place = HiddenFolder(str(self._place.path.absolute()))
        parts = [replace(part, path=part.path.absolute()) for part in self._parts]
        return {**super().__getstate__(), "_place": place, "_parts": parts}

    def _reopen(self) -> None:
        files, start = find_parts(self._original), 0
        self._parts: list[TableFile] = []
        width: int | None = None
        kinds: set[str] = set()
        for path in files:
            schema = TableFile.open(path, 0, None, None).schema if width is None else None
            if schema is not None:
                width = self._width(path, schema)
            part = TableFile.open(path, start, self._column, width)
            self._check(part, width)
            kinds.add(_id_kind(part.schema, self._id_column))
            self._parts.append(part)
            start += part.rows
        if width is None or not start:
            raise ShapeError(f"{self._shown} has no vectors.", "Check the path and the column.")
        if len(kinds) > 1:
            raise DatabaseError(
                f"{self._shown} has ids of several types ({', '.join(sorted(kinds))}).",
                "Write its files with one schema.",
            )
        self.n, self.dim, self._id_type = start, width, kinds.pop()

    def _width(self, path: Path, schema: pa.Schema) -> int | None:
        """Return the width of a file's vectors, or of its first one if lists have no fixed size; None without any."""
        if schema.names.count(self._column) != 1:
            return None  # ``_check`` raises
        kind = schema.field(self._column).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        rows = TableFile.open(path, 0, self._column, None)
        for _, piece in rows.pieces([self._column], 0, 1024):
            lengths = [length for length in piece.column(0).value_lengths().to_pylist() if length]
            if lengths:
                return int(lengths[0])
        return None

    def _check(self, part: TableFile, width: int | None) -> None:
        names = [name for name in (self._column, self._id_column, self._modality) if name is not None]
        missing = [name for name in names if part.schema.names.count(name) != 1]
        if missing:
            raise DatabaseError(
                f"{part.path} is without exactly one column {missing[0]!r}, which other files have.",
                "Write the files with one schema.",
            )
        kind = part.schema.field(self._column).type
        if not is_vectors(kind) or (pa.types.is_fixed_size_list(kind) and width not in (None, kind.list_size)):
            raise DatabaseError(
                f"{part.path}:{self._column} is of type {kind}, not lists of {width} numbers as in the first file.",
                "Write the files with one schema.",
            )

    def info(self) -> DatabaseInfo:
        schema = self._parts[0].schema
        field = schema.field(self._column)
        raw = {**(schema.metadata or {}), **(field.metadata or {})}
        metadata = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in raw.items()}
        return DatabaseInfo(
            place=self._shown,
            rows=self.count(),
            rows_without=self.n - self.count(),
            dim=self.dim,
            element_type="float16" if pa.types.is_float16(field.type.value_type) else "float32",
            id_type="int" if self._id_type == "uint64" else self._id_type,
            columns=tuple(name for name in schema.names if name != self._column),
            space=space_in(metadata, self._shown),
            free_bytes=self._free_bytes(),
        )

    def note(self) -> Mapping[str, str]:
        """Return the note from the hidden folder; after ``drop_old``, the one that the new files keep."""
        if self._stage is not Stage.UNTOUCHED:
            return super().note()
        return note_in((self._parts[0].schema.metadata or {}).get(MARK_KEY.encode(), b"{}"))

    def _count_old(self) -> int:
        if all(part.valid is not None for part in self._parts):
            return sum(part.valid or 0 for part in self._parts)
        return sum(int(piece.valid.sum()) for piece in self._pieces(0, 1024, True))

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[FilePiece]:
        names = [name for name in (self._id_column, self._modality) if name is not None]
        names += [self._column] if vectors else []
        for part in self._parts:
            if part.start + part.rows <= after:
                continue
            for start, piece in part.pieces(list(dict.fromkeys(names)), after, batch):
                with reading(part.path, pa.ArrowException):  # damage may only show when values are read
                    yield self._piece(part, start, piece, vectors)

    def _piece(self, part: TableFile, start: int, piece: pa.RecordBatch, vectors: bool) -> FilePiece:
        column = piece.column(self._column) if vectors else None
        valid, matrix = np.ones(len(piece), bool), None
        if column is not None:
            valid, matrix = self._matrix(part, start, column)
        modalities = None
        if self._modality is not None:
            modalities = _decoded(piece.column(self._modality)).cast(pa.large_string())
        return FilePiece(start, self._ids(part, start, piece), valid, matrix, modalities)

    def _ids(self, part: TableFile, start: int, piece: pa.RecordBatch) -> pa.Array:
        if self._id_column is None:
            return pa.array(np.arange(start, start + len(piece)))
        ids = _decoded(piece.column(self._id_column))
        if ids.null_count:
            row = start - part.start + int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise DatabaseError(
                f"Row {row} of {part.path} is without id.", "Fill it in, or pass another column as `ids=…`."
            )
        return as_ids(ids)

    def _matrix(self, part: TableFile, start: int, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = column if valid.all() else column.drop_null()
        lengths = None if pa.types.is_fixed_size_list(column.type) else column.value_lengths()
        odd = None if lengths is None else np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != self.dim)
        values = column.flatten()
        if values.null_count or (odd is not None and len(odd)):
            first = start - part.start
            raise ShapeError(
                f"Among the rows {first} to {first + len(valid) - 1} of {part.path}:{self._column} is a vector "
                f"with missing numbers, or with another number of them than {self.dim}.",
                "Drop or re-encode such rows.",
            )
        flat = values.to_numpy(zero_copy_only=False).reshape(-1, self.dim)
        return valid, np.array(flat, np.float32)

    def _other_fields(self) -> np.ndarray:
        digests = []
        for part in self._parts:
            names = [name for name in part.schema.names if name != self._column]
            for _, piece in part.pieces(names, 0, BATCH):
                digests += [blake2b(repr(row).encode(), digest_size=8).digest() for row in piece.to_pylist()]
        return np.frombuffer(b"".join(digests), np.uint64)

    def _losing(self) -> int:
        return sum(int(seen.sum()) for _, seen in self.without_new())

    def _needed_bytes(self, dim: int, size: int) -> int:
        return 2 * self.n * dim * size + sum(part.others for part in self._parts)

    def _build(self, new: RowVectors) -> None:
        root = self._place.path
        numbers = {part.path: number for number, part in enumerate(self._parts)}
        with atomic_path(
            self._place.other, force=True, directory=root.is_dir(), foreign=lambda folder: None
        ) as temporary:
            jobs = [] if root.is_dir() else [NewFile(0, str(temporary.absolute()))]
            for folder, subfolders, names in os.walk(root):
                for name in subfolders:
                    if (path := Path(folder) / name).is_symlink():
                        raise FileError(f"{path} is a link to a folder.", "Replace it by the folder itself.")
                new_folder = temporary / Path(folder).relative_to(root)
                new_folder.mkdir(exist_ok=True)
                copy_mode(Path(folder), new_folder)
                for name in names:
                    path = Path(folder) / name
                    if path in numbers:
                        jobs.append(NewFile(numbers[path], str((new_folder / name).absolute())))
                    elif name not in _SUMMARIES:
                        shutil.copy2(path, new_folder / name, follow_symlinks=False)
            for _ in map(self.write_part, jobs) if self.engine is None else self.engine.run(self.write_part, jobs):
                pass

    def write_part(self, job: NewFile) -> dict[str, object]:
        """Write the new version of a file of the data set; return its number of rows."""
        part, new, note = self._parts[job.number], self._new_vectors(), self._record().note
        layout = TableLayout(
            Columns(part.schema, self._column, self._id_column),
            dim=new.dim,
            dtype=new.dtype,
            has_ids=False,
            id_type=pa.string(),
            space=Space(model=note.get("model") or None, dim=new.dim),
            path=self._shown,
        )
        mark = {MARK_KEY.encode(): json.dumps(dict(note)).encode()}
        schema = layout.schema.with_metadata({**(layout.schema.metadata or {}), **mark})

        def lists(start: int, stop: int, kind: pa.DataType) -> pa.Array:
            written = new.written(start, stop)
            rows = new.read(start + np.flatnonzero(written)).astype(new.dtype, copy=False)
            return _lists(rows, written, kind)

        with atomic_path(job.target, force=True) as temporary:
            rewrite_part(part, temporary, self._column, schema, lists)
        return {"rows": part.rows}

    def ranges(self, most: int) -> Iterator[RowRange]:
        """Yield ranges of rows: whole files, or some row groups of a file that is larger."""
        for part in self._parts:
            start = part.start
            for rows in [*(part.groups() if part.rows > most else ()), part.rows]:
                stop = part.start + rows
                if stop > start and (stop - start >= most or rows == part.rows):
                    yield RowRange.numbered("rows", start, stop)
                    start = stop


class NewFile(NamedTuple):
    """A file of a data set, by its number, of which a new version is to be written."""

    number: int
    target: str  # absolute, since an engine's workers may have another working directory

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return f"file-{self.number:06d}"


def _choose_column(schema: pa.Schema, column: str | None, path: str) -> str:
    candidates: list[str] = [field.name for field in schema if is_vectors(field.type)]
    if column is None:
        return refusals.only_name(candidates, "columns of vectors", path, "column")
    if refusals.check_name(column, schema.names, path, "column") not in candidates:
        raise DatabaseError(
            f"{path}:{column} is of type {schema.field(column).type}, not lists of numbers.", "Pass another `column=…`."
        )
    return column


def _id_kind(schema: pa.Schema, column: str | None) -> str:
    if column is None:
        return "int"
    kind: pa.DataType = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(kind):
        return "uint64" if pa.types.is_uint64(kind) else "int"
    if kind in (pa.uuid(), pa.binary(16)):
        return "uuid"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    raise refusals.bad_ids(kind, column)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _lists(vectors: np.ndarray, has_vector: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return vectors as an array of lists, with null for rows without a vector."""
    if has_vector.all():
        return list_array(vectors, kind)
    mask = pa.array(~has_vector)
    if pa.types.is_fixed_size_list(kind):
        # In a fixed-size list, a null row also takes up space for its numbers.
        full = np.zeros((len(has_vector), vectors.shape[1]), vectors.dtype)
        full[has_vector] = vectors
        return pa.FixedSizeListArray.from_arrays(pa.array(full.reshape(-1)), type=kind, mask=mask)
    large = pa.types.is_large_list(kind)
    ends = np.zeros(len(has_vector) + 1, np.int64 if large else np.int32)
    np.cumsum(has_vector * vectors.shape[1], out=ends[1:])
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(pa.array(ends), pa.array(vectors.reshape(-1)), type=kind, mask=mask)


def is_vectors(kind: pa.DataType) -> bool:
    """Return whether a column of this type can contain vectors: lists of floating-point numbers."""
    return is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def find_parts(root: Path) -> list[Path]:
    """Return the files of a data set in natural order."""
    if root.is_file():
        return [root]
    files = [root / name for name in data_files(Location.of(root), SUFFIXES)]
    kinds = {path.suffix.lower() == ".parquet" for path in files}
    if len(kinds) != 1:
        what = "both Parquet and Arrow files" if kinds else f"no {', '.join(SUFFIXES)}"
        raise ParameterError(f"The folder {root} has {what}.", "Pass a folder of Parquet files or of Arrow files.")
    if (root / "state.json").is_file() and (root / "dataset_info.json").is_file():
        raise DatabaseError(
            f"{root} is a folder of the datasets library, which describes its columns in separate files.",
            "Export it to Parquet (Dataset.to_parquet), and migrate the Parquet file.",
        )
    return files


@dataclass(frozen=True)
class TableFile:
    """A file of a data set."""

    path: Path
    start: int  # number of its first row in the data set
    table: Table
    valid: int | None  # number of rows with a vector, if it is known without reading the vectors
    others: int  # size of the other columns in bytes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.table.n

    @property
    def schema(self) -> pa.Schema:
        """Schema of all columns."""
        return self.table.schema

    @classmethod
    def open(cls, path: Path, start: int, column: str | None, dim: int | None) -> TableFile:
        """Return the description of a file, from its metadata (Parquet) or its batches (Arrow)."""
        if path.suffix.lower() != ".parquet":
            missing = others = 0
            with open_arrow(path, check=False) as (schema, _, batches):
                for batch in batches if column in schema.names else ():
                    missing += batch.column(column).null_count
                    names = [name for name in schema.names if name != column]
                    others += sum(batch.column(name).get_total_buffer_size() for name in names)
            table = ArrowTable(path.absolute())
            return cls(path, start, table, table.n - missing, others)
        found = ParquetTable(path.absolute())
        with open_parquet(path) as file:
            others = values = 0
            if any(name.startswith(f"{column}.") for name in found.schema.names):  # leaf columns would be ambiguous
                dim = None
            for k in range(file.num_row_groups):
                group = file.metadata.row_group(k)
                for j in range(group.num_columns):
                    chunk = group.column(j)
                    if column is not None and chunk.path_in_schema.startswith(f"{column}."):
                        values += chunk.num_values
                    else:
                        others += chunk.total_compressed_size
        return cls(path, start, found, _count_valid(found.n, values, dim), others)

    def pieces(self, names: list[str], after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield record batches of at most ``batch`` rows with the number of their first row, from row ``after`` on."""
        skip = max(after - self.start, 0)
        blank = ((row, _placeholder(min(batch, self.rows - row))) for row in range(skip, self.rows, batch))
        for row, piece in self.table.pieces(names, skip, batch) if names else blank:
            yield self.start + row, piece

    def groups(self) -> list[int]:
        """Return the cumulative number of rows at the end of each row group; empty for Arrow files."""
        sizes = self.table.group_sizes if isinstance(self.table, ParquetTable) else []
        return list(accumulate(rows for rows, _ in sizes))


def _placeholder(rows: int) -> pa.RecordBatch:
    """Return a batch of rows without data, since a batch without columns has no rows."""
    return pa.record_batch([pa.nulls(rows)], names=[""])


def _count_valid(rows: int, values: int, dim: int | None) -> int | None:
    """Return how many rows have a vector (``dim`` values; without, 1), from the number of values; None if unknown."""
    if dim is None or dim < 2 or (values - rows) % (dim - 1) or not 0 <= values - rows <= rows * (dim - 1):
        return None
    return (values - rows) // (dim - 1)


# ---- rewriting -------------------------------------------------------------------------------------------------------


def rewrite_part(
    part: TableFile, target: Path, column: str, schema: pa.Schema, lists: Callable[[int, int, pa.DataType], pa.Array]
) -> None:
    """Write a new version of a file with the values that ``lists`` returns for a range of rows and a type."""
    kind, place = schema.field(column).type, schema.get_field_index(column)
    others = [name for name in schema.names if name != column]
    row_bytes = kind.list_size * kind.value_type.bit_width // 8 if pa.types.is_fixed_size_list(kind) else 4096

    def filled(start: int, piece: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [piece.column(name) for name in others]
        arrays.insert(place, lists(start, start + len(piece), kind))
        return pa.record_batch(arrays, schema=schema)

    if part.path.suffix.lower() == ".parquet":
        _write_parquet(part, target, schema, column, others, row_bytes, filled)
    else:
        with open_arrow(part.path) as (_, streamed, _):
            new_writer = pa.ipc.new_stream if streamed else pa.ipc.new_file
        options, start = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True), part.start
        with new_writer(str(target), schema, options=options) as writer:
            for batch in _of_batches(part.path, others):
                writer.write_batch(filled(start, batch))
                start += len(batch)
    copy_mode(part.path, target)


def _write_parquet(
    part: TableFile,
    target: Path,
    schema: pa.Schema,
    column: str,
    others: list[str],
    row_bytes: int,
    filled: Callable[[int, pa.RecordBatch], pa.RecordBatch],
) -> None:
    import pyarrow.parquet as pq

    with open_parquet(part.path) as file:
        codecs, dictionaries, limits = {}, set(), []
        for k in range(file.num_row_groups):
            group = file.metadata.row_group(k)
            width = max(row_bytes, group.total_byte_size // max(group.num_rows, 1))
            limits.append((group.num_rows, max(256, _GROUP_BYTES // max(width, 1))))
            for j in range(group.num_columns):
                chunk = group.column(j)
                if not chunk.path_in_schema.startswith(f"{column}."):
                    codecs[chunk.path_in_schema] = _CODECS.get(chunk.compression, chunk.compression.lower())
                    if any("DICTIONARY" in encoding for encoding in chunk.encodings):
                        dictionaries.add(chunk.path_in_schema)
    # Random mantissas do not compress: without a codec and a dictionary the vectors are smaller and several times
    # faster.
    with pq.ParquetWriter(
        target,
        schema,
        compression=codecs or "none",
        use_dictionary=sorted(dictionaries) or False,
        write_statistics=sorted(codecs) or False,
    ) as writer:
        start = part.start
        for piece in _of_groups(part.path, limits, others):
            table = pa.Table.from_batches([filled(start, piece)], schema)
            writer.write_table(table, row_group_size=max(len(piece), 1))
            start += len(piece)


def _of_groups(path: Path, limits: list[tuple[int, int]], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield each row group, divided if it is larger than its limit."""
    with open_parquet(path) as file:
        for k, (rows, most) in enumerate(limits):
            if names:
                yield from file.iter_batches(batch_size=most, columns=names, row_groups=[k], use_threads=False)
                continue
            for start in range(0, rows, most):
                yield _placeholder(min(most, rows - start))


def _of_batches(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with open_arrow(path) as (_, _, batches):
        for batch in batches:
            yield batch.select(names) if names else _placeholder(len(batch))
