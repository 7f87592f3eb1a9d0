"""The columns of a table, and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

#: Consecutive rows of a table with all their columns: an Arrow record batch, or the objects of a ``.jsonl``.
TableRows: TypeAlias = pa.RecordBatch | list[dict[str, object]]


@dataclass(frozen=True)
class Columns:
    """All columns of a table in order, its metadata, and the names of the columns with vectors and ids.

    ``schema`` has the vectors as one list column, ``vector``; ``id`` is None if the ids come from elsewhere, or are not
    read. ``cells``: columns of a ``.csv`` that hold the components of the vectors; ``records``: whether the rows are
    the objects of a ``.jsonl``, in which a field may be missing or have any type; ``mixed``: fields without a common
    type; ``multi``: whether a row has several vectors, which stay together.
    """

    schema: pa.Schema
    vector: str
    id: str | None = None
    cells: tuple[str, ...] = ()
    records: bool = False
    mixed: tuple[str, ...] = ()
    multi: bool = False

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
