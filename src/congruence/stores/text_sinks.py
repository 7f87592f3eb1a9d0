"""Writers of ``.csv`` and ``.jsonl``, row by row."""

from __future__ import annotations

import csv
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.errors import ParameterError
from congruence.stores._columns import (
    Columns,
    Rows,
    as_batch,
    check_column_out,
    common_columns,
    has_json_form,
    has_text_form,
    json_column,
    needs_ids,
    text_column,
)
from congruence.stores._sink import Sink


class _TextSink(Sink):
    """Base class of both writers; keeps the source's columns as far as the format can hold them."""

    sidecar = True
    keeps_columns = True

    def __enter__(self) -> Self:
        if self.columns and self.column_out is not None:
            self.space = Space()  # the sidecar describes a single set of vectors, and the file has two
        return super().__enter__()

    def _plan(self) -> Columns | None:
        columns = common_columns(self.columns, self.path)
        check_column_out(self.column_out, columns, self.path)
        self._new_ids = needs_ids(columns, self.has_ids)
        return columns


class CsvSink(_TextSink):
    """Writer of a ``.csv`` with a header: the source's columns, with one column per dimension of the vectors; or ``id``, ``v0``, ``v1``, ….

    The columns of the vectors keep the numbering of a source ``.csv``. If they were a single column ``embedding``, they are called
    ``embedding_0``, ``embedding_1``, ….
    """

    def _holds(self, kind: pa.DataType) -> bool:
        return has_text_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        columns = self._plan()
        header = ["id"] if self._new_ids else []
        if columns is None:
            header += _numbered(self.column_out, self.dim) if self.column_out else [f"v{j}" for j in range(self.dim)]
        else:
            place = columns.schema.get_field_index(columns.vector)
            for k, field in enumerate(columns.schema):
                if k == place and self.column_out is None:
                    header += _continued(columns.cells, self.dim) or _numbered(columns.vector, self.dim)
                elif k == place:
                    header += columns.cells or self._old_cells(field)
                elif field.name not in self.left_out:
                    header.append(field.name)
            if self.column_out is not None:
                header += _numbered(self.column_out, self.dim)
        if len(set(header)) < len(header) and not (columns and len(set(columns.cells)) < len(columns.cells)):
            twice = sorted({name for name in header if header.count(name) > 1})
            raise ParameterError(
                f"Got several columns named {', '.join(twice)} for {self.path}; expected each name once. Pass column_out=… with an "
                "unused name."
            )
        self._writer = csv.writer(stack.enter_context(open(temporary, "w", newline="", encoding="utf-8")))
        self._writer.writerow(header)

    def _old_cells(self, field: pa.Field) -> list[str]:
        if not pa.types.is_fixed_size_list(field.type):
            raise ParameterError(
                f"Got column_out={self.column_out!r} for {self.path} and vectors in lists of variable size; expected lists of a fixed size, "
                "to write the old vectors as columns. Write a .parquet or .jsonl."
            )
        return _numbered(field.name, field.type.list_size)

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None:
        # str gives the shortest text that reads back as the same number.
        mapped = [[str(x) for x in row] for row in vectors]
        parts: list[object] = [[[name] for name in ids.to_pylist()]] if self._new_ids and ids is not None else []
        if rows is None:
            parts.append(mapped)
        else:
            batch, vector = as_batch(rows, self.columns[0].schema), self.columns[0].vector
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if field.name != vector:
                    parts += [] if field.name in self.left_out else [[[text] for text in text_column(column)]]
                elif self.column_out is None:
                    parts.append(mapped)
                else:
                    old = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
                    parts.append([[str(x) for x in row] for row in old])
            parts += [] if self.column_out is None else [mapped]
        for cells in zip(*parts, strict=True):
            self._writer.writerow([cell for part in cells for cell in part])


class JsonlSink(_TextSink):
    """Writer of a ``.jsonl`` with the source's fields and the vector on each line; or ``id`` (if there are ids) and ``vector``."""

    def _holds(self, kind: pa.DataType) -> bool:
        return all(one.records for one in self.columns) or has_json_form(kind)

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        columns = self._plan()
        self._name = self.column_out or (columns.vector if columns else "vector")
        self._file = stack.enter_context(open(temporary, "w", encoding="utf-8"))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None:
        names = ids.to_pylist() if self._new_ids and ids is not None else [None] * len(vectors)
        for name, row, record in zip(names, vectors, self._records(rows, len(vectors)), strict=True):
            line = {"id": name, **record} if self._new_ids else dict(record)
            line[self._name] = [float(str(x)) for x in row]
            self._file.write(json.dumps(line, default=str) + "\n")

    def _records(self, rows: Rows | None, count: int) -> list[dict[str, object]]:
        if rows is None:
            return [{}] * count
        if isinstance(rows, list):
            return rows
        vector = self.columns[0].vector
        fields = [(f.name, c) for f, c in zip(rows.schema, rows.columns, strict=True) if f.name not in self.left_out]
        values = [
            [None] * count if name == vector and self.column_out is None else json_column(column)
            for name, column in fields
        ]
        return [dict(zip([name for name, _ in fields], row, strict=True)) for row in zip(*values, strict=True)]


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{j}" for j in range(count)]


def _continued(cells: tuple[str, ...], count: int) -> list[str]:
    """Return ``count`` column names that continue the numbering of ``cells`` (e0, e1, …); empty if ``cells`` are not numbered."""
    if len(cells) == count:
        return list(cells)
    found = [re.fullmatch(r"(.*?)(\d+)", cell, re.DOTALL) for cell in cells]
    if not cells or found[0] is None:
        return []
    prefix, first = found[0][1], int(found[0][2])
    if list(cells) != [f"{prefix}{first + j}" for j in range(len(cells))]:
        return []
    return [f"{prefix}{first + j}" for j in range(count)]
