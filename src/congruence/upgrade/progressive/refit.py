"""The map of a progressive migration: a first map, the texts the old model names, and what re-embedded rows teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence.maps import Map
from congruence.upgrade.progressive.texts import Texts, nearest_texts, overlap, unit

__all__ = ["FEWEST", "RIDGES", "Correction", "Refit"]

#: Penalties tried, as multiples of the old rows' mean squared norm; the first is taken where there are too few rows to compare them.
RIDGES = (3.0, 1.0, 10.0, 30.0, 100.0)

#: Fewest re-embedded rows that a correction is fitted on, and fewest random rows that choose it.
FEWEST = 4
FEWEST_CHOOSING = 12

#: Folds of the choice, and the nearest texts that are compared.
FOLDS, NEIGHBORS = 4, 10


@dataclass(frozen=True)
class Correction:
    """A map by what it adds to the first one.

    Attributes
    ----------
    anchored : bool
        The texts that the old model finds near are added, and are features.
    ridge : float
        Multiple of the rows' mean squared norm.
    feature_mean : ndarray, shape (p,), or None
        None where nothing was fitted yet.
    residual_mean : ndarray, shape (d_new,), or None
    coef : ndarray, shape (p, d_new), or None
    evidence : str
        How it was chosen.
    """

    anchored: bool
    ridge: float
    feature_mean: np.ndarray | None = None
    residual_mean: np.ndarray | None = None
    coef: np.ndarray | None = None
    evidence: str = "too few re-embedded rows to choose by"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays, for saving; none before a fit."""
        if self.feature_mean is None or self.residual_mean is None or self.coef is None:
            return {}
        return {"feature_mean": self.feature_mean, "residual_mean": self.residual_mean, "coef": self.coef}

    def facts(self) -> dict[str, Any]:
        """Return the rest as plain data."""
        return {"anchored": self.anchored, "ridge": self.ridge, "evidence": self.evidence}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Correction:
        """Rebuild a correction from :meth:`arrays` and :meth:`facts`."""
        return cls(
            bool(facts["anchored"]),
            float(facts["ridge"]),
            arrays.get("feature_mean"),
            arrays.get("residual_mean"),
            arrays.get("coef"),
            str(facts["evidence"]),
        )


class Refit:
    """The first map, corrected by re-embedded rows.

    Parameters
    ----------
    mapping : Map or None
        From the old model to the new one, as used for the store's modality; None where every call is given ``mapped``.
    texts : Texts or None
    size : float
        Mean squared norm of the store's old rows.

    Notes
    -----
    With f the first map and t(x) the new model's texts weighted by a softmax over the old model's scores of x (a mixture of texts, after the kernel
    regression of Nadaraya 1964 and Watson 1964), the base is b(x) = f(x) + t(x). On re-embedded rows the ridge regression of y − b(x) on
    [x, t(x)] is added, centered by weighted means: it shrinks to the base and not to zero, so that few rows change it little. Whether t is
    used, and the penalty, are chosen by how many of the new model's ten nearest texts are kept (without texts, by the cosine) on random re-embedded rows
    that each fold leaves out; the first choice stays unless another penalty is better by more than a standard error, and t unless leaving it out is by three.
    """

    def __init__(self, mapping: Map | None, texts: Texts | None, size: float) -> None:
        self._mapping, self.texts, self.size = mapping, texts, size

    @property
    def mapping(self) -> Map:
        """The first map."""
        assert self._mapping is not None
        return self._mapping

    def first(self) -> Correction:
        """Return the correction before any row was re-embedded: texts alone."""
        return Correction(self.texts is not None, RIDGES[0])

    def transform(self, rows: np.ndarray, correction: Correction, mapped: np.ndarray | None = None) -> np.ndarray:
        """Map old rows to unit rows of the new model, a block at a time.

        Parameters
        ----------
        rows : ndarray, shape (n, d_old)
        correction : Correction
        mapped : ndarray, shape (n, d_new), optional
            The rows as their first map gives them, where it is not one map for all: in cross-validation.

        Returns
        -------
        ndarray of float32, shape (n, d_new)
        """
        out = np.empty((len(rows), self.mapping.d_target if mapped is None else mapped.shape[1]), np.float32)
        width = 8 * (2 * rows.shape[1] + 3 * out.shape[1] + (2 * len(self.texts) if self.texts is not None else 0))
        for part in blocks(len(rows), width):
            features, base = self._features(rows[part], correction.anchored, None if mapped is None else mapped[part])
            if correction.coef is not None:
                base = base + (features - correction.feature_mean) @ correction.coef + correction.residual_mean
            out[part] = normalize_rows(base)
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
            Rows drawn at random, by which the kind of map and its penalty are chosen.
        last : Correction
            Whose kind and penalty stay unless ``choose``.
        choose : bool
        mapped : ndarray, shape (n, d_new), optional
            As for :meth:`transform`.

        Returns
        -------
        Correction
        """
        if len(X) < FEWEST:
            return last
        kind = last
        if choose and np.count_nonzero(random) >= FEWEST_CHOOSING:
            kind = self._choose(X, Y, weights, random, mapped)
        features, base = self._features(X, kind.anchored, mapped)
        mean, offset, coefs = _ridge(features, Y - base, weights, [kind.ridge * self.size])
        return Correction(kind.anchored, kind.ridge, mean, offset, coefs[0], kind.evidence)

    def _features(
        self, rows: np.ndarray, anchored: bool, mapped: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what is regressed on, shape (n, p), and the base, shape (n, d_new), in float64."""
        rows = rows.astype(np.float64)
        base = np.asarray(self.mapping.transform(rows) if mapped is None else mapped)
        if not anchored or self.texts is None:
            return rows, base
        mixed = self.texts.mixtures(unit(rows))
        return np.hstack([rows, mixed]), base + mixed

    def _choose(
        self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray, random: np.ndarray, mapped: np.ndarray | None
    ) -> Correction:
        fold = np.full(len(X), -1)
        fold[random] = np.arange(np.count_nonzero(random)) % FOLDS  # rows come in random order already
        kinds = (True, False) if self.texts is not None else (False,)
        kept = np.zeros((len(kinds), len(RIDGES), len(X)))
        for a, anchored in enumerate(kinds):
            features, base = self._features(X, anchored, mapped)
            for k in range(FOLDS):
                test, train = fold == k, fold != k
                mean, offset, coefs = _ridge(
                    features[train], (Y - base)[train], weights[train], [ridge * self.size for ridge in RIDGES]
                )
                for r, coef in enumerate(coefs):
                    moved = base[test] + (features[test] - mean) @ coef + offset
                    kept[a, r, test] = self._kept(normalize_rows(moved), Y[test])
        return self.decide(kinds, kept[:, :, random])

    def decide(self, kinds: tuple[bool, ...], table: np.ndarray) -> Correction:
        """Return the kind of map and the penalty that keep most of random rows, shape (kinds, penalties, rows); not fitted yet."""
        a, r = 0, _leader(table[0], 1.0)
        if len(kinds) > 1:
            # Texts are given up only where that is sure: few random rows would mislead.
            other = _leader(table[1], 1.0)
            a, r = (1, other) if _leader(np.stack([table[0, r], table[1, other]]), 3.0) else (0, r)
        words = "overlap of nearest texts" if self.texts is not None else "cosine"
        return Correction(
            kinds[a],
            RIDGES[r],
            evidence=f"{words} of {table.shape[2]} random rows, {FOLDS} folds",
        )

    def _kept(self, moved: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """Return for each row what mapping keeps of it."""
        if self.texts is None:
            return np.asarray(np.einsum("ij,ij->i", moved, Y))
        k = min(NEIGHBORS, len(self.texts))
        return overlap(*(nearest_texts(rows @ self.texts.new.T, k) for rows in (moved, Y)))


def _leader(table: np.ndarray, errors: float) -> int:
    """Return the best row, shape (rows, items), if it leads the first by so many standard errors, and 0 if not."""
    ahead = table - table[0]
    mean, error = ahead.mean(axis=1), ahead.std(axis=1, ddof=1) / np.sqrt(table.shape[1])
    return int(np.argmax(np.where(mean > errors * error, mean, 0.0)))


def _ridge(
    features: np.ndarray, residuals: np.ndarray, weights: np.ndarray, ridges: list[float]
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return means of features and residuals, and the coefficients of each penalty; the smaller Gram matrix is decomposed once."""
    weights = weights / weights.mean()
    mean, offset = np.average(features, axis=0, weights=weights), np.average(residuals, axis=0, weights=weights)
    root = np.sqrt(weights)[:, None]
    A, E = (features - mean) * root, (residuals - offset) * root
    n, p = A.shape
    values, vectors = np.linalg.eigh(A @ A.T if n < p else A.T @ A)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ (E if n < p else A.T @ E)
    solved = [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]
    return mean, offset, [A.T @ one for one in solved] if n < p else solved
