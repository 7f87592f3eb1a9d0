"""The result type of every bound in the paper, and the validation that theorems share.

Rows are items here, as everywhere: F (n, d) holds f(x_i), and the paper's d × n matrix [f(x_1) … f(x_n)] is ``F.T``.
Where the paper writes a map acting on columns (A, Q), functions take and return the matrix acting on rows, ``Aᵀ`` and
``Qᵀ``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_scale
from congruence.errors import InputError, ParameterError, ShapeError

#: Largest distance between two unit vectors; a larger bound on an error is vacuous.
FARTHEST = 2.0

#: Levels of the quantiles of errors.
LEVELS = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Bound(PlainData):
    """An inequality of the paper evaluated on embeddings: the bound, and the measured value.

    - ``theorem``: Its number in Gupta et al. (2026).
    - ``quantity``: The bounded quantity, in words.
    - ``value``: The right-hand side; ``inf`` if a condition of the theorem fails.
    - ``measured``: The left-hand side: the largest error over the given rows.
    - ``trivial``: The largest possible error of ``baseline``, which needs no knowledge of the models. A fitted map can
      be worse, so ``measured`` can be larger.
    - ``conditions``: The numbers from which the right-hand side is computed.
    """

    _also = ("vacuous", "looseness")

    theorem: str
    quantity: str
    value: float
    measured: float
    trivial: float
    conditions: dict[str, float]
    baseline: str = "any rotation, since no two unit vectors are farther apart"

    @property
    def vacuous(self) -> bool:
        """Whether the bound is no smaller than ``trivial``."""
        return not self.value < self.trivial

    @property
    def looseness(self) -> float:
        """Ratio of the bound to the measured value; ``inf`` if the measured value is 0."""
        return divided(self.value, self.measured) if self.value != self.measured else 1.0

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        promise = f"{self.theorem} guarantees at most {self.value:.3g}"
        if not np.isfinite(self.value):
            promise = f"{self.theorem} does not apply here, since one of its conditions fails"
        elif self.vacuous:
            promise += f", which is vacuous: an error of at most {self.trivial:.3g} is that of {self.baseline}"
        return f"{self.quantity}: measured {self.measured:.3g}; {promise}."


def divided(value: float, divisor: float) -> float:
    """Return the quotient, infinite for a divisor of 0."""
    return value / divisor if divisor else float("inf")


def longest(rows: np.ndarray) -> float:
    """Return the largest norm of a row."""
    return float(np.linalg.norm(rows, axis=1).max())


def paired_models(
    source: RowsLike, target: RowsLike, names: tuple[str, str], *, unit: bool = True, min_rows: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return one modality in both models in float64, with rows paired by position."""
    sides = []
    for rows, name in ((source, names[0]), (target, names[1])):
        if unit:
            sides.append(as_unit_rows(rows, name, min_rows=min_rows))
        else:
            sides.append(as_matrix(rows, name, min_rows=min_rows).astype(np.float64))
            check_scale(sides[-1], name)
    check_same_rows(len(sides[0]), len(sides[1]), *names)
    return sides[0], sides[1]


def as_unit_rows(X: RowsLike, name: str, *, min_rows: int = 1) -> np.ndarray:
    """Return rows of unit norm in float64, made exact: a bound must not fail because of rounded norms."""
    A = as_matrix(X, name, min_rows=min_rows).astype(np.float64)
    norms = np.linalg.norm(A, axis=1)
    worst = int(np.abs(norms - 1).argmax())
    if abs(norms[worst] - 1) > 1e-3:
        raise InputError(f"Row {worst} of {name} has norm {norms[worst]:.4g}.", "Divide each row by its norm.")
    return A / norms[:, None]


def dual_encoders(
    F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return images and texts of two models: the same items row by row, and one width per model."""
    F, F_target = paired_models(F, F_target, ("F", "F_target"))
    G, G_target = paired_models(G, G_target, ("G", "G_target"))
    for images, texts in ((F, G), (F_target, G_target)):
        if images.shape[1] != texts.shape[1]:
            raise ShapeError(f"Got {images.shape[1]}-d images, {texts.shape[1]}-d texts.", "Pass those of one model.")
    return F, G, F_target, G_target


def as_map(A: RowsLike, d: int, d_target: int, name: str, *, rotation: bool = False) -> np.ndarray:
    """Return a matrix acting on rows, (d, d_target), d ≤ d_target; of a ``rotation``, with orthonormal rows."""
    if d > d_target:
        problem = f"No map from {d} into fewer dimensions, {d_target}, keeps all distances."
        raise ParameterError(problem, "Exchange source and target.")
    matrix = as_matrix(A, name, allow_zero_rows=True).astype(np.float64)
    if matrix.shape != (d, d_target):
        hint = "Transpose it" if matrix.shape == (d_target, d) else "Pass a matrix fitted on these models"
        raise ShapeError(f"Got {name} of shape {matrix.shape}; expected {(d, d_target)}, acting on rows.", f"{hint}.")
    if rotation:
        deviation = float(np.abs(np.linalg.svd(matrix, compute_uv=False) ** 2 - 1).max())
        if deviation > 1e-3:
            problem = f"Got {name} with ‖QᵀQ − I‖ = {deviation:.3g}; expected a rotation."
            raise InputError(problem, "Pass polar_rotation(…).rotation, or fit with `shrinkage='full'`.")
    return matrix


def numerical_rank(s: np.ndarray, shape: tuple[int, ...], rtol: float | None = None) -> int:
    """Count descending singular values above ``rtol`` times the largest; by default, above rounding error."""
    if rtol is None:
        rtol = max(shape) * float(np.finfo(np.float64).eps)
    return int((s > check_positive(rtol, "rtol", zero=True) * s[0]).sum())
