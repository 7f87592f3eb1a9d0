"""The map of a progressive migration: a first map, mixtures of texts, and a correction fitted on new vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import safetensors.numpy

from congruence._utils.arrays import blocks, normalize_rows
from congruence.errors import CorruptFileError
from congruence.maps import Map
from congruence.upgrade.progressive.rows import RowMatrix, row_blocks
from congruence.upgrade.progressive.state import Received, read_piece, write_piece
from congruence.upgrade.progressive.texts import Gate, Texts, nearest_texts, overlap

#: Kinds of map: with mixtures of texts, without them, and both weighted by the probability that a row's own text is
#: among the known ones.
TEXTS, PLAIN, GATED = "texts", "plain", "gated"


@dataclass(frozen=True)
class Correction:
    """A kind of map, and the ridge regression that it adds to the first map."""

    kind: str  # "texts": adds mixtures of texts; "plain": does not; "gated": a mixture of both
    ridge: float  # as a multiple of the rows' mean squared norm
    gate: Gate | None = None
    feature_mean: np.ndarray | None = None  # (p,); None if nothing was fitted yet
    residual_mean: np.ndarray | None = None  # (d_new,)
    coef: np.ndarray | None = None  # (p, d_new)
    plain_coef: np.ndarray | None = None  # (d_old, d_new), without texts, of a gated map
    evidence: str = "too few re-embedded rows to choose by"

    def facts(self) -> dict[str, Any]:
        """Return the fields that are not arrays as plain data."""
        gate = None if self.gate is None else [self.gate.slope, self.gate.level, self.gate.share]
        return {"kind": self.kind, "ridge": self.ridge, "gate": gate, "evidence": self.evidence}

    def solved(self) -> dict[str, Solved]:
        """Return the fitted regressions by kind; empty before a fit."""
        if self.feature_mean is None or self.residual_mean is None or self.coef is None:
            return {}
        regressions = {PLAIN if self.kind == PLAIN else TEXTS: Solved(self.feature_mean, self.residual_mean, self.coef)}
        if self.plain_coef is not None:
            # Residuals without texts are y − f(x); their mean is the mean of y − f(x) − t(x) plus that of t(x).
            d = len(self.plain_coef)
            offset = self.residual_mean + self.feature_mean[d:]
            regressions[PLAIN] = Solved(self.feature_mean[:d], offset, self.plain_coef)
        return regressions

    def save(self, folder: Path) -> str:
        """Write the fitted arrays to a file of a plan's folder, and return its name; before a fit, it has no arrays."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        filled = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        return write_piece(folder, safetensors.numpy.save(filled), ".safetensors")

    @classmethod
    def load(cls, folder: Path, name: str, facts: Mapping[str, Any]) -> Correction:
        """Read what ``save`` wrote, with the ``facts`` of the same map."""
        raw = read_piece(folder, name)
        try:
            arrays, kind, gate = safetensors.numpy.load(raw), facts["kind"], facts["gate"]
            if kind not in (TEXTS, PLAIN, GATED) or (kind == GATED and gate is None):
                raise ValueError(f"a map of kind {kind!r}")
            if arrays and set(arrays) != set(_ARRAYS if kind == GATED else _ARRAYS[:3]):
                raise ValueError(f"a map of kind {kind!r} with {sorted(arrays)}")
            gate = None if gate is None else Gate(*map(float, gate))
            return cls(kind, float(facts["ridge"]), gate, **arrays, evidence=str(facts["evidence"]))
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, safetensors.SafetensorError) as error:
            raise CorruptFileError(
                f"The map {folder / name} cannot be read ({error}).", "Restore the folder of the plan from a backup."
            ) from error


#: Arrays of a correction; only a gated map has the last one.
_ARRAYS = ("feature_mean", "residual_mean", "coef", "plain_coef")


class MapTerms(NamedTuple):
    """The terms of a map for some rows."""

    rows: np.ndarray  # (n, d_old)
    mixed: np.ndarray | None  # (n, d_new), mixtures of texts
    known: np.ndarray | None  # (n, 1), weights of the texts by the gate
    base: np.ndarray  # (n, d_new), by the first map

    def features(self, kind: str) -> np.ndarray:
        """Return the features of the regression, shape (n, p)."""
        return self.rows if kind == PLAIN or self.mixed is None else np.hstack([self.rows, self.mixed])

    def start(self, kind: str) -> np.ndarray:
        """Return the mapped rows without the regression, from which residuals are taken, shape (n, d_new)."""
        return self.base if kind == PLAIN or self.mixed is None else self.base + self.mixed

    def take(self, rows: np.ndarray) -> MapTerms:
        """Return the terms for some of the rows."""
        mixed, known = (None if term is None else term[rows] for term in (self.mixed, self.known))
        return MapTerms(self.rows[rows], mixed, known, self.base[rows])


class Solved(NamedTuple):
    """A fitted ridge regression: means of features and of residuals, and coefficients."""

    mean: np.ndarray
    offset: np.ndarray
    coef: np.ndarray


#: Function of a kind of regression and penalties; returns the regression for each penalty.
Solver: TypeAlias = Callable[[str, list[float]], list[Solved]]


def transform_parts(parts: MapTerms, kind: str, solved: Mapping[str, Solved]) -> np.ndarray:
    """Return rows mapped by a kind of map, (n, d_new), without normalization; ``solved`` is empty before a fit."""
    if kind == GATED:
        assert parts.known is not None
        return np.asarray(
            parts.known * transform_parts(parts, TEXTS, solved)
            + (1 - parts.known) * transform_parts(parts, PLAIN, solved)
        )
    out = parts.start(kind)
    if kind in solved:
        mean, offset, coef = solved[kind]
        out = out + (parts.features(kind) - mean) @ coef + offset
    return np.asarray(out)


#: Ridge penalties to choose from, as multiples of the old rows' mean squared norm; the first is used if there are too
#: few rows to compare them.
RIDGES = (3.0, 1.0, 10.0, 30.0, 100.0)

#: Minimum number of re-embedded rows to fit a correction, and minimum number of random rows to choose its kind and
#: penalty.
FEWEST = 4
FEWEST_CHOOSING = 12

#: Minimum share of rows whose own text is known, for an order by texts to be the default. Texts say little about the
#: other rows.
FEWEST_KNOWN = 0.8

FOLDS = 4  # folds of the cross-validation that chooses kind and penalty
NEIGHBORS = 10  # number of nearest texts that are compared


class Refit:
    """The first map, corrected with re-embedded rows.

    With f the first map and t(x) the new model's texts weighted by a softmax over the old model's scores of x (a
    mixture of texts, after the kernel regression of Nadaraya 1964 and Watson 1964), the base is b(x) = f(x) + t(x). On
    re-embedded rows the ridge regression of y − b(x) on [x, t(x)] is added, centered by weighted means: it shrinks the
    map to the base and not to zero, so that a few rows change it little. If the own text of some rows may not be known,
    the map is a mixture of two experts (Jacobs et al. 1991): this map, weighted by the gate g(x), and the same without
    t.

    Whether t is used, and the penalty, are chosen by cross-validation on random re-embedded rows, by the share of the
    new model's ten nearest texts that the map preserves (without texts, the cosine). The first penalty is kept unless
    another one is better by more than one standard error, and the first kind unless another one is by more than three.
    With a gate, kinds are compared by the cosine, because known texts say little about rows that belong to other texts.
    """

    def __init__(self, mapping: Map | None, texts: Texts | None, size: float, gate: Gate | None = None) -> None:
        self._mapping, self.texts, self.size, self.gate = mapping, texts, size, gate

    @property
    def mapping(self) -> Map:
        """The first map."""
        assert self._mapping is not None
        return self._mapping

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of map, the default first."""
        if self.texts is None:
            return (PLAIN,)
        return (TEXTS, PLAIN) if self.gate is None else (GATED, TEXTS, PLAIN)

    @property
    def most_are_known(self) -> bool:
        """Whether there are texts, and most rows' own text is among them."""
        return self.texts is not None and (self.gate is None or self.gate.share >= FEWEST_KNOWN)

    def first(self) -> Correction:
        """Return the correction before any row is re-embedded: mixtures of texts, and no regression."""
        return Correction(self.kinds[0], RIDGES[0], self.gate)

    def transform(self, rows: np.ndarray, correction: Correction, mapped: np.ndarray | None = None) -> np.ndarray:
        """Map old rows to unit rows of the new model, by block; ``mapped`` (n, d_new) replaces the first map."""
        out = np.empty((len(rows), self.mapping.d_target if mapped is None else mapped.shape[1]), np.float32)
        width = 8 * (2 * rows.shape[1] + 4 * out.shape[1] + (2 * len(self.texts) if self.texts is not None else 0))
        kind, solved = correction.kind, correction.solved()
        for part in blocks(len(rows), width):
            base = None if mapped is None else mapped[part]
            parts = self.parts(rows[part], kind, correction.gate, base)
            out[part] = normalize_rows(transform_parts(parts, kind, solved))
        return out

    def fit(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        weights: np.ndarray,
        random: np.ndarray,
        last: Correction,
        *,
        choose: bool,
        mapped: np.ndarray | None = None,
    ) -> Correction:
        """Fit the correction on re-embedded rows (n, d_old) and their new vectors (n, d_new).

        ``random`` (n,) marks rows drawn at random, by which the kind of map and its penalty are chosen if ``choose`` is
        set; otherwise those of ``last`` are kept, which is returned if there are too few rows.
        """
        if len(X) < FEWEST:
            return last
        parts = self.parts(X, self.kinds[0], self.gate, mapped)
        kind = last
        if choose and np.count_nonzero(random) >= FEWEST_CHOOSING:
            kind = self._choose(parts, Y, weights, random)
        return self.solved(kind, lambda one, ridges: _ridge(parts, one, Y, weights, ridges))

    def solved(self, chosen: Correction, solve: Solver) -> Correction:
        """Return the chosen map, fitted."""
        ridges = [chosen.ridge * self.size]
        (mean, offset, coef), *_ = solve(PLAIN if chosen.kind == PLAIN else TEXTS, ridges)
        plain = solve(PLAIN, ridges)[0].coef if chosen.kind == GATED else None
        return replace(chosen, feature_mean=mean, residual_mean=offset, coef=coef, plain_coef=plain)

    def candidates(self, solve: Solver) -> list[dict[str, Solved]]:
        """Return the regressions by kind that are compared, for each penalty."""
        kinds = self.kinds[-2:]
        by_kind = [solve(kind, [ridge * self.size for ridge in RIDGES]) for kind in kinds]
        return [dict(zip(kinds, solved, strict=True)) for solved in zip(*by_kind, strict=True)]

    def parts(self, rows: np.ndarray, kind: str, gate: Gate | None, base: np.ndarray | None = None) -> MapTerms:
        """Return the terms of a map for some rows, in float64; ``base`` replaces the rows mapped by the first map."""
        rows = rows.astype(np.float64)
        start = np.asarray(self.mapping.transform(rows)) if base is None else base
        if kind == PLAIN or self.texts is None:
            return MapTerms(rows, None, None, start)
        scores = self.texts.scores(normalize_rows(rows, dtype=np.float64))
        return MapTerms(
            rows, self.texts.mix(scores), gate(scores) if kind == GATED and gate is not None else None, start
        )

    def _choose(self, parts: MapTerms, Y: np.ndarray, weights: np.ndarray, random: np.ndarray) -> Correction:
        """Choose the kind of map and its penalty by cross-validation on random rows."""
        fold = np.full(len(Y), -1)
        fold[random] = np.arange(np.count_nonzero(random)) % FOLDS  # these rows are already in random order
        kept = np.zeros((len(self.kinds), len(RIDGES), len(Y), 2))
        for k in range(FOLDS):
            test, train = fold == k, fold != k
            known = parts.take(train), Y[train], weights[train]
            solved = self.candidates(lambda kind, ridges: _ridge(known[0], kind, *known[1:], ridges))  # noqa: B023
            kept[:, :, test] = self.compare(parts.take(test), Y[test], solved)
        return self.decide(kept[:, :, random])

    def compare(self, parts: MapTerms, Y: np.ndarray, solved: list[dict[str, Solved]]) -> np.ndarray:
        """Return overlap of nearest texts and cosine, shape (kinds, penalties, rows, 2)."""
        out = np.empty((len(self.kinds), len(solved), len(Y), 2))
        for a, kind in enumerate(self.kinds):
            for r, regressions in enumerate(solved):
                mapped = normalize_rows(transform_parts(parts, kind, regressions))
                out[a, r, :, 1] = np.einsum("ij,ij->i", mapped, Y)
                if self.texts is None:
                    out[a, r, :, 0] = out[a, r, :, 1]
                else:
                    k = min(NEIGHBORS, len(self.texts))
                    out[a, r, :, 0] = overlap(*(nearest_texts(side @ self.texts.new.T, k) for side in (mapped, Y)))
        return out

    def decide(self, table: np.ndarray) -> Correction:
        """Return the best kind and penalty, not fitted yet, by ``compare``, shape (kinds, penalties, rows, 2)."""
        criterion = 0 if self.gate is None else 1
        penalty = [_leader(scores, 1.0) for scores in table[..., 0]]
        # Another kind must be clearly better than the first one, because a few random rows can mislead.
        a = _leader(np.stack([scores[r, :, criterion] for scores, r in zip(table, penalty, strict=True)]), 3.0)
        words = "overlap of nearest texts" if self.texts is not None else "cosine"
        return Correction(
            self.kinds[a],
            RIDGES[penalty[a]],
            self.gate if self.kinds[a] == GATED else None,
            evidence=f"{words} of {table.shape[2]} random rows, {FOLDS} folds",
        )


def _leader(table: np.ndarray, errors: float) -> int:
    """Return the row of best mean, of (rows, items), if it leads the first by so many standard errors, else 0."""
    ahead = table - table[0]
    mean, error = ahead.mean(axis=1), ahead.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int(np.argmax(np.where(mean > errors * error, mean, 0.0)))


def _ridge(parts: MapTerms, kind: str, Y: np.ndarray, weights: np.ndarray, ridges: list[float]) -> list[Solved]:
    """Return the weighted ridge regression for each penalty, from the smaller of the two Gram matrices."""
    features, residuals = parts.features(kind), Y - parts.start(kind)
    weights = weights / weights.mean()
    mean, offset = np.average(features, axis=0, weights=weights), np.average(residuals, axis=0, weights=weights)
    root = np.sqrt(weights)[:, None]
    A, E = (features - mean) * root, (residuals - offset) * root
    n, p = A.shape
    values, vectors = np.linalg.eigh(A @ A.T if n < p else A.T @ A)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ (E if n < p else A.T @ E)
    solved = [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]
    return [Solved(mean, offset, A.T @ coef if n < p else coef) for coef in solved]


BLOCK = 4096  # number of rows that are added, or compared, at a time

#: Groups with sums of their own: chosen rows, and random rows, whose weight changes from stage to stage.
CHOSEN, RANDOM = 0, 1


def _solve_sums(sums: np.ndarray, rows: float, ridges: list[float]) -> list[Solved]:
    """Return the ridge regression for each penalty; ``rows`` is the unweighted number of rows."""
    p, n, mean = len(sums) - 1, sums[0, 0], sums[0, 1:] / sums[0, 0]
    centered = (sums[1:, 1:] - n * np.outer(mean[:p], mean)) * (rows / n)
    values, vectors = np.linalg.eigh(centered[:, :p])
    values, rotated = np.maximum(values, 0.0), vectors.T @ centered[:, p:]
    return [Solved(mean[:p], mean[p:], vectors @ (rotated / (values + ridge)[:, None])) for ridge in ridges]


class Sums:
    """Fits the correction of a ``Refit`` from sums instead of the rows (n, d_old).

    A group's sums are those of the outer products of [1, features] and [1, features, residuals]. With texts, features
    are [x, t(x)] and residuals y − b(x). The map without texts has features x and residuals y − b(x) + t(x), whose sums
    follow by addition, so one set serves all kinds of map. The choice between kinds and penalties leaves out one fold
    of random rows at a time, and reads these rows again.
    """

    def __init__(self, refit: Refit, old: RowMatrix, new: Received) -> None:
        self._refit, self._old, self._new = refit, old, new
        q = refit.mapping.d_target
        self._d, self._p = old.shape[1], old.shape[1] + (q if refit.texts is not None else 0)
        self._sums = np.zeros((2, 1 + self._p, 1 + self._p + q))  # CHOSEN and RANDOM
        #: Group to whose sums each row of the store was added, −1 for none.
        self._group = np.full(len(old), -1, np.int8)

    def _parts(self, rows: np.ndarray) -> MapTerms:
        return self._refit.parts(self._old[rows], self._refit.kinds[0], self._refit.gate)

    def _of(self, rows: np.ndarray) -> np.ndarray:
        """Return the sums over some rows of the store."""
        kind = PLAIN if self._refit.texts is None else TEXTS
        out = np.zeros(self._sums.shape[1:])
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            parts = self._parts(part)
            residuals = self._new.take(part) - parts.start(kind)
            z = np.hstack([np.ones((len(part), 1)), parts.features(kind), residuals])
            out += z[:, : len(out)].T @ z
        return out

    def remove(self, rows: np.ndarray) -> None:
        """Remove rows from the sums, before they get other vectors."""
        for group in (CHOSEN, RANDOM):
            if len(added := rows[self._group[rows] == group]):
                self._sums[group] -= self._of(added)
        self._group[rows] = -1

    def add_new(self, rows: np.ndarray, random: np.ndarray) -> None:
        """Add those of the rows (e,) that were not added yet; ``random`` (e,) marks those drawn at random."""
        for group, which in ((CHOSEN, ~random), (RANDOM, random)):
            if len(fresh := rows[which & (self._group[rows] < 0)]):
                self._sums[group] += self._of(fresh)
                self._group[fresh] = group

    def fit(self, learn: np.ndarray, weight: float, last: Correction, *, choose: bool) -> Correction:
        """Fit on the rows that were added; ``learn`` (m,) were drawn at random, and have a weight of their own."""
        rows = float(self._sums[:, 0, 0].sum())
        if rows < FEWEST:
            return last
        whole = self._sums[CHOSEN] + weight * self._sums[RANDOM]
        kind = self._choose(whole, rows, learn, weight) if choose and len(learn) >= FEWEST_CHOOSING else last
        return self._refit.solved(kind, lambda one, ridges: self._solve(whole, rows, one, ridges))

    def _solve(self, sums: np.ndarray, rows: float, kind: str, ridges: list[float]) -> list[Solved]:
        """Return the regression of one kind for each penalty."""
        if kind == PLAIN and self._refit.texts is not None:
            x, texts, residuals = slice(1 + self._d), slice(1 + self._d, 1 + self._p), slice(1 + self._p, None)
            sums = np.hstack([sums[x, x], sums[x, residuals] + sums[x, texts]])
        return _solve_sums(sums, rows, ridges)

    def _choose(self, whole: np.ndarray, rows: float, learn: np.ndarray, weight: float) -> Correction:
        """Choose the kind of map and its penalty by cross-validation on random rows."""
        refit = self._refit
        kept = np.empty((len(refit.kinds), len(RIDGES), len(learn), 2))
        for fold in range(FOLDS):
            places = np.arange(fold, len(learn), FOLDS)
            train, n = whole - weight * self._of(learn[places]), rows - len(places)
            solved = refit.candidates(lambda kind, ridges: self._solve(train, n, kind, ridges))  # noqa: B023
            for start in range(0, len(places), BLOCK):
                part = places[start : start + BLOCK]
                theirs = self._new.take(learn[part]).astype(np.float64)
                kept[:, :, part] = refit.compare(self._parts(learn[part]), theirs, solved)
        return refit.decide(kept)


#: Largest number of maps that are kept. If there are more, rows written with the oldest map are written again, however
#: little they moved.
MOST = 16


@dataclass(frozen=True, eq=False)
class Update:
    """Rows to write again after an update."""

    remap: np.ndarray  # ids whose vectors ``Progressive.mapped`` replaces: they moved, or their map is too old
    moved: np.ndarray  # (len(remap),), 1 − cosine to the vector that was written
    n_waiting: int  # rows that are still mapped


class Written:
    """Mapped rows as they were written to the store.

    ``rows`` (n, d_new), by the first map, are updated in place; without them, rows are mapped again when they are
    needed. ``slot`` (n,) is the key in ``maps``, oldest first, of the map with which each row was written.
    """

    def __init__(self, refit: Refit, old: RowMatrix, first: Correction, rows: np.ndarray | None) -> None:
        self._refit, self._old, self._rows = refit, old, rows
        self.slot = np.zeros(len(old), np.uint8)
        self.maps = {0: first}

    @property
    def current(self) -> int:
        """Key in ``maps`` of the current map."""
        return next(reversed(self.maps))

    def restore(self, slot: np.ndarray, maps: dict[int, Correction]) -> None:
        """Restore a saved state. Raises ValueError if it does not fit."""
        if slot.shape != self.slot.shape or not set(np.unique(slot).tolist()) <= set(maps):
            raise ValueError(f"slots of shape {slot.shape} for the maps {sorted(maps)}")
        self.slot, self.maps = np.array(slot, np.uint8), maps
        if self._rows is not None:
            for part in row_blocks(self._old):
                rows = np.arange(len(self.slot))[part]
                self._rows[part] = self._map(rows, self._old[part])

    def mark_written(self, mapped: RowMatrix) -> None:
        """Mark all rows as written with the current map; ``mapped``, shape (n, d_new), holds them as it maps them."""
        self.maps = {self.current: self.maps[self.current]}
        self.slot[:] = self.current
        if self._rows is not None:
            self._rows[:] = mapped[:]

    def take(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows as they were, or should be, written, shape (b, d_new)."""
        if self._rows is not None:
            return np.array(self._rows[rows])
        numbers = np.arange(len(self.slot))[rows] if isinstance(rows, slice) else rows
        return self._map(numbers, self._old[rows])

    def _map(self, rows: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Map old rows, each with the map with which it was written."""
        out = np.empty((len(rows), self._refit.mapping.d_target), np.float32)
        slots = self.slot[rows]
        for slot in np.unique(slots).tolist():
            here = np.flatnonzero(slots == slot)
            out[here] = self._refit.transform(old[here], self.maps[slot])
        return out

    def advance(
        self, correction: Correction, mapped: RowMatrix, waits: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a new map; return the rows that it moves by more than the tolerance, now its own, and how far."""
        if correction is not self.maps[self.current]:
            self.maps[next(slot for slot in range(256) if slot not in self.maps)] = correction
        oldest = next(iter(self.maps)) if len(self.maps) > MOST else None
        moved_rows, distances = [np.empty(0, np.intp)], [np.empty(0)]
        for part in row_blocks(self._old):
            rows = part.start + np.flatnonzero(waits[part])
            if not len(rows):
                continue
            old = None if self._rows is not None else self._old[rows]
            current = mapped[rows] if old is None else self._refit.transform(old, correction)
            written = self._rows[rows] if old is None else self._map(rows, old)  # type: ignore[index]
            moved = 1 - np.einsum("ij,ij->i", current, written)
            noticed = (moved > tolerance) | (self.slot[rows] == (256 if oldest is None else oldest))
            moved_rows.append(rows[noticed])
            distances.append(moved[noticed])
        rows = np.concatenate(moved_rows)
        updated = ~waits  # re-embedded rows are assigned to the current map, so that they keep no older map in use
        updated[rows] = True
        self.slot[updated] = self.current
        if self._rows is not None:
            self._rows[updated] = mapped[updated]
        used = {*np.unique(self.slot).tolist(), self.current}
        self.maps = {slot: kept for slot, kept in self.maps.items() if slot in used}
        return rows, np.concatenate(distances)
