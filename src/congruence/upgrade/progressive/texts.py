"""Scores of rows against texts in both models: nearest texts, mixtures of texts, and whether they are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, softmax

from congruence._utils.arrays import blocks, normalize_rows
from congruence.metrics.search import neighbor_overlap

#: Standardized scores are multiplied by this before the softmax. Chosen among 3, 5 and 8 on the emoji sample and three
#: splits of Caltech-101.
SHARPNESS = 5.0

SAMPLE = 4096  # largest number of rows on which the distribution of scores is measured

#: Two kinds of rows are told apart only if their mean scores differ by more than this many standard deviations: up to
#: there, an equal mixture of two normal distributions of one variance has only one mode.
_APART = 2.0

#: How far the gate's midpoint lies above the score of equal odds, as a share of the distance between the means: a row
#: pulled to a wrong text is no longer found by its own, and a row without texts is still mapped. Chosen among 0, .125,
#: .25 and .375 on split 0 of Caltech-101.
_CAUTION = 0.25


@dataclass(frozen=True)
class Scale:
    """Mean score of each text over rows, which a text near every row has high, and the spread about the means."""

    mean: np.ndarray
    spread: float

    @classmethod
    def of(cls, rows: np.ndarray, texts: np.ndarray) -> Scale:
        """Return the scale of unit rows, shape (n, d), and unit texts, shape (m, d)."""
        mean = texts @ rows.mean(axis=0, dtype=np.float64)
        spread = float(np.sqrt(np.mean(np.square(_some(rows) @ texts.T - mean))))
        return cls(mean, spread or 1.0)

    def scores(self, rows: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Return standardized scores, shape (n, m)."""
        return np.asarray((rows @ texts.T - self.mean) / self.spread)


@dataclass(frozen=True)
class Gate:
    """Probability that a row's own text is among the known ones: a logistic function of its best score.

    Otherwise the best score belongs to another text; the mean of such scores is that of second-best scores. Best
    scores are a mixture of both kinds: two normal distributions of equal variance, fitted by
    expectation-maximization with the mean of the others fixed.
    """

    slope: float
    level: float  # midpoint
    share: float  # of all rows that have their own text among the known ones

    @classmethod
    def fit(cls, rows: np.ndarray, texts: Texts) -> Gate | None:
        """Fit on unit rows, shape (n, d); None if the two kinds of rows cannot be distinguished."""
        some = _some(rows)
        if len(texts) < 3 or len(some) < 3:
            return None
        second, first = np.partition(texts.scores(some), len(texts) - 2, axis=1)[:, -2:].T
        other, variance = float(second.mean()), float(second.var())
        own, share, before = float(np.percentile(first, 75)), 0.5, np.inf
        for _ in range(200):
            if not (own > other and variance > 0 and 0 < share < 1):
                return None
            slope = (own - other) / variance
            level = (own + other) / 2 - np.log(share / (1 - share)) / slope
            if abs(share - before) < 1e-6:
                break
            known = expit(slope * (first - level))
            before, share = share, float(known.mean())
            own = float(known @ first / known.sum())
            variance = float(np.mean(known * (first - own) ** 2 + (1 - known) * (first - other) ** 2))
        if own - other <= _APART * np.sqrt(variance):
            return None
        return cls(float(slope), float(level + _CAUTION * (own - other)), share)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return weights of the texts between 0 and 1, shape (n, 1), from standardized scores, shape (n, m)."""
        return np.asarray(expit(self.slope * (scores.max(axis=1, keepdims=True) - self.level)))


@dataclass(frozen=True)
class TextFacts:
    """Facts computed from the scores of one model."""

    nearest: np.ndarray  # (n,), number of the nearest text
    margin: np.ndarray  # (n,), lead of the nearest text over the second
    entropy: np.ndarray  # (n,), of the softmax over texts, in nats

    @classmethod
    def of(cls, rows: np.ndarray, texts: np.ndarray, scale: Scale) -> TextFacts:
        """Compute facts from the scores of unit rows (n, d) and texts (m, d), one block at a time."""
        n, m = len(rows), len(texts)
        nearest, margin, entropy = np.empty(n, np.int32), np.zeros(n, np.float32), np.empty(n, np.float32)
        for part in blocks(n, 8 * (3 * m + 4 * rows.shape[1])):
            scores = scale.scores(rows[part], texts)
            nearest[part] = scores.argmax(axis=1)
            if m > 1:
                margin[part] = np.ptp(np.partition(scores, m - 2, axis=1)[:, m - 2 :], axis=1)
            share = softmax(SHARPNESS * scores, axis=1)
            entropy[part] = -np.einsum("ij,ij->i", share, np.log(np.maximum(share, 1e-300)))
        return cls(nearest, margin, entropy)


@dataclass(frozen=True)
class Texts:
    """The same texts in both models, unit rows."""

    old: np.ndarray  # (m, d_old)
    new: np.ndarray  # (m, d_new)
    scale: Scale  # of the store's rows in the old model

    @classmethod
    def of(cls, old: np.ndarray, new: np.ndarray, store: np.ndarray | Scale) -> Texts:
        """Normalize the texts; ``store``: unit rows of the old model, or their scale."""
        old, new = normalize_rows(old, dtype=np.float64), normalize_rows(new, dtype=np.float64)
        return cls(old, new, store if isinstance(store, Scale) else Scale.of(store, old))

    def __len__(self) -> int:
        return len(self.old)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return standardized scores of unit rows by the old model, shape (n, m)."""
        return self.scale.scores(rows, self.old)

    def mix(self, scores: np.ndarray) -> np.ndarray:
        """Return mixtures of the new model's texts, (n, d_new), from standardized scores, (n, m)."""
        return np.asarray(softmax(SHARPNESS * scores, axis=1) @ (self.new - self.new.mean(axis=0)))

    def facts(self, old: np.ndarray, mapped: np.ndarray) -> tuple[TextFacts, TextFacts]:
        """Return the facts about unit rows of the old model, (n, d_old), and about mapped ones, (n, d_new)."""
        return TextFacts.of(old, self.old, self.scale), TextFacts.of(mapped, self.new, Scale.of(mapped, self.new))


def overlap(ours: np.ndarray, theirs: np.ndarray, texts: np.ndarray, k: int) -> np.ndarray:
    """Return the share of each row's ``k`` nearest texts (m, d) that are the same in two tables of rows (n, d)."""
    if not len(ours):
        return np.empty(0)
    return neighbor_overlap((ours, texts), (theirs, texts), min(k, len(texts)), "inner")


def _some(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows[:: -(-len(rows) // SAMPLE)])
