"""What the store is worth now: estimates from rows drawn at random, to which fit and order are blind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import norm, t

from congruence.upgrade._estimate import Estimate

__all__ = ["Reading", "rest_interval", "whole"]


@dataclass(frozen=True)
class Reading:
    """The quality of the whole store at one stage.

    Attributes
    ----------
    n_rows, n_embedded : int
        Of the store, and re-embedded so far.
    n_meter : int
        Random rows that are still measured as mapped ones.
    store : dict of str to Estimate
        Of the store as it stands, re-embedded rows counted as they are: ``"cosine"`` with the new model's vector; ``"agreement"``, the
        share of rows whose nearest text is that of the new model; ``"overlap@k"``, of the k nearest texts (without texts, of the nearest
        re-embedded rows). With labels ``"accuracy"`` and ``"recall@k"``: the row's own text is the nearest, or among k.
    mapped : dict of str to Estimate
        The same of rows that are mapped still.
    old, new : dict of str to Estimate
        ``"accuracy"`` and ``"recall@k"`` of both models, with labels.
    """

    n_rows: int
    n_embedded: int
    n_meter: int
    store: dict[str, Estimate] = field(default_factory=dict)
    mapped: dict[str, Estimate] = field(default_factory=dict)
    old: dict[str, Estimate] = field(default_factory=dict)
    new: dict[str, Estimate] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the rows that was re-embedded."""
        return self.n_embedded / self.n_rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        parts = {
            name: {k: one.to_dict() for k, one in getattr(self, name).items()}
            for name in ("store", "mapped", "old", "new")
        }
        return {"n_rows": self.n_rows, "n_embedded": self.n_embedded, "n_meter": self.n_meter, **parts}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from :meth:`to_dict`."""
        parts = {
            name: {k: _estimate(one) for k, one in told[name].items()} for name in ("store", "mapped", "old", "new")
        }
        return cls(told["n_rows"], told["n_embedded"], told["n_meter"], **parts)

    def __str__(self) -> str:
        cells = [f"{name} {one.value:.3f} ({one.low:.3f} … {one.high:.3f})" for name, one in self.store.items()]
        return f"{100 * self.share:.1f} % re-embedded: " + ", ".join(cells)


def _estimate(told: Mapping[str, Any]) -> Estimate:
    """Rebuild an estimate; what is not known yet, NaN, is null in JSON."""
    value, low, high = (float("nan") if told[name] is None else float(told[name]) for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(told["n"]))


def rest_interval(values: np.ndarray, rest: int, bounded: bool) -> tuple[float, float, float]:
    """Estimate the mean of rows that were not measured from a random sample of the same population.

    Parameters
    ----------
    values : ndarray, shape (m,)
        Of the sample.
    rest : int
        Rows of the population outside of the sample.
    bounded : bool
        Values lie in [0, 1]: the interval of the hypergeometric distribution if they are 0 and 1, Wilson's if not. Else Student's.

    Returns
    -------
    mean, low, high : float
        Of the rest, at 95 %. Nothing is known from fewer than two rows.

    Notes
    -----
    The difference of the sample's and the rest's mean has variance S²(1/m + 1/rest), S² the population's: sampling without replacement. Wilson's
    interval takes the number of trials at which a rate has this variance, corrected for m − 1 degrees of freedom. The hypergeometric interval is exact.

    References
    ----------
    Cochran (1977), "Sampling Techniques", §2.5. Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of
    positive counts".
    """
    m = len(values)
    if m < 2:
        return float(values.mean()) if m else float("nan"), (0.0 if bounded else -np.inf), (1.0 if bounded else np.inf)
    mean, spread = float(values.mean()), float(values.var(ddof=1))
    if bounded and np.isin(values, (0.0, 1.0)).all():
        return mean, *_rate_of_rest(round(float(values.sum())), m, rest)
    parts = 1 / m + 1 / max(rest, 1)
    quantile, z = float(t.ppf(0.975, m - 1)), float(norm.ppf(0.975))
    if not bounded:
        half = quantile * np.sqrt(spread * parts)
        return mean, float(mean - half), float(mean + half)
    trials = mean * (1 - mean) / (spread * parts) * (z / quantile) ** 2 if spread > 0 else 1 / parts
    middle = (mean + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(mean * (1 - mean) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return mean, float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _rate_of_rest(hits: int, m: int, rest: int) -> tuple[float, float]:
    """Return the interval of the rest's rate: the numbers of hits in the population under which the sample's is no surprise."""
    from scipy.stats import hypergeom

    n, tail = m + rest, 0.025

    def first(holds: Callable[[int], bool], low: int, high: int) -> int:
        """Return the first number for which it holds; it does for ``high``."""
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    least = first(lambda total: bool(hypergeom.sf(hits - 1, n, total, m) > tail), hits, hits + rest)
    beyond = first(lambda total: bool(hypergeom.cdf(hits, n, total, m) <= tail), hits, hits + rest + 1)
    most = max(beyond - 1, hits)
    return (least - hits) / max(rest, 1), (most - hits) / max(rest, 1)


def whole(known: float, n_known: int, values: np.ndarray, rest: int, bounded: bool) -> tuple[Estimate, Estimate]:
    """Estimate a mean over all rows, of which some are known and a sample of the others is measured.

    Parameters
    ----------
    known : float
        Sum over rows that are known.
    n_known : int
    values : ndarray, shape (m,)
        Of the sample.
    rest : int
        Rows that are neither known nor in the sample; the sample's own rows are among the known ones.
    bounded : bool

    Returns
    -------
    store, mapped : Estimate
        Of all rows, and of the rest.
    """
    n = n_known + rest
    if not rest:
        value = known / n
        return Estimate(value, value, value, n), Estimate(value, value, value, 0)
    found = rest_interval(values, rest, bounded)
    whole_ = [(known + rest * one) / n for one in found]
    return Estimate(whole_[0], whole_[1], whole_[2], len(values)), Estimate(*found, len(values))
