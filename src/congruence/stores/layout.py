"""Where mapped vectors stand in a table: the schema of what is written, and its batches."""

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

#: In a field's metadata, or in the schema's where there is one column of vectors.
_SPACE = SPACE_KEY.encode()


class TableLayout:
    """The table that a journey writes: the source's with mapped vectors in it, or ``vector`` and, when there are ids, ``id``.

    Parameters
    ----------
    columns : Columns or None
        Of the source's table, which is kept.
    dim : int
    dtype : numpy.dtype
        Of the mapped vectors.
    has_ids : bool
    id_type : pyarrow.DataType
    space : Space
        Of the mapped vectors; stands in the metadata.
    column_out : str or None
        A new column for them; by default they replace the source's.
    path : path-like
        For messages.

    Attributes
    ----------
    schema : pyarrow.Schema
    at : int
        Place of the column of mapped vectors.

    Raises
    ------
    ParameterError
        ``column_out`` is taken, or a column ``id`` stands where ids from elsewhere should go.
    DtypeError
        A field whose values no column of a table can hold together.
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
        told = {} if space == Space() else {_SPACE: space_json(space).encode()}
        field = schema.field(self.at)
        own = {key: value for key, value in (field.metadata or {}).items() if key != _SPACE}
        if columns and (column_out is not None or columns.other_vectors):
            schema = schema.set(self.at, field.with_metadata({**own, **told} or None))
        else:
            rest = {key: value for key, value in (schema.metadata or {}).items() if key != _SPACE}
            schema = schema.set(self.at, field.with_metadata(own or None)).with_metadata({**rest, **told} or None)
        self.schema: pa.Schema = schema

    def fill(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> pa.RecordBatch:
        """Return rows as they are written.

        Parameters
        ----------
        ids : pyarrow.Array or None
            Where they get a column of their own.
        vectors : ndarray, shape (b, dim)
        rows : pyarrow.RecordBatch or list of dict, optional
            The same rows of the source's table.
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
    """Return how a table is written as Parquet: random mantissas do not compress, and are several times faster without a dictionary.

    Parameters
    ----------
    layout : TableLayout
    kept : bool
        Columns of a source are in it.
    """
    schema = layout.schema
    others = [field.name for k, field in enumerate(schema) if k != layout.at and not pa.types.is_nested(field.type)]
    if kept and others:
        return {"compression": dict.fromkeys(others, "snappy"), "use_dictionary": others, "write_statistics": others}
    return {"compression": "none", "use_dictionary": False, "write_statistics": False}
