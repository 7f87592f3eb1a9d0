"""Reproducible splits: held-out items are chosen by a hash of their ids, and identical rows are kept together."""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence._utils.arrays import as_dtype, blocks, to_numpy
from congruence._utils.ids import id_texts
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_positive, check_same_rows, check_seed
from congruence.errors import DuplicateWarning, ParameterError, ShapeError, TooFewAnchorsError

#: A further side groups rows only if it has more different vectors than the first side's number of different vectors
#: divided by this.
CLASS_RATIO = 3

#: Columns by which rows are compared first: nearly all that differ do so in these.
FIRST_COLUMNS = 16


@dataclass(frozen=True)
class Split:
    """A rule that decides for each id, independently of the others, whether the item is held out.

    An id is held out when the 64-bit hash of the seed and the id's text is below ``threshold``, so a map can store the
    rule, and ``evaluate`` finds the same items in any file. Items of one group are on the same side: ids whose own hash
    would put them on the other are ``exceptions`` (hashes, ascending).
    """

    random_state: int
    threshold: int
    exceptions: tuple[int, ...] = ()

    @classmethod
    def choose(
        cls, ids: np.ndarray, holdout: float | int, random_state: int = 0, groups: Labels | None = None
    ) -> Split:
        """Choose the rule that holds out a share (below 1) or an exact number of these ids.

        Items with equal labels in ``groups`` (n,) stay together: groups are added as long as they fit into the
        requested number; if none fits, the smallest is taken. Raises TooFewAnchorsError if fewer than two items or
        groups are left.
        """
        check_seed(random_state)
        n = len(ids)
        if n < 2:
            raise TooFewAnchorsError(f"Got {n} pairs; expected at least 2.", "Pass more pairs.")
        if not np.isfinite(holdout) or holdout < 0 or (holdout >= 1 and holdout != int(holdout)):
            expected, fix = "a share below 1 or a whole number of items", "Pass `holdout=0.2`, for example."
            raise ParameterError(argument="holdout", got=holdout, expected=expected, fix=fix)
        count = round(holdout * n) if holdout < 1 else int(holdout)
        if n - count < 2:
            problem = f"Got {count} of {n} pairs to hold out; expected at least two left."
            raise TooFewAnchorsError(problem, "Pass a smaller `holdout=…`.")
        if count == 0:
            return cls(random_state, 0)
        hashes = _hashes(ids, random_state)
        if groups is not None:
            labels = np.asarray(groups)
            if labels.shape != (n,):
                raise ShapeError(f"Got groups of shape {labels.shape}; expected ({n},).", "Pass one label per item.")
            codes = np.unique(labels, return_inverse=True)[1].reshape(-1)
            if codes.max() + 1 < n:
                return cls._whole_groups(id_texts(list(ids)), hashes, codes, count, random_state)
        return cls(random_state, int(np.sort(hashes)[count]))

    @classmethod
    def _whole_groups(
        cls, ids: np.ndarray, hashes: np.ndarray, codes: np.ndarray, count: int, random_state: int
    ) -> Split:
        """Hold out whole groups, in the order of the hash of each group's first id as text."""
        sizes = np.bincount(codes)
        by_id = np.argsort(ids, kind="stable")
        keys = hashes[by_id[np.unique(codes[by_id], return_index=True)[1]]]
        order = np.argsort(keys)
        taken, room = np.zeros(len(sizes), bool), count
        for group in order:
            if sizes[group] <= room:
                taken[group] = True
                room -= sizes[group]
                if not room:
                    break
        if not taken.any():
            taken[order[np.argmin(sizes[order])]] = True
        if np.count_nonzero(~taken) < 2:
            problem = f"Got {count} of {len(ids)} pairs in {len(sizes)} groups to hold out."
            raise TooFewAnchorsError(problem, "Pass a smaller `holdout=…`, or `groups=None`.")
        heldout = taken[codes]
        above = keys[order[np.flatnonzero(taken[order])[-1] + 1 :]]
        threshold = int(above[0]) if len(above) else int(hashes.max()) + 1
        exceptions = np.sort(hashes[heldout != (hashes < np.uint64(threshold))])
        return cls(random_state, threshold, tuple(exceptions.tolist()))

    def held_out(self, ids: np.ndarray) -> np.ndarray:
        """Return a mask (m,) of the ids that are held out."""
        if not self.threshold and not self.exceptions:
            return np.zeros(len(ids), bool)
        hashes = _hashes(ids, self.random_state)
        below = hashes < np.uint64(self.threshold)
        return below ^ np.isin(hashes, np.array(self.exceptions, np.uint64)) if self.exceptions else below

    def to_dict(self) -> dict[str, object]:
        """Return the rule as plain data: large integers, which JSON readers round, as text; exceptions as base64."""
        plain: dict[str, object] = {"seed": self.random_state, "threshold": str(self.threshold)}
        if self.exceptions:
            plain["exceptions"] = base64.b64encode(np.array(self.exceptions, "<u8").tobytes()).decode("ascii")
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Split:
        """Build the rule from the output of ``to_dict``."""
        exceptions = np.frombuffer(base64.b64decode(data.get("exceptions", "")), "<u8")
        return cls(int(data["seed"]), int(data["threshold"]), tuple(exceptions.tolist()))


def _hashes(ids: np.ndarray, random_state: int) -> np.ndarray:
    prefix = f"{random_state}:".encode()
    digests = (hashlib.blake2b(prefix + str(i).encode(), digest_size=8).digest() for i in ids)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def duplicate_groups(*sides: RowsLike) -> np.ndarray:
    """Label groups of identical rows (n,), 0, 1, … in their order, so that copies of a training row are not held out.

    Equal rows of the first side form a group. Equal rows of a further side, paired by position, do so too, unless that
    side describes classes rather than items, i.e. has at most a third as many different vectors as the first. A text
    side is never the first when there is another. Each connected component has one label: two images belong together if
    they share a caption. Copies that differ by rounding are not found. Time and memory are linear.

    >>> from congruence.splits import duplicate_groups
    >>> images, texts = [[1, 0], [1, 0], [0, 1], [2, 2]], [[1], [2], [2], [3]]
    >>> duplicate_groups(images, texts)
    array([0, 0, 0, 1])
    """
    texts_last = sorted(sides, key=lambda side: getattr(getattr(side, "space", None), "modality", None) == "text")
    arrays = [np.atleast_2d(to_numpy(getattr(side, "vectors", side))) for side in texts_last]
    labels = [equal_rows(array) for array in arrays]
    n = len(arrays[0])
    for array in arrays[1:]:
        check_same_rows(n, len(array))
    counts = [len(np.unique(side)) for side in labels]
    most_alike = [0, *[counts[0] / CLASS_RATIO] * (len(labels) - 1)]  # fewer different vectors describe classes
    joining = [side for side, count, least in zip(labels, counts, most_alike, strict=True) if least < count < n]
    if len(joining) < 2:
        codes = joining[0] if joining else np.arange(n)
    else:  # a graph whose nodes are the rows and the different vectors of each side
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        rows = np.tile(np.arange(n), len(joining))
        vectors = np.concatenate([side + (i + 1) * n for i, side in enumerate(joining)])
        size = (len(joining) + 1) * n
        graph = coo_array((np.ones(len(rows), np.int8), (rows, vectors)), shape=(size, size))
        codes = connected_components(graph, directed=False)[1][:n]
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]


def warn_duplicates(groups: np.ndarray, stacklevel: int = 2) -> dict[str, int] | None:
    """Warn about identical rows that are kept together; return the ``rows`` and ``groups`` of several, None without."""
    sizes = np.bincount(groups)
    many = sizes[sizes > 1]
    if not len(many):
        return None
    counts = {"rows": int(many.sum()), "groups": len(many)}
    problem = (
        f"Got {counts['rows']:,} of {len(groups):,} rows whose vectors equal another row's, on either side; expected "
        "each item once."
    )
    kept = f"A split keeps {counts['groups']:,} group{'s' * (len(many) > 1)} of equal rows together."
    warning = DuplicateWarning(problem, f"{kept} Pass `groups=None` to split row by row.")
    warnings.warn(warning, stacklevel=stacklevel + 1)
    return counts


def unpaired_pools(
    source: Labels, target: Labels, overlap: float = 0.0, size: int | None = None, random_state: int | list[int] = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Choose rows for two unpaired pools such that a share ``overlap`` of their items, at most ``size``, is in both.

    How much unpaired rows help depends on it: rows whose partner is in the other pool are not representative.
    ``source`` and ``target`` name the item of each row; returned are row numbers in both, each in random order.

    >>> from congruence.splits import unpaired_pools
    >>> source_rows, target_rows = unpaired_pools(range(90), range(90), overlap=0.5)
    >>> len(source_rows), len(target_rows), len(set(source_rows) & set(target_rows))
    (60, 60, 30)
    """
    if not (np.isfinite(overlap) and 0 <= overlap <= 1):
        expected, fix = "a share between 0 and 1", "Pass `overlap=0.0`, for example."
        raise ParameterError(argument="overlap", got=overlap, expected=expected, fix=fix)
    if size is not None:
        check_positive(size, "size", integer=True)
    sides = [np.asarray(side) for side in (source, target)]
    items = [np.unique(side) for side in sides]
    both: np.ndarray = np.intersect1d(items[0], items[1])
    alone = [np.setdiff1d(own, both) for own in items]
    # s items per pool, c of them in both. The other s − c come from items found on that side only, as far as there are
    # any.
    s = np.arange(1, min(len(own) for own in items) + 1)
    c = np.round(overlap * s).astype(int)
    taken = sum(np.maximum(0, s - c - len(own)) for own in alone)
    possible = s[c + taken <= len(both)]
    if size is not None:
        possible = possible[possible <= size]
    if not len(possible):
        problem = f"{len(items[0])} and {len(items[1])} items, {len(both)} of them on both sides, give no pools."
        raise ParameterError(problem, "Pass another overlap, or more rows.")
    most = int(possible[-1])
    common = int(np.round(overlap * most))
    rng = np.random.default_rng(random_state)
    shuffled = rng.permutation(both)
    shared, unused = shuffled[:common], shuffled[common:]
    pools = []
    for side, own in zip(sides, alone, strict=True):
        free = max(0, most - common - len(own))
        other = np.concatenate([rng.permutation(own)[: most - common], unused[:free]])
        unused = unused[free:]
        pools.append(rng.permutation(np.flatnonzero(np.isin(side, np.concatenate([shared, other])))))
    return pools[0], pools[1]


def equal_rows(array: np.ndarray) -> np.ndarray:
    """Return an integer below n for each row; rows have the same integer exactly when they are equal."""
    if array.shape[1] <= 2 * FIRST_COLUMNS:
        return _equal_rows(array)
    labels = _equal_rows(array[:, :FIRST_COLUMNS])
    alike = np.flatnonzero(np.bincount(labels)[labels] > 1)  # only these may be equal
    labels = np.arange(len(array))
    if len(alike):
        labels[alike] = alike[_equal_rows(array[alike])]
    return labels


def _equal_rows(array: np.ndarray) -> np.ndarray:
    n, width = array.shape
    kind = as_dtype("float32" if array.dtype in (np.float16, np.float32) else "float64")
    words = width * kind.itemsize // 4
    multipliers = np.random.default_rng(0).integers(0, 2**63, words, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.empty(n, np.uint64)
    for part in blocks(n, 12 * words):
        hashes[part] = _bytes(array[part], kind).view(np.uint32).astype(np.uint64) @ multipliers
    _, first, codes, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    labels = first[codes.reshape(-1)]
    again = np.flatnonzero(counts[codes.reshape(-1)] > 1)
    again = again[labels[again] != again]  # rows to compare with the first row that has the same hash
    for part in blocks(len(again), 2 * words * 4):
        rows = again[part]
        same = (_bytes(array[rows], kind) == _bytes(array[labels[rows]], kind)).all(axis=1)
        labels[rows[~same]] = rows[~same]  # different rows with equal hashes: never seen in practice, and never grouped
    return labels


def _bytes(rows: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return rows of one float type such that equal numbers have equal bytes."""
    return np.ascontiguousarray(rows.astype(kind, copy=False) + kind.type(0))  # −0 + 0 is 0
