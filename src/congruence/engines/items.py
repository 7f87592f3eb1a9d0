"""A Parquet or Lance data set of texts or images, split into fragments that workers encode one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from congruence._utils.ids import as_ids, id_texts
from congruence.embed.inputs import ID_COLUMNS, Items, choose_column
from congruence.engines.dataset import Fragment, cut_files, name_of, open_version, parquet_files, split_spec
from congruence.engines.places import Place, is_url
from congruence.errors import CorruptFileError, DtypeError, FileError, ParameterError
from congruence.stores.ids import clean_ids, id_type_of
from congruence.stores.reading import reading


#: Uncompressed bytes above which a file of items is divided between row groups. Fragments are smaller than those of vectors, because encoding
#: an item takes far longer than mapping a vector, and a fragment is repeated if its worker dies.
ITEM_BYTES = 16 * 2**20

#: Number of footers that are read concurrently.
_FOOTERS = 16

_DAMAGE = (pa.ArrowException, OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class ItemSet:
    """A table in one or many files, with its columns of items and ids.

    Attributes
    ----------
    place : Place
    kind : str
        "parquet" or "lance".
    schema : pyarrow.Schema
        Schema of the columns that are read.
    column : str
        Column of texts; or of images as paths, bytes, or structures of ``bytes`` and ``path`` as written by the ``datasets`` library.
    id_column : str or None
    modality : {"image", "text"}
    version : int or None
        Version of a Lance data set.
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
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return pa.string() if self.id_column is None else id_type_of(self.schema.field(self.id_column).type)

    @property
    def counts_rows(self) -> bool:
        """Whether ids are row numbers, because there is no column of ids or of paths."""
        return self.id_column is None and not (self.modality == "image" and _is_text(self._item_type))

    @property
    def _item_type(self) -> pa.DataType:
        return self.schema.field(self.column).type

    def without_fragments(self) -> ItemSet:
        """Return the data set without its fragments, as it is sent to a worker."""
        return replace(self, fragments=())

    def path_of(self, fragment: Fragment) -> str:
        """Return the fragment's name for messages."""
        return name_of(self.place, fragment)

    def batches(self, fragment: Fragment, names: list[str], batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of at most ``batch`` rows of the named columns, each with the number of its first row in the fragment.

        Raises
        ------
        FileError, CorruptFileError
            If the file cannot be read, is damaged, or has more or fewer rows than when the job was planned.
        """
        row = 0
        name = self.path_of(fragment)
        with reading(name, *_DAMAGE):
            for piece in self._pieces(fragment, names, batch):
                yield row, piece
                row += len(piece)
        if row != fragment.rows:
            raise CorruptFileError(
                f"Got {row} rows in {name}; expected {fragment.rows}, as when the job was planned. Run the job again from the beginning with force=True."
            )

    def _pieces(self, fragment: Fragment, names: list[str], batch: int) -> Iterator[pa.RecordBatch]:
        if self.kind == "lance":
            data = open_version(self.place, self.version)
            yield from data.get_fragment(fragment.number).to_batches(columns=names, batch_size=batch, batch_readahead=1)
            return
        import pyarrow.parquet as pq

        place = self.place.child(fragment.path) if fragment.path else self.place
        with place.open() as handle, pq.ParquetFile(handle) as file:
            groups = range(*(fragment.groups or (0, file.num_row_groups)))
            yield from file.iter_batches(batch_size=batch, columns=names, row_groups=groups, use_threads=False)

    def ids(self, fragment: Fragment, start: int) -> np.ndarray:
        """Return the ids of a fragment: from the column of ids or of image paths, or row numbers from ``start``. Raises IdError for repeated ids."""
        if self.counts_rows:
            return id_texts(np.arange(start, start + fragment.rows))
        key = self.id_column or self.column
        name = f"{self.path_of(fragment)}:{key}"
        chunks = [clean_ids(piece.column(0), name, row) for row, piece in self.batches(fragment, [key], 65_536)]
        return as_ids(pa.chunked_array(chunks), fragment.rows, name)

    def items(self, piece: pa.RecordBatch, ids: np.ndarray, fragment: Fragment) -> Items:
        """Return the items of a batch, whose images are read when they are needed; paths are relative to the folder of the table's file."""
        with reading(self.path_of(fragment), *_DAMAGE):  # damage may be detected only when values are read
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
    content = place.read()
    if content is None:
        raise FileError(f"Got no image at {place.shown}; expected one. Check the path.")
    return content


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
        A ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set; local, or a URL. ``path:column`` also names the column.
    column : str, optional
        Column of texts, or of images as paths or bytes. By default, the table must have exactly one column with a default name, as for
        :func:`congruence.embed.open_items`.
    id_column : str, optional
        By default ``id`` or ``ids``. Without such a column, the id of an image is its path; other items are identified by their row number in
        the data set.
    modality : {"image", "text"}, optional
        By default determined by the name of the column.
    fragment_bytes : int, default=16_777_216
        Uncompressed bytes above which a Parquet file is divided between row groups.

    Returns
    -------
    ItemSet

    Raises
    ------
    FileError, CorruptFileError
        If a file does not exist, cannot be read or is damaged, or there are no rows.
    ParameterError
        If the path is not a data set of these kinds, the column is missing or ambiguous, or the columns of the files differ.
    DtypeError
        If the column contains neither text nor, for images, bytes.
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
    has_bytes = pa.types.is_struct(kind) and "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    if _is_text(kind) or (
        modality == "image" and (has_bytes or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
    ):
        return
    expected = "paths, bytes, or structures of bytes and path" if modality == "image" else "texts"
    raise DtypeError(
        f"Got {kind} in column {field.name!r} of {place.shown} for {modality}s; expected {expected}. Pass another column=…, or convert this one."
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
            return table.schema_arrow, [(group.num_rows, group.total_byte_size) for group in groups]

    with ThreadPoolExecutor(_FOOTERS) as pool:
        described = list(pool.map(describe, files))
    first = described[0][0]
    for path, (schema, _) in zip(files, described, strict=True):
        if not schema.equals(first):
            raise ParameterError(
                f"Got other columns in {path} than in {files[0]} of {place.shown}; expected the same in all files. Move files of another table into a folder of their own."
            )
    fragments = cut_files(place, files, [groups for _, groups in described], fragment_bytes)
    return first, tuple(
        part for part in fragments if part.rows
    )  # engines write files without rows for empty partitions


def _of_lance(place: Place) -> tuple[pa.Schema, tuple[Fragment, ...], int]:
    data = open_version(place, None)
    numbered = [(part.fragment_id, part.count_rows()) for part in data.get_fragments()]
    row_bytes = data.head(16).nbytes // 16
    fragments = [
        Fragment(f"fragment-{number:05d}", "", rows, rows * row_bytes, number=number)
        for number, rows in numbered
        if rows
    ]
    return data.schema, tuple(fragments), int(data.version)
