"""Procrustes heads: an orthonormal projection for each model, such that paired rows agree as much as possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from congruence._utils.arrays import blocks
from congruence.linalg.procrustes import cross_svd
from congruence.maps._saved import check_orthonormal
from congruence.maps.projections import ProjectionMap, Rows

__all__ = ["ProcrustesHeads"]


class ProcrustesHeads(ProjectionMap):
    """Orthonormal projections of both spaces into a joint space that maximize the sum of paired inner products.

    Maximizes ⟨A Wx, B Wy⟩ over Wx (d_source, n_components) and Wy (d_target, n_components) with orthonormal columns: the leading left and right
    singular vectors of AᵀB. Unlike in :class:`~congruence.OrthogonalMap`, neither model is the reference.

    Parameters
    ----------
    n_components : int, optional
        Width of the joint space. By default as many directions as the pairs allow: min(d_source, d_target, n − 1) (n without
        centering), or fewer if the rows span fewer.
    center : bool, default=True
        Subtract the mean of the rows of the fit (after scaling them to unit norm, if ``normalize``).
    normalize : bool, default=True
        Scale rows to unit norm before the mean is computed. Rows to be mapped are normalized and centered in the same way.

    Attributes
    ----------
    source_weights_, target_weights_ : ndarray of float64, shapes (d_source, n_components) and (d_target, n_components)
        Multiply rows from the right; their columns are orthonormal.
    source_mean_, target_mean_ : ndarray of float64, shape (d_source,) and (d_target,)
        Subtracted from the rows; zeros without centering.
    singular_values_ : ndarray, shape (min(d_source, d_target),)
        Singular values of AᵀB, descending; the first ``n_components`` sum to the objective.

    References
    ----------
    SOTAlign, equation 6 and proposition C.1. Gower and Dijksterhuis (2004), "Procrustes Problems".
    """

    kind: ClassVar[str] = "procrustes"

    def __init__(self, n_components: int | None = None, center: bool = True, normalize: bool = True) -> None:
        self.n_components = n_components
        self.center = center
        self.normalize = normalize

    def _check_parameters(self) -> None:
        pass

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        super()._restore(arrays, facts)
        check_orthonormal(self.source_weights_, "source_weights")
        check_orthonormal(self.target_weights_, "target_weights")

    def _solve(self, A: Rows, B: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        source_basis, target_basis = _span(A), _span(B)
        widths = [
            rows.width if basis is None else basis.shape[1] for rows, basis in ((A, source_basis), (B, target_basis))
        ]
        cross = np.zeros(widths)
        # Computed before centering, which determines the size of the rounding error.
        scatter = np.array([A.size, B.size]) ** 2
        for part in blocks(len(A), 8 * (A.width + B.width)):
            a, b = A[part], B[part]
            scatter += np.vdot(a, a), np.vdot(b, b)
            cross += (a if source_basis is None else a @ source_basis).T @ (
                b if target_basis is None else b @ target_basis
            )
        svd = cross_svd(cross, scale=float(np.sqrt(scatter.prod())))
        U = svd.U if source_basis is None else source_basis @ svd.U
        V = svd.Vt.T if target_basis is None else target_basis @ svd.Vt.T
        return U, V, svd.s, svd.rank


def _span(rows: Rows) -> np.ndarray | None:
    """Return an orthonormal basis of the rows, shape (d, n), if there are fewer rows than columns; otherwise None."""
    if len(rows) >= rows.width:
        return None
    import scipy.linalg  # imported here because the other methods do not need it

    return scipy.linalg.qr(rows[slice(None)].T, mode="economic", check_finite=False)[0]
