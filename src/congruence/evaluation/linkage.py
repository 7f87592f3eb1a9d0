"""Link the vectors of a store to texts encoded by another model, from a few known pairs: the attack of an outsider."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from congruence.embeddings import normalize_rows
from congruence.errors import CongruenceWarning
from congruence.linalg.csls import ScaledSimilarity
from congruence.maps import OrthogonalMap, UnpairedMap

__all__ = ["Linkage", "link"]

#: Number of neighbors whose mean similarity corrects for hubs.
_NEAR = 10


@dataclass(frozen=True)
class Linkage:
    """Rank of each vector's own text among the candidates.

    Attributes
    ----------
    above : ndarray of int, shape (n,)
        Number of candidates that score higher than the vector's own text.
    tied : ndarray of int, shape (n,)
        Number of candidates with the same score, including the own text.
    """

    above: np.ndarray
    tied: np.ndarray

    def hits(self, k: int) -> np.ndarray:
        """Return the probability that the text is among the first k, ties broken at random, shape (n,)."""
        return np.asarray(np.clip((k - self.above) / self.tied, 0.0, 1.0))


def link(
    store: np.ndarray, texts: np.ndarray, own: np.ndarray, known: np.ndarray, rounds: int, random_state: int = 0
) -> tuple[Linkage, Linkage]:
    """Map a store into the space of other vectors using known pairs, and rank each row's own text there.

    Parameters
    ----------
    store : ndarray, shape (n, d)
    texts : ndarray, shape (m, e)
        Candidate texts, encoded by another model.
    own : ndarray of int, shape (n,)
        Index of each row's own text. Used for the known rows, and for scoring.
    known : ndarray of int, shape (p,)
        Rows of the store whose texts are known; if empty, the first map comes from :class:`congruence.UnpairedMap`.
    rounds : int
        Number of refits on the pairs and on mutual nearest neighbors of both sides.
    random_state : int, default=0
        Used for the map without pairs.

    Returns
    -------
    by_pairs, refined : Linkage
        Results with the map from the pairs alone, and after the rounds, which end early if nothing changes.

    Notes
    -----
    The means of the whole store and of all candidates are known without any pair, and are subtracted first. Similarities are
    corrected for hubs (CSLS): 2 cos(x, y) − r(x) − r(y), where r is the mean cosine with the ten nearest rows of the other side.

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data" (CSLS and refinement by mutual neighbors).
    """
    X, Y = (normalize_rows(rows) for rows in (store, texts))
    X, Y = (rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype) for rows in (X, Y))
    candidates = normalize_rows(Y)
    fitted = np.stack([known, own[known]])
    linkages: list[Linkage] = []
    for number in range(rounds + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CongruenceWarning)  # few pairs and narrower targets are expected here
            if len(fitted[0]):
                mapping = OrthogonalMap(center=False).fit(X[fitted[0]], Y[fitted[1]])
            else:  # in random order, since the order of the texts would reveal the pairs
                order = np.random.default_rng(random_state).permutation(len(Y))
                mapping = UnpairedMap(random_state=random_state).fit(X, Y[order])
        Z = normalize_rows(mapping.transform(X).astype(X.dtype, copy=False))
        scaled = ScaledSimilarity(Z, candidates, _NEAR)
        linkages = [*linkages[:1], _rank(scaled, own, tie=8 * float(np.finfo(Z.dtype).eps) * np.sqrt(Z.shape[1]))]
        mutual = np.stack(scaled.mutual()[:2])
        mutual = mutual[:, ~np.isin(mutual[0], known) & ~np.isin(mutual[1], own[known])]
        pairs = np.concatenate([[known, own[known]], mutual], axis=1)
        if number and np.array_equal(pairs, fitted):
            break  # the next round would fit the same map
        fitted = pairs
    return linkages[0], linkages[-1]


def _rank(scaled: ScaledSimilarity, own: np.ndarray, tie: float) -> Linkage:
    """Rank each row's own text; scores that differ by less than ``tie`` are the same."""
    above, tied = np.empty((2, len(own)), dtype=np.int64)
    for part, near in scaled.blocks():
        correct = near[np.arange(len(near)), own[part]][:, None]
        above[part] = (near > correct + tie).sum(axis=1)
        tied[part] = (np.abs(near - correct) <= tie).sum(axis=1)
    return Linkage(above, tied)
