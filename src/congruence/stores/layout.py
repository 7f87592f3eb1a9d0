"""The layout of tables with mapped vectors: their schema and their batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.stores._columns import (
    Columns,
    Rows,
    as_batch,
    check_column_out,
    list_array,
    output_schema,
)
from congruence.stores._space_file import SPACE_KEY, space_json

__all__ = ["TableLayout", "list_array", "parquet_options"]

#: Key of the space in a field's metadata, or in the schema's if the table has a single column of vectors.
_SPACE = SPACE_KEY.encode()


class TableLayout:
    """Layout of an output table: the source's columns with the mapped vectors, or ``vector`` and, if there are ids, ``id``.

    ``columns``: columns of the source's table, which are kept; ``dim``: width of the mapped vectors; ``dtype``: data
    type of the mapped vectors; ``has_ids``: whether the rows have ids; ``id_type``: type of the column of ids, if one
    is added; ``space``: space of the mapped vectors, stored in the metadata; ``column_out``: name of a new column for
    the mapped vectors; by default they replace the source's; ``path``: path of the table, for error messages.
    ``schema``: schema of the output table; ``at``: index of the column of mapped vectors.
    """

    def __init__(
        self,
        columns: Columns | None,
        *,
        dim: int,
        dtype: np.dtype,
        has_ids: bool,
        id_type: pa.DataType,
        space: Space,
        column_out: str | None,
        path: str | Path,
    ) -> None:
        check_column_out(column_out, columns, path)
        self._columns, self._replaces = columns, columns is not None and column_out is None
        schema, self.at, self._new_ids = output_schema(
            columns, dim=dim, dtype=dtype, has_ids=has_ids, id_type=id_type, name=column_out
        )
        metadata = {} if space == Space() else {_SPACE: space_json(space).encode()}
        field = schema.field(self.at)
        own = {key: value for key, value in (field.metadata or {}).items() if key != _SPACE}
        if columns and (column_out is not None or columns.other_vectors):
            schema = schema.set(self.at, field.with_metadata({**own, **metadata} or None))
        else:
            rest = {key: value for key, value in (schema.metadata or {}).items() if key != _SPACE}
            schema = schema.set(self.at, field.with_metadata(own or None)).with_metadata({**rest, **metadata} or None)
        self.schema: pa.Schema = schema

    def fill(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> pa.RecordBatch:
        """Return a batch of the output table.

        ``ids``: ids of the rows; used only if the layout adds a column of ids; ``vectors`` (b, dim); ``rows``: the same
        rows of the source's table.
        """
        lists = list_array(vectors, self.schema.field(self.at).type)
        arrays = [] if rows is None or self._columns is None else list(as_batch(rows, self._columns.schema).columns)
        if self._new_ids:
            arrays.insert(0, ids)
        if self._replaces:
            arrays[self.at] = lists
        else:
            arrays.append(lists)
        return pa.record_batch(arrays, schema=self.schema)


def parquet_options(layout: TableLayout, *, kept: bool) -> dict[str, object]:
    """Return the options of pyarrow's Parquet writer for a table.

    The vectors are written without compression and dictionary: random mantissas do not compress, and writing is several times faster without a
    dictionary.

    ``kept``: whether the table has columns of a source.
    """
    schema = layout.schema
    others = [field.name for k, field in enumerate(schema) if k != layout.at and not pa.types.is_nested(field.type)]
    if kept and others:
        return {"compression": dict.fromkeys(others, "snappy"), "use_dictionary": others, "write_statistics": others}
    return {"compression": "none", "use_dictionary": False, "write_statistics": False}
