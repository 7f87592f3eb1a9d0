"""Near-duplicates among the anchors. They are scored together; otherwise a map would be evaluated on items almost identical to its training items."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from congruence.embeddings import normalize_rows
from congruence.metrics import nearest
from congruence.upgrade.certify.tables import Tables

__all__ = ["deal", "near_duplicates", "shuffle"]

#: A neighbor at less than this share of the distance to the tenth one is a near-duplicate. Rows spread evenly over four
#: dimensions or more have no such neighbors: the first of ten stands at 10^(−1/4) = 0.56 of the tenth's distance there.
_NEAR = 0.5

#: The neighbor whose distance sets the scale: groups up to this size are found.
_SCALE = 10

#: The members of a small, tight cluster are far from all other rows as well, but no nearer to each other than rows of a larger cluster
#: are. Near-duplicates are also nearer than this share of the distance to the tenth neighbor where the rows are dense, its 5 % quantile.
_DENSE = 0.7
_QUANTILE = 0.05

#: Rows whose tenth neighbor is nearer than this share of the median are copies of one row, and no measure of how dense the others are.
_COPIES = 0.1

#: A group larger than this share of the rows says that the scale is wrong, not that the rows are copies.
_LARGEST = 0.25


def near_duplicates(tables: Tables) -> np.ndarray:
    """Group stored rows that are near-duplicates in either model.

    Parameters
    ----------
    tables : Tables

    Returns
    -------
    ndarray of int, shape (n,)
        Group of each row; a row without near-duplicates is a group of one.
    """
    n = tables.n
    k = min(_SCALE, n - 2)
    own = np.arange(n)
    links = []
    for side in (tables.source, tables.target):
        if tables.store_modality not in side or k < 2:
            continue
        rows = side[tables.store_modality]
        rows = normalize_rows(rows)
        near = nearest(rows, k, rows, left_out=own)
        apart = np.stack([np.linalg.norm(rows[column] - rows, axis=1) for column in near.T], axis=1)
        tenth = apart[:, -1]
        dense = np.quantile(tenth[tenth >= _COPIES * np.median(tenth)], _QUANTILE)
        who, place = np.nonzero(apart < np.minimum(_NEAR * tenth, _DENSE * dense)[:, None])
        links.append((who, near[who, place]))
    if not links:
        return own
    a, b = (np.concatenate(ends) for ends in zip(*links, strict=True))
    group = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(n, n)), directed=False)[1]
    return own if np.bincount(group).max() > max(_LARGEST * n, 2) else group


def deal(groups: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Split items into parts of nearly equal size, without splitting a group.

    Parameters
    ----------
    groups : ndarray of int, shape (n,)
    parts : int
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of int, shape (n,)
    """
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    shuffled = rng.permutation(len(names))
    load, part = np.zeros(parts, dtype=int), np.empty(len(names), dtype=int)
    for one in shuffled[
        np.argsort(-sizes[shuffled], kind="stable")
    ]:  # the largest first, so that the small ones even out
        part[one] = load.argmin()
        load[part[one]] += sizes[one]
    return part[group]


def shuffle(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a random order of the items in which groups stay together."""
    place = rng.permutation(int(groups.max()) + 1)[groups]
    return np.argsort(place, kind="stable")
