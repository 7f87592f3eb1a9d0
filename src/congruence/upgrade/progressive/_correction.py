"""The map of a progressive migration as data: the fitted correction of the first map, and the terms of the map for given rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from congruence.upgrade.progressive.texts import Gate

__all__ = ["GATED", "PLAIN", "TEXTS", "Correction", "Parts", "Solved", "transform_parts"]

#: Kinds of map: with mixtures of texts, without them, and both weighted by the probability that a row's own text is among the known ones.
TEXTS, PLAIN, GATED = "texts", "plain", "gated"


@dataclass(frozen=True)
class Correction:
    """A kind of map, and the ridge regression that it adds to the first map.

    Attributes
    ----------
    kind : {"texts", "plain", "gated"}
        "texts": a mixture of the texts nearest in the old model is added to the first map, and used as features. "plain": no texts are used. "gated": a
        mixture of both, weighted by the gate.
    ridge : float
        Penalty, as a multiple of the rows' mean squared norm.
    gate : Gate or None
        The gate of a gated map.
    feature_mean : ndarray, shape (p,), or None
        This and the following arrays are None if nothing was fitted yet.
    residual_mean : ndarray, shape (d_new,), or None
    coef : ndarray, shape (p, d_new), or None
    plain_coef : ndarray, shape (d_old, d_new), or None
        Coefficients of the part without texts of a gated map.
    evidence : str
        Data on which kind and penalty were chosen.
    """

    kind: str
    ridge: float
    gate: Gate | None = None
    feature_mean: np.ndarray | None = None
    residual_mean: np.ndarray | None = None
    coef: np.ndarray | None = None
    plain_coef: np.ndarray | None = None
    evidence: str = "too few re-embedded rows to choose by"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays by name, for saving; empty before a fit."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    def facts(self) -> dict[str, Any]:
        """Return all other fields as plain data, for saving."""
        gate = None if self.gate is None else [self.gate.slope, self.gate.level, self.gate.share]
        return {"kind": self.kind, "ridge": self.ridge, "gate": gate, "evidence": self.evidence}

    def solved(self) -> dict[str, Solved]:
        """Return the fitted regressions by kind; empty before a fit."""
        if self.feature_mean is None or self.residual_mean is None or self.coef is None:
            return {}
        regressions = {PLAIN if self.kind == PLAIN else TEXTS: Solved(self.feature_mean, self.residual_mean, self.coef)}
        if self.plain_coef is not None:
            # Residuals without texts are y − f(x); their mean is the mean of y − f(x) − t(x) plus that of t(x).
            d = len(self.plain_coef)
            offset = self.residual_mean + self.feature_mean[d:]
            regressions[PLAIN] = Solved(self.feature_mean[:d], offset, self.plain_coef)
        return regressions

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Correction:
        """Rebuild a correction from :meth:`arrays` and :meth:`facts`. Raises KeyError, ValueError, TypeError."""
        kind, gate = facts["kind"], facts["gate"]
        if kind not in (TEXTS, PLAIN, GATED) or (kind == GATED and gate is None):
            raise ValueError(f"a map of kind {kind!r}")
        expected = _ARRAYS if kind == GATED else _ARRAYS[:3]
        if arrays and set(arrays) != set(expected):
            raise ValueError(f"a map of kind {kind!r} with {sorted(arrays)}")
        return cls(
            kind,
            float(facts["ridge"]),
            None if gate is None else Gate(*map(float, gate)),
            **arrays,
            evidence=str(facts["evidence"]),
        )


#: Arrays of a correction; only a gated map has the last one.
_ARRAYS = ("feature_mean", "residual_mean", "coef", "plain_coef")


class Parts(NamedTuple):
    """The terms of a map for some rows.

    Attributes
    ----------
    rows : ndarray, shape (n, d_old)
        Rows of the old model.
    mixed : ndarray, shape (n, d_new), or None
        Mixtures of texts; None for a map without texts.
    known : ndarray, shape (n, 1), or None
        Weights of the texts, from the gate of a gated map.
    base : ndarray, shape (n, d_new)
        Rows mapped by the first map.
    """

    rows: np.ndarray
    mixed: np.ndarray | None
    known: np.ndarray | None
    base: np.ndarray

    def features(self, kind: str) -> np.ndarray:
        """Return the features of the regression, shape (n, p)."""
        return self.rows if kind == PLAIN or self.mixed is None else np.hstack([self.rows, self.mixed])

    def start(self, kind: str) -> np.ndarray:
        """Return the mapped rows without the regression, from which residuals are taken, shape (n, d_new)."""
        return self.base if kind == PLAIN or self.mixed is None else self.base + self.mixed

    def take(self, rows: np.ndarray) -> Parts:
        """Return the terms for some of the rows."""
        mixed, known = (None if term is None else term[rows] for term in (self.mixed, self.known))
        return Parts(self.rows[rows], mixed, known, self.base[rows])


class Solved(NamedTuple):
    """A fitted ridge regression: means of features and of residuals, and coefficients."""

    mean: np.ndarray
    offset: np.ndarray
    coef: np.ndarray


def transform_parts(parts: Parts, kind: str, solved: Mapping[str, Solved]) -> np.ndarray:
    """Return rows mapped by a kind of map, shape (n, d_new), without normalization.

    Parameters
    ----------
    parts : Parts
    kind : str
    solved : mapping of str to Solved
        Regressions with texts and without; empty before the first fit.
    """
    if kind == GATED:
        assert parts.known is not None
        return np.asarray(
            parts.known * transform_parts(parts, TEXTS, solved)
            + (1 - parts.known) * transform_parts(parts, PLAIN, solved)
        )
    out = parts.start(kind)
    if kind in solved:
        mean, offset, coef = solved[kind]
        out = out + (parts.features(kind) - mean) @ coef + offset
    return np.asarray(out)
