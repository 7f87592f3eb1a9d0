"""Readers of ``.csv`` and ``.jsonl`` files, for small data edited by hand; files are read into memory."""

from __future__ import annotations

import csv
import json
import re
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.ids import MAX_ID_BYTES, to_ids
from congruence.errors import CorruptFileError, DtypeError, IdError, ParameterError, ShapeError
from congruence.stores._base import BATCH, Source, check_all_rows, missing_key, slice_ids
from congruence.stores._columns import Columns, Rows, list_array
from congruence.stores._space_file import read_sidecar
from congruence.stores.ids import arrow_ids
from congruence.stores.reading import reading


_ID_NAMES = ("id", "ids")
_VECTOR_NAMES = ("vector", "embedding")


class _TextSource(Source):
    """Rows held in memory."""

    _matrix: np.ndarray

    def _keep(
        self, path: str | Path, rows: list[list[float]], names: list[str | int | None] | None, ids: pa.Array | None
    ) -> None:
        if not rows or not rows[0]:
            raise ShapeError(f"Got no vectors in {path}; expected rows of numbers. Pass a file with vectors.")
        self._file, self.files = str(path), (Path(path),)
        self._matrix = np.array(rows, dtype=np.float64)
        self.n, self.dim = self._matrix.shape
        self.dtype = self._matrix.dtype
        self._ids = arrow_ids(to_ids(names, f"ids of {path}")) if names is not None else ids
        self.has_ids = self._ids is not None
        self.space = read_sidecar(Path(path))

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield ``(ids, vectors)`` blocks; see :meth:`Source.scan`."""
        for start in range(after, self.n, batch):
            block = self._matrix[start : start + batch].copy()
            yield slice_ids(self._ids, start, start + len(block)), block

    def scan_table(
        self, after: int = 0, batch: int = BATCH
    ) -> Iterator[tuple[pa.Array | None, np.ndarray, Rows | None]]:
        """Yield ``(ids, vectors, rows)`` blocks; see :meth:`Source.scan_table`. The other columns are read from the file again."""
        row, lines = after, islice(self._lines(), after, None)
        for ids, block in self.scan(after, batch):
            piece = list(islice(lines, len(block)))
            check_all_rows(row + len(piece), row + len(block), self.path)  # the file may have changed
            yield ids, block, self._rows(piece, block)
            row += len(block)

    @abstractmethod
    def _lines(self) -> Iterator[object]:
        """Iterate over the parsed lines of the file."""

    @abstractmethod
    def _rows(self, lines: list[Any], vectors: np.ndarray) -> Rows:
        """Return lines as rows of a table, with these vectors."""


def _read_csv(path: str | Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the header and an iterator over (line number, cells)."""
    # Spreadsheets may write a byte order mark, which would become part of the first name.
    with reading(path, UnicodeDecodeError, csv.Error), open(path, newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream)
        try:
            lines = [(reader.line_num, cells) for cells in reader if cells]
        except csv.Error as error:
            if "field limit" not in str(error):
                raise
            raise IdError(
                f"Got a cell of more than {csv.field_size_limit():,} characters near line {reader.line_num} of {path}; expected shorter cells (an id "
                f"may have at most {MAX_ID_BYTES:,} bytes). Shorten it, or store the table as .parquet."
            ) from None
    if not lines:
        raise ShapeError(f"Got an empty file, {path}; expected a header and rows. Write the file again.")
    return lines[0][1], iter(lines[1:])


class CsvSource(_TextSource):
    """Rows of a ``.csv`` with a header: an optional ``id`` column, and one column per dimension.

    ``key``: common prefix of the names of the vector columns; by default all columns except the id column; ``ids``:
    ids, or the column that holds them; by default ``id`` or ``ids``, if there is one; ``False`` for none.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        self.path = f"{path}:{key}" if key else str(path)
        header, lines = _read_csv(path)
        id_name = ids if isinstance(ids, str) else None
        if id_name is None:  # the id column is never a dimension, even if its ids are not used
            id_name = next((name for name in _ID_NAMES if name in header), None)
        elif id_name not in header:
            raise missing_key(id_name, path, {name: "" for name in header}, "id column")
        wanted = [j for j, name in enumerate(header) if name != id_name and (key is None or name.startswith(key))]
        if not wanted:
            raise missing_key(key, path, {name: "" for name in header}, "column")
        self._check_header([header[j] for j in wanted])
        named = id_name is not None and (ids is None or isinstance(ids, str))
        id_column = header.index(str(id_name)) if named else None
        rows: list[list[float]] = []
        names: list[str | int | None] = []
        for number, cells in lines:
            if len(cells) != len(header):
                raise ShapeError(
                    f"Got {len(cells)} cells in line {number} of {path}; expected {len(header)} as in the header. "
                    "Correct the line."
                )
            bad = next((j for j in wanted if not _is_number(cells[j])), None)
            if bad is not None:
                raise DtypeError(
                    f"Got {short(cells[bad])!r} in line {number}, column {short(header[bad])!r} of {path}; expected a number. Correct this cell, or name the vector columns' common prefix as path:prefix."
                )
            rows.append([float(cells[j]) for j in wanted])
            if id_column is not None:
                names.append(cells[id_column])
        self._keep(path, rows, names if named else None, ids if isinstance(ids, pa.Array) else None)
        self._columns = self._describe(header, wanted, key, id_name if named else None)

    def _describe(self, header: list[str], wanted: list[int], key: str | None, id_name: str | None) -> Columns:
        """Return the columns of the file as a table; the vector columns become one column, at the position of the first of them."""
        others = {name for j, name in enumerate(header) if j not in wanted}
        name = (key or "").rstrip("_-. ") or "vector"
        while name in others:
            name += "_"
        self._places = [j for j in range(len(header)) if j not in wanted or j == wanted[0]]
        self._vector = self._places.index(wanted[0])
        fields = [pa.field(header[j], pa.string()) for j in self._places]
        fields[self._vector] = pa.field(name, pa.list_(pa.float64(), self.dim))
        return Columns(pa.schema(fields), name, id_name, tuple(header[j] for j in wanted))

    @property
    def columns(self) -> list[Columns]:
        """Columns of the file; all but the vectors are text."""
        return [self._columns]

    def _lines(self) -> Iterator[list[str]]:
        return (cells for _, cells in _read_csv(self._file)[1])

    def _rows(self, lines: list[list[str]], vectors: np.ndarray) -> Rows:
        arrays = [pa.array([cells[j] for cells in lines], pa.string()) for j in self._places]
        arrays[self._vector] = list_array(vectors, self._columns.schema.field(self._vector).type)
        return pa.record_batch(arrays, schema=self._columns.schema)

    def _check_header(self, wanted: list[str]) -> None:
        """Raise an error if the first line is data, or if there is an unnamed column, such as the index that pandas writes."""
        if "" in wanted:
            raise ParameterError(
                f"Got a column without a name in {self.path}; expected a name for each (pandas writes its index without one). Save the file with "
                "index=False, or name the vector columns' common prefix as path:prefix."
            )
        # pandas names columns without names 0, 1, 2, …
        if all(_is_number(name) for name in wanted) and wanted != [str(j) for j in range(len(wanted))]:
            raise ParameterError(
                f"Got numbers in the first line of {self.path}; expected a header with column names. Add a header line; "
                "otherwise the first vector would be lost."
            )


#: Stricter than :class:`float`, which also accepts underscores, for example.
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|inf|infinity|nan)\s*", re.ASCII | re.I)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with reading(path, UnicodeDecodeError), open(path, encoding="utf-8-sig") as stream:
        lines = stream.readlines()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CorruptFileError(
                    f"Got line {number} of {path} that is not JSON ({error}); expected one object per line. Correct this line."
                ) from None
            if not isinstance(record, dict):
                raise CorruptFileError(
                    f"Got line {number} of {path} that is not a JSON object; expected one object per line. Correct this line."
                )
            yield number, record


class JsonlSource(_TextSource):
    """Rows of a ``.jsonl``: one object per line, with a list of numbers and an optional id.

    ``key``: field of the vector; ``vector`` or ``embedding`` by default; ``ids``: ids, or the field that holds them; by
    default ``id`` or ``ids``, if there is one; ``False`` for none.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        self.path = f"{path}:{key}" if key else str(path)
        id_name = ids if isinstance(ids, str) else None
        rows: list[list[float]] = []
        names: list[str | int | None] = []
        for number, record in _read_jsonl(path):
            if key is None:
                key = next((name for name in _VECTOR_NAMES if name in record), None)
            if ids is None and not rows:
                id_name = next((name for name in _ID_NAMES if name in record), None)
            if key is None:
                raise missing_key(None, path, {name: "" for name in record}, "field")
            if key not in record:
                raise missing_key(key, f"line {number} of {path}", {name: "" for name in record}, "field")
            vector = record[key]
            # Types are compared exactly, since bool is a subclass of int.
            if not isinstance(vector, list) or not all(type(x) in (int, float) for x in vector):
                raise DtypeError(
                    f"Got no list of numbers as {key!r} in line {number} of {path}; expected one. Correct this line."
                )
            if rows and len(vector) != len(rows[0]):
                raise ShapeError(
                    f"Got {len(vector)} numbers in line {number} of {path}; expected {len(rows[0])} as in the first. Correct this line."
                )
            try:
                rows.append([float(x) for x in vector])
            except OverflowError:
                raise DtypeError(
                    f"Got a number beyond the range of float64 in line {number} of {path}; expected a smaller one. Correct this line."
                ) from None
            if id_name is not None:
                if id_name not in record and not names:
                    raise ParameterError(
                        f"Got no {id_name!r} in line {number} of {path}; expected one per line. Add it to this line."
                    )
                name = record.get(id_name)
                if name is not None and type(name) not in (str, int):
                    raise IdError(
                        f"Got {json.dumps(name)[:50]} as {id_name!r} in line {number} of {path}; "
                        "expected text or a whole number. Correct this line."
                    )
                names.append(name)
        self._keep(path, rows, names if id_name is not None else None, ids if isinstance(ids, pa.Array) else None)
        self._key, self._id_name = str(key), id_name

    @cached_property
    def columns(self) -> list[Columns]:
        """Fields of the objects; types are inferred from all objects."""
        records = list(self._lines())
        kinds: dict[str, pa.DataType] = {}
        mixed = []
        for name in dict.fromkeys(name for record in records for name in record):
            try:
                vector = name == self._key
                values = [] if vector else [record.get(name) for record in records]
                kinds[name] = pa.list_(pa.float64(), self.dim) if vector else pa.array(values).type
            except (pa.ArrowException, OverflowError):
                kinds[name] = pa.binary()
                mixed.append(name)
        return [Columns(pa.schema(kinds.items()), self._key, self._id_name, records=True, mixed=tuple(mixed))]

    def _lines(self) -> Iterator[dict[str, object]]:
        return (record for _, record in _read_jsonl(self._file))

    def _rows(self, lines: list[dict[str, Any]], vectors: np.ndarray) -> Rows:
        return lines


def read_csv_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read one column of a ``.csv`` as an object array of str."""
    header, lines = _read_csv(path)
    if key not in header:
        raise missing_key(key, path, {name: "" for name in header}, "column")
    place = header.index(key)
    column = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise ShapeError(
                f"Got {len(cells)} cells in line {number} of {path}; expected {len(header)} as in the header. "
                "Correct the line."
            )
        column.append(cells[place])
    return np.array(column, dtype=object)


def read_jsonl_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read one field of a ``.jsonl`` as an object array of Python values; None where it is null or missing."""
    values: list[object] = []
    for number, record in _read_jsonl(path):
        if key not in record and not values:
            raise missing_key(key, f"line {number} of {path}", {name: "" for name in record}, "field")
        values.append(record.get(str(key)))
    return np.fromiter(values, object, len(values))


def read_txt_column(path: str | Path, key: str | None) -> np.ndarray:
    """Read the lines of a text file as an object array of str."""
    if key is not None:
        raise ParameterError(
            f"Got key {key!r} for {path}; expected none, since a .txt file has one entry per line. Pass the path alone."
        )
    with reading(path, UnicodeDecodeError):
        text = Path(path).read_text(encoding="utf-8-sig")
    # Not splitlines(), which would also break at form feeds and Unicode's separators.
    return np.array(text.removesuffix("\n").split("\n") if text else [], dtype=object)
