"""Detect whether an encoder has changed, from canaries that are encoded again, or from a stream of unpaired vectors."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE, blocks, normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_positive, check_seed, check_width
from congruence.embeddings import Pairs, as_embeddings, as_pair
from congruence.errors import InputError, ParameterError
from congruence.linalg.shrinkage import ledoit_wolf

if TYPE_CHECKING:
    from congruence._utils.typing import RowsLike


#: Largest number of canaries for which all pairwise angles are compared.
_MOST_ANGLES = 1000

#: Minimum number of reference rows: half of them model the encoder, the other half show how far its vectors usually are
#: from that model.
_FEWEST = 40

#: Exponents ε of the bets ε p^(ε−1): small ones gain quickly on large changes, large ones eventually gain on small
#: changes.
_EXPONENTS = (0.2, 0.5, 0.8)


@dataclass(frozen=True)
class CanaryReport(PlainData):
    """Comparison of two encodings of the same ``n`` items (canaries).

    - ``changed``: Whether a canary moved by more than the tolerance.
    - ``kind``: What explains the change: "none"; "norms", if only these changed; "rotation", if the cosines between
      canaries are the same (up to a tenth of the tolerance), so that a map can undo the change; else "model".
    - ``moved``: Share of the canaries that moved by more than the tolerance.
    - ``largest``, ``median``: Largest and median distance ‖new − old‖ / ‖old‖.
    - ``angles``: Largest change of a cosine between two canaries; NaN if there is none.
    """

    n: int
    changed: bool
    kind: str
    moved: float
    largest: float
    median: float
    angles: float


def compare_canaries(reference: RowsLike, current: RowsLike, *, tolerance: float = 0.01) -> CanaryReport:
    """Compare two encodings of the same items, paired by id if both have ids, else by position.

    ``tolerance`` is a relative distance that is not exceeded if the encoder has not changed. Rounding to float16 moves
    a vector by about 0.0003. A service that batches requests or quantizes may move it further; encode the canaries
    twice in a row to find out by how much.
    """
    check_positive(tolerance, "tolerance")
    pairs = Pairs.join(*as_pair(reference, current, ("reference", "current")))
    X, Y = (side.astype(np.float64) for side in pairs)
    if X.shape[1] != Y.shape[1]:
        return CanaryReport(len(X), True, "model", 1.0, math.inf, math.inf, math.nan)
    distance = np.linalg.norm(Y - X, axis=1) / np.linalg.norm(X, axis=1)
    U, W = normalize_rows(X), normalize_rows(Y)
    sample = np.unique(np.linspace(0, len(X) - 1, min(len(X), _MOST_ANGLES)).astype(int))
    angles = np.abs(U[sample] @ U[sample].T - W[sample] @ W[sample].T).max() if len(sample) > 1 else math.nan
    changed = bool((distance > tolerance).any())
    kind = "none"
    if changed:
        rotated = np.linalg.norm(W - U, axis=1).max() > tolerance
        kind = "norms" if not rotated else "rotation" if angles <= tolerance / 10 else "model"
    largest, median = float(distance.max()), float(np.median(distance))
    moved = float((distance > tolerance).mean())
    return CanaryReport(len(X), changed, kind, moved, largest, median, float(angles))


@dataclass(frozen=True)
class DriftReport(PlainData):
    """Evidence from a stream so far.

    - ``n``, ``alarm_at``: Number of vectors seen, and at which of them the evidence reached ``threshold`` first.
    - ``evidence``: Natural logarithm of the current evidence against "the stream is like the reference"; initially 0.
    - ``by_score``: The same for each score separately: ``norm``, ``mean`` (cosine with the reference's mean) and
      ``spread`` (Mahalanobis distance).
    - ``threshold``: log(1 / alpha).
    """

    n: int
    alarm: bool
    alarm_at: int | None
    evidence: float
    by_score: dict[str, float]
    threshold: float


class DriftMonitor:
    """Monitor a stream of a model's vectors for a change, with a bound on false alarms over the whole stream.

    Parameters
    ----------
    alpha : float, default=0.001
        Probability that a stream without any change ever raises an alarm, however long it is and however often it is
        checked.
    random_state : int, default=0
        Determines which half of the reference models the encoder, and breaks ties.

    Notes
    -----
    The ranks of each vector's scores among the vectors so far give p-values, which are independent and uniform as long
    as the stream is exchangeable with the reference. Bets on them multiply to a martingale, which by Ville's inequality
    exceeds 1 / alpha with probability at most alpha (docs/reference/monitoring.md).

    Different content (another topic, language or camera) is also a change, and no unpaired test can distinguish the
    two. ``compare_canaries`` can.

    Source: Vovk, Gammerman and Shafer (2022), "Algorithmic Learning in a Random World", chapter 8 (conformal test
    martingales). Shin, Ramdas and Rinaldo (2024), "E-detectors: a nonparametric framework for sequential change
    detection".

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.compare.drift import DriftMonitor
    >>> rows = np.random.default_rng(0).standard_normal((600, 8)) + 1
    >>> monitor = DriftMonitor().fit(rows[:300])
    >>> monitor.update(rows[300:]).alarm, monitor.update(-rows[:100]).alarm
    (False, True)
    """

    n_features_in_: int
    n_seen_: int

    def __init__(self, alpha: float = 0.001, random_state: int = 0) -> None:
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, reference: RowsLike) -> Self:
        """Fit on at least 40 vectors (n, d) of the unchanged encoder, with content like that of the stream, and start a
        new stream. With n rows no p-value is below 2 / n, so 1,000 or more detect a change sooner.
        """
        if not check_positive(self.alpha, "alpha") < 1:
            raise ParameterError(
                f"Got `alpha={self.alpha}`; expected a probability.", "Pass `alpha=0.001`, for example."
            )
        check_seed(self.random_state)
        X = as_embeddings(reference, "reference").vectors
        if len(X) < _FEWEST:
            raise InputError(f"Got {len(X)} reference rows; expected at least {_FEWEST}.", "Pass more rows.")
        self._rng = np.random.default_rng(self.random_state)
        order = self._rng.permutation(len(X))
        model_rows, score_rows = X[np.sort(order[::2])], X[np.sort(order[1::2])]
        unit = normalize_rows(model_rows.astype(np.float64))
        self.n_features_in_ = X.shape[1]
        self._mean = unit.mean(axis=0)
        self._root = np.linalg.cholesky(np.linalg.inv(ledoit_wolf(unit)))
        self._seen = [sorted(column) for column in self._scores(score_rows).T.tolist()]
        self.n_seen_ = 0
        self._alarm_at: int | None = None
        self._log_wealth = np.full((len(self._seen), 2, len(_EXPONENTS)), -math.inf)
        return self

    def update(self, rows: RowsLike) -> DriftReport:
        """Process further vectors (m, d) of the stream, in order; return the evidence since ``fit``."""
        if not hasattr(self, "n_seen_"):
            raise ParameterError("Got a DriftMonitor without a reference.", "Call fit(reference) first.")
        X = as_embeddings(rows, "rows").vectors
        check_width(X.shape[1], self.n_features_in_, "DriftMonitor")
        epsilon = np.array(_EXPONENTS)
        for part in blocks(len(X), 24 * X.shape[1]):
            scores = self._scores(X[part])
            for row, uniform in zip(scores.tolist(), self._rng.random(scores.shape).tolist(), strict=True):
                self.n_seen_ += 1
                p_values = [_p_value(seen, score, u) for seen, score, u in zip(self._seen, row, uniform, strict=True)]
                tails = np.log([[p, 1 - p] for p in p_values])[:, :, None]
                begin = -math.log(self.n_seen_ * (self.n_seen_ + 1))
                self._log_wealth = np.logaddexp(self._log_wealth, begin) + np.log(epsilon) + (epsilon - 1) * tails
                if self._alarm_at is None and self._evidence(self._log_wealth) >= -math.log(self.alpha):
                    self._alarm_at = self.n_seen_
        names = ("norm", "mean", "spread")
        by_score = {name: self._evidence(wealth) for name, wealth in zip(names, self._log_wealth, strict=True)}
        evidence, at = self._evidence(self._log_wealth), self._alarm_at
        return DriftReport(self.n_seen_, at is not None, at, evidence, by_score, -math.log(self.alpha))

    def _evidence(self, log_wealth: np.ndarray) -> float:
        """Return the logarithm of the mean over bets, including the share reserved for bets that start later."""
        mean = np.logaddexp.reduce(log_wealth, axis=None) - math.log(log_wealth.size)
        return float(np.logaddexp(mean, -math.log(self.n_seen_ + 1)))

    def _scores(self, X: np.ndarray) -> np.ndarray:
        """Return the three scores of each row, shape (b, 3)."""
        rows = X.astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        unit = rows / norms[:, None]
        mean = unit @ (self._mean / np.linalg.norm(self._mean))
        spread = np.square((unit - self._mean) @ self._root).sum(axis=1)
        # Unit rows in another precision are still unit rows: norms that differ by less than the tolerance are ties.
        return np.column_stack([np.round(np.log(norms) / UNIT_TOLERANCE), mean, spread])


def _p_value(seen: list[float], score: float, uniform: float) -> float:
    """Return the randomized rank of a score among those seen, and insert it; uniform if they are exchangeable."""
    low, high = bisect_left(seen, score), bisect_right(seen, score)
    insort(seen, score)
    p = (len(seen) - 1 - high + uniform * (high - low + 1)) / len(seen)
    return min(max(p, 1e-12), 1 - 1e-12)
