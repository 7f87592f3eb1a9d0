"""A Parquet or Lance data set split into fragments that workers process one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.engines.places import Place, is_url
from congruence.errors import FileError, ParameterError
from congruence.stores import Columns, natural, parse_spec
from congruence.stores.fragments import LanceFragment, ParquetFragment, TableFragment

__all__ = [
    "FRAGMENT_BYTES",
    "DataSet",
    "Fragment",
    "cut_files",
    "name_of",
    "open_dataset",
    "open_version",
    "parquet_files",
    "split_spec",
]

#: Uncompressed bytes from which a file is cut between two row groups: what one task reads, writes and, after a death, does again.
FRAGMENT_BYTES = 256 * 2**20

#: Bytes that are read from an object store at a time: with 30 ms a request, half a gigabyte a second.
READ_BYTES = 16 * 2**20

#: Footers that are read at a time.
_FOOTERS = 16


@dataclass(frozen=True)
class Fragment:
    """The part of a data set that one task reads.

    Attributes
    ----------
    name : str
        Unique in the data set; the output's fragment has the same.
    path : str
        Of the file, inside of the data set; empty for the file itself and for Lance.
    rows : int
    size : int
        Uncompressed bytes, about.
    start : int
        Number of its first row in its file.
    groups : (int, int) or None
        Row groups of a Parquet file.
    number : int or None
        Of a Lance fragment.
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
        return dict(vars(self))  # asdict copies deeply, which took most of the time of a plan of ten thousand

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Fragment:
        """Rebuild what :meth:`to_dict` gave."""
        groups = facts["groups"]
        return cls(**{**facts, "groups": None if groups is None else (int(groups[0]), int(groups[1]))})


@dataclass(frozen=True)
class DataSet:
    """A table in many files, and which of its columns hold vectors and ids.

    Attributes
    ----------
    place : Place
    kind : str
        "parquet" or "lance".
    columns : Columns
    dim : int
    dtype : numpy.dtype
    has_ids : bool
    id_type : pyarrow.DataType
    space : Space
    row_bytes : int
        Of the widest fragment.
    version : int or None
        Of a Lance data set.
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
        return sum(one.rows for one in self.fragments)

    def alone(self) -> DataSet:
        """Return what a worker needs to open a fragment that it is given."""
        return replace(self, fragments=())

    def path_of(self, fragment: Fragment) -> str:
        """Return the fragment's name for messages."""
        return name_of(self.place, fragment)

    def open(self, fragment: Fragment) -> TableFragment:
        """Open a fragment for reading. Raises FileError, CorruptFileError, and ShapeError for one without rows."""
        ids: str | bool = self.columns.id or False
        if self.kind == "lance":
            assert fragment.number is not None
            data = open_version(*self._lance_key())
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

    def _lance_key(self) -> tuple[str, tuple[tuple[str, str], ...], int | None]:
        uri, options = self.place.lance
        return uri, tuple(sorted((options or {}).items())), self.version


def name_of(place: Place, fragment: Fragment) -> str:
    """Return the name of a data set's fragment for messages."""
    where = f"{place.shown}/{fragment.path}" if fragment.path else place.shown
    if fragment.number is not None:
        return f"{where} (fragment {fragment.number})"
    return where if fragment.groups is None else f"{where} (row groups {fragment.groups[0]}–{fragment.groups[1] - 1})"


def split_spec(spec: str) -> tuple[Place, str | None]:
    """Split ``path:column`` into a place and the column; of a URL, the column stands after the last colon of its path."""
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
    """Read what a data set's footers tell, and cut it into fragments.

    Parameters
    ----------
    spec : str
        ``path`` or ``path:column``: a ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set; local, or a URL.
    ids : str or False, optional
        Column of ids; by default ``id`` or ``ids``, if there is one.
    space : Space, optional
        What is known about the origin; fills in and overrides what the files say.
    fragment_bytes : int, default=268_435_456
        Uncompressed bytes from which a Parquet file is cut between row groups.

    Returns
    -------
    DataSet

    Raises
    ------
    FileError, CorruptFileError
        If a file cannot be read, or a file is damaged.
    ParameterError
        No data set of these kinds; no column of vectors, or several; files whose columns differ.
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
        found = list(pool.map(describe, files))
    first = found[0]
    for path, one in zip(files, found, strict=True):
        if one.dim != first.dim or not one.columns[0].schema.equals(first.columns[0].schema):
            raise ParameterError(
                f"Got other columns, or vectors of another width, in {path} than in {files[0]} of {place.shown}; expected the same in all files. "
                "Move files of another table into a folder of their own."
            )
    fragments = cut_files(place, files, [one.group_sizes for one in found], fragment_bytes)
    return DataSet(
        place,
        "parquet",
        first.columns[0],
        first.dim,
        first.dtype,
        first.has_ids,
        first.id_type,
        first.space,
        max(one.row_bytes for one in found),
        None,
        fragments,
    )


def cut_files(
    place: Place, files: Sequence[str], groups: Sequence[Sequence[tuple[int, int]]], fragment_bytes: int
) -> tuple[Fragment, ...]:
    """Return the fragments of Parquet files, whose row groups' rows and bytes are given."""
    fragments: list[Fragment] = []
    taken: set[str] = set()
    for path, one in zip(files, groups, strict=True):
        stem = (path or place.name).removesuffix(".parquet")
        cuts = _cut(one, fragment_bytes)
        start = 0
        for k, (low, high) in enumerate(cuts):
            name = stem if len(cuts) == 1 else f"{stem}-{k:05d}"
            while name in taken:
                name += "x"
            taken.add(name)
            rows = sum(size[0] for size in one[low:high])
            size = sum(size[1] for size in one[low:high])
            fragments.append(Fragment(name, path, rows, size, start, None if len(cuts) == 1 else (low, high)))
            start += rows
    return tuple(fragments)


def parquet_files(place: Place) -> list[str]:
    """Return the paths of the files inside of a data set, in natural order; one empty path for a single file."""
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
            f"Got no .parquet files in {place.shown}; expected some, or a .lance data set. Pass the folder that holds them."
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
    uri, options = place.lance
    data = open_version(uri, tuple(sorted((options or {}).items())), None)
    numbered = [(one.fragment_id, one.count_rows()) for one in data.get_fragments()]
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


@lru_cache(maxsize=4)
def open_version(uri: str, options: tuple[tuple[str, str], ...], version: int | None) -> Any:
    """Open a data set of Lance, once a process where the version is known."""
    lance = require("lance", extra="lance")
    if version is None:
        open_version.cache_clear()
    try:
        return lance.dataset(uri, version, storage_options=dict(options) or None)
    except (OSError, ValueError) as error:
        raise FileError(
            f"Got no readable Lance data set at {Place(uri).shown} ({str(error)[:200]}); expected one. Check the path, and the endpoint and credentials."
        ) from error
