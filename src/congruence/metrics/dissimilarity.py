"""Representational similarity analysis: whether the same pairs of items are similar in both spaces.

Dissimilarities are computed in blocks of rows, into condensed vectors of n(n − 1)/2 numbers, which are ranked by
sorting. GPU tensors stay on the GPU; only Kendall's τ transfers its ranks, for SciPy.
"""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import blocks, device, is_remote, namespace, normalize_rows, to_numpy
from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import as_matrix, as_native, check_choice, check_positive, check_same_rows, check_seed
from congruence.errors import InputError, ParameterError, ShapeError, ZeroRowError
from congruence.metrics._base import EPS, MOST_ROWS, Metric, check_square, inner, reorder_square

#: Squared distances below this share of the squared norms are computed from differences.
_CLOSE = 1e-5
_RDMS = ("correlation", "cosine", "euclidean", "sqeuclidean")
_COMPARISONS = ("spearman", "pearson", "cosine", "kendall")


class Dissimilarities:
    """The upper triangle of a dissimilarity matrix in row order, as squared distances, in blocks."""

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
        # Products, whose error is proportional to the squared norms of the rows, are used only if these are at most 1 /
        # _CLOSE times the value. Smaller values have the rounding error of the entries, even for copies of a row, which
        # torch may sum in different orders.
        values = self.xp.clip(values, 0.0, None)
        return self.eps * self.xp.clip(values / _CLOSE + self.xp.sqrt(values * self.top) + self.tie, None, self.top)

    def condensed(self) -> Array:
        """Return all squared distances as one vector."""
        xp, n, start = self.xp, len(self.A), 0
        out = xp.empty(self.size, dtype=xp.float64, device=device(self.A))
        for part in blocks(n, 32 * n):
            rows = self.A[part]
            distances = rows @ self.A[part.start :].T
            columns = xp.arange(n - part.start, device=device(rows))
            later = columns > columns[: len(rows), None]
            distances *= -2
            distances += self.squares[part, None]
            distances += self.squares[part.start :]
            values = distances[later]
            if len(values) and float(xp.min(values)) < 2 * _CLOSE * self.top:
                self._recompute_close(distances, part, later)
                values = distances[later]
            out[start : start + len(values)] = values
            start += len(values)
        return out

    def _recompute_close(self, distances: Array, part: slice, upper: Array) -> None:
        """Recompute the distances of close pairs from differences, since their products cancel."""
        squared_norms = self.squares[part, None] + self.squares[part.start :]
        close = upper & (distances < _CLOSE * squared_norms)
        i, j = self.xp.nonzero(close)
        for pairs in blocks(len(i), 8 * self.A.shape[1], budget=8 * 2**20):
            difference = self.A[part.start + i[pairs]] - self.A[part.start + j[pairs]]
            distances[i[pairs], j[pairs]] = self.xp.einsum("ij,ij->i", difference, difference)

    def ranked(self, name: str) -> tuple[Array, Array]:
        """Return the order of the distances, which must differ, and in this order the number of distances below minus
        the number above each: twice its average rank, centered.
        """
        xp, n = self.xp, self.size
        values = self.condensed()
        if isinstance(values, np.ndarray):
            order = _argsort(values)
            values.sort()  # in place, to save an array
        else:
            order = xp.argsort(values, stable=False)
            values = values[order]
        _check_varies(values[0], values[-1], self.tie, name)
        # Only where neighbors are close may there be ties.
        close = xp.nonzero(values[1:] - values[:-1] <= 2 * self.tie)[0]
        close = xp.concat([close, close + 1])
        found = values[close]
        rounding = self.rounding(found)
        below = xp.searchsorted(values, found - rounding, side="left")
        above = n - xp.searchsorted(values, found + rounding, side="right")
        del values
        out = xp.arange(1 - n, n, 2, dtype=xp.float64, device=device(self.A))
        out[close] = xp.astype(below - above, xp.float64)
        return order, out

    def ranks(self, name: str) -> Array:
        """Return twice the average rank of each distance, centered."""
        order, sizes = self.ranked(name)
        out = self.xp.empty_like(sizes)
        out[order] = sizes
        return out


def _argsort(values: np.ndarray) -> np.ndarray:
    """Return the order of many numbers, three times as fast as ``numpy.argsort``: the first digits of each, and its
    position, are sorted as one integer, and then those whose first digits are equal.
    """
    bits, low = len(values).bit_length(), values.min()
    scale = 2.0 ** (62 - bits) / max(float(values.max() - low), 1e-290)
    keys = values - low
    keys *= scale
    keys = keys.astype(np.int64)
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    same = np.flatnonzero(keys[1:] == keys[:-1])
    if 20 * len(same) > len(values):
        return np.argsort(values)
    unsure = np.union1d(same, same + 1)
    some = order[unsure]
    order[unsure] = some[np.lexsort((values[some], keys[unsure]))]
    return np.asarray(order)


def _spearman(X: Dissimilarities, Y: Dissimilarities) -> float:
    first = X.ranks("X")
    order, second = Y.ranked("Y")
    xy = 0.0
    for part in blocks(len(order), 8):  # a third vector of ranks would need more memory
        xy += float(first[order[part]] @ second[part])
    return xy / float(first @ first) ** 0.5 / float(second @ second) ** 0.5


def _compared(side: Dissimilarities, compare: str, name: str) -> Array:
    """Return the vector of a side whose cosine or rank correlation with the other's is the result."""
    if compare == "kendall":
        return side.ranks(name)
    vector = side.condensed()
    if side.root:
        vector = side.xp.sqrt(vector)
    if compare == "pearson":
        _check_varies(side.xp.min(vector), side.xp.max(vector), side.tie, name)
        vector -= side.xp.mean(vector)
    elif not side.xp.max(vector) > side.tie:
        raise InputError(f"All pairs of {name} have dissimilarity 0.", "Remove duplicate items, or check the encoder.")
    return vector


def _check_varies(low: Array, high: Array, tie: float, name: str) -> None:
    """Check that the smallest and the largest dissimilarity of a side differ."""
    if float(high - low) <= tie:
        raise InputError(
            f"All pairs of {name} have the same dissimilarity.", ("Pass `compare='cosine'`.", "Check the encoder.")
        )


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

    In [-1, 1], for ``"cosine"`` in [0, 1]; a float also for tensors, since ranks have no gradient.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d_x) and (n, d_y)
    rdm : {"correlation", "cosine", "euclidean", "sqeuclidean"}, default="correlation"
        Dissimilarity of two rows: 1 − Pearson's correlation of their entries, 1 − their cosine, their distance, or its
        square. The package rsatoolbox calls the squared distance (divided by the width) "euclidean".
    compare : {"spearman", "pearson", "cosine", "kendall"}, default="spearman"
        Agreement of the two upper triangles, without the diagonal. Ties get their average rank, ``"kendall"`` is
        τ-b, and ``"cosine"`` is Pearson's correlation without subtracting the means. Dissimilarities that differ by no
        more than rounding error are ties.
    max_rows : int, optional
        Size of the random sample of rows to compare. By default all are, and more than 5000 are refused.

    Notes
    -----
    Memory: three condensed vectors of n(n − 1)/2 numbers and a block; ``"kendall"`` needs more, in SciPy.

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
    if compare == "spearman":
        return float(np.clip(_spearman(left, right), -1.0, 1.0))
    a, b = _compared(left, compare, "X"), _compared(right, compare, "Y")
    if compare == "kendall":
        from scipy.stats import kendalltau

        return float(np.clip(kendalltau(to_numpy(a), to_numpy(b)).statistic, -1.0, 1.0))
    return float(np.clip(float(a @ b) / float(a @ a) ** 0.5 / float(b @ b) ** 0.5, -1.0, 1.0))


def _prepare_rsa(A: np.ndarray, name: str) -> np.ndarray:
    check_square(A, "rsa")
    side = Dissimilarities(A, "correlation", name)
    ranks = to_numpy(side.ranks(name))
    square = np.zeros((len(A), len(A)))
    square[~np.tri(len(A), dtype=bool)] = ranks / np.linalg.norm(ranks)
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
