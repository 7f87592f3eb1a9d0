"""A Parquet or Lance data set of texts or images, split into fragments that workers encode one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.ids import as_ids, id_texts
from congruence.embed.inputs import ID_COLUMNS, Items, choose_column
from congruence.engines.dataset import Fragment, cut_files, name_of, open_version, parquet_files, split_spec
from congruence.engines.places import Place, is_url
from congruence.errors import CorruptFileError, DtypeError, FileError, ParameterError
from congruence.stores.ids import clean_ids, id_type_of
from congruence.stores.reading import reading

__all__ = ["ITEM_BYTES", "ItemSet", "open_itemset"]

#: Uncompressed bytes from which a file of items is cut between two row groups. An item costs far more than a vector's product, so that
#: fragments are smaller than those of vectors: what a death costs is a model's time.
ITEM_BYTES = 16 * 2**20

#: Footers that are read at a time.
_FOOTERS = 16

_DAMAGE = (pa.ArrowException, OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class ItemSet:
    """A table in many files, and which of its columns hold items and ids.

    Attributes
    ----------
    place : Place
    kind : str
        "parquet" or "lance".
    schema : pyarrow.Schema
        Of the columns that are read.
    column : str
        Of texts; of paths of images, of images' bytes, or of structures of ``bytes`` and ``path`` as the ``datasets`` library writes them.
    id_column : str or None
    modality : {"image", "text"}
    version : int or None
        Of a Lance data set.
    fragments : tuple of Fragment
    """

    place: Place
    kind: str
    schema: pa.Schema
    column: str
    id_column: str | None
    modality: str
    version: int | None
    fragments: tuple[Fragment, ...]

    @property
    def rows(self) -> int:
        """Rows of all fragments."""
        return sum(one.rows for one in self.fragments)

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return pa.string() if self.id_column is None else id_type_of(self.schema.field(self.id_column).type)

    @property
    def counts_rows(self) -> bool:
        """Whether ids are the numbers of the rows: there is no column of ids, nor one of paths."""
        return self.id_column is None and not (self.modality == "image" and _is_text(self._item_type))

    @property
    def _item_type(self) -> pa.DataType:
        return self.schema.field(self.column).type

    def alone(self) -> ItemSet:
        """Return what a worker needs to read a fragment that it is given."""
        return replace(self, fragments=())

    def path_of(self, fragment: Fragment) -> str:
        """Return the fragment's name for messages."""
        return name_of(self.place, fragment)

    def batches(self, fragment: Fragment, names: list[str], batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield ranges of at most ``batch`` rows of the columns named, and the numbers of their first rows in the fragment.

        Raises
        ------
        FileError, CorruptFileError
            Also where there are fewer or more rows than when the work was planned.
        """
        row = 0
        name = self.path_of(fragment)
        with reading(name, *_DAMAGE):
            for piece in self._pieces(fragment, names, batch):
                yield row, piece
                row += len(piece)
        if row != fragment.rows:
            raise CorruptFileError(
                f"Got {row} rows in {name}; expected {fragment.rows}, as when the work was planned. Run it again from the beginning with force=True."
            )

    def _pieces(self, fragment: Fragment, names: list[str], batch: int) -> Iterator[pa.RecordBatch]:
        if self.kind == "lance":
            uri, options = self.place.lance
            data = open_version(uri, tuple(sorted((options or {}).items())), self.version)
            yield from data.get_fragment(fragment.number).to_batches(columns=names, batch_size=batch, batch_readahead=1)
            return
        import pyarrow.parquet as pq

        place = self.place.child(fragment.path) if fragment.path else self.place
        with place.open() as handle, pq.ParquetFile(handle) as file:
            groups = range(*(fragment.groups or (0, file.num_row_groups)))
            yield from file.iter_batches(batch_size=batch, columns=names, row_groups=groups, use_threads=False)

    def ids(self, fragment: Fragment, start: int) -> np.ndarray:
        """Return the ids of a fragment: its column's; paths of images; or numbers of rows, from ``start``. Raises IdError where they repeat."""
        if self.counts_rows:
            return id_texts(np.arange(start, start + fragment.rows))
        key = self.id_column or self.column
        name = f"{self.path_of(fragment)}:{key}"
        found = [clean_ids(piece.column(0), name, row) for row, piece in self.batches(fragment, [key], 65_536)]
        return as_ids(pa.chunked_array(found), fragment.rows, name)

    def items(self, piece: pa.RecordBatch, ids: np.ndarray, fragment: Fragment) -> Items:
        """Return the items of rows, each fetched when its turn comes; paths begin at the folder of their table."""
        with reading(self.path_of(fragment), *_DAMAGE):  # damage may show only when values are looked at
            column = piece.column(self.column)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if self.modality == "text":
                column = column.cast(pa.large_string())
            values = column.to_pylist()
        base = (self.place.child(fragment.path) if fragment.path else self.place).parent

        def fetch(row: int) -> object:
            value = values[row]
            if isinstance(value, dict):
                value = value.get("path") if value.get("bytes") is None else value["bytes"]
            if value is None:
                raise CorruptFileError(
                    f"Got no item in column {self.column!r}; expected one. Fill it, or drop the row."
                )
            return _content(base, value) if self.modality == "image" and isinstance(value, str) else value

        return Items(self.path_of(fragment), self.modality, ids, fetch, str)


def _content(base: Place, path: str) -> bytes:
    """Return the bytes of an image's file. Raises FileError."""
    place = Place.of(path) if is_url(path) or path.startswith("/") else base.child(path)
    found = place.read()
    if found is None:
        raise FileError(f"Got no image at {place.shown}; expected one. Check the path.")
    return found


def open_itemset(
    spec: str,
    *,
    column: str | None = None,
    id_column: str | None = None,
    modality: str | None = None,
    fragment_bytes: int = ITEM_BYTES,
) -> ItemSet:
    """Read what the footers of a data set of texts or images tell, and cut it into fragments.

    Parameters
    ----------
    spec : str
        A ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set; local, or a URL. ``path:column`` names the column too.
    column : str, optional
        Of texts, or of images as paths or bytes; by default the only one of the usual names, as for :func:`congruence.embed.open_items`.
    id_column : str, optional
        By default ``id`` or ``ids``; else images go by their path, and others by the number of their row in the data set.
    modality : {"image", "text"}, optional
        By default what the column's name says.
    fragment_bytes : int, default=16_777_216
        Uncompressed bytes from which a Parquet file is cut between row groups.

    Returns
    -------
    ItemSet

    Raises
    ------
    FileError, CorruptFileError
        Nothing there, or no rows.
    ParameterError
        No data set of these kinds; which column is meant is not clear, or it is not there; files whose columns differ.
    DtypeError
        The column holds neither text nor, for images, bytes.
    """
    place, key = split_spec(spec)
    column = column or key
    version: int | None = None
    if place.name.lower().endswith(".lance"):
        kind, (schema, fragments, version) = "lance", _of_lance(place)
    else:
        kind, (schema, fragments) = "parquet", _of_parquet(place, fragment_bytes)
    if not fragments:
        raise FileError(f"Got no rows in {place.shown}; expected at least one. Pass a data set with rows.")
    column, modality = choose_column(place.shown, schema.names, column, modality)
    id_column = id_column or next((name for name in ID_COLUMNS if name in schema.names and name != column), None)
    if id_column is not None and id_column not in schema.names:
        raise ParameterError(
            f"Got id_column={id_column!r}; expected one of the columns of {place.shown}: {', '.join(schema.names)}. Pass one of these."
        )
    _check_items(schema.field(column), modality, place)
    names = [name for name in schema.names if name in (column, id_column)]
    read = pa.schema([schema.field(name) for name in names])
    return ItemSet(place, kind, read, column, id_column, modality, version, fragments)


def _check_items(field: pa.Field, modality: str, place: Place) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    wraps = pa.types.is_struct(kind) and "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    if _is_text(kind) or (
        modality == "image" and (wraps or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    ):
        return
    wanted = "paths, bytes, or structures of bytes and path" if modality == "image" else "texts"
    raise DtypeError(
        f"Got {kind} in column {field.name!r} of {place.shown} for {modality}s; expected {wanted}. Pass another column=…, or convert this one."
    )


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _of_parquet(place: Place, fragment_bytes: int) -> tuple[pa.Schema, tuple[Fragment, ...]]:
    import pyarrow.parquet as pq

    files = parquet_files(place)

    def describe(path: str) -> tuple[pa.Schema, list[tuple[int, int]]]:
        file = place.child(path) if path else place
        with reading(file.shown, *_DAMAGE), file.open() as handle, pq.ParquetFile(handle) as table:
            groups = [table.metadata.row_group(k) for k in range(table.num_row_groups)]
            return table.schema_arrow, [(one.num_rows, one.total_byte_size) for one in groups]

    with ThreadPoolExecutor(_FOOTERS) as pool:
        found = list(pool.map(describe, files))
    first = found[0][0]
    for path, (schema, _) in zip(files, found, strict=True):
        if not schema.equals(first):
            raise ParameterError(
                f"Got other columns in {path} than in {files[0]} of {place.shown}; expected the same in all files. Move files of another table into a folder of their own."
            )
    fragments = cut_files(place, files, [groups for _, groups in found], fragment_bytes)
    return first, tuple(one for one in fragments if one.rows)  # engines write files without rows for empty partitions


def _of_lance(place: Place) -> tuple[pa.Schema, tuple[Fragment, ...], int]:
    uri, options = place.lance
    data: Any = open_version(uri, tuple(sorted((options or {}).items())), None)
    numbered = [(one.fragment_id, one.count_rows()) for one in data.get_fragments()]
    row_bytes = data.head(16).nbytes // 16
    fragments = [
        Fragment(f"fragment-{number:05d}", "", rows, rows * row_bytes, number=number)
        for number, rows in numbered
        if rows
    ]
    return data.schema, tuple(fragments), int(data.version)
