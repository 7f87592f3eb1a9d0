"""Mapped and native rows score differently: scores of one brought onto the scale of the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.upgrade.progressive.texts import unit

__all__ = ["KINDS", "OriginScale", "fit_origin_scale"]

#: How scores of mapped rows are changed.
KINDS = ("query", "affine", "monotone", "factor")

#: Fewest rows known in both ways.
FEWEST = 20

#: Scores from this quantile on set the factor: a search compares the highest.
_TOP = 0.99

#: Quantiles that a monotone change runs through, and how many.
_STEPS = 201


@dataclass(frozen=True, eq=False)
class OriginScale:
    """How a mapped row's score reads as a native row's.

    Attributes
    ----------
    kind : {"query", "affine", "monotone", "factor"}
    knots, values : ndarray, shape (q,)
        Scores of mapped rows, and what they become: linear between knots, with the last slopes beyond.
    mapped, native : ndarray, shape (n, d), or None
        Of ``kind="query"`` the unit rows by which each query's scores are standardized.
    """

    kind: str
    knots: np.ndarray
    values: np.ndarray
    mapped: np.ndarray | None = None
    native: np.ndarray | None = None

    @property
    def factor(self) -> float:
        """Slope between the outermost knots; of ``kind="factor"`` what mapped rows are multiplied by when they are stored.

        Raises
        ------
        ParameterError
            ``kind="query"`` has none.
        """
        if not len(self.knots):
            raise ParameterError("Got kind='query', which has no factor; expected another. Pass kind='factor'.")
        return float((self.values[-1] - self.values[0]) / (self.knots[-1] - self.knots[0]))

    def apply(self, scores: RowsLike, mapped: RowsLike, queries: RowsLike | None = None) -> np.ndarray:
        """Return scores with those of mapped rows on the scale of native ones.

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

        Raises
        ------
        ShapeError
            Not one flag a column, or not one query a row.
        ParameterError
            No queries for ``kind="query"``.
        """
        out = np.array(scores, dtype=np.float64)
        which = np.asarray(mapped, dtype=bool)
        if out.ndim != 2 or which.shape != (out.shape[1],):
            raise ShapeError(
                f"Got scores of shape {out.shape} and flags of shape {which.shape}; expected one flag a column. Pass mapped=… with one entry a row of the store."
            )
        theirs = out[:, which]
        out[:, which] = self._by_query(theirs, queries) if self.kind == "query" else self._by_knots(theirs)
        return out

    def _by_query(self, scores: np.ndarray, queries: RowsLike | None) -> np.ndarray:
        if queries is None or self.mapped is None or self.native is None:
            raise ParameterError("Got no queries for kind='query'; expected those of the scores. Pass queries=….")
        Q = unit(as_matrix(queries, "queries"))
        check_same_rows(len(scores), len(Q), "scores", "queries")
        ours, native = Q @ self.mapped.T, Q @ self.native.T
        slope = native.std(axis=1) / np.maximum(ours.std(axis=1), 1e-12)
        return np.asarray((scores - ours.mean(axis=1)[:, None]) * slope[:, None] + native.mean(axis=1)[:, None])

    def _by_knots(self, scores: np.ndarray) -> np.ndarray:
        changed = np.interp(scores, self.knots, self.values)
        for end, inner, beyond in ((0, 1, scores < self.knots[0]), (-1, -2, scores > self.knots[-1])):
            slope = (self.values[end] - self.values[inner]) / (self.knots[end] - self.knots[inner])
            changed = np.where(beyond, self.values[end] + slope * (scores - self.knots[end]), changed)
        return np.asarray(changed)

    def state(self) -> dict[str, Any]:
        """Return everything as plain data."""
        rows = {
            name: one.tolist() for name, one in (("mapped", self.mapped), ("native", self.native)) if one is not None
        }
        return {"kind": self.kind, "knots": self.knots.tolist(), "values": self.values.tolist(), **rows}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OriginScale:
        """Rebuild a scale from :meth:`state`. Raises ParameterError for an unknown kind."""
        check_choice(state["kind"], KINDS, "kind")
        sides = (np.asarray(state[name], float) if name in state else None for name in ("mapped", "native"))
        return cls(state["kind"], np.asarray(state["knots"], float), np.asarray(state["values"], float), *sides)


def fit_origin_scale(queries: RowsLike, mapped: RowsLike, native: RowsLike, kind: str = "query") -> OriginScale:
    """Fit how scores of mapped rows read as those of native rows.

    Parameters
    ----------
    queries : array_like, shape (m, d)
        Of the new model.
    mapped, native : array_like, shape (n, d)
        The same random rows as the map gives them, from old vectors it was not fitted on, and as the new model encodes them.
    kind : {"query", "affine", "monotone", "factor"}, default="query"
        "query": each query's scores get the mean and standard deviation that these rows have as native ones, as in
        :func:`congruence.upgrade.bridge.search_mixed`. "affine": mean and standard deviation of the scores become those of native rows. "monotone": all their quantiles do. "factor": multiplied, so that the highest hundredth
        has the mean of native rows; it can be stored in the rows of an inner-product index.

    Returns
    -------
    OriginScale

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, ParameterError
    InputError
        Fewer than 20 rows, or scores that do not vary.

    Notes
    -----
    Distributions are matched, of the same rows and queries. A regression of native on mapped scores would shrink the scores of mapped rows to their mean and put them
    behind native ones: in a search the question is which row stands where, not which score is expected.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.upgrade.progressive import fit_origin_scale
    >>> rows = np.random.default_rng(0).standard_normal((100, 8))
    >>> scale = fit_origin_scale(rows[:10], rows, rows)
    >>> bool(np.allclose(scale.apply(rows[:2] @ rows.T, rows[:, 0] > 0, rows[:2]), rows[:2] @ rows.T))
    True
    """
    check_choice(kind, KINDS, "kind")
    Q, Z, Y = (as_matrix(rows, name) for rows, name in ((queries, "queries"), (mapped, "mapped"), (native, "native")))
    check_same_rows(len(Z), len(Y), "mapped", "native")
    if not Q.shape[1] == Z.shape[1] == Y.shape[1]:
        raise ShapeError(
            f"Got {Q.shape[1]}-d queries, {Z.shape[1]}-d mapped and {Y.shape[1]}-d native rows; expected one width. Pass queries and rows of the new model."
        )
    if len(Z) < FEWEST:
        raise InputError(
            f"Got {len(Z)} rows known in both ways; expected {FEWEST} or more. Pass mapped=… and native=… with more random rows."
        )
    Q = unit(Q)
    ours, theirs = (Q @ unit(Z).T).ravel(), (Q @ unit(Y).T).ravel()
    if min(np.ptp(ours), np.ptp(theirs)) <= 1e-9:
        raise InputError(
            "Got scores that are all equal; expected different ones. Pass queries=… and rows that differ from each other."
        )
    if kind == "query":
        return OriginScale(kind, np.zeros(0), np.zeros(0), unit(Z), unit(Y))
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
