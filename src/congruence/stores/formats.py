"""The file formats: one record each, from which readers, writers, messages and the table in the docs are generated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from congruence.errors import ParameterError
from congruence.stores._base import Source
from congruence.stores._sink import Sink
from congruence.stores.arrow import ArrowSink, ArrowSource, arrow_shapes, read_arrow_column
from congruence.stores.folder import FolderSink, FolderSource
from congruence.stores.hdf5 import Hdf5Sink, Hdf5Source, hdf5_shapes, read_hdf5_column
from congruence.stores.ids import Column
from congruence.stores.lance import LanceSink, LanceSource, lance_shapes, read_lance_column
from congruence.stores.npy import NpySink, NpySource, NpzSink, NpzSource, npz_shapes, read_npy_column, read_npz_column
from congruence.stores.parquet import ParquetSink, ParquetSource, parquet_shapes, read_parquet_column
from congruence.stores.safetensors_file import (
    SafetensorsSink,
    SafetensorsSource,
    read_safetensors_column,
    safetensors_shapes,
)
from congruence.stores.text import CsvSource, JsonlSource, read_csv_column, read_jsonl_column, read_txt_column
from congruence.stores.text_sinks import CsvSink, JsonlSink


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of vectors, or of labels only: how it is recognized, read and written.

    Attributes
    ----------
    suffixes : tuple of str
        In lower case, the usual one first; the empty suffix stands for a folder of parts.
    source : callable, optional
        Opens a :class:`Source` from a path, a key and ids. None for a format without vectors.
    sink : type of Sink, optional
        Writes vectors.
    read_column : callable, optional
        Reads labels or ids, one per row, from a path and a key.
    shapes : callable, optional
        Returns the shapes of all arrays in a file by key, for formats that hold several.
    key : str, optional
        What the part of a spec after the colon refers to. None if a file holds one array.
    key_required : bool, default=True
        False if the format has a default matrix that is read without a key, however many others there are.
    names_ids : bool, default=False
        Whether the reader takes the name of the id column, and reads it together with the vectors.
    streams : bool, default=True
        Whether a matrix is read in memory that does not grow with its rows.
    extra : str, optional
        Optional dependencies it needs: ``pip install congruence[extra]``.
    reads, writes, ids, space : str
        What is read and written, where the ids are, and where the space is stored; for the docs.
    """

    suffixes: tuple[str, ...]
    source: Callable[[str, str | None, pa.Array | str | bool | None], Source] | None = None
    sink: type[Sink] | None = None
    read_column: Callable[[str, str | None], Column] | None = None
    shapes: Callable[[str], dict[str, tuple[int, ...]]] | None = None
    key: str | None = None
    key_required: bool = True
    names_ids: bool = False
    streams: bool = True
    extra: str | None = None
    reads: str = ""
    writes: str = ""
    ids: str = "–"
    space: str = ""

    @property
    def directory(self) -> bool:
        """Whether it is a folder rather than a file."""
        return self.sink is not None and self.sink.directory

    @property
    def keeps_ids(self) -> bool:
        """Whether ids can be written."""
        return self.sink is not None and self.sink.keeps_ids

    @property
    def keeps_columns(self) -> bool:
        """Whether the other columns of a table can be written, at least those of types it can hold."""
        return self.sink is not None and self.sink.keeps_columns

    @property
    def specs(self) -> list[str]:
        """Specs as in the docs: ``x.csv``, ``x.csv:prefix``."""
        names = [f"x{suffix}" if suffix else "folder" for suffix in self.suffixes]
        if self.key is None:
            return names
        return [spec for name in names for spec in ([] if self.key_required else [name]) + [f"{name}:{self.key}"]]


#: Every format, in the order in which messages and the docs list them.
FORMATS: tuple[Format, ...] = (
    Format(
        suffixes=(".npy",),
        source=NpySource,
        sink=NpySink,
        read_column=read_npy_column,
        reads="any order and byte order",
        writes="yes",
        space="`x.npy.space.json`",
    ),
    Format(
        suffixes=(".npz",),
        source=NpzSource,
        sink=NpzSink,
        read_column=read_npz_column,
        shapes=npz_shapes,
        key="key",
        reads="stored or deflated",
        writes="`vectors`, `ids` ([or bytes](#ids))",
        ids="array `ids`",
        space="`x.npz.space.json`",
    ),
    Format(
        suffixes=(".safetensors",),
        source=SafetensorsSource,
        sink=SafetensorsSink,
        read_column=read_safetensors_column,
        shapes=safetensors_shapes,
        key="key",
        reads="F16, F32, F64, BF16, integers",
        writes="`vectors`",
        space="metadata",
    ),
    Format(
        suffixes=(".parquet",),
        source=ParquetSource,
        sink=ParquetSink,
        read_column=read_parquet_column,
        shapes=parquet_shapes,
        key="column",
        names_ids=True,
        reads="lists, fixed or variable",
        writes="the table read, or `vector` as fixed-size list and `id`",
        ids="column `id`",
        space="metadata",
    ),
    Format(
        suffixes=(".arrow", ".feather"),
        source=ArrowSource,
        sink=ArrowSink,
        read_column=read_arrow_column,
        shapes=arrow_shapes,
        key="column",
        names_ids=True,
        reads="Arrow files, streams",
        writes="the same",
        ids="column `id`",
        space="metadata",
    ),
    Format(
        suffixes=(".csv",),
        source=CsvSource,
        sink=CsvSink,
        read_column=read_csv_column,
        key="prefix",
        key_required=False,
        names_ids=True,
        streams=False,
        reads="header; columns with the prefix, or all but the id",
        writes="the table read, or `id`, `v0`, `v1` …",
        ids="column `id`",
        space="side file",
    ),
    Format(
        suffixes=(".jsonl",),
        source=JsonlSource,
        sink=JsonlSink,
        read_column=read_jsonl_column,
        key="field",
        key_required=False,
        names_ids=True,
        streams=False,
        reads="`vector` or `embedding`",
        writes="the objects read, or `vector`, `id`",
        ids="field `id`",
        space="side file",
    ),
    Format(
        suffixes=(".h5", ".hdf5"),
        source=Hdf5Source,
        sink=Hdf5Sink,
        read_column=read_hdf5_column,
        shapes=hdf5_shapes,
        key="dataset",
        extra="hdf5",
        reads="any dataset",
        writes="`vectors`, `ids` ([or bytes](#ids))",
        ids="dataset `ids`",
        space="attribute",
    ),
    Format(
        suffixes=(".lance",),
        source=LanceSource,
        sink=LanceSink,
        read_column=read_lance_column,
        shapes=lance_shapes,
        key="column",
        names_ids=True,
        extra="lance",
        reads="lists, fixed or variable",
        writes="the table read, or `vector` as fixed-size list and `id`",
        ids="column `id`",
        space="metadata",
    ),
    Format(
        suffixes=("",),
        source=FolderSource,
        sink=FolderSink,
        key="img_emb",
        key_required=False,
        names_ids=True,
        reads="parts `.npy` or `.parquet`, in natural order",
        writes="same part names, each with its columns",
        ids="parts' `id`, or clip-retrieval's `metadata/`",
        space="`space.json`, always written",
    ),
    Format(suffixes=(".txt",), read_column=read_txt_column),
)

_BY_SUFFIX = {suffix: one for one in FORMATS for suffix in one.suffixes}
_FOLDERS = tuple(suffix for suffix, one in _BY_SUFFIX.items() if suffix and one.directory)


def _has_vectors(one: Format) -> bool:
    return one.source is not None


def _has_columns(one: Format) -> bool:
    return one.read_column is not None


def suffixes(where: Callable[[Format], bool] = _has_vectors) -> list[str]:
    """List the suffixes of the formats that satisfy a condition; by default, those that hold vectors.

    Parameters
    ----------
    where : callable
        Function of a :class:`Format` that returns a bool.

    Returns
    -------
    list of str
        The empty suffix stands for a folder of parts.
    """
    return [suffix for one in FORMATS if where(one) for suffix in one.suffixes]


def is_folder(path: str | Path) -> bool:
    """Return whether this is a folder of files; a Lance data set is a folder but a single store."""
    return Path(path).is_dir() and Path(path).suffix.lower() not in _FOLDERS


def find_format(path: str | Path, what: str = "vectors", where: Callable[[Format], bool] = _has_vectors) -> Format:
    """Return the format with a path's suffix.

    Parameters
    ----------
    path : path-like
        An existing folder is a folder of parts, whatever its name.
    what : str, default="vectors"
        What is needed, for the error message.
    where : callable
        Condition on the :class:`Format`; by default, that it holds vectors.

    Returns
    -------
    Format

    Raises
    ------
    ParameterError
        If no format that satisfies the condition has this suffix.
    """
    one = _BY_SUFFIX.get("" if is_folder(path) else Path(path).suffix.lower())
    if one is None or not where(one):
        known = ", ".join(name or "a folder of parts" for name in suffixes(where))
        raise ParameterError(
            f"Got {str(path)!r} for {what}; expected one of {known}. Pass a path with one of these suffixes."
        )
    return one


def find_column_format(path: str | Path) -> Format:
    """Return the format with a path's suffix, if a column of labels or ids can be read from it. Raises ParameterError."""
    return find_format(path, "a column", _has_columns)


def names_columns(path: str | Path) -> bool:
    """Return whether a path has the suffix of a format from which columns can be read."""
    return Path(path).suffix.lower() in suffixes(_has_columns)


def parse_spec(spec: str | Path) -> tuple[str, str | None]:
    """Split ``path:key`` into path and key; a path that exists as written has no key.

    The key begins after the first colon that follows an existing path or a name with a known suffix,
    so that keys may contain slashes and colons, as in HDF5.

    Parameters
    ----------
    spec : str or path-like

    Returns
    -------
    path : str
    key : str or None
    """
    text = str(spec)
    if os.path.exists(text):  # Path.exists raises if a key makes the name too long
        return text, None
    colons = [place for place, letter in enumerate(text) if letter == ":"]
    # One letter before a colon is a drive on Windows.
    colons = [place for place in colons if text[place + 1 :] and (place > 1 or os.name != "nt")]
    for known in (os.path.exists, names_columns):
        for place in colons:
            if known(text[:place]):
                return text[:place], text[place + 1 :]
    path, _, key = text.rpartition(":")
    if len(path) > 1 and key and "/" not in key and "\\" not in key:
        return path, key
    return text, None
