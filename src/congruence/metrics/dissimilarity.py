"""Representational similarity analysis: whether two spaces find the same pairs of items alike.

Dissimilarities are built in blocks of rows and kept as at most one condensed vector of n(n − 1)/2 numbers a side. Ranks
need no second one: the vector is sorted in place, and the blocks, built once more, look their ranks up in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from congruence._arrays import blocks
from congruence._check import as_matrix, check_choice, check_positive, check_same_rows
from congruence.errors import InputError, ParameterError, ShapeError, ZeroRowError
from congruence.metrics._base import unit

_EPS = float(np.finfo(np.float64).eps)
#: Squared distances below this share of the squared lengths are computed from differences.
_CLOSE = 1e-5
_RDMS = ("correlation", "cosine", "euclidean", "sqeuclidean")
_COMPARISONS = ("spearman", "pearson", "cosine", "kendall")
#: Rows up to which all pairs are compared without being asked: 100 MB a side.
MOST_ROWS = 5000


class Dissimilarities:
    """The upper triangle of a representational dissimilarity matrix, row after row, a block at a time.

    All of them are squared distances: 1 − cos is half that of unit vectors, and no comparison notices the factor.
    """

    def __init__(self, A: np.ndarray, rdm: str, name: str) -> None:
        A = A.astype(np.float64)
        self.root = rdm == "euclidean"
        if rdm == "correlation":
            A = A - A[:, :1]  # exact zeros in a row of equal entries
            flat = np.flatnonzero(~A.any(axis=1))
            if flat.size:
                raise ZeroRowError(
                    f"Got a row of equal entries in {name} (row {flat[0]}); expected entries that differ, since a "
                    "correlation needs variance; do drop such rows or take rdm='euclidean'."
                )
            A -= A.mean(axis=1, keepdims=True)
        if rdm in ("correlation", "cosine"):
            A = unit(A, name)
        else:
            # Distances do not notice the shift, and their digits gain; scale is no matter to any comparison.
            A = A - A[0]
            A -= A.mean(axis=0)
            top = np.abs(A).max()
            A /= top if top else 1.0
        self.A = A
        self.squares = np.einsum("ij,ij->i", A, A)
        self.size = len(A) * (len(A) - 1) // 2
        self.top = float(self.squares.max())
        self.eps = 8 * _EPS * np.sqrt(A.shape[1])
        self.tie = self.eps * self.top

    def rounding(self, values: np.ndarray) -> np.ndarray:
        """Return by how much equal dissimilarities of about this size may differ: the smaller, the more exact."""
        # A product is as exact as the rows are long, but stands only where that is at most 1 / _CLOSE times the value;
        # of smaller values, differences of the rows, there remains the rounding of the entries.
        values = np.maximum(values, 0.0)
        return self.eps * np.minimum(self.top, values / _CLOSE + np.sqrt(values * self.top))

    def blocks(self, *, root: bool) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield places in the condensed vector and the dissimilarities there (squared distances unless ``root``)."""
        n, start = len(self.A), 0
        for part in blocks(n, 96 * n):  # ranks take a dozen temporaries of a block's size
            rows = self.A[part]
            gaps = rows @ self.A[part.start :].T
            later = np.arange(n - part.start) > np.arange(len(rows))[:, None]
            gaps *= -2
            gaps += self.squares[part, None]
            gaps += self.squares[part.start :]
            self._mend(gaps, part, later)
            values = gaps[later]
            if root and self.root:
                np.sqrt(values, out=values)
            yield slice(start, start + len(values)), values
            start += len(values)

    def _mend(self, gaps: np.ndarray, part: slice, wanted: np.ndarray) -> None:
        """Compute the distances of close pairs from differences: the product has lost their digits."""
        lengths = self.squares[part, None] + self.squares[part.start :]
        near = wanted & (gaps < _CLOSE * lengths)
        i, j = np.nonzero(near)
        for few in blocks(len(i), 8 * self.A.shape[1], budget=8 * 2**20):
            gap = self.A[part.start + i[few]] - self.A[part.start + j[few]]
            gaps[i[few], j[few]] = np.einsum("ij,ij->i", gap, gap)

    def condensed(self, *, root: bool) -> np.ndarray:
        """Return all of it as one vector."""
        out = np.empty(self.size)
        for place, values in self.blocks(root=root):
            out[place] = values
        return out

    def sorted(self) -> np.ndarray:
        """Return the squared dissimilarities in ascending order."""
        out = self.condensed(root=False)
        out.sort()
        return out

    def excess(self, ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return how many more dissimilarities lie below than above: twice the average rank, centred."""
        order = np.argsort(values)  # neighbouring look-ups touch neighbouring memory
        asked = values[order]
        rounding = self.rounding(asked)
        out = np.empty(len(values))
        below = np.searchsorted(ordered, asked - rounding, side="left")
        above = len(ordered) - np.searchsorted(ordered, asked + rounding, side="right")
        out[order] = below - above
        return out


def _spread(low: float, high: float, tie: float, name: str) -> None:
    if high - low <= tie:
        raise InputError(
            f"Got the same dissimilarity for all pairs of {name}; expected some that differ, since a correlation "
            "needs variance; do check the encoder, or take compare='cosine'."
        )


def _spearman(X: Dissimilarities, Y: Dissimilarities) -> float:
    a, b = X.sorted(), Y.sorted()
    _spread(a[0], a[-1], X.tie, "X")
    _spread(b[0], b[-1], Y.tie, "Y")
    xy = xx = yy = 0.0
    for (_, u), (_, v) in zip(X.blocks(root=False), Y.blocks(root=False), strict=True):
        p, q = X.excess(a, u), Y.excess(b, v)
        xy, xx, yy = xy + float(p @ q), xx + float(p @ p), yy + float(q @ q)
    return xy / np.sqrt(xx) / np.sqrt(yy)


def _kendall(X: Dissimilarities, Y: Dissimilarities) -> float:
    from scipy.stats import kendalltau

    ranks = []
    for side, name in ((X, "X"), (Y, "Y")):
        ordered = side.sorted()
        _spread(ordered[0], ordered[-1], side.tie, name)
        out = np.empty(side.size)
        for place, values in side.blocks(root=False):
            out[place] = side.excess(ordered, values)
        ranks.append(out)
    return float(kendalltau(ranks[0], ranks[1]).statistic)


def _cosine(X: Dissimilarities, Y: Dissimilarities, *, centre: bool) -> float:
    a, b = X.condensed(root=True), Y.condensed(root=True)
    for side, vector, name in ((X, a, "X"), (Y, b, "Y")):
        if centre:
            _spread(vector.min(), vector.max(), side.tie, name)
            vector -= vector.mean()
        elif not vector.max() > side.tie:
            raise InputError(
                f"Got a dissimilarity of 0 for all pairs of {name}; expected some that differ from 0, since a cosine "
                "needs a direction; do check the encoder."
            )
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def rsa(
    X: Any,
    Y: Any,
    *,
    rdm: str = "correlation",
    compare: str = "spearman",
    max_rows: int | None = None,
    seed: int = 0,
) -> float:
    """Agreement of the dissimilarities of all pairs of items in two spaces.

    Parameters
    ----------
    X : array_like, shape (n, d_x)
    Y : array_like, shape (n, d_y)
        Row i belongs to row i of X; widths may differ.
    rdm : {"correlation", "cosine", "euclidean", "sqeuclidean"}, default="correlation"
        Dissimilarity of two rows: 1 − Pearson's correlation of their entries, 1 − their cosine, their distance, or its
        square. The package rsatoolbox calls the squared distance (divided by the width) "euclidean".
    compare : {"spearman", "pearson", "cosine", "kendall"}, default="spearman"
        Measure between the two upper triangles, the diagonal left out. Ties get their average rank, ``"kendall"`` is
        τ-b, and ``"cosine"`` is Pearson's without subtracting the means. Dissimilarities that differ by no more than
        rounding are ties.
    max_rows : int, optional
        Compare this many rows, drawn once without replacement, if there are more. By default all are compared, and more
        than 5000 are refused: pass the number to draw a sample, or one as large as n for all of them.
    seed : int, default=0
        Of that draw.

    Returns
    -------
    float
        In [-1, 1], for ``"cosine"`` in [0, 1]; also for tensors, since ranks have no gradient.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ParameterError
    ShapeError
        More than 5000 rows and no ``max_rows``.
    TooFewAnchorsError
        Fewer than three rows.
    ZeroRowError
        A row without direction, for ``rdm="cosine"``, or with equal entries, for ``rdm="correlation"``.
    InputError
        All dissimilarities of a side are equal.

    Notes
    -----
    Holds a condensed vector of n(n − 1)/2 float64 a side and a block; ``"kendall"`` several more, in SciPy.

    References
    ----------
    Kriegeskorte, Mur and Bandettini (2008), "Representational similarity analysis – connecting the branches of systems
    neuroscience", Frontiers in Systems Neuroscience 2:4.
    Nili et al. (2014), "A toolbox for representational similarity analysis", PLoS Computational Biology 10(4).
    """
    check_choice(rdm, _RDMS, "rdm")
    check_choice(compare, _COMPARISONS, "compare")
    A, B = as_matrix(X, "X", min_rows=3, allow_zero_rows=True), as_matrix(Y, "Y", min_rows=3, allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    n = len(A)
    if max_rows is None:
        if n > MOST_ROWS:
            raise ShapeError(
                f"Got {n} rows; expected {MOST_ROWS} at most, since memory grows with the pairs; "
                f"do pass max_rows={MOST_ROWS} to compare a sample, or max_rows={n} for {n * (n - 1) // 2 * 16 / 1e9:.1f} GB."
            )
    else:
        check_positive(max_rows, "max_rows", integer=True)
        if max_rows < 3:
            raise ParameterError(f"Got max_rows={max_rows}; expected 3 at least, for three pairs; do raise it.")
        if n > max_rows:
            rows = np.sort(np.random.default_rng(seed).choice(n, max_rows, replace=False))
            A, B = A[rows], B[rows]
    left, right = Dissimilarities(A, rdm, "X"), Dissimilarities(B, rdm, "Y")
    if compare == "spearman":
        value = _spearman(left, right)
    elif compare == "kendall":
        value = _kendall(left, right)
    else:
        value = _cosine(left, right, centre=compare == "pearson")
    return float(np.clip(value, -1.0, 1.0))
