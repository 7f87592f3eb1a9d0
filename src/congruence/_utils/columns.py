"""Any table, column or list of vectors as one NumPy matrix.

Nothing is imported to recognize a value: an object of pandas, PyArrow or torch exists only where its library was
imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.arrays import is_tensor, to_numpy
from congruence.errors import DtypeError, IdError, InputError, NotFiniteError, ShapeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame, Series


def to_rows(X: object, name: str) -> np.ndarray:
    """Return an array, tensor, column, table or list of vectors as a NumPy array, unchecked, sharing memory if
    possible.
    """
    if isinstance(X, np.ndarray):
        return _array(X, name)
    refuse_sparse(X, name)
    if is_tensor(X):
        return to_numpy(X)
    X, _ = split_ids(X)
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return _frame(pandas, X, name)
    if pandas is not None and isinstance(X, pandas.Series):
        return _series(pandas, X, name)
    if arrow is not None and isinstance(X, (arrow.Array, arrow.ChunkedArray)):
        return _arrow_column(X, name)
    if arrow is not None and isinstance(X, (arrow.Table, arrow.RecordBatch)):
        return _arrow_table(X, name)
    if isinstance(X, (str, bytes, os.PathLike)):
        problem = f"Got the text {str(X)[:80]!r} for {name}; expected vectors."
        raise InputError(problem, "Read a file first: `congruence.read_embeddings(path)`.")
    if isinstance(X, (Mapping, Set, Iterator)):
        problem = f"Got a {type(X).__name__} for {name}; expected an array, a column or a list of vectors."
        raise InputError(problem, "Pass list(…) of its vectors.")
    if isinstance(X, Sequence) and not hasattr(X, "__array__"):
        return _stack(list(X), name)
    if not hasattr(X, "__array__") and hasattr(X, "to_numpy"):
        return _array(np.asarray(X.to_numpy()), name)
    rows = _array(to_numpy(X), name)
    if rows.dtype == object and rows.ndim == 0:  # of no kind that NumPy knows, such as a data set that is streamed
        problem = f"Got {name} of type {type(X).__name__}; expected an array, a table or a list of vectors."
        raise DtypeError(problem, "Load its rows into memory.")
    return rows


ID_NAMES = ("id", "ids")  # names of columns of ids, in any case; a table with one of them is a table of rows with ids


def split_ids(X: Any) -> tuple[Any, Any]:
    """Return what holds the vectors, and the column of ids of a table; None where there is no such column.

    It is the column named as one of ``ID_NAMES``, else the one column of text or integers, without repeats, beside a
    column of vectors. Beside ids by name, a table may have a column of vectors and others, which are left out.
    """
    table = read_once(X)
    is_frame = hasattr(table, "iloc")
    names = list(getattr(table, "columns", ()) if is_frame else getattr(table, "column_names", ()))
    if len(names) < 2 or len(set(names)) < len(names) or not (is_frame or hasattr(table, "schema")):
        return table, None
    vectors = _vector_columns(table)
    ids = next(iter(sorted((name for name in names if str(name).lower() in ID_NAMES), key=len)), None)
    if ids is not None:
        vectors = vectors if len(vectors) == 1 else [name for name in names if name != ids]
    elif len(names) == 2 and len(vectors) == 1:
        ids = names[names[0] == vectors[0]]
        values = table[ids].tolist() if is_frame else table[ids].to_pylist()
        if not all(type(value) in (str, int) for value in values) or len(set(values)) < len(values):
            return table, None
    else:
        return table, None
    return (table[vectors] if is_frame else table.select(vectors)), table[ids]


def read_once(X: Any) -> Any:
    """Return a table or a column of another library as one of Arrow, and everything else as it is."""
    if isinstance(X, np.ndarray) or is_tensor(X):
        return X
    pandas, arrow, datasets, polars = (sys.modules.get(name) for name in ("pandas", "pyarrow", "datasets", "polars"))
    if pandas is not None and isinstance(X, (pandas.DataFrame, pandas.Series)):
        return X
    if arrow is not None and isinstance(X, (arrow.Table, arrow.RecordBatch, arrow.Array, arrow.ChunkedArray)):
        return X
    if datasets is not None and isinstance(X, datasets.Dataset):
        return X.with_format("arrow")[:]
    if polars is not None and isinstance(X, polars.LazyFrame):
        X = X.collect()
    if hasattr(X, "to_arrow"):  # polars
        return X.to_arrow()
    if not hasattr(X, "__arrow_c_stream__"):
        return X
    import pyarrow as pa

    column = pa.chunked_array(X)
    return pa.Table.from_struct_array(column) if pa.types.is_struct(column.type) else column


def _vector_columns(table: Any) -> list[Any]:
    if not hasattr(table, "iloc"):
        return [field.name for field in table.schema if _is_list(getattr(field.type, "storage_type", field.type))]
    lists = ("list<", "fixed_size_list<", "large_list<")
    return [
        name
        for name, dtype in table.dtypes.items()
        if dtype.kind == "O" and (str(dtype).startswith(lists) or (len(table) and _is_vector(table[name].iloc[0])))
    ]


def refuse_sparse(X: object, name: str) -> None:
    """Raise an error for a sparse matrix or tensor."""
    if is_tensor(X):
        remedy = "" if str(getattr(X, "layout", "torch.strided")) == "torch.strided" else "to_dense"
    else:
        remedy = "toarray" if hasattr(X, "toarray") and hasattr(X, "nnz") else ""
    if remedy:
        problem = f"Got a sparse matrix for {name}; expected a dense array, as embeddings are."
        raise DtypeError(problem, f"Call {name}.{remedy}().")


def _array(A: np.ndarray, name: str) -> np.ndarray:
    # Values under a mask are by convention invalid; np.asarray would return them as data.
    if np.ma.is_masked(A):
        mask = np.atleast_1d(np.ma.getmaskarray(A))
        rows = mask.reshape(len(mask), -1).any(axis=1)
        problem = f"Got masked values in {int(rows.sum())} of {len(mask)} rows of {name}."
        raise DtypeError(problem, f"Drop the masked rows (np.ma.compress_rows) or fill them with {name}.filled(value).")
    A = np.asarray(A)
    if A.dtype == object and A.ndim == 1 and len(A) and all(_is_vector(row) for row in A):
        return _stack(A.tolist(), name)  # as returned by df["embedding"].to_numpy()
    return A


def _is_vector(row: object) -> bool:
    return isinstance(row, (np.ndarray, list, tuple)) or is_tensor(row)


def _stack(rows: list[Any], name: str) -> np.ndarray:
    """Stack the rows of a list: numbers, arrays or tensors of one width."""
    if not rows:
        raise ShapeError(f"Got an empty list for {name}.", "Check the file or key.")
    missing = [k for k, row in enumerate(rows) if row is None or (isinstance(row, float) and row != row)]
    if missing and len(missing) < len(rows) and any(_is_vector(row) for row in rows):
        _refuse_missing(np.array(missing), len(rows), name)
    for k, row in enumerate(rows):
        if np.ma.is_masked(row):
            raise DtypeError(f"Got masked values in row {k} of {name}.", "Drop or fill these rows.")
    if any(is_tensor(row) for row in rows):
        rows = [to_numpy(row) for row in rows]
    try:
        return np.asarray(rows)
    except ValueError as error:
        widths = [np.shape(row)[0] if _is_vector(row) and np.ndim(row) == 1 else -1 for row in rows]
        if -1 in widths or len(set(widths)) == 1:
            problem = f"Got {name} whose rows are nested to different depths; expected one flat vector per row."
            raise ShapeError(problem, "Check its elements.") from error
        raise _ragged(np.array(widths), name) from error


def _ragged(widths: np.ndarray, name: str) -> ShapeError:
    values, counts = np.unique(widths, return_counts=True)
    usual = int(values[np.argmax(counts)])
    rows = np.flatnonzero(widths != usual)
    shown = _first([f"row {k}: {widths[k]}" for k in rows[:5]], len(rows))
    problem = f"Got rows of different widths in {name} ({usual} in most; {shown})."
    return ShapeError(problem, "Pass the vectors of one model, without padding or truncation.")


def _first(shown: list[str], n: int) -> str:
    return ", ".join(shown) + (f" and {n - 5} more" if n > 5 else "")


def _refuse_missing(rows: np.ndarray, n: int, name: str) -> None:
    shown = _first([str(k) for k in rows[:5]], len(rows))
    problem = f"Got {len(rows)} of {n} rows of {name} without a vector (rows {shown})."
    raise NotFiniteError(problem, "Drop these rows on both sides.")


# ------------------------------------------------------------------ pandas


def _frame(pandas: ModuleType, frame: DataFrame, name: str) -> np.ndarray:
    """Return a frame of numeric columns, or of one column of vectors, as an array."""
    other = [label for label, dtype in frame.dtypes.items() if not pandas.api.types.is_numeric_dtype(dtype)]
    if not other:
        if not any(hasattr(dtype, "numpy_dtype") for dtype in frame.dtypes):
            return np.asarray(frame)
        # pandas' nullable types: a missing value becomes NaN, which is rejected later.
        dtype = np.result_type(*(getattr(dtype, "numpy_dtype", dtype) for dtype in frame.dtypes))
        return frame.to_numpy(dtype=dtype if dtype.kind == "f" else np.float64, na_value=np.nan)
    vectors = _vector_columns(frame) if frame.columns.is_unique else []
    if len(vectors) == frame.shape[1] == 1:
        return _series(pandas, frame.iloc[:, 0], name)
    if not vectors and all(frame[label].dtype == object for label in other):
        return np.asarray(frame)  # numbers kept as objects, or an error about objects
    raise _refuse_columns(other, vectors, name)


def _refuse_columns(other: Sequence[object], vectors: Sequence[object], name: str) -> DtypeError:
    listed = ", ".join(repr(str(label)) for label in other[:5]) + (" …" if len(other) > 5 else "")
    pick = f"the column of vectors: {name}[{vectors[0]!r}]" if vectors else f"the numeric columns: {name}[[…]]"
    return DtypeError(f"Got a table for {name} with non-numeric columns ({listed}).", f"Pass {pick}.")


def _series(pandas: ModuleType, series: Series, name: str) -> np.ndarray:
    if isinstance(series.dtype, pandas.ArrowDtype):
        return to_rows(series.array.__arrow_array__(), name)
    if series.dtype == object:
        return _stack(series.tolist(), name)
    if pandas.api.types.is_string_dtype(series.dtype):
        problem = f"Got a column of text for {name}; expected a column of vectors."
        raise DtypeError(problem, "Pass the texts' embeddings.")
    return np.asarray(series)


def index_ids(X: object, *, default: bool = False) -> np.ndarray | None:
    """Return the index of a pandas object as ids; None for others and, unless ``default``, for a default index."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, (pandas.DataFrame, pandas.Series)):
        return None
    index = X.index
    if isinstance(index, pandas.RangeIndex) and (index.start, index.step) == (0, 1) and not default:
        return None
    why = None
    if isinstance(index, pandas.MultiIndex):
        why = f"of {index.nlevels} levels"
    elif index.hasnans:
        rows = np.flatnonzero(index.isna())
        why = f"with {len(rows)} missing labels (rows {_first([str(k) for k in rows[:5]], len(rows))})"
    elif not index.is_unique:
        repeated = index[index.duplicated()].unique()
        why = f"that repeats {len(repeated)} labels (first {repeated[0]!r})"
    if why:
        fix = "Pair rows by position with reset_index(drop=True), or give each row its own label."
        raise IdError(f"Got an index {why}; expected one id per row.", fix)
    return np.asarray(index)


# ------------------------------------------------------------------ Arrow


def _is_list(kind: pa.DataType) -> bool:
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def _is_numeric(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _arrow_column(column: pa.Array | pa.ChunkedArray, name: str) -> np.ndarray:
    """Return an Arrow column of lists (or a 1-D one) as an array, without a copy if the values are contiguous."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunks, or more values than one array can hold
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column, pa.ExtensionArray):  # for example arrow.fixed_shape_tensor
        column = column.storage
    value = column.type.value_type if _is_list(column.type) else column.type
    if not _is_numeric(value) or pa.types.is_boolean(value):
        problem = f"Got an Arrow column of {column.type} for {name}; expected lists of numbers."
        raise DtypeError(problem, "Pass the column of vectors.")
    if not _is_list(column.type):
        return column.to_numpy(zero_copy_only=False)
    if not len(column):
        raise ShapeError(f"Got an empty column for {name}.", "Check the file or key.")
    if column.null_count:
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        _refuse_missing(missing, len(column), name)
    widths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if (widths != widths[0]).any():
        raise _ragged(widths, name)
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), int(widths[0]))


def _arrow_table(table: pa.Table | pa.RecordBatch, name: str) -> np.ndarray:
    if table.num_columns == 1 and not _is_numeric(table.schema.types[0]):
        return _arrow_column(table.column(0), name)
    other = [field.name for field in table.schema if not _is_numeric(field.type)]
    if other:
        raise _refuse_columns(other, _vector_columns(table), name)
    if not table.num_columns:
        return np.empty((table.num_rows, 0))
    return np.column_stack([np.asarray(column) for column in table.columns])
