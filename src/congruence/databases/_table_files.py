"""Tables of a data set (one file, or the files in a folder): read in batches of rows, and rewritten with new vectors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from congruence.databases._file_pieces import copy_mode
from congruence.errors import CorruptFileError, DatabaseError, FileError, ParameterError
from congruence.stores import natural
from congruence.stores.reading import reading

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow.parquet as pq

__all__ = ["SUFFIXES", "Part", "find_parts", "is_vectors", "rewrite", "rewrite_part"]

#: File name suffixes of Parquet files, and of Arrow files and streams.
SUFFIXES = (".parquet", ".arrow", ".feather")

#: Exceptions that pyarrow raises for damaged files.
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)

#: First bytes of an Arrow file; an Arrow stream begins differently.
_MAGIC = b"ARROW1"

#: Target size in bytes of a row group when writing; a whole group is held in memory.
_GROUP_BYTES = 64 * 2**20

#: Files that describe the row groups of other files, which change in the new folder.
_SUMMARIES = ("_metadata", "_common_metadata")

#: Codecs whose name in a file footer differs from the name that the writer expects.
_CODECS = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4", "LZO": "snappy"}


def is_vectors(kind: pa.DataType) -> bool:
    """Return whether a column of this type can contain vectors: lists of floating-point numbers."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def find_parts(root: Path) -> list[Path]:
    """Return the files of a data set in natural order. Raises FileError, ParameterError.

    As in Spark and Arrow, files whose name, or a folder of whose path, begins with a dot or an underscore are not data.
    """
    if root.is_file():
        return [root]
    files = [
        path
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)
    ]
    kinds = {path.suffix.lower() == ".parquet" for path in files}
    if len(kinds) != 1:
        what = "both Parquet and Arrow files" if kinds else f"no {', '.join(SUFFIXES)}"
        raise ParameterError(
            f"Got a folder {root} with {what}; expected files of one kind. Pass a folder of Parquet files or of Arrow files."
        )
    if (root / "state.json").is_file() and (root / "dataset_info.json").is_file():
        raise DatabaseError(
            f"Got {root}, a folder of the datasets library, which stores a description of its columns in separate files; expected a folder of tables only. "
            "Export it to Parquet (Dataset.to_parquet), and migrate the Parquet file."
        )
    return sorted(files, key=lambda path: [natural(part) for part in path.relative_to(root).parts])


@dataclass(frozen=True)
class Part:
    """A file of a data set.

    Attributes
    ----------
    path : Path
    start, rows : int
        Number of its first row in the data set, and its number of rows.
    schema : pyarrow.Schema
    valid : int or None
        Number of rows with a vector, if it is known without reading the vectors.
    others : int
        Size of the other columns in bytes.
    """

    path: Path
    start: int
    rows: int
    schema: pa.Schema
    valid: int | None
    others: int

    @classmethod
    def open(cls, path: Path, start: int, column: str | None, dim: int | None) -> Part:
        """Return the description of a file, from its metadata (Parquet) or its batches (Arrow). Raises FileError, CorruptFileError."""
        if path.suffix.lower() != ".parquet":
            with _arrow(path, pa.memory_map) as (schema, _, batches):
                rows = missing = size = 0
                for batch in batches:
                    rows += len(batch)
                    if column in schema.names:
                        missing += batch.column(column).null_count
                        size += sum(batch.column(name).nbytes for name in schema.names if name != column)
            return cls(path, start, rows, schema, rows - missing, size)
        with _parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            others = values = 0
            if any(name.startswith(f"{column}.") for name in schema.names):  # leaf columns would be ambiguous
                dim = None
            for k in range(file.num_row_groups):
                group = file.metadata.row_group(k)
                for j in range(group.num_columns):
                    chunk = group.column(j)
                    if column is not None and chunk.path_in_schema.startswith(f"{column}."):
                        values += chunk.num_values
                    else:
                        others += chunk.total_compressed_size
        return cls(path, start, rows, schema, _count_valid(rows, values, dim), others)

    def pieces(self, names: list[str], after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield record batches of at most ``batch`` rows with the number of their first row, from row ``after`` of the data set on."""
        skip = max(after - self.start, 0)
        if self.path.suffix.lower() == ".parquet":
            pieces = self._of_parquet(names, skip, batch)
        else:
            pieces = self._of_arrow(names, skip, batch)
        stop = self.start + skip
        for row, piece in pieces:
            stop = self.start + row + len(piece)
            yield self.start + row, piece
        if stop != self.start + max(self.rows, skip):
            raise CorruptFileError(
                f"Got {self.path} with another number of rows than the {self.rows:,} it had when it was opened; expected no change. Copy or write it again."
            )

    def groups(self) -> list[int]:
        """Return the cumulative number of rows at the end of each row group; empty for Arrow files, whose batches are only found by reading."""
        if self.path.suffix.lower() != ".parquet":
            return []
        with _parquet(self.path) as file:
            sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        return list(accumulate(sizes))

    def _of_parquet(self, names: list[str], skip: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with _parquet(self.path) as file:
            first = row = 0
            while first < file.num_row_groups and row + file.metadata.row_group(first).num_rows <= skip:
                row += file.metadata.row_group(first).num_rows
                first += 1
            if not names:
                for start in range(skip, self.rows, batch):
                    yield start, _placeholder(min(batch, self.rows - start))
                return
            groups = range(first, file.num_row_groups)
            for piece in file.iter_batches(batch_size=batch, columns=names, row_groups=groups, use_threads=False):
                stop = row + len(piece)
                if stop > skip:
                    piece = piece.slice(max(skip - row, 0))
                    yield stop - len(piece), piece
                row = stop

    def _of_arrow(self, names: list[str], skip: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with _arrow(self.path, pa.OSFile) as (_, _, batches):
            row = 0
            for whole in batches:
                if row + len(whole) > skip:
                    whole.validate(full=True)  # offsets of a damaged file may lead anywhere
                    piece = whole.select(names) if names else _placeholder(len(whole))
                    for start in range(max(skip - row, 0), len(piece), batch):
                        yield row + start, piece.slice(start, batch)
                row += len(whole)


def _placeholder(rows: int) -> pa.RecordBatch:
    """Return a batch of rows without data, since a batch without columns has no rows."""
    return pa.record_batch([pa.nulls(rows)], names=[""])


def _count_valid(rows: int, values: int, dim: int | None) -> int | None:
    """Return how many rows have a vector, from the number of values (``dim`` for a row with a vector, 1 for one without); None if unknown."""
    if dim is None or dim < 2 or (values - rows) % (dim - 1) or not 0 <= values - rows <= rows * (dim - 1):
        return None
    return (values - rows) // (dim - 1)


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    # Pre-buffering would read every row group ahead, the whole file in the end.
    with (
        reading(path, *_DAMAGE),
        pq.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=2**20) as file,
    ):
        yield file


@contextmanager
def _arrow(
    path: Path, open_file: Callable[[str], AbstractContextManager[pa.NativeFile]]
) -> Iterator[tuple[pa.Schema, bool, Iterator[pa.RecordBatch]]]:
    """Yield the schema, whether the file is a stream, and an iterator over the record batches."""
    with reading(path, *_DAMAGE):
        if not path.stat().st_size:
            raise CorruptFileError(f"Got an empty file, {path}; expected an Arrow file. Copy or write it again.")
        with open_file(str(path)) as stream:
            magic = stream.read(len(_MAGIC))
            stream.seek(0)
            if magic == _MAGIC:
                file = pa.ipc.open_file(stream)
                yield file.schema, False, (file.get_batch(k) for k in range(file.num_record_batches))
            else:
                reader = pa.ipc.open_stream(stream)
                yield reader.schema, True, iter(reader)


# ---- rewriting -------------------------------------------------------------------------------------------------------


def rewrite(root: Path, target: Path, parts: list[Part], write: Callable[[list[tuple[Part, Path]]], None]) -> None:
    """Write a new version of a data set.

    Parameters
    ----------
    root, target : Path
        Existing data set and new one, both a file or both a folder.
    parts : list of Part
        All data files of ``root``; other files are copied, symbolic links as links.
    write : callable
        Called once with a list of all parts, each with the path of its new file.

    Raises
    ------
    FileError, CorruptFileError
        If a file cannot be read, the folder contains a link to a folder, or a file is damaged.
    OSError
        If the target cannot be written.
    """
    if root.is_file():
        write([(parts[0], target)])
        return
    data, new_files = {part.path: part for part in parts}, []
    for folder, subfolders, names in os.walk(root):
        for name in subfolders:
            if (Path(folder) / name).is_symlink():
                raise FileError(
                    f"Got a link to a folder, {Path(folder) / name}; expected folders and files. Replace the link by the folder itself."
                )
        new_folder = target / Path(folder).relative_to(root)
        new_folder.mkdir(exist_ok=True)
        copy_mode(Path(folder), new_folder)
        for name in names:
            path = Path(folder) / name
            if path in data:
                new_files.append((data[path], new_folder / name))
            elif name not in _SUMMARIES:
                shutil.copy2(path, new_folder / name, follow_symlinks=False)
    write(new_files)


def rewrite_part(
    part: Part, target: Path, column: str, schema: pa.Schema, lists: Callable[[int, int, pa.DataType], pa.Array]
) -> None:
    """Write a new version of a file, with the other columns unchanged.

    Parameters
    ----------
    part : Part
    target : Path
    column : str
        Column of the vectors.
    schema : pyarrow.Schema
        Schema of the new file.
    lists : callable
        Function from the first row number, the row number after the last one, and a type to the values of the new column.

    Raises
    ------
    FileError, CorruptFileError
        If the file cannot be read, or is damaged.
    OSError
        If the target cannot be written.
    """
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
        _write_arrow(part, target, schema, others, filled)
    copy_mode(part.path, target)


def _write_parquet(
    part: Part,
    target: Path,
    schema: pa.Schema,
    column: str,
    others: list[str],
    row_bytes: int,
    filled: Callable[[int, pa.RecordBatch], pa.RecordBatch],
) -> None:
    import pyarrow.parquet as pq

    with _parquet(part.path) as file:
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
    # Random mantissas do not compress: without a codec and a dictionary the vectors are smaller and several times faster.
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
    with _parquet(path) as file:
        for k, (rows, most) in enumerate(limits):
            if names:
                yield from file.iter_batches(batch_size=most, columns=names, row_groups=[k], use_threads=False)
                continue
            for start in range(0, rows, most):
                yield _placeholder(min(most, rows - start))


def _write_arrow(
    part: Part,
    target: Path,
    schema: pa.Schema,
    others: list[str],
    filled: Callable[[int, pa.RecordBatch], pa.RecordBatch],
) -> None:
    with _arrow(part.path, pa.OSFile) as (_, streamed, _):
        new_writer = pa.ipc.new_stream if streamed else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with new_writer(str(target), schema, options=options) as writer:
        start = part.start
        for batch in _of_batches(part.path, others):
            writer.write_batch(filled(start, batch))
            start += len(batch)


def _of_batches(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with _arrow(path, pa.OSFile) as (_, _, batches):
        for batch in batches:
            batch.validate(full=True)
            yield batch.select(names) if names else _placeholder(len(batch))
