"""The map of a progressive migration: a first map, mixtures of texts from the old model, and a correction fitted on re-embedded rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence.maps import Map
from congruence.upgrade.progressive._correction import GATED, PLAIN, TEXTS, Correction, Parts, Solved, transform_parts
from congruence.upgrade.progressive.texts import Gate, Texts, nearest_texts, overlap, unit

__all__ = ["FEWEST", "FEWEST_CHOOSING", "FOLDS", "RIDGES", "Correction", "Refit"]

#: Ridge penalties to choose from, as multiples of the old rows' mean squared norm; the first is used if there are too few rows to compare them.
RIDGES = (3.0, 1.0, 10.0, 30.0, 100.0)

#: Minimum number of re-embedded rows to fit a correction, and minimum number of random rows to choose its kind and penalty.
FEWEST = 4
FEWEST_CHOOSING = 12

#: Minimum share of rows whose own text is known, for an order by texts to be the default. Texts say little about the other rows.
FEWEST_KNOWN = 0.8

#: Folds of the cross-validation that chooses kind and penalty.
FOLDS = 4

#: Number of nearest texts that are compared.
NEIGHBORS = 10


class Refit:
    """The first map, corrected with re-embedded rows.

    Parameters
    ----------
    mapping : Map or None
        From the old model to the new one, as used for the store's modality; None if every call passes ``mapped``.
    texts : Texts or None
    size : float
        Mean squared norm of the store's old rows.
    gate : Gate, optional
        Probability that rows have their own text among ``texts``; if omitted, all rows are assumed to have one.

    Notes
    -----
    With f the first map and t(x) the new model's texts weighted by a softmax over the old model's scores of x (a mixture of texts, after the kernel
    regression of Nadaraya 1964 and Watson 1964), the base is b(x) = f(x) + t(x). On re-embedded rows the ridge regression of y − b(x) on
    [x, t(x)] is added, centered by weighted means. It shrinks the map to the base and not to zero, so that a few rows change it little. If the own text of some rows may
    not be known, the map is a mixture of two experts (Jacobs et al. 1991): this map, weighted by g(x), and the same without t, weighted by 1 − g(x).

    Whether t is used, and the penalty, are chosen by cross-validation on random re-embedded rows. The criterion is the share of the new model's ten nearest texts that the map
    preserves (without texts, the cosine). The first penalty is kept unless another one is better by more than one standard error, and the first kind unless another one is better by
    more than three. With a gate, kinds are compared by the cosine, because known texts say little about rows that belong to other texts.
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
        """Return the correction before any row is re-embedded: it adds mixtures of texts, if there are any, and no regression."""
        return Correction(self.kinds[0], RIDGES[0], self.gate)

    def transform(self, rows: np.ndarray, correction: Correction, mapped: np.ndarray | None = None) -> np.ndarray:
        """Map old rows to unit rows of the new model, one block at a time.

        Parameters
        ----------
        rows : ndarray, shape (n, d_old)
        correction : Correction
        mapped : ndarray, shape (n, d_new), optional
            The rows mapped by their first map, if it is not the same for all rows, as in cross-validation.

        Returns
        -------
        ndarray of float32, shape (n, d_new)
        """
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
        """Fit the correction on re-embedded rows.

        Parameters
        ----------
        X : ndarray, shape (n, d_old)
        Y : ndarray, shape (n, d_new)
            Unit rows.
        weights : ndarray, shape (n,)
        random : ndarray of bool, shape (n,)
            Rows drawn at random, on which the kind of map and its penalty are chosen.
        last : Correction
            The previous correction. Its kind and penalty are kept unless ``choose`` is set; it is returned unchanged if there are too few rows.
        choose : bool
            Choose the kind of map and its penalty again, if there are enough random rows.
        mapped : ndarray, shape (n, d_new), optional
            As for :meth:`transform`.

        Returns
        -------
        Correction
        """
        if len(X) < FEWEST:
            return last
        parts = self.parts(X, self.kinds[0], self.gate, mapped)
        kind = last
        if choose and np.count_nonzero(random) >= FEWEST_CHOOSING:
            kind = self._choose(parts, Y, weights, random)
        regressions = (TEXTS, PLAIN) if kind.kind == GATED else (kind.kind,)
        return self.correction(kind, self._solve(parts, Y, weights, regressions, [kind.ridge * self.size])[0])

    def correction(self, chosen: Correction, solved: Mapping[str, Solved]) -> Correction:
        """Return the chosen map, fitted."""
        mean, offset, coef = solved[PLAIN if chosen.kind == PLAIN else TEXTS]
        plain = solved[PLAIN].coef if chosen.kind == GATED else None
        return replace(chosen, feature_mean=mean, residual_mean=offset, coef=coef, plain_coef=plain)

    def parts(self, rows: np.ndarray, kind: str, gate: Gate | None, base: np.ndarray | None = None) -> Parts:
        """Return the terms of a kind of map for some rows, in float64; ``base`` replaces the rows mapped by the first map."""
        rows = rows.astype(np.float64)
        start = np.asarray(self.mapping.transform(rows)) if base is None else base
        if kind == PLAIN or self.texts is None:
            return Parts(rows, None, None, start)
        scores = self.texts.scores(unit(rows))
        return Parts(rows, self.texts.mix(scores), gate(scores) if kind == GATED and gate is not None else None, start)

    def _solve(
        self, parts: Parts, Y: np.ndarray, weights: np.ndarray, regressions: tuple[str, ...], ridges: list[float]
    ) -> list[dict[str, Solved]]:
        """Return the fitted regressions by kind, for each penalty."""
        out: list[dict[str, Solved]] = [{} for _ in ridges]
        for kind in regressions:
            features, residuals = parts.features(kind), Y - parts.start(kind)
            mean, offset, coefs = _ridge(features, residuals, weights, ridges)
            for solved, coef in zip(out, coefs, strict=True):
                solved[kind] = Solved(mean, offset, coef)
        return out

    def _choose(self, parts: Parts, Y: np.ndarray, weights: np.ndarray, random: np.ndarray) -> Correction:
        """Choose the kind of map and its penalty by cross-validation on random rows."""
        fold = np.full(len(Y), -1)
        fold[random] = np.arange(np.count_nonzero(random)) % FOLDS  # these rows are already in random order
        kept = np.zeros((len(self.kinds), len(RIDGES), len(Y), 2))
        ridges = [ridge * self.size for ridge in RIDGES]
        for k in range(FOLDS):
            test, train = fold == k, fold != k
            solved = self._solve(parts.take(train), Y[train], weights[train], self.kinds[-2:], ridges)
            kept[:, :, test] = self.compare(parts.take(test), Y[test], solved)
        return self.decide(kept[:, :, random])

    def compare(self, parts: Parts, Y: np.ndarray, solved: list[dict[str, Solved]]) -> np.ndarray:
        """Return by kind of map, penalty and row the share of nearest texts preserved and the cosine, shape (kinds, penalties, rows, 2)."""
        out = np.empty((len(self.kinds), len(solved), len(Y), 2))
        for a, kind in enumerate(self.kinds):
            for r, regressions in enumerate(solved):
                mapped = normalize_rows(transform_parts(parts, kind, regressions))
                out[a, r, :, 1] = np.einsum("ij,ij->i", mapped, Y)
                out[a, r, :, 0] = out[a, r, :, 1] if self.texts is None else self._kept(mapped, Y)
        return out

    def decide(self, table: np.ndarray) -> Correction:
        """Return the best kind of map and penalty, not fitted yet, from the results of :meth:`compare`, shape (kinds, penalties, rows, 2)."""
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

    def _kept(self, mapped: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """Return for each row the share of its nearest texts that mapping preserves."""
        assert self.texts is not None
        k = min(NEIGHBORS, len(self.texts))
        return overlap(*(nearest_texts(rows @ self.texts.new.T, k) for rows in (mapped, Y)))


def _leader(table: np.ndarray, errors: float) -> int:
    """Return the index of the row with the best mean, shape (rows, items), if it exceeds the first by more than this many standard errors, else 0."""
    ahead = table - table[0]
    mean, error = ahead.mean(axis=1), ahead.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int(np.argmax(np.where(mean > errors * error, mean, 0.0)))


def _ridge(
    features: np.ndarray, residuals: np.ndarray, weights: np.ndarray, ridges: list[float]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the means of features and residuals, and the coefficients for each penalty; the smaller Gram matrix is decomposed once."""
    weights = weights / weights.mean()
    mean, offset = np.average(features, axis=0, weights=weights), np.average(residuals, axis=0, weights=weights)
    root = np.sqrt(weights)[:, None]
    A, E = (features - mean) * root, (residuals - offset) * root
    n, p = A.shape
    values, vectors = np.linalg.eigh(A @ A.T if n < p else A.T @ A)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ (E if n < p else A.T @ E)
    solved = [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]
    return mean, offset, [A.T @ coef for coef in solved] if n < p else solved
