"""The refit from sums over re-embedded rows, so that its memory does not grow with their number."""

from __future__ import annotations

import numpy as np

from congruence.upgrade.progressive._correction import GATED, PLAIN, TEXTS, Parts, Solved
from congruence.upgrade.progressive._lazy import Rows
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive.refit import FEWEST, FEWEST_CHOOSING, FOLDS, RIDGES, Correction, Refit

__all__ = ["Sums"]

#: Number of rows that are added, or compared, at a time.
BLOCK = 4096

#: Groups with sums of their own: chosen rows, and random rows, whose weight changes from stage to stage.
CHOSEN, RANDOM = 0, 1


class _Moments:
    """Number of rows, sum of z = [features, residuals], and sum of the outer products of features and z."""

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
        """Return the sums over both sets of rows, with a weight on the other's."""
        out = _Moments(*self.second.shape[:1], len(self.first) - len(self.second))
        out.n = self.n + weight * other.n
        out.first = self.first + weight * other.first
        out.second = self.second + weight * other.second
        return out

    def solve(self, rows: float, ridges: list[float]) -> list[Solved]:
        """Return the ridge regression for each penalty; ``rows`` is the unweighted number of rows."""
        p, mean = len(self.second), self.first / self.n
        centered = (self.second - self.n * np.outer(mean[:p], mean)) * (rows / self.n)
        gram, cross = centered[:, :p], centered[:, p:]
        values, vectors = np.linalg.eigh(gram)
        values, rotated = np.maximum(values, 0.0), vectors.T @ cross
        coefs = [vectors @ (rotated / (values + ridge)[:, None]) for ridge in ridges]
        return [Solved(mean[:p], mean[p:], coef) for coef in coefs]


class Sums:
    """Fits the correction of a :class:`Refit` from sums instead of the rows.

    Parameters
    ----------
    refit : Refit
    old : ndarray or Lazy, shape (n, d_old)
    new : Received

    Notes
    -----
    With texts, features are [x, t(x)] and residuals y − b(x). The map without texts has features x and residuals y − b(x) + t(x), whose sums follow from
    the sums with texts by addition, so one set serves all kinds of map. The choice between kinds and penalties leaves out one fold of random rows at a time,
    and reads these rows again.
    """

    def __init__(self, refit: Refit, old: Rows, new: Received) -> None:
        self._refit, self._old, self._new = refit, old, new
        self._d, self._q = old.shape[1], refit.mapping.d_target
        self._p = self._d + (self._q if refit.texts is not None else 0)
        self._sums = [_Moments(self._p, self._q) for _ in (CHOSEN, RANDOM)]
        #: Group to whose sums each row of the store was added, −1 for none.
        self._group = np.full(len(old), -1, np.int8)

    def _parts(self, rows: np.ndarray) -> Parts:
        refit = self._refit
        return refit.parts(self._old[rows], refit.kinds[0], refit.gate)

    def _z(self, rows: np.ndarray) -> np.ndarray:
        parts, kind = self._parts(rows), PLAIN if self._refit.texts is None else TEXTS
        return np.hstack([parts.features(kind), self._new.take(rows) - parts.start(kind)])

    def _add(self, sums: _Moments, rows: np.ndarray, sign: float = 1.0) -> None:
        for start in range(0, len(rows), BLOCK):
            sums.add(self._z(rows[start : start + BLOCK]), sign)

    def remove(self, rows: np.ndarray) -> None:
        """Remove rows from the sums, before they get other vectors."""
        for group, sums in enumerate(self._sums):
            self._add(sums, rows[self._group[rows] == group], -1.0)
        self._group[rows] = -1

    def add_new(self, rows: np.ndarray, random: np.ndarray) -> None:
        """Add those of the rows, shape (e,), that were not added yet; ``random``, shape (e,), marks those drawn at random."""
        for group, which in ((CHOSEN, ~random), (RANDOM, random)):
            fresh = rows[which & (self._group[rows] < 0)]
            self._add(self._sums[group], fresh)
            self._group[fresh] = group

    def fit(self, learn: np.ndarray, weight: float, last: Correction, *, choose: bool) -> Correction:
        """Fit the correction on the rows that were added.

        Parameters
        ----------
        learn : ndarray of int, shape (m,)
            Rows drawn at random, in order of arrival.
        weight : float
            Weight of each of them; chosen rows have weight 1.
        last : Correction
            Its kind and penalty are kept unless ``choose`` is set.
        choose : bool

        Returns
        -------
        Correction
        """
        rows = sum(sums.n for sums in self._sums)
        if rows < FEWEST:
            return last
        kind = self._choose(learn, weight) if choose and len(learn) >= FEWEST_CHOOSING else last
        whole = self._sums[CHOSEN].plus(self._sums[RANDOM], weight)
        regressions = (TEXTS, PLAIN) if kind.kind == GATED else (kind.kind,)
        return self._refit.correction(kind, self._solve(whole, rows, regressions, [kind.ridge * self._refit.size])[0])

    def _solve(
        self, sums: _Moments, rows: float, regressions: tuple[str, ...], ridges: list[float]
    ) -> list[dict[str, Solved]]:
        """Return the regressions by kind, for each penalty."""
        by_kind = [self._for_kind(sums, kind).solve(rows, ridges) for kind in regressions]
        return [dict(zip(regressions, solved, strict=True)) for solved in zip(*by_kind, strict=True)]

    def _for_kind(self, sums: _Moments, kind: str) -> _Moments:
        """Return the sums for one kind of regression."""
        if kind == TEXTS or self._refit.texts is None:
            return sums
        d, p = self._d, self._p
        out = _Moments(d, self._q)
        out.n = sums.n
        out.first = np.concatenate([sums.first[:d], sums.first[p:] + sums.first[d:p]])
        out.second = np.hstack([sums.second[:d, :d], sums.second[:d, p:] + sums.second[:d, d:p]])
        return out

    def _choose(self, learn: np.ndarray, weight: float) -> Correction:
        """Choose the kind of map and its penalty by cross-validation on random rows."""
        kinds = self._refit.kinds
        kept = np.empty((len(kinds), len(RIDGES), len(learn), 2))
        ridges = [ridge * self._refit.size for ridge in RIDGES]
        rows = sum(sums.n for sums in self._sums)
        for fold in range(FOLDS):
            places = np.arange(fold, len(learn), FOLDS)
            test = _Moments(self._p, self._q)
            self._add(test, learn[places])
            train = self._sums[CHOSEN].plus(self._sums[RANDOM], weight).plus(test, -weight)
            solved = self._solve(train, rows - len(places), kinds[-2:], ridges)
            for start in range(0, len(places), BLOCK):
                part = places[start : start + BLOCK]
                theirs = self._new.take(learn[part]).astype(np.float64)
                kept[:, :, part] = self._refit.compare(self._parts(learn[part]), theirs, solved)
        return self._refit.decide(kept)
