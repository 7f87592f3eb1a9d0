"""What a plan is given, checked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence._inputs import as_embeddings
from congruence._utils.ids import as_ids
from congruence._utils.typing import RowsLike
from congruence._utils.validation import RowNames, check_positive, check_rows, check_same_rows, check_width
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.maps import Map
from congruence.stores import Source
from congruence.upgrade.progressive._lazy import Rows, RowsOnDisk, as_rows, is_on_disk, row_blocks
from congruence.upgrade.progressive.texts import Scale, Texts, unit

__all__ = [
    "Store",
    "most_rows",
    "near_cosine",
    "open_store",
    "read_labels",
    "read_texts",
    "read_weights",
    "squared_norm",
]

#: Near-duplicates are nearer than this share of the usual distance to the nearest row.
NEAR = 0.5


class Store(NamedTuple):
    """A store's rows and what is known of them.

    Attributes
    ----------
    rows : ndarray of float32 or Lazy, shape (n, d)
    ids : ndarray, shape (n,)
    has_ids : bool
    modality : str or None
    """

    rows: Rows
    ids: np.ndarray
    has_ids: bool
    modality: str | None


def open_store(old: RowsLike | Source | RowsOnDisk, stream: bool | None) -> Store:
    """Return a store's rows: in memory, or as they are read from where they lie.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros, or ids are missing, repeated
        or without a partner.
    """
    if isinstance(old, Source) or (stream and _is_data_set(old)):
        return _read_through(old)  # type: ignore[arg-type]  # it has what RowsOnDisk asks for
    found = as_embeddings(old, "old")  # type: ignore[arg-type]  # anything else is refused there
    space, vectors = found.space, found.vectors
    if stream or (stream is None and is_on_disk(vectors)):
        return Store(as_rows(vectors), found.ids, found.has_ids, space.modality)
    return Store(np.asarray(vectors, np.float32), found.ids, found.has_ids, space.modality)


def _is_data_set(old: object) -> bool:
    """Say whether rows are asked for from a file behind an object, and are no array or table already."""
    known = ("__array_interface__", "iloc", "detach", "vectors")
    return (
        len(getattr(old, "shape", ())) == 2
        and hasattr(old, "__getitem__")
        and not any(hasattr(old, one) for one in known)
    )


def _read_through(old: Source | RowsOnDisk) -> Store:
    """Check all rows of a file or data set once, and read its ids."""
    rows, names = as_rows(old), []
    if isinstance(old, Source):
        for ids, block in old.scan():
            check_rows(block, "old", ids=None if ids is None else RowNames(ids, 0))
            names.append(ids)
    else:
        for part in row_blocks(rows):
            check_rows(rows[part], "old")
    has_ids = isinstance(old, Source) and old.has_ids
    found = as_ids(pa.concat_arrays(names)) if has_ids else np.arange(len(rows))
    return Store(rows, found, has_ids, old.space.modality if isinstance(old, Source) else None)


def squared_norm(rows: Rows) -> float:
    """Return the mean squared norm of rows."""
    total = 0.0
    for part in row_blocks(rows):
        block = rows[part]
        total += float(np.einsum("ij,ij->", block, block, dtype=np.float64))
    return total / len(rows)


def read_texts(old: RowsLike | None, new: RowsLike | None, mapping: Map, rows: Rows) -> Texts | None:
    """Return the texts of both models with their scale over the store's rows; None without any. Raises InputError, ShapeError."""
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
    """Return each row's own text as a row number of m texts, −1 where it is not known. Raises ShapeError, ParameterError."""
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
    """Return how often each row is asked for. Raises ParameterError."""
    out = np.asarray(weights, dtype=np.float64)
    if out.shape != (n,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        raise ParameterError(
            f"Got weights of shape {out.shape}; expected {n} numbers ≥ 0 of which some are positive. Pass weights=… with one a row."
        )
    return out


def near_cosine(rows: Rows, random_state: int) -> float:
    """Return the cosine from which rows are near-duplicates: at half the usual distance to the nearest other row."""
    some = np.random.default_rng([random_state, 8]).permutation(len(rows))[:1000]
    found = rows[some]
    near = found @ found.T
    np.fill_diagonal(near, -1.0)
    usual = np.sqrt(np.median(np.maximum(2 - 2 * near.max(axis=1), 0.0))) if len(some) > 1 else 0.0
    return float(min(1 - (NEAR * usual) ** 2 / 2, 1 - 1e-6))


def most_rows(n: int, budget: int | None, share: float | None) -> int:
    """Return how many of n rows to re-embed in all. Raises ParameterError."""
    if budget is not None and share is not None:
        raise ParameterError(
            f"Got budget={budget} and share={share}; expected one of the two. Leave out share=…, for example."
        )
    if budget is not None:
        check_positive(budget, "budget", integer=True)
    if share is not None:
        check_positive(share, "share")
    return min(n, budget if budget is not None else round((1 if share is None else share) * n))
