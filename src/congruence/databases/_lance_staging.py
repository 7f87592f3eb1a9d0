"""Staging of new vectors in small files, until all vectors of a fragment can be written to the Lance column at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence.errors import CorruptFileError, DatabaseError

__all__ = ["UNKNOWN", "Part", "Staging", "fragment_of", "matrix_of", "offset_of"]

#: Address of a row whose position must be looked up by its id.
UNKNOWN = np.uint64(2**64 - 1)

_COLUMNS = ["id", "address", "vector"]


def fragment_of(addresses: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows' fragments, int64: the upper halves of their addresses."""
    return (addresses >> np.uint64(32)).astype(np.int64)


def offset_of(addresses: np.ndarray) -> np.ndarray:
    """Return the positions of the rows in their fragments, int64: the lower halves of their addresses."""
    return (addresses & np.uint64(2**32 - 1)).astype(np.int64)


def matrix_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return an array of fixed-size lists as a matrix, and a mask of the rows that are not null.

    The vectors are copied only if a list contains null values, which become NaN.

    Raises
    ------
    DatabaseError
        If a list of integers contains null values.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    width, values = array.type.list_size, array.values
    rows = slice(array.offset, array.offset + len(array))
    kind = np.dtype(values.type.to_pandas_dtype())
    flat = np.frombuffer(values.buffers()[1] or b"", kind, len(values), values.offset * kind.itemsize).reshape(
        -1, width
    )[rows]
    has = np.ones(len(array), bool) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, width)[rows]
        if not valid[has].all():
            if kind.kind != "f":
                raise DatabaseError(
                    "Got a vector with bytes missing; expected none missing. Fill them in, or exclude these rows with a condition."
                )
            flat = np.where(valid, flat, kind.type("nan"))
    return flat, has


class Part(NamedTuple):
    """Rows of one batch in a staged file.

    Attributes
    ----------
    file : Path
    number : int
        Number of the batch in the file.
    ids : pyarrow.Array, shape (b,)
    addresses : ndarray of uint64, shape (b,)
        Address of each row (fragment and offset) when it was read.
    """

    file: Path
    number: int
    ids: pa.Array
    addresses: np.ndarray

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Read the vectors, shape (b, width), and a mask that is False for rows whose new vector is to be removed.

        The file is not memory-mapped, so that the vectors of a whole fragment are never in memory at the same time.
        """
        with pa.OSFile(os.fspath(self.file)) as source:
            return matrix_of(pa.ipc.open_file(source).get_batch(self.number).column("vector"))


class Staging:
    """The staged files of one migration, ordered by the time of writing; if several contain a row, the last one counts.

    Parameters
    ----------
    folder : Path
        Folder for this migration only, in the data set's folder.

    Attributes
    ----------
    last : int or None
        Fragment of the row that was staged last.

    Raises
    ------
    CorruptFileError
        If a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: int | None = None
        self._counts: dict[Path, Counter[int]] = {}
        for file in sorted(folder.glob("*.arrow")):
            self._count(file, _read(file).column("address").to_numpy())

    def _count(self, file: Path, addresses: np.ndarray) -> None:
        numbers, counts = np.unique(fragment_of(addresses), return_counts=True)
        self._counts[file] = Counter(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        self.last = int(fragment_of(addresses[-1:])[0])

    def fragments(self) -> Counter[int]:
        """Return how many staged rows each fragment has."""
        return sum(self._counts.values(), Counter())

    def add(self, blocks: list[tuple[pa.Array, np.ndarray, pa.Array]]) -> None:
        """Write ids, addresses and vectors to a new file, which survives a kill of the process after this method has returned.

        It may not survive a power failure, because the file is not synced to disk; Lance does not sync its files either.
        """
        number = 1 + max((int(file.stem) for file in self._counts), default=0)
        self.folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([pa.record_batch(list(block), _COLUMNS) for block in blocks])
        self._store(self.folder / f"{number:012d}.arrow", table)

    def _store(self, file: Path, table: pa.Table) -> None:
        temporary = file.with_suffix(".tmp")
        with pa.OSFile(os.fspath(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        os.replace(temporary, file)
        self._count(file, table.column("address").to_numpy())

    def parts(self) -> Iterator[Part]:
        """Yield the staged rows, oldest first; their vectors are read only by :meth:`Part.load`."""
        for file in sorted(self._counts):
            for number, batch in enumerate(_read(file).to_batches()):
                yield Part(file, number, batch.column("id"), np.asarray(batch.column("address")))

    def keep(self, file: Path, rows: np.ndarray) -> None:
        """Remove the rows of a file for which a mask is False."""
        if rows.all():
            return
        if rows.any():
            self._store(file, _read(file).filter(pa.array(rows)).combine_chunks())
            return
        file.unlink(missing_ok=True)
        self._counts.pop(file)


def _read(file: Path) -> pa.Table:
    """Return the rows of a staged file, memory-mapped. Raises CorruptFileError."""
    try:
        with pa.memory_map(os.fspath(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        schema = table.schema
        valid = (
            schema.names == _COLUMNS
            and schema.field("id").type in (pa.int64(), pa.uint64(), pa.large_string())
            and schema.field("address").type == pa.uint64()
            and pa.types.is_fixed_size_list(schema.field("vector").type)
        )
        if not valid or not len(table):
            raise ValueError("other columns than were written, or no rows")
        table.validate()
        return table
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise CorruptFileError(
            f"Got a damaged file of new vectors, {file} ({error}); expected an intact one. Discard the new vectors, and run the migration again."
        ) from error
