"""How stored vectors stand for those of a model: quantized to bytes or bits, padded with zeros, cut to a prefix."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.top_k import top_k
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import Embeddings, Pairs, Space, as_embeddings
from congruence.errors import DtypeError, ParameterError, ProjectionWarning, ShapeError
from congruence.maps import OrthogonalMap
from congruence.splits import duplicate_groups

#: Kinds of quantized vectors, as sentence-transformers, Cohere and Voyage name them, with their types.
CODES = {"int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}

_NEIGHBORS, _SAMPLE = 10, 1000

#: Share of numbers that are not zero in a padded matrix before its padding: columns of counts may be empty by chance.
_DENSE = 0.9

#: The shortest prefix that is tried, the folds over the pairs, and the most and the fewest pairs that are used.
_SHORTEST, _FOLDS, _MOST, _FEWEST = 8, 5, 5000, 20


def dequantize(codes: ArrayLike, kind: str, ranges: ArrayLike | None = None) -> np.ndarray:
    """Return the vectors that codes stand for, shape (n, d), float32.

    ``kind``: "int8", "uint8", numbers between the ``ranges`` (2, d), the least and the largest of each column, or
    without ranges multiples of one unknown number; or "binary", "ubinary", eight signs in each of d / 8 numbers.
    """
    check_choice(kind, tuple(CODES), "kind")
    numbers, least = np.asarray(codes), np.iinfo(CODES[kind]).min
    if numbers.dtype.kind not in "iuf" or (numbers < least).any() or (numbers > np.iinfo(CODES[kind]).max).any():
        raise DtypeError(f"Got {numbers.dtype} with other numbers than those of {kind}.", "Pass the codes as stored.")
    numbers = numbers.astype(np.int16)
    if kind.endswith("binary"):
        bits = np.unpackbits((numbers - least).astype(np.uint8), axis=1)
        return (2 * bits.astype(np.float32) - 1) / np.float32(np.sqrt(bits.shape[1]))
    if ranges is None:
        return numbers.astype(np.float32) - np.float32(0 if least else 128)
    low, high = _ranges(ranges, numbers.shape[1])
    return ((numbers - least) * ((high - low) / 255) + low).astype(np.float32)


def quantize(vectors: ArrayLike, kind: str, ranges: ArrayLike | None = None) -> np.ndarray:
    """Return the codes of vectors, shape (n, d), or (n, d / 8) of bits; see ``dequantize``, which gives them back.

    Without ``ranges``, the largest number of each row becomes 127, which keeps its direction.
    """
    check_choice(kind, tuple(CODES), "kind")
    X, least = np.asarray(vectors), np.iinfo(CODES[kind]).min
    if kind.endswith("binary"):
        if X.shape[1] % 8:
            raise ShapeError(f"Got {X.shape[1]} columns for {kind}, eight of which are a byte.", "Choose int8.")
        return (np.packbits(X > 0, axis=1).astype(np.int16) + least).astype(CODES[kind])
    if ranges is None:
        codes = np.rint(X * (127 / np.maximum(np.abs(X).max(axis=1, keepdims=True), 1e-30))) + (0 if least else 128)
    else:
        low, high = _ranges(ranges, X.shape[1])
        codes = np.rint((X - low) * (255 / np.maximum(high - low, 1e-30))) + least
    return np.clip(codes, least, np.iinfo(CODES[kind]).max).astype(CODES[kind])


def _ranges(ranges: ArrayLike, dim: int) -> np.ndarray:
    found = np.asarray(ranges, np.float64)
    if found.shape != (2, dim) or not np.isfinite(found).all() or (found[0] > found[1]).any():
        problem = f"Got ranges of shape {found.shape} for {dim} columns; expected the least and the largest of each."
        raise ShapeError(problem, "Pass `ranges=…` of shape (2, columns).")
    return found


@dataclass
class StoredForm:
    """What is done to stored rows before they are mapped, and to mapped rows before they are stored.

    ``kind`` and ``ranges``: of quantized vectors; ``padding``: columns of zeros after those of the model, to a
    ``width``; ``prefix``: number of the first columns that are kept, of models trained for it (Matryoshka).
    """

    kind: str | None = None
    ranges: np.ndarray | None = None
    padding: int = 0
    width: int = 0
    prefix: int | None = None
    dim_in: int | None = None
    ranges_out: np.ndarray | None = None
    kept: float | None = None

    @property
    def plain(self) -> bool:
        """Whether rows are stored as they are."""
        return self.kind is None and not self.padding and self.prefix is None

    def decode(self, rows: np.ndarray, name: str) -> np.ndarray:
        """Return stored rows as those of the model."""
        if self.kind is not None:
            rows = dequantize(rows, self.kind, self.ranges)
        if self.padding:
            wrong = np.flatnonzero(rows[:, -self.padding :].any(axis=1))
            if len(wrong):
                problem = f"Got numbers in the last {self.padding} columns of {name}, which are zeros in other rows."
                raise ShapeError(problem, "Pass vectors of one model, all padded or none.")
            rows = np.ascontiguousarray(rows[:, : -self.padding])
        return rows

    def dim_out(self, dim: int) -> int:
        """Return the width of stored rows, of mapped ones of a width."""
        if self.prefix is not None:
            check_positive(self.prefix, "prefix", integer=True)
            if self.prefix > dim:
                raise ParameterError(f"Got `prefix={self.prefix}` for mapped rows of {dim} columns.", "Pass fewer.")
            dim = self.prefix
        if self.padding:
            return max(dim, self.width)
        return dim // 8 if self.kind is not None and self.kind.endswith("binary") else dim

    def space_out(self, space: Space) -> Space:
        """Return the space of stored rows, of mapped ones; codes are no unit rows."""
        assert space.dim is not None
        return replace(space, dim=self.dim_out(space.dim), normalized=None if self.kind else space.normalized)

    def encode(self, mapped: np.ndarray, unit: bool) -> np.ndarray:
        """Return mapped rows as they are stored; of the first block, measure how many neighbors are kept."""
        rows = mapped
        if self.prefix is not None:
            rows = np.ascontiguousarray(rows[:, : self.prefix])
            rows = np.asarray(normalize_rows(rows)) if unit else rows
        if self.kind is not None:
            if self.ranges is not None and self.ranges_out is None:
                self.ranges_out = np.stack([rows.min(axis=0), rows.max(axis=0)])
            codes = quantize(rows, self.kind, self.ranges_out)
            rows, stored = dequantize(codes, self.kind, self.ranges_out), codes
        else:
            stored = np.pad(rows, ((0, 0), (0, max(0, self.width - rows.shape[1])))) if self.padding else rows
        if self.kept is None and (self.kind is not None or self.prefix is not None):
            self.kept = neighbors_kept(mapped[:_SAMPLE], rows[:_SAMPLE])
        return stored


def neighbors_kept(whole: np.ndarray, part: np.ndarray) -> float | None:
    """Return the share of each row's ten nearest rows by cosine that are still among them in another form."""
    k = min(_NEIGHBORS, (len(whole) - 1) // 2)
    if k < 1:
        return None
    lists = []
    for rows in (whole, part):
        unit = np.asarray(normalize_rows(np.asarray(rows, np.float32)))
        similar = unit @ unit.T
        np.fill_diagonal(similar, -np.inf)
        lists.append(top_k(similar, k))
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(*lists, strict=True)]))


def first_columns(rows: Any, width: int) -> Any:
    """Return the first columns of a model's vectors, or of the new side of pairs; unit rows stay unit rows.

    A mean, shape (d,), or None is returned as it is.
    """
    if isinstance(rows, Pairs):
        return replace(rows, target=first_columns(rows.target, width))
    if rows is None or (isinstance(rows, np.ndarray) and rows.ndim == 1):
        return rows
    given = as_embeddings(rows, "rows")
    X = np.ascontiguousarray(given.vectors[:, :width])
    if given.space.normalized and given.vectors[:, width:].any():
        X = np.asarray(normalize_rows(X))
    ids = given.ids if given.has_ids else None
    return Embeddings(X, ids, replace(given.space, dim=width), given.allow_zero_rows)


def without_padding(rows: Embeddings) -> Embeddings:
    """Return vectors without the columns of zeros after those of the model."""
    X = rows.vectors
    if X[:, -1].any() or not X.any():
        return rows
    width = int(np.flatnonzero(X.any(axis=0))[-1]) + 1
    dense = np.count_nonzero(X[:, :width]) > _DENSE * len(X) * width
    return first_columns(rows, width) if dense else rows


@dataclass(frozen=True)
class PrefixChoice(PlainData):
    """A prefix of a new model's columns, and the shares of left-out pairs that are found with it and with all."""

    prefix: int
    dim: int
    found: float | None = None
    found_whole: float | None = None
    error: float | None = None  # standard error of ``found_whole``

    def describe(self) -> str:
        """Return the choice and its evidence in words."""
        words = f"the first {self.prefix} of {self.dim} columns"
        if self.found is None:
            return words
        return f"{words}: {self.found:.3f} of left-out pairs found, with all {self.found_whole:.3f} ± {self.error:.3f}"


def choose_prefix(pairs: Pairs, prefix: int | str = "auto", random_state: int = 0) -> PrefixChoice:
    """Return the shortest prefix of the new model's columns that finds left-out pairs as well as all columns do.

    A left-out old row is mapped by a rotation fitted on the other folds, and counts as found if its new row is the
    nearest of those of all pairs. As well: within one standard error of the share that all columns find, and so do all
    longer prefixes that are tried, halves of halves. With a number, this one is taken.
    """
    X, Y = pairs
    dim = Y.shape[1]
    if prefix != "auto":
        if isinstance(prefix, str) or not 0 < prefix <= dim:
            problem = f"Got `prefix={prefix!r}` for a new model of {dim} columns."
            raise ParameterError(problem, "Pass a number of columns, or 'auto'.")
        return PrefixChoice(prefix, dim)
    rng = np.random.default_rng(random_state)
    chosen = np.sort(rng.choice(len(X), min(len(X), _MOST), replace=False))
    X, groups = X[chosen], duplicate_groups(X[chosen], Y[chosen])
    count = int(groups.max()) + 1
    if count < _FEWEST:
        raise ParameterError(f"Got {count} distinct pairs to choose a prefix by.", f"Pass {_FEWEST} or a number.")
    fold = (rng.permutation(count) % _FOLDS)[groups]
    best = whole = (0.0, 0.0)
    width, kept = dim, dim
    while width >= min(_SHORTEST, dim):
        rows = first_columns(pairs, width).target.vectors[chosen]
        found = np.zeros(len(X))
        for part in range(_FOLDS):
            test = fold == part
            with warnings.catch_warnings(action="ignore", category=ProjectionWarning):
                mapped = OrthogonalMap().fit(X[~test], rows[~test]).transform(X[test])
            similar = np.asarray(normalize_rows(mapped)) @ np.asarray(normalize_rows(rows)).T
            own = similar[np.arange(len(mapped)), np.flatnonzero(test)][:, None]
            found[test] = (similar <= own).all(axis=1) / np.maximum((similar == own).sum(axis=1), 1)
        score = float(found.mean()), float(found.std() / np.sqrt(count))
        if width == dim:
            whole = best = score
        if score[0] < whole[0] - whole[1] or whole[0] - 2 * whole[1] <= 1 / len(X):  # or nothing can be told
            break
        best, kept, width = score, width, width // 2
    return PrefixChoice(kept, dim, best[0], *whole)
