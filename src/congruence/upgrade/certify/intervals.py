"""Confidence intervals of mean scores and of their ratios, calibrated by simulations (``benchmarks/certify_calibration.py``)."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm, t

__all__ = [
    "WIDER",
    "covariance",
    "draw_scores",
    "freedom",
    "joint_covariance",
    "mean_interval",
    "rate_interval",
    "ratio_interval",
]

#: Factor by which the intervals of ratios are wider than the spread of the items suggests: maps of different folds share most of their anchors, so the
#: errors of their items do not average out like independent ones. Found with ``benchmarks/certify_calibration.py``.
WIDER = 1.05


def covariance(influence: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the covariance of means of grouped items.

    Parameters
    ----------
    influence : ndarray, shape (n, q)
        Pseudo-values, one per item.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other; by default all items are independent.

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
    """Return the covariance of several scores of the same items, used to compare the scores.

    Parameters
    ----------
    influence : ndarray, shape (n, q)
        Pseudo-values, one per item.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    ndarray, shape (q, q)
        :func:`covariance` with one additional item on which the scores disagree, times ``WIDER**2``. If no item disagrees, as can happen
        near 0 or 1, the sample itself shows no spread.
    """
    most = len(influence) if groups is None else len(np.unique(groups))
    return WIDER**2 * (covariance(influence, groups) + np.eye(influence.shape[1]) / (2 * most**2))


def draw_scores(
    scores: np.ndarray, influence: np.ndarray, draws: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Draw joint values of the true scores, given several measured scores of the same items.

    Parameters
    ----------
    scores : ndarray, shape (q,)
        In [0, 1].
    influence : ndarray, shape (n, q)
        Pseudo-values, one per item.
    draws : int
    rng : numpy.random.Generator
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other.

    Returns
    -------
    ndarray, shape (draws, q)
        From the multivariate t-distribution around the scores, with the covariance and degrees of freedom of their intervals, truncated to
        [0, 1]. A bootstrap of the items would ignore that a few groups give a poor estimate of the variance, and that items without
        disagreement do not rule it out.
    """
    freedom_ = freedom(len(influence), groups)
    values, vectors = np.linalg.eigh(joint_covariance(influence, groups))
    normal = rng.standard_normal((draws, len(values))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    scale = np.sqrt(freedom_ / rng.chisquare(freedom_, draws))
    return np.asarray(np.clip(scores + normal * scale[:, None], 0, 1))


def freedom(n: int, groups: np.ndarray | None = None) -> float:
    """Return the degrees of freedom of :func:`covariance`: the number of independent deviations from which the variance is estimated.

    Parameters
    ----------
    n : int
        Number of items.
    groups : ndarray of int, shape (n,), optional
        Items whose errors may depend on each other; by default all items are independent.

    Returns
    -------
    float
        n − 1, or the number of groups minus one if they have equal sizes, and less if they do not; at least 1.

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
    """Return Wilson's interval of a rate, with the effective number of independent trials that corresponds to its standard error.

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
        Number of trials over which an item's score is averaged.

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
    # At most as many trials as the groups have: if all are hits, or none, the influence shows no spread.
    most = each * (n if groups is None else len(np.unique(groups)))
    trials = min(most, spread / variance) if variance > 0 and spread > 0 else most
    if groups is not None and n > 1:  # a variance estimated from few groups is itself uncertain
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
        The upper end is infinite if ``below`` cannot be distinguished from zero.

    Notes
    -----
    Uses the covariance :func:`joint_covariance` and Student's quantile with :func:`freedom` degrees of freedom.

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
