"""Regularised canonical correlation analysis as a map of both spaces."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from congruence._utils.validation import check_positive
from congruence.errors import InputError
from congruence.linalg.canonical import canonical_directions, whiten
from congruence.linalg.procrustes import cross_svd
from congruence.maps.projections import ProjectionMap, Rows

__all__ = ["CCAMap"]


class CCAMap(ProjectionMap):
    """Projections of both spaces into a joint one whose coordinates are whitened and correlate most.

    Maximises ⟨A Wx, B Wy⟩ subject to Wxᵀ(AᵀA + λI)Wx = I and Wyᵀ(BᵀB + λI)Wy = I.

    Parameters
    ----------
    n_components : int, optional
        Width of the joint space; as many directions as the pairs carry by default: min(d_source, d_target, n − 1) (n without
        centering) unless the rows themselves span less.
    ridge : float, default=0.1
        λ, added to the Gram matrices AᵀA and BᵀB, which are sums over rows and not means: with more pairs it weighs less.
    center : bool, default=True
        Subtract the mean of the (unit) fitting rows.
    normalize : bool, default=True
        Scale rows to unit norm, before their mean is taken. Both steps are repeated on rows to be carried.
    power : float, default=0.0
        Multiply direction i by (its canonical correlation)^power on both sides. 0 is the paper's: weakly correlated directions
        count as much as strong ones.

    Attributes
    ----------
    source_weights_, target_weights_ : ndarray of float64, shapes (d_source, n_components) and (d_target, n_components)
        Act on rows from the right.
    source_mean_, target_mean_ : ndarray of float64
        Subtracted; zeros without centering.
    singular_values_ : ndarray
        Canonical correlations of the fitting rows, descending, shrunk by λ; without λ the correlations themselves.

    References
    ----------
    SOTAlign, equation 7 and proposition C.2. Vinod (1976), "Canonical ridge and econometrics of joint production".
    """

    kind: ClassVar[str] = "cca"

    def __init__(
        self,
        n_components: int | None = None,
        ridge: float = 0.1,
        center: bool = True,
        normalize: bool = True,
        power: float = 0.0,
    ) -> None:
        self.n_components = n_components
        self.ridge = ridge
        self.center = center
        self.normalize = normalize
        self.power = power

    def _check_parameters(self) -> None:
        check_positive(self.ridge, "ridge", zero=True)
        check_positive(self.power, "power", zero=True)

    def _solve(self, A: Rows, B: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        a, b = _compress(A, B)
        return canonical_directions(self._whiten(a, A.size), self._whiten(b, B.size))

    def _whiten(self, rows: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the whitened rows and the matrix that whitens."""
        svd = cross_svd(rows, scale=size)
        if not svd.rank and not self.ridge:
            raise InputError(
                "Got rows that are all alike once preprocessed, and ridge=0; expected rows that vary. Add other rows, or pass ridge=1.0."
            )
        kept = max(1, svd.rank)
        return whiten(svd.U[:, :kept], svd.s[:kept], svd.Vt[:kept], self.ridge)

    def _scales(self, singular: np.ndarray) -> np.ndarray | None:
        return singular**self.power if self.power else None


def _compress(A: Rows, B: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with the same Gram matrices and cross-product, at most d_source + d_target many.

    They are the triangle R of a QR decomposition of the rows of both sides laid next to each other, block by block: exact,
    without squaring, in memory that does not grow with the number of rows.
    """
    import scipy.linalg  # here and not above: the other methods do without it

    width = A.width + B.width
    triangle = np.empty((0, width))
    step = max(2 * width, 1)
    for start in range(0, len(A), step):
        part = slice(start, start + step)
        stacked = np.vstack([triangle, np.hstack([A[part], B[part]])])
        if len(stacked) > width:
            stacked = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:width]
        triangle = stacked
    return triangle[:, : A.width], triangle[:, A.width :]
