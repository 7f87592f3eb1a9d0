"""Read the inputs of training: pairs, unpaired rows, and validation rows."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from congruence._utils.ids import id_texts, is_in
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import as_matrix, check_same_rows, check_width, shorten
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import PairingWarning, ParameterError, ShapeError
from congruence.maps.heads import SIDES
from congruence.train.rows import ArrayRows, Rows, Supply, as_rows, sample

if TYPE_CHECKING:
    from congruence.maps import Map

#: Unpaired rows of the source and of the target.
Unpaired: TypeAlias = tuple[Supply, Supply]
#: Held-out rows of both sides: paired, or with labels, where rows with equal labels match.
Validation: TypeAlias = "tuple[RowsLike, RowsLike] | tuple[RowsLike, RowsLike, Labels, Labels]"

#: Largest number of unpaired rows of a side among which left-out pairs are searched.
DISTRACTORS = 1000


def fold_numbers(labels: np.ndarray, folds: int, random_state: int) -> np.ndarray:
    """Return the number of each pair's fold, at most ``folds``, the same for pairs of equal labels 0, 1, …"""
    order = np.random.default_rng(random_state).permutation(labels.max() + 1)
    return order[labels] % min(folds, len(order))


@dataclass(frozen=True)
class TrainingData:
    """The data that a method is trained on; validation rows with equal labels match. With ``distractors``, rows of both
    sides, validation pairs are searched among these too.
    """

    source: np.ndarray
    target: np.ndarray
    unpaired_source: Rows | None
    unpaired_target: Rows | None
    validation: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None
    distractors: tuple[np.ndarray, np.ndarray] | None = None

    def leave_out(self, out: np.ndarray, labels: np.ndarray) -> TrainingData:
        """Return the data without some pairs, which become the validation rows, among a sample of the unpaired."""
        heldout = self.source[out], self.target[out], labels[out], labels[out]
        pools = [
            np.empty((0, paired.shape[1]), np.float32) if rows is None else sample(rows, DISTRACTORS)
            for rows, paired in ((self.unpaired_source, self.source), (self.unpaired_target, self.target))
        ]
        kept = self.source[~out], self.target[~out]
        return replace(self, source=kept[0], target=kept[1], validation=heldout, distractors=(pools[0], pools[1]))

    def sizes(self) -> dict[str, int]:
        """Return the numbers of pairs and of unpaired rows of each side."""
        unpaired = {"n_unpaired_source": self.unpaired_source, "n_unpaired_target": self.unpaired_target}
        return {"n_pairs": len(self.source)} | {k: 0 if rows is None else len(rows) for k, rows in unpaired.items()}

    def facts(self) -> dict[str, object]:
        """Return what identifies these data: sizes, and a digest of the pairs and of a sample of the unpaired rows."""
        pools = [sample(rows, 64) for rows in (self.unpaired_source, self.unpaired_target) if rows is not None]
        digest = hashlib.sha256()
        for rows in (self.source, self.target, *pools):
            digest.update(np.ascontiguousarray(rows).tobytes())
        return {**self.sizes(), "digest": digest.hexdigest()}


def read_data(
    mapping: Map, X: RowsLike, Y: RowsLike | None, unpaired: Unpaired | None, validation: Validation | None
) -> TrainingData:
    """Return the data that a map is trained on, and store the number and names of features on the map."""
    source, target, ids = read_pairs(X, Y, mapping)
    unpaired = (None, None) if unpaired is None else unpaired
    if not isinstance(unpaired, (tuple, list)) or len(unpaired) != 2:
        raise ParameterError("Got unpaired that is not a pair.", "Pass `unpaired=(U, V)`, where either may be None.")
    sides = []
    for side, supply, name, paired in zip(SIDES, unpaired, "XY", (source, target), strict=True):
        rows = as_rows(supply, f"unpaired_{side}")
        if rows is not None:
            if rows.dim != paired.shape[1]:
                raise ShapeError(
                    f"Got unpaired rows of width {rows.dim} beside paired ones ({name}) of width {paired.shape[1]}.",
                    "Encode them with the same model.",
                )
            warn_paired(supply, rows, ids, paired, side)
        sides.append(rows)
    heldout = read_validation(validation, source.shape[1], target.shape[1])
    return TrainingData(source, target, sides[0], sides[1], heldout)


def space_of(rows: object) -> Space:
    """Return the space of embeddings, or an unknown space for other rows."""
    return rows.space if isinstance(rows, Embeddings) else Space()


def join_by_id(X: object, Y: object) -> Pairs | None:
    """Return the rows paired by id, or None unless both sides have ids."""
    both = isinstance(X, Embeddings) and isinstance(Y, Embeddings) and X.has_ids and Y.has_ids
    return Pairs.join(X, Y) if both else None  # type: ignore[arg-type]


def read_pairs(
    X: RowsLike, Y: RowsLike | None, mapping: Map | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return paired rows as float32, and their ids if both sides have ids; ``mapping`` stores the features."""
    joined = join_by_id(X, Y)
    if joined is not None:
        X, Y = joined.source, joined.target
    if mapping is not None:
        A, B, _ = mapping._check_pairs(X, Y)
    else:
        A, B = (as_matrix(getattr(side, "vectors", side), name) for side, name in ((X, "X"), (Y, "Y")))
        check_same_rows(len(A), len(B), "X", "Y")
    return np.asarray(A, np.float32), np.asarray(B, np.float32), None if joined is None else joined.ids


def read_validation(
    validation: Validation | None, d_source: int, d_target: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the held-out rows of both sides, float32, and their labels."""
    if validation is None:
        return None
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 4):
        raise ParameterError(
            "Got a validation that is not a tuple of two or four.", "Pass `validation=(X, Y)`, or with labels of both."
        )
    if len(validation) == 2:
        A, B, _ = read_pairs(validation[0], validation[1])
        x_labels = y_labels = np.arange(len(A))
    else:
        A, B = (as_matrix(getattr(side, "vectors", side), f"validation[{i}]") for i, side in enumerate(validation[:2]))
        x_labels, y_labels = np.asarray(validation[2]), np.asarray(validation[3])
        for labels, rows in ((x_labels, A), (y_labels, B)):
            if len(labels) != len(rows):
                raise ShapeError(f"Got {len(labels)} labels for {len(rows)} validation rows.", "Pass one per row.")
    check_width(A.shape[1], d_source, "the validation rows of the source")
    check_width(B.shape[1], d_target, "the validation rows of the target")
    return np.asarray(A, np.float32), np.asarray(B, np.float32), x_labels, y_labels


def warn_paired(supply: Supply, rows: Rows | None, ids: np.ndarray | None, paired: np.ndarray, side: str) -> None:
    """Warn of pairs that are also listed as unpaired rows: by id if both have ids, else by their numbers."""
    if isinstance(supply, (list, tuple)):
        for part in supply:
            if part is not None:
                warn_paired(part, as_rows(part, side), ids, paired, side)
        return
    if ids is not None and isinstance(supply, Embeddings) and supply.has_ids:
        repeated = id_texts(ids[is_in(ids, supply.ids)]).tolist()
    elif isinstance(rows, ArrayRows):
        repeated = [f"row {i}" for i in np.flatnonzero(_has_equal_row(paired, rows))]
    else:
        repeated = []
    if repeated:
        first = shorten(repr(repeated[0]))
        warnings.warn(
            PairingWarning(
                f"{len(repeated)} of {len(paired)} pairs are listed as unpaired {side} rows too ({first}, …).",
                "Remove these rows from the unpaired rows, unless several items share a row, such as a caption.",
            ),
            stacklevel=4,
        )


def _has_equal_row(paired: np.ndarray, rows: ArrayRows) -> np.ndarray:
    """Return a mask of the paired rows that have an equal unpaired row, with memory for the pairs only."""
    keys: dict[bytes, list[int]] = {}
    for i, row in enumerate(paired):
        keys.setdefault(row.tobytes(), []).append(i)
    equal = np.zeros(len(paired), bool)
    # Sums are cheap to compare; only rows whose sum equals that of a pair are compared in full.
    sums = np.unique(paired.sum(axis=1))
    for _, block in rows.scan():
        for row in block[np.isin(block.sum(axis=1), sums)]:
            equal[keys.get(row.tobytes(), [])] = True
    return equal
