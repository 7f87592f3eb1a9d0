"""Regularized canonical correlation analysis: both models are mapped into one joint space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive
from congruence.errors import InputError
from congruence.linalg.canonical import Canonical, canonical_directions, whiten
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.maps.projections import ProjectionMap, Rows

__all__ = ["CCAMap"]


class CCAMap(ProjectionMap):
    """Projections of both spaces into a joint space whose coordinates are whitened and maximally correlated.

    Maximizes ⟨A Wx, B Wy⟩ subject to Wxᵀ(AᵀA + λI)Wx = I and Wyᵀ(BᵀB + λI)Wy = I.

    Parameters
    ----------
    n_components : int, optional
        Width of the joint space. By default as many directions as the pairs allow: min(d_source, d_target, n − 1) (n without
        centering), or fewer if the rows span fewer.
    ridge : float, default=0.1
        λ, added to the Gram matrices AᵀA and BᵀB. These are sums over rows, not means, so λ has less effect with more pairs.
    center : bool, default=True
        Subtract the mean of the rows of the fit (after scaling them to unit norm, if ``normalize``).
    normalize : bool, default=True
        Scale rows to unit norm before the mean is computed. Rows to be mapped are normalized and centered in the same way.
    power : float, default=0.0
        Multiply direction i by (its canonical correlation)^power on both sides. 0, as in the paper, gives weakly and strongly
        correlated directions the same weight.

    Attributes
    ----------
    source_weights_, target_weights_ : ndarray of float64, shapes (d_source, n_components) and (d_target, n_components)
        Multiply rows from the right.
    source_mean_, target_mean_ : ndarray of float64, shape (d_source,) and (d_target,)
        Subtracted from the rows; zeros without centering.
    singular_values_ : ndarray, shape (min(d_source, d_target),)
        Canonical correlations of the fitted rows, descending, shrunk by λ (unshrunk for λ = 0).

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

    def fit_ridges(self, X: RowsLike, Y: RowsLike, ridges: Sequence[float]) -> list[Self]:
        """Fit a map for each λ from a single singular value decomposition of each side.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (n, d_target)
        ridges : sequence of float
            Values of ``ridge``.

        Returns
        -------
        list of CCAMap
            The maps that :meth:`fit` returns with these values, in the same order.

        Raises
        ------
        InputError
            If the rows cannot be used; or if all rows of a side are equal once normalized and centered, and a value is 0.
        ParameterError
            If a parameter has an invalid value, or ``n_components`` is more than these pairs allow.
        """
        maps = [type(self)(self.n_components, ridge, self.center, self.normalize, self.power) for ridge in ridges]
        for mapping in maps:
            mapping._check_all_parameters()
        source, target = self._check_pairs(X, Y)[:2]
        A, B = self._rows(source), self._rows(target)
        sides = _decompose(A, B)
        return [mapping._set_solution(A, B, mapping._directions(sides)) for mapping in maps]

    def _solve(self, A: Rows, B: Rows) -> Canonical:
        return self._directions(_decompose(A, B))

    def _directions(self, sides: tuple[CrossSVD, CrossSVD]) -> Canonical:
        x, y = map(self._whiten, sides)
        return canonical_directions(x, y)

    def _whiten(self, svd: CrossSVD) -> tuple[np.ndarray, np.ndarray]:
        """Return the whitened rows and the whitening matrix."""
        if not svd.rank and not self.ridge:
            raise InputError(
                "Got rows that are all equal once preprocessed, and ridge=0; expected rows that vary. Add other rows, or pass ridge=1.0."
            )
        kept = max(1, svd.rank)
        return whiten(svd.U[:, :kept], svd.s[:kept], svd.Vt[:kept], self.ridge)

    def _scales(self, singular: np.ndarray) -> np.ndarray | None:
        return singular**self.power if self.power else None


def _decompose(A: Rows, B: Rows) -> tuple[CrossSVD, CrossSVD]:
    """Return the singular value decompositions of both sides."""
    a, b = _compress(A, B)
    return cross_svd(a, scale=A.size), cross_svd(b, scale=B.size)


def _compress(A: Rows, B: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with the same Gram matrices and cross-product, at most d_source + d_target of them.

    They are the triangular factor R of a QR decomposition of the rows of both sides, concatenated and processed block by block. This is
    exact, avoids squaring the data, and needs memory that does not grow with the number of rows.
    """
    import scipy.linalg  # imported here because the other methods do not need it

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
