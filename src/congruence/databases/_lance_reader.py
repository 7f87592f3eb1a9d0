"""Read a Lance table for a migration: the old and the new vectors, and the state of the migration."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from congruence._utils.optional import require
from congruence.databases._address import Address
from congruence.databases._base import (
    BATCH,
    Block,
    Cursor,
    Database,
    DatabaseInfo,
    PairedBlock,
    Side,
    Stage,
    owned,
)
from congruence.databases._lance_column import quoted, stream
from congruence.databases._lance_index import describe_index, find_index
from congruence.databases._lance_staging import UNKNOWN, fragment_of, matrix_of, offset_of
from congruence.databases._lance_table import (
    NEW,
    OLD,
    as_ids,
    decoded_metadata,
    dim_of,
    find_columns,
    find_table,
    is_bits,
    note_of,
    numbers_of,
    storage_of,
    translated_errors,
)
from congruence.databases._metadata import space_in
from congruence.databases._stage_errors import no_new_vectors
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from types import ModuleType

    import lance

__all__ = ["LanceReader", "import_lance"]

#: Number of rows whose addresses are remembered from recent scans, so that writing them needs no search.
_REMEMBERED = 2**18


class LanceReader(Database):
    """Read-only part of :class:`congruence.databases.lancedb.LanceDB`, with the same parameters."""

    def __init__(
        self,
        address: Address,
        *,
        table: str | None = None,
        column: str | None = None,
        ids: str | None = None,
        modality_column: str | None = None,
        rows: str | None = None,
    ) -> None:
        self._lance = import_lance()
        self._place = find_table(address, table)
        self._where = rows
        data = self._open()
        primary = [field.name() for field in data.lance_schema.fields() if field.is_unenforced_primary_key()]
        self._column, self._ids, self._modalities = find_columns(
            data.schema, primary, self._place, column, ids, modality_column
        )
        self._lock = threading.Lock()
        self._seen: deque[tuple[pa.Array, np.ndarray]] = deque()
        if rows is not None:
            with self._errors():
                data.count_rows(rows)

    # ---- description -------------------------------------------------------------------------------------------------

    def _open(self) -> lance.LanceDataset:
        """Open the latest version."""
        with translated_errors(self._place, None):
            return self._lance.dataset(self._place.uri, storage_options=self._place.options)

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._place, self._where)

    def _names(self, data: lance.LanceDataset) -> tuple[Stage, str, str]:
        """Return the stage and the names of the old and the new column, according to one version."""
        names = set(data.schema.names)
        new, old = self._column + NEW, self._column + OLD
        if self._column not in names or {new, old} <= names:
            raise DatabaseError(
                f"Got columns {', '.join(sorted(names & {self._column, new, old}))} in {self._place}; expected {self._column} and "
                f"one of {new} and {old} at most. Rename or drop the columns that another program created."
            )
        if old in names:
            return Stage.SWITCHED, old, self._column
        return (Stage.PREPARED if new in names else Stage.UNTOUCHED), self._column, new

    def _side(self, data: lance.LanceDataset, side: Side) -> str:
        """Return the column of a side. Raises MigrationError if there are no new vectors."""
        stage, old, new = self._names(data)
        if side == "new" and stage is Stage.UNTOUCHED:
            raise no_new_vectors(str(self._place))
        return old if side == "old" else new

    def info(self) -> DatabaseInfo:
        """Describe the old vectors; see :meth:`Database.info`."""
        data = self._open()
        _, old, new = self._names(data)
        own = {old, new, self._ids}
        value_type = storage_of(data.schema.field(old).type)
        element_type = "float16" if value_type.value_type == pa.float16() else "float32"
        if is_bits(value_type):
            element_type = "binary"
        ids = storage_of(data.schema.field(self._ids).type)
        with self._errors():
            total = data.count_rows(self._where)
            rows = data.count_rows(self._having(old))
            index = find_index(data, old)
            return DatabaseInfo(
                place=str(self._place),
                rows=rows,
                dim=dim_of(value_type),
                element_type=element_type,
                rows_without=total - rows,
                distance=index.metric if index and index.metric != "hamming" else None,
                index=describe_index(index) if index else None,
                id_type="int" if pa.types.is_integer(ids) else "uuid" if pa.types.is_fixed_size_binary(ids) else "text",
                columns=tuple(name for name in data.schema.names if name not in own),
                space=space_in(decoded_metadata(data.schema.metadata), str(self._place)),
                free_bytes=shutil.disk_usage(folder).free if (folder := self._place.folder) else None,
            )

    def stage(self) -> Stage:
        """Return the state of the migration; see :meth:`Database.stage`."""
        return self._names(self._open())[0]

    def note(self) -> Mapping[str, str]:
        """Return the note that :meth:`prepare` stored in the metadata of the new column."""
        data = self._open()
        stage, _, new = self._names(data)
        return {} if stage is Stage.UNTOUCHED else note_of(data.schema, new)

    def _having(self, column: str) -> str:
        condition = f"{quoted(column)} IS NOT NULL"
        return condition if self._where is None else f"({self._where}) AND {condition}"

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _batches(
        self, data: lance.LanceDataset, columns: list[str], after: Cursor | None, batch: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows after a cursor, in table order: ids, the given columns, modalities if there are any, and addresses."""
        fragments, last_read = data.get_fragments(), np.uint64(0)
        if after is not None:
            number, offset = _parse_cursor(after)
            index = next((k for k, fragment in enumerate(fragments) if fragment.fragment_id == number), None)
            if index is not None:  # otherwise a compaction removed the fragment, and all rows are read again
                fragments = fragments[index:]
                last_read = np.uint64((number << 32) + offset)
        modalities = [self._modalities] if self._modalities else []
        if not fragments:
            return
        pieces = stream(
            data, [self._ids, *columns, *modalities], filter=self._where, batch_size=batch, fragments=fragments
        )
        for piece in pieces:
            if after is not None:
                addresses = np.asarray(piece.column(piece.num_columns - 1))
                same_fragment = fragment_of(addresses) == fragment_of(np.array([last_read]))[0]
                if same_fragment.any():
                    piece = piece.filter(pa.array(~same_fragment | (addresses > last_read)))
            for start in range(0, len(piece), batch):
                yield piece.slice(start, batch)

    def _modalities_of(self, piece: pa.RecordBatch) -> pa.Array | None:
        """Return the modalities, which are the second-to-last column."""
        return piece.column(piece.num_columns - 2).cast(pa.large_string()) if self._modalities else None

    def scan(self, side: Side = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield rows in table order, from the version at the start of the scan; see :meth:`Database.scan`."""
        data = self._settled() if side == "new" else self._open()
        column = self._side(data, side)
        with self._errors():
            for piece in self._batches(data, [column], after, batch):
                block = self._block(piece)
                if len(block.ids):
                    yield block

    def _block(self, piece: pa.RecordBatch) -> Block:
        vectors, has = matrix_of(piece.column(1))
        modalities = self._modalities_of(piece)
        ids, addresses = self._remember(piece)
        cursor: Cursor = [int(fragment_of(addresses[-1:])[0]), int(offset_of(addresses[-1:])[0])]
        if not has.all():
            mask = pa.array(has)
            ids, vectors, modalities = (
                ids.filter(mask),
                vectors[has],
                modalities.filter(mask) if modalities is not None else None,
            )
        return Block(ids, numbers_of(vectors), modalities, cursor)

    def _remember(self, piece: pa.RecordBatch) -> tuple[pa.Array, np.ndarray]:
        """Return the ids and addresses of rows, and remember them for :meth:`write`."""
        column = piece.column(0)
        if column.null_count:
            raise DatabaseError(
                f"Got {column.null_count} rows without {self._ids} in {self._place}; expected an id in each row. Fill them in, or "
                "exclude these rows with a condition."
            )
        # Copies: a column from Lance would keep its whole batch, with the vectors, in memory.
        ids = owned(as_ids(column))
        addresses = np.array(piece.column(piece.num_columns - 1))
        with self._lock:
            self._seen.append((ids, addresses))
            while len(self._seen) > 1 and sum(len(seen) for _, seen in self._seen) > _REMEMBERED:
                self._seen.popleft()
        return ids, addresses

    def _addresses(self, ids: pa.Array) -> np.ndarray:
        """Return the addresses at which rows were last read; UNKNOWN if they are no longer remembered."""
        with self._lock:
            seen = list(self._seen)
        out = np.full(len(ids), UNKNOWN)
        for seen_ids, addresses in reversed(seen):
            if seen_ids.equals(ids):
                return np.array(addresses)
            if (remaining := np.flatnonzero(out == UNKNOWN)).size == 0:
                break
            at = pc.index_in(ids.take(pa.array(remaining)), value_set=seen_ids).fill_null(-1).to_numpy()
            out[remaining[at >= 0]] = addresses[at[at >= 0]]
        return out

    def fetch(self, ids: pa.Array, side: Side = "old") -> Block:
        """Return rows by id, found in one pass over the column of ids; see :meth:`Database.fetch`."""
        data = self._settled() if side == "new" else self._open()
        column, start, rows = self._side(data, side), 0, []
        with self._errors():
            for piece in stream(data, [self._ids], batch_size=65_536):
                positions = pc.index_in(as_ids(piece.column(0)), value_set=ids)
                rows += (np.flatnonzero(positions.is_valid().to_numpy(zero_copy_only=False)) + start).tolist()
                start += len(piece)
            columns = [self._ids, column, *([self._modalities] if self._modalities else [])]
            taken = data.take(rows, columns=[quoted(name) for name in columns]).combine_chunks()
            (piece,) = taken.to_batches() or [pa.RecordBatch.from_pylist([], taken.schema)]
            vectors, has = matrix_of(piece.column(1))
            mask = pa.array(has)
            modalities = piece.column(2).cast(pa.large_string()).filter(mask) if self._modalities else None
            return Block(as_ids(piece.column(0)).filter(mask), numbers_of(vectors[has]), modalities, [0, 0])

    def count(self, side: Side = "old") -> int:
        """Return how many rows have a vector."""
        data = self._settled() if side == "new" else self._open()
        with self._errors():
            return int(data.count_rows(self._having(self._side(data, side))))

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield rows with both vectors, from one read."""
        data = self._settled()
        columns = [self._side(data, "old"), self._side(data, "new")]
        with self._errors():
            for piece in self._batches(data, columns, None, batch):
                block, *_ = self._paired(piece)
                if len(block.ids):
                    yield block

    def _paired(self, piece: pa.RecordBatch) -> tuple[PairedBlock, np.ndarray, np.ndarray]:
        """Return the rows of a batch that have an old vector, a mask of these rows, and the addresses of all rows of the batch."""
        (old, has_old), (new, has_new) = matrix_of(piece.column(1)), matrix_of(piece.column(2))
        ids, addresses = self._remember(piece)
        modalities = self._modalities_of(piece)
        if not has_old.all():
            mask = pa.array(has_old)
            ids, modalities = ids.filter(mask), modalities.filter(mask) if modalities is not None else None
            old, new, has_new = old[has_old], new[has_old], has_new[has_old]
        new = np.array(numbers_of(new))
        new[~has_new] = 0
        return PairedBlock(ids, numbers_of(old), new, has_new, modalities), has_old, addresses

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have."""
        with self._errors():
            table = self._open().to_table(columns=[quoted(self._ids)], filter=self._where)
            if not len(table):
                return []
            counted = pc.value_counts(as_ids(table.column(0).combine_chunks()))
        repeated = counted.filter(pc.greater(counted.field("counts"), 1))
        return [str(id_) for id_ in repeated.field("values")[:10].to_pylist()]

    @abstractmethod
    def _settled(self) -> lance.LanceDataset:
        """Write all pending and staged vectors into the column, and return the version that contains them."""


def _parse_cursor(after: Cursor) -> tuple[int, int]:
    if (
        isinstance(after, list)
        and len(after) == 2
        and all(type(number) is int and 0 <= number < 2**32 for number in after)
    ):
        return int(after[0]), int(after[1])
    raise ParameterError(
        f"Got cursor {after!r}; expected a fragment and an offset. Pass a cursor from a scan of this table."
    )


def import_lance() -> ModuleType:
    """Import Lance without its warning, at each commit, that replacing a column's file is a new feature, which this library's tests cover."""
    if "lance" in sys.modules or "LANCE_LOG" in os.environ:
        return require("lance", extra="lancedb")
    os.environ["LANCE_LOG"] = "warn,lance_table::transaction=error,lance::index=error"
    try:
        return require("lance", extra="lancedb")
    finally:
        del os.environ["LANCE_LOG"]
