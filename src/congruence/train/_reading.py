"""What training accepts: pairs, rows without a partner, and rows to choose by."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence._utils.ids import id_texts, is_in
from congruence._utils.validation import as_matrix, check_same_rows, check_width, shorten
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.train.rows import ArrayRows, Rows, as_rows


def space_of(rows: Any) -> Space:
    """Return the space rows say they are of."""
    return rows.space if isinstance(rows, Embeddings) else Space()


def read_pairs(X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return paired rows as float32, and their ids where they have some."""
    if isinstance(X, Embeddings) and isinstance(Y, Embeddings) and X.has_ids and Y.has_ids:
        joined = Pairs.join(X, Y)
        return np.asarray(joined.source.vectors, np.float32), np.asarray(joined.target.vectors, np.float32), joined.ids
    A, B = (
        np.asarray(as_matrix(getattr(side, "vectors", side), name), np.float32) for side, name in ((X, "X"), (Y, "Y"))
    )
    check_same_rows(len(A), len(B), "X", "Y")
    return A, B, None


def read_validation(given: Any, d_source: int, d_target: int) -> Any:
    """Return the held-out rows of both sides, float32, and their labels. Raises InputError, ParameterError."""
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 4):
        raise ParameterError(
            "Got a validation that is not (X, Y) or (X, Y, labels of X, labels of Y); expected one of these. Pass validation=(X, Y)."
        )
    if len(given) == 2:
        A, B, _ = read_pairs(*given)
        labels: tuple[np.ndarray, ...] = (np.arange(len(A)),) * 2
    else:
        A, B = (as_matrix(getattr(side, "vectors", side), f"validation[{i}]") for i, side in enumerate(given[:2]))
        labels = tuple(np.asarray(side) for side in given[2:])
        for side, rows in zip(labels, (A, B), strict=True):
            if len(side) != len(rows):
                raise ShapeError(
                    f"Got {len(side)} labels for {len(rows)} validation rows; expected one each. Pass a label for each validation row."
                )
    check_width(A.shape[1], d_source, "the validation rows of the source")
    check_width(B.shape[1], d_target, "the validation rows of the target")
    return np.asarray(A, np.float32), np.asarray(B, np.float32), *labels


def refuse_paired(given: Any, rows: Rows | None, ids: np.ndarray | None, paired: np.ndarray, side: str) -> None:
    """Refuse pairs that are listed as unpaired as well: by id where both have ids, else where most of them are there as they are."""
    if isinstance(given, (list, tuple)):
        for part in given:
            if part is not None:
                refuse_paired(part, as_rows(part, side), ids, paired, side)
        return
    if ids is not None and isinstance(given, Embeddings) and given.has_ids:
        both = id_texts(ids[is_in(ids, given.ids)]).tolist()
    elif isinstance(rows, ArrayRows):
        # Equal rows happen (one caption for two pictures), so a few of them prove nothing.
        found = _found(paired, rows)
        both = [f"row {i}" for i in np.flatnonzero(found)] if found.mean() > 0.5 else []
    else:
        both = []
    if both:
        raise InputError(
            f"Got {len(both)} of {len(paired)} pairs listed as unpaired {side} rows too ({shorten(repr(both[0]))}, …); expected each row once, since unpaired rows are to add what the pairs do not show. Remove these ids from the unpaired rows."
        )


def _found(paired: np.ndarray, rows: ArrayRows) -> np.ndarray:
    """Say which paired rows are among the others, as they are, in one pass over these and memory for the pairs only."""
    keys: dict[bytes, list[int]] = {}
    for i, row in enumerate(paired):
        keys.setdefault(row.tobytes(), []).append(i)
    found = np.zeros(len(paired), bool)
    # Sums are cheap to compare; only rows whose sum is that of a pair are looked at whole.
    sums = np.unique(paired.sum(axis=1))
    for _, block in rows.scan():
        for row in block[np.isin(block.sum(axis=1), sums)]:
            found[keys.get(row.tobytes(), [])] = True
    return found
