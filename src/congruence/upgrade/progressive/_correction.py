"""A map of a progressive migration as data: what it is made of, row by row, and what was fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from congruence.upgrade.progressive.texts import Gate

__all__ = ["GATED", "PLAIN", "TEXTS", "Correction", "Parts", "Solved", "apply"]

#: Kinds of map: with the old model's texts, without, and with them by how likely it is that a row's own text is one of them.
TEXTS, PLAIN, GATED = "texts", "plain", "gated"


@dataclass(frozen=True)
class Correction:
    """A map by what it adds to the first one.

    Attributes
    ----------
    kind : {"texts", "plain", "gated"}
        The texts that the old model finds near are added, and are features; or not; or so far as the gate lets them.
    ridge : float
        Multiple of the rows' mean squared norm.
    gate : Gate or None
        Of a gated map.
    feature_mean : ndarray, shape (p,), or None
        None where nothing was fitted yet.
    residual_mean : ndarray, shape (d_new,), or None
    coef : ndarray, shape (p, d_new), or None
    plain_coef : ndarray, shape (d_old, d_new), or None
        Of a gated map's part without texts.
    evidence : str
        How it was chosen.
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
        """Return the fitted arrays, for saving; none before a fit."""
        found = {name: getattr(self, name) for name in _ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    def facts(self) -> dict[str, Any]:
        """Return the rest as plain data."""
        gate = None if self.gate is None else [self.gate.slope, self.gate.level, self.gate.share]
        return {"kind": self.kind, "ridge": self.ridge, "gate": gate, "evidence": self.evidence}

    def solved(self) -> dict[str, Solved]:
        """Return the regressions by kind, none before a fit."""
        if self.feature_mean is None or self.residual_mean is None or self.coef is None:
            return {}
        found = {PLAIN if self.kind == PLAIN else TEXTS: Solved(self.feature_mean, self.residual_mean, self.coef)}
        if self.plain_coef is not None:
            # Residuals without the texts are y − f(x), whose mean is that of y − f(x) − t(x) and of t(x).
            d = len(self.plain_coef)
            offset = self.residual_mean + self.feature_mean[d:]
            found[PLAIN] = Solved(self.feature_mean[:d], offset, self.plain_coef)
        return found

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Correction:
        """Rebuild a correction from :meth:`arrays` and :meth:`facts`. Raises KeyError, ValueError, TypeError."""
        kind, gate = facts["kind"], facts["gate"]
        if kind not in (TEXTS, PLAIN, GATED) or (kind == GATED and gate is None):
            raise ValueError(f"a map of kind {kind!r}")
        wanted = _ARRAYS if kind == GATED else _ARRAYS[:3]
        if arrays and set(arrays) != set(wanted):
            raise ValueError(f"a map of kind {kind!r} with {sorted(arrays)}")
        return cls(
            kind,
            float(facts["ridge"]),
            None if gate is None else Gate(*(float(one) for one in gate)),
            **{name: arrays[name] for name in arrays},
            evidence=str(facts["evidence"]),
        )


#: Arrays of a correction; the last one is a gated map's.
_ARRAYS = ("feature_mean", "residual_mean", "coef", "plain_coef")


class Parts(NamedTuple):
    """What a map is made of, by row.

    Attributes
    ----------
    rows : ndarray, shape (n, d_old)
    mixed : ndarray, shape (n, d_new), or None
        Mixtures of texts.
    known : ndarray, shape (n, 1), or None
        Weights of the texts, by a gate.
    base : ndarray, shape (n, d_new)
        By the first map.
    """

    rows: np.ndarray
    mixed: np.ndarray | None
    known: np.ndarray | None
    base: np.ndarray

    def features(self, kind: str) -> np.ndarray:
        """Return what is regressed on, shape (n, p)."""
        return self.rows if kind == PLAIN or self.mixed is None else np.hstack([self.rows, self.mixed])

    def start(self, kind: str) -> np.ndarray:
        """Return what residuals are of, shape (n, d_new)."""
        return self.base if kind == PLAIN or self.mixed is None else self.base + self.mixed

    def take(self, rows: np.ndarray) -> Parts:
        """Return some of the rows."""
        mixed, known = (None if one is None else one[rows] for one in (self.mixed, self.known))
        return Parts(self.rows[rows], mixed, known, self.base[rows])


class Solved(NamedTuple):
    """A ridge regression: means of features and of residuals, and coefficients."""

    mean: np.ndarray
    offset: np.ndarray
    coef: np.ndarray


def apply(parts: Parts, kind: str, solved: Mapping[str, Solved]) -> np.ndarray:
    """Return rows by a kind of map, shape (n, d_new), not of unit norm.

    Parameters
    ----------
    parts : Parts
    kind : str
    solved : mapping of str to Solved
        Regressions with the texts and without; empty before the first fit.
    """
    if kind == GATED:
        assert parts.known is not None
        return np.asarray(parts.known * apply(parts, TEXTS, solved) + (1 - parts.known) * apply(parts, PLAIN, solved))
    out = parts.start(kind)
    if kind in solved:
        mean, offset, coef = solved[kind]
        out = out + (parts.features(kind) - mean) @ coef + offset
    return np.asarray(out)
