"""Rows with invalid vectors: find them in a batch, and quarantine them with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


#: Reasons why a row is left out, by the code that :func:`find_bad` returns; 0 is a valid row.
REASONS = ("", "no vector", "another width", "missing numbers", "NaN or infinity", "all zeros")


def find_bad(column: pa.Array, dim: int, *, allow_zero_rows: bool = False) -> np.ndarray:
    """Return for each row whether its vector is valid, and if not, why.

    Returns (n,).
    """
    code = np.zeros(len(column), np.int8)
    code[column.is_null().to_numpy(zero_copy_only=False)] = 1
    if not pa.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().fill_null(dim).to_numpy(zero_copy_only=False)
        code[(code == 0) & (lengths != dim)] = 2
    rows = np.flatnonzero(code == 0)
    values = column.take(pa.array(rows)).flatten()
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False).reshape(-1, dim).any(axis=1)
        code[rows[missing]] = 3
        rows = rows[~missing]
        values = column.take(pa.array(rows)).flatten()
    block = values.to_numpy(zero_copy_only=False).reshape(-1, dim)
    finite = np.isfinite(block).all(axis=1)
    code[rows[~finite]] = 4
    if not allow_zero_rows and dim > 1:
        code[rows[finite & ~block.any(axis=1)]] = 5
    return code


def quarantine_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a quarantine: the position of a row, why it was left out, and the row's own columns."""
    own = [pa.field("fragment", pa.string()), pa.field("row", pa.int64()), pa.field("reason", pa.string())]
    taken = set(schema.names)
    own = [field.with_name(f"bad_{field.name}") if field.name in taken else field for field in own]
    return pa.schema([*own, *schema])


def quarantined(
    piece: pa.RecordBatch, rows: np.ndarray, reasons: Sequence[str], start: int, name: str, schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows of a batch in the schema of the quarantine; ``start`` is the number of the batch's first row in its file."""
    own = [
        pa.array([name] * len(rows), pa.string()),
        pa.array(rows + start, pa.int64()),
        pa.array(reasons, pa.string()),
    ]
    return pa.record_batch([*own, *piece.take(pa.array(rows)).columns], schema=schema)
