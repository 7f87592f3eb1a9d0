"""Parquet or Lance data sets, split into fragments that workers process: whole files, row groups, or Lance's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence.io._base import BATCH
from congruence.io.formats import parse_spec
from congruence.io.lance import LanceTable
from congruence.io.locations import READ_BYTES, Location, is_url, split_url
from congruence.io.parquet import ParquetTable
from congruence.io.reading import missing_file, natural
from congruence.io.tables import Pieces, Table, TableSource

if TYPE_CHECKING:
    import lance

#: Uncompressed bytes above which a file is divided between row groups. A task reads and writes one fragment, and
#: repeats it if its worker dies.
FRAGMENT_BYTES = 256 * 2**20

#: Number of footers that are read concurrently.
_FOOTERS = 16

T = TypeVar("T")


@dataclass(frozen=True)
class Fragment:
    """The part of a data set that one task reads."""

    name: str  # unique in the data set, and that of the output's fragment
    path: str  # of the file in the data set; empty for a single file and for Lance
    rows: int
    size: int  # approximate number of uncompressed bytes
    start: int = 0  # number of the first row in its file
    groups: Sequence[int] | None = None  # first row group, and the one after the last; None for all
    number: int | None = None  # of a Lance fragment


@dataclass(frozen=True, kw_only=True)
class FragmentedTable(Table):
    """A table in one or many files: a Parquet file or folder, or a version of a Lance data set."""

    place: Location
    version: int | None  # of a Lance data set
    fragments: tuple[Fragment, ...]
    schema: pa.Schema  # of the columns that are read
    row_bytes: int  # approximate, in the file where it is largest

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.place.shown

    @property
    def n(self) -> int:  # type: ignore[override]
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def first_rows(self) -> dict[str, int]:
        """Row number of each fragment's first row in the data set, by the name of the fragment."""
        starts = np.cumsum([0, *(fragment.rows for fragment in self.fragments)]).tolist()
        return {fragment.name: start for fragment, start in zip(self.fragments, starts, strict=False)}

    def without_fragments(self) -> Self:
        """Return the data set without its fragments, as it is sent to a worker."""
        return replace(self, fragments=())

    def path_of(self, fragment: Fragment) -> str:
        """Return the fragment's name for messages."""
        file = f"{self.place.shown}/{fragment.path}" if fragment.path else self.place.shown
        if fragment.number is not None:
            return f"{file} (fragment {fragment.number})"
        groups = fragment.groups
        return file if groups is None else f"{file} (row groups {groups[0]}–{groups[1] - 1})"

    def open(self, fragment: Fragment) -> Table:
        """Open a fragment for reading."""
        name = self.path_of(fragment)
        table: Table
        if fragment.number is not None:
            table = LanceTable(name, _open_lance(self.place, self.version), fragment.number)
        else:
            place = self.place.child(fragment.path)
            buffer = 2**20 if place.local else READ_BYTES
            table = ParquetTable(name, groups=fragment.groups, opens=place.open, buffer=buffer)
        if table.n != fragment.rows:
            problem = f"Got {table.n} rows in {name}; expected {fragment.rows}, as when the job was planned."
            raise CorruptFileError(problem, "Run the job again from the beginning with `force=True`.")
        return table

    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        first = 0
        for fragment in self.fragments:
            if first + fragment.rows > after:
                for row, piece in self.open(fragment).pieces(names, max(after - first, 0), batch):
                    yield first + row, piece
            first += fragment.rows


class DataSet(TableSource):
    """The rows of a list column of a table in fragments, all in order, or those of one fragment."""

    table: FragmentedTable

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The parts that tasks read."""
        return self.table.fragments

    def without_fragments(self) -> Self:
        """Return the data set without its fragments, as it is sent to a worker."""
        sent = copy(self)
        sent.table = self.table.without_fragments()
        return sent

    def open(self, fragment: Fragment) -> TableSource:
        """Open the vectors of a fragment for reading."""
        name, ids = self.table.path_of(fragment), self._id_column or False
        return TableSource(name, self.column, ids, table=self.table.open(fragment), dim=self.dim)


def open_dataset(
    spec: str, *, ids: str | bool | None = None, space: Space | None = None, fragment_bytes: int = FRAGMENT_BYTES
) -> DataSet:
    """Read the footers of a data set, and divide it into fragments.

    ``spec`` is ``path`` or ``path:column``: a ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data
    set; local, or a URL. ``ids`` names the column of ids (by default ``id`` or ``ids``, if there is one), or is False;
    known facts about the ``space`` override those in the files. Parquet files of more than ``fragment_bytes``
    (uncompressed) are divided between row groups.
    """
    place, key = split_spec(spec)
    table, sources = open_fragments(place, fragment_bytes, lambda one: TableSource(one.name, key, ids, table=one))
    first = sources[0]
    if odd := next((one for one in sources if one.dim != first.dim), None):
        raise _of_another_table(place, odd.table, first.table)
    data = DataSet(place.shown, first.column, ids, table=table, dim=first.dim)
    if space is not None:
        data.space = replace(data.space, **space.to_dict())
    return data


def open_fragments(place: Location, fragment_bytes: int, view: Callable[[Table], T]) -> tuple[FragmentedTable, list[T]]:
    """Return a table divided into fragments, and what ``view`` makes of every file."""
    if place.local and not place.exists():
        raise missing_file(place.shown)
    if place.name.lower().endswith(".lance"):
        data = _open_lance(place, None)
        numbered = [(part.fragment_id, part.count_rows()) for part in data.get_fragments()]
        numbered = [(number, rows) for number, rows in numbered if rows]
        if not numbered:
            raise FileError(f"Got no rows in {place.shown}.", "Pass a data set with rows.")
        first: Table = LanceTable(place.shown, data, numbered[0][0])
        size, width = first.row_bytes, max(5, len(str(max(number for number, _ in numbered))))
        version, views = int(data.version), [view(first)]
        fragments = [Fragment(f"fragment-{k:0{width}d}", "", rows, rows * size, number=k) for k, rows in numbered]
    else:
        files = _parquet_files(place)

        def describe(path: str) -> tuple[ParquetTable, T]:
            file = place.child(path)
            table = ParquetTable(file.shown, opens=file.open)
            return table, view(table)

        with ThreadPoolExecutor(_FOOTERS) as pool:
            tables, views = map(list, zip(*pool.map(describe, files), strict=True))
        first, version = tables[0], None
        if odd := next((table for table in tables if not table.schema.equals(first.schema)), None):
            raise _of_another_table(place, odd, first)
        size, fragments = max(table.row_bytes for table in tables), [*_cut_files(place, files, tables, fragment_bytes)]
    known = {"schema": first.schema, "row_bytes": size}
    return FragmentedTable(place=place, version=version, fragments=tuple(fragments), **known), views


def _of_another_table(place: Location, table: Table, first: Table) -> ParameterError:
    odd, usual = (one.name.removeprefix(f"{place.shown}/") for one in (table, first))
    problem = f"Got other columns, or vectors of another width, in {odd} than in {usual} of {place.shown}."
    return ParameterError(problem, "Move files of another table into a folder of their own.")


def split_spec(spec: str) -> tuple[Location, str | None]:
    """Split ``path:column``; in a URL, the column is after the last colon of the path."""
    if not is_url(spec):
        path, key = parse_spec(spec)
        return Location.of(path), key
    return split_url(spec)


def _parquet_files(place: Location) -> list[str]:
    """Return the paths of a data set's files in its folder, in natural order; one empty path for a single file."""
    if not place.is_folder():
        if not place.exists():
            raise missing_file(place.shown)
        if not place.name.lower().endswith(".parquet"):
            problem = f"Got {place.shown} for a data set; expected a .parquet file, a folder of them or a .lance."
            raise ParameterError(problem, "Pass one of these, or leave out `engine=…`.")
        return [""]
    files = data_files(place, (".parquet",))
    if not files:
        raise FileError(f"Got no .parquet files in {place.shown}.", "Pass the folder that contains them.")
    return files


def data_files(place: Location, suffixes: tuple[str, ...]) -> list[str]:
    """Return the paths of a folder's files with these suffixes, at any depth, in natural order.

    As in Spark and Arrow, files whose name, or a folder of whose path, begins with a dot or an underscore are not data.
    """
    paths = [path.split("/") for path in place.files() if path.lower().endswith(suffixes)]
    paths = [parts for parts in paths if not any(part.startswith((".", "_")) for part in parts)]
    return ["/".join(parts) for parts in sorted(paths, key=lambda parts: list(map(natural, parts)))]


def _cut_files(place: Location, files: Sequence[str], tables: Sequence[ParquetTable], most: int) -> Iterator[Fragment]:
    """Yield the fragments of Parquet files: ranges of row groups of about ``most`` bytes."""
    taken: set[str] = set()
    for path, table in zip(files, tables, strict=True):
        sizes = table.group_sizes
        cuts = _cut(sizes, most)
        start = 0
        for k, (low, high) in enumerate(cuts):
            name = (path or place.name).removesuffix(".parquet") + ("" if len(cuts) == 1 else f"-{k:05d}")
            while name in taken:
                name += "x"
            taken.add(name)
            rows, nbytes = (sum(size[k] for size in sizes[low:high]) for k in (0, 1))
            yield Fragment(name, path, rows, nbytes, start, None if len(cuts) == 1 else (low, high))
            start += rows


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


def _open_lance(place: Location, version: int | None) -> lance.LanceDataset:
    """Open a version of a Lance data set, once per process; or the latest version, if None, as it is now."""
    uri, options = place.lance
    if version is None:  # the data set may have been replaced by another one, with the same version numbers
        _open_uri.cache_clear()
    return _open_uri(uri, tuple(sorted((options or {}).items())), version)


@lru_cache(maxsize=4)
def _open_uri(uri: str, options: tuple[tuple[str, str], ...], version: int | None) -> lance.LanceDataset:
    lance = require("lance", extra="lance")
    try:
        return lance.dataset(uri, version, storage_options=dict(options) or None)
    except (OSError, ValueError) as error:
        problem = f"Got no readable Lance data set at {Location(uri).shown} ({str(error)[:200]})."
        raise FileError(problem, "Check the path, and the endpoint and credentials.") from error
