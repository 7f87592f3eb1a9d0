"""Reader and writer of Lance data sets, ``.lance`` folders with vectors as lists (extra ``lance``)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.optional import require
from congruence.errors import CorruptFileError, FileError
from congruence.io._base import BATCH
from congruence.io.locations import Location
from congruence.io.reading import check_all_rows, damaged, errno_from_text, reading
from congruence.io.tables import ARROW_DAMAGE, Pieces, Table, TableSink, TableSource

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

#: Form in which Lance's messages mention the number of a system error.
_SYSTEM_ERROR = r"os error (\d+)"


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    try:
        with reading(path, *ARROW_DAMAGE):
            yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised for a panic in Rust; not a subclass of Exception
            raise
        raise damaged(path, error) from None


def _check_file(path: Path) -> None:
    """Check where the end of a file says that its parts are: Lance would allocate what a damaged one claims."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        stream.seek(max(size - 40, 0))
        _, *starts, buffers, columns, major, minor, _ = struct.unpack("<3Q2I2H4s", stream.read().rjust(40, b"\0"))
        for start, count in zip(starts, (columns, buffers), strict=True) if (major, minor) >= (0, 3) else ():
            stream.seek(min(start, size))
            parts = np.frombuffer(stream.read(min(16 * count, size)), "<u8")
            if len(parts) < 2 * count or (parts > size).any():
                raise damaged(path, f"parts outside of its {size} bytes")


class LanceTable(Table):
    """Rows of a version of a Lance data set, by default the latest, or of one of its fragments."""

    def __init__(self, path: str | Path, data: lance.LanceDataset | None = None, number: int | None = None) -> None:
        self.name = str(path)
        with _reading(path):
            if data is None:
                place = Location.of(path)
                if place.local and not Path(path).is_dir():
                    raise FileError(f"{path} is a file, not the folder of a Lance data set.", "Pass that folder.")
                uri, options = place.lance
                data = require("lance", extra="lance").dataset(uri, storage_options=options)
            self._data = data
            rows = self._data if number is None else self._data.get_fragment(number)
            if rows is None:
                problem = f"{path} has no fragment {number} any more, which it had when the work was planned."
                raise CorruptFileError(problem, "Run it again from the beginning with `force=True`.")
            self._fragments = None if number is None else [rows]
            for part in self._fragments or self._data.get_fragments():
                for file in part.data_files():
                    if (own := Path(self._data.uri) / "data" / file.path).is_file():  # not a remote one
                        _check_file(own)
            self.schema, self.n, self._rows = self._data.schema, rows.count_rows(), rows

    @cached_property
    def row_bytes(self) -> int:  # type: ignore[override]
        with _reading(self.name):
            count = min(self.n, 16)
            return int(self._rows.take(list(range(count))).nbytes // max(count, 1))

    def pieces(self, names: list[str] | None = None, after: int = 0, batch: int = BATCH) -> Pieces:
        row = after
        with _reading(self.name):
            # Read a row of each fragment: a damaged file header raises an exception here, but aborts the process in a
            # stream: it passes errors on as C strings, and arrow-rs aborts if a message contains a null byte, for
            # example because it quotes damaged bytes. Of one fragment, only its own header: a job over all of them
            # would otherwise read each header once per fragment.
            sizes = [part.count_rows() for part in self._fragments or self._data.get_fragments()]
            if starts := [start for start, size in zip(accumulate([0, *sizes]), sizes, strict=False) if size]:
                self._rows.take(starts, columns=names)
            pieces = self._data.scanner(
                columns=names,
                fragments=self._fragments,
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
            check_all_rows(row, self.n, self.name)

    def take(self, rows: np.ndarray, names: list[str]) -> pa.RecordBatch:
        """Return rows by number, which are sorted and without duplicates, so that they are read in one pass."""
        with _reading(self.name):
            table = self._rows.take(rows.tolist(), columns=names)
            check_all_rows(len(table), len(rows), self.name)
            (piece,) = table.combine_chunks().to_batches()
            return piece


def write_lance(
    place: str | Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], options: dict[str, str] | None = None
) -> list[FragmentMetadata]:
    """Write batches to a file, and return the fragment that ``commit_lance`` makes of it; none without rows."""
    require("lance", extra="lance")
    from lance.fragment import write_fragments

    errors: list[BaseException] = []

    def told() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:  # Arrow's stream would keep only its message
            errors.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, told())
    whole = {"max_rows_per_file": 2**31 - 1, "max_bytes_per_file": 2**62}
    try:
        with errno_from_text(_SYSTEM_ERROR, *ARROW_DAMAGE):
            written: list[FragmentMetadata] = write_fragments(
                reader, place, schema=schema, mode="create", storage_options=options, **whole
            )
            return written
    except BaseException:
        if errors:
            raise errors[0] from None
        raise


def commit_lance(
    place: str | Path, schema: pa.Schema, fragments: list[FragmentMetadata], options: dict[str, str] | None = None
) -> None:
    """Make fragments that are written the only ones of a data set."""
    import lance

    with errno_from_text(_SYSTEM_ERROR, *ARROW_DAMAGE):
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        lance.LanceDataset.commit(place, operation, storage_options=options)


class LanceSink(TableSink):
    """Writer of a Lance data set with one version."""

    directory = keeps_lists = keeps_codes = True

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
        self._fragments: list[FragmentMetadata] = []

    def _write_group(self, table: pa.Table) -> None:
        self._fragments += write_lance(self._place, self._schema, table.to_batches())

    def _finish(self) -> None:
        super()._finish()
        commit_lance(self._place, self._schema, self._fragments)


class LanceSource(TableSource):
    """Rows of a list column in a Lance data set, in the version that is the latest when it is opened."""

    table_class, sink = LanceTable, LanceSink
    _apart = True

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        assert isinstance(self.table, LanceTable)
        if self._multi:  # the numbers are those of vectors
            return super()._take(wanted)
        ids, vectors = self.block(self.table.take(wanted, self._needed), 0)
        return ids if self._id_column else self._ids_at(wanted), vectors
