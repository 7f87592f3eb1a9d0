"""Training rows from files of any size: read in large chunks, and drawn in a random order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from congruence._utils.arrays import as_dtype
from congruence._utils.validation import RowNames, check_positive, check_rows
from congruence.errors import DtypeError
from congruence.io._base import Source
from congruence.io.reading import check_all_rows

#: Default number of rows per chunk.
POOL = 65_536

#: Approximate number of bytes read at a time.
BLOCK_BYTES = 4 * 2**20

#: Number of places in a file from which a sample is taken.
_PLACES = 64


class StreamedRows:
    """Rows of a store that need not fit into memory, with the interface of ``congruence.train.Rows``.

    The rows are divided into chunks of ``pool`` consecutive rows. Each epoch reads the chunks in a random order, and
    draws the rows of a chunk in a random order, every row exactly once. Both orders are determined by the seed and the
    epoch, so that a batch depends only on its step and seed. While a chunk is used, a thread reads the next one.

    Parameters
    ----------
    source : Source
    pool : int, default=65536
        Number of rows per chunk; two chunks are in memory at a time. Rows of different chunks do not mix: if rows are
        sorted (by class, for example), shuffle the file, or choose a pool that contains many classes. The order of the
        rows depends on this value.
    dtype : {float16, float32}, optional
        Data type of chunks in memory; by default float16 if the file has it, else float32.

    Notes
    -----
    An ``.npz`` may have to be read from its beginning for each chunk, so that an epoch takes time quadratic in the
    file's size; for other formats the time is linear.
    """

    def __init__(self, source: Source, pool: int = POOL, dtype: DTypeLike | None = None):
        check_positive(pool, "pool", integer=True)
        self.dim = source.dim
        self._source, self._size = source, min(pool, source.n)
        self._dtype = as_dtype(("float16" if source.dtype == np.float16 else "float32") if dtype is None else dtype)
        if self._dtype not in (np.float16, np.float32):
            raise DtypeError(f"Got dtype {self._dtype}; expected float16 or float32.", "Pass `dtype='float32'`.")
        self._lengths = np.full(-(-source.n // self._size), self._size)
        self._lengths[-1] = source.n - self._size * (len(self._lengths) - 1)
        self._pool, self._stop = ThreadPoolExecutor(1, "congruence: rows"), threading.Event()
        self._held: tuple[int, np.ndarray] | None = None
        self._ahead: tuple[int, Future[np.ndarray]] | None = None
        self._buffers: list[np.ndarray] = []

    def __len__(self) -> int:
        return self._source.n

    def batch(self, step: int, size: int, random_state: int) -> np.ndarray:
        """Return the rows of a step, shape (size, dim), float32; they may cross the end of a chunk or an epoch."""
        out = np.empty((size, self.dim), np.float32)
        done = 0
        while done < size:
            epoch, at = divmod(step * size + done, len(self))
            order = _permutation((random_state, epoch), len(self._lengths))
            ends = np.cumsum(self._lengths[order])
            place = int(np.searchsorted(ends, at, "right"))
            chunk = int(order[place])
            rows = self._read(chunk)
            following = _permutation((random_state, epoch + 1), len(order)) if place + 1 == len(order) else None
            self._read_ahead(int(order[place + 1] if following is None else following[0]))
            at -= int(ends[place]) - len(rows)
            # chunk + 1, because [seed, epoch, 0] would give the same stream as [seed, epoch].
            chosen = _permutation((random_state, epoch, chunk + 1), len(rows))[at : at + size - done]
            out[done : done + len(chosen)] = rows[chosen]
            done += len(chosen)
        return out

    def sample(self, size: int) -> np.ndarray:
        """Return at most ``size`` rows, float32, the same on each call: equal runs, evenly spread over the file."""
        n = len(self)
        places = min(size, _PLACES)
        if size >= n:
            return self.take(np.arange(n))
        starts = np.arange(places) * n // places
        return self.take((starts[:, None] + np.arange(size // places)).reshape(-1))

    def take(self, indices: ArrayLike) -> np.ndarray:
        """Return rows by number, shape (k, dim), float32."""
        ids, block = self._source.take(indices)
        return _checked(block, np.dtype(np.float32), self._source.path, RowNames(ids, np.asarray(indices)))

    def scan(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of the whole file in order, each as ``(number of its first row, rows)``, float32."""
        return _scan(self._source, 0, len(self), np.dtype(np.float32))

    def close(self) -> None:
        """Stop reading ahead, and release the chunks in memory; a later batch reads them again."""
        self._cancel()
        self._held, self._buffers = None, []

    def __del__(self) -> None:
        if hasattr(self, "_stop"):
            self._stop.set()

    def _read(self, chunk: int) -> np.ndarray:
        """Return the rows of a chunk: from memory, or once they are read."""
        if self._held is None or self._held[0] != chunk:
            self._held = None
            self._read_ahead(chunk)
            assert self._ahead is not None
            (_, reading), self._ahead = self._ahead, None
            self._held = chunk, reading.result()
        return self._held[1]

    def _read_ahead(self, chunk: int) -> None:
        """Start to read a chunk in a thread, unless it is in memory or being read already."""
        if chunk in (self._held and self._held[0], self._ahead and self._ahead[0]):
            return
        self._cancel()
        if not self._buffers:  # reused throughout: repeated allocation would fragment memory by several more buffers
            self._buffers = [np.empty((self._size, self.dim), self._dtype) for _ in range(min(2, len(self._lengths)))]
        free = next(one for one in self._buffers if self._held is None or one is not self._held[1].base)
        into = free[: self._lengths[chunk]]
        self._ahead = chunk, self._pool.submit(_fill, into, self._source, chunk * self._size, self._stop)

    def _cancel(self) -> None:
        if self._ahead is not None:
            self._stop.set()
            wait([self._ahead[1]])
            self._ahead, self._stop = None, threading.Event()


@lru_cache(maxsize=4)
def _permutation(seed: tuple[int, ...], n: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


def _fill(into: np.ndarray, source: Source, start: int, stop: threading.Event) -> np.ndarray:
    """Read rows from ``start`` on into an array, unless told to stop; a function, so that its owner can be deleted."""
    for row, block in _scan(source, start, start + len(into), into.dtype):
        if stop.is_set():
            break
        into[row - start : row - start + len(block)] = block
    return into


def _scan(source: Source, row: int, stop: int, dtype: np.dtype) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks of checked rows from ``row`` up to ``stop`` (exclusive), each with the number of its first row."""
    for ids, block in source.scan(row, max(256, BLOCK_BYTES // (source.dim * source.dtype.itemsize))):
        block = block[: stop - row]
        yield row, _checked(block, dtype, source.path, RowNames(ids, row))
        row += len(block)
        if row == stop:
            return
    check_all_rows(row, source.n, source.path)


def _checked(block: np.ndarray, dtype: np.dtype, path: str, names: RowNames) -> np.ndarray:
    """Return rows converted to ``dtype``, checked before and after."""
    check_rows(block, path, ids=names)
    if block.dtype == dtype:
        return block
    try:
        with np.errstate(over="raise", under="ignore"):
            rows = block.astype(dtype)
    except FloatingPointError:
        problem = f"Got numbers beyond the range of {dtype} in {path}."
        raise DtypeError(problem, "Pass `dtype='float32'`, or scale the rows.") from None
    if dtype.itemsize < block.dtype.itemsize:
        check_rows(rows, path, ids=names)  # tiny numbers may have been rounded to zero
    return rows
