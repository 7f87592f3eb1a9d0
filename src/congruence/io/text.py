"""``.csv`` and ``.jsonl``, for small data edited by hand, and columns of ``.txt``; all in memory."""

from __future__ import annotations

import csv
import json
import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from congruence._utils.display import short
from congruence._utils.ids import MAX_ID_BYTES, to_ids
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, DtypeError, IdError, ParameterError, ShapeError
from congruence.io._base import Sink, Source, read_sidecar
from congruence.io.arrays import ArraySource
from congruence.io.columns import (
    Columns,
    TableRows,
    as_batch,
    check_column_out,
    common_columns,
    is_list,
    list_array,
    needs_ids,
)
from congruence.io.ids import arrow_ids
from congruence.io.reading import missing_key, reading

_ID_NAMES = ("id", "ids")
_VECTOR_NAMES = ("vector", "embedding")

#: Stricter than ``float``, which also accepts underscores, for example.
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|inf|infinity|nan)\s*", re.ASCII | re.I)


# ------------------------------------------------------------------ lines


def _read_csv(path: str | Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and line number and cells of each row."""
    # Spreadsheets may write a byte order mark, which would become part of the first name.
    with reading(path, UnicodeDecodeError, csv.Error), open(path, newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream)
        try:
            lines = [(reader.line_num, cells) for cells in reader if cells]
        except csv.Error as error:
            if "field limit" not in str(error):
                raise
            raise IdError(
                f"Got a cell of more than {csv.field_size_limit():,} characters near line {reader.line_num} of {path} "
                f"(an id may have at most {MAX_ID_BYTES:,} bytes).",
                "Shorten it, or store the table as .parquet.",
            ) from None
    if not lines:
        raise ShapeError(f"The file {path} is empty; expected a header and rows.", "Write the file again.")
    (_, header), *rows = lines
    for number, cells in rows:
        if len(cells) != len(header):
            raise ShapeError(
                f"Got {len(cells)} cells in line {number} of {path}; expected {len(header)} as in the header.",
                "Correct the line.",
            )
    return header, rows


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with reading(path, UnicodeDecodeError), open(path, encoding="utf-8-sig") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record, why = json.loads(line), ""
            except (ValueError, RecursionError) as error:
                record, why = None, f" ({error})"
            if not isinstance(record, dict):
                raise CorruptFileError(f"Line {number} of {path} is not a JSON object{why}.", "Correct this line.")
            yield number, record


def read_csv_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read one column of a ``.csv`` as an object array of str."""
    header, lines = _read_csv(path)
    if key not in header:
        raise missing_key(key, path, dict.fromkeys(header, ""), "column")
    place = header.index(key)
    return np.array([cells[place] for _, cells in lines], dtype=object)


def read_jsonl_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read one field of a ``.jsonl`` as an object array of Python values; None where it is null or missing."""
    values: list[object] = []
    for number, record in _read_jsonl(path):
        if key not in record and not values:
            raise missing_key(key, f"line {number} of {path}", dict.fromkeys(record, ""), "field")
        values.append(record.get(str(key)))
    return np.fromiter(values, object, len(values))


def read_txt_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read the lines of a text file as an object array of str."""
    if key is not None:
        raise ParameterError(
            f"Got key {key!r} for {path}; expected none, since a .txt file has one entry per line.",
            "Pass the path alone.",
        )
    with reading(path, UnicodeDecodeError):
        text = Path(path).read_text(encoding="utf-8-sig")
    # Not splitlines(), which would also break at form feeds and Unicode's separators.
    return np.array(text.removesuffix("\n").split("\n") if text else [], dtype=object)


# ------------------------------------------------------------------ writers


class _TextSink(Sink):
    """Base class of both writers; keeps the source's columns as far as the format can hold them."""

    sidecar = True
    keeps_columns = True

    def __enter__(self) -> Self:
        if self.columns and self.column_out is not None:
            self.space = Space()  # the sidecar describes a single set of vectors, and the file has two
        return super().__enter__()

    def _common(self) -> Columns | None:
        columns = common_columns(self.columns, self.path)
        check_column_out(self.column_out, columns, self.path)
        self._new_ids = needs_ids(columns, self.has_ids)
        return columns


class CsvSink(_TextSink):
    """Writer of a ``.csv``: the source's columns, with one per dimension of the vectors; or ``id``, ``v0``, ….

    The columns of the vectors keep the numbering of a source ``.csv``. If they were a single column ``embedding``, they
    are called ``embedding_0``, ``embedding_1``, ….
    """

    def _holds(self, kind: pa.DataType) -> bool:
        return _has_text_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        columns = self._common()
        header = ["id"] if self._new_ids else []
        if columns is None:
            header += _numbered(self.column_out, self.dim) if self.column_out else [f"v{j}" for j in range(self.dim)]
        else:
            for field in columns.schema:
                if field.name != columns.vector:
                    header += [field.name] if field.name not in self.left_out else []
                elif self.column_out is None:
                    header += _continued(columns.cells, self.dim) or _numbered(columns.vector, self.dim)
                else:
                    header += columns.cells or self._old_cells(field)
            if self.column_out is not None:
                header += _numbered(self.column_out, self.dim)
        if len(set(header)) < len(header) and not (columns and len(set(columns.cells)) < len(columns.cells)):
            twice = sorted({name for name in header if header.count(name) > 1})
            raise ParameterError(
                f"Got several columns named {', '.join(twice)} for {self.path}.",
                "Pass `column_out=…` with an unused name.",
            )
        self._writer = csv.writer(stack.enter_context(open(temporary, "w", newline="", encoding="utf-8")))
        self._writer.writerow(header)

    def _old_cells(self, field: pa.Field) -> list[str]:
        if not pa.types.is_fixed_size_list(field.type):
            raise ParameterError(
                f"Got `column_out={self.column_out!r}` for {self.path} and vectors in lists of variable size.",
                "Write a .parquet or .jsonl.",
            )
        return _numbered(field.name, field.type.list_size)

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        # str gives the shortest text that reads back as the same number.
        mapped = [[str(x) for x in row] for row in vectors]
        parts: list[object] = [[[name] for name in ids.to_pylist()]] if self._new_ids and ids is not None else []
        if rows is None:
            parts.append(mapped)
        else:
            batch, vector = as_batch(rows, self.columns[0].schema), self.columns[0].vector
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if field.name != vector:
                    texts = [] if field.name in self.left_out else _texts(column)
                    parts += [[["" if text is None else text] for text in texts]] if texts else []
                elif self.column_out is None:
                    parts.append(mapped)
                else:
                    old = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
                    parts.append([[str(x) for x in row] for row in old])
            parts += [] if self.column_out is None else [mapped]
        for cells in zip(*parts, strict=True):
            self._writer.writerow([cell for part in cells for cell in part])


class JsonlSink(_TextSink):
    """Writer of a ``.jsonl``: the source's fields and the vector on each line; or ``id`` and ``vector``."""

    def _holds(self, kind: pa.DataType) -> bool:
        return all(one.records for one in self.columns) or _has_json_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        columns = self._common()
        self._name = self.column_out or (columns.vector if columns else "vector")
        self._file = stack.enter_context(open(temporary, "w", encoding="utf-8"))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        names = ids.to_pylist() if self._new_ids and ids is not None else [None] * len(vectors)
        for name, row, record in zip(names, vectors, self._records(rows, len(vectors)), strict=True):
            line = {"id": name, **record} if self._new_ids else dict(record)
            line[self._name] = [float(str(x)) for x in row]
            self._file.write(json.dumps(line, default=str) + "\n")

    def _records(self, rows: TableRows | None, count: int) -> list[dict[str, object]]:
        if rows is None:
            return [{}] * count
        if isinstance(rows, list):
            return rows
        vector = self.columns[0].vector if self.column_out is None else None
        fields = [(f.name, c) for f, c in zip(rows.schema, rows.columns, strict=True) if f.name not in self.left_out]
        values = [
            [None] * count
            if name == vector
            # Types such as times and decimals become text.
            else column.to_pylist()
            if _is_plain(column.type) or pa.types.is_nested(column.type)
            else _texts(column)
            for name, column in fields
        ]
        return [dict(zip([name for name, _ in fields], row, strict=True)) for row in zip(*values, strict=True)]


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{j}" for j in range(count)]


def _continued(cells: tuple[str, ...], count: int) -> list[str]:
    """Return ``count`` names that continue the numbering of ``cells`` (e0, e1, …); empty if they have none."""
    if len(cells) == count:
        return list(cells)
    found = [re.fullmatch(r"(.*?)(\d+)", cell, re.DOTALL) for cell in cells]
    if not cells or found[0] is None:
        return []
    prefix, first = found[0][1], int(found[0][2])
    if list(cells) != [f"{prefix}{first + j}" for j in range(len(cells))]:
        return []
    return [f"{prefix}{first + j}" for j in range(count)]


def _has_text_form(kind: pa.DataType) -> bool:
    """Return whether a ``.csv`` cell can hold values of a type: anything but lists, structs and bytes."""
    if pa.types.is_dictionary(kind):
        return _has_text_form(kind.value_type)
    bytes_ = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    if pa.types.is_nested(kind) or any(test(kind) for test in bytes_) or isinstance(kind, pa.BaseExtensionType):
        return False
    try:
        pa.array([], kind).cast(pa.string())
    except pa.ArrowException:
        return False
    return True


def _has_json_form(kind: pa.DataType) -> bool:
    """Return whether JSON can hold values of a type: not bytes, nor maps, whose keys need not be text."""
    if pa.types.is_struct(kind):
        return all(_has_json_form(kind.field(k).type) for k in range(kind.num_fields))
    if is_list(kind):
        return _has_json_form(kind.value_type)
    return _is_plain(kind) or _has_text_form(kind)


def _texts(column: pa.Array) -> list[str | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()).to_pylist()


def _is_plain(kind: pa.DataType) -> bool:
    tests = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_large_string)
    return any(test(kind) for test in (*tests, pa.types.is_string))


# ------------------------------------------------------------------ readers


class _TextSource(ArraySource):
    """Rows held in memory."""

    names_ids, streams = True, False

    def _keep(
        self, path: str | Path, vectors: ArrayLike, names: list[str | int | None] | None, ids: pa.Array | None
    ) -> None:
        matrix = np.ascontiguousarray(vectors, dtype=np.float64)
        if not matrix.size:
            raise ShapeError(f"Got no vectors in {path}.", "Pass a file with vectors.")
        own = arrow_ids(to_ids(names, f"ids of {path}")) if names is not None else ids
        super().__init__(matrix, self.path, own, read_sidecar(Path(path)))
        self.files = (Path(path),)

    def _scan(
        self, after: int, batch: int, *, table: bool
    ) -> Iterator[tuple[pa.Array | None, np.ndarray, TableRows | None]]:
        for ids, block, _ in super()._scan(after, batch, table=table):
            yield ids, block, self._rows(after, block) if table else None
            after += len(block)

    @abstractmethod
    def _rows(self, start: int, vectors: np.ndarray) -> TableRows:
        """Return the rows of a table from ``start`` on, whose vectors are these."""


class CsvSource(_TextSource):
    """Rows of a ``.csv`` with a header: an optional ``id`` column, and one column per dimension.

    ``key`` is the common prefix of the names of the vector columns; by default all columns except the id column.
    """

    key, sink, read_column = "prefix", CsvSink, staticmethod(read_csv_column)

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        self.path = f"{path}:{key}" if key else str(path)
        header, lines = _read_csv(path)
        id_name = ids if isinstance(ids, str) else None
        if id_name is None:  # the id column is never a dimension, even if its ids are not used
            id_name = next((name for name in _ID_NAMES if name in header), None)
        elif id_name not in header:
            raise missing_key(id_name, path, dict.fromkeys(header, ""), "id column")
        wanted = [j for j, name in enumerate(header) if name != id_name and (key is None or name.startswith(key))]
        if not wanted:
            raise missing_key(key, path, dict.fromkeys(header, ""), "column")
        self._check_header([header[j] for j in wanted])
        named = id_name is not None and (ids is None or isinstance(ids, str))
        for number, cells in lines:
            bad = next((j for j in wanted if not _is_number(cells[j])), None)
            if bad is not None:
                raise DtypeError(
                    f"Got {short(cells[bad])!r} in line {number}, column {short(header[bad])!r} of {path}.",
                    "Correct this cell, or name the vector columns' common prefix as path:prefix.",
                )
        columns = list(zip(*(cells for _, cells in lines), strict=True)) or [()] * len(header)
        vectors = np.array([[float(text) for text in columns[j]] for j in wanted]).T
        names = list(columns[header.index(str(id_name))]) if named else None
        self._keep(path, vectors, names, ids if isinstance(ids, pa.Array) else None)
        # The columns of the vectors become one, in the place of the first of them.
        places = [j for j in range(len(header)) if j not in wanted or j == wanted[0]]
        name = (key or "").rstrip("_-. ") or "vector"
        while name in (header[j] for j in places if j != wanted[0]):
            name += "_"
        self._vector = places.index(wanted[0])
        self._texts = [pa.array(columns[j], pa.string()) for j in places]
        fields = [pa.field(header[j], pa.string()) for j in places]
        fields[self._vector] = pa.field(name, pa.list_(pa.float64(), self.dim))
        components = tuple(header[j] for j in wanted)
        self._columns = Columns(pa.schema(fields), name, id_name if named else None, components)

    @property
    def columns(self) -> list[Columns]:
        return [self._columns]

    def _rows(self, start: int, vectors: np.ndarray) -> TableRows:
        arrays = [texts.slice(start, len(vectors)) for texts in self._texts]
        arrays[self._vector] = list_array(vectors, self._columns.schema.field(self._vector).type)
        return pa.record_batch(arrays, schema=self._columns.schema)

    def _check_header(self, wanted: list[str]) -> None:
        """Check that the first line is not data, and has no unnamed column, as the index that pandas writes."""
        if "" in wanted:
            raise ParameterError(
                f"Got a column without a name in {self.path} (pandas writes its index without one).",
                "Save the file with index=False, or name the vector columns' common prefix as path:prefix.",
            )
        # pandas names columns without names 0, 1, 2, …
        if all(_is_number(name) for name in wanted) and wanted != [str(j) for j in range(len(wanted))]:
            raise ParameterError(
                f"Got numbers in the first line of {self.path}; expected a header with column names.",
                "Add a header line; otherwise the first vector would be lost.",
            )


class JsonlSource(_TextSource):
    """Rows of a ``.jsonl``: one object per line, with a list of numbers (``key``) and an optional id."""

    key, sink, read_column = "field", JsonlSink, staticmethod(read_jsonl_column)

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        self.path = f"{path}:{key}" if key else str(path)
        id_name = ids if isinstance(ids, str) else None
        rows: list[list[float]] = []
        names: list[str | int | None] = []
        self._records: list[dict[str, Any]] = []
        for number, record in _read_jsonl(path):
            place = f"line {number} of {path}"
            if key is None:
                key = next((name for name in _VECTOR_NAMES if name in record), None)
            if ids is None and not rows:
                id_name = next((name for name in _ID_NAMES if name in record), None)
            if key is None or key not in record:
                raise missing_key(key, path if key is None else place, dict.fromkeys(record, ""), "field")
            vector = record[key]
            # Types are compared exactly, since bool is a subclass of int.
            if not isinstance(vector, list) or not all(type(x) in (int, float) for x in vector):
                raise DtypeError(f"Got no list of numbers as {key!r} in {place}.", "Correct this line.")
            if rows and len(vector) != len(rows[0]):
                raise ShapeError(
                    f"Got {len(vector)} numbers in {place}; expected {len(rows[0])} as in the first.",
                    "Correct this line.",
                )
            try:
                rows.append([float(x) for x in vector])
            except OverflowError:
                raise DtypeError(
                    f"Got a number beyond the range of float64 in {place}.", "Correct this line."
                ) from None
            self._records.append(record)
            if id_name is not None:
                if id_name not in record and not names:
                    raise ParameterError(f"Got no {id_name!r} in {place}.", "Add it to this line.")
                name = record.get(id_name)
                if name is not None and type(name) not in (str, int):
                    raise IdError(
                        f"Got {json.dumps(name)[:50]} as {id_name!r} in {place}; expected text or a whole number.",
                        "Correct this line.",
                    )
                names.append(name)
        self._keep(path, rows, names if id_name is not None else None, ids if isinstance(ids, pa.Array) else None)
        self._key, self._id_name = str(key), id_name

    @cached_property
    def columns(self) -> list[Columns]:
        kinds: dict[str, pa.DataType] = {}
        mixed = []
        for name in dict.fromkeys(name for record in self._records for name in record):
            try:
                vector = name == self._key
                values = [] if vector else [record.get(name) for record in self._records]
                kinds[name] = pa.list_(pa.float64(), self.dim) if vector else pa.array(values).type
            except (pa.ArrowException, OverflowError):
                kinds[name] = pa.binary()
                mixed.append(name)
        return [Columns(pa.schema(kinds.items()), self._key, self._id_name, records=True, mixed=tuple(mixed))]

    def _rows(self, start: int, vectors: np.ndarray) -> TableRows:
        return self._records[start : start + len(vectors)]


class TxtSource(Source):
    """A ``.txt`` file, which holds labels alone, one per line."""

    has_vectors, read_column = False, staticmethod(read_txt_column)
