"""Representational similarity analysis: whether the same pairs of items are similar in both spaces.

Dissimilarities are computed in blocks of rows and kept as at most one condensed vector of n(n − 1)/2 numbers per side.
Ranking needs no second vector: the vector is sorted in place, and the blocks are computed once more to look up their
ranks in it.

GPU tensors stay on the GPU, including sorting; only Kendall's τ transfers its ranks, for SciPy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence._utils.arrays import blocks, device, is_remote, is_tensor, namespace, normalize_rows, to_numpy
from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import as_matrix, as_native, check_choice, check_positive, check_same_rows, check_seed
from congruence.errors import InputError, ParameterError, ShapeError, ZeroRowError
from congruence.metrics._base import EPS, MOST_ROWS, Metric, check_square, inner, positive, reorder_square

#: Squared distances below this share of the squared norms are computed from differences.
_CLOSE = 1e-5
_RDMS = ("correlation", "cosine", "euclidean", "sqeuclidean")
_COMPARISONS = ("spearman", "pearson", "cosine", "kendall")


class Dissimilarities:
    """The upper triangle of a representational dissimilarity matrix in row order, computed in blocks, as squared
    distances: 1 − cos is half of one, and no comparison depends on the factor.
    """

    def __init__(self, A: Array, rdm: str, name: str) -> None:
        self.xp = xp = namespace(A)
        A = xp.astype(A, xp.float64)
        self.root = rdm == "euclidean"
        if rdm == "correlation":
            A = A - A[:, :1]  # so that a row of equal entries becomes exactly zero
            constant = xp.nonzero(~xp.any(A, axis=1))[0]
            if len(constant):
                raise ZeroRowError(
                    f"Row {int(constant[0])} of {name} has equal entries.", ("Remove it.", "Pass `rdm='euclidean'`.")
                )
            A -= xp.mean(A, axis=1, keepdims=True)
        if rdm in ("correlation", "cosine"):
            A = normalize_rows(A, name)
        else:
            # Distances do not depend on the shift, which improves their precision, and no comparison depends on the
            # scale.
            A = A - A[0]
            A -= xp.mean(A, axis=0)
            A /= float(xp.max(xp.abs(A))) or 1.0
        self.A = A
        self.squares = xp.einsum("ij,ij->i", A, A)
        self.size = len(A) * (len(A) - 1) // 2
        self.top = float(xp.max(self.squares))
        self.eps = 8 * EPS * np.sqrt(A.shape[1])
        self.tie = self.eps * self.top

    def rounding(self, values: Array) -> Array:
        """Return a bound on the rounding error of dissimilarities of about this size."""
        # The error of a product is proportional to the squared norms of the rows, and products are used only if these
        # are at most 1 / _CLOSE times the value. Smaller values are computed from differences of rows, with the
        # rounding error of the entries, even for copies of a row, which torch may sum in different orders.
        values = self.xp.clip(values, 0.0, None)
        return self.eps * self.xp.clip(values / _CLOSE + self.xp.sqrt(values * self.top) + self.tie, None, self.top)

    def blocks(self, *, root: bool) -> Iterator[tuple[slice, Array]]:
        """Yield positions in the condensed vector and the dissimilarities there (squared distances unless ``root``)."""
        n, start = len(self.A), 0
        for part in blocks(n, 96 * n):  # computing ranks requires a dozen temporary arrays of the size of a block
            rows = self.A[part]
            distances = rows @ self.A[part.start :].T
            columns = self.xp.arange(n - part.start, device=device(rows))
            later = columns > columns[: len(rows), None]
            distances *= -2
            distances += self.squares[part, None]
            distances += self.squares[part.start :]
            self._recompute_close(distances, part, later)
            values = distances[later]
            if root and self.root:
                values = self.xp.sqrt(values)
            yield slice(start, start + len(values)), values
            start += len(values)

    def _recompute_close(self, distances: Array, part: slice, upper: Array) -> None:
        """Recompute the distances of close pairs from differences, because of cancellation in the product."""
        squared_norms = self.squares[part, None] + self.squares[part.start :]
        close = upper & (distances < _CLOSE * squared_norms)
        i, j = self.xp.nonzero(close)
        for pairs in blocks(len(i), 8 * self.A.shape[1], budget=8 * 2**20):
            difference = self.A[part.start + i[pairs]] - self.A[part.start + j[pairs]]
            distances[i[pairs], j[pairs]] = self.xp.einsum("ij,ij->i", difference, difference)

    def condensed(self, *, root: bool) -> Array:
        """Return all dissimilarities as one vector."""
        out = self._vector()
        for place, values in self.blocks(root=root):
            out[place] = values
        return out

    def sorted(self) -> Array:
        """Return the squared dissimilarities in ascending order."""
        out = self.condensed(root=False)
        if is_tensor(out):
            return out.sort().values
        to_numpy(out).sort()  # in place: to_numpy returns the array itself, not a copy
        return out

    def excess(self, ordered: Array, values: Array) -> Array:
        """Return the number of dissimilarities below minus the number above: twice the average rank, centered."""
        xp = self.xp
        order = xp.argsort(values, stable=False)  # adjacent lookups access adjacent memory
        lookups = values[order]
        rounding = self.rounding(lookups)
        out = xp.empty_like(lookups)
        below = xp.searchsorted(ordered, lookups - rounding, side="left")
        above = len(ordered) - xp.searchsorted(ordered, lookups + rounding, side="right")
        out[order] = xp.astype(below - above, xp.float64)
        return out

    def ranks(self, ordered: Array) -> Array:
        """Return ``excess`` of all dissimilarities."""
        out = self._vector()
        for place, values in self.blocks(root=False):
            out[place] = self.excess(ordered, values)
        return out

    def _vector(self) -> Array:
        return self.xp.empty(self.size, dtype=self.xp.float64, device=device(self.A))


def _check_varies(low: Array, high: Array, tie: float, name: str) -> None:
    """Check that the smallest and the largest dissimilarity of a side differ. Raises InputError."""
    if float(high - low) <= tie:
        raise InputError(
            f"All pairs of {name} have the same dissimilarity.", ("Pass `compare='cosine'`.", "Check the encoder.")
        )


def _spearman(X: Dissimilarities, Y: Dissimilarities) -> float:
    a, b = X.sorted(), Y.sorted()
    _check_varies(a[0], a[-1], X.tie, "X")
    _check_varies(b[0], b[-1], Y.tie, "Y")
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
        _check_varies(ordered[0], ordered[-1], side.tie, name)
        ranks.append(to_numpy(side.ranks(ordered)))
    return float(kendalltau(ranks[0], ranks[1]).statistic)


def _pearson(X: Dissimilarities, Y: Dissimilarities) -> float:
    return _cosine(X, Y, center=True)


def _cosine(X: Dissimilarities, Y: Dissimilarities, *, center: bool = False) -> float:
    a, b = X.condensed(root=True), Y.condensed(root=True)
    for side, vector, name in ((X, a, "X"), (Y, b, "Y")):
        if center:
            _check_varies(side.xp.min(vector), side.xp.max(vector), side.tie, name)
            vector -= side.xp.mean(vector)
        elif not side.xp.max(vector) > side.tie:
            raise InputError(
                f"All pairs of {name} have dissimilarity 0.", "Remove duplicate items, or check the encoder."
            )
    return float(a @ b) / float(a @ a) ** 0.5 / float(b @ b) ** 0.5


def _side(X: RowsLike, Y: RowsLike, name: str) -> Array:
    """Return X, validated: a tensor if X and Y are on the same GPU and it supports float64, otherwise an array."""
    if is_remote(X) and is_remote(Y) and X.device == Y.device and X.device.type != "mps":
        return as_native(X, name, min_rows=3).detach()
    return as_matrix(X, name, min_rows=3, allow_zero_rows=True)


def rsa(
    X: RowsLike,
    Y: RowsLike,
    *,
    rdm: str = "correlation",
    compare: str = "spearman",
    max_rows: int | None = None,
    random_state: int = 0,
) -> float:
    """Agreement between the dissimilarities of all pairs of items in two spaces.

    In [-1, 1], for ``"cosine"`` in [0, 1]; a float also for tensors, since ranks have no gradient. Tensors on the
    same GPU are compared there.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d_x) and (n, d_y)
        Paired by row; widths may differ.
    rdm : {"correlation", "cosine", "euclidean", "sqeuclidean"}, default="correlation"
        Dissimilarity of two rows: 1 − Pearson's correlation of their entries, 1 − their cosine, their distance, or its
        square. The package rsatoolbox calls the squared distance (divided by the width) "euclidean".
    compare : {"spearman", "pearson", "cosine", "kendall"}, default="spearman"
        Agreement of the two upper triangles, without the diagonal. Ties get their average rank, ``"kendall"`` is
        τ-b, and ``"cosine"`` is Pearson's correlation without subtracting the means. Dissimilarities that differ by no
        more than rounding error are ties.
    max_rows : int, optional
        If there are more rows, compare a random sample of this size, drawn without replacement. By default all rows are
        compared, and more than 5000 are refused: pass the size of the sample, or n to compare all of them.

    Notes
    -----
    Memory: a condensed vector of n(n − 1)/2 float64 per side and a block; ``"kendall"`` needs several more, in SciPy.

    Source: Kriegeskorte, Mur and Bandettini (2008), "Representational similarity analysis – connecting the branches of
    systems neuroscience", Frontiers in Systems Neuroscience 2:4. Nili et al. (2014), "A toolbox for representational
    similarity analysis", PLoS Computational Biology 10(4).
    """
    check_seed(random_state)
    check_choice(rdm, _RDMS, "rdm")
    check_choice(compare, _COMPARISONS, "compare")
    A, B = _side(X, Y, "X"), _side(Y, X, "Y")
    check_same_rows(len(A), len(B), "X", "Y")
    n = len(A)
    if max_rows is None:
        if n > MOST_ROWS:
            raise ShapeError(
                f"Got {n} rows, above {MOST_ROWS}; memory grows with the number of pairs.",
                f"Pass `max_rows={MOST_ROWS}`, or `max_rows={n}` for {n * (n - 1) // 2 * 16 / 1e9:.1f} GB.",
            )
    elif check_positive(max_rows, "max_rows", integer=True) < 3:
        raise ParameterError(argument="max_rows", got=max_rows, expected="at least 3")
    elif n > max_rows:
        rows = np.sort(np.random.default_rng(random_state).choice(n, max_rows, replace=False))
        A, B = A[rows], B[rows]
    left, right = Dissimilarities(A, rdm, "X"), Dissimilarities(B, rdm, "Y")
    measure = {"spearman": _spearman, "kendall": _kendall, "pearson": _pearson, "cosine": _cosine}[compare]
    return float(np.clip(measure(left, right), -1.0, 1.0))


def _prepare_rsa(A: np.ndarray, name: str) -> np.ndarray:
    check_square(A, "rsa")
    side = Dissimilarities(A, "correlation", name)
    ranks = to_numpy(side.ranks(side.sorted()))
    square = np.zeros((len(A), len(A)))
    square[np.triu_indices(len(A), 1)] = ranks / positive(float(np.linalg.norm(ranks)), name)
    return square + square.T


METRICS = (
    Metric(
        rsa,
        (-1.0, 1.0),
        frozenset({"row scaling", "joint permutation", "symmetry"}),
        "Kriegeskorte et al. (2008)",
        _prepare_rsa,
        lambda K, L: inner(K, L) / 2,
        reorder_square,
        cost="n²·d",
    ),
)
