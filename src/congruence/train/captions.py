"""Read images with captions and wrong captions, and split them such that each image is in one part only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from congruence._utils.ids import id_rows
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import as_matrix, check_same_rows, check_width
from congruence.errors import ParameterError, ShapeError, TooFewAnchorsError
from congruence.splits import Split
from congruence.train._reading import join_by_id, read_pairs

#: Held-out images and captions, optionally with wrong captions and the image label of each row.
HeldCaptions: TypeAlias = (
    "tuple[RowsLike, RowsLike] | tuple[RowsLike, RowsLike, RowsLike | None]"
    " | tuple[RowsLike, RowsLike, RowsLike | None, Labels | None]"
)


@dataclass(frozen=True)
class Captions:
    """Images (n, d_source) with their captions (n, d_target) and wrong captions (n, k, d_target); rows of one image
    have the same label in ``groups`` (n,).
    """

    source: np.ndarray
    target: np.ndarray
    negatives: np.ndarray | None
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: np.ndarray) -> Captions:
        """Return some of the rows."""
        wrong = None if self.negatives is None else self.negatives[rows]
        return Captions(self.source[rows], self.target[rows], wrong, self.groups[rows])

    def candidates(self) -> np.ndarray:
        """Return the captions followed by all wrong captions, shape (n + n·k, d_target)."""
        if self.negatives is None:
            return self.target
        return np.concatenate([self.target, self.negatives.reshape(-1, self.target.shape[1])])

    def texts(self) -> np.ndarray:
        """Return numbers (n, 1 + k) that identify captions and wrong captions: equal vectors have equal numbers."""
        n, width = self.target.shape
        wrong = np.empty((n, 0, width), np.float32) if self.negatives is None else self.negatives
        rows = np.concatenate([self.target, wrong.reshape(-1, width)])
        numbers = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return np.column_stack([numbers[:n], numbers[n:].reshape(n, -1)])

    def digest(self) -> str:
        """Return a digest that identifies these rows."""
        digest = hashlib.sha256()
        for rows in (self.source, self.target, self.negatives):
            digest.update(b"none" if rows is None else np.ascontiguousarray(rows).tobytes())
        # Only which rows share a label matters, not the labels themselves.
        digest.update(np.unique(self.groups, return_inverse=True)[1].astype(np.int64).tobytes())
        return digest.hexdigest()


def split_by_group(
    groups: Labels, shares: tuple[float, float] = (0.7, 0.15), random_state: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split rows by their labels ``groups`` (n,), such as images, into row numbers for training, validation and
    testing.

    Rows of one group stay together; ``shares`` of the *groups* are for training and for validation, the rest for
    testing. Equal to splitting twice with ``congruence.datasets.SugarCrepe.split_by_image``.

    Examples
    --------
    >>> from congruence.train import split_by_group
    >>> [len(rows) for rows in split_by_group([i // 2 for i in range(40)])]
    [28, 6, 6]
    """
    labels = np.asarray(groups).astype(str)
    train, validation = shares
    if not (min(shares) > 0 and train + validation < 1):
        raise ParameterError(argument="shares", got=shares, expected="two above 0 whose sum is below 1")
    names = np.unique(labels)
    not_train = _held_out(names, train, random_state)
    test = _held_out(not_train, round(validation / (1 - train), 9), random_state)  # 0.15 is half of the remaining 0.3
    heldout, tested = np.isin(labels, not_train), np.isin(labels, test)
    return np.flatnonzero(~heldout), np.flatnonzero(heldout & ~tested), np.flatnonzero(tested)


def _held_out(names: np.ndarray, share_kept: float, random_state: int) -> np.ndarray:
    """Return the groups that are held out if a share of them is kept."""
    count = len(names) - round(share_kept * len(names))
    if not 0 < count <= len(names) - 2:
        raise TooFewAnchorsError(
            f"Got {len(names)} groups to divide in {len(names) - count} and {count}.", "Pass more groups."
        )
    return names[Split.choose(names, count, random_state).held_out(names)]


def read_captions(
    X: RowsLike, Y: RowsLike | None, negatives: RowsLike | None = None, groups: Labels | None = None
) -> Captions:
    """Return images, captions, wrong captions and labels in one order."""
    A, B, ids = read_pairs(X, Y)
    n = len(B) if ids is None else len(Y)  # type: ignore[arg-type]
    wrong = None if negatives is None else _wrong(negatives, Y, n, B.shape[1])
    labels = np.arange(n) if groups is None else np.asarray(groups)
    if labels.shape != (n,):
        raise ShapeError(f"Got groups of shape {labels.shape}; expected ({n},).", "Pass one label per caption.")
    if ids is not None:
        rows = id_rows(Y.ids, ids)  # type: ignore[union-attr]
        wrong, labels = (None if wrong is None else wrong[rows]), labels[rows]
    return Captions(A, B, wrong, labels)


def _wrong(negatives: RowsLike, Y: RowsLike | None, n: int, width: int) -> np.ndarray:
    """Return the wrong captions of each row of Y, shape (n, k, width)."""
    joined = join_by_id(Y, negatives)
    if joined is not None:
        check_same_rows(n, len(joined.target), "Y", "negatives with an id of Y")
        negatives = joined.target
    N = np.asarray(getattr(negatives, "vectors", negatives))
    if N.ndim == 3 and N.size:
        k, flat = N.shape[1], N.reshape(-1, N.shape[2])
    else:
        k, flat = 1, N
    flat = as_matrix(flat, "negatives")
    check_width(flat.shape[1], width, "the captions (Y)")
    check_same_rows(n, len(flat) // k, "Y", "negatives")
    return np.asarray(flat, np.float32).reshape(n, k, width)


def read_validation_captions(validation: HeldCaptions, data: Captions) -> Captions:
    """Return the validation rows."""
    if not isinstance(validation, (tuple, list)) or not 2 <= len(validation) <= 4:
        raise ParameterError(
            "Got a validation that is not a tuple of two to four.", "Pass `validation=(X, Y, negatives, groups)`."
        )
    heldout = read_captions(*validation)
    check_width(heldout.source.shape[1], data.source.shape[1], "the images to train on")
    check_width(heldout.target.shape[1], data.target.shape[1], "the captions to train on")
    return heldout
