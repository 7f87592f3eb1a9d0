"""The current quality of the store, estimated from random rows that neither the fit nor the order has used."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_same_rows
from congruence.errors import InputError, ShapeError


@dataclass(frozen=True)
class Estimate(PlainData):
    """An estimate and its 95 % confidence interval, from n items."""

    value: float
    low: float
    high: float
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, unless it says nothing: the value is known, or the interval has all that a score can be."""
        return None if self.low == self.high or (self.low <= 0 and self.high >= 1) else (self.low, self.high)

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "not measured"
        low, high = self.interval or (None, None)
        ends = "" if low is None else f" ({low:.3f} or more)" if high == math.inf else f" ({low:.3f} … {high:.3f})"
        return f"{self.value:.3f}{ends}"


TAIL = 0.025  # probability that the true value lies below the interval, and that it lies above

#: If fewer than FEW rows are left, and fewer than the sample has, DRAWS draws from Pólya's urn give the interval: the
#: mean of few rows takes few values.
DRAWS, FEW = 4000, 256


def rest_interval(
    values: np.ndarray,
    rest: int,
    support: tuple[float, float] = (0.0, 1.0),
    *,
    weights: np.ndarray | None = None,
    rest_weights: np.ndarray | None = None,
) -> tuple[float, float, float]:
    """Estimate the mean of ``rest`` rows, with its 95 % interval, from a random sample (m,) of the same rows.

    ``support``: minimum and maximum value of a row, which are the interval of fewer than two rows; with ``weights`` of
    the sample and of the rest, the mean is weighted.

    For values 0 and 1 without weights, the interval is hypergeometric, and exact. For others, the lower end is the
    2.5 % quantile of Σ Eᵢ wᵢ xᵢ / Σ Eᵢ wᵢ over the sample and one more row with the minimum value, where E are
    independent gamma variables, and the upper end likewise: Gaffke's bound (2005; Learned-Miller and Thomas 2019, "A
    new confidence interval for the mean of a bounded random variable"), which for values 0 and 1 is that of Clopper and
    Pearson, and for others a conjecture, confirmed in all simulations so far. The shape of E, (R − 1)/(R + m + 1) for R
    rows in the rest, gives the variance of the mean of R rows drawn from Pólya's urn, i.e. without replacement (Ghosh
    and Meeden 1997, "Bayesian methods for finite population sampling"). The additional row has weight Σ w²/Σ w: the
    mean weight of the rest if rows are drawn in proportion to their weights, as by searches.
    """
    w = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    extra = 1.0
    if rest_weights is not None and rest_weights.any():
        extra = float(np.square(rest_weights).sum() / rest_weights.sum())
    x, w = np.asarray(values, float)[w > 0], w[w > 0]
    m = len(x)
    if m < 2:
        return (float(x.mean()) if m else float("nan")), *support
    mean = float(np.average(x, weights=w))
    if weights is None and support == (0.0, 1.0) and np.isin(x, support).all():
        return mean, *_rate_of_rest(round(float(x.sum())), m, rest)
    end = _lower_end_of_few if rest < min(m, FEW) else _lower_end
    low, high = end(x, w, support[0], extra, rest), -end(-x, w, -support[1], extra, rest)
    return mean, min(low, mean), max(high, mean)


def _lower_end(values: np.ndarray, weights: np.ndarray, least: float, extra: float, rest: int) -> float:
    """Return the 2.5 % quantile of the randomly weighted mean, with a further row of value ``least``."""
    from scipy.optimize import brentq

    w = np.append(weights, extra) / extra
    over = np.append(values - least, 0.0)
    mean = float(np.average(over, weights=w))
    if not mean > 1e-12 * max(abs(least), 1.0):
        return least
    shape = (rest - 1) / (rest + len(w))

    def tail(share: float) -> float:
        return _chance_below_zero(w * (over / mean - share), shape) - TAIL

    if tail(1e-9) >= 0:  # the rest has so few rows that all may have the minimum value
        return least
    return least + mean * float(brentq(tail, 1e-9, 1.0, xtol=1e-7))


def _lower_end_of_few(values: np.ndarray, weights: np.ndarray, least: float, extra: float, rest: int) -> float:
    """Return the same for few rows in the rest: Pólya's urn is a multinomial whose shares are drawn uniformly."""
    rng = np.random.default_rng(0)
    x, w = np.append(values, least), np.append(weights, extra)
    counts = w * rng.multinomial(rest, rng.dirichlet(np.ones(len(x)), DRAWS))
    return float(np.quantile(counts @ x / counts.sum(axis=1), TAIL, method="lower"))


def _chance_below_zero(c: np.ndarray, shape: float) -> float:
    """Return P(Σ cᵢ Eᵢ ≤ 0) for gamma variables E of one shape and Σ cᵢ ≥ 0 (Lugannani and Rice 1980, saddlepoint)."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    least = float(c.min())
    if c.sum() <= 1e-12 * np.abs(c).sum():
        return 0.5

    def slope(t: float) -> float:  # multiplied by 1 − t least, so that it has no pole
        return float((c * ((1 - t * least) / (1 - t * c))).sum())

    t = float(brentq(slope, (1 - 1e-12) / least, 0.0, xtol=1e-300))  # the saddlepoint: Σ c/(1 − t c) = 0
    z = 1 - t * c
    r = -np.sqrt(max(2 * shape * float(np.log(z).sum()), 0.0))
    u = t * np.sqrt(shape * float(np.square(c / z).sum()))
    if r > -1e-4:
        return 0.5
    return float(ndtr(r) + np.exp(-r * r / 2) / np.sqrt(2 * np.pi) * (1 / r - 1 / u))


def _rate_of_rest(hits: int, m: int, rest: int) -> tuple[float, float]:
    """Return the interval of the rate of hits in the rest, by inverting the hypergeometric test."""
    from scipy.stats import hypergeom

    n, totals = m + rest, range(hits, hits + rest + 1)
    least = bisect_left(totals, True, hi=rest, key=lambda total: bool(hypergeom.sf(hits - 1, n, total, m) > TAIL))
    beyond = bisect_left(totals, True, key=lambda total: bool(hypergeom.cdf(hits, n, total, m) <= TAIL))
    return least / max(rest, 1), max(beyond - 1, 0) / max(rest, 1)


@dataclass(frozen=True)
class Reading(PlainData):
    """The quality of the whole store at one stage, by metric.

    ``"cosine"`` is that with the new model's vector; ``"agreement"`` the share of rows whose nearest text is the same
    as in the new model; ``"overlap@k"`` the share of the k nearest texts that are the same (without texts, of the k
    nearest rows among 5·k random ones, the same at all stages). With labels also ``"accuracy"`` and ``"recall@k"``:
    whether the row's own text is the nearest, or among k. With weights also ``"weighted agreement"`` and so on, by how
    often rows are asked for.
    """

    n_rows: int
    n_embedded: int
    n_meter: int  # random rows from which the quality of rows that are still mapped is estimated
    store: dict[str, Estimate] = field(default_factory=dict)  # of re-embedded and mapped rows
    mapped: dict[str, Estimate] = field(default_factory=dict)  # of rows that are still mapped
    old: dict[str, Estimate] = field(default_factory=dict)
    new: dict[str, Estimate] = field(default_factory=dict)  # accuracies of both models, with labels
    unmapped: dict[str, Estimate] = field(default_factory=dict)  # of mapped rows if left as they were, of equal widths

    @property
    def share(self) -> float:
        """Share of the rows that were re-embedded."""
        return self.n_embedded / self.n_rows

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from ``to_dict``; unknown values (NaN) are null in JSON."""

        def estimate(part: Mapping[str, Any]) -> Estimate:
            ends = {name: part[name] for name in ("value", "low", "high")}
            known = {name: math.nan if end is None else float(end) for name, end in ends.items()}
            return Estimate(n=int(part["n"]), **known)

        names = ("store", "mapped", "old", "new", "unmapped")
        parts = ({key: estimate(part) for key, part in facts.get(name, {}).items()} for name in names)
        return cls(facts["n_rows"], facts["n_embedded"], facts["n_meter"], *parts)

    def __str__(self) -> str:
        cells = [f"{name} {part}" for name, part in self.store.items()]
        worse = [name for name, left in self.unmapped.items() if left.low > self.mapped[name].high]
        cells += [f"better left unmapped ({name} {self.unmapped[name]} for {self.mapped[name]})" for name in worse[:1]]
        return f"{100 * self.share:.1f} % re-embedded: " + ", ".join(cells)


def combine(
    known: float, n_known: float, rest: float, interval: tuple[float, float, float] | None, m: int
) -> tuple[Estimate, Estimate]:
    """Return the means of all rows and of the rest, from the sum of the known rows and the interval of the rest."""
    if interval is None:  # there is no rest
        value = known / n_known
        return Estimate(value, value, value, m), Estimate(value, value, value, 0)
    value, low, high = ((known + rest * mean) / (n_known + rest) for mean in interval)
    return Estimate(value, low, high, m), Estimate(*interval, m)


#: Minimum number of recent re-embedded rows, without the meter's, from which the lowest possible cosine of a mapped row
#: is estimated; and of random rows for a factor between scores.
FEWEST = 20


def support_of(name: str, kept: np.ndarray, surprise: np.ndarray) -> tuple[float, float]:
    """Return the minimum and maximum value that a row can have of a metric.

    For the cosine, the minimum is the lowest value of the later half of the re-embedded rows, which the order put
    first (``surprise`` is 1 − cosine), and of the meter's rows; or −1 if these are few, or all values are equal.
    """
    if name != "cosine":
        return 0.0, 1.0
    later = 1 - surprise[len(surprise) // 2 :]
    if len(later) < FEWEST or not len(kept):
        return -1.0, 1.0
    least = float(min(later.min(), kept.min()))
    return (least if kept.max() - least > 1e-6 else -1.0), max(1.0, float(kept.max()))


def fit_origin_scale(queries: RowsLike, mapped: RowsLike, native: RowsLike) -> float:
    """Return the factor by which scores of mapped rows are multiplied to compare with those of native rows.

    It gives the highest hundredth of the scores by queries (m, d) of the new model the mean of native rows. ``mapped``
    and ``native`` (n, d) are the same random rows, mapped from old vectors that the map was not fitted on, and encoded
    by the new model.
    """
    sides = {"queries": queries, "mapped": mapped, "native": native}
    Q, Z, Y = (normalize_rows(as_matrix(rows, name), dtype=np.float64) for name, rows in sides.items())
    check_same_rows(len(Z), len(Y), "mapped", "native")
    if not Q.shape[1] == Z.shape[1] == Y.shape[1]:
        problem = f"Got {Q.shape[1]}-d queries, {Z.shape[1]}-d mapped and {Y.shape[1]}-d re-embedded rows."
        raise ShapeError(problem, "Pass queries and rows of the new model.")
    if len(Z) < FEWEST:
        problem = f"Got {len(Z)} measured random rows; {FEWEST} are needed."
        raise InputError(problem, "Update more rows, or pass a larger `meter_share=…`.")
    ours, theirs = (side[side >= np.quantile(side, 0.99)].mean() for side in (Q @ Z.T, Q @ Y.T))
    return float(theirs / ours)
