"""``.csv`` and ``.jsonl``, for small data edited by hand; both in memory."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.ids import MAX_ID_BYTES, to_ids
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, DtypeError, IdError, ParameterError, ShapeError
from congruence.io._base import read_sidecar
from congruence.io.columns import Columns, TableRows, is_list
from congruence.io.ids import arrow_ids
from congruence.io.nested import is_vector, records_of, value_at, values_of, with_value
from congruence.io.reading import delimiter_of, missing_key, read_lines, reading
from congruence.io.tables import MemoryTable, TableSink, TableSource, another_width, list_array

if TYPE_CHECKING:
    from congruence.io._base import Block

_ID_NAMES = ("id", "ids")
_VECTOR_NAMES = ("vector", "embedding", "values")

#: Stricter than ``float``, which also accepts underscores, for example; it takes linear time.
NUMBER = re.compile(r"\s*[-+]?(\d+(?:\.\d*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|inf|infinity|nan)\s*", re.ASCII | re.I)


# ------------------------------------------------------------------ lines


def _read_csv(path: str | Path, most: int | None = None) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """Return the header, line number and cells of each row or of ``most``, and the numbers' decimal separator."""
    with reading(path, csv.Error):
        lines = read_lines(path)
        first = next(lines, "")
        delimiter = delimiter_of(first)
        reader = csv.reader(chain([first], lines), delimiter=delimiter)
        try:
            rows = list(islice(((reader.line_num, cells) for cells in reader if cells), most))
        except csv.Error as error:
            if "field limit" not in str(error):
                raise
            problem = f"Got a cell of more than {csv.field_size_limit():,} characters near line {reader.line_num}"
            problem += f" of {path} (an id may have at most {MAX_ID_BYTES:,} bytes)."
            raise IdError(problem, "Shorten it, or store the table as .parquet.") from None
    if not rows:
        raise ShapeError(f"The file {path} is empty; expected a header and rows.", "Write the file again.")
    (_, header), *rows = rows
    for number, cells in rows:
        if len(cells) != len(header):
            problem = f"Got {len(cells)} cells in line {number} of {path}; expected {len(header)} as in the header."
            raise ShapeError(problem, "Correct the line.")
    return header, rows, "." if delimiter == "," else ","


def _read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                record, why = json.loads(line), ""
            except (ValueError, RecursionError) as error:
                record, why = None, f" ({error})"
            if not isinstance(record, dict):
                raise CorruptFileError(f"Line {number} of {path} is not a JSON object{why}.", "Correct this line.")
            yield number, record


# ------------------------------------------------------------------ writers


class _TextSink(TableSink):
    """Base of both writers; the space is written to ``<name>.space.json`` if it describes all vectors of the file."""

    sidecar = True

    def __enter__(self) -> Self:
        if self.columns and self.column_out is not None:
            self.space = Space()
        return super().__enter__()


class CsvSink(_TextSink):
    """Writer of a ``.csv``: the source's columns, with one per dimension of the vectors; or ``id``, ``v0``, ….

    The columns of the vectors keep the numbering of a source ``.csv``. If they were a single column ``embedding``, they
    are called ``embedding_0``, ``embedding_1``, ….
    """

    def _holds(self, kind: pa.DataType) -> bool:
        return _has_text_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        schema, source = self._make_schema(), self.columns[0] if self.columns else None
        header: list[str] = []
        for k, field in enumerate(schema):
            if k == self._layout.at:
                kept = () if source is None or self.column_out else _continued(source.cells, self.dim)
                unnamed = source is None and not self.column_out
                header += kept or [f"v{j}" if unnamed else f"{field.name}_{j}" for j in range(self.dim)]
            elif source is not None and field.name == source.vector:
                if not source.cells and not pa.types.is_fixed_size_list(field.type):
                    problem = f"Got `column_out={self.column_out!r}` for {self.path} and lists of variable size."
                    raise ParameterError(problem, "Write a .parquet or .jsonl.")
                header += source.cells or [f"{field.name}_{j}" for j in range(field.type.list_size)]
            elif field.name not in self.left_out:
                header.append(field.name)
        if len(set(header)) < len(header) and not (source and len(set(source.cells)) < len(source.cells)):
            twice = sorted({name for name in header if header.count(name) > 1})
            problem = f"Got several columns named {', '.join(twice)} for {self.path}."
            raise ParameterError(problem, "Pass `column_out=…` with an unused name.")
        file = stack.enter_context(open(temporary, "w", newline="", encoding="utf-8"))
        self._writer = csv.writer(file, delimiter="\t" if self.path.suffix.lower() == ".tsv" else ",")
        self._writer.writerow(header)

    def _write_group(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            parts: list[Iterable[list[str]]] = []
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if is_list(field.type) and field.name not in self.left_out:
                    # str gives the shortest text that reads back as the same number.
                    rows = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
                    parts.append([str(x) for x in row] for row in rows)
                elif field.name not in self.left_out:
                    parts.append(["" if text is None else text] for text in _texts(column))
            self._writer.writerows([cell for part in cells for cell in part] for cells in zip(*parts, strict=True))


class JsonlSink(_TextSink):
    """Writer of a ``.jsonl``: the source's fields and the vector on each line; or ``id`` and ``vector``."""

    def _holds(self, kind: pa.DataType) -> bool:
        return all(one.records for one in self.columns) or _has_json_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        # The objects of a ``.jsonl`` are kept as they are, whatever their types.
        self.columns = [replace(one, mixed=()) for one in self.columns]
        self._make_schema()
        self._file = stack.enter_context(open(temporary, "w", encoding="utf-8"))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        if not isinstance(rows, list):
            super()._write(ids, vectors, rows)
            return
        name = self._schema.field(self._layout.at).name
        new = ids.to_pylist() if ids is not None and self._layout.new_ids else None
        for k, (record, vector) in enumerate(zip(rows, _short_numbers(vectors), strict=True)):
            mapped = record | {name: vector} if self.column_out else with_value(record, name, vector)
            self._dump(({} if new is None else {"id": new[k]}) | mapped)

    def _write_group(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            fields: dict[str, list[object]] = {}
            for k, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
                if k == self._layout.at:
                    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
                    fields[field.name] = list(_short_numbers(vectors))
                elif field.name not in self.left_out:
                    # Types such as times and decimals become text.
                    plain = _is_plain(column.type) or pa.types.is_nested(column.type)
                    fields[field.name] = column.to_pylist() if plain else list(_texts(column))
            for values in zip(*fields.values(), strict=True):
                self._dump(dict(zip(fields, values, strict=True)))

    def _dump(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record, default=str) + "\n")


def _short_numbers(vectors: np.ndarray) -> Iterator[list[float]]:
    """Yield rows as numbers whose text is the shortest that reads back as the same number."""
    return ([float(str(x)) for x in row] for row in vectors)


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
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(kind) or "binary" in str(kind) or isinstance(kind, pa.BaseExtensionType):
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
    return _has_json_form(kind.value_type) if is_list(kind) else _is_plain(kind) or _has_text_form(kind)


def _texts(column: pa.Array) -> list[str | None]:
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return column.cast(pa.string()).to_pylist()


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether Python's values of a type are those of JSON."""
    text = kind in (pa.null(), pa.bool_(), pa.string(), pa.large_string())
    return text or pa.types.is_integer(kind) or pa.types.is_floating(kind)


# ------------------------------------------------------------------ readers


class CsvSource(TableSource):
    """Rows of a ``.csv`` or ``.tsv`` with a header: an optional ``id`` column, and one column per dimension.

    ``key`` is the common prefix of the names of the vector columns; by default all columns except the id column. Or it
    is the name of a column of JSON lists, by default the only one. Where the cells are not separated by commas, the
    numbers may have decimal commas.
    """

    key, sink, streams, shapes = "prefix", CsvSink, False, None  # type: ignore[assignment]

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        header, lines, point = _read_csv(path)
        # The id column is never a dimension, even if its ids are not used.
        id_name = ids if isinstance(ids, str) else next((name for name in _ID_NAMES if name in header), None)
        if id_name is not None and id_name not in header:
            raise missing_key(id_name, path, dict.fromkeys(header, ""), "id column")
        free = [j for j, name in enumerate(header) if name != id_name]
        lists = [j for j in free if lines and lines[0][1][j].lstrip().startswith("[")]
        wanted = [j for j in free if header[j] == key] or [j for j in free if key is None or header[j].startswith(key)]
        if key is None and lists:
            wanted = lists
        if not wanted or (key is None and len(lists) > 1):
            raise missing_key(key, path, dict.fromkeys(header, ""), "column")
        cells = () if len(wanted) == 1 and wanted[0] in lists else tuple(header[j] for j in wanted)
        _check_header(cells, path)
        if cells:
            vectors = np.array([_cells_of(line, wanted, header, point, f"line {k} of {path}") for k, line in lines])
        else:
            name = header[wanted[0]]
            rows: list[list[float]] = []
            found = [_json_of(line[wanted[0]]) for _, line in lines]
            for (k, _), vector in zip(lines, found, strict=True):
                rows.append(_vector_of(vector, name, f"line {k} of {path}", found))
            vectors = np.array(rows)
        others = {j: name for j, name in enumerate(header) if j not in {*wanted}}
        name = ((key or "").rstrip("_-. ") or "vector") if cells else header[wanted[0]]
        while name in others.values():
            name += "_"
        # The columns of the vectors become one, in the place of the first of them.
        texts = {j: pa.array([line[j] for _, line in lines], pa.string()) for j in others}
        columns = dict(sorted({**texts, wanted[0]: _as_lists(vectors, path)}.items()))
        batch = pa.record_batch([*columns.values()], [others.get(j, name) for j in columns])
        own = id_name if ids is None else ids
        super().__init__(path, name, False if own is None else own, table=MemoryTable(path, batch))
        self.path, self.space = f"{path}:{key}" if key else str(path), read_sidecar(Path(path))
        self._columns = replace(self._columns, cells=cells)

    @classmethod
    def listing(cls, path: str | Path) -> dict[str, str]:
        """Return the names of the columns, each with what it holds in the first row."""
        header, lines, point = _read_csv(path, 2)
        first = [cell.replace(point, ".") for cell in lines[0][1]] if lines else [""] * len(header)
        kinds = ["list" if cell[:1] == "[" else "number" if NUMBER.fullmatch(cell) else "text" for cell in first]
        return dict(zip(header, kinds, strict=True))

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        """Read one column as an object array of str."""
        header, lines, _ = _read_csv(path)
        if key not in header:
            raise missing_key(key, path, dict.fromkeys(header, ""), "column")
        place = header.index(key)
        return np.array([cells[place] for _, cells in lines], dtype=object)


def _cells_of(line: list[str], wanted: list[int], header: list[str], point: str, place: str) -> list[float]:
    """Return the numbers in some cells of a line."""
    cells = [line[j].replace(point, ".") for j in wanted]
    bad = next((j for j, cell in zip(wanted, cells, strict=True) if not NUMBER.fullmatch(cell)), None)
    if bad is not None:
        where, _, path = place.partition(" of ")
        problem = f"Got {short(line[bad])!r} in {where}, column {short(header[bad])!r} of {path}."
        raise DtypeError(problem, "Correct this cell, or name the vector columns' common prefix as path:prefix.")
    return [float(cell) for cell in cells]


def _json_of(cell: str) -> object:
    """Return the list in a cell, in JSON or as NumPy shows an array, between whose numbers are spaces."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        words = found[1].split() if (found := re.fullmatch(r"\[([^\]]+)\]", cell.strip())) else []
        return [float(word) for word in words] if words and all(map(NUMBER.fullmatch, words)) else None


def _vector_of(vector: Any, name: str, place: str, every: list[Any]) -> list[float]:
    """Return a JSON list of numbers, of the width of the first of ``every`` row."""
    if vector != [] and not is_vector(vector):
        raise DtypeError(f"Got no list of numbers as {short(name)!r} in {place}.", "Correct this line.")
    if len(vector) != len(every[0]):
        counts = Counter(len(one) for one in every if isinstance(one, list))
        raise another_width(len(vector), len(every[0]), place, counts)
    try:
        return [float(x) for x in vector]
    except OverflowError:
        raise DtypeError(f"Got a number beyond the range of float64 in {place}.", "Correct this line.") from None


def _check_header(cells: Sequence[str], path: str | Path) -> None:
    """Check that the first line is not data, and has no unnamed column, as the index that pandas writes."""
    if "" in cells:
        fix = "Save the file with index=False, or name the vector columns' common prefix as path:prefix."
        raise ParameterError(f"Got a column without a name in {path} (pandas writes its index without one).", fix)
    # pandas names columns without names 0, 1, 2, …
    if all(map(NUMBER.fullmatch, cells)) and list(cells) != [str(j) for j in range(len(cells))]:
        problem = f"Got numbers in the first line of {path}; expected a header with column names."
        raise ParameterError(problem, "Add a header line; otherwise the first vector would be lost.")


def _as_lists(vectors: np.ndarray, path: str | Path) -> pa.Array:
    if not vectors.size:
        raise ShapeError(f"Got no vectors in {path}.", "Pass a file with vectors.")
    return list_array(vectors, pa.list_(pa.float64(), vectors.shape[1]))


class JsonlSource(TableSource):
    """Rows of a ``.jsonl``: one object per line, with a list of numbers (``key``) and an optional id.

    Both may be inside of other objects: ``response.body.data[0].embedding``.
    """

    key, sink, streams, shapes = "field", JsonlSink, False, None  # type: ignore[assignment]

    #: What messages call a record.
    unit: ClassVar[str] = "line"

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        every, inner = self._load(path, key)
        lines = [*every]
        self._records = [record for _, record in lines]
        first = self._records[0] if lines else {}
        field = inner or next((name for name in _VECTOR_NAMES if isinstance(first.get(name, {}), list)), "")
        if lines and not field:
            vectors = [place for place, kind in values_of(first).items() if kind.endswith("numbers")]
            if len(vectors) != 1:
                raise missing_key(None, path, values_of(first), "field")
            field = vectors[0]
        id_name = ids if isinstance(ids, str) else None
        if ids is None:
            id_name = next((name for name in (*_ID_NAMES, "_id") if name in first), None)
        if id_name is not None and lines and self._at(first, id_name) is None and id_name not in first:
            problem = f"Got no {id_name!r} in {self.unit} {lines[0][0]} of {path}."
            raise ParameterError(problem, f"Add it to this {self.unit}.")
        found: list[Any] = []
        for number, record in lines:
            place = f"{self.unit} {number} of {path}"
            try:
                vector = value_at(record, field)
            except KeyError:
                raise missing_key(field, place, values_of(record), "field") from None
            found.append(vector)
        places = (f"{self.unit} {number} of {path}" for number, _ in lines)
        rows = [_vector_of(vector, field, place, found) for vector, place in zip(found, places, strict=True)]
        columns = {field: _as_lists(np.array(rows), path)}
        if id_name is not None:
            names = [self._at(record, id_name) for record in self._records]
            columns[id_name] = arrow_ids(to_ids(names, f"ids of {path}"))
        own = id_name or (ids if isinstance(ids, pa.Array) else False)
        super().__init__(path, field, own, table=MemoryTable(path, pa.record_batch(columns)))
        self.path, self.space = f"{path}:{key}" if key else str(path), read_sidecar(Path(path))

    @classmethod
    def _load(cls, path: str | Path, key: str | None) -> tuple[Iterator[tuple[int, dict[str, Any]]], str | None]:
        """Return the numbered records of a file, and the part of a key that is a path in each."""
        return _read_jsonl(path), key

    @staticmethod
    def _at(record: dict[str, Any], key: str) -> Any:
        """Return the value at a path, or None."""
        try:
            return value_at(record, key)
        except KeyError:
            return None

    @classmethod
    def listing(cls, path: str | Path) -> dict[str, str]:
        """Return the paths of the values in the first record, each with what it is."""
        first = next(cls._load(path, None)[0], None)
        return {} if first is None else values_of(first[1])

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        """Read one field as an object array of Python values; None where it is null or missing."""
        lines, inner = cls._load(path, key)
        values: list[object] = []
        for number, record in lines:
            value = None if inner is None else cls._at(record, inner)
            if value is None and not values and inner not in record:
                raise missing_key(key, f"{cls.unit} {number} of {path}", values_of(record), "field")
            values.append(value)
        return np.fromiter(values, object, len(values))

    @cached_property
    def columns(self) -> list[Columns]:
        kinds: dict[str, pa.DataType] = {}
        mixed = []
        for name in dict.fromkeys([*(name for record in self._records for name in record), self._key]):
            try:
                values = [] if name == self._key else [record.get(name) for record in self._records]
                kinds[name] = pa.list_(pa.float64(), self.dim) if name == self._key else pa.array(values).type
            except (pa.ArrowException, OverflowError, UnicodeEncodeError):
                kinds[name] = pa.binary()
                mixed.append(name)
        id_name = self._id_column if self._id_column in kinds else None
        return [Columns(pa.schema(kinds.items()), self._key, id_name, records=True, mixed=tuple(mixed))]

    def _scan(self, after: int, batch: int, *, table: bool) -> Iterator[Block]:
        for ids, block, _ in super()._scan(after, batch, table=False):
            yield ids, block, self._records[after : after + len(block)]
            after += len(block)


class JsonSource(JsonlSource):
    """Rows of a ``.json``: the objects in its list, which ``key`` may pass through as ``data.embedding``."""

    sink, unit = None, "item"  # type: ignore[assignment]

    @classmethod
    def _load(cls, path: str | Path, key: str | None) -> tuple[Iterator[tuple[int, dict[str, Any]]], str | None]:
        with reading(path, ValueError, RecursionError):
            found, inner = records_of(json.loads("".join(read_lines(path))), key)
        for number, record in enumerate(found, 1):
            if not isinstance(record, dict):
                raise CorruptFileError(f"Item {number} of {path} is not a JSON object.", "Correct this item.")
        return iter(enumerate(found, 1)), inner
