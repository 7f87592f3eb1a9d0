"""Intervals that hold what they promise: calibrated by simulation in ``benchmarks/certify_calibration.py``."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import norm, t

__all__ = [
    "WIDER",
    "Estimate",
    "covariance",
    "draw_scores",
    "freedom",
    "joint_covariance",
    "mean_interval",
    "rate_interval",
    "ratio_interval",
]

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
    centered = influence - influence.mean(axis=0)
    if groups is not None:
        codes = np.unique(groups, return_inverse=True)[1]
        sums = np.zeros((int(codes.max()) + 1, centered.shape[1]))
        np.add.at(sums, codes, centered)
        centered = sums
    count = len(centered)
    return np.asarray(centered.T @ centered * (count / max(count - 1, 1)) / n**2)


def joint_covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance of several scores of the same items, for what compares them.

    Parameters
    ----------
    influence : ndarray, shape (n, q)
        Pseudo-values of each item.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    ndarray, shape (q, q)
        :func:`covariance` with one more item that the scores disagree on, times ``WIDER**2``: where they have disagreed on none yet, as
        close to 0 or 1, the sample shows no spread.
    """
    most = len(influence) if groups is None else len(np.unique(groups))
    return WIDER**2 * (covariance(influence, groups) + np.eye(influence.shape[1]) / (2 * most**2))


def draw_scores(
    scores: np.ndarray, influence: np.ndarray, draws: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Draw what several scores of the same items may truly be, together.

    Parameters
    ----------
    scores : ndarray, shape (q,)
        In [0, 1].
    influence : ndarray, shape (n, q)
        Pseudo-values of each item.
    draws : int
    rng : numpy.random.Generator
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    ndarray, shape (draws, q)
        From the multivariate t-distribution about the scores with the covariance and degrees of freedom of their intervals, cut off at
        0 and 1. A bootstrap of the items knows neither that few groups measure the variance badly nor that items without
        disagreement do not exclude it.
    """
    freedom_ = freedom(len(influence), groups)
    values, vectors = np.linalg.eigh(joint_covariance(influence, groups))
    normal = rng.standard_normal((draws, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    scale = np.sqrt(freedom_ / rng.chisquare(freedom_, draws))
    return np.asarray(np.clip(scores + normal * scale[:, None], 0, 1))


def freedom(n: int, groups: np.ndarray | None = None) -> float:
    """Return the degrees of freedom of :func:`covariance`: how many independent deviations the variance is measured by.

    Parameters
    ----------
    n : int
        Items.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other; by default each stands alone.

    Returns
    -------
    float
        n − 1, or the number of groups less one if they are of one size, and less if they are not; at least 1.

    References
    ----------
    Satterthwaite (1946), "An approximate distribution of estimates of variance components", for sums over groups whose deviations are
    as large as the groups.
    """
    sizes = np.ones(n) if groups is None else np.unique(groups, return_counts=True)[1].astype(float)
    return max(1.0, float(np.sum(sizes**2) ** 2 / np.sum(sizes**4)) - 1)


def mean_interval(
    mean: float, influence: np.ndarray, level: float = 0.95, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return Student's interval of a mean.

    Parameters
    ----------
    mean : float
    influence : ndarray, shape (n,)
        Pseudo-values of the items.
    level : float, default=0.95
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    float, float
    """
    n = len(influence)
    if n < 2:
        return float("-inf"), float("inf")
    half = float(t.ppf((1 + level) / 2, freedom(n, groups))) * np.sqrt(covariance(influence[:, None], groups)[0, 0])
    return float(mean - half), float(mean + half)


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
    if groups is not None and n > 1:  # a variance that few groups measure is uncertain itself
        trials *= float(t.ppf((1 + level) / 2, n - 1) / t.ppf((1 + level) / 2, freedom(n, groups))) ** 2
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
    The covariance is :func:`joint_covariance`, the quantile Student's at :func:`freedom`.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    z = float(t.ppf((1 + level) / 2, freedom(len(influence), groups)))
    spread = joint_covariance(influence, groups)
    square = below**2 - z**2 * spread[1, 1]
    middle = above * below - z**2 * spread[0, 1]
    rest = above**2 - z**2 * spread[0, 0]
    inside = middle**2 - square * rest
    if square <= 0 or inside < 0:
        return 0.0, float("inf")
    half = np.sqrt(inside)
    return max(0.0, float((middle - half) / square)), float((middle + half) / square)
