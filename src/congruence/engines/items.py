"""Data sets of texts, images, audio or videos to encode, in Parquet files or Lance, split into fragments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from congruence._utils.ids import as_ids, id_texts
from congruence.embed.inputs import ID_COLUMNS, Items, choose_column
from congruence.errors import CorruptFileError, DtypeError, FileError, ParameterError
from congruence.io.dataset import Fragment, FragmentedTable, open_fragments, split_spec
from congruence.io.ids import clean_ids, id_type_of
from congruence.io.locations import Location, is_url
from congruence.io.reading import reading
from congruence.io.tables import ARROW_DAMAGE

#: Uncompressed bytes above which a file is divided between row groups: less than for vectors, because encoding an item
#: takes far longer than mapping a vector.
ITEM_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class ItemSet(FragmentedTable):
    """A table in one or many files, with its columns of items and ids."""

    column: str  # of texts; or of files as paths, bytes, or the structures of both that the datasets library writes
    id_column: str | None
    modality: str  # one of ENCODED

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        return pa.string() if self.id_column is None else id_type_of(self.schema.field(self.id_column).type)

    @property
    def counts_rows(self) -> bool:
        """Whether ids are row numbers, because there is no column of ids or of paths."""
        paths = self.modality != "text" and _is_text(self.schema.field(self.column).type)
        return self.id_column is None and not paths

    def ids(self, fragment: Fragment, start: int) -> np.ndarray:
        """Return the ids of a fragment: from the column of ids or of paths, or row numbers from ``start``."""
        if self.counts_rows:
            return id_texts(np.arange(start, start + fragment.rows))
        key = self.id_column or self.column
        name = f"{self.path_of(fragment)}:{key}"
        chunks = [clean_ids(piece.column(0), name, row) for row, piece in self.open(fragment).pieces([key], 0, 65_536)]
        return as_ids(pa.chunked_array(chunks), fragment.rows, name)

    def items(self, piece: pa.RecordBatch, ids: np.ndarray, fragment: Fragment) -> Items:
        """Return the items of a batch; files are read when needed, from paths beside the table's file."""
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
                raise FileError(f"No {self.modality} at {place.shown}.", "Check the path.")
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
    """Read the footers of a data set of items, and divide it into fragments of about ``fragment_bytes``.

    ``spec`` is a ``.parquet`` file, a folder of them at any depth, or a ``.lance`` data set, local or a URL;
    ``path:column`` also names the ``column``. By default the table must have exactly one column with a default name, as
    for ``congruence.embed.open_items``, which also tells the ``modality``. Ids are in ``id_column``, by default ``id``
    or ``ids``; without such a column, the id of a file is its path, and other items are identified by their row
    number in the data set.
    """
    place, key = split_spec(spec)
    table, _ = open_fragments(place, fragment_bytes, lambda one: None)
    fragments = tuple(part for part in table.fragments if part.rows)  # engines write empty files for empty partitions
    if not fragments:
        raise FileError(f"Got no rows in {place.shown}.", "Pass a data set with rows.")
    schema = table.schema
    column, modality = choose_column(place.shown, schema.names, column or key, modality)
    id_column = id_column or next((name for name in ID_COLUMNS if name in schema.names and name != column), None)
    if id_column is not None and id_column not in schema.names:
        listed = ", ".join(schema.names)
        raise ParameterError(f"Got `id_column={id_column!r}` for {place.shown}.", f"Pass one of its columns: {listed}.")
    kind = schema.field(column).type
    has_bytes = pa.types.is_struct(kind) and "bytes" in [kind.field(k).name for k in range(kind.num_fields)]
    in_bytes = has_bytes or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if not _is_text(kind) and not (modality != "text" and in_bytes):
        expected = "texts" if modality == "text" else "paths, bytes, or structures of bytes and path"
        problem = f"Got {kind} in column {column!r} of {place.shown} for {modality} items; expected {expected}."
        raise DtypeError(problem, "Pass another `column=…`, or convert this one.")
    read = pa.schema([field for field in schema if field.name in (column, id_column)])
    own = {"fragments": fragments, "schema": read, "column": column, "id_column": id_column, "modality": modality}
    return ItemSet(**vars(table) | own)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
