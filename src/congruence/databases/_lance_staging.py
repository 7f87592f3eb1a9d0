"""New vectors on their way into a Lance column: kept in small files until those of a whole fragment can be written at once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence.errors import CorruptFileError, DatabaseError

__all__ = ["UNKNOWN", "Part", "Staging", "fragment_of", "matrix_of"]

#: Address of a row whose place has to be looked up by its id.
UNKNOWN = np.uint64(2**64 - 1)

_COLUMNS = ["id", "address", "vector"]


def fragment_of(addresses: np.ndarray) -> np.ndarray:
    """Return the numbers of fragments, int64, from the addresses of rows: the upper halves."""
    return (addresses >> np.uint64(32)).astype(np.int64)


def matrix_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of an array of lists of fixed size, and which of them there are.

    Nothing is copied as long as no number in a list is missing; one that is becomes NaN.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    width, values = array.type.list_size, array.values
    some = slice(array.offset, array.offset + len(array))
    kind = np.dtype(values.type.to_pandas_dtype())
    flat = np.frombuffer(values.buffers()[1] or b"", kind, len(values), values.offset * kind.itemsize).reshape(
        -1, width
    )[some]
    has = np.ones(len(array), bool) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if values.null_count:
        there = values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, width)[some]
        if not there[has].all():
            if kind.kind != "f":
                raise DatabaseError(
                    "Got a vector with bytes missing; expected all of them. Fill them in, or leave these rows out by a condition."
                )
            flat = np.where(there, flat, kind.type("nan"))
    return flat, has


class Part(NamedTuple):
    """Rows of one batch in a staged file.

    Attributes
    ----------
    file : Path
    number : int
        Of the batch in the file.
    ids : pyarrow.Array, shape (b,)
    addresses : ndarray of uint64, shape (b,)
        Fragment and offset where each row stood when it was read.
    """

    file: Path
    number: int
    ids: pa.Array
    addresses: np.ndarray

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Read the vectors, shape (b, dim), and which of them there are; the others are to be removed.

        Not mapped, so that a fragment's vectors are not all in memory before its column is written.
        """
        with pa.OSFile(os.fspath(self.file)) as source:
            return matrix_of(pa.ipc.open_file(source).get_batch(self.number).column("vector"))


class Staging:
    """Files of one migration, in the order in which they were written: of a row that several have, the last counts.

    Parameters
    ----------
    folder : Path
        Of this migration alone, inside of the data set's folder.

    Raises
    ------
    CorruptFileError
        If a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The fragment of the row that came last.
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
        """Write ids, addresses and vectors to a file of their own; a kill loses nothing of them when this has returned.

        A power failure may: nothing is pushed to the disk here, as Lance itself pushes nothing.
        """
        number = 1 + max((int(file.stem) for file in self._counts), default=0)
        self.folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([pa.record_batch(list(one), _COLUMNS) for one in blocks])
        self._store(self.folder / f"{number:012d}.arrow", table)

    def _store(self, file: Path, table: pa.Table) -> None:
        temporary = file.with_suffix(".tmp")
        with pa.OSFile(os.fspath(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        os.replace(temporary, file)
        self._count(file, table.column("address").to_numpy())

    def parts(self) -> Iterator[Part]:
        """Yield what is staged, oldest first; nothing of the vectors is read before it is used."""
        for file in sorted(self._counts):
            for number, batch in enumerate(_read(file).to_batches()):
                yield Part(file, number, batch.column("id"), np.asarray(batch.column("address")))

    def keep(self, file: Path, rows: np.ndarray) -> None:
        """Forget the rows of a file that a mask leaves out."""
        if rows.all():
            return
        if rows.any():
            self._store(file, _read(file).filter(pa.array(rows)).combine_chunks())
            return
        file.unlink(missing_ok=True)
        self._counts.pop(file)

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._counts.clear()
        self.last = None


def _read(file: Path) -> pa.Table:
    """Return a staged file's rows, mapped. Raises CorruptFileError."""
    try:
        with pa.memory_map(os.fspath(file)) as source:
            batch = pa.ipc.open_file(source).read_all()
        kinds = {
            "id": (pa.int64(), pa.uint64(), pa.large_string()),
            "address": (pa.uint64(),),
        }
        sound = batch.schema.names == _COLUMNS and all(batch.schema.field(one).type in kinds[one] for one in kinds)
        if not sound or not len(batch) or not pa.types.is_fixed_size_list(batch.schema.field("vector").type):
            raise ValueError("other columns than were written")
        batch.validate()
        return batch
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise CorruptFileError(
            f"Got a damaged file of new vectors, {file} ({error}); expected an intact one. Remove the new vectors, and migrate again."
        ) from error
