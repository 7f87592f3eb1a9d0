"""Intervals for the mean of rows that were not measured, from a random sample of rows that were."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["rest_interval"]

#: Chance that the truth lies below the interval, and above it.
TAIL = 0.025

#: Pólya's urn is drawn from, so many times, where fewer rows than these and fewer than the sample's are left: their mean has few values then.
DRAWS, FEW = 4000, 256


def rest_interval(
    values: np.ndarray,
    rest: int,
    support: tuple[float, float] = (0.0, 1.0),
    *,
    weights: np.ndarray | None = None,
    rest_weights: np.ndarray | None = None,
) -> tuple[float, float, float]:
    """Estimate the mean of rows that were not measured from a random sample of the same population.

    Parameters
    ----------
    values : ndarray, shape (m,)
        Of the sample.
    rest : int
        Rows of the population outside of the sample.
    support : (float, float), default=(0, 1)
        Least and greatest value that a row can have.
    weights, rest_weights : ndarray, shapes (m,) and (rest,), optional
        Weights ≥ 0 of the sample and of the rest: the weighted mean of the rest is estimated.

    Returns
    -------
    mean, low, high : float
        Of the rest, at 95 %. From fewer than two rows, or rows without weight, nothing is known but the support.

    Notes
    -----
    Values 0 and 1 without weights have the interval of the hypergeometric distribution, which is exact.

    For others the lower end is the 2.5 % quantile of Σ Eᵢ wᵢ xᵢ / Σ Eᵢ wᵢ, E independent gamma variables, over the sample and one more row of the least value, and the
    upper end likewise with one more row of the greatest: Gaffke's bound. Of values 0 and 1 it is Clopper and Pearson's; that it holds for any distribution on the support is conjectured, and
    confirmed in all simulations so far. Equal values give an interval as wide as "none of m" does (about 3.7/m of the support). The shape of the gamma variables, (R − 1)/(R + m + 1) for R rows in the
    rest, gives the mean of R rows drawn by Pólya's urn its variance: sampling without replacement, where the rest is what is estimated. The quantile is found by the saddlepoint
    approximation; where the rest is smaller than the sample and than 256 rows, by 4,000 draws from the urn.

    With weights the row added has the mean weight of the rest as its searches meet it, Σ w²/Σ w.

    References
    ----------
    Gaffke (2005), "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative variable". Learned-Miller and Thomas (2019), "A new confidence
    interval for the mean of a bounded random variable". Ghosh and Meeden (1997), "Bayesian methods for finite population sampling" (Pólya's urn). Lugannani and Rice (1980), "Saddle
    point approximation for the distribution of the sum of independent random variables".
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
    """Return the 2.5 % quantile of the weighted mean with random weights, a row of the least value and of weight ``extra`` added."""
    from scipy.optimize import brentq

    w = np.append(weights, extra) / extra
    over = np.append(values - least, 0.0)
    mean = float(np.average(over, weights=w))
    if not mean > 1e-12 * max(abs(least), 1.0):
        return least

    shape = (rest - 1) / (rest + len(w))

    def tail(share: float) -> float:
        return _chance_below_zero(w * (over / mean - share), shape) - TAIL

    if tail(1e-9) >= 0:  # so few rows in the rest that each may be the worst
        return least
    return least + mean * float(brentq(tail, 1e-9, 1.0, xtol=1e-7))


def _lower_end_of_few(values: np.ndarray, weights: np.ndarray, least: float, extra: float, rest: int) -> float:
    """Return the same for few rows in the rest, which Pólya's urn draws: each a copy of a row of the sample, of the row added, or of one drawn before."""
    rng = np.random.default_rng(0)
    x, w, runs = np.append(values, least), np.append(weights, extra), np.arange(DRAWS)
    drawn = np.zeros((DRAWS, rest), np.intp)
    for k in range(rest):
        place = rng.integers(0, len(x) + k, DRAWS)
        drawn[:, k] = np.where(place < len(x), place, drawn[runs, np.maximum(place - len(x), 0)])
    means = (w[drawn] * x[drawn]).sum(axis=1) / w[drawn].sum(axis=1)
    return float(np.quantile(means, TAIL, method="lower"))


def _chance_below_zero(c: np.ndarray, shape: float) -> float:
    """Return P(Σ cᵢ Eᵢ ≤ 0) for independent gamma variables E of one shape, by Lugannani and Rice's formula; Σ cᵢ is not negative."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    least = float(c.min())
    if c.sum() <= 1e-12 * np.abs(c).sum():
        return 0.5
    # Where the cumulant function is least: Σ c/(1 − t c) = 0 for a t between 1/least and 0; times 1 − t least, it has no pole.
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
    """Return the interval of the rest's rate: the numbers of hits in the population under which the sample's is no surprise."""
    from scipy.stats import hypergeom

    n = m + rest

    def first(holds: Callable[[int], bool], low: int, high: int) -> int:
        """Return the first number for which it holds; it does for ``high``."""
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    least = first(lambda total: bool(hypergeom.sf(hits - 1, n, total, m) > TAIL), hits, hits + rest)
    beyond = first(lambda total: bool(hypergeom.cdf(hits, n, total, m) <= TAIL), hits, hits + rest + 1)
    most = max(beyond - 1, hits)
    return (least - hits) / max(rest, 1), (most - hits) / max(rest, 1)
