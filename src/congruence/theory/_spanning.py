"""The result of :func:`congruence.theory.sym_spanning`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Spanning:
    """Whether the squares x xᵀ of a set of rows span the symmetric matrices.

    Attributes
    ----------
    n, width : int
        Number of rows, and their width d.
    dimension : int
        Dimension of the space of symmetric matrices, d(d + 1)/2. Fewer rows than this cannot span it.
    rank : int
        Number of dimensions that the squares span. If ``exact`` is False: a lower bound, or ``dimension`` if the
        estimate is that they span.
    spans : bool
    exact : bool
        Whether ``rank`` and ``spans`` come from a complete decomposition. If n < dimension, ``spans`` is certain in any case.
    sigma_min, sigma_max : float
        The ``dimension``-th and the first singular value of the matrix whose rows are svec(x xᵀ). ``sigma_min`` is 0 if
        n < dimension, and an upper bound from an iteration if ``exact`` is False.
    tolerance : float
        Singular values above this count as nonzero.
    witness : ndarray, shape (d, d), or None
        The symmetric M with ‖M‖_F = 1 that minimizes √(Σ (xᵀ M x)²), which is then ``sigma_min``. If the rows do not span,
        xᵀ M x vanishes on every row, and A = (I + tM)^½ with a small t preserves the length of every
        anchor without being a rotation. None if there are too many rows to compute it and too few to span.
    singular_values : ndarray, shape (min(n, dimension),), or None
        All singular values of that matrix, descending; None if ``exact`` is False.
    """

    n: int
    width: int
    dimension: int
    rank: int
    spans: bool
    exact: bool
    sigma_min: float
    sigma_max: float
    tolerance: float
    witness: np.ndarray | None
    singular_values: np.ndarray | None = None

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        if self.n < self.dimension:
            return (
                f"{self.n} anchors cannot span Sym({self.width}), which takes {self.dimension}: "
                "their lengths alone do not force a linear map to be a rotation."
            )
        if self.spans:
            estimated = "" if self.exact else " (by an iterative estimate)"
            return (
                f"The {self.n} anchors span Sym({self.width}){estimated}; smallest singular value {self.sigma_min:.3g}."
            )
        return (
            f"The {self.n} anchors do not span Sym({self.width}): rank {self.rank} of {self.dimension}"
            f"{'' if self.exact else ' at least'}."
        )

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        arrays = {"witness": self.witness, "singular_values": self.singular_values}
        return {**asdict(self), **{name: None if array is None else array.tolist() for name, array in arrays.items()}}

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the singular values and the tolerance; if not all were computed, only the first and the last.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure, which a notebook displays and which is not registered with pyplot.
        annotate : bool, default=True
            Add a title and labels that identify what is drawn.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from congruence.plotting import draw_singular_values

        ends = {1: self.sigma_max} | ({self.dimension: self.sigma_min} if self.n >= self.dimension else {})
        values = ends if self.singular_values is None else dict(enumerate(self.singular_values.tolist(), start=1))
        title = f"Squares of the anchors: rank {self.rank:,}{'' if self.exact else ' or more'} of {self.dimension:,}"
        return draw_singular_values(
            values, ax, tolerance=self.tolerance, rank=self.rank, title=title, annotate=annotate
        )
