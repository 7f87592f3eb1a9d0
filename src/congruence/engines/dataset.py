"""A Parquet or Lance data set split into fragments that workers process one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.engines.places import Place, is_url
from congruence.errors import FileError, ParameterError
from congruence.stores import Columns, natural, parse_spec
from congruence.stores.fragments import LanceFragment, ParquetFragment, TableFragment

if TYPE_CHECKING:
    import lance


#: Uncompressed bytes above which a file is divided between row groups. A task reads and writes one fragment, and repeats it if its worker dies.
FRAGMENT_BYTES = 256 * 2**20

#: Bytes per read from an object store: at 30 ms per request, half a gigabyte per second.
READ_BYTES = 16 * 2**20

#: Number of footers that are read concurrently.
_FOOTERS = 16


@dataclass(frozen=True)
class Fragment:
    """The part of a data set that one task reads.

    Attributes
    ----------
    name : str
        Unique in the data set; the fragment of the output has the same name.
    path : str
        Path of the file in the data set; empty if the data set is a single file, and for Lance.
    rows : int
    size : int
        Approximate number of uncompressed bytes.
    start : int
        Number of the fragment's first row in its file.
    groups : (int, int) or None
        Range of row groups of a Parquet file; None for the whole file.
    number : int or None
        Number of a Lance fragment.
    """

    name: str
    path: str
    rows: int
    size: int
    start: int = 0
    groups: tuple[int, int] | None = None
    number: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain data."""
        return dict(
            vars(self)
        )  # asdict copies deeply, which took most of the time for a plan of ten thousand fragments

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fragment:
        """Build a fragment from the output of :meth:`to_dict`."""
        groups = data["groups"]
        return cls(**{**data, "groups": None if groups is None else (int(groups[0]), int(groups[1]))})


@dataclass(frozen=True)
class DataSet:
    """A table in one or many files, with its columns of vectors and ids.

    Attributes
    ----------
    place : Place
    kind : str
        "parquet" or "lance".
    columns : Columns
    dim : int
        Width of the vectors.
    dtype : numpy.dtype
        Type of the vectors' numbers.
    has_ids : bool
    id_type : pyarrow.DataType
    space : Space
    row_bytes : int
        Approximate number of bytes per row, in the fragment where it is largest.
    version : int or None
        Version of a Lance data set.
    fragments : tuple of Fragment
    """

    place: Place
    kind: str
    columns: Columns
    dim: int
    dtype: np.dtype
    has_ids: bool
    id_type: pa.DataType
    space: Space
    row_bytes: int
    version: int | None
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        """Rows of all fragments."""
        return sum(fragment.rows for fragment in self.fragments)

    def without_fragments(self) -> DataSet:
        """Return the data set without its fragments, as it is sent to a worker."""
        return replace(self, fragments=())

    def path_of(self, fragment: Fragment) -> str:
        """Return the fragment's name for messages."""
        return name_of(self.place, fragment)

    def open(self, fragment: Fragment) -> TableFragment:
        """Open a fragment for reading. Raises FileError, CorruptFileError, and ShapeError for one without rows."""
        ids: str | bool = self.columns.id or False
        if self.kind == "lance":
            assert fragment.number is not None
            data = open_version(self.place, self.version)
            return LanceFragment(data, fragment.number, self.path_of(fragment), key=self.columns.vector, ids=ids)
        place = self.place.child(fragment.path) if fragment.path else self.place
        return ParquetFragment(
            place.open,
            self.path_of(fragment),
            groups=fragment.groups,
            key=self.columns.vector,
            ids=ids,
            buffer=2**20 if place.local else READ_BYTES,
        )


def name_of(place: Place, fragment: Fragment) -> str:
    """Return the name of a data set's fragment for messages."""
    file = f"{place.shown}/{fragment.path}" if fragment.path else place.shown
    if fragment.number is not None:
        return f"{file} (fragment {fragment.number})"
    return file if fragment.groups is None else f"{file} (row groups {fragment.groups[0]}–{fragment.groups[1] - 1})"


def split_spec(spec: str) -> tuple[Place, str | None]:
    """Split ``path:column`` into a place and the column; in a URL, the column is after the last colon of the path."""
    if not is_url(spec):
        path, key = parse_spec(spec)
        return Place.of(path), key
    parts = urlsplit(spec)
    folder, slash, last = parts.path.rpartition("/")
    name, colon, key = last.partition(":")
    return Place.of(urlunsplit(parts._replace(path=f"{folder}{slash}{name}"))), (key if colon and key else None)


def open_dataset(
    spec: str, *, ids: str | bool | None = None, space: Space | None = None, fragment_bytes: int = FRAGMENT_BYTES
) -> DataSet:
    """Read the footers of a data set, and divide it into fragments.

    Parameters
    ----------
    spec : str
        ``path`` or ``path:column``: a ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set; local, or a URL.
    ids : str or False, optional
        Column of ids; by default ``id`` or ``ids``, if there is one.
    space : Space, optional
        Known facts about the space; they override those in the files.
    fragment_bytes : int, default=268_435_456
        Uncompressed bytes above which a Parquet file is divided between row groups.

    Returns
    -------
    DataSet

    Raises
    ------
    FileError, CorruptFileError
        If a file does not exist, cannot be read or is damaged.
    ParameterError
        If the path is not a data set of these kinds, there is not exactly one column of vectors, or the columns of the files differ.
    """
    place, key = split_spec(spec)
    if place.name.lower().endswith(".lance"):
        return _with_space(_open_lance(place, key, ids), space)
    return _with_space(_open_parquet(place, key, ids, fragment_bytes), space)


def _with_space(data: DataSet, space: Space | None) -> DataSet:
    return data if space is None else replace(data, space=replace(data.space, **space.to_dict()))


def _open_parquet(place: Place, key: str | None, ids: str | bool | None, fragment_bytes: int) -> DataSet:
    files = parquet_files(place)

    def describe(path: str) -> ParquetFragment:
        file = place.child(path) if path else place
        return ParquetFragment(file.open, file.shown, key=key, ids=ids)

    with ThreadPoolExecutor(_FOOTERS) as pool:
        sources = list(pool.map(describe, files))
    first = sources[0]
    for path, source in zip(files, sources, strict=True):
        if source.dim != first.dim or not source.columns[0].schema.equals(first.columns[0].schema):
            raise ParameterError(
                f"Got other columns, or vectors of another width, in {path} than in {files[0]} of {place.shown}; expected the same in all files. "
                "Move files of another table into a folder of their own."
            )
    fragments = cut_files(place, files, [source.group_sizes for source in sources], fragment_bytes)
    return DataSet(
        place,
        "parquet",
        first.columns[0],
        first.dim,
        first.dtype,
        first.has_ids,
        first.id_type,
        first.space,
        max(source.row_bytes for source in sources),
        None,
        fragments,
    )


def cut_files(
    place: Place, files: Sequence[str], groups: Sequence[Sequence[tuple[int, int]]], fragment_bytes: int
) -> tuple[Fragment, ...]:
    """Return the fragments of Parquet files; ``groups`` has the rows and bytes of each row group, by file."""
    fragments: list[Fragment] = []
    taken: set[str] = set()
    for path, sizes in zip(files, groups, strict=True):
        stem = (path or place.name).removesuffix(".parquet")
        cuts = _cut(sizes, fragment_bytes)
        start = 0
        for k, (low, high) in enumerate(cuts):
            name = stem if len(cuts) == 1 else f"{stem}-{k:05d}"
            while name in taken:
                name += "x"
            taken.add(name)
            rows = sum(count for count, _ in sizes[low:high])
            nbytes = sum(total for _, total in sizes[low:high])
            fragments.append(Fragment(name, path, rows, nbytes, start, None if len(cuts) == 1 else (low, high)))
            start += rows
    return tuple(fragments)


def parquet_files(place: Place) -> list[str]:
    """Return the paths of a data set's files in its folder, in natural order; one empty path for a single file. Raises FileError, ParameterError."""
    if not place.is_folder():
        if not place.exists():
            raise FileError(f"Got no file at {place.shown}; expected one. Check the path.")
        if not place.name.lower().endswith(".parquet"):
            raise ParameterError(
                f"Got {place.shown} for a data set; expected a .parquet file, a folder of them or a .lance data set. Pass one of these, or leave out engine=…."
            )
        return [""]
    hidden = ("_", ".")
    files = [
        path
        for path in place.files()
        if path.endswith(".parquet") and not any(part.startswith(hidden) for part in path.split("/"))
    ]
    if not files:
        raise FileError(
            f"Got no .parquet files in {place.shown}; expected some, or a .lance data set. Pass the folder that contains them."
        )
    return sorted(files, key=natural)


def _cut(groups: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return ranges of consecutive row groups of about ``most`` bytes, none without rows."""
    cuts: list[tuple[int, int]] = []
    low = rows = size = 0
    for k, (count, total) in enumerate(groups):
        if rows and size + total > most:
            cuts.append((low, k))
            low, rows, size = k, 0, 0
        rows, size = rows + count, size + total
    return [*cuts, (low, len(groups))] if rows or not cuts else [*cuts[:-1], (cuts[-1][0], len(groups))]


def _open_lance(place: Place, key: str | None, ids: str | bool | None) -> DataSet:
    data = open_version(place, None)
    numbered = [(part.fragment_id, part.count_rows()) for part in data.get_fragments()]
    numbered = [(number, rows) for number, rows in numbered if rows]
    if not numbered:
        raise FileError(f"Got no rows in {place.shown}; expected at least one. Pass a data set with rows.")
    first = LanceFragment(data, numbered[0][0], place.shown, key=key, ids=ids)
    width = len(str(max(number for number, _ in numbered)))
    fragments = [
        Fragment(f"fragment-{number:0{max(width, 5)}d}", "", rows, rows * first.row_bytes, number=number)
        for number, rows in numbered
    ]
    return DataSet(
        place,
        "lance",
        first.columns[0],
        first.dim,
        first.dtype,
        first.has_ids,
        first.id_type,
        first.space,
        first.row_bytes,
        int(data.version),
        tuple(fragments),
    )


def open_version(place: Place, version: int | None) -> lance.LanceDataset:
    """Open a version of a Lance data set, once per process; or the latest version, if None, as it is now. Raises FileError."""
    uri, options = place.lance
    settings = tuple(sorted((options or {}).items()))
    if version is not None:
        return _open_cached(uri, settings, version)
    _open_cached.cache_clear()  # the data set may have been replaced by another one, with the same version numbers
    return _open_uri(uri, settings, None)


def _open_uri(uri: str, options: tuple[tuple[str, str], ...], version: int | None) -> lance.LanceDataset:
    lance = require("lance", extra="lance")
    try:
        return lance.dataset(uri, version, storage_options=dict(options) or None)
    except (OSError, ValueError) as error:
        raise FileError(
            f"Got no readable Lance data set at {Place(uri).shown} ({str(error)[:200]}); expected one. Check the path, and the endpoint and credentials."
        ) from error


_open_cached = lru_cache(maxsize=4)(_open_uri)
