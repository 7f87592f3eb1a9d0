"""The new model's vectors in order of arrival, in memory or in files that are never rewritten."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congruence.upgrade.progressive._pieces import check_piece, write_piece

__all__ = ["Received"]


@dataclass(eq=False)
class _Part:
    """Rows that arrived, or were saved, together.

    Attributes
    ----------
    rows : ndarray of int64, shape (b,)
    vectors : ndarray of float32, shape (b, d)
        In memory, or a view of a file.
    surprise : ndarray of float64, shape (b,)
    start : int
        Position of its first row among all rows received.
    name : str or None
        Name of its file; None if it was not saved yet.
    """

    rows: np.ndarray
    vectors: np.ndarray
    surprise: np.ndarray
    start: int
    name: str | None = None

    def dump(self) -> bytes:
        """Return the contents of its file."""
        table = np.empty(len(self.rows), _table(self.vectors.shape[1]))
        table["row"], table["surprise"], table["vector"] = self.rows, self.surprise, self.vectors
        out = io.BytesIO()
        np.lib.format.write_array(out, table, allow_pickle=False)
        return out.getvalue()


class Received(Mapping[int, np.ndarray]):
    """The new vectors received so far, by row of the store.

    Parameters
    ----------
    n : int
        Number of rows of the store.
    width : int
        Dimension of the new vectors.
    keep : bool
        Whether vectors stay in memory after they were written to a file.

    Attributes
    ----------
    rows : ndarray of int64, shape (e,)
        Rows in the order in which they first arrived.
    surprise : ndarray of float64, shape (e,)
        1 − cosine between each and the mapped vector at that time.
    """

    def __init__(self, n: int, width: int, *, keep: bool) -> None:
        self.width, self.keep = width, keep
        self.rows, self.surprise = np.empty(0, np.int64), np.empty(0)
        self._at = np.full(n, -1, np.int32)
        self._parts: list[_Part] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __contains__(self, row: object) -> bool:
        return isinstance(row, (int, np.integer)) and bool(self._at[row] >= 0)

    def __getitem__(self, row: int) -> np.ndarray:
        if self._at[row] < 0:
            raise KeyError(row)
        return np.asarray(self.take(np.array([row]))[0])

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the rows that have been received, shape (b,)."""
        return np.asarray(self._at[rows] >= 0)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the latest vectors of received rows, shape (b, width)."""
        at = self._at[rows]
        out = np.empty((len(at), self.width), np.float32)
        part_of = np.searchsorted([part.start for part in self._parts], at, "right") - 1
        for number in np.unique(part_of).tolist():
            here, part = np.flatnonzero(part_of == number), self._parts[number]
            out[here] = part.vectors[at[here] - part.start]
        return out

    def add(self, rows: np.ndarray, vectors: np.ndarray, surprise: np.ndarray) -> None:
        """Add distinct rows; those received before get a new vector, and keep their position and their surprise."""
        self._append(_Part(rows.astype(np.int64), vectors, surprise.astype(np.float64), self._count))

    def _append(self, part: _Part) -> None:
        """Append a part, whose vectors replace earlier ones of the same rows."""
        first = ~self.known(part.rows)
        self.rows = np.concatenate([self.rows, part.rows[first]])
        self.surprise = np.concatenate([self.surprise, part.surprise[first]])
        self._at[part.rows] = self._count + np.arange(len(part.rows), dtype=np.int32)
        self._parts.append(part)
        self._count += len(part.rows)

    # ------------------------------------------------------------------ files

    def save(self, folder: Path) -> list[str]:
        """Write rows that are not in a file of this folder yet, and return the names of all files in order. Raises StorageError."""
        fresh = [part for part in self._parts if part.name is None]
        if fresh:
            self._parts = [part for part in self._parts if part.name is not None]
            self._parts.append(
                _Part(
                    np.concatenate([part.rows for part in fresh]),
                    np.concatenate([part.vectors for part in fresh]),
                    np.concatenate([part.surprise for part in fresh]),
                    fresh[0].start,
                )
            )
        names = []
        for part in self._parts:
            if part.name is None or not (folder / part.name).exists():
                part.name = write_piece(folder, part.dump(), ".npy")
            names.append(part.name)
        return names

    def release(self, folder: Path) -> None:
        """Free saved vectors, and from now on read them from the files of a folder; does nothing if ``keep`` is set."""
        if not self.keep:
            for part in self._parts:
                if part.name is not None:
                    part.vectors = _open(folder / part.name, self.width)["vector"]

    def load(self, folder: Path, names: Sequence[str]) -> None:
        """Add the rows of files that :meth:`save` wrote. Raises CorruptFileError; ValueError for a file of another kind."""
        for name in names:
            check_piece(folder, name)
            table = _open(folder / name, self.width)
            rows, vectors = np.array(table["row"]), table["vector"]
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._at):
                raise ValueError("rows that the store does not have")
            if len(np.unique(rows)) < len(rows):
                raise ValueError("a file that has a row twice")
            part = _Part(rows, np.array(vectors) if self.keep else vectors, np.array(table["surprise"]), self._count, name)  # fmt: skip
            self._append(part)


def _table(width: int) -> np.dtype:
    return np.dtype([("row", "<i8"), ("surprise", "<f8"), ("vector", "<f4", (width,))])


def _open(path: Path, width: int) -> np.ndarray:
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.ndim != 1 or table.dtype != _table(width):
        raise ValueError(f"vectors of another form in {path.name}")
    return np.asarray(table)
