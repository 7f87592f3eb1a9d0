"""A Lance table that several processes read in parallel: each writes complete files of the new column, and one process commits them."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence.databases._lance_column import commit, stream
from congruence.databases._lance_reader import LanceReader, import_lance
from congruence.databases._lance_staging import matrix_of, offset_of
from congruence.databases._lance_table import TablePlace, flat_of, storage_of
from congruence.databases._partitioned import Change, Partitioned, WrittenFile
from congruence.errors import ParameterError

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileWriter

__all__ = ["LanceRanges"]

#: Number of rows written at a time if no batch size is given.
_ROWS = 4096

_T = TypeVar("_T")


class LanceRanges(LanceReader, Partitioned):
    """Base class of :class:`congruence.databases.lancedb.LanceDB` with the methods that an engine uses.

    All ranges refer to the version of the table that :meth:`ranges` read. A file is committed only if its fragment still consists of the same
    files, apart from the new column: deleted rows stay in them, while updated and compacted rows move to another fragment.
    """

    unit: ClassVar[str] = "fragments"
    _version = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open objects; another process with access to the same folder opens them again."""
        return {**self.__dict__, "_lance": None, "_lock": None, "_seen": deque()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lance=import_lance(), _lock=Lock())

    @property
    def whole_files_only(self) -> bool:
        """Whether the table is in an object store: staging rows until their fragment is complete requires a folder."""
        return self._place.folder is None

    @abstractmethod
    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a change that reads the latest version and commits; retry from the new version if others commit in between."""

    def ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of fragments; see :meth:`Partitioned.ranges`. A fragment is never divided."""
        if self._where is not None:
            raise ParameterError(
                f"Got the condition {self._where!r} for an engine; expected all rows, since an engine writes whole files of the column. Leave rows= out, or migrate with engine='local'."
            )
        data = self._settled()
        self._version = data.version
        ranges: list[tuple[int, int]] = []
        rows = most
        for number, count in sorted((fragment.fragment_id, fragment.count_rows()) for fragment in data.get_fragments()):
            if rows + count > most:
                ranges.append((number, number + 1))
                rows = 0
            ranges[-1] = (ranges[-1][0], number + 1)
            rows += count
        return iter(ranges)

    def revise(self, start: int, stop: int, batch: int, change: Change) -> list[WrittenFile]:
        """Write a new column file for each fragment in which vectors change; see :meth:`Partitioned.revise`."""
        with self._errors():
            data = self._lance.dataset(self._place.uri, self._version, storage_options=self._place.options)
            files = []
            for fragment in data.get_fragments():
                if start <= fragment.fragment_id < stop:
                    files += self._revise(data, fragment, batch, change)
            return files

    def _revise(
        self, data: lance.LanceDataset, fragment: lance.LanceFragment, batch: int, change: Change
    ) -> list[WrittenFile]:
        new = self._side(data, "new")
        columns = [self._ids, self._side(data, "old"), new, *([self._modalities] if self._modalities else [])]
        kind = storage_of(data.schema.field(new).type)

        def pieces() -> Iterator[pa.RecordBatch]:
            for piece in stream(data, columns, fragments=[fragment], batch_size=batch):
                for start in range(0, len(piece), batch):
                    yield piece.slice(start, batch)

        def changed() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
            for piece in run_ahead(pieces()):
                block, has_old, addresses = self._paired(piece)
                values, has = matrix_of(piece.column(2))
                result = change(block) if len(block.ids) else None
                if result is not None:
                    which, vectors = result
                    rows = np.flatnonzero(has_old)[which]
                    values, has = values.copy(), has.copy()
                    values[rows] = flat_of(vectors, kind).reshape(len(rows), kind.list_size)
                    has[rows] = True
                yield offset_of(addresses), values, has, result is not None

        column = _Column(data, fragment, new, kind, self._place)
        try:
            for rows in run_ahead(changed()):
                column.add(*rows)
            file = column.close()
        except BaseException:
            column.abandon()
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

    def take(self, files: Sequence[WrittenFile]) -> int:
        """Commit files in one version, and remove those whose fragment has changed; see :meth:`Partitioned.take`."""
        if not files:
            return 0

        def commit_fitting() -> list[WrittenFile]:
            from lance.fragment import DataFile

            data = self._open()
            field = data.lance_schema.field(self._side(data, "new")).id()
            fragments = {fragment.fragment_id: fragment for fragment in data.get_fragments()}
            fitting = [file for file in files if _fits(fragments.get(file["fragment"]), field, file)]
            if fitting:
                commit(data, [(file["fragment"], DataFile(**file["file"])) for file in fitting])
            return fitting

        committed = [file["fragment"] for file in self._change(commit_fitting)]
        for file in files:
            if file["fragment"] not in committed:
                _remove(self._place, str(file["file"]["path"]))
        return len(files) - len(committed)


def _remove(place: TablePlace, name: str) -> None:
    """Remove a file that no version refers to; in an object store, Lance's cleanup removes it."""
    if place.folder is not None:
        (place.folder / "data" / name).unlink(missing_ok=True)


def _other_files(fragment: lance.LanceFragment, field: int) -> list[str]:
    """Return the paths of a fragment's files, except the file that contains only this field."""
    return sorted(file.path for file in fragment.data_files() if list(file.fields) != [field])


def _plain(file: lance.fragment.DataFile) -> dict[str, object]:
    """Return the description of a file as plain data, with the keys of the constructor's parameters."""
    numbers = ("file_major_version", "file_minor_version", "file_size_bytes", "base_id")
    lists = {"fields": list(file.fields), "column_indices": list(file.column_indices)}
    return {"path": str(file.path), **lists, **{name: getattr(file, name) for name in numbers}}


def _fits(fragment: lance.LanceFragment | None, field: int, file: WrittenFile) -> bool:
    """Return whether a fragment's rows are still in the same positions as when the file was written."""
    return (
        fragment is not None
        and field == file["field"]
        and fragment.physical_rows == file["rows"]
        and _other_files(fragment, field) == file["other_files"]
    )


class _Column:
    """Writes the new column's file of a fragment, row by row in order; creates the file only once a vector changes."""

    def __init__(
        self,
        data: lance.LanceDataset,
        fragment: lance.LanceFragment,
        column: str,
        kind: pa.DataType,
        place: TablePlace,
    ) -> None:
        self._data, self._fragment, self._column, self._kind, self._place = data, fragment, column, kind, place
        self._schema = pa.schema([pa.field(column, kind)])
        self._name = f"{uuid.uuid4()}.lance"
        self._writer: LanceFileWriter | None = None
        self._written = 0

    def add(self, offsets: np.ndarray, values: np.ndarray, has: np.ndarray, changed: bool) -> None:
        """Append rows.

        Parameters
        ----------
        offsets : ndarray of int64, shape (b,)
            Positions of the rows in the fragment, without deleted rows.
        values : ndarray, shape (b, width)
            Vectors, as they are stored.
        has : ndarray of bool, shape (b,)
            Which rows have a new vector.
        changed : bool
            Whether any of the vectors differs from that in the table.
        """
        if changed and self._writer is None:
            self._begin(int(offsets[0]))
        if self._writer is not None:
            self._write(offsets, values, has, int(offsets[-1]) + 1)

    def _begin(self, first: int) -> None:
        """Open the file, and copy the unchanged rows before row ``first``."""
        from lance.file import LanceFileWriter

        path, version = f"{self._place.uri}/data/{self._name}", self._data.data_storage_version
        self._writer = LanceFileWriter(path, self._schema, version=version, storage_options=self._place.options)
        for batch in stream(self._data, [self._column], fragments=[self._fragment], batch_size=_ROWS):
            at = offset_of(np.asarray(batch.column(1)))
            n = int(np.searchsorted(at, first))
            if n:
                values, has = matrix_of(batch.column(0))
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
        no_rows, no_vectors = np.empty(0, np.int64), np.empty((0, self._kind.list_size))
        while self._written < self._fragment.physical_rows:
            self._write(
                no_rows, no_vectors, np.empty(0, bool), min(self._written + _ROWS, self._fragment.physical_rows)
            )
        self._writer.close()
        return DataFile.create(self._data, self._name)

    def abandon(self) -> None:
        """Remove the file, if it was created."""
        if self._writer is not None:
            _remove(self._place, self._name)
