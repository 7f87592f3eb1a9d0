"""What a plan is given, checked."""

from __future__ import annotations

import numpy as np

from congruence._inputs import as_embeddings
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_same_rows, check_width
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.maps import Map
from congruence.upgrade.progressive.texts import Scale, Texts, unit

__all__ = ["near_cosine", "read_labels", "read_texts", "read_weights"]

#: Near-duplicates are nearer than this share of the usual distance to the nearest row.
NEAR = 0.5


def read_texts(old: RowsLike | None, new: RowsLike | None, mapping: Map, rows: np.ndarray) -> Texts | None:
    if (old is None) != (new is None):
        raise InputError(
            "Got texts of one model only; expected the same texts by both. Pass texts=… and new_texts=…, or neither."
        )
    if old is None or new is None:
        return None
    ours, theirs = as_embeddings(old, "texts").vectors, as_embeddings(new, "new_texts").vectors
    check_same_rows(len(ours), len(theirs), "texts", "new_texts")
    check_width(ours.shape[1], rows.shape[1], "Progressive (texts)", mapping.d_target)
    if theirs.shape[1] != mapping.d_target:
        raise ShapeError(
            f"Got {theirs.shape[1]}-d new_texts; expected {mapping.d_target}-d ones, of the map's target. Pass new_texts=… of the new model."
        )
    return Texts(unit(ours), unit(theirs), Scale.of(rows, unit(ours)))


def read_labels(labels: RowsLike, n: int, m: int) -> np.ndarray:
    out = np.asarray(labels)
    if out.shape != (n,) or out.dtype.kind not in "iu":
        raise ShapeError(
            f"Got labels of shape {out.shape} and type {out.dtype}; expected one integer for each of {n} rows. Pass labels=… with row numbers of texts."
        )
    if out.min() < -1 or out.max() >= m:
        raise ParameterError(
            f"Got labels from {out.min()} to {out.max()}; expected row numbers of {m} texts, or −1. Pass labels=… in this range."
        )
    return out.astype(np.int64)


def read_weights(weights: RowsLike, n: int) -> np.ndarray:
    out = np.asarray(weights, dtype=np.float64)
    if out.shape != (n,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        raise ParameterError(
            f"Got weights of shape {out.shape}; expected {n} numbers ≥ 0 of which some are positive. Pass weights=… with one a row."
        )
    return out


def near_cosine(rows: np.ndarray, random_state: int) -> float:
    """Return the cosine from which rows are near-duplicates: at half the usual distance to the nearest other row."""
    some = np.random.default_rng([random_state, 8]).permutation(len(rows))[:1000]
    near = rows[some] @ rows[some].T
    np.fill_diagonal(near, -1.0)
    usual = np.sqrt(np.median(np.maximum(2 - 2 * near.max(axis=1), 0.0))) if len(some) > 1 else 0.0
    return float(min(1 - (NEAR * usual) ** 2 / 2, 1 - 1e-6))
