"""A query's list of mapped rows, whose order is corrected by those of them that are re-embedded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence._utils.ids import id_rows

ROUND = 10  # rows encoded at a time for a query; these correct the scores by which the next are chosen
POOL = 250  # mapped rows that a query looks at
WIDTH, NOISE = 0.15, 0.1  # of the kernel exp((cos − 1) / WIDTH) between old rows, and variance added to its diagonal
TRIES = 3  # how often a row that cannot be encoded is asked for


class RankedList:
    """The first rows of a query's list, (c,), with the map's scores of all and the new model's of some."""

    def __init__(
        self, query: np.ndarray, keys: np.ndarray, old: np.ndarray, mapped: np.ndarray, exact: np.ndarray
    ) -> None:
        self.query, self.keys = query, keys
        self.mapped = np.asarray(mapped, np.float64)
        self.exact = np.asarray(exact, np.float64)  # NaN for rows that are not re-embedded
        old = np.asarray(old, np.float32)
        self._old = old / np.maximum(np.sqrt(np.einsum("ij,ij->i", old, old))[:, None], 1e-30)
        self._known = np.flatnonzero(np.isfinite(self.exact))  # places of the re-embedded rows, in order of arrival
        self._kernel = np.empty((0, len(keys)), np.float32)  # (known, c)
        self._scores = np.empty(0) if len(self._known) else self.mapped

    def scores(self) -> np.ndarray:
        """Return scores, (c,): those of the new model where it is known, else those of the map, corrected by them."""
        if len(self._scores) < len(self.keys):
            near = self._old[self._known[len(self._kernel) :]] @ self._old.T
            self._kernel = np.concatenate([self._kernel, np.exp((near - 1) / np.float32(WIDTH))])
            error = self.exact[self._known] - self.mapped[self._known]
            level = error.mean()
            gram = self._kernel[:, self._known]
            gram[np.diag_indices(len(gram))] += np.float32(NOISE)
            weights = np.linalg.solve(gram, (error - level).astype(np.float32))
            self._scores = self.mapped + level + weights @ self._kernel
            self._scores[self._known] = self.exact[self._known]
        return self._scores

    def ranked(self, skips: Mapping[Any, int], most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return rank among all, and key, of the rows that may be encoded, among the first ``most``."""
        order = np.argsort(-self.scores(), kind="stable")[:most]
        ranks = np.flatnonzero(np.isnan(self.exact)[order])
        keys = self.keys[order[ranks]]
        if skips:
            open_ = np.array([skips.get(key, 0) < TRIES for key in keys.tolist()], bool)
            return ranks[open_], keys[open_]
        return ranks, keys

    def learn(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Score rows by the new model's vectors of them, (m, d_new)."""
        place = id_rows(keys, self.keys)
        here = np.flatnonzero((place >= 0) & np.isnan(self.exact))
        if len(here):
            self.exact[here] = vectors[place[here]] @ self.query
            self._known, self._scores = np.concatenate([self._known, here]), np.empty(0)

    def first(self, k: int, complete: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return places, scores and whether re-embedded of the first ``k``; if complete, re-embedded rows first."""
        if complete and len(self._known) >= k:
            best = self._known[np.argsort(-self.exact[self._known], kind="stable")[:k]]
            return best, self.exact[best], np.ones(len(best), bool)
        scores, has = self.scores(), np.isfinite(self.exact)
        order = np.lexsort((-scores, ~has)) if complete else np.argsort(-scores, kind="stable")
        return order[:k], scores[order[:k]], has[order[:k]]
