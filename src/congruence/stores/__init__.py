"""Files of vectors: readers that stream, writers that are atomic, and the table that names the formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.embeddings import Embeddings, Space
from congruence.errors import CorruptFileError, DtypeError, IdError, ParameterError
from congruence.stores._base import BATCH, Sink, Source, missing_file
from congruence.stores.folder import FolderSink, FolderSource
from congruence.stores.hdf5 import Hdf5Sink, Hdf5Source, read_hdf5_column
from congruence.stores.npy import NpySink, NpySource, NpzSink, NpzSource, read_npz_column
from congruence.stores.parquet import ParquetSink, ParquetSource, read_parquet_column
from congruence.stores.safetensors_file import SafetensorsSink, SafetensorsSource, read_safetensors_column
from congruence.stores.text import (
    CsvSink,
    CsvSource,
    JsonlSink,
    JsonlSource,
    read_csv_column,
    read_jsonl_column,
    read_txt_column,
)

__all__ = [
    "BATCH",
    "FORMATS",
    "Sink",
    "Source",
    "open_sink",
    "open_source",
    "parse_spec",
    "read_column",
    "read_embeddings",
]

#: Reader and writer by file suffix; the empty suffix is a folder of parts.
FORMATS: dict[str, tuple[type[Any], type[Any]]] = {
    ".npy": (NpySource, NpySink),
    ".npz": (NpzSource, NpzSink),
    ".safetensors": (SafetensorsSource, SafetensorsSink),
    ".parquet": (ParquetSource, ParquetSink),
    ".csv": (CsvSource, CsvSink),
    ".jsonl": (JsonlSource, JsonlSink),
    ".h5": (Hdf5Source, Hdf5Sink),
    ".hdf5": (Hdf5Source, Hdf5Sink),
    "": (FolderSource, FolderSink),
}

#: Formats whose reader takes the name of its own id column.
_NAMED_IDS = (ParquetSource, CsvSource, JsonlSource, FolderSource)

_COLUMNS: dict[str, Callable[[str, str | None], np.ndarray]] = {
    ".npz": read_npz_column,
    ".safetensors": read_safetensors_column,
    ".parquet": read_parquet_column,
    ".csv": read_csv_column,
    ".jsonl": read_jsonl_column,
    ".h5": read_hdf5_column,
    ".hdf5": read_hdf5_column,
    ".txt": read_txt_column,
}


def parse_spec(spec: str | Path) -> tuple[str, str | None]:
    """Split ``path:key`` into path and key; a path that exists as written has no key.

    Parameters
    ----------
    spec : str or path-like

    Returns
    -------
    path : str
    key : str or None
    """
    text = str(spec)
    if Path(text).exists():
        return text, None
    path, colon, key = text.rpartition(":")
    # A single letter before the colon is a Windows drive.
    if colon and len(path) > 1 and key and "/" not in key and "\\" not in key:
        return path, key
    return text, None


def _suffix(path: str, table: dict[str, Any], what: str) -> str:
    suffix = "" if Path(path).is_dir() else Path(path).suffix.lower()
    if suffix not in table:
        known = ", ".join(name or "a folder of parts" for name in table)
        raise ParameterError(f"Got {path!r} for {what}; expected one of {known}; do convert the file.")
    return suffix


def open_source(spec: str | Path, *, ids: str | bool | None = None, space: Space | None = None) -> Source:
    """Open a matrix of vectors for reading.

    Parameters
    ----------
    spec : str or path-like
        ``path`` or ``path:key``: ``.npy``, ``.npz:key``, ``.safetensors:key``, ``.parquet:column``, ``.csv[:prefix]``,
        ``.jsonl[:field]``, ``.h5:dataset``, or a folder of parts (``folder[:img_emb]``).
    ids : str, optional
        Where the ids are: a key or column of the same file, or another file's spec. By default the file's own
        (``id`` in tables, ``ids`` beside an array); ``False`` for none.
    space : Space, optional
        What is known about the origin; fills in and overrides what the file says.

    Returns
    -------
    Source

    Raises
    ------
    FileError, CorruptFileError, ParameterError, ShapeError, DtypeError, IdError
    """
    path, key = parse_spec(spec)
    kind = FORMATS[_suffix(path, FORMATS, "vectors")][0]
    column: Any = None
    if isinstance(ids, str):
        other, _ = parse_spec(ids)
        if Path(other).is_file():
            column = pa.array(read_column(ids).tolist(), pa.string())
        elif issubclass(kind, _NAMED_IDS):
            column = ids
        else:
            column = pa.array(read_column(f"{path}:{ids}").tolist(), pa.string())
    source = kind(path, key, column)
    if ids is False:
        source._ids, source.has_ids = None, False
        source._id_column = None
    if isinstance(column, pa.Array) and len(column) != source.n:
        raise IdError(
            f"Got {len(column)} ids for {source.n} rows of {source.path}; expected one a row; do check {ids!r}."
        )
    if space is not None:
        source.space = replace(source.space, **space.to_dict())
    return source


def open_sink(
    path: str | Path,
    *,
    n: int,
    dim: int,
    dtype: Any = np.float32,
    has_ids: bool = False,
    space: Space | None = None,
    force: bool = False,
    parts: list[tuple[str, int]] | None = None,
) -> Sink:
    """Open a file of vectors for writing; use it as a context manager.

    Parameters
    ----------
    path : path-like
        The suffix chooses the format; none means a folder of parts.
    n, dim : int
        Rows and columns that will be written.
    dtype : dtype, default=float32
        float16, float32 or float64.
    has_ids : bool, default=False
        Whether ids will be written. Formats without room for ids leave them out: ``.npy`` and ``.safetensors``.
    space : Space, optional
        Recorded with the vectors.
    force : bool, default=False
        Replace what is there.
    parts : list of (str, int), optional
        For a folder: names and row counts of the parts.

    Returns
    -------
    Sink

    Raises
    ------
    ParameterError, DtypeError
        At once; :class:`OutputExistsError` and :class:`StorageError` when the block is entered.
    """
    suffix = _suffix(str(path), FORMATS, "output")
    dtype = np.dtype(dtype)
    if dtype not in (np.float16, np.float32, np.float64):
        raise DtypeError(f"Got dtype {dtype}; expected float16, float32 or float64; do choose one of these.")
    return FORMATS[suffix][1](
        path, n=n, dim=dim, dtype=dtype, has_ids=has_ids, space=space or Space(), force=force, parts=parts
    )


def read_embeddings(
    spec: str | Path, *, ids: str | bool | None = None, space: Space | None = None, allow_zero_rows: bool = False
) -> Embeddings:
    """Read a whole matrix of vectors with its ids; see :func:`open_source` for the arguments.

    Parameters
    ----------
    spec, ids, space
        As for :func:`open_source`.
    allow_zero_rows : bool, default=False

    Returns
    -------
    Embeddings

    Raises
    ------
    CongruenceError
        Any of the errors of :func:`open_source` and :class:`~congruence.embeddings.Embeddings`.
    """
    return open_source(spec, ids=ids, space=space).read(allow_zero_rows=allow_zero_rows)


def read_column(spec: str | Path) -> np.ndarray:
    """Read labels or ids: a column of a table, an array of an archive, or the lines of a ``.txt``.

    Parameters
    ----------
    spec : str or path-like
        ``path:key``; ``.npy`` and ``.txt`` need no key.

    Returns
    -------
    ndarray of str, shape (n,)

    Raises
    ------
    FileError, CorruptFileError, ParameterError
    """
    path, key = parse_spec(spec)
    if Path(path).suffix.lower() == ".npy":
        return _read_npy_column(path)
    return _COLUMNS[_suffix(path, {**_COLUMNS, ".npy": None}, "a column")](path, key)


def _read_npy_column(path: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise missing_file(path) from None
    except (ValueError, EOFError, OSError) as error:
        raise CorruptFileError(
            f"Got an unreadable column in {path} ({error}); expected text or numbers; do save it again."
        ) from error
    if array.ndim != 1:
        raise IdError(f"Got an array of shape {array.shape} in {path}; expected one entry a row; do check the file.")
    return array.astype(str)
