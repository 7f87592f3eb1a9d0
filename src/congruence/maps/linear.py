"""The unconstrained linear map: ridge regression whose penalty is chosen by generalized cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive
from congruence.embeddings import Space
from congruence.errors import ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.maps._base import AffineMap
from congruence.persist import check_arrays, count, number


@dataclass(eq=False, repr=False)
class LinearMap(AffineMap):
    """Ridge regression from source to target rows: the paper's linear alternative (§E.9).

    Parameters
    ----------
    ridge : float or "cv", default="cv"
        Penalty on the squared coefficients, added to the sum (not the mean) of squared errors, as in
        ``sklearn.linear_model.Ridge``. ``"cv"`` chooses it by generalized cross-validation (Golub, Heath and Wahba
        1979).
    center : bool, default=True
        Fit an intercept.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (d_source, d_target)
        Multiplies rows from the right (scikit-learn stores the transpose).
    ridge_ : float
        The penalty used.
    gcv_ridges_, gcv_scores_ : ndarray, shape (61,)
        With ``ridge="cv"``: the grid of penalties, and the score of each.
    """

    kind: ClassVar[str] = "linear"

    #: Penalties tried under ``ridge="cv"``, relative to the largest eigenvalue of the Gram matrix.
    RELATIVE_GRID: ClassVar[np.ndarray] = np.logspace(-8, 2, 61)

    ridge: float | str = "cv"
    center: bool = True

    def fit(self, X: RowsLike, Y: RowsLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the coefficients on rows paired by position; ``sample_weight`` (n,) counts as repetitions."""
        self._check_ridge()
        return self.solve(*self._check_pairs(X, Y, sample_weight))

    def _check_ridge(self) -> None:
        if not isinstance(self.ridge, str):
            check_positive(self.ridge, "ridge", zero=True)
        elif self.ridge != "cv":
            raise ParameterError(argument="ridge", got=self.ridge, expected="'cv' or a number ≥ 0")

    def solve(self, A: np.ndarray, B: np.ndarray, weights: np.ndarray | None = None) -> Self:
        """Fit on checked rows in float32 or float64 and checked weights; see ``fit``."""
        self._remember(A, B)
        return self._solve_moments(CrossMoments.of(A, B, weights, gram=True))

    @classmethod
    def from_moments(
        cls,
        moments: CrossMoments,
        *,
        ridge: float | str = "cv",
        center: bool = True,
        normalized: tuple[bool, bool] = (False, False),
    ) -> Self:
        """Return the map fitted on the pairs that these moments, with their Gram matrix, summarize; they may have been
        gathered on several machines. ``normalized`` says whether all source and all target rows had unit norm.
        """
        new = cls(ridge=ridge, center=center)
        new._check_ridge()
        if moments.gram is None:
            raise ParameterError("Got moments without the Gram matrix.", "Pass `gram=True` to CrossMoments.")
        new.source_space_ = Space(dim=len(moments.source_mean), normalized=normalized[0])
        new.target_space_ = Space(dim=len(moments.target_mean), normalized=normalized[1])
        new.scores_ = {}
        return new._solve_moments(moments)

    def _solve_moments(self, moments: CrossMoments) -> Self:
        assert moments.gram is not None
        self.n_features_in_ = len(moments.source_mean)
        means, scatter = (moments.source_mean, moments.target_mean), moments.target_scatter
        gram, cross = moments.gram, moments.cross
        if not self.center:
            gram, cross = moments.uncentered_gram(), moments.uncentered_cross()
            scatter += moments.weight * float(means[1] @ means[1])
        self.source_mean_, self.target_mean_ = means if self.center else map(np.zeros_like, means)
        import scipy.linalg  # imported here because the other methods do not need it

        eigenvalues, V = scipy.linalg.eigh(gram)
        # Directions without variance contain rounding noise only, which would be amplified without a penalty.
        floor = max(eigenvalues[-1], 0.0) * len(eigenvalues) * np.finfo(float).eps
        kept = eigenvalues > floor
        eigenvalues, V = eigenvalues[kept], V[:, kept]
        rotated = V.T @ cross
        if isinstance(self.ridge, str):
            self._choose(eigenvalues, rotated, scatter, moments.weight - self.center)
        else:
            self.ridge_ = float(self.ridge)
        self.coef_ = V @ (rotated / (eigenvalues + self.ridge_)[:, None])
        self.n_pairs_ = moments.rows
        self.facts_ = {"n_pairs": self.n_pairs_, "ridge_used": self.ridge_, "rank": int(kept.sum())}
        return self

    def _choose(self, eigenvalues: np.ndarray, rotated: np.ndarray, scatter: float, n: float) -> None:
        """Minimize GCV(α) = n · RSS(α) / (n − df(α))² over the grid, using second moments only."""
        top = eigenvalues[-1] if len(eigenvalues) else 1.0
        alphas = self.RELATIVE_GRID * top
        squared = np.square(rotated).sum(axis=1)
        scores = np.empty(len(alphas))
        for k, alpha in enumerate(alphas):
            shrunk = eigenvalues + alpha
            df = float((eigenvalues / shrunk).sum())
            explained = float((squared / shrunk * ((eigenvalues + 2 * alpha) / shrunk)).sum())
            residual = max(scatter - explained, 0.0)
            # With as many degrees of freedom as rows the score is 0/0, and the fit gives no information about new rows.
            residual_df = n - df
            scores[k] = n * residual / residual_df**2 if residual_df > 1e-3 * n else np.inf
        best = int(np.argmin(scores)) if np.isfinite(scores).any() else len(scores) - 1
        self.ridge_ = float(alphas[best])
        self.gcv_ridges_, self.gcv_scores_ = alphas, scores

    @property
    def _coefficients(self) -> np.ndarray:
        return self.coef_

    def state(self) -> dict[str, np.ndarray]:
        """Return coefficients and means as arrays."""
        self.check_fitted()
        return {"coef": self.coef_, "source_mean": self.source_mean_, "target_mean": self.target_mean_}

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        check_arrays(arrays, {"coef": "io", "source_mean": "i", "target_mean": "o"})
        self.coef_ = arrays["coef"]
        self.source_mean_, self.target_mean_ = arrays["source_mean"], arrays["target_mean"]
        self.ridge_, self.n_pairs_ = number(facts, "ridge_used"), count(facts, "n_pairs")
        self.n_features_in_ = self.coef_.shape[0]
        self.facts_ = dict(facts)
