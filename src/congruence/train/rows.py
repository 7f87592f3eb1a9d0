"""Sources of unpaired rows for a training run: any object that returns the rows of a step.

The rows of a step depend only on the step and the seed, so a resumed run uses exactly the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks
from congruence._utils.typing import RowsLike
from congruence._utils.validation import RowNames, as_matrix, check_rows, check_width
from congruence.embeddings import Embeddings
from congruence.errors import DtypeError, InputError


@runtime_checkable
class Rows(Protocol):
    """Vectors of one space, of width ``dim``, from which batches can be drawn."""

    dim: int

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def batch(self, step: int, size: int, random_state: int) -> np.ndarray:
        """Return the rows of a step, shape (size, dim); ``size`` is at most the number of rows."""
        ...


#: Rows of one side: vectors, a ``Rows`` object, a list of these, or None.
Supply: TypeAlias = "RowsLike | Rows | list[RowsLike | Rows | None] | tuple[RowsLike | Rows | None, ...] | None"


class ArrayRows:
    """Rows of an array (n, d), in memory or mapped from a file; with a ``name`` they are checked as they are drawn.

    Batches go through the rows in a random order, then in another one, and so on; a batch of all rows is the array
    itself.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.train import ArrayRows
    >>> rows = ArrayRows(np.eye(4))
    >>> np.concatenate([rows.batch(step, 2, random_state=0) for step in range(2)]).sum(axis=0)  # each row once
    array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, X: np.ndarray, name: str | None = None):
        self._rows, self._name = X, name
        self.dim = X.shape[1]
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, step: int, size: int, random_state: int) -> np.ndarray:
        """Return the rows of a step, float32."""
        n = len(self._rows)
        if size == n:
            return self._float32(slice(None))
        start, chosen = step * size, []
        while size:  # a batch may begin in one order and end in the next
            order, offset = self._order(random_state, start // n), start % n
            chosen.append(order[offset : offset + size])
            start, size = start + len(chosen[-1]), size - len(chosen[-1])
        return self._float32(np.concatenate(chosen))

    def sample(self, size: int) -> np.ndarray:
        """Return at most ``size`` rows spread evenly over the array, float32."""
        stride = max(1, -(-len(self._rows) // size))
        return self._float32(slice(None, None, stride))

    def take(self, indices: ArrayLike) -> np.ndarray:
        """Return rows by number, float32."""
        return self._float32(np.asarray(indices))

    def scan(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows in order, in blocks: the number of a block's first row, and the block, float32."""
        for part in blocks(len(self._rows), self.dim * 4):
            yield part.start, self._float32(part)

    def _float32(self, which: np.ndarray | slice) -> np.ndarray:
        try:
            with np.errstate(over="raise", under="ignore"):
                rows = self._rows[which].astype(np.float32, copy=False)
        except FloatingPointError:
            raise DtypeError(
                f"Got numbers beyond the range of float32 in {self._name or 'rows to train on'}.", "Scale the rows."
            ) from None
        if self._name is not None:
            numbers = range(len(self._rows))[which] if isinstance(which, slice) else which
            check_rows(rows, self._name, ids=RowNames(None, numbers))
        return rows

    def _order(self, random_state: int, epoch: int) -> np.ndarray:
        """Return the random order of an epoch; the last two are cached."""
        if (random_state, epoch) not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[random_state, epoch] = np.random.default_rng([random_state, epoch]).permutation(
                len(self._rows)
            )
        return self._orders[random_state, epoch]


class Sources:
    """Several sources of one width combined: each batch contains rows of all, in proportion to their sizes."""

    def __init__(self, parts: Sequence[Rows]):
        self.parts = list(parts)
        self.dim = parts[0].dim
        for part in parts[1:]:
            check_width(part.dim, self.dim, "a source of unpaired rows")

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def batch(self, step: int, size: int, random_state: int) -> np.ndarray:
        """Return the rows of a step, float32."""
        bounds = np.round(np.cumsum([0, *map(len, self.parts)]) * (size / len(self))).astype(int)
        drawn = [
            part.batch(step, count, random_state + 7919 * i)
            for i, (part, count) in enumerate(zip(self.parts, np.diff(bounds), strict=True))
            if count
        ]
        return np.concatenate(drawn)

    def sample(self, size: int) -> np.ndarray:
        """Return at most ``size`` rows of all sources."""
        return np.concatenate([sample(part, max(1, size * len(part) // len(self))) for part in self.parts])

    def scan(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows, one source after the other, as ``ArrayRows.scan`` does."""
        offset = 0
        for part in self.parts:
            for start, block in scannable(part).scan():
                yield offset + start, block
            offset += len(part)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows with these numbers, counted over all sources, float32."""
        indices = np.asarray(indices)
        out = np.empty((len(indices), self.dim), np.float32)
        ends = np.cumsum([len(part) for part in self.parts])
        owner = np.searchsorted(ends, indices, side="right")
        for i, part in enumerate(self.parts):
            mine = np.flatnonzero(owner == i)
            if len(mine):
                out[mine] = scannable(part).take(indices[mine] - (ends[i] - len(part)))
        return out


def scannable(rows: Rows) -> Any:
    """Return the rows, if they can also be read in order (``scan``) and by number (``take``)."""
    if hasattr(rows, "scan") and hasattr(rows, "take"):
        return rows
    raise InputError(
        f"Got unpaired rows of type {type(rows).__name__}, which only returns batches; all are searched.",
        "Pass an array, or rows with the methods scan and take.",
    )


def as_rows(rows: Supply, name: str) -> Rows | None:
    """Return an array, embeddings, a ``Rows`` object or a list of these as one source; None without rows."""
    if rows is None:
        return None
    if isinstance(rows, Rows):
        if not len(rows):
            raise InputError(f"No rows in {name}.", f"Leave {name} out instead.")
        return rows
    if isinstance(rows, (list, tuple)):
        parts = [part for i, source in enumerate(rows) if (part := as_rows(source, f"{name}[{i}]")) is not None]
        return Sources(parts) if parts else None
    if isinstance(rows, Embeddings):
        return ArrayRows(rows.vectors)
    return ArrayRows(as_matrix(rows, name))


def sample(rows: Rows, size: int) -> np.ndarray:
    """Return at most ``size`` rows, float32, the same ones each time."""
    if hasattr(rows, "sample"):
        return rows.sample(size)
    return np.asarray(rows.batch(0, min(size, len(rows)), 0), np.float32)
