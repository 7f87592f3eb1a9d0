"""Find pairs that look wrong among anchors that are paired overall.

Row i of one side's Gram matrix describes how item i relates to all other items, and so does row i of the other side's. The two
agree for a true pair. The agreement of row i with row j excludes items i and j, so each of the n² agreements is
out of sample, and all of them cost no more than the products of two matrices.
"""

from __future__ import annotations

from math import lgamma, pi

import numpy as np

__all__ = ["Agreement", "find_wrong_pairs"]

#: Largest number of rows of a block that are compared with each other, and of rows among which exchanged partners are searched.
_BLOCK, _CANDIDATES = 250, 300

#: Ridge of the whitening, in mean eigenvalues: leading directions get about the same weight, and noise stays small.
_RIDGE = 3.0

#: Degrees of freedom of the tails: true pairs include outliers, while wrong pairs are nearly normal.
_TRUE_TAIL, _WRONG_TAIL = 5, 30

#: Prior for the spread of true pairs: that of wrong ones, 1, with the weight of this many rows.
_PRIOR_ROWS = 10

#: Log likelihood ratio, minus the logarithm of the number of alternatives tried, from which pairs are reported.
_EXCHANGED, _LONE = 3.0, 4.0

#: Largest contribution of one pair to an exchange, so that no exchange depends on one outlier.
_MOST = 5.0

#: Lone pairs are reported only if true pairs are this many spreads above random ones, and only up to this evidence themselves.
_CLEAR, _AS_RANDOM = 4.0, 1.0


def find_wrong_pairs(X: np.ndarray, Y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs that look wrong, and the estimated probability of each.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, p)
    Y : ndarray of float32 or float64, shape (n, q)
        Paired by row. Only directions matter, unless rows were shortened beforehand. At least 4 rows.
    rng : numpy.random.Generator
        Splits the rows into blocks if there are many.

    Returns
    -------
    rows : ndarray of int, shape (k,)
        Most suspicious first.
    probability : ndarray, same shape

    Notes
    -----
    *Exchanged* partners: the assignment of targets to sources that gains most over the given one, by the log likelihood ratio of
    "true pair" to "random pair", minus log n for each row moved. This is a union bound: there are fewer than n^k ways to move
    k rows. *Lone* pairs, whose partner is not among the rows: the lowest k by the same ratio, minus the logarithm of the number of ways
    to choose them. The densities are Student's t about the median with the spread of the lower quartile, and about 0 with spread 1.
    They are an approximation: the error rate was measured, not proved (docs/pairing.md).
    """
    agreement = Agreement(X, Y, rng)
    evidence = agreement.evidence
    probability = np.maximum(_own_probability(evidence), _exchanged(agreement))
    rows = np.flatnonzero(probability > 0)
    rows = rows[np.lexsort((evidence[rows], -probability[rows]))]
    return rows, probability[rows]


class Agreement:
    """Agreement of row i of one side's Gram matrix with row j of the other's, for all i and j.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, p)
    Y : ndarray of float32 or float64, shape (n, q)
    rng : numpy.random.Generator

    Attributes
    ----------
    evidence : ndarray, shape (n,)
        Agreement of each pair minus the means of the wrong pairs in its row and its column, in standard deviations of those.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, rng: np.random.Generator) -> None:
        (self.x, x_variance), (self.y, y_variance) = _whitened(X), _whitened(Y)
        self.n = n = len(X)
        self.x_own, self.y_own = (np.einsum("ij,ij->i", z, z) for z in (self.x, self.y))
        self.x_size, self.y_size = _sizes(self.x, self.x_own, x_variance), _sizes(self.y, self.y_own, y_variance)
        self.predicted = self.x @ (self.x.T @ self.y)
        own = np.einsum("ij,ij->i", self.predicted, self.y) - self.x_own * self.y_own * (1 + 1 / (n - 1))
        own /= self.x_size * self.y_size
        self.row, self.column, self.row_sd, self.column_sd = (np.empty(n) for _ in range(4))
        for part in np.array_split(rng.permutation(n), -(-n // _BLOCK)):
            others = len(part) - 1
            block = self._correlations(part, part)
            np.fill_diagonal(block, 0)
            row, column = block.sum(axis=1) / others, block.sum(axis=0) / others
            half = row.mean() / 2
            self.row[part], self.column[part] = row - half, column - half
            block -= self.row[part][:, None] + self.column[part]
            np.fill_diagonal(block, 0)
            np.square(block, out=block)
            self.row_sd[part] = np.sqrt(block.sum(axis=1) / others)
            self.column_sd[part] = np.sqrt(block.sum(axis=0) / others)
        scale = np.maximum(np.sqrt(self.row_sd * self.column_sd), 1e-12)
        self.evidence = (own - self.row - self.column) / scale

    def among(self, rows: np.ndarray) -> np.ndarray:
        """Return the evidence for each source row with each target row, shape (len(rows), len(rows)); ``evidence`` on the diagonal."""
        scale = np.maximum(np.sqrt(self.row_sd[rows][:, None] * self.column_sd[rows]), 1e-12)
        table = (self._correlations(rows, rows) - self.row[rows][:, None] - self.column[rows]) / scale
        np.fill_diagonal(table, self.evidence[rows])
        return table

    def _correlations(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the correlation of K[i, k] and L[k, j] over all k other than i and j (K and L are centered: a whole row sums to 0)."""
        K, L = self.x[i] @ self.x[j].T, self.y[i] @ self.y[j].T
        a, b = self.x_own[i][:, None], self.y_own[j]
        inner = self.predicted[i] @ self.y[j].T - a * L - K * b - (a + K) * (L + b) / (self.n - 2)
        inner /= self.x_size[i][:, None] * self.y_size[j]
        return inner


def _whitened(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows in their principal coordinates, scaled to about the same variance, and the sum of squares of each coordinate."""
    Z = Z - Z.mean(axis=0)
    values, vectors = np.linalg.eigh((Z.T @ Z).astype(np.float64))
    values = np.maximum(values, 0)
    ridge = _RIDGE * values.sum() / min(len(Z) - 1, Z.shape[1])
    shrunk = values + (ridge or 1.0)
    return Z @ (vectors / np.sqrt(shrunk)).astype(Z.dtype), (values / shrunk).astype(Z.dtype)


def _sizes(z: np.ndarray, own: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the norm of each row of the Gram matrix about its mean, without the diagonal."""
    squares = np.square(z) @ variance - own**2 * (1 + 1 / (len(z) - 1))
    return np.sqrt(np.maximum(squares, 1e-24))


def _log_t(x: np.ndarray, df: int) -> np.ndarray:
    """Return the log density of Student's t; implemented here because importing ``scipy.stats`` takes longer than a fit."""
    size = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * np.log(df * pi)
    return size - (df + 1) / 2 * np.log1p(x * x / df)


def _log_true(evidence: np.ndarray, center: float, spread: float) -> np.ndarray:
    """Return the log density of the evidence of true pairs."""
    return _log_t((evidence - center) / spread, _TRUE_TAIL) - np.log(spread)


def _spread(raw: float, n: int) -> float:
    """Return the spread of n true pairs, shrunk toward that of wrong ones."""
    return float(np.sqrt((n * raw**2 + _PRIOR_ROWS) / (n + _PRIOR_ROWS)))


def _exchanged(agreement: Agreement) -> np.ndarray:
    """Return the probability that each pair is one of several whose partners were exchanged; 0 for pairs not reported."""
    evidence, n = agreement.evidence, agreement.n
    center, quarter = np.median(evidence), np.sort(evidence)[n // 4]
    spread = _spread((center - quarter) / 0.6745, n)
    rows = np.argsort(evidence, kind="stable")[:_CANDIDATES]
    # Above the median, more evidence cannot make a pair less likely to be true, although the density decreases there.
    table = np.minimum(agreement.among(rows), center)
    ratio = np.clip(_log_true(table, center, spread) - _log_t(table, _WRONG_TAIL), -_MOST, _MOST)
    gain = ratio - np.diag(ratio)[:, None] - np.log(n)
    np.fill_diagonal(gain, 0)
    probability = np.zeros(n)
    if gain.max(axis=1).sum() < _EXCHANGED:  # no assignment gains more than the sum of the best of each row
        return probability
    from scipy.optimize import linear_sum_assignment  # its import takes longer than the rest of the check
    from scipy.special import expit

    partner = linear_sum_assignment(gain, maximize=True)[1]
    gains = gain[np.arange(len(rows)), partner]
    if gains.sum() < _EXCHANGED:
        return probability
    for first in np.flatnonzero(partner != np.arange(len(rows))):
        if probability[rows[first]] == 0:
            cycle = [first]
            while partner[cycle[-1]] != first:
                cycle.append(partner[cycle[-1]])
            probability[rows[cycle]] = expit(gains[cycle].sum())
    return probability


def _own_probability(evidence: np.ndarray) -> np.ndarray:
    """Return the probability that each pair is wrong by its own evidence; 0 for pairs not reported."""
    n = len(evidence)
    ordered = np.sort(evidence)
    best, found = _LONE, None
    for k in range(1, n // 3 + 1):
        if ordered[k - 1] > _AS_RANDOM:
            break
        others = ordered[k:]
        m = len(others)
        center = others[m // 2]
        spread = _spread(max((center - others[m // 4]) / 0.6745, (center - others[m // 10]) / 1.2816), m)
        if center < _CLEAR * spread:
            continue
        low = np.maximum(ordered[:k], 0)
        gain = (_log_t(low, _WRONG_TAIL) - _log_true(ordered[:k], center, spread)).sum()
        gain -= lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        if gain >= best:
            best, found = gain, (center, spread)
    probability = np.zeros(n)
    if found is None:
        return probability
    center, spread = found
    # There are wrong pairs; some of them may by chance be closer to the true ones than those counted so far.
    rows = np.flatnonzero((evidence <= 2 * _AS_RANDOM) & (evidence <= center - 3.5 * spread))
    share = len(rows) / n
    wrong = share * np.exp(-np.square(np.maximum(evidence[rows], 0)) / 2) / np.sqrt(2 * pi)
    true = (1 - share) * np.exp(_log_true(evidence[rows], center, spread))
    probability[rows] = wrong / (wrong + true)
    return probability
