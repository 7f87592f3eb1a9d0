"""The file formats, one record each; the modules that read and write them are imported when they are first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.stores._base import Sink, Source
    from congruence.stores.ids import Column


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of vectors, or of labels only: how it is recognized, read and written.

    ``suffixes`` are in lower case, the usual one first; the empty one stands for a folder of parts. ``key`` is what the
    part of a spec after the colon refers to, None if a file holds one array. ``names_ids``: the reader takes the name
    of the id column. ``streams``: memory does not grow with the rows. The classes and functions are named after
    ``name``, in the ``module`` of this package.
    """

    name: str
    module: str
    suffixes: tuple[str, ...]
    key: str | None = None
    names_ids: bool = False
    streams: bool = True
    directory: bool = False

    @property
    def source(self) -> Callable[..., Source] | None:
        """Function that opens a ``Source`` from a path, a key and ids; None for a format without vectors."""
        return self._find(f"{self.name.capitalize()}Source")

    @property
    def sink(self) -> type[Sink] | None:
        """Class that writes vectors."""
        return self._find(f"{self.name.capitalize()}Sink")

    @property
    def read_column(self) -> Callable[[str, str | None], Column] | None:
        """Function that reads labels or ids, one per row, from a path and a key."""
        return self._find(f"read_{self.name}_column")

    @property
    def shapes(self) -> Callable[[str], dict[str, tuple[int, ...]]] | None:
        """Function that returns the shapes of all arrays in a file by key, for formats that hold several."""
        return self._find(f"{self.name}_shapes")

    @property
    def keeps_ids(self) -> bool:
        """Whether ids can be written."""
        return self.sink is not None and self.sink.keeps_ids

    @property
    def keeps_columns(self) -> bool:
        """Whether the other columns of a table can be written, at least those of types it can hold."""
        return self.sink is not None and self.sink.keeps_columns

    def _find(self, name: str) -> Any:
        return getattr(import_module(f"congruence.stores.{self.module}"), name, None)


#: Every format, in the order in which messages list them.
FORMATS: tuple[Format, ...] = (
    Format(name="npy", module="npy", suffixes=(".npy",)),
    Format(name="npz", module="npy", suffixes=(".npz",), key="key"),
    Format(name="safetensors", module="safetensors_file", suffixes=(".safetensors",), key="key"),
    Format(name="parquet", module="parquet", suffixes=(".parquet",), key="column", names_ids=True),
    Format(name="arrow", module="arrow", suffixes=(".arrow", ".feather"), key="column", names_ids=True),
    Format(name="csv", module="text", suffixes=(".csv",), key="prefix", names_ids=True, streams=False),
    Format(name="jsonl", module="text", suffixes=(".jsonl",), key="field", names_ids=True, streams=False),
    Format(name="hdf5", module="hdf5", suffixes=(".h5", ".hdf5"), key="dataset"),
    Format(name="lance", module="lance", suffixes=(".lance",), key="column", names_ids=True, directory=True),
    Format(name="folder", module="folder", suffixes=("",), key="img_emb", names_ids=True, directory=True),
    Format(name="txt", module="text", suffixes=(".txt",)),
)

_BY_SUFFIX = {suffix: one for one in FORMATS for suffix in one.suffixes}


def _has_vectors(one: Format) -> bool:
    return one.name != "txt"


def _has_columns(one: Format) -> bool:
    return one.name != "folder"


def suffixes(where: Callable[[Format], bool] = _has_vectors) -> list[str]:
    """List the suffixes of the formats that satisfy a condition; by default, those that hold vectors."""
    return [suffix for one in FORMATS if where(one) for suffix in one.suffixes]


def is_folder(path: str | Path) -> bool:
    """Return whether this is a folder of files; a Lance data set is a folder but a single store."""
    return Path(path).is_dir() and Path(path).suffix.lower() != ".lance"


def find_format(path: str | Path, what: str = "vectors", where: Callable[[Format], bool] = _has_vectors) -> Format:
    """Return the format with a path's suffix, if it satisfies a condition; ``what`` is needed, for the error message.

    An existing folder is a folder of parts, whatever its name.
    """
    one = _BY_SUFFIX.get("" if is_folder(path) else Path(path).suffix.lower())
    if one is None or not where(one):
        known = ", ".join(name or "a folder of parts" for name in suffixes(where))
        raise ParameterError(
            f"Got {str(path)!r} for {what}; expected one of {known}.", "Pass a path with one of these suffixes."
        )
    return one


def find_column_format(path: str | Path) -> Format:
    """Return the format with a path's suffix, from which a column of labels or ids can be read."""
    return find_format(path, "a column", _has_columns)


def names_columns(path: str | Path) -> bool:
    """Return whether a path has the suffix of a format from which columns can be read."""
    return Path(path).suffix.lower() in suffixes(_has_columns)


def parse_spec(spec: str | Path) -> tuple[str, str | None]:
    """Split ``path:key`` into path and key; a path that exists as written has no key (None).

    The key begins after the first colon that follows an existing path or a name with a known suffix, so that keys may
    contain slashes and colons, as in HDF5.
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
