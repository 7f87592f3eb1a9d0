"""Reader and writer of Lance data sets, ``.lance`` folders with vectors as lists (extra ``lance``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from congruence._utils.optional import require
from congruence.errors import CorruptFileError, FileError
from congruence.stores.reading import as_row_numbers, check_all_rows, errno_from_text, missing_file, reading
from congruence.stores.tables import TableSink, TableSource, read_table_column, rows_after, table_shapes

if TYPE_CHECKING:
    import lance

#: Exceptions that Lance raises for damaged files.
_DAMAGE = (pa.ArrowException, OSError, ValueError, RuntimeError)

#: Form in which Lance's messages mention the number of a system error.
_SYSTEM_ERROR = r"os error (\d+)"


@contextmanager
def _open(path: str | Path, version: int | None = None) -> Iterator[lance.LanceDataset]:
    library = require("lance", extra="lance")
    if not Path(path).exists():
        raise missing_file(path)
    if not Path(path).is_dir():
        raise FileError(f"{path} is a file, not the folder of a Lance data set.", "Pass that folder.")
    try:
        with reading(path, *_DAMAGE):
            yield library.dataset(Path(path).absolute(), version)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised for a panic in Rust; not a subclass of Exception
            raise
        raise CorruptFileError(f"The data set {path} is damaged ({error}).", "Copy or write it again.") from None


def lance_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a data set's columns by name."""
    with _open(path) as data:
        return table_shapes(data.schema, data.count_rows())


class LanceSource(TableSource):
    """Rows of a list column in a Lance data set, in the version that is the latest when it is opened."""

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        with _open(path) as data:
            self._version = data.version
            self._describe(path, data.schema, data.count_rows(), key, ids)
            self._measure(data.take([0], columns=[self._key]).column(0).combine_chunks() if self.dim < 0 else None)

    @property
    def row_bytes(self) -> int:
        if not self._row_bytes:
            with _open(self._file, self._version) as data:
                self._row_bytes = data.take(range(min(self.n, 16))).nbytes // min(self.n, 16)
        return super().row_bytes

    def pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        row = after
        with _open(self._file, self._version) as data:
            _check_headers(data, names)
            pieces = data.scanner(
                columns=names,
                offset=after,
                batch_size=batch,
                scan_in_order=True,
                # By default, up to 2 GB would be read ahead.
                batch_readahead=1,
                fragment_readahead=1,
                io_buffer_size=32 * 2**20,
            ).to_batches()
            for piece in pieces:
                yield row, piece
                row += len(piece)
            check_all_rows(row, self.n, self.path)

    def take(self, rows: ArrayLike) -> tuple[pa.Array | None, np.ndarray]:
        rows = as_row_numbers(rows, self.n, self.path)
        if not len(rows):
            return None, np.empty((0, self.dim), self.dtype)
        # Sorted and without duplicates, they are read in one pass.
        unique, inverse = np.unique(rows, return_inverse=True)
        with _open(self._file, self._version) as data:
            table = data.take(unique.tolist(), columns=self._needed)
            check_all_rows(len(table), len(unique), self.path)
            (piece,) = table.combine_chunks().to_batches()
            ids = self._ids_of(piece, 0) if self._id_column else self._ids and self._ids.take(pa.array(unique))
            vectors = self.vectors(piece.column(self._key), 0, ids)
        return None if ids is None else ids.take(pa.array(inverse)), vectors[inverse]


class LanceFragmentSource(TableSource):
    """Rows of one fragment of a version of a Lance data set; ``name`` stands for it in messages."""

    def __init__(
        self, data: lance.LanceDataset, number: int, name: str, key: str | None, ids: str | bool | None
    ) -> None:
        self._data = data.get_fragment(number)
        if self._data is None:
            raise CorruptFileError(
                f"{name} has no fragment {number} any more, which it had when the work was planned.",
                "Run it again from the beginning with `force=True`.",
            )
        with reading(name, *_DAMAGE):
            self._describe(name, data.schema, self._data.count_rows(), key, ids)
            head = self._data.take(list(range(min(self.n, 16))))
            self._measure(head.column(self._key).combine_chunks() if self.dim < 0 else None)
            self._row_bytes = int(head.nbytes // len(head))

    def pieces(self, names: list[str] | None, after: int, batch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with reading(self._file, *_DAMAGE):
            pieces = self._data.to_batches(columns=names, batch_size=batch, batch_readahead=1)
            yield from rows_after(pieces, after, self.n, self._file)


def read_lance_column(path: str | Path, key: str | None) -> pa.ChunkedArray:
    """Read a column that is not a list column."""

    def read(name: str) -> pa.ChunkedArray:
        _check_headers(data, [name])
        return data.to_table(columns=[name]).column(name)

    with _open(path) as data:
        return read_table_column(path, key, data.schema, read)


def _check_headers(data: lance.LanceDataset, names: list[str] | None) -> None:
    """Read a row of each fragment: a damaged file header raises an exception here, but aborts the process in a stream.

    Arrow's stream (``ArrowArrayStream``) passes errors on as C strings, and arrow-rs aborts if a message contains a
    null byte, for example because it quotes damaged bytes.
    """
    sizes = [fragment.count_rows() for fragment in data.get_fragments()]
    starts = np.cumsum([0, *sizes])[:-1][np.array(sizes, int) > 0]
    if len(starts):
        data.take(starts.tolist(), columns=names)


class LanceSink(TableSink):
    """Writer of a Lance data set with one version."""

    directory = True

    @staticmethod
    def why_foreign(folder: Path) -> str | None:
        """Return why a folder must not be replaced, or None if it contains a Lance data set and nothing else."""
        others = sorted(name for name in os.listdir(folder) if name != "data" and not name.startswith("_"))
        if others:
            return f"contains other files than those of a Lance data set ({', '.join(others[:3])})"
        return None if (folder / "_versions").is_dir() else "is not a Lance data set"

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        require("lance", extra="lance")
        self._place, self._schema = temporary.absolute(), self._make_schema()
        self._fragments: list[object] = []

    def _write_group(self, table: pa.Table) -> None:
        from lance.fragment import write_fragments

        with errno_from_text(_SYSTEM_ERROR, *_DAMAGE):
            self._fragments += write_fragments(table, self._place, schema=self._schema, mode="create")

    def _finish(self) -> None:
        import lance

        super()._finish()
        with errno_from_text(_SYSTEM_ERROR, *_DAMAGE):
            lance.LanceDataset.commit(self._place, lance.LanceOperation.Overwrite(self._schema, self._fragments))
