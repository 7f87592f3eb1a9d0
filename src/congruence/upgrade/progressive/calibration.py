"""Convert scores of mapped rows to the scale of native rows' scores, since the two differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows
from congruence.errors import InputError, ParameterError, ShapeError

KINDS = ("query", "affine", "monotone", "factor")  # kinds of conversion
FEWEST = 20  # minimum number of rows for which both vectors are known
_TOP = 0.99  # the factor is fitted on the scores from this quantile on, since a search compares the highest scores
_STEPS = 201  # number of quantiles between which a monotone conversion interpolates


@dataclass(frozen=True, eq=False)
class OriginScale:
    """A conversion of mapped rows' scores to the scale of native rows' scores."""

    kind: str
    knots: np.ndarray  # (q,), scores of mapped rows
    values: np.ndarray  # (q,), their converted values: linear between knots, with the last slopes beyond them
    mapped: np.ndarray | None = None  # (n, d), unit rows by which each query's scores are standardized
    native: np.ndarray | None = None

    @property
    def factor(self) -> float:
        """Slope between the outermost knots; for ``kind="factor"``, by what mapped rows are multiplied."""
        if not len(self.knots):
            raise ParameterError("Got `kind='query'`, which has no factor.", "Pass `kind='factor'`.")
        return float((self.values[-1] - self.values[0]) / (self.knots[-1] - self.knots[0]))

    def rescale(self, scores: RowsLike, mapped: RowsLike, queries: RowsLike | None = None) -> np.ndarray:
        """Return scores in which those of mapped rows are converted to the scale of native ones.

        Parameters
        ----------
        scores : array_like, shape (m, n)
            Inner products of unit queries and unit rows.
        mapped : array_like of bool, shape (n,)
            Which rows are mapped.
        queries : array_like, shape (m, d), optional
            The queries; needed for ``kind="query"``.

        Returns
        -------
        ndarray of float64, shape (m, n)
        """
        out = np.array(scores, dtype=np.float64)
        which = np.asarray(mapped, dtype=bool)
        if out.ndim != 2 or which.shape != (out.shape[1],):
            raise ShapeError(
                f"Got scores of shape {out.shape} and flags of shape {which.shape}; expected one flag per column.",
                "Pass `mapped=…` with one entry per row of the store.",
            )
        before = out[:, which]
        if self.kind != "query":
            out[:, which] = np.interp(before, self.knots, self.values)
            for end, inner, beyond in ((0, 1, before < self.knots[0]), (-1, -2, before > self.knots[-1])):
                slope = (self.values[end] - self.values[inner]) / (self.knots[end] - self.knots[inner])
                further = self.values[end] + slope * (before - self.knots[end])
                out[:, which] = np.where(beyond, further, out[:, which])
            return out
        if queries is None or self.mapped is None or self.native is None:
            raise ParameterError(
                "Got no queries for `kind='query'`; expected those of the scores.", "Pass `queries=…`."
            )
        Q = normalize_rows(as_matrix(queries, "queries"), dtype=np.float64)
        check_same_rows(len(out), len(Q), "scores", "queries")
        ours, native = Q @ self.mapped.T, Q @ self.native.T
        slope = native.std(axis=1) / np.maximum(ours.std(axis=1), 1e-12)
        out[:, which] = (before - ours.mean(axis=1)[:, None]) * slope[:, None] + native.mean(axis=1)[:, None]
        return out


def fit_origin_scale(queries: RowsLike, mapped: RowsLike, native: RowsLike, kind: str = "query") -> OriginScale:
    """Fit the conversion of mapped rows' scores to the scale of native rows' scores.

    Parameters
    ----------
    queries : array_like, shape (m, d)
        Queries in the new model.
    mapped, native : array_like, shape (n, d)
        The same random rows, mapped from old vectors that the map was not fitted on, and encoded by the new model.
    kind : {"query", "affine", "monotone", "factor"}, default="query"
        "query": give each query's scores the mean and standard deviation that native rows have for this query, as in
        ``congruence.upgrade.bridge.search_mixed``. "affine": match the mean and standard deviation of all scores to
        those of native rows. "monotone": match all their quantiles. "factor": multiply the scores so that the mean of
        the highest hundredth matches that of native rows; this can be stored in the rows of an inner-product index.

    Notes
    -----
    The conversion matches distributions over the same rows and queries. A regression of native on mapped scores would
    shrink the scores of mapped rows toward their mean and rank them behind native ones: a search needs the rank of each
    row, not its expected score.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.upgrade.progressive import fit_origin_scale
    >>> rows = np.random.default_rng(0).standard_normal((100, 8))
    >>> scale = fit_origin_scale(rows[:10], rows, rows)
    >>> bool(np.allclose(scale.rescale(rows[:2] @ rows.T, rows[:, 0] > 0, rows[:2]), rows[:2] @ rows.T))
    True
    """
    check_choice(kind, KINDS, "kind")
    Q, Z, Y = (as_matrix(rows, name) for rows, name in ((queries, "queries"), (mapped, "mapped"), (native, "native")))
    check_same_rows(len(Z), len(Y), "mapped", "native")
    if not Q.shape[1] == Z.shape[1] == Y.shape[1]:
        raise ShapeError(
            f"Got {Q.shape[1]}-d queries, {Z.shape[1]}-d mapped and {Y.shape[1]}-d native rows.",
            "Pass queries and rows of the new model.",
        )
    if len(Z) < FEWEST:
        raise InputError(
            f"Got {len(Z)} rows; {FEWEST} are needed.", "Pass `mapped=…` and `native=…` with more random rows."
        )
    Q, Z, Y = (normalize_rows(side, dtype=np.float64) for side in (Q, Z, Y))
    ours, theirs = (Q @ Z.T).ravel(), (Q @ Y.T).ravel()
    if min(np.ptp(ours), np.ptp(theirs)) <= 1e-9:
        raise InputError("All scores are equal.", "Pass `queries=…` and rows that differ from each other.")
    if kind == "query":
        return OriginScale(kind, np.zeros(0), np.zeros(0), Z, Y)
    if kind == "affine":
        knots = ours.mean() + ours.std() * np.array([-1.0, 1.0])
        values = theirs.mean() + theirs.std() * np.array([-1.0, 1.0])
    elif kind == "factor":
        tops = [side[side >= np.quantile(side, _TOP)].mean() for side in (ours, theirs)]
        knots, values = np.array([0.0, 1.0]), np.array([0.0, float(tops[1] / tops[0])])
    else:
        steps = np.linspace(0, 1, _STEPS)
        knots, first = np.unique(np.quantile(ours, steps), return_index=True)
        values = np.quantile(theirs, steps)[first]
    return OriginScale(kind, knots, values)
