"""Retrieval between the two sides of a joint space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence._utils.arrays import to_numpy
from congruence._utils.typing import Labels
from congruence._utils.validation import check_same_rows
from congruence.errors import InputError
from congruence.linalg.csls import mean_of_largest
from congruence.metrics import recall_at_k


def recalls(
    X: np.ndarray,
    Y: np.ndarray,
    x_labels: Labels | None = None,
    y_labels: Labels | None = None,
    ks: Sequence[int] = (1, 5, 10),
    banks: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, float]:
    """Return recall at k in both directions and their mean: ``"source_to_target@1"``, ``"target_to_source@1"``,
    ``"mean@1"``.

    Rows with equal labels match, by default those at equal positions; a k above the number of rows of a side is left
    out. With ``banks`` of queries of both sides, hubs are corrected for by CSLS.
    """
    if x_labels is None or y_labels is None:
        check_same_rows(len(X), len(Y), "X", "Y")
        x_labels = y_labels = np.arange(len(X))
    x_labels, y_labels = to_numpy(x_labels), to_numpy(y_labels)
    forth, back = partners(x_labels, y_labels), partners(y_labels, x_labels)
    scores: dict[str, float] = {}
    hubness, (there, home) = (None, (None, None)) if banks is None else ("csls", banks)
    for k in ks:
        if k <= min(len(X), len(Y)):
            forward = recall_at_k(X, Y, forth, k=k, hubness=hubness, bank=there)
            backward = recall_at_k(Y, X, back, k=k, hubness=hubness, bank=home)
            scores |= {f"source_to_target@{k}": forward, f"target_to_source@{k}": backward}
            scores[f"mean@{k}"] = (forward + backward) / 2
    return scores


def partners(queries: np.ndarray, gallery: np.ndarray) -> list[np.ndarray]:
    """Return for each query's label the rows of the gallery that have it."""
    order = np.argsort(gallery, kind="stable")
    first, past = (np.searchsorted(gallery[order], queries, side) for side in ("left", "right"))
    if (first == past).any():
        lone = queries[first == past][0]
        raise InputError(f"Got a row labeled {lone!r} with no partner on the other side.", "Drop this row.")
    return [order[a:b] for a, b in zip(first, past, strict=True)]


def chance_recall(queries: np.ndarray, gallery: np.ndarray, k: int) -> float:
    """Return the mean probability that one of k gallery rows, drawn without replacement, has a query's label."""
    labels, counts = np.unique(gallery, return_counts=True)
    own = counts[np.searchsorted(labels, queries)].astype(float)
    missed = np.ones(len(queries))
    for drawn in range(min(k, len(gallery))):
        missed *= np.maximum(len(gallery) - own - drawn, 0) / (len(gallery) - drawn)
    return float(np.mean(1 - missed))


def first_of_label(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the number of the first of the equal rows of each label, such as an image repeated for each caption."""
    codes = np.unique(labels, return_inverse=True)[1]
    numbers = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return np.sort(np.unique(np.column_stack([codes, numbers]), axis=0, return_index=True)[1])


def unique_pairs(
    X: np.ndarray, Y: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return both sides of pairs without repeated rows of a label, and the labels of each."""
    x, y = first_of_label(X, labels), first_of_label(Y, labels)
    return X[x], Y[y], labels[x], labels[y]


def mean_recall(
    X: np.ndarray,
    Y: np.ndarray,
    x_labels: Labels | None = None,
    y_labels: Labels | None = None,
    banks: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:
    """Return the mean of recall at 1 in both directions, by which methods are selected; see ``recalls``."""
    return recalls(X, Y, x_labels, y_labels, (1,), banks)["mean@1"]


def left_out_ranks(
    pairs: tuple[np.ndarray, np.ndarray],
    pools: tuple[np.ndarray, np.ndarray],
    labels: np.ndarray,
    banks: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Return the reciprocal rank and the hits at 1 of left-out pairs (n, 2), the mean of both directions.

    Mapped unit rows of a side are searched among those of the other and its pool; rows of equal labels are one item,
    whose nearest row counts. With ``banks`` of queries, hubs are corrected for by CSLS.
    """
    order = np.argsort(labels, kind="stable")
    codes, firsts = np.unique(labels[order], return_index=True)
    own = np.arange(len(labels)), np.searchsorted(codes, labels)
    scores = []
    for side in (0, 1):
        gallery = np.concatenate([pairs[1 - side], pools[1 - side]])
        near = pairs[side] @ gallery.T
        if banks is not None:
            near -= mean_of_largest(gallery @ banks[side].T, 10, axis=1).astype(near.dtype) / 2
        items, loose = np.maximum.reduceat(near[:, order], firsts, axis=1), near[:, len(order) :]
        best = items[own][:, None]
        items[own] = -np.inf
        rank = 1.0 + sum((best < S).sum(axis=1) + (best == S).sum(axis=1) / 2 for S in (items, loose))
        scores.append(np.column_stack([1 / rank, rank <= 1]))
    return np.asarray(np.mean(scores, axis=0))
