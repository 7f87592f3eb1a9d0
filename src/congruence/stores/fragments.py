"""Parts of large tables as sources: a range of row groups of a Parquet file, or a fragment of a Lance data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence.errors import CorruptFileError
from congruence.stores._table import TableSource, rows_after
from congruence.stores.reading import reading

if TYPE_CHECKING:
    import lance
    import pyarrow.parquet as pq


#: Exceptions that Arrow and Lance raise for damaged files.
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, RuntimeError)


class TableFragment(TableSource):
    """A part of a table whose rows are read with all their columns, and whose vectors are extracted in a second step."""

    def tables(self, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of at most ``batch`` rows with all columns, each with the number of its first row in the fragment."""
        yield from self._pieces(None, 0, batch)

    def block(self, piece: pa.RecordBatch, start: int) -> tuple[pa.Array | None, np.ndarray]:
        """Return the ids and vectors of a batch of rows."""
        return self._block(piece, start)


class ParquetFragment(TableFragment):
    """Row groups of a Parquet file, which may be remote.

    ``opens``: function that opens the file; ``name``: name of the file in messages; ``groups``: first row group, and
    the one after the last; by default all; ``key``, ``ids``: columns of vectors and ids, as in
    :class:`~congruence.stores.parquet.ParquetSource`; ``buffer``: bytes of a column to read at a time; each read from
    an object store is a request. ``group_sizes``: number of rows and of uncompressed bytes of every row group of the
    file.
    """

    def __init__(
        self,
        opens: Callable[[], pa.NativeFile],
        name: str,
        *,
        groups: tuple[int, int] | None = None,
        key: str | None = None,
        ids: str | bool | None = None,
        buffer: int = 2**20,
    ) -> None:
        self._opens, self._name, self._buffer = opens, name, buffer
        with opens() as handle, self._file_of(handle) as file:
            count = file.num_row_groups
            self.group_sizes = [
                (one.num_rows, one.total_byte_size) for one in (file.metadata.row_group(k) for k in range(count))
            ]
            self._groups = range(*(groups or (0, count)))
            chosen = [self.group_sizes[k] for k in self._groups if k < count]
            if len(chosen) < len(self._groups):
                raise CorruptFileError(
                    f"Got {count} row groups in {name}; expected at least {self._groups.stop}, as when the work was planned. Run it again from the beginning with force=True."
                )
            rows = sum(one[0] for one in chosen)
            self._describe(name, file.schema_arrow, rows, key, ids)
            self.files = ()
            first = None
            if self.dim < 0:
                batches = file.iter_batches(batch_size=1, columns=[self._key], row_groups=self._groups)
                first = next(batches, None)
            self._measure(None if first is None else first.column(0))
            self._row_bytes = int(sum(one[1] for one in chosen) // self.n)

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes that a row takes in memory with all its columns, according to the file's footer."""
        widest: int = max(self._row_bytes, super().row_bytes)
        return widest

    def _file_of(self, handle: pa.NativeFile) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        with reading(self._name, *_DAMAGE):
            return pq.ParquetFile(handle, pre_buffer=False, buffer_size=self._buffer)

    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with self._opens() as handle, self._file_of(handle) as file, reading(self._name, *_DAMAGE):
            pieces = file.iter_batches(batch_size=batch, columns=names, row_groups=self._groups, use_threads=False)
            yield from rows_after(pieces, after, self.n, self._name)


class LanceFragment(TableFragment):
    """One fragment of a version of a Lance data set.

    ``name``: name of the fragment in messages; ``key``, ``ids``: columns of vectors and ids.
    """

    def __init__(
        self,
        data: lance.LanceDataset,
        number: int,
        name: str,
        *,
        key: str | None = None,
        ids: str | bool | None = None,
    ) -> None:
        self._data = data.get_fragment(number)
        if self._data is None:
            raise CorruptFileError(
                f"Got no fragment {number} in {name}; expected the fragment, as when the work was planned. Run it again from the beginning with force=True."
            )
        self._name = name
        with reading(name, *_DAMAGE):
            self._describe(name, data.schema, self._data.count_rows(), key, ids)
            self.files = ()
            head = self._data.take(list(range(min(self.n, 16))))
            self._measure(head.column(self._key).combine_chunks() if self.dim < 0 else None)
            self._row_bytes = int(head.nbytes // len(head))

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes that a row takes in memory with all its columns, estimated from the first rows."""
        widest: int = max(self._row_bytes, super().row_bytes)
        return widest

    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with reading(self._name, *_DAMAGE):
            pieces = self._data.to_batches(columns=names, batch_size=batch, batch_readahead=1)
            yield from rows_after(pieces, after, self.n, self._name)


class SchemaSource(TableFragment):
    """Columns of batches that the caller supplies, described by their schema; it reads no rows itself.

    ``name``: name of the table in messages; ``dim``: width of the vectors, used if the schema does not determine it;
    ``key``, ``ids``: columns of vectors and ids.
    """

    def __init__(
        self, schema: pa.Schema, name: str, *, dim: int, key: str | None = None, ids: str | bool | None = None
    ) -> None:
        self._describe(name, schema, 1, key, ids)
        self.dim = self.dim if self.dim >= 0 else dim

    def vectors(self, column: pa.Array) -> np.ndarray:
        """Return a list column as a matrix. Raises ShapeError for missing and ragged rows."""
        return self._vectors(column, 0, None)

    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from ()
