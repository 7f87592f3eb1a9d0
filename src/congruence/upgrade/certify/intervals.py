"""Intervals that hold what they promise: calibrated by simulation in ``benchmarks/certify_calibration.py``."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import norm


@dataclass(frozen=True)
class Estimate:
    """A number and the interval about it.

    Attributes
    ----------
    value, low, high : float
        The estimate and its 95 % interval.
    n : int
        Items it was measured on.
    """

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float]:
        """Return everything as plain data."""
        return asdict(self)


def resamples(n: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how often each of n items occurs in each bootstrap sample.

    Returns
    -------
    ndarray of float32, shape (draws, n)
        Rows sum to n.
    """
    return rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float32)


def replicate(means: np.ndarray, influence: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Bootstrap several means together.

    Parameters
    ----------
    means : ndarray, shape (q,)
    influence : ndarray, shape (n, q)
        Pseudo-values of each item; only their deviations matter.
    weights : ndarray, shape (draws, n)
        From :func:`resamples`.

    Returns
    -------
    ndarray, shape (draws, q)
    """
    n = len(influence)
    # Resampling n of n items understates the spread by (n − 1) / n.
    centred = (influence - influence.mean(axis=0)) * np.sqrt(n / max(n - 1, 1))
    return means + (weights @ centred) / n


def rate_interval(rate: float, influence: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a rate, at the number of independent trials its standard error amounts to.

    Parameters
    ----------
    rate : float
        In [0, 1].
    influence : ndarray, shape (n,)
        Pseudo-values of the items.
    level : float, default=0.95

    Returns
    -------
    float, float

    References
    ----------
    Wilson (1927), "Probable inference, the law of succession, and statistical inference". The effective number of trials is
    that of Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of positive counts".
    """
    n = len(influence)
    z = float(norm.ppf((1 + level) / 2))
    variance = float(np.var(influence, ddof=1)) / n if n > 1 else 0.0
    spread = rate * (1 - rate)
    # Never more trials than items: with all hits, or none, the influence has no spread to measure.
    trials = min(n, spread / variance) if variance > 0 and spread > 0 else n
    middle = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(spread / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return float(min(max(0.0, middle - half), rate)), float(max(min(1.0, middle + half), rate))


def percentile_interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the central share of bootstrap draws.

    Parameters
    ----------
    draws : ndarray, shape (b,)
        NaN, where a ratio had nothing below the line, is left out.
    level : float, default=0.95

    Returns
    -------
    float, float
    """
    good = draws[np.isfinite(draws)]
    if not len(good):
        return float("nan"), float("nan")
    low, high = np.quantile(good, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
