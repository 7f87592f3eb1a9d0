"""What somebody with a model of their own can do with a store and a few known texts: link its other vectors to texts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import blocks
from congruence.embeddings import normalize_rows
from congruence.errors import CongruenceWarning
from congruence.maps import OrthogonalMap, UnpairedMap

__all__ = ["Linkage", "link"]

#: Neighbors whose mean similarity corrects for hubs.
_NEAR = 10


@dataclass(frozen=True)
class Linkage:
    """Where each vector's own text stands among the candidates.

    Attributes
    ----------
    above : ndarray of int, shape (n,)
        Candidates that score higher than the vector's own text.
    level : ndarray of int, shape (n,)
        Candidates that score the same, its own included.
    """

    above: np.ndarray
    level: np.ndarray

    def hits(self, k: int) -> np.ndarray:
        """Return the probability that the text is among the first k, ties broken at random, shape (n,)."""
        return np.asarray(np.clip((k - self.above) / self.level, 0.0, 1.0))


def link(
    store: np.ndarray, texts: np.ndarray, own: np.ndarray, known: np.ndarray, rounds: int, random_state: int = 0
) -> tuple[Linkage, Linkage]:
    """Map a store into the space of other vectors from known pairs, and find each row's text there.

    Parameters
    ----------
    store : ndarray, shape (n, d)
    texts : ndarray, shape (m, e)
        Candidates, encoded by another model.
    own : ndarray of int, shape (n,)
        The candidate that is each row's text. Used for the known rows, and to score.
    known : ndarray of int, shape (p,)
        Rows of the store whose texts are known; none leaves the first map to :class:`congruence.UnpairedMap`.
    rounds : int
        Refits on the pairs and on mutual nearest neighbors of both sides.
    random_state : int, default=0
        Of the map without pairs.

    Returns
    -------
    by_pairs, refined : Linkage
        By the map from the pairs alone, and after the rounds, which end early when nothing changes.

    Notes
    -----
    The mean of the whole store and that of all candidates are known without any pair and are subtracted first. Similarities are
    corrected for hubs (CSLS): 2 cos(x, y) − r(x) − r(y), r the mean cosine with the ten nearest of the other side.

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data" (CSLS and refinement by mutual neighbors).
    """
    X, Y = (normalize_rows(rows) for rows in (store, texts))
    X, Y = (rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype) for rows in (X, Y))
    offered = normalize_rows(Y)
    fitted = np.stack([known, own[known]])
    found: list[Linkage] = []
    for done in range(rounds + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CongruenceWarning)  # few pairs and narrower targets are the subject
            if len(fitted[0]):
                mapping = OrthogonalMap(center=False).fit(X[fitted[0]], Y[fitted[1]])
            else:  # the order of the texts is nothing that is known
                order = np.random.default_rng(random_state).permutation(len(Y))
                mapping = UnpairedMap(random_state=random_state).fit(X, Y[order])
        Z = normalize_rows(mapping.transform(X).astype(X.dtype, copy=False))
        linkage, best_text, best_row = _search(Z, offered, own)
        found = [*found[:1], linkage]
        mutual = np.flatnonzero(best_row[best_text] == np.arange(len(Z)))
        mutual = mutual[~np.isin(mutual, known) & ~np.isin(best_text[mutual], own[known])]
        pairs = np.stack([np.concatenate([known, mutual]), np.concatenate([own[known], best_text[mutual]])])
        if done and np.array_equal(pairs, fitted):
            break  # the next round would fit the same map
        fitted = pairs
    return found[0], found[-1]


def _search(Z: np.ndarray, Y: np.ndarray, own: np.ndarray) -> tuple[Linkage, np.ndarray, np.ndarray]:
    """Rank each row's own text, and return each row's best text and each text's best row, in blocks of rows."""
    hub_rows, hub_texts = _hubs(Z, Y), _hubs(Y, Z)
    above, level = np.empty((2, len(Z)), dtype=np.int64)
    best_text = np.empty(len(Z), dtype=np.int64)
    best_row, highest = np.zeros(len(Y), dtype=np.int64), np.full(len(Y), -np.inf)
    tie = 8 * float(np.finfo(Z.dtype).eps) * np.sqrt(Z.shape[1])
    for part in blocks(len(Z), 8 * len(Y)):
        near = 2 * (Z[part] @ Y.T) - hub_texts
        right = near[np.arange(len(near)), own[part]][:, None]
        above[part] = (near > right + tie).sum(axis=1)
        level[part] = (np.abs(near - right) <= tie).sum(axis=1)
        best_text[part] = near.argmax(axis=1)
        near -= hub_rows[part][:, None]  # the same for all texts of a row, but not for all rows of a text
        top = near.argmax(axis=0)
        value = near[top, np.arange(len(Y))]
        better = value > highest
        best_row[better], highest[better] = top[better] + part.start, value[better]
    return Linkage(above, level), best_text, best_row


def _hubs(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the mean cosine of each row of A with its nearest rows of B, shape (len(A),)."""
    k = min(_NEAR, len(B))
    out = np.empty(len(A), dtype=A.dtype)
    for part in blocks(len(A), 8 * len(B)):
        out[part] = np.partition(A[part] @ B.T, -k, axis=1)[:, -k:].mean(axis=1)
    return out
