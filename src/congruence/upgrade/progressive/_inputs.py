"""Check and read the inputs of a progressive migration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence._utils.ids import as_ids
from congruence._utils.typing import RowsLike
from congruence._utils.validation import RowNames, check_positive, check_rows, check_same_rows, check_width
from congruence.embeddings import as_embeddings
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.maps import Map
from congruence.stores import Source
from congruence.upgrade.progressive._lazy import Rows, RowsOnDisk, as_rows, is_on_disk, row_blocks
from congruence.upgrade.progressive.texts import Scale, Texts, unit

__all__ = [
    "Store",
    "near_duplicate_cosine",
    "open_store",
    "read_labels",
    "read_texts",
    "read_weights",
    "row_limit",
    "squared_norm",
]

#: Rows are near-duplicates if their distance is at most this fraction of the median distance to the nearest row.
NEAR = 0.5


class Store(NamedTuple):
    """The rows of a store, with their ids and modality.

    Attributes
    ----------
    rows : ndarray of float32 or Lazy, shape (n, d_old)
        Vectors of the old model.
    ids : ndarray, shape (n,)
    has_ids : bool
        Whether the ids come from the store; otherwise they are row numbers.
    modality : str or None
    """

    rows: Rows
    ids: np.ndarray
    has_ids: bool
    modality: str | None


def open_store(old: RowsLike | Source | RowsOnDisk, stream: bool | None) -> Store:
    """Return the rows of a store: as an array in memory, or as a :class:`Lazy` matrix that reads them on access.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError
        If the rows are not a matrix of real numbers, contain NaN or infinity or have a row of zeros, or if ids are missing or repeated.
    """
    if isinstance(old, Source) or (stream and _is_data_set(old)):
        return _read_through(old)  # type: ignore[arg-type]  # supports what RowsOnDisk requires
    store = as_embeddings(old, "old")  # type: ignore[arg-type]  # rejects all other types
    space, vectors = store.space, store.vectors
    if stream or (stream is None and is_on_disk(vectors)):
        return Store(as_rows(vectors), store.ids, store.has_ids, space.modality)
    return Store(np.asarray(vectors, np.float32), store.ids, store.has_ids, space.modality)


def _is_data_set(old: object) -> bool:
    """Return whether an object supports slicing like an HDF5 or Zarr data set, and is not an array, a table or Embeddings."""
    known = ("__array_interface__", "iloc", "detach", "vectors")
    return (
        len(getattr(old, "shape", ())) == 2
        and hasattr(old, "__getitem__")
        and not any(hasattr(old, name) for name in known)
    )


def _read_through(old: Source | RowsOnDisk) -> Store:
    """Check all rows of a file or data set in one pass, and read its ids."""
    rows, id_parts = as_rows(old), []
    if isinstance(old, Source):
        for part_ids, block in old.scan():
            check_rows(block, "old", ids=None if part_ids is None else RowNames(part_ids, 0))
            id_parts.append(part_ids)
    else:
        for part in row_blocks(rows):
            check_rows(rows[part], "old")
    has_ids = isinstance(old, Source) and old.has_ids
    ids = as_ids(pa.concat_arrays(id_parts)) if has_ids else np.arange(len(rows))
    return Store(rows, ids, has_ids, old.space.modality if isinstance(old, Source) else None)


def squared_norm(rows: Rows) -> float:
    """Return the mean squared norm of rows."""
    total = 0.0
    for part in row_blocks(rows):
        block = rows[part]
        total += float(np.einsum("ij,ij->", block, block, dtype=np.float64))
    return total / len(rows)


def read_texts(old: RowsLike | None, new: RowsLike | None, mapping: Map, rows: Rows) -> Texts | None:
    """Check the texts of both models, and return them with their scale over the store's rows; None without texts. Raises InputError, ShapeError."""
    if (old is None) != (new is None):
        raise InputError(
            "Got texts of one model only; expected the same texts encoded by both. Pass both texts=… and new_texts=…, or neither."
        )
    if old is None or new is None:
        return None
    ours, theirs = as_embeddings(old, "texts").vectors, as_embeddings(new, "new_texts").vectors
    check_same_rows(len(ours), len(theirs), "texts", "new_texts")
    check_width(ours.shape[1], rows.shape[1], "Progressive (texts)", mapping.d_target)
    if theirs.shape[1] != mapping.d_target:
        raise ShapeError(
            f"Got {theirs.shape[1]}-d new_texts; expected {mapping.d_target}-d ones, like the map's target. Pass new_texts=… encoded by the new model."
        )
    return Texts(unit(ours), unit(theirs), Scale.of(rows, unit(ours)))


def read_labels(labels: RowsLike, n: int, m: int) -> np.ndarray:
    """Check labels, and return the index of each row's own text among m texts, −1 if unknown. Raises ShapeError, ParameterError."""
    out = np.asarray(labels)
    if out.shape != (n,) or out.dtype.kind not in "iu":
        raise ShapeError(
            f"Got labels of shape {out.shape} and type {out.dtype}; expected one integer for each of {n} rows. Pass labels=… with the index of each row's text, −1 if unknown."
        )
    if out.min() < -1 or out.max() >= m:
        raise ParameterError(
            f"Got labels from {out.min()} to {out.max()}; expected indices of {m} texts, counted from 0, or −1 if unknown. Pass labels=… in this range."
        )
    return out.astype(np.int64)


def read_weights(weights: RowsLike, n: int) -> np.ndarray:
    """Check weights, and return them as float64. Raises ParameterError."""
    out = np.asarray(weights, dtype=np.float64)
    if out.shape != (n,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        raise ParameterError(
            f"Got weights of shape {out.shape}; expected {n} finite numbers ≥ 0, at least one of them positive. Pass weights=… with one number per row."
        )
    return out


def near_duplicate_cosine(rows: Rows, random_state: int) -> float:
    """Return the cosine from which rows are near-duplicates: that of half the median distance to the nearest other row, over 1,000 random rows."""
    chosen = np.random.default_rng([random_state, 8]).permutation(len(rows))[:1000]
    sample = rows[chosen]
    near = sample @ sample.T
    np.fill_diagonal(near, -1.0)
    distance = np.sqrt(np.median(np.maximum(2 - 2 * near.max(axis=1), 0.0))) if len(sample) > 1 else 0.0
    return float(min(1 - (NEAR * distance) ** 2 / 2, 1 - 1e-6))


def row_limit(n: int, budget: int | None, share: float | None) -> int:
    """Return the total number of rows to re-embed, out of n. Raises ParameterError."""
    if budget is not None and share is not None:
        raise ParameterError(
            f"Got budget={budget} and share={share}; expected one of the two. Leave out budget=… or share=…."
        )
    if budget is not None:
        check_positive(budget, "budget", integer=True)
    if share is not None:
        check_positive(share, "share")
    return min(n, budget if budget is not None else round((1 if share is None else share) * n))
