"""Reader and writer of ``.arrow`` and ``.feather`` files, streamed by record batch; Arrow streams can also be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from congruence.errors import DtypeError
from congruence.io._base import BATCH
from congruence.io.reading import check_all_rows, missing_file, reading
from congruence.io.tables import ARROW_DAMAGE, Pieces, Table, TableSink, TableSource

#: First bytes of a file. A stream, which the ``datasets`` library writes with the same suffix, begins differently.
_MAGIC = b"ARROW1"


@contextmanager
def open_arrow(path: str | Path, *, check: bool = True) -> Iterator[tuple[pa.Schema, bool, Iterator[pa.RecordBatch]]]:
    """Yield the schema, whether the file is a stream, and an iterator over the record batches.

    With ``check`` these are read and validated; without, the file is mapped, for what does not access values.
    """
    if not Path(path).is_file():
        raise missing_file(path)
    with reading(path, *ARROW_DAMAGE), (pa.OSFile if check else pa.memory_map)(str(path)) as stream:
        magic = stream.read(len(_MAGIC))
        stream.seek(0)
        file = (pa.ipc.open_file if magic == _MAGIC else pa.ipc.open_stream)(stream)
        _ = file.schema.names  # raises if the schema is damaged
        batches = (file.get_batch(k) for k in range(file.num_record_batches)) if magic == _MAGIC else file
        yield file.schema, magic != _MAGIC, map(_checked, batches) if check else iter(batches)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)  # offsets of a damaged file may lead anywhere
    return batch


class ArrowTable(Table):
    """Rows of an Arrow file or stream.

    Record batches are read whole, so the largest one determines how much memory is needed.
    """

    def __init__(self, path: str | Path) -> None:
        self.name, self.n, self.row_bytes = str(path), 0, 0
        with open_arrow(path, check=False) as (self.schema, _, batches):
            for batch in batches:
                self.row_bytes = self.row_bytes or batch.get_total_buffer_size() // max(len(batch), 1)
                self.n += len(batch)

    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        with open_arrow(self.name) as (_, _, batches):
            row = 0
            for whole in batches:
                piece = whole if names is None else whole.select(names)
                for start in range(max(after - row, 0), len(piece), batch):
                    yield row + start, piece.slice(start, batch)
                row += len(piece)
            check_all_rows(row, self.n, self.name)


class ArrowSink(TableSink):
    """Writer of an Arrow file."""

    keeps_lists = keeps_codes = True

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
            problem = f"Got more distinct values than {column.type} can encode for {self.path}."
            raise DtypeError(problem, "Write a .parquet.") from error


class ArrowSource(TableSource):
    """Rows of a list column in an Arrow file or stream."""

    table_class, sink = ArrowTable, ArrowSink
