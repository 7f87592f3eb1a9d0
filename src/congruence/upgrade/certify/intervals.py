"""Intervals that hold what they promise: calibrated by simulation in ``benchmarks/certify_calibration.py``."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import norm

#: Ratios' intervals are this much wider than the items' spread makes them: maps of different folds share most of their anchors,
#: so the errors of their items do not average out like independent ones. By ``benchmarks/certify_calibration.py``.
WIDER = 1.05


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


def resamples(n: int, draws: int, rng: np.random.Generator, groups: np.ndarray | None = None) -> np.ndarray:
    """Draw how often each of n items occurs in each bootstrap sample.

    Parameters
    ----------
    n, draws : int
    rng : numpy.random.Generator
    groups : ndarray of int, shape (n,), optional
        Items drawn together, such as near-duplicates; by default each by itself.

    Returns
    -------
    ndarray of float32, shape (draws, n)
    """
    codes = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(codes.max()) + 1
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float32)
    return drawn if groups is None else drawn[:, codes]


def replicate(
    means: np.ndarray, influence: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
) -> np.ndarray:
    """Bootstrap several means together.

    Parameters
    ----------
    means : ndarray, shape (q,)
    influence : ndarray, shape (n, q)
        Pseudo-values of each item; only their deviations matter.
    weights : ndarray, shape (draws, n)
        From :func:`resamples`.
    groups : ndarray of int, shape (n,), optional
        As given to it.

    Returns
    -------
    ndarray, shape (draws, q)
    """
    n = len(influence)
    count = n if groups is None else len(np.unique(groups))
    # Resampling n of n items understates the spread by (n − 1) / n.
    centred = (influence - influence.mean(axis=0)) * np.sqrt(count / max(count - 1, 1))
    return means + (weights @ centred) / n


def covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance of means of items that come in groups.

    Parameters
    ----------
    influence : ndarray, shape (n, q)
        Pseudo-values of each item.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other; by default each stands alone.

    Returns
    -------
    ndarray, shape (q, q)

    References
    ----------
    Liang and Zeger (1986), "Longitudinal data analysis using generalized linear models", eq. for the robust variance.
    """
    n = len(influence)
    centred = influence - influence.mean(axis=0)
    if groups is not None:
        codes = np.unique(groups, return_inverse=True)[1]
        sums = np.zeros((int(codes.max()) + 1, centred.shape[1]))
        np.add.at(sums, codes, centred)
        centred = sums
    count = len(centred)
    return np.asarray(centred.T @ centred * (count / max(count - 1, 1)) / n**2)


def rate_interval(
    rate: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None, each: int = 1
) -> tuple[float, float]:
    """Return Wilson's interval of a rate, at the number of independent trials its standard error amounts to.

    Parameters
    ----------
    rate : float
        In [0, 1].
    influence : ndarray, shape (n,)
        Pseudo-values of the items.
    level : float, default=0.95
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.
    each : int, default=1
        Trials that an item's score is the mean of.

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
    variance = float(covariance(influence[:, None], groups)[0, 0]) if n > 1 else 0.0
    spread = rate * (1 - rate)
    # Never more trials than groups have: with all hits, or none, the influence has no spread to measure.
    most = each * (n if groups is None else len(np.unique(groups)))
    trials = min(most, spread / variance) if variance > 0 and spread > 0 else most
    middle = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(spread / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return float(min(max(0.0, middle - half), rate)), float(max(min(1.0, middle + half), rate))


def ratio_interval(
    above: float, below: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return Fieller's interval of the ratio of two scores of the same items.

    Parameters
    ----------
    above, below : float
        The scores; ``below`` is positive.
    influence : ndarray, shape (n, 2)
        Pseudo-values of the items for both.
    level : float, default=0.95
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    float, float
        The upper end is infinite where ``below`` cannot be told from zero.

    Notes
    -----
    The covariance is that of the items and of one more that the two scores disagree on: where they have disagreed on none yet, as
    close to 0 or 1, the sample shows no spread, and a bootstrap of it gives an interval of no width.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    z = WIDER * float(norm.ppf((1 + level) / 2))
    most = len(influence) if groups is None else len(np.unique(groups))
    spread = covariance(influence, groups) + np.eye(2) / (2 * most**2)
    square = below**2 - z**2 * spread[1, 1]
    middle = above * below - z**2 * spread[0, 1]
    rest = above**2 - z**2 * spread[0, 0]
    inside = middle**2 - square * rest
    if square <= 0 or inside < 0:
        return 0.0, float("inf")
    half = np.sqrt(inside)
    return max(0.0, float((middle - half) / square)), float((middle + half) / square)


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
