"""``.arrow`` and ``.feather``: Arrow's own files, a record batch at a time. Its streams are read too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from congruence.errors import DtypeError
from congruence.stores._base import check_all_rows
from congruence.stores._table import TableSink, TableSource, read_table_column, table_shapes
from congruence.stores.reading import missing_file, reading

__all__ = ["ArrowSink", "ArrowSource", "arrow_shapes", "read_arrow_column"]

_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)

#: First bytes of a file; a stream, as the ``datasets`` library writes it under the same suffix, has others.
_MAGIC = b"ARROW1"


@contextmanager
def _open(path: str | Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Give the schema, and the record batches one after the other."""
    if not Path(path).is_file():
        raise missing_file(path)
    with reading(path, *_DAMAGE), pa.OSFile(str(path)) as stream:
        magic = stream.read(len(_MAGIC))
        stream.seek(0)
        if magic == _MAGIC:
            file = pa.ipc.open_file(stream)
            _ = file.schema.names  # a damaged one is found here
            yield file.schema, (_checked(file.get_batch(k)) for k in range(file.num_record_batches))
        else:
            reader = pa.ipc.open_stream(stream)
            _ = reader.schema.names
            yield reader.schema, map(_checked, reader)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)  # offsets of a damaged file may lead anywhere
    return batch


def _count(path: str | Path) -> tuple[pa.Schema, int, pa.RecordBatch | None]:
    """Return the schema, the number of rows, and a batch with rows if there is one."""
    with _open(path) as (schema, batches):
        rows, some = 0, None
        for batch in batches:
            rows += len(batch)
            some = batch if some is None and len(batch) else some
    return schema, rows, some


def arrow_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a table's columns by name; lists of any length count as matrices. Raises FileError, CorruptFileError."""
    schema, rows, _ = _count(path)
    return table_shapes(schema, rows)


class ArrowSource(TableSource):
    """Rows of a list column in an Arrow file or stream, of fixed or variable list size.

    A record batch is the least that can be read: memory is bounded by the largest.

    Parameters
    ----------
    path : path-like
    key : str, optional
        Name of the column; may be left out when there is only one column of lists.
    ids : pyarrow.Array, str or False, optional
        Ids, or the column that holds them; by default a column named ``id`` or ``ids``, if there is one.
    """

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        schema, rows, some = _count(path)
        self._describe(path, schema, rows, key, ids)
        self._measure(None if some is None else some.column(self._key))
        self._row_bytes = 0 if some is None else some.nbytes // len(some)

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in memory with all its columns, judged on the first batch."""
        return max(self._row_bytes, super().row_bytes)

    def _pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with _open(self._file) as (_, batches):
            row = 0
            for whole in batches:
                piece = whole if names is None else whole.select(names)
                for start in range(max(after - row, 0), len(piece), batch):
                    yield row + start, piece.slice(start, batch)
                row += len(piece)
            check_all_rows(row, self.n, self.path)


def read_arrow_column(path: str | Path, key: str | None) -> pa.ChunkedArray:
    """Read a plain column.

    Raises
    ------
    ParameterError, CorruptFileError
        If a parameter has an invalid value, or a file is damaged.
    """
    with _open(path) as (schema, batches):
        return read_table_column(
            path, key, schema, lambda name: pa.chunked_array([b.column(name) for b in batches], schema.field(name).type)
        )


class ArrowSink(TableSink):
    """Writes an Arrow file: the source's table with mapped vectors, or fixed-size lists in ``vector`` and, when there are ids, ``id``."""

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = stack.enter_context(pa.ipc.new_file(str(temporary), self._make_schema(), options=options))
        self._words: dict[int, pa.Array] = {}

    def _write_group(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            arrays = [self._one_dictionary(k, column) for k, column in enumerate(batch.columns)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))

    def _one_dictionary(self, k: int, column: pa.Array) -> pa.Array:
        """Return a dictionary column on one growing dictionary: a file has a single one, and batches of Parquet each their own."""
        if not pa.types.is_dictionary(column.type):
            return column
        known = self._words.get(k)
        if known is None:
            self._words[k] = column.dictionary
            return column
        places = pa.compute.index_in(column.dictionary, known)
        new = column.dictionary.filter(places.is_null())
        known = self._words[k] = pa.concat_arrays([known, new]) if len(new) else known
        place = pa.compute.index_in(column.dictionary, known).take(column.indices)
        try:
            return pa.DictionaryArray.from_arrays(
                place.cast(column.type.index_type), known, ordered=column.type.ordered
            )
        except pa.ArrowInvalid as error:
            raise DtypeError(
                f"Got more different values than {column.type} can number for {self.path}; expected fewer. Write a .parquet."
            ) from error
