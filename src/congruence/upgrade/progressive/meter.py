"""The current quality of the store, estimated from random rows that neither the fit nor the order has used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.plain import PlainData
from congruence.upgrade.progressive.state import LEARN, Received, RowStates
from congruence.upgrade.progressive.texts import Texts, nearest_texts, overlap


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
    """Estimate the mean of rows that were not measured, and its 95 % interval, from a random sample of the same rows.

    ``values`` (m,); ``rest``: number of rows outside of the sample; ``support``: minimum and maximum value of a row,
    which are the interval of fewer than two rows; with ``weights`` of the sample and of the rest, the mean is weighted.

    For values 0 and 1 without weights, the interval comes from the hypergeometric distribution and is exact. For
    others, the lower end is the 2.5 % quantile of Σ Eᵢ wᵢ xᵢ / Σ Eᵢ wᵢ over the sample and one additional row with the
    minimum value, where E are independent gamma variables, and the upper end likewise: Gaffke's bound (2005, "Three
    test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative variable"; Learned-Miller and
    Thomas 2019, "A new confidence interval for the mean of a bounded random variable"). For values 0 and 1 it is the
    bound of Clopper and Pearson; that it holds for any distribution is a conjecture, confirmed in all simulations so
    far. The shape of the gamma variables, (R − 1)/(R + m + 1) for R rows in the rest, gives the variance of the mean of
    R rows drawn from Pólya's urn, i.e. without replacement (Ghosh and Meeden 1997, "Bayesian methods for finite
    population sampling"). The quantile is found by the saddlepoint approximation, or by draws from the urn if the rest
    is small. With weights, the additional row has weight Σ w²/Σ w: the mean weight of the rest if rows are drawn in
    proportion to their weights, as by searches.
    """
    w = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    extra = 1.0
    if rest_weights is not None and rest_weights.any():
        extra = float(np.square(rest_weights).sum() / rest_weights.sum())
    seen = w > 0
    m = int(np.count_nonzero(seen))
    if m < 2:
        return (float(values[seen].mean()) if m else float("nan")), *support
    x, w = np.asarray(values, float)[seen], w[seen]
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
    """Return the same for few rows in the rest: draws from Pólya's urn copy a row of the sample, or an earlier draw."""
    rng = np.random.default_rng(0)
    x, w, runs = np.append(values, least), np.append(weights, extra), np.arange(DRAWS)
    drawn = np.zeros((DRAWS, rest), np.intp)
    for k in range(rest):
        place = rng.integers(0, len(x) + k, DRAWS)
        drawn[:, k] = np.where(place < len(x), place, drawn[runs, np.maximum(place - len(x), 0)])
    means = (w[drawn] * x[drawn]).sum(axis=1) / w[drawn].sum(axis=1)
    return float(np.quantile(means, TAIL, method="lower"))


def _chance_below_zero(c: np.ndarray, shape: float) -> float:
    """Return P(Σ cᵢ Eᵢ ≤ 0) for gamma variables E of one shape and Σ cᵢ ≥ 0.

    Lugannani and Rice (1980), "Saddle point approximation for the distribution of the sum of independent random
    variables".
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    least = float(c.min())
    if c.sum() <= 1e-12 * np.abs(c).sum():
        return 0.5
    # The saddlepoint: Σ c/(1 − t c) = 0 for a t between 1/least and 0. Multiplied by 1 − t least, the sum has no pole
    # there.
    t = float(
        brentq(lambda s: float((c * ((1 - s * least) / (1 - s * c))).sum()), (1 - 1e-12) / least, 0.0, xtol=1e-300)
    )
    z = 1 - t * c
    r = -np.sqrt(max(2 * shape * float(np.log(z).sum()), 0.0))
    u = t * np.sqrt(shape * float(np.square(c / z).sum()))
    if r > -1e-4:
        return 0.5
    return float(ndtr(r) + np.exp(-r * r / 2) / np.sqrt(2 * np.pi) * (1 / r - 1 / u))


def _rate_of_rest(hits: int, m: int, rest: int) -> tuple[float, float]:
    """Return the interval of the rate of hits in the rest, by inverting the hypergeometric test."""
    from scipy.stats import hypergeom

    n = m + rest

    def first(holds: Callable[[int], bool], low: int, high: int) -> int:
        """Return the first number from ``low`` for which ``holds`` is true; it must be true for ``high``."""
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    least = first(lambda total: bool(hypergeom.sf(hits - 1, n, total, m) > TAIL), hits, hits + rest)
    beyond = first(lambda total: bool(hypergeom.cdf(hits, n, total, m) <= TAIL), hits, hits + rest + 1)
    most = max(beyond - 1, hits)
    return (least - hits) / max(rest, 1), (most - hits) / max(rest, 1)


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

    @property
    def share(self) -> float:
        """Share of the rows that were re-embedded."""
        return self.n_embedded / self.n_rows

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from ``to_dict``."""
        parts = {
            name: {key: _estimate(estimate) for key, estimate in facts[name].items()}
            for name in ("store", "mapped", "old", "new")
        }
        return cls(facts["n_rows"], facts["n_embedded"], facts["n_meter"], **parts)

    def __str__(self) -> str:
        cells = [f"{name} {part}" for name, part in self.store.items()]
        return f"{100 * self.share:.1f} % re-embedded: " + ", ".join(cells)


def _estimate(facts: Mapping[str, Any]) -> Estimate:
    """Rebuild an estimate; unknown values (NaN) are null in JSON."""
    ends = {name: facts[name] for name in ("value", "low", "high")}
    return Estimate(n=int(facts["n"]), **{name: math.nan if end is None else float(end) for name, end in ends.items()})


def estimate_mean(
    known: float, n_known: int, values: np.ndarray, rest: int, support: tuple[float, float]
) -> tuple[Estimate, Estimate]:
    """Estimate the means of all rows, and of the rest, from known rows and a sample of the rest."""
    interval = rest_interval(values, rest, support) if rest else None
    return _combine(known, float(n_known), float(rest), interval, len(values), n_known + rest)


def _combine(
    known: float, n_known: float, rest: float, interval: tuple[float, float, float] | None, m: int, n: int
) -> tuple[Estimate, Estimate]:
    """Return the means of all rows and of the rest, from the known sum and the interval of the rest."""
    if interval is None:
        value = known / n_known
        return Estimate(value, value, value, n), Estimate(value, value, value, 0)
    value, low, high = ((known + rest * mean) / (n_known + rest) for mean in interval)
    return Estimate(value, low, high, m), Estimate(*interval, m)


#: Without texts, neighbors are searched among this many times k random rows, the same at every stage, so that stages
#: are comparable.
REFERENCES = 5

#: Minimum number of recent re-embedded rows, without the meter's, from which the lowest possible cosine of a mapped row
#: is estimated.
FEWEST = 20


@dataclass(eq=False)
class ScoredRows:
    """The rows of a plan, with the vectors, texts and weights by which they are scored."""

    states: RowStates
    new: Received
    old: Callable[[np.ndarray], np.ndarray]  # unit rows (b, d_old) by number
    mapped: Callable[[np.ndarray], np.ndarray]  # unit rows (b, d_new) by number
    texts: Texts | None
    labels: np.ndarray | None  # (n,), index of each row's own text, negative if unknown
    k: int  # nearest neighbors that are compared
    weights: np.ndarray | None  # (n,), how often each row is requested
    surprise: np.ndarray  # (e,), 1 − cosine of new rows, without the meter's, and their mapped vectors before
    found: dict[str, np.ndarray]  # hits of all rows in the old model and under the map, if they are known already

    def __post_init__(self) -> None:
        self.labels = self.labels if self.labels is not None and (self.labels >= 0).any() else None
        self.sample = self.states.measured

    def kept(self) -> dict[str, np.ndarray]:
        """Return by metric how much of each of the meter's rows mapping preserves, (m,); 1 if nothing is lost."""
        theirs, ours = self.new.take(self.sample), self.mapped(self.sample)
        out = {}
        against = None
        if self.texts is not None:
            against = self.texts.new
        elif len(references := self.references()):
            against = self.new.take(references)
        if against is not None:
            near = [nearest_texts(side @ against.T, self.k) for side in (theirs, ours)]
            if self.texts is not None:
                out["agreement"] = (near[0][:, 0] == near[1][:, 0]).astype(float)
            out[f"overlap@{self.k}"] = overlap(near[0], near[1])
        out["cosine"] = np.einsum("ij,ij->i", theirs, ours).astype(float)
        return out

    def references(self) -> np.ndarray:
        """Return the random rows among which neighbors are searched without texts: the first 5 k that are learned."""
        states, wanted = self.states, REFERENCES * self.k
        drawn = states.permutation[: states.place]
        random = drawn[(states.role[drawn] == LEARN) & states.embedded[drawn]]
        return np.asarray(random[:wanted] if len(random) >= wanted else random[:0])

    def support(self, name: str, kept: np.ndarray) -> tuple[float, float]:
        """Return the minimum and maximum value that a row can have of a metric.

        For the cosine, the minimum is the lowest value of the later half of the re-embedded rows, which the order put
        first, and of the meter's rows; or −1 if these are few, or all values are equal.
        """
        if name != "cosine":
            return 0.0, 1.0
        later = 1 - self.surprise[len(self.surprise) // 2 :]
        if len(later) < FEWEST or not len(kept):
            return -1.0, 1.0
        least = float(min(later.min(), kept.min()))
        return (least if kept.max() - least > 1e-6 else -1.0), max(1.0, float(kept.max()))

    def hits(self, rows: np.ndarray, take: Callable[[np.ndarray], np.ndarray], texts: np.ndarray) -> np.ndarray:
        """Return whether each row's own text is the nearest, and among the k nearest, (rows, 2); NaN if unknown."""
        assert self.labels is not None
        label = self.labels[rows]
        out = np.full((len(rows), 2), np.nan, np.float32)
        for part in blocks(len(rows), 8 * (len(texts) + 3 * texts.shape[1])):
            scores = take(rows[part]) @ texts.T
            own = np.take_along_axis(scores, np.maximum(label[part], 0)[:, None], axis=1)
            before = np.count_nonzero(scores > own, axis=1)
            out[part] = np.stack([before < 1, before < self.k], axis=1)
        out[label < 0] = np.nan
        return out


def read(rows: ScoredRows) -> Reading:
    """Return the quality of the store at this stage."""
    n, rest = len(rows.states.role), rows.states.rest
    n_embedded = n - rest
    reading = Reading(n, n_embedded, len(rows.sample))
    waits = ~rows.states.embedded
    for name, kept in rows.kept().items():
        support = rows.support(name, kept)
        reading.store[name], reading.mapped[name] = estimate_mean(float(n_embedded), n_embedded, kept, rest, support)
        if rows.weights is not None:
            known, left = float(rows.weights[~waits].sum()), rows.weights[waits]  # known rows have the value 1
            interval, m = None, len(kept)
            if left.any():
                of_sample = rows.weights[rows.sample]
                interval = rest_interval(kept, len(left), support, weights=of_sample, rest_weights=left)
            weighted = _combine(known, known, float(left.sum()), interval, m, n)
            reading.store[f"weighted {name}"], reading.mapped[f"weighted {name}"] = weighted
    if rows.labels is None or rows.texts is None:
        return reading
    # Accuracy and recall by rows' own texts: exact for the old model and the store, estimated for the new one.
    done = np.flatnonzero(rows.states.embedded)
    for side, take, texts in (("old", rows.old, rows.texts.old), ("mapped", rows.mapped, rows.texts.new)):
        if side not in rows.found:
            rows.found[side] = rows.hits(np.arange(n), take, texts)
    by_old, by_map = rows.found["old"], rows.found["mapped"][waits]
    by_new = rows.hits(done, rows.new.take, rows.texts.new)
    sample = np.isin(done, rows.sample) & np.isfinite(by_new[:, 0])
    n_done, n_waits = (int(np.isfinite(side[:, 0]).sum()) for side in (by_new, by_map))
    for column, name in enumerate(("accuracy", f"recall@{rows.k}")):
        old, map_, new = (np.nansum(side[:, column], dtype=float) for side in (by_old, by_map, by_new))
        m = n_done + n_waits
        exact = [(old / m, m), ((new + map_) / m, m), (map_ / max(n_waits, 1), n_waits)]
        values = [Estimate(float(v), float(v), float(v), count) for v, count in exact]
        reading.old[name], reading.store[name], reading.mapped[name] = values
        reading.new[name] = estimate_mean(float(new), n_done, by_new[sample, column], n_waits, (0.0, 1.0))[0]
    return reading


def losses(
    rows: ScoredRows,
) -> tuple[dict[str, np.ndarray], dict[str, tuple[float, float]], tuple[float, float] | None]:
    """Return by metric what mapping loses of each of the meter's rows, its support, and the models' accuracies."""
    kept = rows.kept()
    out = {name: 1 - values for name, values in kept.items()}
    support = {name: rows.support(name, values) for name, values in kept.items()}
    better = None
    if rows.labels is not None and rows.texts is not None:
        reading, texts = read(rows), rows.texts
        level = reading.new["accuracy"].value
        if level > 0:
            ours = rows.hits(rows.sample, rows.mapped, texts.new)[:, 0]
            theirs = rows.hits(rows.sample, rows.new.take, texts.new)[:, 0]
            out["accuracy"] = (theirs - ours) / level
            support["accuracy"] = 1 - 1 / level, 1 + 1 / level
            better = reading.old["accuracy"].value, reading.new["accuracy"].high
    return out, support, better
