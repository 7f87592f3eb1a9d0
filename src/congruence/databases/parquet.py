"""Parquet and Arrow data sets: complete new files are written next to the old ones, and the switch exchanges them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence.databases import _refusals as refusals
from congruence.databases._base import BATCH, Address, DatabaseInfo, Name, RowRange, as_ids, space_in
from congruence.databases._files import (
    FILES,
    FileDatabase,
    FilePiece,
    HiddenFolder,
    RowVectors,
    copy_mode,
    number_type,
    path_of,
)
from congruence.embeddings import Space
from congruence.errors import DatabaseError, FileError, ParameterError, ShapeError
from congruence.io import SPACE_KEY, parse_spec
from congruence.io.arrow import ArrowTable, open_arrow
from congruence.io.columns import Columns, is_list
from congruence.io.dataset import data_files
from congruence.io.folder import MARKER, mark_parts, why_no_parts
from congruence.io.locations import Location
from congruence.io.parquet import ParquetTable, open_parquet
from congruence.io.reading import reading
from congruence.io.tables import Table, TableLayout, list_array

SUFFIXES = (".parquet", ".arrow", ".feather")  # file name suffixes of Parquet files, and of Arrow files and streams
_GROUP_BYTES = 64 * 2**20  # target size in bytes of a row group when writing; a whole group is held in memory

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
        first = TableFile.open(find_parts(self._original)[0], 0).table.schema
        vectors = [field.name for field in first if is_vectors(field.type)]
        column = refusals.check_name(column or key, first.names, path, "column")
        self._column = column or refusals.only_name(vectors, "columns of vectors", path, "column")
        plain = [field.name for field in first if not pa.types.is_nested(field.type)]
        refusals.check_columns(plain, path, None, ids, modality)
        known = self._place.record()
        other = known.options.get("column", self._column) if known else self._column
        refusals.refuse(other != self._column, "other column", path, other=other)
        self._options["column"] = self._column
        self._id_column = ids or next((name for name in ("id", "ids") if name in plain), None)
        self._modality = modality
        if len(vectors) > 1:
            self._subject = f"{path}:{self._column}"
        self._open_rows()

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another working directory.
        return {**super().__getstate__(), "_place": HiddenFolder(str(self._place.path.absolute()))}

    def _reopen(self) -> None:
        self._parts: list[TableFile] = []
        self.n, width, kinds = 0, None, set()
        for path in find_parts(self._original):
            part = TableFile.open(path, self.n)
            self._check(part, width)
            width = width or part.width(self._column)
            kinds.add(_id_kind(part.table.schema, self._id_column))
            self._parts.append(part)
            self.n += part.table.n
        if (width is None or not self.n) and self._place.record() is None:  # else others have emptied it
            raise ShapeError(f"{self._subject} has no vectors.", "Check the path and the column.")
        if len(kinds) > 1:
            raise DatabaseError(
                f"{self._subject} has ids of several types ({', '.join(sorted(kinds))}).",
                "Write its files with one schema.",
            )
        self.dim, self._id_type = width or 0, kinds.pop()

    def _check(self, part: TableFile, width: int | None) -> None:
        for name in (self._column, self._id_column, self._modality):
            if name is not None and part.table.schema.names.count(name) != 1:
                raise DatabaseError(
                    f"{part.path} is without exactly one column {name!r}, which other files have.",
                    "Write the files with one schema.",
                )
        kind = part.table.schema.field(self._column).type
        if not is_vectors(kind) or (pa.types.is_fixed_size_list(kind) and width not in (None, kind.list_size)):
            raise DatabaseError(
                f"{part.path}:{self._column} is of type {kind}, not lists of numbers, {width or 'all'} in each.",
                "Pass another `column=…`, or write the files with one schema.",
            )

    def info(self) -> DatabaseInfo:
        schema = self._parts[0].table.schema
        field = schema.field(self._column)
        return DatabaseInfo(
            place=self._subject,
            rows=self.count(),
            rows_without=self.n - self.count(),
            dim=self.dim,
            element_type="float16" if pa.types.is_float16(field.type.value_type) else "float32",
            id_type="int" if self._id_type == "uint64" else self._id_type,
            space=self._space(schema),
        )

    def _space(self, schema: pa.Schema) -> Space:
        raw = {**(schema.metadata or {}), **(schema.field(self._column).metadata or {})}
        metadata = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in raw.items()}
        return space_in(metadata, self._subject)

    def _count_old(self) -> int:
        counts = [part.count(self._column, self.dim) for part in self._parts]
        if None in counts:
            return sum(int(piece.valid.sum()) for piece in self._pieces(0, 1024, True))
        return sum(count for count in counts if count)

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[FilePiece]:
        names = [name for name in (self._id_column, self._modality) if name is not None]
        names += [self._column] if vectors else []
        for part in self._parts:
            if part.start + part.table.n <= after:
                continue
            for start, piece in part.pieces(list(dict.fromkeys(names)), after, batch):
                with reading(part.path, pa.ArrowException):  # damage may only show when values are read
                    valid, matrix, modalities = np.ones(len(piece), bool), None, None
                    if vectors:
                        valid, matrix = self._matrix(part, start, piece.column(self._column))
                    if self._modality is not None:
                        modalities = _decoded(piece.column(self._modality)).cast(pa.large_string())
                    yield FilePiece(start, self._ids(part, start, piece), valid, matrix, modalities)

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
        fixed = pa.types.is_fixed_size_list(column.type)
        ragged = not fixed and (column.value_lengths().to_numpy(zero_copy_only=False) != self.dim).any()
        values = column.flatten()
        if values.null_count or ragged:
            first = start - part.start
            raise ShapeError(
                f"Among the rows {first} to {first + len(valid) - 1} of {part.path}:{self._column} is a vector "
                f"with missing numbers, or with another number of them than {self.dim}.",
                "Drop or re-encode such rows.",
            )
        return valid, np.array(values.to_numpy(zero_copy_only=False).reshape(-1, self.dim), np.float32)

    def _other_fields(self) -> np.ndarray:
        digests = []
        for part in self._parts:
            names = [name for name in part.table.schema.names if name != self._column]
            for _, piece in part.pieces(names, 0, BATCH):
                digests += [blake2b(repr(row).encode(), digest_size=8).digest() for row in piece.to_pylist()]
        return np.frombuffer(b"".join(digests), np.uint64)

    def _losing(self) -> int:
        return sum(int(seen.sum()) for _, seen in self.without_new())

    def _written_as(self, part: TableFile, element_type: str) -> np.dtype:
        old = part.table.schema.field(self._column).type.value_type
        return number_type(np.dtype(old.to_pandas_dtype()), element_type)

    def _needed_bytes(self, dim: int, element_type: str) -> int:
        size = np.dtype(element_type).itemsize + self._written_as(self._parts[0], element_type).itemsize
        old = self._parts[0].table.schema.field(self._column).type.value_type.bit_width // 8
        others = sum(part.path.stat().st_size for part in self._parts) - self.count() * self.dim * old
        return self.n * dim * size + max(others, 0)

    def _build(self, new: RowVectors) -> None:
        root, whole = self._place.path, self._place.path.is_dir()
        written = {part.path for part in self._parts}

        def left_out(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if name in _SUMMARIES or Path(folder) / name in written]

        with atomic_path(self._place.other, force=True, directory=whole, foreign=lambda folder: None) as temporary:
            for path in root.rglob("*") if whole else ():
                if path.is_symlink() and path.is_dir():
                    raise FileError(f"{path} is a link to a folder.", "Replace it by the folder itself.")
            if whole:
                shutil.copytree(root, temporary, symlinks=True, ignore=left_out, dirs_exist_ok=True)
                if why_no_parts(root) is None:  # the folder states the space of its parts
                    mark_parts(temporary, self._made().space(space_in({SPACE_KEY: (root / MARKER).read_text()}, root)))
            places = [temporary / part.path.relative_to(root) if whole else temporary for part in self._parts]
            jobs = [NewFile(number, str(place.absolute())) for number, place in enumerate(places)]
            for _ in map(self.write_part, jobs) if self.engine is None else self.engine.run(self.write_part, jobs):
                pass

    def write_part(self, job: NewFile) -> dict[str, object]:
        part, new, record = self._parts[job.number], self._new_vectors(), self._record()
        dtype = self._written_as(part, record.element_type)
        layout = TableLayout(
            Columns(part.table.schema, self._column, self._id_column),
            dim=new.dim,
            dtype=dtype,
            has_ids=False,
            id_type=pa.string(),
            space=self._made().space(self._space(part.table.schema)),  # none if the old file states none
            path=self._subject,
        )
        schema = layout.schema

        def filled(start: int, piece: pa.RecordBatch) -> pa.RecordBatch:
            """Return the new version of rows, given their other columns."""
            written = new.written(start, start + len(piece))
            rows = new.read(start + np.flatnonzero(written)).astype(dtype, copy=False)
            arrays = [piece.column(name) for name in schema.names if name != self._column]
            arrays.insert(layout.at, _lists(rows, written, schema.field(layout.at).type))
            return pa.record_batch(arrays, schema=schema)

        with atomic_path(job.target, force=True) as temporary:
            part.rewrite(temporary, self._column, schema, filled)
        return {"rows": part.table.n}

    def ranges(self, most: int) -> Iterator[RowRange]:
        for part in self._parts:
            start = part.start
            for rows in [*(part.groups() if part.table.n > most else ()), part.table.n]:
                stop = part.start + rows
                if stop > start and (stop - start >= most or rows == part.table.n):
                    yield RowRange.numbered("rows", start, stop)
                    start = stop


class NewFile(NamedTuple):
    """A file of a data set, by its number, of which a new version is to be written."""

    number: int
    target: str  # absolute, since an engine's workers may have another working directory

    @property
    def name(self) -> str:
        return f"file-{self.number:06d}"


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
    raise refusals.refusal("ids", column, kind=kind)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _lists(vectors: np.ndarray, has_vector: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return vectors as an array of lists, with null for rows without a vector."""
    lists = list_array(vectors, kind)
    if has_vector.all():
        return lists
    places = np.cumsum(has_vector) - 1
    return lists.take(pa.array(places, mask=~has_vector))


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

    @classmethod
    def open(cls, path: Path, start: int) -> TableFile:
        kind = ParquetTable if path.suffix.lower() == ".parquet" else ArrowTable
        return cls(path, start, kind(path.absolute()))

    def width(self, column: str) -> int | None:
        """Return the width of the vectors, or of the first one if lists have no fixed size; None without any."""
        kind = self.table.schema.field(column).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        lengths = (piece.column(0).value_lengths().to_pylist() for _, piece in self.pieces([column], 0, 1024))
        return next((int(length) for some in lengths for length in some if length), None)

    def count(self, column: str, dim: int) -> int | None:
        """Return how many rows have a vector, if it is known without reading the vectors."""
        if isinstance(self.table, ArrowTable):
            with open_arrow(self.path, check=False) as (_, _, batches):
                return sum(len(batch) - batch.column(column).null_count for batch in batches)
        if dim < 2 or any(name.startswith(f"{column}.") for name in self.table.schema.names):
            return None  # the names of leaf columns would be ambiguous
        with open_parquet(self.path) as file:
            # One value for each number, and one for each missing vector.
            numbers = sum(chunk.num_values for _, chunk in _chunks(file, column)) - self.table.n
        return None if numbers % (dim - 1) or not 0 <= numbers <= self.table.n * (dim - 1) else numbers // (dim - 1)

    def pieces(self, names: list[str], after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield record batches of at most ``batch`` rows with the number of their first row, from row ``after`` on."""
        skip = max(after - self.start, 0)
        blank = ((row, _placeholder(min(batch, self.table.n - row))) for row in range(skip, self.table.n, batch))
        for row, piece in self.table.pieces(names, skip, batch) if names else blank:
            yield self.start + row, piece

    def groups(self) -> list[int]:
        """Return the cumulative number of rows at the end of each row group; empty for Arrow files."""
        sizes = self.table.group_sizes if isinstance(self.table, ParquetTable) else []
        return list(accumulate(rows for rows, _ in sizes))

    def rewrite(
        self, target: Path, column: str, schema: pa.Schema, filled: Callable[[int, pa.RecordBatch], pa.RecordBatch]
    ) -> None:
        """Write a new version, in which ``filled`` adds the vectors to a batch of the other columns."""
        others, start = [name for name in schema.names if name != column], self.start
        if isinstance(self.table, ParquetTable):
            self._rewrite_parquet(target, column, schema, filled)
        else:
            options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
            with open_arrow(self.path) as (_, streamed, _):
                new_writer = pa.ipc.new_stream if streamed else pa.ipc.new_file
            with new_writer(str(target), schema, options=options) as writer:
                for batch in _arrow_batches(self.path):
                    writer.write_batch(filled(start, batch.select(others) if others else _placeholder(len(batch))))
                    start += len(batch)
        copy_mode(self.path, target)

    def _rewrite_parquet(
        self, target: Path, column: str, schema: pa.Schema, filled: Callable[[int, pa.RecordBatch], pa.RecordBatch]
    ) -> None:
        """Keep codecs, dictionaries and row groups of the other columns.

        Random mantissas do not compress: without a codec and a dictionary the vectors are smaller and several times
        faster.
        """
        import pyarrow.parquet as pq

        kind, start = schema.field(column).type, self.start
        row_bytes = kind.list_size * kind.value_type.bit_width // 8 if pa.types.is_fixed_size_list(kind) else 4096
        with open_parquet(self.path) as file:
            found = list(_chunks(file, column, others=True))
            codecs = {name: _CODECS.get(chunk.compression, chunk.compression.lower()) for name, chunk in found}
            dictionaries = {name for name, chunk in found if any("DICTIONARY" in one for one in chunk.encodings)}
            sizes = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            limits = [max(row_bytes, size.total_byte_size // max(size.num_rows, 1)) for size in sizes]
        others = [name for name in schema.names if name != column]
        with pq.ParquetWriter(
            target,
            schema,
            compression=codecs or "none",
            use_dictionary=sorted(dictionaries) or False,
            write_statistics=sorted(codecs) or False,
        ) as writer:
            for k, width in enumerate(limits):
                group = replace(self, start=start, table=ParquetTable(self.path, groups=(k, k + 1)))
                for first, piece in group.pieces(others, start, max(256, _GROUP_BYTES // max(width, 1))):
                    batch = filled(first, piece)
                    writer.write_table(pa.Table.from_batches([batch]), row_group_size=max(len(batch), 1))
                start += group.table.n


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file; as a generator it takes no error of what is written meanwhile for one of reading."""
    with open_arrow(path) as (_, _, batches):
        yield from batches


def _chunks(file: Any, column: str, others: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the name and the description of each chunk of a column, or of all ``others``."""
    for k in range(file.num_row_groups):
        group = file.metadata.row_group(k)
        for chunk in (group.column(j) for j in range(group.num_columns)):
            if chunk.path_in_schema.startswith(f"{column}.") != others:
                yield chunk.path_in_schema, chunk


def _placeholder(rows: int) -> pa.RecordBatch:
    """Return a batch of rows without data, since a batch without columns has no rows."""
    return pa.record_batch([pa.nulls(rows)], names=[""])
