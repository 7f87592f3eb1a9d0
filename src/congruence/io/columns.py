"""The columns of a table, among them one of vectors, and the schema of a table with mapped ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from congruence.errors import DtypeError, ParameterError

#: Consecutive rows of a table with all their columns: an Arrow record batch, or the objects of a ``.jsonl``.
TableRows: TypeAlias = pa.RecordBatch | list[dict[str, object]]


@dataclass(frozen=True)
class Columns:
    """All columns of a table in order, its metadata, and the names of the columns with vectors and ids.

    ``schema`` has the vectors as one list column, ``vector``; ``id`` is None if the ids come from elsewhere, or are not
    read. ``cells``: columns of a ``.csv`` that hold the components of the vectors; ``records``: whether the rows are
    the objects of a ``.jsonl``, in which a field may be missing or have any type; ``mixed``: fields without a common
    type.
    """

    schema: pa.Schema
    vector: str
    id: str | None = None
    cells: tuple[str, ...] = ()
    records: bool = False
    mixed: tuple[str, ...] = ()

    @property
    def other_vectors(self) -> bool:
        """Whether other columns hold lists of numbers, which may be vectors of another space."""
        return any(is_vectors(field.type) for field in self.schema if field.name != self.vector)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_vectors(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold vectors, i.e. lists of numbers."""
    return is_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


def common_columns(columns: list[Columns], path: str | Path) -> Columns | None:
    """Return the columns of all parts of a folder, for an output that is one table."""
    for other in columns[1:]:
        if not other.schema.equals(columns[0].schema):
            ours, theirs = ({f"{f.name} ({f.type})" for f in c.schema} for c in (columns[0], other))
            odd = sorted(ours ^ theirs) or ["their order"]
            raise ParameterError(
                f"Got parts with different columns for one table, {path}: {', '.join(odd)}.",
                "Write a folder of parts, which keeps the columns of each part.",
            )
    return columns[0] if columns else None


def check_column_out(name: str | None, columns: Columns | None, path: str | Path) -> None:
    """Check that the name for the column of mapped vectors is not taken."""
    taken = [] if columns is None else [*columns.schema.names, *columns.cells]
    if name is not None and (not name or name in taken):
        raise ParameterError(
            f"Got `column_out={name!r}` for {path}, which has the columns {', '.join(taken)}.",
            "Pass `column_out=…` with an unused name.",
        )


def needs_ids(columns: Columns | None, has_ids: bool) -> bool:
    """Return whether ids need a new column ``id``; an error if the table already has a column of that name."""
    if not has_ids or (columns is not None and columns.id is not None):
        return False
    if columns is not None and "id" in columns.schema.names:
        raise ParameterError(
            "Got separate ids for a table that has a column 'id'.", "Pass `ids='id'` to use that column, or rename it."
        )
    return True


def output_schema(
    columns: Columns | None, *, dim: int, dtype: np.dtype, has_ids: bool, id_type: pa.DataType, name: str | None
) -> tuple[pa.Schema, int, bool]:
    """Return the schema of a table with mapped vectors, the index of their column, and whether ids get a new column.

    Without columns to keep, the table has ``id`` (if there are ids) and ``vector``. Otherwise the mapped vectors
    replace the source's column, which keeps its index, name, metadata and list type; with a ``name`` of their own they
    get a new column, and the source's is unchanged.
    """
    if columns is None:
        fields, place, metadata = [pa.field(name or "vector", pa.list_(pa.from_numpy_dtype(dtype), dim))], 0, {}
    else:
        if columns.mixed:
            raise DtypeError(
                f"Got values of different types in {', '.join(map(repr, columns.mixed))}.",
                "Write a .jsonl, which keeps them as they are.",
            )
        fields, metadata = list(columns.schema), dict(columns.schema.metadata or {})
        place = columns.schema.get_field_index(columns.vector)
        old = fields[place].type
        value = old.value_field.with_type(pa.from_numpy_dtype(dtype))
        lists = pa.large_list(value) if pa.types.is_large_list(old) else pa.list_(value)
        kept = fields[place].with_type(pa.list_(value, dim) if pa.types.is_fixed_size_list(old) else lists)
        if name is None:
            fields[place] = kept
        else:
            # A field's metadata, for example its field id in an Iceberg table, does not apply to a new field.
            place = len(fields)
            fields.append(kept.with_name(name).remove_metadata())
        _update_hugging_face(metadata, columns.vector, fields[place].name, dtype, dim)
    new_ids = needs_ids(columns, has_ids)
    if new_ids:
        fields, place = [pa.field("id", id_type), *fields], place + 1
    return pa.schema(fields, metadata=metadata or None), place, new_ids


def _update_hugging_face(metadata: dict[bytes, bytes], old: str, new: str, dtype: np.dtype, dim: int) -> None:
    """Update width and type in the metadata from which Hugging Face ``datasets`` reads the features."""
    try:
        info = json.loads(metadata[b"huggingface"])
        feature = dict(info["info"]["features"][old])
        value = {**feature["feature"], "dtype": dtype.name}
    except (KeyError, TypeError, ValueError):
        return
    length = feature.get("length", -1)
    info["info"]["features"][new] = {**feature, "feature": value, "length": length if length == -1 else dim}
    metadata[b"huggingface"] = json.dumps(info).encode()


def list_array(vectors: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return the rows of a matrix as a list column of type ``kind``."""
    flat = pa.array(vectors.reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    large = pa.types.is_large_list(kind)
    ends = np.arange(len(vectors) + 1, dtype=np.int64 if large else np.int32) * vectors.shape[1]
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(pa.array(ends), flat, type=kind)


def as_batch(rows: TableRows, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as an Arrow record batch."""
    return rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(rows, schema=schema)


def slice_rows(rows: TableRows | None, start: int, stop: int) -> TableRows | None:
    """Return rows ``start`` to ``stop``, or None if there are no rows."""
    if rows is None:
        return None
    return rows[start:stop] if isinstance(rows, list) else rows.slice(start, stop - start)
