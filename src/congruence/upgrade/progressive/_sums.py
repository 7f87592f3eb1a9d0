"""The refit from sums over re-embedded rows: what is kept does not grow with their number."""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence.upgrade.progressive._lazy import Rows
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive.refit import FEWEST, FEWEST_CHOOSING, FOLDS, RIDGES, Correction, Refit

__all__ = ["Sums"]

#: Rows that are added, or compared, at a time.
BLOCK = 4096

#: Chosen rows, and random ones, whose weight changes from stage to stage.
CHOSEN, RANDOM = 0, 1


class _Moments:
    """Number of rows, and sums of z = [features, residuals] and of features × z."""

    def __init__(self, p: int, q: int) -> None:
        self.n = 0.0
        self.first = np.zeros(p + q)
        self.second = np.zeros((p, p + q))

    def add(self, z: np.ndarray, sign: float = 1.0) -> None:
        p = len(self.second)
        self.n += sign * len(z)
        self.first += sign * z.sum(axis=0)
        self.second += sign * (z[:, :p].T @ z)

    def plus(self, other: _Moments, weight: float) -> _Moments:
        """Return the sums of both, the other's rows with a weight."""
        out = _Moments(*self.second.shape[:1], len(self.first) - len(self.second))
        out.n = self.n + weight * other.n
        out.first = self.first + weight * other.first
        out.second = self.second + weight * other.second
        return out

    def solve(self, rows: float, ridges: list[float]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return means of features and residuals, and the ridge regression's coefficients of each penalty; ``rows`` is their number without weights."""
        p, mean = len(self.second), self.first / self.n
        centered = (self.second - self.n * np.outer(mean[:p], mean)) * (rows / self.n)
        values, vectors = np.linalg.eigh(centered[:, :p])
        values, rotated = np.maximum(values, 0.0), vectors.T @ centered[:, p:]
        return mean[:p], mean[p:], [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]


class Sums:
    """The refit of :class:`Refit`, from sums.

    Parameters
    ----------
    refit : Refit
    old : ndarray or Lazy, shape (n, d_old)
    new : Received

    Notes
    -----
    Features are [x, t(x)] with texts, and x without; residuals y − b(x). Without the texts they are x, and y − b(x) + t(x), whose sums are differences of
    the same sums: one set serves both kinds of map. The choice between kinds and penalties leaves out a fold of random rows at a time, and reads
    these rows anew.
    """

    def __init__(self, refit: Refit, old: Rows, new: Received) -> None:
        self._refit, self._old, self._new = refit, old, new
        self._d, self._q = old.shape[1], refit.mapping.d_target
        self._p = self._d + (self._q if refit.texts is not None else 0)
        self._sums = [_Moments(self._p, self._q) for _ in (CHOSEN, RANDOM)]
        #: Of each received row the sums that it is in, −1 for none.
        self._in = np.full(len(old), -1, np.int8)

    def _z(self, rows: np.ndarray) -> np.ndarray:
        features, base = self._refit._features(self._old[rows], self._refit.texts is not None)
        return np.hstack([features, self._new.take(rows) - base])

    def _add(self, sums: _Moments, rows: np.ndarray, sign: float = 1.0) -> None:
        for start in range(0, len(rows), BLOCK):
            sums.add(self._z(rows[start : start + BLOCK]), sign)

    def leave(self, rows: np.ndarray) -> None:
        """Take rows out, before they get other vectors."""
        for group, sums in enumerate(self._sums):
            self._add(sums, rows[self._in[rows] == group], -1.0)
        self._in[rows] = -1

    def follow(self, rows: np.ndarray, random: np.ndarray) -> None:
        """Take in those of the rows, shape (e,), that are not in yet; ``random`` says which were drawn at random."""
        for group, which in ((CHOSEN, ~random), (RANDOM, random)):
            fresh = rows[which & (self._in[rows] < 0)]
            self._add(self._sums[group], fresh)
            self._in[fresh] = group

    def fit(self, learn: np.ndarray, weight: float, last: Correction, *, choose: bool) -> Correction:
        """Fit the correction on the rows that are in.

        Parameters
        ----------
        learn : ndarray of int, shape (m,)
            Those drawn at random, in the order in which they came.
        weight : float
            Of each of them; of chosen rows 1.
        last : Correction
            Whose kind and penalty stay unless ``choose``.
        choose : bool

        Returns
        -------
        Correction
        """
        rows = sum(one.n for one in self._sums)
        if rows < FEWEST:
            return last
        kind = self._choose(learn, weight) if choose and len(learn) >= FEWEST_CHOOSING else last
        whole = self._kind(self._sums[CHOSEN].plus(self._sums[RANDOM], weight), kind.anchored)
        mean, offset, coefs = whole.solve(rows, [kind.ridge * self._refit.size])
        return Correction(kind.anchored, kind.ridge, mean, offset, coefs[0], kind.evidence)

    def _kind(self, sums: _Moments, anchored: bool) -> _Moments:
        """Return the sums of one kind of map."""
        if anchored or self._refit.texts is None:
            return sums
        d, p = self._d, self._p
        out = _Moments(d, self._q)
        out.n = sums.n
        out.first = np.concatenate([sums.first[:d], sums.first[p:] + sums.first[d:p]])
        out.second = np.hstack([sums.second[:d, :d], sums.second[:d, p:] + sums.second[:d, d:p]])
        return out

    def _choose(self, learn: np.ndarray, weight: float) -> Correction:
        kinds = (True, False) if self._refit.texts is not None else (False,)
        kept = np.empty((len(kinds), len(RIDGES), len(learn)))
        ridges = [ridge * self._refit.size for ridge in RIDGES]
        rows = sum(one.n for one in self._sums)
        for fold in range(FOLDS):
            places = np.arange(fold, len(learn), FOLDS)
            test = _Moments(self._p, self._q)
            self._add(test, learn[places])
            train = self._sums[CHOSEN].plus(self._sums[RANDOM], weight).plus(test, -weight)
            for a, anchored in enumerate(kinds):
                mean, offset, coefs = self._kind(train, anchored).solve(rows - len(places), ridges)
                for start in range(0, len(places), BLOCK):
                    part = places[start : start + BLOCK]
                    features, base = self._refit._features(self._old[learn[part]], anchored)
                    theirs = self._new.take(learn[part]).astype(np.float64)
                    for r, coef in enumerate(coefs):
                        moved = base + (features - mean) @ coef + offset
                        kept[a, r, part] = self._refit._kept(normalize_rows(moved), theirs)
        return self._refit.decide(kinds, kept)
