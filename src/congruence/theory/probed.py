"""The subspace that a set of anchors probes: outside it nothing about a map can be known (Theorem C.16)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from congruence._utils.arrays import to_numpy
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_width
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Probed", "ProbedShare", "probed_share", "probed_subspace", "rounding_floor"]


@dataclass(frozen=True)
class Probed:
    """The span of a set of rows, U_X in Theorems C.16 and C.28.

    Attributes
    ----------
    rank : int
        Its dimension r.
    basis : ndarray, shape (r, d)
        Orthonormal rows, the strongest direction first.
    singular_values : ndarray, shape (min(n, d),)
        All of them, descending: where they fall off, the choice of r is plain.
    tolerance : float
        A direction counts if its singular value is above this.
    """

    rank: int
    basis: np.ndarray
    singular_values: np.ndarray
    tolerance: float

    def coordinates(self, X: RowsLike) -> np.ndarray:
        """Return each row's coordinates in the basis, and so the projection onto the subspace.

        Parameters
        ----------
        X : array_like, shape (m, d)

        Returns
        -------
        ndarray of float64, shape (m, r)

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
        """
        A = as_matrix(X, "X", allow_zero_rows=True)
        check_width(A.shape[1], self.basis.shape[1], "Probed")
        return A.astype(np.float64) @ self.basis.T

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the singular values and the tolerance: where they fall off, the choice of r is plain.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            By default of a new figure, which a notebook shows and pyplot does not know.
        annotate : bool, default=True
            Add a title, and say which is which.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from congruence.plotting import draw_singular_values

        values = dict(enumerate(self.singular_values.tolist(), start=1))
        return draw_singular_values(
            values, ax, tolerance=self.tolerance, rank=self.rank, title="What the rows span", annotate=annotate
        )


@dataclass(frozen=True)
class ProbedShare:
    """How much of each query lies where the anchors have been.

    Attributes
    ----------
    rank : int
        Dimension of the anchors' span.
    shares : ndarray, shape (m,)
        For each query ‖its projection onto the span‖² / ‖it‖², from 0 to 1.
    quantiles : dict of str to float
        Of ``shares``: "min", "5%", "25%", "50%", "75%", "95%", "max".
    """

    rank: int
    shares: np.ndarray
    quantiles: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {**asdict(self), "shares": self.shares.tolist()}


def probed_subspace(S: RowsLike, *, rtol: float | None = None, rank: int | None = None) -> Probed:
    """Find the subspace that a set of rows spans.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors, one a row. Not centered: the theorems are about the span, not the affine hull.
    rtol : float, optional
        A direction counts if its singular value exceeds this share of the largest. By default it counts if neither
        arithmetic nor rounding to the precision in which ``S`` is stored can have made it.
    rank : int, optional
        Take this many directions, the strongest ones, whatever their size.

    Returns
    -------
    Probed

    Raises
    ------
    ParameterError
        ``rtol`` and ``rank`` together, or one of them out of range.
    ShapeError, DtypeError, NotFiniteError, ZeroRowError

    References
    ----------
    Gupta et al. (2026), appendix C.5.3 (Theorem C.16) and C.6.3 (Theorem C.28).

    Notes
    -----
    Of the theorems about R^d this survives for anchors that span less: put the anchors in the coordinates of ``basis`` and
    ask there, with r for d. If they are Sym(r)-spanning there (``sym_spanning``, r(r + 1)/2 anchors), Lemma C.14 makes the
    map an isometry *on the span*, with the constant of Theorem C.23 taken there as well; of the other modality
    the projection onto the span is determined, and nothing of the rest.

    Examples
    --------
    >>> import numpy as np
    >>> probed_subspace([[1.0, 0, 0], [0, 1, 0], [0.6, 0.8, 0]]).rank
    2
    """
    if rtol is not None and rank is not None:
        raise ParameterError("Got rtol and rank; expected one of them. Leave out rtol=… or rank=….")
    A = as_matrix(S, "S").astype(np.float64)
    n, d = A.shape
    if rtol is not None:
        check_positive(rtol, "rtol", zero=True)
    if rank is not None:
        check_positive(rank, "rank", integer=True)
        if rank > min(n, d):
            raise ParameterError(
                f"Got rank={rank} for {n} rows of width {d}; expected at most {min(n, d)}. Pass rank={min(n, d)} or less."
            )
    _, s, vt = scipy.linalg.svd(A, full_matrices=False, check_finite=False)
    norm = float(np.sqrt(np.einsum("ij,ij->", A, A) / n))
    tolerance = rounding_floor(S, A.shape, norm, float(s[0])) if rtol is None else float(rtol * s[0])
    r = rank if rank is not None else int(np.count_nonzero(s > tolerance))
    return Probed(r, np.ascontiguousarray(vt[:r]), s, tolerance)


def probed_share(S: RowsLike, queries: RowsLike, *, rtol: float | None = None, rank: int | None = None) -> ProbedShare:
    """Measure how much of each query lies in the subspace that the anchors probe.

    A map fitted on the anchors maps this part on evidence; the rest it makes up.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors.
    queries : array_like, shape (m, d)
        What is to be mapped: the same modality or the other one.
    rtol, rank
        As in :func:`probed_subspace`.

    Returns
    -------
    ProbedShare

    Raises
    ------
    ParameterError, ShapeError, DtypeError, NotFiniteError, ZeroRowError

    References
    ----------
    Gupta et al. (2026), Theorem C.16.

    Examples
    --------
    >>> probed_share([[1.0, 0]], [[0.6, 0.8]]).shares.round(2).tolist()
    [0.36]
    """
    probed = probed_subspace(S, rtol=rtol, rank=rank)
    X = as_matrix(queries, "queries").astype(np.float64)
    inside = probed.coordinates(X)
    shares = np.einsum("ij,ij->i", inside, inside) / np.einsum("ij,ij->i", X, X)
    shares = np.minimum(shares, 1.0)
    at = {"min": 0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1}
    return ProbedShare(probed.rank, shares, {name: float(np.quantile(shares, q)) for name, q in at.items()})


def rounding_floor(original: object, shape: tuple[int, int], row_norm: float, top: float) -> float:
    """Return the size below which a singular value may be nothing but rounding.

    Two roundings: of the decomposition, and of the entries as stored. Independent errors of relative size ε in rows of norm
    ``row_norm`` make a random matrix of spectral norm about ``ε · row_norm · (1 + √(rows / columns))``.

    Parameters
    ----------
    original : array_like
        What the caller handed in, whose dtype says how it was stored.
    shape : tuple of int
        Of the matrix decomposed.
    row_norm : float
        Root mean square of its rows' norms.
    top : float
        Its largest singular value.

    Returns
    -------
    float
    """
    dtype = to_numpy(original).dtype
    stored = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    rows, columns = shape
    return max(
        max(shape) * float(np.finfo(np.float64).eps) * top, stored * row_norm * (1 + float(np.sqrt(rows / columns)))
    )
