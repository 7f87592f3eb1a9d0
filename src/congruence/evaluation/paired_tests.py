"""Tests of paired differences: exact McNemar test, sign flips, a bootstrap over groups, and Holm's correction.

Beside them Wilson's interval of a rate.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

#: Number of random signs, or of drawn groups, that are generated at once.
_BLOCK = 2_000_000


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value of McNemar's exact test (1947) for hits, 1 or 0, on the same queries (n,): of the b
    + c queries that exactly one of the two answers correctly, each is the first's with probability 1/2.

    >>> import numpy as np
    >>> mcnemar(np.array([1, 1, 1, 1, 1, 1, 0]), np.array([0, 0, 0, 0, 0, 0, 1]))
    0.125
    """
    from scipy.special import bdtr  # imported here: congruence fit imports this package and must start without SciPy

    b, c = int(np.sum(first > second)), int(np.sum(second > first))
    return 1.0 if b + c == 0 else min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))


def sign_flip(sums: np.ndarray, permutations: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of the sign-flip test that the ``sums`` of paired differences (g,) have mean zero.
    If the scores of the two are exchangeable within a group, its sum has either sign with equal probability. All 2^g
    flips are enumerated if they are at most ``permutations + 1``; otherwise the observed signs are included among the
    random ones, so that the test never rejects more often than its level (Phipson and Smyth 2010).
    """
    sums = sums[sums != 0]  # the sign of zero changes nothing
    if not len(sums):
        return 1.0
    reached = abs(float(sums.sum())) - 1e-12 * float(np.abs(sums).sum())
    if len(sums) < 63 and 2 ** len(sums) <= permutations + 1:
        patterns = np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums)) & 1
        return float(np.mean(np.abs((1 - 2 * patterns) @ sums) >= reached))
    count, step = 1, max(1, _BLOCK // len(sums))
    for start in range(0, permutations, step):
        signs = rng.integers(0, 2, size=(min(step, permutations - start), len(sums)), dtype=np.int8)
        # Σ ±s = 2 Σ_(kept) s − Σ s
        count += int(np.count_nonzero(np.abs(2 * (signs @ sums) - sums.sum()) >= reached))
    return count / (permutations + 1)


def group_sums(differences: np.ndarray, groups: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the differences (n, q) in each group, shape (g, q), and its size (g,)."""
    if groups is None:
        return differences, np.ones(len(differences))
    codes = np.unique(groups, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(codes).astype(float)
    sums = np.zeros((len(sizes), differences.shape[1]))
    np.add.at(sums, codes, differences)
    return sums, sizes


def bootstrap_intervals(
    sums: np.ndarray, sizes: np.ndarray, level: float, draws: int, rng: np.random.Generator, largest: np.ndarray
) -> np.ndarray:
    """Return bootstrap intervals (2, q) of mean differences; groups, of ``sums`` (g, q) and ``sizes`` (g,), are
    resampled as a whole. Percentiles at Φ(√(g / (g − 1)) · t), t Student's quantile, because plain ones are too narrow
    for few groups (Hesterberg 2015, section 4). If no query disagrees, the interval is what g groups without a
    disagreement cannot exclude (Clopper and Pearson 1934), ± ``largest`` (q,) · (1 − (α/2)^(1/g)); with one group it is
    ± largest.
    """
    from scipy.special import ndtr, stdtrit

    g, q = sums.shape
    if g < 2:
        return np.stack([-largest, largest])
    means = np.empty((draws, q))
    step = max(1, _BLOCK // g)
    for start in range(0, draws, step):
        chosen = rng.integers(g, size=(min(step, draws - start), g))
        times = np.stack([np.bincount(row, minlength=g) for row in chosen]).astype(float)
        means[start : start + step] = (times @ sums) / (times @ sizes)[:, None]
    tail = float(ndtr(np.sqrt(g / (g - 1)) * stdtrit(g - 1, (1 - level) / 2)))
    ends = np.quantile(means, [tail, 1 - tail], axis=0)
    none = ~sums.any(axis=0)
    unseen = (1 - ((1 - level) / 2) ** (1 / g)) * largest
    ends[:, none] = np.stack([-unseen, unseen])[:, none]
    return np.asarray(ends)


def wilson(rate: np.ndarray, trials: np.ndarray | float, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a rate of independent trials (Wilson 1927), which may be any number above zero.

    >>> low, high = wilson(np.array(0.5), 100, 0.95)
    >>> round(float(low), 3), round(float(high), 3)
    (0.404, 0.596)
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return np.clip(np.minimum(middle - half, rate), 0, 1), np.clip(np.maximum(middle + half, rate), 0, 1)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return p-values (m,) of dependent tests, adjusted by Holm (1979) for any false rejection among all of them.

    >>> import numpy as np
    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    out = np.empty_like(p_values)
    out[order] = np.minimum(stepped, 1.0)
    return out
