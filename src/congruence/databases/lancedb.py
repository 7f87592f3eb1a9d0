"""LanceDB tables: the new vectors are a second column of the same rows, and the switch renames both in one version."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from congruence._utils.ahead import run_ahead
from congruence._utils.optional import require
from congruence._utils.refusals import describe_refusal
from congruence.databases import _base as base
from congruence.databases import _refusals as refusals
from congruence.databases._base import NEW, OLD, Block, Name, NewVectors, PairedBlock, Stage, VectorSide, WrittenFile
from congruence.databases._columns import ColumnDatabase, choose_columns
from congruence.errors import (
    CongruenceError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    ParameterError,
    StorageError,
)
from congruence.io import SPACE_KEY
from congruence.io.locations import Location

if TYPE_CHECKING:
    from types import ModuleType

    import lance
    from lance.file import LanceFileWriter

_ATTEMPTS = 12  # maximum number of attempts at a change that conflicts with commits of other clients
_ROWS = 4096  # number of rows of a column's file that are written at a time
NOTE = "congruence.note"  # key of the note in the new column's metadata

#: Key of the table's space in the metadata of the old column, while readers see the new vectors.
_OLD_SPACE = SPACE_KEY + OLD

#: Metadata key of a column's Arrow extension type.
EXTENSION, _DETAILS = "ARROW:extension:name", "ARROW:extension:metadata"

_OWN_TYPE = "congruence.type"  # key of the extension type that the user's column has, in the new column's metadata

_CONFLICT = re.compile(r"conflict|contention|retryable|concurrent", re.IGNORECASE)
_DAMAGE = re.compile(
    r"corrupt|magic|decod|unexpected|truncated|out of (range|bounds)|not found|checksum|protobuf"
    r"|invalid (data|file|argument|range)",
    re.IGNORECASE,
)

_T = TypeVar("_T")


class _Conflict(DatabaseUnavailableError):
    """Another client has committed first."""


class LanceDB(ColumnDatabase):
    """A LanceDB table, or a Lance data set, in a folder or, when migrated with an engine, in an object store.

    The address is ``DATABASE/TABLE.lance``, ``lancedb://DATABASE``, or ``s3://BUCKET/DATABASE/TABLE.lance`` (``gs``,
    ``az``). Vectors are fixed-size lists of floats, or of bytes with packed bits, highest bit first. ``rows`` is a
    condition for LanceDB's ``where``, which cannot run statements.

    Each fragment in which new vectors change gets a new file of the column, so write many rows at a time. It is
    committed only if the fragment, of the version that ``ranges`` read, still consists of the same other files: other
    clients may add, update, delete and compact rows meanwhile, and such rows move to another fragment.
    """

    kind = "lancedb"
    searches_by = "l2"
    capabilities = base.Capabilities(
        container="column",
        follows_deletes=True,
        shared=True,
        filters="LanceDB SQL",
        element_types=("float32", "float16", "binary"),
    )
    by_ranges = True
    _version = 0
    _commits = 0  # of new vectors, by this object
    _counted: Mapping[tuple[int, str], int] = {}  # by version and condition

    def _connect(self, address: base.Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        self._lance = import_lance()
        location = find_table(address, table)
        self._place, self._options = location.lance
        self._subject, self._rows = self._place, rows
        self._folder = Path(self._place) if location.local else None
        data = self._open()
        primary = [field.name() for field in data.lance_schema.fields() if field.is_unenforced_primary_key()]
        self._column, self._ids, self._modality = find_columns(data.schema, primary, self._place, column, ids, modality)
        if rows is not None:
            with self._errors():
                data.count_rows(rows)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open objects; another process with access to the same folder opens them again."""
        return {**self.__dict__, "_lance": None, "engine": None, "_pending": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lance=import_lance())

    def bytes_needed(self, info: base.DatabaseInfo, dim: int, element_type: str) -> int:
        """Return the size of the column's files and of an index like those that are there."""
        new, old = (base.bytes_a_row(*kind) for kind in ((dim, element_type), (info.dim, info.element_type)))
        files = Path(self._place, "_indices").rglob("*") if self._folder is not None and info.index else ()
        indices = sum(file.stat().st_size for file in files)
        return int(1.02 * info.rows * new + max(new / old, 1) * indices) + 2**16

    def version(self) -> object | None:
        """Return the number of versions, without those by which this object committed new vectors."""
        return self._open().version - self._commits

    def _open(self) -> lance.LanceDataset:
        with self._errors():
            return self._lance.dataset(self._place, storage_options=self._options)

    def _translate(self, error: Exception) -> CongruenceError | None:
        """Return this library's error for one of Lance's, which differ only in their text."""
        if not isinstance(error, (OSError, ValueError, RuntimeError, pa.ArrowException)):
            return None
        text, place = str(error), self._place
        reason = re.sub(r",? ?/[^\s,]*\.rs:\d+:\d+", "", (text.splitlines() or [""])[0])[:500]
        number = error.errno if isinstance(error, OSError) and error.errno else None
        if found := re.search(r"os error (\d+)", text):
            number = int(found[1])
        if number is not None:
            return StorageError(describe_refusal(OSError(number, os.strerror(number)), f"from the disk at {place}"))
        if self._rows is not None and re.search(r"invalid user input|schema error|parsing|filter", text, re.IGNORECASE):
            return refusals.refusal("condition", self._rows, reason, example="LanceDB's SQL")
        if _CONFLICT.search(text):
            return _Conflict(f"Another client wrote to {place} at the same time ({reason}).", "Try again.")
        if re.search(r"dataset at path .* was not found", text, re.IGNORECASE):
            return FileError(f"There is no Lance table at {place}.", "Check the path.")
        return refusals.refusal("damaged" if _DAMAGE.search(text) else "rejected", place, reason)

    def _column_names(self) -> Collection[str]:
        return list(self._open().schema.names)

    def _latest(self, side: VectorSide) -> tuple[lance.LanceDataset, str]:
        """Return the latest version, with all new vectors if the side is the new one, and the side's column."""
        if side == "new":
            self.flush()
        data = self._open()
        return data, self._name(side, data.schema.names)

    def _both(self) -> tuple[lance.LanceDataset, str, str]:
        """Return the latest version, with all new vectors, and the columns of both sides."""
        data, new = self._latest("new")
        return data, self._name("old", data.schema.names), new

    def info(self) -> base.DatabaseInfo:
        data = self._open()
        _, old, new = self._names(data.schema.names)
        own = {old, new, self._ids}
        others = [field for field in data.schema if field.name not in own]
        several = any(pa.types.is_fixed_size_list(storage_of(field.type)) for field in others)
        value_type = storage_of(data.schema.field(old).type)
        ids = storage_of(data.schema.field(self._ids).type)
        stated = decoded_metadata(data.schema.metadata)
        kept = decoded_metadata(data.schema.field(old).metadata).get(_OLD_SPACE)
        with self._errors():
            total = data.count_rows(self._rows)
            rows = self._count(data, self._having(old))
            index = find_index(data, old)
            return base.DatabaseInfo(
                place=self._place + (f":{self._column}" if several else ""),
                rows=rows,
                dim=dim_of(value_type),
                element_type=element_type_of(value_type),
                rows_without=total - rows,
                distance=index.metric if index and index.metric != "hamming" else None,
                index=str(index) if index else None,
                id_type="int" if pa.types.is_integer(ids) else "uuid" if pa.types.is_fixed_size_binary(ids) else "text",
                space=base.space_in({**stated, **({SPACE_KEY: kept} if kept else {})}, self._place),
            )

    def _made(self) -> NewVectors:
        schema = self._open().schema
        new = self._name("new", schema.names)
        kind, note = schema.field(new).type, decoded_metadata(schema.field(new).metadata).get(NOTE)
        if note is None:
            raise self._unmarked()
        return NewVectors(
            dim_of(kind), element_type_of(kind), {key: str(value) for key, value in base.json_in(note).items()}
        )

    def _having(self, column: str) -> str:
        condition = f"{quoted(column)} IS NOT NULL"
        return condition if self._rows is None else f"({self._rows}) AND {condition}"

    def _pieces(
        self, data: lance.LanceDataset, columns: list[str], after: base.Cursor | None, batch: int
    ) -> Iterator[LancePiece]:
        """Yield the rows after a cursor, in table order."""
        fragments, last_read = data.get_fragments(), np.uint64(0)
        if after is not None:
            position: Any = after
            good = isinstance(position, list) and all(type(part) is int and 0 <= part < 2**32 for part in position)
            refusals.refuse(not good or len(position) != 2, "cursor", after)
            number, offset = position
            index = next((k for k, fragment in enumerate(fragments) if fragment.fragment_id == number), None)
            if index is not None:  # otherwise a compaction removed the fragment, and all rows are read again
                fragments = fragments[index:]
                last_read = np.uint64((number << 32) + offset)
        for piece in self._read(data, columns, batch, filter=self._rows, fragments=fragments) if fragments else ():
            if after is not None:
                same_fragment = fragment_of(piece.addresses) == fragment_of(np.array([last_read]))[0]
                piece = piece.where(~same_fragment | (piece.addresses > last_read))
            if len(piece.ids):
                yield piece

    def _read(self, data: lance.LanceDataset, columns: list[str], batch: int, **options: Any) -> Iterator[LancePiece]:
        """Yield rows with their ids, these columns of vectors, and modalities if there are any."""
        modalities = [self._modality] if self._modality else []
        for found in stream(data, [self._ids, *columns, *modalities], batch_size=batch, **options):
            for start in range(0, len(found), batch):
                piece = found.slice(start, batch)
                refusals.check_ids(piece.column(0), self._ids, self._place)
                yield LancePiece(
                    # Else it would keep its whole batch, with the vectors, in memory.
                    base.owned(base.as_ids(piece.column(0))),
                    [base.matrix_of(piece.column(1 + k)) for k in range(len(columns))],
                    piece.column(1 + len(columns)).cast(pa.large_string()) if modalities else None,
                    np.asarray(piece.column(piece.num_columns - 1)),
                )

    def scan(
        self, side: VectorSide = "old", *, after: base.Cursor | None = None, batch: int = base.BATCH
    ) -> Iterator[Block]:
        """Yield rows in table order, from the version at the start of the scan."""
        data, column = self._latest(side)
        with self._errors():
            for whole in self._pieces(data, [column], after, batch):
                piece = whole.where(whole.vectors[0][1])
                if len(piece.ids):
                    last = whole.addresses[-1:]
                    cursor: base.Cursor = [int(fragment_of(last)[0]), int(offset_of(last)[0])]
                    yield Block(piece.ids, numbers_of(piece.vectors[0][0]), piece.modalities, cursor)

    def spread(self, rows: int, n: int) -> Iterator[Block]:
        """Take rows by their positions, if each has a vector and there is no condition; else scan."""
        data, column = self._latest("old")
        if self._rows is not None or rows != self._call(data.count_rows):
            yield from super().spread(rows, n)
            return
        with self._errors():
            yield self._taken(data, column, range(0, rows, max(rows // n, 1)))

    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        (data, column), start, rows = self._latest(side), 0, list[int]()
        with self._errors():
            for piece in stream(data, [self._ids], batch_size=65_536):
                positions = pc.index_in(base.as_ids(piece.column(0)), value_set=ids)
                rows += (np.flatnonzero(positions.is_valid().to_numpy(zero_copy_only=False)) + start).tolist()
                start += len(piece)
            return self._taken(data, column, rows)

    def _taken(self, data: lance.LanceDataset, column: str, rows: Sequence[int]) -> Block:
        """Return the rows at these positions that have a vector."""
        columns = [self._ids, column, *([self._modality] if self._modality else [])]
        taken = data.take(list(rows), columns=[quoted(name) for name in columns]).combine_chunks()
        (found,) = taken.to_batches() or [pa.RecordBatch.from_pylist([], taken.schema)]
        vectors, has = base.matrix_of(found.column(1))
        mask = pa.array(has)
        modalities = found.column(2).cast(pa.large_string()).filter(mask) if self._modality else None
        return Block(base.as_ids(found.column(0)).filter(mask), numbers_of(vectors[has]), modalities, [0, 0])

    def count(self, side: VectorSide = "old") -> int:
        data, column = self._latest(side)
        with self._errors():
            return self._count(data, self._having(column))

    def _count_lacking(self, side: VectorSide) -> int:
        data, *names = self._both()
        other, lacking = names if side == "new" else reversed(names)
        with self._errors():
            return self._count(data, _lacking(other, lacking))

    def _count(self, data: lance.LanceDataset, condition: str) -> int:
        """Count rows once in a version, which never changes: Lance reads whole vectors to see where there are some."""
        if (data.version, condition) not in self._counted:
            known = {key: n for key, n in self._counted.items() if key[0] == data.version}
            self._counted = {**known, (data.version, condition): int(data.count_rows(condition))}
        return self._counted[data.version, condition]

    def _pairs(self, side: VectorSide, batch: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray, np.ndarray]]:
        data, *names = self._both()
        names, both, ours, theirs = (names if side == "old" else names[::-1]), 0, 0, 0
        with self._errors():
            for whole in self._pieces(data, names, None, batch):
                (_, first), (_, second) = whole.vectors
                both, ours, theirs = both + (first & second).sum(), ours + first.sum(), theirs + second.sum()
                piece = whole.where(first)
                if len(piece.ids):
                    (rows, every), (others, has) = piece.vectors
                    yield Block(piece.ids, numbers_of(rows), piece.modalities, 0), numbers_of(others), has, every
        counted = {self._having(names[0]): ours, self._having(names[1]): theirs}
        if self._rows is None:
            counted |= {_lacking(*names): ours - both, _lacking(*names[::-1]): theirs - both}
        self._counted = {(data.version, condition): int(n) for condition, n in counted.items()}

    def _update_old(self, ids: pa.Array, vectors: np.ndarray | None) -> None:
        """Update old vectors as users do, which moves the rows: they share files with other columns."""
        data, column, _ = self._both()
        field, names = data.schema.field(column), data.schema.field(self._ids)
        kind = storage_of(field.type)
        values = np.zeros((len(ids), dim_of(kind))) if vectors is None else vectors
        mask = pa.array(np.full(len(ids), vectors is None))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(flat_of(values, kind)), type=kind, mask=mask)
        if rows.type != field.type:
            rows = pa.ExtensionArray.from_storage(field.type, rows)
        uuids = storage_of(names.type) == pa.binary(16)
        keys = pa.array([uuid.UUID(id_).bytes for id_ in ids.to_pylist()], pa.binary(16)) if uuids else ids
        given = pa.table([keys.cast(storage_of(names.type)), rows], schema=pa.schema([names, field]))
        self._change(lambda: self._open().merge_insert(self._ids).when_matched_update_all().execute(given))

    def repeated_ids(self) -> list[str]:
        with self._errors():
            table = self._open().to_table(columns=[quoted(self._ids)], filter=self._rows)
        return base.repeated(base.as_ids(table.column(0).combine_chunks())) if len(table) else []

    def check(self, new: NewVectors) -> None:
        super().check(new)
        if self._open().data_storage_version in ("0.1", "legacy"):
            raise DatabaseError(
                f"{self._place} is in Lance's legacy file format.", "Copy the table with a current version of LanceDB."
            )

    def _create(self, new: NewVectors) -> None:
        """Add an empty column, together with the note in one version."""
        data = self._open()
        old = data.schema.field(self._column)
        wide = storage_of(old.type).value_type == pa.float64()
        numbers = {"float32": pa.float64() if wide else pa.float32(), "float16": pa.float16(), "binary": pa.uint8()}
        number = numbers[new.element_type]
        kind = pa.list_(number, new.dim // 8 if new.element_type == "binary" else new.dim)
        theirs = {key: text for key, text in decoded_metadata(old.metadata).items() if key != SPACE_KEY}
        metadata = {**theirs, NOTE: json.dumps(new.note), **hiding_metadata(kind)}
        stated = decoded_metadata(data.lance_schema.field(self._column).metadata)
        if own := {key: stated[key] for key in (EXTENSION, _DETAILS) if key in stated}:
            metadata[_OWN_TYPE] = json.dumps(own)
        data.add_columns(pa.field(self._column + NEW, kind, metadata=metadata))

    def _store(self, ids: pa.Array, vectors: np.ndarray | None, side: VectorSide = "new") -> None:
        """Write a new column file for each fragment that has one of the rows."""
        if side == "old":
            self._update_old(ids, vectors)
            return

        def change(block: PairedBlock) -> tuple[np.ndarray, np.ndarray | None]:
            at = base.rows_of(block.ids, ids)
            return np.ones(len(at), bool), None if vectors is None else vectors[at]

        for _ in range(_ATTEMPTS):
            with self._errors():
                data, files = self._open(), []
                for fragment in data.get_fragments():
                    if len(rows := self._offsets(data, fragment, ids)):
                        files += self._revise(data, fragment, _ROWS, change, rows, bare=vectors is None)
            if not self.take(files):
                return
        raise DatabaseUnavailableError(f"Other clients kept changing the rows of {self._place}.", "Try again.")

    def _offsets(self, data: lance.LanceDataset, fragment: lance.LanceFragment, ids: pa.Array | None) -> np.ndarray:
        """Return the positions in a fragment of the rows with these ids or, if None, of the selected rows."""
        found = [np.empty(0, np.int64)]
        options = {"filter": self._rows} if ids is None else {}
        for piece in stream(data, [self._ids], fragments=[fragment], batch_size=65_536, **options):
            offsets = offset_of(np.asarray(piece.column(1)))
            if ids is not None:
                offsets = offsets[pc.is_in(base.as_ids(piece.column(0)), value_set=ids).to_numpy(zero_copy_only=False)]
            found.append(offsets)
        return np.concatenate(found)

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        def make(folder: Path, n: int) -> LanceDB:
            empty = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(n, np.float32)), 1)
            place = folder / "scratch.lance"
            with self._errors():
                self._lance.write_dataset(pa.table({"id": np.arange(n), "vector": empty}), str(place))
            return LanceDB(base.Address.parse(str(place)))

        folder = self._folder
        return None if folder is None else base.time_scratch(folder.parent, make, vectors, element_type)

    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a change that reads the latest version and commits; retry if others commit in between."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._errors():
                    return change()
            except _Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(min(0.02 * 2**attempt, 1))
        raise AssertionError

    def build_index(self) -> str | None:
        data, old, new = self._both()
        like, index = find_index(data, old), find_index(data, new)
        if like is None:
            return None
        if index is None or index.unindexed:
            name = index.name if index else None
            self._change(lambda: index_like(self._open(), like, new, name))
            index = find_index(self._open(), new)
        return str(index) if index else None

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Search with the index and its distance, or exactly, by L2, without one; by Hamming for bits."""
        data, old, new = self._both() if side == "new" else (*self._latest("old"), "")
        column = new or old
        own = find_index(data, column)
        index = own or find_index(data, old)
        rows = np.asarray(queries, np.float32)
        if is_bits(data.schema.field(column).type):
            metric, rows = {"metric": "hamming"}, base.pack(rows)
        else:
            metric = {"metric": index.metric} if index and index.metric != "hamming" else {}

        def nearest(query: np.ndarray, *columns: str) -> pa.Table:
            return data.to_table(
                columns=[quoted(self._ids), *columns],
                nearest={"column": quoted(column), "q": query, "k": k, **metric},
                filter=self._rows,
                prefilter=True,
                disable_scoring_autoprojection=True,  # otherwise Lance warns at each query
            )

        with self._errors():
            if own is None and rows.dtype == np.float32 and len(rows) > 1:  # one scan for all queries
                found = nearest(rows, "_distance").rename_columns(["query", "id", "distance"])
                found = found.sort_by([("query", "ascending"), ("distance", "ascending")])
                ends = np.searchsorted(found["query"].to_numpy(), np.arange(len(rows) + 1))
                ids = base.as_ids(found["id"].combine_chunks())
                return [ids.slice(start, stop - start) for start, stop in pairwise(ends)]
            return [base.as_ids(nearest(query).column(0).combine_chunks()) for query in rows]

    def switch(self) -> None:
        """Rename both columns in one version.

        A search that names its column uses the others from the first commit on, one that does not from the second.
        """
        self._index_if_missing(Stage.PREPARED)
        super().switch()
        self._change(lambda: self._hide(OLD))

    def rollback(self) -> None:
        """Rename both columns back in one version; rows added since the switch are kept."""
        self._index_if_missing(Stage.SWITCHED)
        super().rollback()
        if self.stage() is Stage.PREPARED:
            self._change(lambda: self._hide(NEW))

    def _index_if_missing(self, stage: Stage) -> None:
        """Build the index that others built over the vectors that readers see also over the others."""
        if self.stage() is stage:
            data, *names = self._both()
            shown, hidden = names if stage is Stage.PREPARED else reversed(names)
            like = find_index(data, shown)
            if like is not None and find_index(data, hidden) is None:
                self._change(lambda: index_like(self._open(), like, hidden, None))

    def _rename(self, shown: str, hidden: str) -> None:
        """Exchange the names; that readers' vectors are never null stays a rule of their name."""
        data = self._open()
        required = not data.schema.field(self._column).nullable
        away, back = ({"nullable": True}, {"nullable": False}) if required else ({}, {})
        data.alter_columns(
            {"path": quoted(self._column), "name": self._column + hidden, **away},
            {"path": quoted(self._column + shown), "name": self._column, **back},
        )

    @property
    def exact(self) -> bool:
        data, column = self._latest("old")
        return bool(storage_of(data.schema.field(column).type).value_type != pa.float64())

    @property
    def bare_rows(self) -> bool:
        return bool(self._open().schema.field(self._column).nullable)

    def _hide(self, suffix: str) -> None:
        """Hide the column with a suffix from a search that names no column, and no longer the one that readers use.

        This gets the metadata that others gave the hidden one while readers used it.
        """
        data, names = self._open(), (self._column + suffix, self._column)
        hidden, shown = (decoded_metadata(data.lance_schema.field(name).metadata) for name in names)
        wanted, width = (hiding_metadata(storage_of(data.schema.field(name).type)) for name in names)
        own = json.loads((shown if suffix == OLD else hidden).get(_OWN_TYPE, "{}"))
        if own.get(EXTENSION) == wanted[EXTENSION] and suffix == OLD:  # of another width
            own[_DETAILS] = json.dumps({**json.loads(own.get(_DETAILS, "{}")), **json.loads(width[_DETAILS])})
        if wanted.items() - hidden.items() or {key: shown.get(key) for key in wanted if key in shown} != own:
            ours = {NOTE, _OWN_TYPE, SPACE_KEY, _OLD_SPACE}
            theirs = {key: text for key, text in hidden.items() if key not in {*ours, *wanted}} | own
            gone = dict.fromkeys({*wanted, *shown} - ours - theirs.keys())
            data.update_field_metadata({quoted(names[0]): wanted, quoted(names[1]): {**theirs, **gone}})
        self._move_space(suffix == OLD)

    def _move_space(self, away: bool) -> None:
        """Let the table state the space of the vectors that readers see; the old column's metadata keeps its own."""
        data, old = self._open(), self._names()[1]
        stated = decoded_metadata(data.schema.metadata).get(SPACE_KEY)
        kept = decoded_metadata(data.schema.field(old).metadata).get(_OLD_SPACE)
        if away and stated is not None and kept is None:
            data.update_field_metadata({quoted(old): {_OLD_SPACE: stated}})
            new = self._made().space(base.space_in({SPACE_KEY: stated}, self._place))
            data.update_schema_metadata({SPACE_KEY: json.dumps(new.to_dict()) if new.model else None})
        if not away and kept is not None:
            data.update_schema_metadata({SPACE_KEY: kept})
            data.update_field_metadata({quoted(old): {_OLD_SPACE: None}})

    def _drop(self, column: str, unmark: str | None = None) -> None:
        """Drop a column; its disk space is freed by ``optimize`` and the cleanup of old versions."""
        self._open().drop_columns([quoted(column)])
        if unmark is not None:
            self.tidy()

    def tidy(self) -> None:
        if NOTE in decoded_metadata(self._open().schema.field(self._column).metadata):
            ours = {quoted(self._column): dict.fromkeys((NOTE, _OWN_TYPE))}
            self._change(lambda: self._open().update_field_metadata(ours))

    def ranges(self, most: int) -> Iterator[base.RowRange]:
        """Yield ranges of fragments, which are never divided."""
        self.flush()
        data = self._open()
        self._version = data.version
        bounds: list[tuple[int, int]] = []
        rows = most
        for number, count in sorted((fragment.fragment_id, fragment.count_rows()) for fragment in data.get_fragments()):
            if rows + count > most:
                bounds.append((number, number + 1))
                rows = 0
            bounds[-1] = (bounds[-1][0], number + 1)
            rows += count
        return (base.RowRange.numbered("fragments", start, stop) for start, stop in bounds)

    def revise(self, rows: base.RowRange, batch: int, change: base.Change) -> list[WrittenFile]:
        """Write a new column file for each fragment in which vectors change."""
        assert rows.stop is not None
        with self._errors():
            # Not the latest, whose fragments may be others.
            data = self._lance.dataset(self._place, self._version, storage_options=self._options)
            files = []
            for fragment in data.get_fragments():
                if rows.start <= fragment.fragment_id < rows.stop:
                    selected = None if self._rows is None else self._offsets(data, fragment, None)
                    files += self._revise(data, fragment, batch, change, selected)
            return files

    def _revise(
        self,
        data: lance.LanceDataset,
        fragment: lance.LanceFragment,
        batch: int,
        change: Callable[[PairedBlock], tuple[np.ndarray, np.ndarray | None] | None],
        selected: np.ndarray | None,
        *,
        bare: bool = False,
    ) -> list[WrittenFile]:
        """Write a new column file of a fragment if vectors change, at the selected offsets if not None.

        ``bare``: also of rows without an old vector.
        """
        old, new = (self._name(side, data.schema.names) for side in ("old", "new"))
        kind = storage_of(data.schema.field(new).type)

        def changed() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
            for piece in run_ahead(self._read(data, [old, new], batch, fragments=[fragment])):
                offsets, (values, has) = offset_of(piece.addresses), piece.vectors[1]
                mine = piece.vectors[0][1] | bare
                if selected is not None:
                    mine &= np.isin(offsets, selected)
                result = change(piece.where(mine).paired()) if mine.any() else None
                if result is not None:
                    which, vectors = result
                    rows = np.flatnonzero(mine)[which]
                    values, has = values.copy(), has.copy()
                    has[rows] = vectors is not None
                    if vectors is not None:
                        values[rows] = flat_of(vectors, kind).reshape(len(rows), kind.list_size)
                yield offsets, values, has, result is not None

        column = ColumnWriter(data, fragment, new, kind, self._options)
        try:
            for rows in run_ahead(changed()):
                column.add(*rows)
            file = column.close()
        except BaseException:
            self._remove_file(column.name)
            raise
        if file is None:
            return []
        field = data.lance_schema.field(new).id()
        return [
            {
                "fragment": fragment.fragment_id,
                "rows": fragment.physical_rows,
                "field": field,
                "other_files": _other_files(fragment, field),
                "file": _plain(file),
            }
        ]

    def _remove_file(self, name: str) -> None:
        """Remove a file that no version refers to; in an object store, Lance's cleanup removes it."""
        if self._folder is not None:
            (self._folder / "data" / name).unlink(missing_ok=True)

    def take(self, files: Sequence[WrittenFile]) -> int:
        """Commit files in one version, and remove those whose fragment has changed."""
        if not files:
            return 0

        def commit_fitting() -> list[WrittenFile]:
            from lance.fragment import DataFile

            data = self._open()
            field = data.lance_schema.field(self._name("new", data.schema.names)).id()
            fragments = {fragment.fragment_id: fragment for fragment in data.get_fragments()}
            fitting = []  # whose rows are still in the same positions as when the file was written
            for file in files:
                fragment = fragments.get(file["fragment"])
                same = fragment is not None and field == file["field"] and fragment.physical_rows == file["rows"]
                if same and _other_files(fragment, field) == file["other_files"]:
                    fitting.append(file)
            if fitting:
                commit(data, [(file["fragment"], DataFile(**file["file"])) for file in fitting])
                self._commits += 1
            return fitting

        committed = [file["fragment"] for file in self._change(commit_fitting)]
        for file in files:
            if file["fragment"] not in committed:
                self._remove_file(str(file["file"]["path"]))
        return len(files) - len(committed)


class LancePiece(NamedTuple):
    """Rows of a table: vectors of several columns as they are stored, and which rows have one."""

    ids: pa.Array
    vectors: list[tuple[np.ndarray, np.ndarray]]
    modalities: pa.Array | None
    addresses: np.ndarray

    def where(self, rows: np.ndarray) -> LancePiece:
        """Return some of the rows."""
        if rows.all():
            return self
        mask = pa.array(rows)
        vectors = [(found[rows], has[rows]) for found, has in self.vectors]
        modalities = None if self.modalities is None else self.modalities.filter(mask)
        return LancePiece(self.ids.filter(mask), vectors, modalities, self.addresses[rows])

    def paired(self) -> PairedBlock:
        """Return the rows with the vectors of both columns, zeros for missing ones."""
        (old, _), (new, has_new) = self.vectors
        rows = np.array(numbers_of(new))
        rows[~has_new] = 0
        return PairedBlock(self.ids, numbers_of(old), rows, has_new, self.modalities)


# ---- tables, types and errors ----------------------------------------------------------------------------------------


def find_table(address: base.Address, table: str | None) -> Location:
    """Return the location of a table: its folder, or its URL in an object store."""
    if address.scheme not in ("", "lancedb"):
        location = Location.of(address.text)
        if not location.name.endswith(".lance"):
            raise ParameterError(
                f"{address.shown} is no Lance table, whose URL ends in .lance.",
                "Map other files in an object store into a second data set with `congruence transform`.",
            )
        return location
    text = address.text[len("lancedb://") :] if address.scheme == "lancedb" else address.text
    place = Path(text).absolute()
    if place.suffix == ".lance":
        refusals.check_name(table or place.stem, [place.stem], address.shown, "table")
    else:
        tables = [folder.stem for folder in place.glob("*.lance")] if place.is_dir() else []
        if table is None:
            table = refusals.only_name(tables, "tables", address.shown, "table")
        place = place / f"{refusals.check_name(table, sorted(tables), address.shown, 'table')}.lance"
    if not (place / "_versions").is_dir():
        raise FileError(f"There is no Lance table at {address.shown}.", "Check the path.")
    return Location(str(place))


def find_columns(
    schema: pa.Schema, primary: list[str], place: str, column: Name, ids: Name, modality: Name
) -> tuple[str, str, Name]:
    """Return the columns of the vectors, of the ids and, if given, of the modalities."""
    kinds = {field.name: storage_of(field.type) for field in schema}
    lists = {name: kind for name, kind in kinds.items() if pa.types.is_fixed_size_list(kind)}
    options: dict[str, Any] = {
        "vectors": [name for name, kind in lists.items() if pa.types.is_floating(kind.value_type) or is_bits(kind)],
        "coded": [name for name, kind in lists.items() if is_bits(kind)],
        "keys": primary,
    }
    column, ids = choose_columns(kinds, place, column, ids, modality, **options)
    kind = storage_of(schema.field(ids).type)
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    good = pa.types.is_integer(kind) or text in (pa.string(), pa.large_string()) or kind == pa.binary(16)
    refusals.refuse(not good, "ids", ids, kind=kind)
    for name in (column, ids, modality):
        if name is not None and "`" in name:
            raise ParameterError(f"Lance cannot quote the backtick in column {name!r}.", "Rename the column.")
    return column, ids, modality


def is_bits(kind: pa.DataType) -> bool:
    """Return whether a type is a fixed-size list of bytes, which Lance compares only by their bits."""
    kind = storage_of(kind)
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type == pa.uint8())


def element_type_of(kind: pa.DataType) -> str:
    """Return the element type of a column in the terms of ``DatabaseInfo``."""
    if is_bits(kind):
        return "binary"
    return "float16" if storage_of(kind).value_type == pa.float16() else "float32"


def dim_of(kind: pa.DataType) -> int:
    """Return the number of components of the vectors in a column of this type."""
    kind = storage_of(kind)
    return int(kind.list_size) * (8 if is_bits(kind) else 1)


def numbers_of(stored: np.ndarray) -> np.ndarray:
    """Convert stored vectors to float32, shape (b, dim), C-contiguous; bits become 1 and -1."""
    if stored.dtype == np.uint8:
        return base.unpack(stored, 8 * stored.shape[1])
    return np.ascontiguousarray(stored, np.float32)


def flat_of(vectors: np.ndarray, kind: pa.DataType) -> np.ndarray:
    """Return a flat copy of vectors as the values of a column of this type."""
    if is_bits(kind):
        return base.pack(vectors).reshape(-1)
    return np.array(vectors, kind.value_type.to_pandas_dtype()).reshape(-1)


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type; other types unchanged."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def decoded_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Decode the keys and values of metadata to strings."""
    decoded = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else key
        decoded[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return decoded


def hiding_metadata(kind: pa.DataType) -> dict[str, str]:
    """Return metadata that hide a column of vectors from a search without a column name in LanceDB's Python client."""
    # As pyarrow writes it, so that users can write rows with this column.
    shape = json.dumps({"shape": [kind.list_size]}, separators=(",", ":"))
    return {EXTENSION: "arrow.fixed_shape_tensor", _DETAILS: shape}


def import_lance() -> ModuleType:
    """Import Lance without its warning, at each commit, that replacing a column's file is a new feature."""
    if "lance" in sys.modules or "LANCE_LOG" in os.environ:
        return require("lance", extra="lancedb")
    os.environ["LANCE_LOG"] = "warn,lance_table::transaction=error,lance::index=error"
    try:
        return require("lance", extra="lancedb")
    finally:
        del os.environ["LANCE_LOG"]


# ---- indexes ---------------------------------------------------------------------------------------------------------


class LanceIndex(NamedTuple):
    """An index over a column of vectors; a search scans the rows that are not indexed."""

    name: str
    kind: str  # IVF_PQ, IVF_HNSW_SQ, …
    metric: str  # cosine, dot, l2 or hamming
    partitions: int
    sub_vectors: int | None  # of the product quantization
    bits: int | None  # of the quantization
    hnsw: tuple[int, int] | None  # maximum number of connections, and of candidates during construction
    dim: int
    unindexed: int

    def __str__(self) -> str:
        parts = [self.kind, self.metric, f"{self.partitions} partitions"]
        if self.sub_vectors:
            parts.append(f"{self.sub_vectors} sub-vectors")
        if self.hnsw:
            parts.append("m={}, ef_construction={}".format(*self.hnsw))
        return ", ".join(parts)


def _lacking(having: str, column: str) -> str:
    """Return the condition for rows with a vector in one column and none in another."""
    return f"{quoted(having)} IS NOT NULL AND {quoted(column)} IS NULL"


def find_index(data: lance.LanceDataset, column: str) -> LanceIndex | None:
    """Return the vector index of a column, if it has one."""
    for index in data.describe_indices():
        if list(index.field_names) != [column] or "metric_type" not in index.details:
            continue
        details, statistics = index.details, data.stats.index_stats(index.name)
        compression, graph = details.get("compression") or {}, details.get("hnsw")
        return LanceIndex(
            index.name,
            index.index_type,
            str(details["metric_type"]).lower(),
            max((int(part.get("num_partitions") or 1) for part in statistics["indices"]), default=1),
            compression.get("num_sub_vectors"),
            compression.get("num_bits"),
            (graph["max_connections"], graph["construction_ef"]) if graph else None,
            getattr(data.schema.field(column).type, "list_size", 0),
            int(statistics["num_unindexed_rows"]),
        )
    return None


def index_like(data: lance.LanceDataset, like: LanceIndex, column: str, name: str | None) -> None:
    """Build an index of the same kind and parameters over another column; it replaces that of a ``name``.

    The length of the sub-vectors is kept, or reduced until it divides the width. Bits are indexed unquantized (flat) by
    the Hamming distance. Floats that replace bits are indexed by cosine.
    """
    kind = storage_of(data.schema.field(column).type)
    dim = kind.list_size
    if is_bits(kind):
        flat = "IVF_HNSW_FLAT" if "HNSW" in like.kind else "IVF_FLAT"
        like = like._replace(kind=flat, metric="hamming", sub_vectors=None)
    elif like.metric == "hamming":
        like = like._replace(metric="cosine")
    options: dict[str, object] = {"metric": like.metric, "num_partitions": like.partitions}
    if like.sub_vectors:
        length = max(1, like.dim // like.sub_vectors)
        while dim % length:
            length -= 1
        options["num_sub_vectors"] = dim // length
    if like.bits and like.kind.endswith(("PQ", "RQ")):
        options["num_bits"] = like.bits
    if like.hnsw:
        options["m"], options["ef_construction"] = like.hnsw
    names = {index.name for index in data.describe_indices()}
    shown = column.removesuffix(NEW).removesuffix(OLD)  # an index keeps its name when columns are renamed
    candidates = (f"{shown}_idx{k or ''}" for k in range(len(names) + 1))
    unused = next(candidate for candidate in candidates if candidate not in names)
    data.create_index(quoted(column), like.kind, name=name or unused, replace=name is not None, **options)


# ---- files of the new column -----------------------------------------------------------------------------------------


def fragment_of(addresses: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows' fragments, int64: the upper halves of their addresses."""
    return (addresses >> np.uint64(32)).astype(np.int64)


def offset_of(addresses: np.ndarray) -> np.ndarray:
    """Return the positions of the rows in their fragments, int64: the lower halves of their addresses."""
    return (addresses & np.uint64(2**32 - 1)).astype(np.int64)


def quoted(name: str) -> str:
    """Quote a column name for Lance's paths and conditions; the name must not contain a backtick."""
    return f"`{name}`"


def stream(data: lance.LanceDataset, columns: list[str], **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield batches of columns, by position, with the row addresses as the last one, in bounded memory."""
    scanner = data.scanner(
        columns=[quoted(column) for column in columns],
        with_row_address=True,
        scan_in_order=True,
        # By default, up to 2 GB would be read ahead.
        batch_readahead=2,
        fragment_readahead=1,
        io_buffer_size=32 * 2**20,
        **options,
    )
    for batch in scanner.to_batches():
        if len(batch):
            yield batch


def commit(data: lance.LanceDataset, files: list[tuple[int, lance.fragment.DataFile]]) -> None:
    """Replace the files of fragments, given by number, for the columns of the new files, in one new version."""
    from lance import LanceDataset, LanceOperation

    groups = [LanceOperation.DataReplacementGroup(number, file) for number, file in files]
    LanceDataset.commit(data, LanceOperation.DataReplacement(groups), read_version=data.version)


def _other_files(fragment: lance.LanceFragment, field: int) -> list[str]:
    """Return the paths of a fragment's files, except the file that contains only this field."""
    return sorted(file.path for file in fragment.data_files() if list(file.fields) != [field])


def _plain(file: lance.fragment.DataFile) -> dict[str, object]:
    """Return the description of a file as plain data, with the keys of the constructor's parameters."""
    numbers = ("file_major_version", "file_minor_version", "file_size_bytes", "base_id")
    lists = {"fields": list(file.fields), "column_indices": list(file.column_indices)}
    return {"path": str(file.path), **lists, **{name: getattr(file, name) for name in numbers}}


class ColumnWriter:
    """Writes the new column's file of a fragment, row by row in order; creates the file only once a vector changes."""

    def __init__(
        self,
        data: lance.LanceDataset,
        fragment: lance.LanceFragment,
        column: str,
        kind: pa.DataType,
        options: dict[str, str] | None,
    ) -> None:
        self._data, self._fragment, self._column, self._kind, self._options = data, fragment, column, kind, options
        self._schema = pa.schema([pa.field(column, kind)])
        self.name = f"{uuid.uuid4()}.lance"
        self._writer: LanceFileWriter | None = None
        self._written = 0

    def add(self, offsets: np.ndarray, values: np.ndarray, has: np.ndarray, changed: bool) -> None:
        """Append rows at these offsets in the fragment, without deleted ones; ``has`` says which have a new vector.

        ``changed`` says whether any of the vectors, shape (b, width), differs from that in the table.
        """
        if changed and self._writer is None:
            self._begin(int(offsets[0]))
        if self._writer is not None:
            self._write(offsets, values, has, int(offsets[-1]) + 1)

    def _begin(self, first: int) -> None:
        """Open the file, and copy the unchanged rows before row ``first``."""
        from lance.file import LanceFileWriter

        path, version = f"{self._data.uri}/data/{self.name}", self._data.data_storage_version
        self._writer = LanceFileWriter(path, self._schema, version=version, storage_options=self._options)
        options = {"fragments": [self._fragment], "batch_size": _ROWS}
        for batch in stream(self._data, [self._column], **options) if first else ():
            at, (values, has) = offset_of(np.asarray(batch.column(1))), base.matrix_of(batch.column(0))
            n = int(np.searchsorted(at, first))
            if n:
                self._write(at[:n], values[:n], has[:n], int(at[n - 1]) + 1)
            if n < len(at):
                return

    def _write(self, at: np.ndarray, values: np.ndarray, has: np.ndarray, stop: int) -> None:
        """Append the physical rows up to ``stop``; rows that are not passed are deleted ones, and become null."""
        assert self._writer is not None
        full = np.zeros(stop - self._written, bool)
        full[at - self._written] = has
        if len(at) == len(full):
            dense = values
        else:
            dense = np.zeros((len(full), self._kind.list_size), self._kind.value_type.to_pandas_dtype())
            dense[at - self._written] = values
        flat = pa.array(np.ascontiguousarray(dense).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, type=self._kind, mask=None if full.all() else pa.array(~full))
        self._writer.write_batch(pa.record_batch([lists], schema=self._schema))
        self._written = stop

    def close(self) -> lance.fragment.DataFile | None:
        """Complete the file up to the fragment's last row, and return its description; None if nothing was written."""
        from lance.fragment import DataFile

        if self._writer is None:
            return None
        rows = self._fragment.physical_rows
        while self._written < rows:
            none = np.empty((0, self._kind.list_size))
            self._write(none[:, 0].astype(int), none, none[:, 0] > 0, min(self._written + _ROWS, rows))
        self._writer.close()
        return DataFile.create(self._data, self.name)
