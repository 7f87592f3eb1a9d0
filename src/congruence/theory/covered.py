"""The subspace that a set of anchors covers, outside of which anchors do not determine a map (Theorem C.16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from congruence._utils.arrays import to_numpy
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_width
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class CoveredSubspace:
    """The span of a set of rows, U_X in Theorems C.16 and C.28.

    - ``rank``: Its dimension r.
    - ``basis``, shape (r, d): Orthonormal rows, in the order of decreasing singular values.
    - ``singular_values``, shape (min(n, d),): All, descending; a sharp drop makes the choice of r clear.
    - ``tolerance``: Directions with a singular value above this are counted.
    """

    rank: int
    basis: np.ndarray
    singular_values: np.ndarray
    tolerance: float

    def coordinates(self, X: RowsLike) -> np.ndarray:
        """Return coordinates in the basis, shape (m, r), of rows X (m, d): their projection onto the subspace."""
        A = as_matrix(X, "X", allow_zero_rows=True)
        check_width(A.shape[1], self.basis.shape[1], "CoveredSubspace")
        return A.astype(np.float64) @ self.basis.T

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the singular values and the tolerance on ``ax`` or new axes."""
        from congruence.plotting import draw_singular_values

        values = dict(enumerate(self.singular_values.tolist(), start=1))
        title = "Singular values of the rows"
        return draw_singular_values(
            values, ax, tolerance=self.tolerance, rank=self.rank, title=title, annotate=annotate
        )


@dataclass(frozen=True)
class CoveredShare(PlainData):
    """Share of each query in the subspace of dimension ``rank`` that the anchors cover.

    - ``shares``, shape (m,): For each query ‖its projection onto the span‖² / ‖the query‖², from 0 to 1.
    - ``quantiles``: Quantiles of ``shares``: "min", "5%", "25%", "50%", "75%", "95%", "max".
    """

    rank: int
    shares: np.ndarray
    quantiles: dict[str, float]


def covered_subspace(S: RowsLike, *, rtol: float | None = None, rank: int | None = None) -> CoveredSubspace:
    """Compute the subspace that a set of rows S (n, d) spans (appendix C.5.3 (Theorem C.16) and C.6.3 (Theorem C.28)).

    Rows are not centered: the theorems are about the span, not the affine hull. Directions count whose singular value
    exceeds the share ``rtol`` of the largest, by default that cannot be due to rounding, in the arithmetic or as ``S``
    is stored; or the leading ``rank``.

    For anchors that span less than R^d, the theorems hold in the coordinates of ``basis``, with r in place of d. If the
    anchors are Sym(r)-spanning there, Lemma C.14 makes the map an isometry *on the span*; for the other modality, only
    the projection onto the span is determined.
    """
    if rtol is not None and rank is not None:
        raise ParameterError("Got rtol and rank; expected one of them.", "Leave out `rtol=…` or `rank=…`.")
    A = as_matrix(S, "S").astype(np.float64)
    n, d = A.shape
    if rank is not None and check_positive(rank, "rank", integer=True) > min(n, d):
        raise ParameterError(argument="rank", got=rank, expected=f"at most {min(n, d)}")
    _, s, vt = scipy.linalg.svd(A, full_matrices=False, check_finite=False)
    tolerance = rounding_floor(S, A.shape, float(np.sqrt(np.einsum("ij,ij->", A, A) / n)), float(s[0]), rtol)
    r = rank if rank is not None else int(np.count_nonzero(s > tolerance))
    return CoveredSubspace(r, np.ascontiguousarray(vt[:r]), s, tolerance)


def covered_share(
    S: RowsLike, queries: RowsLike, *, rtol: float | None = None, rank: int | None = None
) -> CoveredShare:
    """Measure the share of each query (m, d) in the subspace that the anchors S (n, d) cover (Theorem C.16).

    The anchors determine how a map sends this component; they contain no information about the rest.
    """
    covered = covered_subspace(S, rtol=rtol, rank=rank)
    X = as_matrix(queries, "queries").astype(np.float64)
    coordinates = covered.coordinates(X)
    shares = np.minimum(np.einsum("ij,ij->i", coordinates, coordinates) / np.einsum("ij,ij->i", X, X), 1.0)
    levels = {"min": 0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1}
    return CoveredShare(covered.rank, shares, {name: float(np.quantile(shares, q)) for name, q in levels.items()})


def rounding_floor(
    original: object, shape: tuple[int, int], row_norm: float, top: float, rtol: float | None = None
) -> float:
    """Return the size up to which a singular value counts as zero: the share ``rtol`` of the largest, ``top``; by
    default what may be due to rounding only, in a decomposition of this ``shape``, or of the entries of ``original`` in
    its dtype, a random matrix of norm about ε · ``row_norm`` · (1 + √(rows / columns)).
    """
    if rtol is not None:
        return float(check_positive(rtol, "rtol", zero=True) * top)
    dtype = to_numpy(original).dtype
    stored = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    rows, columns = shape
    return max(
        max(shape) * float(np.finfo(np.float64).eps) * top, stored * row_norm * (1 + float(np.sqrt(rows / columns)))
    )
