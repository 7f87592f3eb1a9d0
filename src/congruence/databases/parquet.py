"""Parquet and Arrow data sets: complete new files are written next to the old ones, and the switch exchanges them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence._utils.atomic import atomic_path
from congruence.databases._address import Address
from congruence.databases._base import Capabilities, DatabaseInfo, PairedBlock, Stage
from congruence.databases._file_pieces import Piece, path_of, refuse_options
from congruence.databases._file_place import EXCHANGES, FilePlace
from congruence.databases._file_rows import RowVectors
from congruence.databases._files import FileDatabase
from congruence.databases._metadata import MARK_KEY, SPACE_KEY, space_in
from congruence.databases._partitioned import Change, Partitioned, WrittenFile
from congruence.databases._table_files import Part, find_parts, is_vectors, rewrite, rewrite_part
from congruence.databases._uuids import is_uuids, uuid_texts
from congruence.embeddings import Space
from congruence.errors import DatabaseError, ParameterError, ShapeError
from congruence.stores import parse_spec
from congruence.stores.reading import reading
from congruence.stores.tables import Columns, output_schema

__all__ = ["Tables"]


class Tables(FileDatabase, Partitioned):
    """A table in a ``.parquet``, ``.arrow`` or ``.feather`` file, or in a folder of such files of one kind.

    Parameters
    ----------
    address : Address
        Path of the file or folder, ``PATH:COLUMN``, or ``parquet://PATH``.
    table, rows : None
        Not supported: the file or folder is a single table, and all of its rows are mapped.
    column : str, optional
        Column of the vectors, lists of floating-point numbers; may be omitted if there is only one such column.
    ids : str, optional
        Column of the ids (integers, strings or UUIDs); by default ``id`` or ``ids``, else row numbers from 0.
    modality_column : str, optional

    Raises
    ------
    ParameterError, FileError, DatabaseError, CorruptFileError, ShapeError
        If a parameter has an invalid value; a file cannot be read; files have different columns or types; a file is damaged; or there are
        no vectors.

    Notes
    -----
    New files have the names, columns, metadata, codecs and row groups of the old ones (row groups over 64 MiB are split); their vectors are not
    compressed. Other files in a folder are copied, except ``_metadata`` and ``_common_metadata``, which describe the old files.
    """

    kind = "parquet"
    unit: ClassVar[str] = "rows"
    capabilities = Capabilities(
        container="file",
        atomic_switch=EXCHANGES,
        concurrent_writes=False,
        follows_deletes=False,
        searches=False,
        writes_after_switch=False,
        element_types=("float32", "float16"),
    )

    def __init__(
        self,
        address: Address,
        *,
        table: str | None = None,
        column: str | None = None,
        ids: str | None = None,
        modality_column: str | None = None,
        rows: str | None = None,
    ) -> None:
        path, key = parse_spec(path_of(address, ("parquet", "arrow")))
        refuse_options({"table": table, "rows": rows}, f"{path}, which is a single table that is mapped as a whole")
        super().__init__(path, path)
        #: Writes the new files on other workers; called with the number of each old file and the path of its new file.
        self.spread: Callable[[list[tuple[int, Path]]], None] | None = None
        ids, modality_column = self._remember(ids, modality_column)
        first = Part.open(find_parts(self._original)[0], 0, None, None).schema
        self._column = _choose_column(first, column or key, path)
        self._id_column = self._find_column(first, "ids", ids, ("id", "ids"), path)
        self._modality = self._find_column(first, "modality_column", modality_column, (), path)
        if sum(is_vectors(field.type) for field in first) > 1:
            self._shown = f"{path}:{self._column}"
        self._reopen()

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another working directory.
        place = FilePlace(str(self._place.path.absolute()))
        parts = [replace(part, path=part.path.absolute()) for part in self._parts]
        return {**super().__getstate__(), "spread": None, "_place": place, "_parts": parts}

    @staticmethod
    def _find_column(schema: pa.Schema, option: str, name: str | None, usual: tuple[str, ...], path: str) -> str | None:
        plain = [field.name for field in schema if not pa.types.is_nested(field.type)]
        if name is not None and name not in plain:
            raise ParameterError(
                f"Got {option}={name!r} for {path}; expected one of its scalar columns, {', '.join(plain) or 'of which there are none'}. Pass the name of one."
            )
        return name or next((column for column in usual if column in plain), None)

    def _reopen(self) -> None:
        files, start = find_parts(self._original), 0
        self._parts: list[Part] = []
        width: int | None = None
        kinds: set[str] = set()
        for path in files:
            schema = Part.open(path, 0, None, None).schema if width is None else None
            if schema is not None:
                width = self._width(path, schema)
            part = Part.open(path, start, self._column, width)
            self._check(part, width)
            kinds.add(_id_kind(part.schema, self._id_column))
            self._parts.append(part)
            start += part.rows
        if width is None or not start:
            raise ShapeError(f"Got no vectors in {self._shown}; expected at least one. Check the path and the column.")
        if len(kinds) > 1:
            raise DatabaseError(
                f"Got ids of several types in {self._shown} ({', '.join(sorted(kinds))}); expected one type. Write its files with one schema."
            )
        self.n, self.dim, self._id_type = start, width, kinds.pop()

    def _width(self, path: Path, schema: pa.Schema) -> int | None:
        """Return the width of a file's vectors, or of its first vector if lists have no fixed size; None if no row has one."""
        if self._column not in schema.names:
            return None  # :meth:`_check` raises
        kind = schema.field(self._column).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        rows = Part.open(path, 0, self._column, None)
        for _, piece in rows.pieces([self._column], 0, 1024):
            lengths = piece.column(0).drop_null().value_lengths()
            if len(lengths):
                return int(lengths[0].as_py())
        return None

    def _check(self, part: Part, width: int | None) -> None:
        names = [name for name in (self._column, self._id_column, self._modality) if name is not None]
        missing = [name for name in names if part.schema.names.count(name) != 1]
        if missing:
            raise DatabaseError(
                f"Got {part.path} without exactly one column {missing[0]!r}; expected the same columns in all files. Write the files with one schema."
            )
        kind = part.schema.field(self._column).type
        if not is_vectors(kind) or (pa.types.is_fixed_size_list(kind) and width not in (None, kind.list_size)):
            raise DatabaseError(
                f"Got {kind} in {part.path}:{self._column}; expected lists of {width} floating-point numbers as in the first file. "
                "Write the files with one schema."
            )

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> DatabaseInfo:
        """Return a description of the table."""
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
        """Return the note from the hidden folder; after :meth:`drop_old`, the one that the new files keep in their metadata."""
        if self._stage is not Stage.UNTOUCHED:
            return super().note()
        try:
            note = json.loads((self._parts[0].schema.metadata or {}).get(MARK_KEY.encode(), b"{}"))
            return {str(key): str(value) for key, value in note.items()}
        except (ValueError, AttributeError, RecursionError):
            return {}

    def _count_old(self) -> int:
        if all(part.valid is not None for part in self._parts):
            return sum(part.valid or 0 for part in self._parts)
        return sum(int(piece.valid.sum()) for piece in self._pieces(0, 1024, True))

    def _pieces(self, after: int, batch: int, vectors: bool) -> Iterator[Piece]:
        names = [name for name in (self._id_column, self._modality) if name is not None]
        names += [self._column] if vectors else []
        for part in self._parts:
            if part.start + part.rows <= after:
                continue
            for start, piece in part.pieces(list(dict.fromkeys(names)), after, batch):
                with reading(part.path, pa.ArrowException):  # damage may only show when values are read
                    yield self._piece(part, start, piece, vectors)

    def _piece(self, part: Part, start: int, piece: pa.RecordBatch, vectors: bool) -> Piece:
        column = piece.column(self._column) if vectors else None
        valid, matrix = np.ones(len(piece), bool), None
        if column is not None:
            valid, matrix = self._matrix(part, start, column)
        modalities = None
        if self._modality is not None:
            modalities = _decoded(piece.column(self._modality)).cast(pa.large_string())
        return Piece(start, self._ids(part, start, piece), valid, matrix, modalities)

    def _ids(self, part: Part, start: int, piece: pa.RecordBatch) -> pa.Array:
        if self._id_column is None:
            return pa.array(np.arange(start, start + len(piece)))
        ids = _decoded(piece.column(self._id_column))
        if ids.null_count:
            row = start - part.start + int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise DatabaseError(
                f"Got a row without id, row {row} of {part.path}; expected an id in each row. Fill it in, or pass another column as ids=…."
            )
        if self._id_type == "uuid":
            return uuid_texts(ids)
        if self._id_type == "text":
            return ids.cast(pa.large_string())
        return ids.cast(pa.uint64() if self._id_type == "uint64" else pa.int64())

    def _matrix(self, part: Part, start: int, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = column if valid.all() else column.drop_null()
        lengths = None if pa.types.is_fixed_size_list(column.type) else column.value_lengths()
        odd = None if lengths is None else np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != self.dim)
        values = column.flatten()
        if values.null_count or (odd is not None and len(odd)):
            raise ShapeError(
                f"Got a vector of another width than {self.dim}, or with missing numbers, among the rows {start - part.start} to "
                f"{start - part.start + len(valid) - 1} of {part.path}:{self._column}; expected {self.dim} numbers in each row. Drop or re-encode such rows."
            )
        flat = values.to_numpy(zero_copy_only=False).reshape(-1, self.dim)
        return valid, np.array(flat, np.float32)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _needed_bytes(self, dim: int, size: int) -> int:
        return 2 * self.n * dim * size + sum(part.others for part in self._parts)

    def _build(self, new: RowVectors) -> None:
        is_folder = self._place.path.is_dir()
        with atomic_path(self._place.other, force=True, directory=is_folder, foreign=lambda folder: None) as temporary:
            rewrite(self._place.path, temporary, self._parts, self._write_parts)

    def _write_parts(self, new_files: list[tuple[Part, Path]]) -> None:
        """Write the new files, in this process or with :attr:`spread`."""
        numbers = {part.path: number for number, part in enumerate(self._parts)}
        jobs = [(numbers[part.path], target) for part, target in new_files]
        if self.spread is not None:
            self.spread(jobs)
            return
        for number, target in jobs:
            self.write_part(number, target)

    def write_part(self, number: int, target: Path) -> int:
        """Write the new version of one file of the data set, atomically; return its number of rows.

        Parameters
        ----------
        number : int
            Index of the file in the data set.
        target : Path
            Path of the new file.
        """
        part, new, note = self._parts[number], self._new_vectors(), self._record().note
        metadata = {MARK_KEY.encode(): json.dumps(dict(note)).encode()}
        space = Space(model=note.get("model") or None, dim=new.dim)
        if space.model:
            metadata[SPACE_KEY.encode()] = json.dumps(space.to_dict()).encode()
        columns = Columns(part.schema, self._column, self._id_column)
        schema, place, _ = output_schema(
            columns, dim=new.dim, dtype=new.dtype, has_ids=False, id_type=pa.string(), name=None
        )
        field = schema.field(place)
        own = {key: value for key, value in (field.metadata or {}).items() if key.decode() != SPACE_KEY}
        kept = {key: value for key, value in (schema.metadata or {}).items() if key.decode() != SPACE_KEY}
        schema = schema.set(place, field.with_metadata(own or None)).with_metadata({**kept, **metadata})

        def lists(start: int, stop: int, kind: pa.DataType) -> pa.Array:
            written = new.written(start, stop)
            rows = new.read(start + np.flatnonzero(written)).astype(new.dtype, copy=False)
            return _lists(rows, written, kind)

        with atomic_path(target, force=True) as temporary:
            rewrite_part(part, temporary, self._column, schema, lists)
        return part.rows

    def ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows: whole files, or some row groups of a file that is larger; see :meth:`Partitioned.ranges`."""
        for part in self._parts:
            start = part.start
            for rows in part.groups() if part.rows > most else ():
                if rows + part.start - start >= most:
                    yield start, part.start + rows
                    start = part.start + rows
            if start < part.start + part.rows:
                yield start, part.start + part.rows

    def revise(self, start: int, stop: int, batch: int, change: Change) -> list[WrittenFile]:
        """Write new vectors by row number, then mark the rows as written; see :meth:`Partitioned.revise`."""

        def changed() -> Iterator[tuple[PairedBlock, tuple[np.ndarray, np.ndarray] | None]]:
            for block in run_ahead(self.scan_pairs(batch=batch, after=start, stop=stop)):
                yield block, change(block)

        for block, result in run_ahead(changed()):
            if result is not None:
                which, vectors = result
                self.write(block.ids if which.all() else block.ids.filter(pa.array(which)), vectors)
        self.flush()
        return []

    def take(self, files: Sequence[WrittenFile]) -> int:
        """Do nothing: the workers' files are already in place."""
        return 0


def _choose_column(schema: pa.Schema, column: str | None, path: str) -> str:
    """Return the name of the column of vectors. Raises ParameterError, DatabaseError."""
    candidates: list[str] = [field.name for field in schema if is_vectors(field.type)]
    if column is None:
        if len(candidates) != 1:
            raise ParameterError(
                f"Got {len(candidates)} columns of vectors in {path} ({', '.join(candidates) or 'none'}); expected exactly one, or the name of one. Pass column=…."
            )
        return candidates[0]
    if column not in schema.names:
        raise ParameterError(
            f"Got column={column!r} for {path}; expected one of its columns of vectors, {', '.join(candidates) or 'of which there are none'}. Pass the name of one."
        )
    if column not in candidates:
        raise DatabaseError(
            f"Got {schema.field(column).type} in {path}:{column}; expected lists of floating-point numbers. Pass another column=…."
        )
    return column


def _id_kind(schema: pa.Schema, column: str | None) -> str:
    if column is None:
        return "int"
    kind: pa.DataType = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(kind):
        return "uint64" if pa.types.is_uint64(kind) else "int"
    if is_uuids(kind):
        return "uuid"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    raise DatabaseError(
        f"Got ids of type {kind} in {column!r}; expected integers, strings or UUIDs. Pass another column as ids=…."
    )


def _decoded(column: pa.Array) -> pa.Array:
    """Return a column without dictionary encoding."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _lists(vectors: np.ndarray, has_vector: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return vectors as an array of lists, with null for rows without a vector."""
    mask = None if has_vector.all() else pa.array(~has_vector)
    if pa.types.is_fixed_size_list(kind):
        if mask is not None:  # in a fixed-size list, a null row also takes up space for its numbers
            full = np.zeros((len(has_vector), vectors.shape[1]), vectors.dtype)
            full[has_vector] = vectors
            vectors = full
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind, mask=mask)
    large = pa.types.is_large_list(kind)
    ends = np.zeros(len(has_vector) + 1, np.int64 if large else np.int32)
    np.cumsum(has_vector * vectors.shape[1], out=ends[1:])
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(pa.array(ends), pa.array(vectors.reshape(-1)), type=kind, mask=mask)
