"""The map of a progressive migration: a first map, mixtures of texts, and a correction fitted on new vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence.maps import KernelMap, Map
from congruence.maps.kernel import KernelRidge, on_cone
from congruence.upgrade.progressive.texts import Gate, Texts, overlap

#: Kinds of map: with mixtures of texts, without them, both weighted by the probability that a row's own text is among
#: the known ones, and without texts a kernel ridge regression.
TEXTS, PLAIN, GATED, KERNEL = "texts", "plain", "gated", "kernel"

#: Arrays of a correction; only a gated map has the last one.
_ARRAYS = ("feature_mean", "residual_mean", "coef", "plain_coef")


class KernelPart(NamedTuple):
    """A kernel ridge regression, whose rows stand on the cone of the new model's rows, beside native ones."""

    regression: KernelRidge
    mean: np.ndarray  # (d_new,)
    filler: np.ndarray  # (d_new,), a direction that the new model does not use
    added: bool  # whether the regression is added to the first map
    factor: float  # of the part of mapped rows that is not along the mean

    def mapped(self, rows: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Return unit rows from old rows and those of the first map, (n, d_new)."""
        out = np.asarray(on_cone(self.regression.predict(rows) + (base - self.mean if self.added else 0.0), self.mean))
        if self.factor < 1:
            out -= (1 - self.factor) * without(out, self.mean)
            # So that the rows keep unit norm, and the scores of a query change by hardly more than a constant.
            out = without(out, self.filler)
            out += np.sqrt(np.maximum(1 - np.square(out).sum(axis=1, keepdims=True), 0.0)) * self.filler
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        parts = {**self.regression._asdict(), "new_mean": self.mean, "filler": self.filler}
        return {f"kernel.{name}": part for name, part in parts.items() if isinstance(part, np.ndarray)}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> KernelPart:
        """Rebuild from arrays, among others, and the facts of a correction."""
        names = (*KernelRidge._fields[3:], "new_mean", "filler")
        *parts, mean, filler = (arrays[f"kernel.{name}"] for name in names)
        regression = KernelRidge(str(facts["kernel"]), float(facts["width"]), float(facts["ridge"]), *parts)
        return cls(regression, mean, filler, bool(facts["added"]), float(facts["factor"]))


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
    kernel: KernelPart | None = None
    evidence: str = "too few re-embedded rows to choose by"

    def facts(self) -> dict[str, Any]:
        """Return the fields that are not arrays as plain data."""
        gate = None if self.gate is None else [self.gate.slope, self.gate.level, self.gate.share]
        facts = {"kind": self.kind, "ridge": self.ridge, "gate": gate, "evidence": self.evidence}
        if self.kernel is not None:
            name, width, _ = self.kernel.regression[:3]
            facts |= {"kernel": name, "width": width, "added": self.kernel.added, "factor": self.kernel.factor}
        return facts

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays; none before a fit."""
        if self.kernel is not None:
            return self.kernel.arrays()
        return {name: array for name in _ARRAYS if (array := getattr(self, name)) is not None}

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

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Correction:
        """Rebuild a map from its ``arrays``, among others, and ``facts``. Raises ValueError if they do not fit."""
        found, kind, gate = {name: arrays[name] for name in _ARRAYS if name in arrays}, facts["kind"], facts["gate"]
        if kind == KERNEL:
            part = KernelPart.restore(arrays, facts)
            return cls(kind, part.regression.ridge, kernel=part, evidence=str(facts["evidence"]))
        complete = not found or set(found) == set(_ARRAYS if kind == GATED else _ARRAYS[:3])
        if kind not in (TEXTS, PLAIN, GATED) or (kind == GATED and gate is None) or not complete:
            raise ValueError(f"a map of kind {kind!r} with {sorted(found)}")
        gate = None if gate is None else Gate(*map(float, gate))
        return cls(kind, float(facts["ridge"]), gate, **found, kernel=None, evidence=str(facts["evidence"]))


def without(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return rows (n, d) without their part along a mean (d,)."""
    axis = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return np.asarray(rows - np.outer(rows @ axis, axis))


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
        return MapTerms(*(None if term is None else term[rows] for term in self))  # type: ignore[arg-type]

    def mapped(self, kind: str, solved: Mapping[str, Solved]) -> np.ndarray:
        """Return unit rows by a kind of map, (n, d_new); ``solved`` is empty before a fit."""

        def by(kind: str) -> np.ndarray:
            out = self.start(kind)
            if kind in solved:
                mean, offset, coef = solved[kind]
                out = out + (self.features(kind) - mean) @ coef + offset
            return out

        out = by(kind) if kind != GATED else self.known * by(TEXTS) + (1 - self.known) * by(PLAIN)  # type: ignore[operator]
        return normalize_rows(np.asarray(out))


class Solved(NamedTuple):
    """A fitted ridge regression: means of features and of residuals, and coefficients."""

    mean: np.ndarray
    offset: np.ndarray
    coef: np.ndarray


class Known(NamedTuple):
    """Re-embedded rows on which a map is fitted."""

    old: np.ndarray  # (b, d_old)
    new: np.ndarray  # (b, d_new)
    weights: np.ndarray  # (b,)
    random: np.ndarray  # (b,), which of them were drawn at random, by which kind and penalty are chosen
    mapped: np.ndarray | None = None  # (b, d_new), by the first map, if they are known


#: Ridge penalties to choose from, as multiples of the old rows' mean squared norm; the first is used if there are too
#: few rows to compare them.
RIDGES = (3.0, 1.0, 10.0, 30.0, 100.0)

#: Minimum number of re-embedded rows to fit a correction, and of random rows to choose its kind and penalty.
FEWEST, FEWEST_CHOOSING = 4, 12

FEWEST_KNOWN = 0.8  # minimum share of rows whose own text is known, for an order by texts to be the default
FOLDS = 4  # folds of the cross-validation that chooses kind and penalty
COMPARED = 4096  # most random rows by which they are chosen
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

    With ``kernel`` and without texts, the map is a ``KernelRidge`` instead, from a dozen re-embedded rows on.
    """

    def __init__(
        self, mapping: Map | None, texts: Texts | None, size: float, gate: Gate | None = None, *, kernel: bool = False
    ) -> None:
        self._mapping, self.texts, self.size, self.gate = mapping, texts, size, gate
        self._kernel = kernel and texts is None
        #: Kinds of map, the default first.
        self.kinds = (PLAIN,) if texts is None else (TEXTS, PLAIN) if gate is None else (GATED, TEXTS, PLAIN)
        #: Whether there are texts, and most rows' own text is among them.
        self.most_are_known = texts is not None and (gate is None or gate.share >= FEWEST_KNOWN)

    @property
    def mapping(self) -> Map:
        """The first map."""
        assert self._mapping is not None
        return self._mapping

    def first(self) -> Correction:
        """Return the correction before any row is re-embedded: mixtures of texts, and no regression."""
        return Correction(self.kinds[0], RIDGES[0], self.gate)

    def transform(self, rows: np.ndarray, correction: Correction, mapped: np.ndarray | None = None) -> np.ndarray:
        """Map old rows to unit rows of the new model, by block; ``mapped`` (n, d_new) replaces the first map."""
        out = np.empty((len(rows), self.mapping.d_target if mapped is None else mapped.shape[1]), np.float32)
        width = 8 * (2 * rows.shape[1] + 4 * out.shape[1] + 2 * len(self.texts or ()))
        kind, solved = correction.kind, correction.solved()
        kernel = correction.kernel
        width += 0 if kernel is None else 16 * len(kernel.regression.landmarks)
        for part in blocks(len(rows), width):
            base = None if mapped is None else mapped[part]
            if kernel is not None:
                terms = self.terms(rows[part], PLAIN, None, base)
                out[part] = kernel.mapped(terms.rows, terms.base)
                continue
            out[part] = self.terms(rows[part], kind, correction.gate, base).mapped(kind, solved)
        return out

    def fit(
        self, rows: Iterable[Known], n: int, last: Correction, *, choose: bool, lists: tuple[int, int] | None = None
    ) -> Correction:
        """Fit on ``n`` re-embedded rows, in blocks; with ``choose`` and enough random rows, choose kind and penalty.

        ``lists``: number of rows of the store and of a list, if native rows are not to crowd mapped ones out of lists.
        """
        if n < FEWEST:
            return last
        if self._kernel and (n >= FEWEST_CHOOSING or isinstance(self._mapping, KernelMap)):
            return self._fit_kernel(rows, -(-n // COMPARED), lists)
        training, drawn = Training(n, self.kinds[-2:][0]), 0
        tests: list[tuple[int, MapTerms, np.ndarray]] = []
        for X, Y, weights, random, mapped in rows:
            terms, fold = self.terms(X, self.kinds[0], self.gate, mapped), np.full(len(X), FOLDS)
            some = np.flatnonzero(random)[: COMPARED - drawn if choose else 0]
            fold[some] = (drawn + np.arange(len(some))) % FOLDS  # these rows are already in random order
            drawn += len(some)
            training.add(terms, Y, weights, fold)
            tests += [(k, terms.take(fold == k), Y[fold == k]) for k in np.unique(fold[some]).tolist()]
        chosen = last
        if drawn >= FEWEST_CHOOSING:
            kinds, ridges = self.kinds[-2:], [ridge * self.size for ridge in RIDGES]
            by_fold = [{kind: training.ridge(kind, ridges, without=k) for kind in kinds} for k in range(FOLDS)]
            scores = [self._compare(terms, Y, by_fold[k]) for k, terms, Y in tests]
            chosen = self.decide(np.concatenate(scores, axis=2))
        ridges = [chosen.ridge * self.size]
        (mean, offset, coef), *_ = training.ridge(PLAIN if chosen.kind == PLAIN else TEXTS, ridges)
        plain = training.ridge(PLAIN, ridges)[0].coef if chosen.kind == GATED else None
        return replace(chosen, feature_mean=mean, residual_mean=offset, coef=coef, plain_coef=plain)

    def _fit_kernel(self, rows: Iterable[Known], step: int, lists: tuple[int, int] | None) -> Correction:
        """Fit the kernel ridge regression on every ``step``-th row, and on the pairs of the first map if it is one."""
        kept = [
            (
                *self.terms(X[::step], PLAIN, None, None if base is None else base[::step])[::3],
                Y[::step],
                random[::step],
            )
            for X, Y, _, random, base in rows
        ]
        X, base, Y, random = map(np.concatenate, zip(*kept, strict=True))
        if own := isinstance(self._mapping, KernelMap):
            pairs = self._mapping.pairs()
            X, Y = np.vstack([pairs[0], X]), np.vstack([pairs[1], Y])
            random = np.append(np.zeros(len(pairs[0]), bool), random)
        mean = Y.mean(axis=0)
        start, axes = np.zeros_like(Y) if own else base - mean, mean[None] / max(float(np.linalg.norm(mean)), 1e-12)
        fit = KernelRidge.fit(X, Y - mean - start, start=start, axes=axes)
        drawn, factor = random[fit.rows], 1.0
        if lists is not None and np.count_nonzero(drawn) >= FEWEST_CHOOSING:
            some = fit.rows[drawn]
            ours = np.asarray(on_cone(fit.left_out[drawn] + start[some], mean))
            # Halfway: with all of it, searches for one row lose more than lists gain.
            factor = min(1.0, (1 + balance(Y[some], ours, mean, *lists)) / 2)
        part = KernelPart(fit.regression, mean, unused(Y, mean), not own, factor)
        evidence = f"cosine {fit.cosine:.3f} of {len(drawn)} left-out rows, without their mean"
        return Correction(KERNEL, fit.regression.ridge, kernel=part, evidence=evidence)

    def terms(self, rows: np.ndarray, kind: str, gate: Gate | None, base: np.ndarray | None = None) -> MapTerms:
        """Return the terms of a map for some rows, in float64; ``base`` replaces the rows mapped by the first map."""
        rows = rows.astype(np.float64)
        start = np.asarray(self.mapping.transform(rows)) if base is None else base
        if kind == PLAIN or self.texts is None:
            return MapTerms(rows, None, None, start)
        scores = self.texts.scores(normalize_rows(rows, dtype=np.float64))
        known = gate(scores) if kind == GATED and gate is not None else None
        return MapTerms(rows, self.texts.mix(scores), known, start)

    def _compare(self, terms: MapTerms, Y: np.ndarray, solved: Mapping[str, list[Solved]]) -> np.ndarray:
        """Return overlap of nearest texts and cosine, shape (kinds, penalties, rows, 2)."""
        out = np.empty((len(self.kinds), len(RIDGES), len(Y), 2))
        for a, kind in enumerate(self.kinds):
            for r in range(len(RIDGES)):
                mapped = terms.mapped(kind, {name: regressions[r] for name, regressions in solved.items()})
                out[a, r, :, :] = np.einsum("ij,ij->i", mapped, Y)[:, None]
                if self.texts is not None:
                    out[a, r, :, 0] = overlap(mapped, Y, self.texts.new, NEIGHBORS)
        return out

    def decide(self, table: np.ndarray) -> Correction:
        """Return the best kind and penalty, not fitted yet, by overlap and cosine, (kinds, penalties, rows, 2)."""
        criterion = 0 if self.gate is None else 1
        penalty = [_leader(scores, 1.0) for scores in table[..., 0]]
        # Another kind must be clearly better than the first one, because a few random rows can mislead.
        a = _leader(np.stack([scores[r, :, criterion] for scores, r in zip(table, penalty, strict=True)]), 3.0)
        words = "overlap of nearest texts" if self.texts is not None else "cosine"
        gate = self.gate if self.kinds[a] == GATED else None
        evidence = f"{words} of {table.shape[2]} random rows, {FOLDS} folds"
        return Correction(self.kinds[a], RIDGES[penalty[a]], gate, evidence=evidence)


def unused(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return a direction (d,) off the mean in which rows (n, d) hardly vary, by inverse iteration."""
    centered = without(rows - mean, mean)
    gram = centered.T @ centered
    gram[np.diag_indices(len(gram))] += 1e-6 * max(float(np.trace(gram)), 1e-12)
    out = np.random.default_rng(0).standard_normal((len(gram), 1))
    for _ in range(2):
        out = without(np.linalg.solve(gram, out).T, mean).T
        out /= np.linalg.norm(out)
    return np.asarray(out[:, 0])


def balance(native: np.ndarray, mapped: np.ndarray, mean: np.ndarray, n: int, k: int) -> float:
    """Return the factor of mapped rows' part off the mean with which native rows win as often as their share.

    Of random rows (m, d), in both forms, as many are then among the first k of n rows for each other's native form.
    """
    m = len(native)
    rank, scores, rest = max(1, round(k * (m - 1) / n)), native @ native.T, without(mapped, mean)
    np.fill_diagonal(scores, -np.inf)
    least = np.partition(scores, m - rank, axis=1)[:, m - rank, None]
    off, needed = native @ rest.T, least - native @ (mapped - rest).T
    np.fill_diagonal(off, 0.0)
    factors = np.divide(needed, off, out=np.full_like(off, np.inf), where=off > 1e-9)
    return float(np.partition(factors.ravel(), m * rank - 1)[m * rank - 1])


def _leader(table: np.ndarray, errors: float) -> int:
    """Return the row of best mean, of (rows, items), if it leads the first by so many standard errors, else 0."""
    ahead = table - table[0]
    mean, error = ahead.mean(axis=1), ahead.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int(np.argmax(np.where(mean > errors * error, mean, 0.0)))


class Training:
    """The rows of a regression, by fold: as they are if they are fewer than their features, else as sums.

    A row is z = [1, features, residuals], and its fold's sum is that of its outer products. With texts, features are
    [x, t(x)] and residuals y − b(x). The map without texts has features x and residuals y − b(x) + t(x), which follow
    by addition, so one set serves all kinds of map.
    """

    def __init__(self, n: int, kind: str) -> None:
        self._n, self._kind, self._d, self._p = n, kind, 0, 0
        self._folds: list[list[np.ndarray]] = [[] for _ in range(FOLDS + 1)]  # the last is in all training sets
        self._counts = np.zeros(FOLDS + 1)

    def add(self, terms: MapTerms, Y: np.ndarray, weights: np.ndarray, fold: np.ndarray) -> None:
        """Add rows, (b,), of these folds, with their new vectors, (b, d_new)."""
        features = terms.features(self._kind)
        self._d, self._p = terms.rows.shape[1], features.shape[1]
        z = np.hstack([np.ones((len(Y), 1)), features, Y - terms.start(self._kind)])
        for k in np.unique(fold).tolist():
            rows, w = z[fold == k], weights[fold == k][:, None]
            self._counts[k] += len(rows)
            if self._n < self._p:
                self._folds[k].append(np.hstack([w, rows]))
            else:
                self._folds[k] = [sum(self._folds[k], (w * rows[:, : 1 + self._p]).T @ rows)]

    def ridge(self, kind: str, ridges: list[float], without: int = -1) -> list[Solved]:
        """Return the weighted ridge regression of a kind for each penalty, without the rows of one fold."""
        kept = [k for k, fold in enumerate(self._folds) if fold and k != without]
        d, p = self._d, self._d if kind == PLAIN else self._p

        def columns(table: np.ndarray) -> np.ndarray:
            if p == self._p:
                return table
            return np.hstack([table[:, : 1 + d], table[:, 1 + self._p :] + table[:, 1 + d : 1 + self._p]])

        if self._n < self._p:
            table = np.concatenate([rows for k in kept for rows in self._folds[k]])
            weights, z = table[:, 0] / table[:, 0].mean(), columns(table[:, 1:])
            mean = np.average(z[:, 1:], axis=0, weights=weights)
            centered = (z[:, 1:] - mean) * np.sqrt(weights)[:, None]
            A, E = centered[:, :p], centered[:, p:]
            gram, right = (A @ A.T, E) if len(A) < p else (A.T @ A, A.T @ E)
        else:
            sums = columns(np.sum([self._folds[k][0] for k in kept], axis=0))[: 1 + p]
            mean = sums[0, 1:] / sums[0, 0]
            centered = sums[1:, 1:] - np.outer(sums[0, 1 : 1 + p], mean)
            centered *= self._counts[kept].sum() / sums[0, 0]  # as if the mean weight were 1
            A, gram, right = None, centered[:, :p], centered[:, p:]
        values, vectors = np.linalg.eigh(gram)
        values, rotated = np.maximum(values, 0.0), vectors.T @ right
        solved = [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]
        if A is not None and len(A) < p:
            solved = [A.T @ coef for coef in solved]
        return [Solved(mean[:p], mean[p:], coef) for coef in solved]
