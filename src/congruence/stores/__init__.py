"""Files of vectors: readers that stream, writers that are atomic, and the table that names the formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_positive
from congruence.embeddings import Embeddings, Space
from congruence.errors import DtypeError, FileError, IdError, ParameterError
from congruence.stores._base import BATCH, Source, is_folder, missing_file, natural
from congruence.stores._columns import Columns
from congruence.stores._ids import Column, column_ids, column_texts
from congruence.stores._place import check_output_place
from congruence.stores._sink import Sink
from congruence.stores.arrow import ArrowSink, ArrowSource, arrow_shapes, read_arrow_column
from congruence.stores.folder import FolderSink, FolderSource
from congruence.stores.hdf5 import Hdf5Sink, Hdf5Source, hdf5_shapes, read_hdf5_column
from congruence.stores.lance import LanceSink, LanceSource, lance_shapes, read_lance_column
from congruence.stores.npy import NpySink, NpySource, NpzSink, NpzSource, npz_shapes, read_npy_column, read_npz_column
from congruence.stores.parquet import ParquetSink, ParquetSource, parquet_shapes, read_parquet_column
from congruence.stores.rows import StreamedRows, open_rows
from congruence.stores.safetensors_file import (
    SafetensorsSink,
    SafetensorsSource,
    read_safetensors_column,
    safetensors_shapes,
)
from congruence.stores.text import CsvSource, JsonlSource, read_csv_column, read_jsonl_column, read_txt_column
from congruence.stores.text_sinks import CsvSink, JsonlSink

__all__ = [
    "BATCH",
    "FORMATS",
    "Columns",
    "Sink",
    "Source",
    "StreamedRows",
    "check_output_place",
    "matrices",
    "open_rows",
    "open_sink",
    "open_source",
    "parse_spec",
    "read_column",
    "read_embeddings",
    "read_ids",
]

#: Reader and writer by file suffix; the empty suffix is a folder of parts.
FORMATS: dict[str, tuple[type[Any], type[Any]]] = {
    ".npy": (NpySource, NpySink),
    ".npz": (NpzSource, NpzSink),
    ".safetensors": (SafetensorsSource, SafetensorsSink),
    ".parquet": (ParquetSource, ParquetSink),
    ".arrow": (ArrowSource, ArrowSink),
    ".feather": (ArrowSource, ArrowSink),
    ".csv": (CsvSource, CsvSink),
    ".jsonl": (JsonlSource, JsonlSink),
    ".h5": (Hdf5Source, Hdf5Sink),
    ".hdf5": (Hdf5Source, Hdf5Sink),
    ".lance": (LanceSource, LanceSink),
    "": (FolderSource, FolderSink),
}

#: Formats whose reader takes the name of its own id column.
_NAMED_IDS = (ParquetSource, ArrowSource, CsvSource, JsonlSource, LanceSource, FolderSource)

_COLUMNS: dict[str, Callable[[str, str | None], Column]] = {
    ".npy": read_npy_column,
    ".npz": read_npz_column,
    ".safetensors": read_safetensors_column,
    ".parquet": read_parquet_column,
    ".arrow": read_arrow_column,
    ".feather": read_arrow_column,
    ".csv": read_csv_column,
    ".jsonl": read_jsonl_column,
    ".h5": read_hdf5_column,
    ".hdf5": read_hdf5_column,
    ".lance": read_lance_column,
    ".txt": read_txt_column,
}


_SHAPES: dict[str, Callable[[str], dict[str, tuple[int, ...]]]] = {
    ".npz": npz_shapes,
    ".safetensors": safetensors_shapes,
    ".parquet": parquet_shapes,
    ".arrow": arrow_shapes,
    ".feather": arrow_shapes,
    ".h5": hdf5_shapes,
    ".hdf5": hdf5_shapes,
    ".lance": lance_shapes,
}


def parse_spec(spec: str | Path) -> tuple[str, str | None]:
    """Split ``path:key`` into path and key; a path that exists as written has no key.

    The key begins after the first colon before which stands something that exists, or else a name with a known suffix,
    so that keys may hold slashes and colons, as those of HDF5 groups do.

    Parameters
    ----------
    spec : str or path-like

    Returns
    -------
    path : str
    key : str or None
    """
    text = str(spec)
    if os.path.exists(text):  # Path.exists raises where a key makes the name too long for one
        return text, None
    colons = [place for place, letter in enumerate(text) if letter == ":"]
    # One letter before a colon is a drive on Windows.
    colons = [place for place in colons if text[place + 1 :] and (place > 1 or os.name != "nt")]
    for known in (os.path.exists, lambda path: Path(path).suffix.lower() in _COLUMNS):
        for place in colons:
            if known(text[:place]):
                return text[:place], text[place + 1 :]
    path, _, key = text.rpartition(":")
    if len(path) > 1 and key and "/" not in key and "\\" not in key:
        return path, key
    return text, None


def _suffix(path: str, table: dict[str, Any], what: str) -> str:
    suffix = "" if is_folder(path) else Path(path).suffix.lower()
    if suffix not in table:
        known = ", ".join(name or "a folder of parts" for name in table)
        raise ParameterError(
            f"Got {path!r} for {what}; expected one of {known}. Pass a path with one of these suffixes."
        )
    return suffix


def open_source(spec: str | Path, *, ids: str | Path | bool | None = None, space: Space | None = None) -> Source:
    """Open a matrix of vectors for reading.

    Parameters
    ----------
    spec : str or path-like
        ``path`` or ``path:key``: ``.npy``, ``.npz:key``, ``.safetensors:key``, ``.parquet:column``, ``.arrow:column``,
        ``.feather:column``, ``.csv[:prefix]``, ``.jsonl[:field]``, ``.h5:dataset``, ``.lance:column``, or a folder of parts (``folder[:img_emb]``).
    ids : str, path-like or False, optional
        Where the ids are: a key or column of the same file, or another file's spec. By default the file's own
        (``id`` or ``ids`` in tables, ``ids`` beside an array); ``False`` for none.
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
    if ids is True:
        raise ParameterError(
            "Got ids=True; expected a key, a column, a file, or False. Pass ids=… with the name of the column."
        )
    column: Any = ids if ids is None or ids is False else _find_ids(path, kind, str(ids))
    source = kind(path, key, column)
    if isinstance(column, pa.Array):
        source.files = (*source.files, Path(parse_spec(str(ids))[0]))
    if isinstance(column, pa.Array) and len(column) != source.n:
        raise IdError(
            f"Got {len(column)} ids for {source.n} rows of {source.path}; expected one a row. Pass ids of the same rows as ids=…."
        )
    if space is not None:
        source.space = replace(source.space, **space.to_dict())
    return source


def _find_ids(path: str, kind: type[Source], ids: str) -> pa.Array | str:
    """Return ids read from another file or another array, or the name of the column the reader will read itself."""
    other, _ = parse_spec(ids)
    if Path(other).exists() and not is_folder(other):
        return read_ids(ids)
    if Path(other).suffix.lower() in _COLUMNS:
        raise missing_file(other)
    if issubclass(kind, _NAMED_IDS):
        return ids
    if issubclass(kind, NpySource):
        raise ParameterError(
            f"Got ids={ids!r} for {path}; expected a file that exists, since an .npy holds one array. Pass ids=… with the path of a file of ids."
        )
    return column_ids(_COLUMNS[Path(path).suffix.lower()](path, ids), f"{path}:{ids}")


def open_sink(
    path: str | Path,
    *,
    n: int,
    dim: int,
    dtype: Any = np.float32,
    has_ids: bool = False,
    id_type: pa.DataType | None = None,
    space: Space | None = None,
    force: bool = False,
    parts: list[tuple[str, int]] | None = None,
    like: Source | None = None,
    columns: list[Columns] | None = None,
    column_out: str | None = None,
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
    id_type : pyarrow.DataType, optional
        As which ids are written where the format has types: int64, uint64 or, by default, string.
    space : Space, optional
        Recorded with the vectors.
    force : bool, default=False
        Replace what is there.
    parts : list of (str, int), optional
        For a folder: names and row counts of the parts; by default about a million rows each.
    like : Source, optional
        For a folder: take the names and row counts of this one's parts.
    columns : list of Columns, optional
        What the source's table holds beside its vectors (:attr:`Source.columns`). Each block is then written with its rows, as
        :meth:`Source.scan_table` gives them. What the format cannot hold is in the sink's ``left_out``.
    column_out : str, optional
        Name for the column of the vectors. With ``columns``, that of the source's vectors stays; by default it is replaced.

    Returns
    -------
    Sink

    Raises
    ------
    ParameterError, DtypeError
        At once.
    OutputExistsError
        When the block is entered.
    ShapeError, IdError, DtypeError
        From ``write``, about rows that are not as announced.
    StorageError
        While writing, or at the end when rows are missing. Nothing is left behind.
    """
    suffix = _suffix(str(path), FORMATS, "output")
    check_positive(n, "n", integer=True)
    check_positive(dim, "dim", integer=True)
    if parts is None and like is not None:
        parts = like.parts
    dtype = np.dtype(dtype)
    if dtype not in (np.float16, np.float32, np.float64):
        raise DtypeError(f"Got dtype {dtype}; expected float16, float32 or float64. Pass dtype=… with one of these.")
    return FORMATS[suffix][1](
        path,
        n=n,
        dim=dim,
        dtype=dtype,
        has_ids=has_ids,
        space=space or Space(),
        force=force,
        id_type=id_type,
        parts=parts,
        columns=columns,
        column_out=column_out,
    )


def read_embeddings(
    spec: str | Path,
    *,
    ids: str | Path | bool | None = None,
    space: Space | None = None,
    allow_zero_rows: bool = False,
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


def matrices(spec: str | Path) -> dict[str, str]:
    """Name the matrices that a file or folder holds, layers of a model for example, without reading them.

    Parameters
    ----------
    spec : str or path-like
        A file with several arrays: each with two axes is one. ``file:pattern``: those whose key matches, with ``*`` and
        ``?`` as in a shell. A folder: each file of vectors in it is one.

    Returns
    -------
    dict of str to str
        Spec for :func:`open_source` by key or file name, in natural order: ``layer_2`` before ``layer_10``.

    Raises
    ------
    FileError, CorruptFileError
    ParameterError
        No matrix, or none that matches; or an unknown kind of file.
    """
    path, pattern = parse_spec(spec)
    if is_folder(path):
        kinds = set(FORMATS) - {""}
        files = [p for p in Path(path).iterdir() if p.is_file() and p.suffix.lower() in kinds and p.name[0] != "."]
        stems = [p.stem for p in files]
        named = {p.stem if stems.count(p.stem) == 1 else p.name: p for p in files}
        found = {name: str(p) for name, p in named.items() if pattern is None or fnmatchcase(name, pattern)}
        shapes: dict[str, Any] = dict.fromkeys(named, "")
    else:
        suffix = _suffix(path, FORMATS, "matrices")
        if suffix not in _SHAPES:
            return {pattern or Path(path).stem: str(spec)}
        shapes = _SHAPES[suffix](path)
        found = {
            key: f"{path}:{key}"
            for key, shape in shapes.items()
            if len(shape) == 2 and (pattern is None or key == pattern or fnmatchcase(key, pattern))
        }
    if not found:
        listed = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items()) or "nothing"
        wanted = "" if pattern is None else f" that matches {pattern!r}"
        raise ParameterError(
            f"Got no matrix{wanted} in {path}, which holds {listed}; expected at least one. Pass another key or file."
        )
    return {key: found[key] for key in sorted(found, key=natural)}


def read_column(spec: str | Path) -> np.ndarray:
    """Read labels as text: a column of a table, an array of an archive, or the lines of a ``.txt``.

    Parameters
    ----------
    spec : str or path-like
        ``path:key``; ``.npy`` and ``.txt`` need no key.

    Returns
    -------
    ndarray of object (str), shape (n,)

    Raises
    ------
    FileError, CorruptFileError, ParameterError, ShapeError, DtypeError, IdError
    """
    return column_texts(_read_column(spec), str(spec))


def read_ids(spec: str | Path) -> pa.Array:
    """Read ids: a column as :func:`read_column` finds it, whole numbers as such.

    Parameters
    ----------
    spec : str or path-like

    Returns
    -------
    pyarrow.Array of int64, uint64 or large_string, shape (n,)

    Raises
    ------
    IdError
        An entry is missing, too long, or cannot be an id.
    FileError, CorruptFileError, ParameterError, ShapeError, DtypeError
    """
    return column_ids(_read_column(spec), str(spec))


def _read_column(spec: str | Path) -> Column:
    path, key = parse_spec(spec)
    if is_folder(path):
        raise FileError(f"Got a folder, {path}, for a column; expected a file. Pass the path of one.")
    return _COLUMNS[_suffix(path, _COLUMNS, "a column")](path, key)
