"""Canonical correlations of rows that were not used to fit the canonical directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import NUMPY
from congruence._utils.validation import as_matrix, check_choice, check_same_rows, check_scale, check_width
from congruence.errors import InputError
from congruence.linalg.canonical import canonical_directions, whiten
from congruence.metrics._bases import COMPONENTS, EPS, check_options, equal_rows, spectrum, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CCAFit", "fit_cca"]


@dataclass(frozen=True, eq=False)
class CCAFit:
    """Canonical directions of two spaces, to be evaluated on rows they were not fitted on.

    Attributes
    ----------
    x_mean : ndarray of float64, shape (d_x,)
    y_mean : ndarray of float64, shape (d_y,)
    x_projection : ndarray of float64, shape (d_x, k)
        ``(X - x_mean) @ x_projection`` are the canonical variates; without ridge they have unit variance on the rows of the fit.
    y_projection : ndarray of float64, shape (d_y, k)
    correlations : ndarray of float64, shape (k,)
        Canonical correlations on the rows of the fit, descending.
    """

    x_mean: np.ndarray = field(repr=False)
    y_mean: np.ndarray = field(repr=False)
    x_projection: np.ndarray = field(repr=False)
    y_projection: np.ndarray = field(repr=False)
    correlations: np.ndarray

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the canonical correlations on the rows of the fit, strongest first.

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
        from congruence.plotting import draw_correlations

        return draw_correlations(self.correlations.tolist(), ax, annotate=annotate)

    def transform(self, X: ArrayLike, Y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the canonical variates of both sides.

        Parameters
        ----------
        X : array_like, shape (n, d_x)
        Y : array_like, shape (n, d_y)

        Returns
        -------
        tuple of ndarray of float64, each of shape (n, k)

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
            If arrays have the wrong shape or other widths than at the fit, are not real numbers or contain NaN or infinity.
        """
        A, B = as_matrix(X, "X", allow_zero_rows=True), as_matrix(Y, "Y", allow_zero_rows=True)
        check_same_rows(len(A), len(B), "X", "Y")
        check_width(A.shape[1], len(self.x_mean), "CCAFit")
        check_width(B.shape[1], len(self.y_mean), "CCAFit")
        return (
            (A.astype(np.float64) - self.x_mean) @ self.x_projection,
            (B.astype(np.float64) - self.y_mean) @ self.y_projection,
        )

    def score(self, X: ArrayLike, Y: ArrayLike, *, components: str = "mean") -> float | np.ndarray:
        """Return the correlations of the two sides' variates on new rows.

        Parameters
        ----------
        X : array_like, shape (n, d_x)
        Y : array_like, shape (n, d_y)
        components : {"mean", "first", "all"}, default="mean"
            "all" returns them in the order of the fit, in which held-out correlations need not be descending.

        Returns
        -------
        float or ndarray of shape (k,)
            In [-1, 1]; around 0 if the two sides are unrelated.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ParameterError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or a parameter has an invalid value.
        TooFewAnchorsError
            If there are fewer than two rows.
        InputError
            If a variate is constant on these rows.
        """
        check_choice(components, COMPONENTS, "components")
        as_matrix(X, "X", min_rows=2, allow_zero_rows=True)
        a, b = self.transform(X, Y)
        scales = []
        for variates, name in ((a, "X"), (b, "Y")):
            noise = 64 * EPS * (np.abs(variates).max(axis=0) + 1)  # variates have size 1
            variates -= variates.mean(axis=0)
            scale = np.linalg.norm(variates, axis=0)
            if (scale <= noise * np.sqrt(len(variates))).any():
                raise InputError(
                    f"Got rows of {name} on which canonical variate {int(np.argmin(scale))} does not vary; expected "
                    "rows that differ, since a correlation needs variance. Pass other or more rows."
                )
            scales.append(scale)
        correlations = np.clip(np.einsum("ij,ij->j", a, b) / (scales[0] * scales[1]), -1.0, 1.0)
        summary: float | np.ndarray = summarize(NUMPY, correlations, components)
        return summary


def fit_cca(X: ArrayLike, Y: ArrayLike, *, rank: int = 50, reduce: str | None = "pca", ridge: float = 0.0) -> CCAFit:
    """Find the canonical directions of paired rows, for correlations on other rows.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
    rank : int, default=50
        As for :func:`cca`.
    ridge : float, default=0.0
        As for :func:`cca`.
    reduce : {"pca", None}, default="pca"
        As for :func:`cca`, without ``"kernel"``, whose components are not linear projections.

    Returns
    -------
    CCAFit
        With NumPy arrays, whatever the input. Use its ``score``: in-sample correlations reach 1 on noise if
        there are about half as many dimensions as rows (see :func:`cca`).

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, TooFewAnchorsError, ParameterError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity; there are too few rows; or a parameter has an invalid value.
    InputError
        If all rows of one side are equal.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((2, 100, 60))
    >>> fit = fit_cca(X[:50], Y[:50], rank=40)
    >>> bool(fit.correlations.mean() > 0.8), abs(fit.score(X[50:], Y[50:])) < 0.1
    (True, True)

    References
    ----------
    Hotelling (1936), "Relations between two sets of variates".
    """
    check_options("mean", rank, reduce, ridge, ("pca", None))
    A, B = as_matrix(X, "X", min_rows=2, allow_zero_rows=True), as_matrix(Y, "Y", min_rows=2, allow_zero_rows=True)
    check_scale(A, "X", squares=False)
    check_scale(B, "Y", squares=False)
    check_same_rows(len(A), len(B), "X", "Y")
    means, scales, sides = [], [], []
    for side, name in ((A, "X"), (B, "Y")):
        side = side.astype(np.float64)
        origin = side[0]
        shifted = side - origin  # exact zeros in constant columns
        mean = shifted.mean(axis=0)
        C = shifted - mean
        unit = np.abs(C).max(axis=0)
        unit[unit <= 4 * EPS * np.abs(side).max(axis=0)] = 0
        if not unit.any():
            raise equal_rows(name, len(side))
        if reduce is None and ridge == 0:  # as in _bases.whitened: only the span matters
            unit = unit * np.linalg.norm(C / np.where(unit > 0, unit, 1), axis=0)
        else:
            unit = np.where(unit > 0, unit.max(), 0)
        inverse = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0)
        U, s, Vt = spectrum(NUMPY, C * inverse)
        if reduce == "pca":
            U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
        means.append(origin + mean)
        # Scales to unit variance of the variates, for rows in the caller's units.
        scales.append(inverse[:, None] * np.sqrt(len(side) - 1))
        sides.append(whiten(U, s, Vt, ridge * float(np.mean(s * s))))
    directions = canonical_directions(*sides)
    return CCAFit(
        means[0],
        means[1],
        scales[0] * directions.x_directions,
        scales[1] * directions.y_directions,
        directions.correlations,
    )
