"""Parquet or Lance data sets of vectors, of items to encode, or of pairs, split into fragments that workers process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from congruence._utils.ids import as_ids, id_texts
from congruence._utils.optional import require
from congruence._utils.validation import RowNames, check_rows
from congruence.embed.inputs import ID_COLUMNS, Items, choose_column
from congruence.embeddings import Space
from congruence.errors import CorruptFileError, DtypeError, FileError, IdError, ParameterError
from congruence.io import natural, parse_spec
from congruence.io.columns import Columns
from congruence.io.ids import clean_ids, id_type_of
from congruence.io.lance import LanceTable
from congruence.io.locations import Location, is_url
from congruence.io.parquet import ParquetTable
from congruence.io.reading import missing_file, reading
from congruence.io.tables import ARROW_DAMAGE, Table, TableSource

if TYPE_CHECKING:
    import lance

#: Uncompressed bytes above which a file is divided between row groups. A task reads and writes one fragment, and
#: repeats it if its worker dies. Fragments of items are smaller, because encoding an item takes far longer than mapping
#: a vector.
FRAGMENT_BYTES, ITEM_BYTES = 256 * 2**20, 16 * 2**20

#: Bytes per read from an object store: at 30 ms per request, half a gigabyte per second.
READ_BYTES = 16 * 2**20

#: Number of footers that are read concurrently.
_FOOTERS = 16

#: Bytes of source vectors in a block of pairs.
_BLOCK_BYTES = 8 * 2**20

T = TypeVar("T")


@dataclass(frozen=True)
class Fragment:
    """The part of a data set that one task reads."""

    name: str  # unique in the data set, and that of the output's fragment
    path: str  # of the file in the data set; empty for a single file and for Lance
    rows: int
    size: int  # approximate number of uncompressed bytes
    start: int = 0  # number of the first row in its file
    groups: tuple[int, int] | None = None  # range of row groups; None for all
    number: int | None = None  # of a Lance fragment

    def to_dict(self) -> dict[str, object]:
        """Return plain data."""
        return dict(vars(self))  # asdict copies deeply, which took most of the time for ten thousand fragments

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fragment:
        """Build a fragment from the output of ``to_dict``."""
        groups = data["groups"]
        return cls(**{**data, "groups": None if groups is None else (int(groups[0]), int(groups[1]))})


@dataclass(frozen=True, kw_only=True)
class _FragmentedTable:
    """A table in one or many files: a Parquet file or folder, or a version of a Lance data set."""

    place: Location
    version: int | None  # of a Lance data set
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        """Rows of all fragments."""
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

    def table(self, fragment: Fragment) -> Table:
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
            raise CorruptFileError(
                f"Got {table.n} rows in {name}; expected {fragment.rows}, as when the job was planned.",
                "Run the job again from the beginning with `force=True`.",
            )
        return table


@dataclass(frozen=True, kw_only=True)
class DataSet(_FragmentedTable):
    """A table in one or many files, with its columns of vectors and ids."""

    columns: Columns
    dim: int
    dtype: np.dtype
    has_ids: bool
    id_type: pa.DataType
    space: Space
    row_bytes: int  # approximate, in the fragment where it is largest

    @property
    def schema(self) -> pa.Schema:
        """Schema of the columns that are read."""
        return self.columns.schema

    def open(self, fragment: Fragment) -> TableSource:
        """Open the vectors of a fragment for reading."""
        name, ids = self.path_of(fragment), self.columns.id or False
        return TableSource(name, self.columns.vector, ids, table=self.table(fragment))


def open_dataset(
    spec: str, *, ids: str | bool | None = None, space: Space | None = None, fragment_bytes: int = FRAGMENT_BYTES
) -> DataSet:
    """Read the footers of a data set, and divide it into fragments.

    Parameters
    ----------
    spec : str
        ``path`` or ``path:column``: a ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set;
        local, or a URL.
    ids : str or False, optional
        Column of ids; by default ``id`` or ``ids``, if there is one.
    space : Space, optional
        Known facts about the space; they override those in the files.
    fragment_bytes : int, default=268_435_456
        Uncompressed bytes above which a Parquet file is divided between row groups.
    """
    place, key = _split_spec(spec)
    version, sources, fragments = _describe(
        place, fragment_bytes, lambda table: TableSource(table.name, key, ids, table=table)
    )
    first = sources[0]
    if odd := next((one for one in sources if one.dim != first.dim), None):
        raise _of_another_table(place, odd.table, first.table)
    known = first.space if space is None else replace(first.space, **space.to_dict())
    return DataSet(
        place=place,
        version=version,
        fragments=fragments,
        columns=first.columns[0],
        dim=first.dim,
        dtype=first.dtype,
        has_ids=first.has_ids,
        id_type=first.id_type,
        space=known,
        row_bytes=max(source.row_bytes for source in sources),
    )


def _describe(
    place: Location, fragment_bytes: int, view: Callable[[Table], T]
) -> tuple[int | None, list[T], tuple[Fragment, ...]]:
    """Return the version of a Lance data set, what ``view`` makes of every file, and the fragments."""
    if place.name.lower().endswith(".lance"):
        data = _open_lance(place, None)
        numbered = [(part.fragment_id, part.count_rows()) for part in data.get_fragments()]
        numbered = [(number, rows) for number, rows in numbered if rows]
        if not numbered:
            raise FileError(f"Got no rows in {place.shown}.", "Pass a data set with rows.")
        first = LanceTable(place.shown, data, numbered[0][0])
        width = max(5, len(str(max(number for number, _ in numbered))))
        fragments = [
            Fragment(f"fragment-{k:0{width}d}", "", rows, rows * first.row_bytes, number=k) for k, rows in numbered
        ]
        return int(data.version), [view(first)], tuple(fragments)
    files = _parquet_files(place)

    def describe(path: str) -> tuple[ParquetTable, T]:
        file = place.child(path)
        table = ParquetTable(file.shown, opens=file.open)
        return table, view(table)

    with ThreadPoolExecutor(_FOOTERS) as pool:
        tables, views = zip(*pool.map(describe, files), strict=True)
    for table in tables:
        if not table.schema.equals(tables[0].schema):
            raise _of_another_table(place, table, tables[0])
    return None, list(views), _cut_files(place, files, [table.group_sizes for table in tables], fragment_bytes)


def _of_another_table(place: Location, table: Table, first: Table) -> ParameterError:
    odd, usual = (one.name.removeprefix(f"{place.shown}/") for one in (table, first))
    return ParameterError(
        f"Got other columns, or vectors of another width, in {odd} than in {usual} of {place.shown}.",
        "Move files of another table into a folder of their own.",
    )


def _split_spec(spec: str) -> tuple[Location, str | None]:
    """Split ``path:column``; in a URL, the column is after the last colon of the path."""
    if not is_url(spec):
        path, key = parse_spec(spec)
        return Location.of(path), key
    parts = urlsplit(spec)
    folder, slash, last = parts.path.rpartition("/")
    name, colon, key = last.partition(":")
    return Location.of(urlunsplit(parts._replace(path=f"{folder}{slash}{name}"))), (key if colon and key else None)


def _parquet_files(place: Location) -> list[str]:
    """Return the paths of a data set's files in its folder, in natural order; one empty path for a single file."""
    if not place.is_folder():
        if not place.exists():
            raise missing_file(place.shown)
        if not place.name.lower().endswith(".parquet"):
            raise ParameterError(
                f"Got {place.shown} for a data set; expected a .parquet file, a folder of them or a .lance data set.",
                "Pass one of these, or leave out `engine=…`.",
            )
        return [""]
    hidden = ("_", ".")
    files = [
        path
        for path in place.files()
        if path.endswith(".parquet") and not any(part.startswith(hidden) for part in path.split("/"))
    ]
    if not files:
        raise FileError(f"Got no .parquet files in {place.shown}.", "Pass the folder that contains them.")
    return sorted(files, key=natural)


def _cut_files(
    place: Location, files: Sequence[str], groups: Sequence[Sequence[tuple[int, int]]], fragment_bytes: int
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
            rows, nbytes = (sum(size[k] for size in sizes[low:high]) for k in (0, 1))
            fragments.append(Fragment(name, path, rows, nbytes, start, None if len(cuts) == 1 else (low, high)))
            start += rows
    return tuple(fragments)


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
            f"Got no readable Lance data set at {Location(uri).shown} ({str(error)[:200]}).",
            "Check the path, and the endpoint and credentials.",
        ) from error


_open_cached = lru_cache(maxsize=4)(_open_uri)


@dataclass(frozen=True, kw_only=True)
class ItemSet(_FragmentedTable):
    """A table in one or many files, with its columns of items and ids."""

    schema: pa.Schema  # of the columns that are read
    column: str  # of texts; or of images as paths, bytes, or the structures of both that the datasets library writes
    id_column: str | None
    modality: str  # "image" or "text"

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return pa.string() if self.id_column is None else id_type_of(self.schema.field(self.id_column).type)

    @property
    def counts_rows(self) -> bool:
        """Whether ids are row numbers, because there is no column of ids or of paths."""
        paths = self.modality == "image" and _is_text(self.schema.field(self.column).type)
        return self.id_column is None and not paths

    def ids(self, fragment: Fragment, start: int) -> np.ndarray:
        """Return the ids of a fragment: from the column of ids or of image paths, or row numbers from ``start``."""
        if self.counts_rows:
            return id_texts(np.arange(start, start + fragment.rows))
        key = self.id_column or self.column
        name = f"{self.path_of(fragment)}:{key}"
        chunks = [clean_ids(piece.column(0), name, row) for row, piece in self.table(fragment).pieces([key], 0, 65_536)]
        return as_ids(pa.chunked_array(chunks), fragment.rows, name)

    def items(self, piece: pa.RecordBatch, ids: np.ndarray, fragment: Fragment) -> Items:
        """Return the items of a batch; images are read when needed, from paths beside the table's file."""
        with reading(self.path_of(fragment), *ARROW_DAMAGE):  # damage may be detected only when values are read
            column = piece.column(self.column)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if self.modality == "text":
                column = column.cast(pa.large_string())
            values = column.to_pylist()
        base = self.place.child(fragment.path).parent

        def fetch(row: int) -> object:
            value = values[row]
            if isinstance(value, dict):
                value = value.get("path") if value.get("bytes") is None else value["bytes"]
            if value is None:
                raise CorruptFileError(f"Got no item in column {self.column!r}.", "Fill it, or drop the row.")
            if self.modality == "text" or not isinstance(value, str):
                return value
            place = Location.of(value) if is_url(value) or value.startswith("/") else base.child(value)
            content = place.read()
            if content is None:
                raise FileError(f"No image at {place.shown}.", "Check the path.")
            return content

        return Items(self.path_of(fragment), self.modality, ids, fetch, str)


def open_itemset(
    spec: str,
    *,
    column: str | None = None,
    id_column: str | None = None,
    modality: str | None = None,
    fragment_bytes: int = ITEM_BYTES,
) -> ItemSet:
    """Read the footers of a data set of texts or images, and divide it into fragments.

    Parameters
    ----------
    spec : str
        A ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set; local, or a URL. ``path:column``
        also names the column.
    column : str, optional
        Column of texts, or of images as paths or bytes. By default, the table must have exactly one column with a
        default name, as for ``congruence.embed.open_items``.
    id_column : str, optional
        By default ``id`` or ``ids``. Without such a column, the id of an image is its path; other items are identified
        by their row number in the data set.
    modality : {"image", "text"}, optional
        By default determined by the name of the column.
    fragment_bytes : int, default=16_777_216
        Uncompressed bytes above which a Parquet file is divided between row groups.
    """
    place, key = _split_spec(spec)
    version, schemas, fragments = _describe(place, fragment_bytes, lambda table: table.schema)
    fragments = tuple(part for part in fragments if part.rows)  # engines write empty files for empty partitions
    if not fragments:
        raise FileError(f"Got no rows in {place.shown}.", "Pass a data set with rows.")
    schema = schemas[0]
    column, modality = choose_column(place.shown, schema.names, column or key, modality)
    id_column = id_column or next((name for name in ID_COLUMNS if name in schema.names and name != column), None)
    if id_column is not None and id_column not in schema.names:
        raise ParameterError(
            f"Got `id_column={id_column!r}`; expected one of the columns of {place.shown}: {', '.join(schema.names)}.",
            "Pass one of these.",
        )
    _check_items(schema.field(column), modality, place)
    read = pa.schema([field for field in schema if field.name in (column, id_column)])
    return ItemSet(
        place=place,
        version=version,
        fragments=fragments,
        schema=read,
        column=column,
        id_column=id_column,
        modality=modality,
    )


def _check_items(field: pa.Field, modality: str, place: Location) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    has_bytes = pa.types.is_struct(kind) and "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    is_image = has_bytes or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if not _is_text(kind) and not (modality == "image" and is_image):
        expected = "paths, bytes, or structures of bytes and path" if modality == "image" else "texts"
        raise DtypeError(
            f"Got {kind} in column {field.name!r} of {place.shown} for {modality}s; expected {expected}.",
            "Pass another `column=…`, or convert this one.",
        )


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


@dataclass(frozen=True)
class PairedData:
    """Source and target vectors, row by row."""

    source: DataSet
    target: DataSet
    partner: dict[str, Fragment]  # the target's fragment by the name of the source's
    allow_zero_rows: bool = False

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The source's fragments."""
        return self.source.fragments

    def without_fragments(self) -> PairedData:
        """Return the pairs as they are sent to a worker."""
        return replace(self, source=self.source.without_fragments(), target=self.target.without_fragments())

    def blocks(self, fragment: Fragment) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of a fragment's source vectors, shape (b, d_source), and of the paired target vectors."""
        source, target = self.source.open(fragment), self.target.open(self.partner[fragment.name])
        rows = max(256, _BLOCK_BYTES // (4 * max(self.source.dim, self.target.dim)))
        names = self.source.path_of(fragment), self.target.path_of(self.partner[fragment.name])
        row = fragment.start
        # A block may end early at a row group; the rest of the longer block is paired with the other side's next block.
        readers = source.scan(batch=rows), target.scan(batch=rows)
        pending: list[tuple[pa.Array | None, np.ndarray] | None] = [None, None]
        while True:
            for k, reader in enumerate(readers):
                if pending[k] is None:
                    pending[k] = next(reader, None)
            if pending[0] is None or pending[1] is None:
                return
            (ids, x), (other, y) = pending[0], pending[1]
            n = min(len(x), len(y))
            _check_same_ids(ids, other, n, row, names)
            for block, name, own in ((x[:n], names[0], ids), (y[:n], names[1], other)):
                check_rows(block, name, ids=RowNames(own, row), allow_zero_rows=self.allow_zero_rows)
            yield x[:n], y[:n]
            row += n
            pending = [
                None if len(block) == n else (None if own is None else own[n:], block[n:])
                for own, block in ((ids, x), (other, y))
            ]


def _check_same_ids(ids: pa.Array | None, other: pa.Array | None, n: int, row: int, names: tuple[str, str]) -> None:
    if ids is None or other is None:
        return
    a, b = ids[:n], other[:n]
    if not a.equals(b.cast(a.type)):
        at = next(k for k in range(n) if str(a[k]) != str(b[k]))
        raise IdError(
            f"Got id {str(a[at])!r} in row {row + at} of {names[0]} and {str(b[at])!r} in {names[1]}.",
            "Join both models' vectors into one table by id, and pass its two columns.",
        )


def open_pairs(
    source: str,
    target: str,
    *,
    ids: str | bool | None = None,
    target_ids: str | bool | None = None,
    spaces: tuple[Space, Space] = (Space(), Space()),
    allow_zero_rows: bool = False,
) -> PairedData:
    """Open two columns of one data set, or two data sets whose files have the same numbers of rows.

    Parameters
    ----------
    source, target : str
        ``path:column``; see ``open_dataset``.
    ids, target_ids : str or False, optional
        Columns of ids. If both sides have ids, they are compared row by row.
    spaces : (Space, Space), optional
        Known facts about both spaces; they override those in the files.
    allow_zero_rows : bool, default=False
    """
    together = _split_spec(source)[0] == _split_spec(target)[0]
    # Whole files, since row groups of two data sets may differ.
    fragment_bytes = FRAGMENT_BYTES if together else 2**62
    target_ids = target_ids if target_ids is not None else ids
    first = open_dataset(source, ids=ids, space=spaces[0], fragment_bytes=fragment_bytes)
    second = open_dataset(target, ids=target_ids, space=spaces[1], fragment_bytes=fragment_bytes)
    sizes = [[fragment.rows for fragment in data.fragments] for data in (first, second)]
    if sizes[0] != sizes[1]:
        raise ParameterError(
            f"Got {first.rows} rows in {len(sizes[0])} fragments of {first.place.shown} and {second.rows} in "
            f"{len(sizes[1])} of {second.place.shown}; expected the same numbers of rows in each, in the same order.",
            "Join both models' vectors into one table by id, and pass its two columns.",
        )
    partner = {a.name: b for a, b in zip(first.fragments, second.fragments, strict=True)}
    return PairedData(first, second, partner, allow_zero_rows)
