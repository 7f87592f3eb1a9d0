"""Reader and writer of ``.arrow`` and ``.feather`` files, streamed by record batch; Arrow streams can also be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from congruence.errors import DtypeError
from congruence.stores.reading import check_all_rows, missing_file, reading
from congruence.stores.tables import TableSink, TableSource, read_table_column, table_shapes

#: Exceptions that pyarrow raises for damaged files.
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)

#: First bytes of a file. A stream, which the ``datasets`` library writes with the same suffix, begins differently.
_MAGIC = b"ARROW1"


@contextmanager
def _open(path: str | Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Yield the schema and an iterator over the record batches."""
    if not Path(path).is_file():
        raise missing_file(path)
    with reading(path, *_DAMAGE), pa.OSFile(str(path)) as stream:
        magic = stream.read(len(_MAGIC))
        stream.seek(0)
        file = (pa.ipc.open_file if magic == _MAGIC else pa.ipc.open_stream)(stream)
        _ = file.schema.names  # raises if the schema is damaged
        batches = (file.get_batch(k) for k in range(file.num_record_batches)) if magic == _MAGIC else file
        yield file.schema, map(_checked, batches)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)  # offsets of a damaged file may lead anywhere
    return batch


def _count(path: str | Path) -> tuple[pa.Schema, int, pa.RecordBatch | None]:
    """Return the schema, the number of rows, and the first batch that has rows, if any."""
    with _open(path) as (schema, batches):
        rows, first = 0, None
        for batch in batches:
            rows += len(batch)
            first = batch if first is None and len(batch) else first
    return schema, rows, first


def arrow_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name."""
    return table_shapes(*_count(path)[:2])


class ArrowSource(TableSource):
    """Rows of a list column in an Arrow file or stream.

    Record batches are read whole, so the largest one determines how much memory is needed.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        schema, rows, first = _count(path)
        self._describe(path, schema, rows, key, ids)
        self._measure(None if first is None else first.column(self._key))
        self._row_bytes = 0 if first is None else first.nbytes // len(first)

    def pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of rows; see :meth:`TableSource.pieces`."""
        with _open(self._file) as (_, batches):
            row = 0
            for whole in batches:
                piece = whole if names is None else whole.select(names)
                for start in range(max(after - row, 0), len(piece), batch):
                    yield row + start, piece.slice(start, batch)
                row += len(piece)
            check_all_rows(row, self.n, self.path)


def read_arrow_column(path: str | Path, key: str | None) -> pa.ChunkedArray:
    """Read a column that is not a list column."""
    with _open(path) as (schema, batches):
        return read_table_column(
            path, key, schema, lambda name: pa.chunked_array([b.column(name) for b in batches], schema.field(name).type)
        )


class ArrowSink(TableSink):
    """Writer of an Arrow file."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = stack.enter_context(pa.ipc.new_file(str(temporary), self._make_schema(), options=options))
        self._dictionaries: dict[int, pa.Array] = {}

    def _write_group(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            arrays = [self._with_common_dictionary(k, column) for k, column in enumerate(batch.columns)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))

    def _with_common_dictionary(self, k: int, column: pa.Array) -> pa.Array:
        """Re-encode a dictionary column with the file's dictionary, to which new values are appended.

        An Arrow file has one dictionary per column, while each batch from a Parquet file has its own.
        """
        import pyarrow.compute as pc  # takes long to import

        if not pa.types.is_dictionary(column.type):
            return column
        known = self._dictionaries.setdefault(k, column.dictionary)
        if known is column.dictionary:
            return column
        positions = pc.index_in(column.dictionary, known)
        new = column.dictionary.filter(positions.is_null())
        known = self._dictionaries[k] = pa.concat_arrays([known, new]) if len(new) else known
        indices = pc.index_in(column.dictionary, known).take(column.indices)
        try:
            return pa.DictionaryArray.from_arrays(
                indices.cast(column.type.index_type), known, ordered=column.type.ordered
            )
        except pa.ArrowInvalid as error:
            raise DtypeError(
                f"Got more distinct values than {column.type} can encode for {self.path}.", "Write a .parquet."
            ) from error
