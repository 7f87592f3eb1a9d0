"""The file formats: the class that reads each, by suffix; it is imported when it is first used.

Another package adds a format by an entry point in the group ``congruence.formats``, named after the suffix, that leads
to a subclass of ``Source``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.errors import InputError, ParameterError
from congruence.io.reading import CODECS, reading

if TYPE_CHECKING:
    from congruence.io._base import Sink, Source

#: Module and class of each format, in the order in which messages list them; the empty suffix is a folder of parts.
FORMATS: dict[str, str] = {
    ".npy": "congruence.io.npy:NpySource",
    ".npz": "congruence.io.npy:NpzSource",
    ".safetensors": "congruence.io.safetensors_file:SafetensorsSource",
    ".parquet": "congruence.io.parquet:ParquetSource",
    ".arrow": "congruence.io.arrow:ArrowSource",
    ".feather": "congruence.io.arrow:ArrowSource",
    ".csv": "congruence.io.text:CsvSource",
    ".tsv": "congruence.io.text:CsvSource",
    ".jsonl": "congruence.io.text:JsonlSource",
    ".ndjson": "congruence.io.text:JsonlSource",
    ".json": "congruence.io.text:JsonSource",
    ".h5": "congruence.io.hdf5:Hdf5Source",
    ".hdf5": "congruence.io.hdf5:Hdf5Source",
    ".h5ad": "congruence.io.h5ad:H5adSource",
    ".zarr": "congruence.io.zarr_file:ZarrSource",
    ".pt": "congruence.io.pt:PtSource",
    ".pth": "congruence.io.pt:PtSource",
    ".fvecs": "congruence.io.vecs:FvecsSource",
    ".bvecs": "congruence.io.vecs:VecsSource",
    ".ivecs": "congruence.io.vecs:VecsSource",
    ".vec": "congruence.io.words:VecSource",
    ".bin": "congruence.io.words:BinSource",
    ".faiss": "congruence.io.faiss_file:FaissSource",
    ".index": "congruence.io.faiss_file:FaissSource",
    ".lance": "congruence.io.lance:LanceSource",
    ".vdf": "congruence.io.folder:VdfSource",
    "": "congruence.io.folder:FolderSource",
    ".txt": "congruence.io.words:TxtSource",
}


#: Schemes of URLs of files; those of databases are others.
_REMOTE = ("http", "https", "hf", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "memory")

#: The formats that may be compressed, since they are read as text from front to back.
_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".vec", ".txt")


def suffix_of(path: str | Path) -> str:
    """Return the suffix that names a path's format: of ``a.csv.gz``, it is ``.csv``."""
    name = Path(path)
    inner = Path(name.stem).suffix.lower()
    return inner if name.suffix.lower() in CODECS and inner in _TEXT else name.suffix.lower()


@cache
def _installed() -> dict[str, str]:
    """Return the formats of other packages."""
    from importlib.metadata import entry_points  # takes long, and is needed for unknown suffixes and messages only

    return {point.name.lower(): point.value for point in entry_points(group="congruence.formats")}


@cache
def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def suffixes(where: Callable[[type[Source]], bool] = lambda _: True) -> list[str]:
    """List the suffixes of the formats that satisfy a condition."""
    return [suffix for suffix, place in (FORMATS | _installed()).items() if where(_load(FORMATS.get(suffix, place)))]


def is_folder(path: str | Path) -> bool:
    """Return whether this is a folder of files; a data set of Lance, Zarr or VDF is a folder but a single store."""
    return Path(path).is_dir() and Path(path).suffix.lower() not in (".lance", ".zarr", ".vdf")


def find_format(
    path: str | Path,
    what: str = "vectors",
    where: Callable[[type[Source]], bool] = lambda _: True,
    *,
    there: bool = False,
) -> type[Source]:
    """Return the format with a path's suffix, if it satisfies a condition; ``what`` is needed, for the error message.

    An existing folder is a folder of parts, whatever its name. With ``there``, a path without a file is an error, which
    comes before that of a library that is missing.
    """
    suffix = "" if is_folder(path) else suffix_of(path)
    place = FORMATS.get(suffix) or _installed().get(suffix)
    one: type[Source] | None = None if place is None else _load(place)
    if one is None or not where(one):
        known = ", ".join(name or "a folder of parts" for name in suffixes(where))
        problem = f"Got {str(path)!r} for {what}; expected one of {known}."
        raise ParameterError(problem, "Pass a path with one of these suffixes.")
    if there and "://" not in str(path):
        with reading(path):
            os.stat(path)
    return one


def find_sink(path: str | Path, what: str = "output") -> type[Sink]:
    """Return the class that writes files with a path's suffix."""
    if Path(path).suffix.lower() in CODECS and suffix_of(path) in _TEXT:
        raise ParameterError(f"Got {str(path)!r} for {what}, but nothing is compressed.", "Leave out the last suffix.")
    sink = find_format(path, what, lambda one: one.sink is not None).sink
    assert sink is not None
    return sink


def find_column_format(path: str | Path) -> type[Source]:
    """Return the format with a path's suffix, from which a column of labels or ids can be read."""
    return find_format(path, "a column", lambda one: one.read_column is not None, there=True)


def names_columns(path: str | Path) -> bool:
    """Return whether a path has the suffix of a format from which columns can be read."""
    suffix = suffix_of(path)
    return suffix != "" and (suffix in FORMATS or suffix in _installed())


def parse_spec(spec: str | Path) -> tuple[str, str | None]:
    """Split ``path:key`` into path and key; a path that exists as written has no key (None).

    The key begins after the first colon that follows an existing path or a name with a known suffix, so that keys may
    contain slashes and colons, as in HDF5.
    """
    if not isinstance(spec, str | os.PathLike):
        problem = f"Got {type(spec).__name__} for a path; expected the path of a file of vectors."
        raise InputError(problem, "Vectors in memory need no reading: pass them as they are.")
    text = str(spec)
    if "://" in text and text.partition("://")[0] in _REMOTE:
        return _parse_url(text)
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


def _parse_url(text: str) -> tuple[str, str | None]:
    """Split the URL of a file and a key after the last colon of its path; a copy is read unless its format streams."""
    from congruence.io.locations import fetched, split_url

    place, key = split_url(text)
    if suffix_of(place.name) not in FORMATS.keys() - {""}:
        return place.shown, key
    return fetched(place.uri, lambda name: suffix_of(name) in (".parquet", ".lance")), key
