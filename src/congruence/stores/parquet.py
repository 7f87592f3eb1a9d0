"""Reader and writer of ``.parquet`` files with vectors as lists, streamed by batches of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from congruence.errors import DtypeError
from congruence.stores._table import TableSink, TableSource, read_table_column, rows_after, table_shapes
from congruence.stores.layout import parquet_options
from congruence.stores.reading import missing_file, reading

if TYPE_CHECKING:
    import pyarrow.parquet as pq


#: Exceptions that pyarrow raises for damaged files: its I/O errors are plain OSErrors, and names may not be UTF-8.
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


@contextmanager
def _open(path: str | Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq  # not at the top, since every command imports the table of formats

    if not Path(path).is_file():
        raise missing_file(path)
    # Pre-buffering would read every row group ahead, the whole file in the end.
    with (
        reading(path, *_DAMAGE),
        pq.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=2**20) as file,
    ):
        yield file


def parquet_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name; lists of any length count as matrices. Raises FileError, CorruptFileError."""
    with _open(path) as file:
        return table_shapes(file.schema_arrow, file.metadata.num_rows)


class ParquetSource(TableSource):
    """Rows of a list column in a ``.parquet`` file, of fixed or variable list size.

    ``key``: name of the column; optional if there is only one column of lists; ``ids``: ids, or the column that holds
    them; by default a column named ``id`` or ``ids``, if there is one.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        with _open(path) as file:
            self._describe(path, file.schema_arrow, file.metadata.num_rows, key, ids)
            first = next(file.iter_batches(batch_size=1, columns=[self._key]), None) if self.dim < 0 else None
            self._measure(None if first is None else first.column(0))
            groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            self._row_bytes = sum(group.total_byte_size for group in groups) // self.n

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes that a row takes in memory with all its columns, according to the file's footer."""
        return max(self._row_bytes, super().row_bytes)

    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with _open(self._file) as file:
            # Skip row groups that end before row ``after``.
            first, skipped = 0, 0
            while first < file.num_row_groups - 1 and skipped + file.metadata.row_group(first).num_rows <= after:
                skipped += file.metadata.row_group(first).num_rows
                first += 1
            batches = file.iter_batches(
                batch_size=batch, columns=names, row_groups=range(first, file.num_row_groups), use_threads=False
            )
            yield from rows_after(batches, after, self.n, self.path, first_row=skipped)


def read_parquet_column(path: str | Path, key: str | None) -> pa.ChunkedArray:
    """Read a column that is not a list column."""
    with _open(path) as file:
        return read_table_column(path, key, file.schema_arrow, lambda name: file.read([name]).column(name))


class ParquetSink(TableSink):
    """Writer of a ``.parquet``: the source's table with the mapped vectors, or ``vector`` as fixed-size lists and, if there are ids, ``id``."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        import pyarrow.parquet as pq

        schema = self._make_schema()
        try:
            writer = pq.ParquetWriter(temporary, schema, **parquet_options(self._layout, kept=bool(self.columns)))
        except pa.ArrowNotImplementedError as error:
            raise DtypeError(
                f"Got a column that Parquet cannot hold for {self.path} ({error}); expected types that it supports. Choose .arrow, which supports all."
            ) from error
        self._writer = stack.enter_context(writer)

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=len(table))
