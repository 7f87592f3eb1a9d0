"""LanceDB tables: the new vectors are a second column of the same rows, and the switch renames both columns in one version."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from congruence.databases._address import Address
from congruence.databases._base import Capabilities, Side, Stage
from congruence.databases._bits import pack
from congruence.databases._lance_column import fill, quoted
from congruence.databases._lance_index import describe_index, find_index, index_like
from congruence.databases._lance_ranges import LanceRanges
from congruence.databases._lance_staging import Staging
from congruence.databases._lance_table import (
    EXTENSION,
    NEW,
    NOTE,
    OLD,
    TOKEN,
    as_ids,
    decoded_metadata,
    dim_of,
    flat_of,
    hiding_metadata,
    is_bits,
    note_of,
    storage_of,
    type_of,
)
from congruence.databases._scratch import time_scratch
from congruence.databases._stage_errors import already_switched, no_new_vectors, not_switched
from congruence.errors import DatabaseError, DatabaseUnavailableError, MigrationError, ParameterError

if TYPE_CHECKING:
    import lance

__all__ = ["LanceDB"]

#: Maximum number of bytes of new vectors kept in memory until the next flush.
_PENDING = 64 * 2**20

#: Maximum number of attempts at a change that conflicts with commits of other clients.
_ATTEMPTS = 12

_T = TypeVar("_T")


class LanceDB(LanceRanges):
    """A LanceDB table in a folder or, when migrated with an engine, in an object store; also a Lance data set outside a database.

    Parameters
    ----------
    address : Address
        Path of ``DATABASE/TABLE.lance``, ``lancedb://DATABASE``, or ``s3://BUCKET/DATABASE/TABLE.lance`` (``gs``, ``az``).
    table : str, optional
        Required if the address does not name it and there are several.
    column : str, optional
        Column of the vectors: a fixed-size list of floats, or of bytes with packed bits, highest bit first (``numpy.packbits``). May be
        omitted if there is only one such column, or only one of floats.
    ids : str, optional
        Column of the ids (integers, strings or UUIDs); by default ``id``, or the table's primary key.
    modality_column : str, optional
    rows : str, optional
        A condition in the syntax of LanceDB's ``where``. Lance evaluates it for each row; it cannot run statements.

    Raises
    ------
    ParameterError, FileError, DatabaseError, CorruptFileError
        If a parameter has an invalid value; a file cannot be read; the database rejects the request; or a file is damaged.

    Notes
    -----
    Before the switch, the new vectors are in the column ``COLUMN__congruence_new``; after it, the old ones are in
    ``COLUMN__congruence_old``. The column that readers do not use is marked as ``arrow.fixed_shape_tensor``, so that LanceDB's Python
    client ignores it in a search that does not name a column.

    Written vectors are staged in ``_congruence`` in the table's folder until a fragment is complete; the fragment then gets one new
    file. Reading the new side first moves staged vectors into the column, which rewrites it in their fragments, so do not read the new
    side after each batch.

    Other clients may add, update, delete and compact rows at the same time. An added row has no new vector, and an updated row keeps
    the new vector of its old content; :meth:`scan_pairs` shows both. :meth:`rollback` renames the columns back and therefore keeps rows
    added after the switch, which a return to an old version of the table would lose.
    """

    kind = "lancedb"
    capabilities = Capabilities(
        container="column",
        atomic_switch=True,
        concurrent_writes=True,
        follows_deletes=True,
        searches=True,
        filters="LanceDB SQL",
        element_types=("float32", "float16", "binary"),
    )

    def __init__(self, address: Address, **options: str | None) -> None:
        super().__init__(address, **options)
        self._pending: list[tuple[pa.Array, np.ndarray, pa.Array]] = []
        self._staging_cache: Staging | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_pending": [], "_staging_cache": None}

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Add an empty column, together with the note in one version; see :meth:`Database.prepare`."""
        if element_type not in self.capabilities.element_types:
            raise ParameterError(
                f"Got element type {element_type!r}; expected one of {', '.join(self.capabilities.element_types)}. Pass element_type= with one of these."
            )
        value_type = type_of(element_type, dim)

        def add() -> None:
            data = self._open()
            stage, _, new = self._names(data)
            if stage is not Stage.UNTOUCHED:
                existing, existing_note = storage_of(data.schema.field(new).type), note_of(data.schema, new)
                if existing != value_type or existing_note != dict(note or {}):
                    raise MigrationError(
                        f"Got new vectors of {existing.value_type}[{existing.list_size}] with the note {existing_note}; expected "
                        f"{value_type.value_type}[{dim}] with {dict(note or {})}. Discard the new vectors first (discard)."
                    )
                return
            if data.data_storage_version in ("0.1", "legacy"):
                raise DatabaseError(
                    f"Got {self._place} in Lance's legacy file format; expected format 2.0 or later. Copy the table with a current version of LanceDB."
                )
            token = secrets.token_hex(8)
            metadata = {NOTE: json.dumps(dict(note or {})), TOKEN: token, **hiding_metadata(value_type)}
            data.add_columns(pa.field(new, value_type, metadata=metadata))

        self._change(add)
        self._sweep()

    def _staging(self, data: lance.LanceDataset) -> Staging:
        """Return the staged vectors for the new column of a version."""
        _, _, new = self._names(data)
        token = decoded_metadata(data.schema.field(self._side(data, "new")).metadata).get(TOKEN, "")
        if not token.isalnum():
            raise DatabaseError(
                f"Got column {new} in {self._place}, which this library did not create; expected this name to be free. Rename or drop that column."
            )
        folder = Path(self._place.uri) / "_congruence" / token
        if self._staging_cache is None or self._staging_cache.folder != folder:
            self._staging_cache = Staging(folder)
        return self._staging_cache

    def _sweep(self) -> None:
        """Remove staged vectors of columns that no longer exist."""
        if self._place.folder is None:
            return
        schema = self._open().schema
        known = {decoded_metadata(field.metadata).get(TOKEN) for field in schema}
        root = self._place.folder / "_congruence"
        for folder in root.iterdir() if root.is_dir() else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()

    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Keep new vectors in memory, up to 64 MB, and stage them beyond that or at :meth:`flush`; see :meth:`Database.write`."""
        data = self._open() if not self._pending else None
        if data is not None:
            self._new_type = storage_of(data.schema.field(self._side(data, "new")).type)
        dim = dim_of(self._new_type)
        if vectors.shape != (len(ids), dim):
            raise ParameterError(
                f"Got vectors of shape {vectors.shape}; expected {(len(ids), dim)}. Pass one row per id."
            )
        if len(ids):
            flat = flat_of(vectors, self._new_type)
            self._add_pending(ids, pa.FixedSizeListArray.from_arrays(pa.array(flat), type=self._new_type))

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Write rows to a scratch table in a temporary folder next to the database; see :meth:`Database.time_write`."""

        def make(folder: Path, n: int) -> LanceDB:
            empty = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(n, np.float32)), 1)
            place = folder / "scratch.lance"
            with self._errors():
                self._lance.write_dataset(pa.table({"id": np.arange(n), "vector": empty}), str(place))
            return LanceDB(Address.parse(str(place)))

        folder = self._place.folder
        return None if folder is None else time_scratch(folder.parent, make, vectors, element_type)

    def delete(self, ids: pa.Array) -> None:
        """Set new vectors to null; see :meth:`Database.delete`."""
        data = self._open()
        self._new_type = storage_of(data.schema.field(self._side(data, "new")).type)
        if len(ids):
            flat = np.zeros(len(ids) * self._new_type.list_size, self._new_type.value_type.to_pandas_dtype())
            deleted = pa.array(np.ones(len(ids), bool))
            self._add_pending(ids, pa.FixedSizeListArray.from_arrays(pa.array(flat), type=self._new_type, mask=deleted))

    def _add_pending(self, ids: pa.Array, vectors: pa.Array) -> None:
        """Keep rows in memory, and stage them if they exceed the limit."""
        if self.whole_files_only:
            raise DatabaseError(
                f"Got rows to write one by one in {self._place}; expected whole files of the column, as required in an object store. Migrate with an engine: "
                "Migration(…, executor=EngineExecutor(LocalEngine())), or congruence migrate."
            )
        self._pending.append((ids, self._addresses(ids), vectors))
        if sum(vectors.nbytes for *_, vectors in self._pending) > _PENDING:
            self._stage_pending(self._open())

    def _stage_pending(self, data: lance.LanceDataset) -> None:
        if self._pending:
            with self._errors():
                self._staging(data).add(self._pending)
            self._pending.clear()

    def flush(self) -> None:
        """Make everything written so far durable, and move the vectors of complete fragments into the column; see :meth:`Database.flush`."""
        data = self._open()
        if self._names(data)[0] is Stage.UNTOUCHED or self.whole_files_only:
            return
        self._stage_pending(data)
        staging = self._staging(data)
        staged_rows = staging.fragments()
        complete = set(staged_rows)
        last = data.get_fragment(staging.last) if staging.last is not None else None
        # Rows are written in table order, so all fragments but the last one are complete.
        if last and staged_rows[last.fragment_id] < last.count_rows():
            complete.discard(last.fragment_id)
        if complete:
            self._fill(complete)

    def _settled(self) -> lance.LanceDataset:
        """Move all staged vectors into the column, and return the version of the table that contains them."""
        data = self._open()
        if self._names(data)[0] is not Stage.UNTOUCHED and not self.whole_files_only:
            self._stage_pending(data)
            if self._staging(data).fragments():
                self._fill(None)
                data = self._open()
        return data

    def _fill(self, fragments: set[int] | None) -> None:
        def move() -> None:
            data = self._open()
            new = self._side(data, "new")
            value_type = storage_of(data.schema.field(new).type)
            fill(
                data,
                self._staging(data),
                fragments,
                id_column=self._ids,
                column=new,
                value_type=value_type,
            )

        self._change(move)

    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a change that reads the latest version and commits; retry from the new version if others commit in between."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._errors():
                    return change()
            except DatabaseUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(min(0.02 * 2**attempt, 1))
        raise AssertionError

    # ---- index and search --------------------------------------------------------------------------------------------

    def build_index(self) -> str | None:
        """Build an index of the old one's kind and parameters over the new vectors; see :meth:`Database.build_index`."""
        data = self._settled()
        old, new = self._side(data, "old"), self._side(data, "new")
        like, index = find_index(data, old), find_index(data, new)
        if like is None:
            return None
        if index is None or index.unindexed:
            name = index.name if index else None
            self._change(lambda: index_like(self._open(), like, new, name))
            index = find_index(self._open(), new)
        return describe_index(index) if index else None

    def search(self, queries: np.ndarray, k: int, side: Side = "new") -> list[pa.Array]:
        """Return the ids of the nearest rows by Lance's own search: with the index and its distance, or exact L2 without one; Hamming for bits."""
        data = self._settled()
        column = self._side(data, side)
        index = find_index(data, column) or find_index(data, self._side(data, "old"))
        rows = np.asarray(queries, np.float32)
        if is_bits(data.schema.field(column).type):
            metric, rows = {"metric": "hamming"}, pack(rows)
        else:
            metric = {"metric": index.metric} if index and index.metric != "hamming" else {}
        with self._errors():
            return [
                as_ids(
                    data.to_table(
                        columns=[quoted(self._ids)],
                        nearest={"column": quoted(column), "q": query, "k": k, **metric},
                        filter=self._where,
                        prefilter=True,
                        disable_scoring_autoprojection=True,  # otherwise Lance warns at each query
                    )
                    .column(0)
                    .combine_chunks()
                )
                for query in rows
            ]

    # ---- switch ------------------------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Rename both columns in one version; see :meth:`Database.switch`."""
        data = self._settled()
        if self._names(data)[0] is Stage.UNTOUCHED:
            raise no_new_vectors(str(self._place))
        self._rename(Stage.SWITCHED, NEW, OLD)

    def rollback(self) -> None:
        """Rename both columns back in one version; rows added since the switch are kept. See :meth:`Database.rollback`."""
        if self.stage() is not Stage.UNTOUCHED:
            self._rename(Stage.PREPARED, OLD, NEW)

    def _rename(self, goal: Stage, shown: str, hidden: str) -> None:
        """Rename the column with the suffix ``shown`` to the name that readers use, and the column with that name to the suffix ``hidden``.

        A search that names its column uses the other vectors from the first commit on, one that does not from the second.
        """

        def rename() -> None:
            data = self._open()
            if self._names(data)[0] is not goal:
                data.alter_columns(
                    {"path": quoted(self._column), "name": self._column + hidden},
                    {"path": quoted(self._column + shown), "name": self._column},
                )

        def hide() -> None:
            data = self._open()
            metadata = data.lance_schema.field(self._column + hidden).metadata
            wanted = hiding_metadata(storage_of(data.schema.field(self._column + hidden).type))
            if wanted.items() - decoded_metadata(metadata).items() or EXTENSION in decoded_metadata(
                data.lance_schema.field(self._column).metadata
            ):
                data.update_field_metadata(
                    {quoted(self._column + hidden): wanted, quoted(self._column): dict.fromkeys(wanted)}
                )

        self._change(rename)
        self._change(hide)

    def drop_old(self) -> None:
        """Drop the old column; its disk space is freed by ``optimize`` and the cleanup of old versions. See :meth:`Database.drop_old`."""
        if self.stage() is not Stage.SWITCHED:
            raise not_switched(str(self._place))
        self._settled()

        def drop() -> None:
            data = self._open()
            if self._column + OLD in data.schema.names:
                data.drop_columns([quoted(self._column + OLD)])
            data.update_field_metadata({quoted(self._column): {NOTE: None, TOKEN: None}})

        self._change(drop)
        self._sweep()

    def discard(self) -> None:
        """Drop the new column; see :meth:`Database.discard`."""
        self._pending.clear()

        def drop() -> None:
            data = self._open()
            stage, _, new = self._names(data)
            if stage is Stage.SWITCHED:
                raise already_switched(str(self._place))
            if stage is Stage.PREPARED:
                data.drop_columns([quoted(new)])

        self._change(drop)
        self._staging_cache = None
        self._sweep()

    def close(self) -> None:
        """Release cached ids and vectors. New vectors that were not flushed are lost."""
        self._pending.clear()
        self._seen.clear()
        self._staging_cache = None
