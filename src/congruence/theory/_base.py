"""What every bound of the paper is reported as, and the checks its functions share.

Rows are items here, as everywhere: F (n, d) holds f(x_i), and a paper's d × n matrix [f(x_1) … f(x_n)] is ``F.T``. Where the
paper writes a map on columns (A, Q), functions return the matrix acting on rows, ``Aᵀ`` and ``Qᵀ``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from congruence._check import as_matrix, check_same_rows
from congruence.errors import InputError

#: No two unit vectors are farther apart: a bound above this says nothing.
FARTHEST = 2.0


@dataclass(frozen=True)
class Bound:
    """An inequality of the paper on given embeddings: what it promises, and what is really there.

    Attributes
    ----------
    theorem : str
        Where it stands in Gupta et al. (2026).
    quantity : str
        What is bounded, in words.
    value : float
        The right-hand side; ``inf`` where a condition of the theorem fails.
    measured : float
        The left-hand side: the largest error over the rows given.
    trivial : float
        What the left-hand side can never exceed, whatever the models.
    conditions : dict of str to float
        The numbers the right-hand side is made of.
    """

    theorem: str
    quantity: str
    value: float
    measured: float
    trivial: float
    conditions: dict[str, float]

    @property
    def vacuous(self) -> bool:
        """Whether the bound promises nothing that is not true of any two models."""
        return not self.value < self.trivial

    @property
    def looseness(self) -> float:
        """How many times larger the bound is than what it bounds; ``inf`` where nothing is left to bound."""
        if self.value == self.measured:
            return 1.0
        return self.value / self.measured if self.measured > 0 else float("inf")

    def in_words(self) -> str:
        """Return one sentence for a person."""
        what = f"{self.quantity}: measured {self.measured:.3g}"
        if not np.isfinite(self.value):
            return f"{what}; {self.theorem} does not apply here, since a condition of it fails."
        if self.vacuous:
            return (
                f"{what}; {self.theorem} promises at most {self.value:.3g}, which is vacuous: "
                f"no two models can differ by more than {self.trivial:.3g}."
            )
        return f"{what}; {self.theorem} promises at most {self.value:.3g}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**asdict(self), "vacuous": self.vacuous, "looseness": self.looseness}


def unit_rows(X: Any, name: str, *, min_rows: int = 1) -> np.ndarray:
    """Validate rows of unit norm, which the theorems are about, and return them in float64.

    Raises
    ------
    InputError
        A row's norm is off by more than 1e-3, the most that half precision leaves.
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
    """
    A = as_matrix(X, name, min_rows=min_rows).astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", A, A))
    worst = int(np.abs(norms - 1).argmax())
    if abs(norms[worst] - 1) > 1e-3:
        raise InputError(
            f"Got a row of norm {norms[worst]:.4g} in {name} (row {worst}); expected unit rows, since the theorems are about "
            "encoders on the sphere; do divide each row by its norm."
        )
    return A


def paired_models(
    source: Any, target: Any, names: tuple[str, str], *, unit: bool = True, min_rows: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Validate one modality in both models, row i of one belonging to row i of the other.

    Raises
    ------
    InputError, ShapeError, DtypeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
    """
    if unit:
        A, B = (unit_rows(side, name, min_rows=min_rows) for side, name in zip((source, target), names, strict=True))
    else:
        A, B = (
            as_matrix(side, name, min_rows=min_rows).astype(np.float64)
            for side, name in zip((source, target), names, strict=True)
        )
    check_same_rows(len(A), len(B), *names)
    return A, B
