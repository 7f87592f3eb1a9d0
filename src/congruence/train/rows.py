"""What a training run learns from: pairs, unpaired rows of any source, and validation rows.

The rows of a step depend only on the step and the seed, so a resumed run uses exactly the same rows.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, to_numpy
from congruence._utils.display import short
from congruence._utils.ids import id_rows, id_texts, is_in
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import (
    RowNames,
    as_matrix,
    check_positive,
    check_rows,
    check_same_rows,
    check_width,
)
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import DtypeError, InputError, PairingWarning, ParameterError, ShapeError
from congruence.maps.heads import SIDES
from congruence.splits import duplicate_groups

if TYPE_CHECKING:
    from congruence.maps import Map


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
        """Return at most ``size`` rows spread over the array, float32."""
        return self._float32(spread(len(self._rows), size))

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
    if _are_parts(rows):
        parts = [part for i, source in enumerate(rows) if (part := as_rows(source, f"{name}[{i}]")) is not None]
        return Sources(parts) if parts else None
    if isinstance(rows, Embeddings):
        return ArrayRows(rows.vectors)
    return ArrayRows(as_matrix(rows, name))  # type: ignore[arg-type]  # a list here is a matrix


def _are_parts(rows: Supply) -> TypeGuard[Sequence[Any]]:
    """Return whether these are several sources, and no matrix written as lists."""
    if not isinstance(rows, (list, tuple)):
        return False
    first = rows[0] if rows else None
    return not (isinstance(first, (list, tuple)) and len(first) > 0 and isinstance(first[0], Real))


def spread(n: int, most: int) -> np.ndarray | slice:
    """Return all of ``n`` rows or, from each of ``most`` equal parts, one at random, always the same: a fixed distance
    would meet the same rows again where they repeat, such as one of an image's captions.
    """
    if n <= most:
        return slice(None)
    edges = np.arange(most + 1) * n // most
    return np.random.default_rng(most).integers(edges[:-1], edges[1:])


def sample(rows: Rows, size: int) -> np.ndarray:
    """Return at most ``size`` rows, float32, the same ones each time."""
    if hasattr(rows, "sample"):
        return rows.sample(size)
    return np.asarray(rows.batch(0, min(size, len(rows)), 0), np.float32)


#: Unpaired rows of the source and of the target.
Unpaired: TypeAlias = tuple[Supply, Supply]
#: Held-out rows of both sides: paired, or with labels, where rows with equal labels match.
Validation: TypeAlias = "tuple[RowsLike, RowsLike] | tuple[RowsLike, RowsLike, Labels, Labels]"

#: Largest number of unpaired rows of a side among which left-out pairs are searched.
DISTRACTORS = 1000


def fold_numbers(labels: np.ndarray, folds: int, random_state: int) -> np.ndarray:
    """Return the number of each pair's fold, at most ``folds``, the same for pairs of equal labels 0, 1, …"""
    order = np.random.default_rng(random_state).permutation(labels.max() + 1)
    return order[labels] % min(folds, len(order))


def divide(labels: np.ndarray, folds: int | None, share: float | None, random_state: int) -> np.ndarray:
    """Return the number of each pair's fold, for a number of folds, or a share or number of the pairs in each."""
    if share is not None:
        share = check_positive(share, "validation")
        if share > len(labels) - 2:
            problem = f"Got `validation={share:g}` of {len(labels)} pairs; expected at least two left."
            raise ParameterError(problem, "Pass a smaller `validation=…`.")
        folds = max(2, round(1 / share if share < 1 else len(labels) / share))
    folds = check_positive(folds or 0, "folds", integer=True)
    if labels.max() < 1 or folds < 2:
        raise ParameterError("Got pairs or folds that leave none out.", "Pass more pairs, or `folds=5`.")
    return fold_numbers(labels, folds, random_state)


@dataclass(frozen=True)
class TrainingData:
    """The data that a method is trained on; validation rows with equal labels match. With ``distractors``, rows of both
    sides, validation pairs are searched among these too. ``groups`` are labels of the pairs that stay in one fold.
    """

    source: np.ndarray
    target: np.ndarray
    unpaired_source: Rows | None
    unpaired_target: Rows | None
    validation: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None
    distractors: tuple[np.ndarray, np.ndarray] | None = None
    groups: np.ndarray | None = None

    def labels(self) -> np.ndarray:
        """Return the group 0, 1, … of each pair; by default, pairs with an identical row are of one group."""
        if self.groups is None:
            return duplicate_groups(self.source, self.target)
        return np.unique(self.groups, return_inverse=True)[1]

    def leave_out(self, out: np.ndarray, labels: np.ndarray) -> TrainingData:
        """Return the data without some pairs, which become the validation rows, among a sample of the unpaired."""
        heldout = self.source[out], self.target[out], labels[out], labels[out]
        pools = [
            np.empty((0, paired.shape[1]), np.float32) if rows is None else sample(rows, DISTRACTORS)
            for rows, paired in ((self.unpaired_source, self.source), (self.unpaired_target, self.target))
        ]
        kept = {"source": self.source[~out], "target": self.target[~out], "groups": labels[~out]}
        return replace(self, **kept, validation=heldout, distractors=(pools[0], pools[1]))

    def sizes(self) -> dict[str, int]:
        """Return the numbers of pairs and of unpaired rows of each side."""
        unpaired = {"n_unpaired_source": self.unpaired_source, "n_unpaired_target": self.unpaired_target}
        return {"n_pairs": len(self.source)} | {k: 0 if rows is None else len(rows) for k, rows in unpaired.items()}

    def facts(self) -> dict[str, object]:
        """Return what identifies these data: sizes, and a digest of the pairs and of a sample of the unpaired rows."""
        pools = [sample(rows, 64) for rows in (self.unpaired_source, self.unpaired_target) if rows is not None]
        digest = hashlib.sha256()
        for rows in (self.source, self.target, *pools):
            digest.update(np.ascontiguousarray(rows).tobytes())
        return {**self.sizes(), "digest": digest.hexdigest()}


def read_data(
    mapping: Map,
    X: RowsLike,
    Y: RowsLike | None,
    unpaired: Unpaired | None,
    validation: Validation | None,
    groups: Labels | None = None,
) -> TrainingData:
    """Return the data that a map is trained on, and store the number and names of features on the map."""
    source, target, ids = read_pairs(X, Y, mapping)
    if groups is not None:
        groups = to_numpy(groups)
        check_same_rows(len(Y), len(groups), "Y", "groups")  # type: ignore[arg-type]
        if ids is not None:
            groups = groups[id_rows(Y.ids, ids)]  # type: ignore[union-attr]
    unpaired = (None, None) if unpaired is None else unpaired
    if not isinstance(unpaired, (tuple, list)) or len(unpaired) != 2:
        raise ParameterError("Got unpaired that is not a pair.", "Pass `unpaired=(U, V)`, where either may be None.")
    sides = []
    for side, supply, name, paired in zip(SIDES, unpaired, "XY", (source, target), strict=True):
        rows = as_rows(supply, f"unpaired_{side}")
        if rows is not None:
            if rows.dim != paired.shape[1]:
                raise ShapeError(
                    f"Got unpaired rows of width {rows.dim} beside paired ones ({name}) of width {paired.shape[1]}.",
                    "Encode them with the same model.",
                )
            warn_paired(supply, rows, ids, paired, side)
        sides.append(rows)
    heldout = read_validation(validation, source.shape[1], target.shape[1])
    return TrainingData(source, target, sides[0], sides[1], heldout, groups=groups)


def space_of(rows: object) -> Space:
    """Return the space of embeddings, or an unknown space for other rows."""
    return rows.space if isinstance(rows, Embeddings) else Space()


def join_by_id(X: object, Y: object) -> Pairs | None:
    """Return the rows paired by id, or None unless both sides have ids."""
    both = isinstance(X, Embeddings) and isinstance(Y, Embeddings) and X.has_ids and Y.has_ids
    return Pairs.join(X, Y) if both else None  # type: ignore[arg-type]


def read_pairs(
    X: RowsLike, Y: RowsLike | None, mapping: Map | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return paired rows as float32, and their ids if both sides have ids; ``mapping`` stores the features."""
    joined = join_by_id(X, Y)
    if joined is not None:
        X, Y = joined.source, joined.target
    if mapping is not None:
        A, B, _ = mapping._check_pairs(X, Y)
    else:
        A, B = (as_matrix(getattr(side, "vectors", side), name) for side, name in ((X, "X"), (Y, "Y")))
        check_same_rows(len(A), len(B), "X", "Y")
    return np.asarray(A, np.float32), np.asarray(B, np.float32), None if joined is None else joined.ids


def read_validation(
    validation: Validation | None, d_source: int, d_target: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the held-out rows of both sides, float32, and their labels."""
    if validation is None:
        return None
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 4):
        raise ParameterError("Got a validation of another form.", "Pass `validation=(X, Y)`, or with labels of both.")
    if len(validation) == 2:
        A, B, _ = read_pairs(validation[0], validation[1])
        x_labels = y_labels = np.arange(len(A))
    else:
        A, B = (as_matrix(getattr(side, "vectors", side), f"validation[{i}]") for i, side in enumerate(validation[:2]))
        x_labels, y_labels = np.asarray(validation[2]), np.asarray(validation[3])
        for labels, rows in ((x_labels, A), (y_labels, B)):
            if len(labels) != len(rows):
                raise ShapeError(f"Got {len(labels)} labels for {len(rows)} validation rows.", "Pass one per row.")
    check_width(A.shape[1], d_source, "the validation rows of the source")
    check_width(B.shape[1], d_target, "the validation rows of the target")
    return np.asarray(A, np.float32), np.asarray(B, np.float32), x_labels, y_labels


def warn_paired(supply: Supply, rows: Rows | None, ids: np.ndarray | None, paired: np.ndarray, side: str) -> None:
    """Warn of pairs that are also listed as unpaired rows: by id if both have ids, else by their numbers."""
    if _are_parts(supply):
        for part in supply:
            if part is not None:
                warn_paired(part, as_rows(part, side), ids, paired, side)
        return
    if ids is not None and isinstance(supply, Embeddings) and supply.has_ids:
        repeated = id_texts(ids[is_in(ids, supply.ids)]).tolist()
    elif isinstance(rows, ArrayRows):
        repeated = [f"row {i}" for i in np.flatnonzero(_has_equal_row(paired, rows))]
    else:
        repeated = []
    if repeated:
        first = short(repr(repeated[0]))
        warnings.warn(
            PairingWarning(
                f"{len(repeated)} of {len(paired)} pairs are listed as unpaired {side} rows too ({first}, …).",
                "Remove these rows from the unpaired rows, unless several items share a row, such as a caption.",
            ),
            stacklevel=4,
        )


def _has_equal_row(paired: np.ndarray, rows: ArrayRows) -> np.ndarray:
    """Return a mask of the paired rows that have an equal unpaired row, with memory for the pairs only."""
    keys: dict[bytes, list[int]] = {}
    for i, row in enumerate(paired):
        keys.setdefault(row.tobytes(), []).append(i)
    equal = np.zeros(len(paired), bool)
    # Sums are cheap to compare; only rows whose sum equals that of a pair are compared in full.
    sums = np.unique(paired.sum(axis=1))
    for _, block in rows.scan():
        for row in block[np.isin(block.sum(axis=1), sums)]:
            equal[keys.get(row.tobytes(), [])] = True
    return equal
