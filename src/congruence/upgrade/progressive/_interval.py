"""Confidence intervals for the mean of the rows that were not measured, from a random sample that was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["rest_interval"]

#: Probability that the true value lies below the interval, and that it lies above.
TAIL = 0.025

#: If fewer than FEW rows are left, and fewer than the sample has, DRAWS draws from Pólya's urn give the interval: the mean of few rows takes few values.
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
        Values of the sample.
    rest : int
        Number of rows of the population outside of the sample.
    support : (float, float), default=(0, 1)
        Minimum and maximum value that a row can have.
    weights, rest_weights : ndarray, shapes (m,) and (rest,), optional
        Non-negative weights of the sample and of the rest. If given, the weighted mean of the rest is estimated.

    Returns
    -------
    mean, low, high : float
        Estimated mean of the rest, with its 95 % interval. With fewer than two rows of positive weight, the interval is the support.

    Notes
    -----
    For values 0 and 1 without weights, the interval comes from the hypergeometric distribution and is exact.

    For other values, the lower end is the 2.5 % quantile of Σ Eᵢ wᵢ xᵢ / Σ Eᵢ wᵢ over the sample and one additional row with the minimum value, where E are independent
    gamma variables; the upper end is found likewise, with an additional row of the maximum value. This is Gaffke's bound. For values 0 and 1 it is the bound of Clopper
    and Pearson; that it holds for any distribution on the support is a conjecture, confirmed in all simulations so far. If all values are equal, the interval is as wide
    as for 0 of m (about 3.7/m of the support). The shape of the gamma variables, (R − 1)/(R + m + 1) for R rows in the rest, is chosen so that the variance is that of the
    mean of R rows drawn from Pólya's urn: sampling is without replacement, and the mean of the rest is what is estimated. The quantile is found by the saddlepoint
    approximation, or by 4,000 draws from the urn if the rest is smaller than the sample and than 256 rows.

    With weights, the additional row has weight Σ w²/Σ w: the mean weight of the rest if rows are drawn in proportion to their weights, as by searches.

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
    """Return the 2.5 % quantile of the randomly weighted mean, with an additional row of value ``least`` and weight ``extra``."""
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
    """Return the same for few rows in the rest, drawn from Pólya's urn: each is a copy of a row of the sample, of the additional row, or of one drawn before."""
    rng = np.random.default_rng(0)
    x, w, runs = np.append(values, least), np.append(weights, extra), np.arange(DRAWS)
    drawn = np.zeros((DRAWS, rest), np.intp)
    for k in range(rest):
        place = rng.integers(0, len(x) + k, DRAWS)
        drawn[:, k] = np.where(place < len(x), place, drawn[runs, np.maximum(place - len(x), 0)])
    means = (w[drawn] * x[drawn]).sum(axis=1) / w[drawn].sum(axis=1)
    return float(np.quantile(means, TAIL, method="lower"))


def _chance_below_zero(c: np.ndarray, shape: float) -> float:
    """Return P(Σ cᵢ Eᵢ ≤ 0) for independent gamma variables E of one shape, by the formula of Lugannani and Rice; Σ cᵢ must not be negative."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    least = float(c.min())
    if c.sum() <= 1e-12 * np.abs(c).sum():
        return 0.5
    # The saddlepoint: Σ c/(1 − t c) = 0 for a t between 1/least and 0. Multiplied by 1 − t least, the sum has no pole there.
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
    """Return the interval of the rate of hits in the rest, by inverting the hypergeometric test on the number of hits in the population."""
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
