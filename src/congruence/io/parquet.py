"""Reader and writer of ``.parquet`` files, local or remote, streamed by batches of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from congruence.errors import CorruptFileError, DtypeError
from congruence.io._base import BATCH
from congruence.io.locations import READ_BYTES, Location, is_url
from congruence.io.reading import check_all_rows, missing_file, reading
from congruence.io.tables import ARROW_DAMAGE, Pieces, RowGroups, Table, TableSink, TableSource

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@contextmanager
def open_parquet(
    path: str | Path, opens: Callable[[], pa.NativeFile] | None = None, buffer: int = 2**20
) -> Iterator[pq.ParquetFile]:
    """Yield a file; ``opens`` opens a remote one, of which ``buffer`` bytes of a column are read at a time."""
    import pyarrow.parquet as pq

    if opens is None and not Path(path).is_file():
        raise missing_file(path)
    # Pre-buffering would read every row group ahead, the whole file in the end.
    with (
        reading(path, *ARROW_DAMAGE),
        pa.OSFile(str(path)) if opens is None else opens() as handle,
        pq.ParquetFile(handle, pre_buffer=False, buffer_size=buffer) as file,
    ):
        yield file


class ParquetTable(Table):
    """Rows of a ``.parquet`` file, or of the range ``groups`` of its row groups.

    ``group_sizes`` has the number of rows and of uncompressed bytes of every row group.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        groups: Sequence[int] | None = None,
        opens: Callable[[], pa.NativeFile] | None = None,
        buffer: int = 2**20,
    ) -> None:
        if opens is None and is_url(str(path)):
            opens, buffer = Location.of(path).open, READ_BYTES
        self.name, self._opening = str(path), (path, opens, buffer)
        with open_parquet(*self._opening) as file:
            self.schema = file.schema_arrow
            found = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            self.group_sizes = [(one.num_rows, one.total_byte_size) for one in found]
        self._groups = range(*(groups or (0, len(found))))
        if len(found) < self._groups.stop:
            problem = f"Got {len(found)} row groups in {path}; there were {self._groups.stop} when it was planned."
            raise CorruptFileError(problem, "Run it again from the beginning with `force=True`.")
        chosen = [self.group_sizes[k] for k in self._groups]
        self.n = sum(rows for rows, _ in chosen)
        self.row_bytes = sum(size for _, size in chosen) // max(self.n, 1)

    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        groups, row = self._groups, 0
        while len(groups) > 1 and row + self.group_sizes[groups[0]][0] <= after:
            row += self.group_sizes[groups[0]][0]
            groups = groups[1:]
        with open_parquet(*self._opening) as file:
            for piece in file.iter_batches(batch_size=batch, columns=names, row_groups=groups, use_threads=False):
                if row + len(piece) > after:
                    first = max(after, row)
                    yield first, piece.slice(first - row)
                row += len(piece)
            check_all_rows(row, self.n, self.name)


def write_parquet(
    file: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: object
) -> tuple[int, int]:
    """Write batches to an open file; return its rows and bytes."""
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(file, schema, **options) as writer:
        groups = RowGroups(lambda table: writer.write_table(table, row_group_size=len(table)))
        for batch in batches:
            groups.add(batch, batch.nbytes)
            rows += len(batch)
        groups.flush()
        writer.close()
        return rows, file.tell()


class ParquetSink(TableSink):
    """Writer of a ``.parquet``."""

    keeps_lists = keeps_codes = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        import pyarrow.parquet as pq

        schema = self._make_schema()
        try:
            writer = pq.ParquetWriter(temporary, schema, **self._layout.parquet_options())
        except pa.ArrowNotImplementedError as error:
            problem = f"Got a column that Parquet cannot hold for {self.path} ({error})."
            raise DtypeError(problem, "Choose .arrow, which supports all types.") from error
        self._writer = stack.enter_context(writer)

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=len(table))


class ParquetSource(TableSource):
    """Rows of a list column of a ``.parquet`` file."""

    table_class, sink = ParquetTable, ParquetSink
    _apart = True
