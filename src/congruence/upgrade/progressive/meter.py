"""Estimates of the current quality of the store, from random rows that neither the fit nor the order has used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.upgrade._estimate import Estimate
from congruence.upgrade.progressive._interval import rest_interval

__all__ = ["Reading", "estimate_mean", "estimate_weighted_mean"]


@dataclass(frozen=True)
class Reading:
    """The quality of the whole store at one stage.

    Attributes
    ----------
    n_rows, n_embedded : int
        Rows of the store, and rows re-embedded so far.
    n_meter : int
        Random rows from which the quality of the rows that are still mapped is estimated.
    store : dict of str to Estimate
        For the current store of re-embedded and mapped rows: ``"cosine"`` with the new model's vector; ``"agreement"``, the
        share of rows whose nearest text is the same as in the new model; ``"overlap@k"``, the share of the k nearest texts that are the same (without texts,
        of the k nearest rows among 5·k random ones, which are the same at all stages). With labels also ``"accuracy"`` and ``"recall@k"``: whether the row's own text is the
        nearest, or among k. With weights also ``"weighted agreement"`` and so on, where each row counts as often as it is requested.
    mapped : dict of str to Estimate
        The same for rows that are still mapped.
    old, new : dict of str to Estimate
        ``"accuracy"`` and ``"recall@k"`` of both models, with labels.
    """

    n_rows: int
    n_embedded: int
    n_meter: int
    store: dict[str, Estimate] = field(default_factory=dict)
    mapped: dict[str, Estimate] = field(default_factory=dict)
    old: dict[str, Estimate] = field(default_factory=dict)
    new: dict[str, Estimate] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the rows that were re-embedded."""
        return self.n_embedded / self.n_rows

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        parts = {
            name: {key: estimate.to_dict() for key, estimate in getattr(self, name).items()}
            for name in ("store", "mapped", "old", "new")
        }
        return {"n_rows": self.n_rows, "n_embedded": self.n_embedded, "n_meter": self.n_meter, **parts}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from :meth:`to_dict`."""
        parts = {
            name: {key: _estimate(estimate) for key, estimate in facts[name].items()}
            for name in ("store", "mapped", "old", "new")
        }
        return cls(facts["n_rows"], facts["n_embedded"], facts["n_meter"], **parts)

    def __str__(self) -> str:
        cells = [f"{name} {part.value:.3f} ({part.low:.3f} … {part.high:.3f})" for name, part in self.store.items()]
        return f"{100 * self.share:.1f} % re-embedded: " + ", ".join(cells)


def _estimate(facts: Mapping[str, Any]) -> Estimate:
    """Rebuild an estimate; unknown values (NaN) are null in JSON."""
    value, low, high = (
        float("nan") if facts[name] is None else float(facts[name]) for name in ("value", "low", "high")
    )
    return Estimate(value, low, high, int(facts["n"]))


def estimate_mean(
    known: float, n_known: int, values: np.ndarray, rest: int, support: tuple[float, float]
) -> tuple[Estimate, Estimate]:
    """Estimate a mean over all rows, some of which are known and others represented by a sample.

    Parameters
    ----------
    known : float
        Sum of the values of known rows.
    n_known : int
        Number of known rows.
    values : ndarray, shape (m,)
        Values of the sample.
    rest : int
        Number of rows that are neither known nor in the sample; the sample's own rows are among the known ones.
    support : (float, float)
        Minimum and maximum value that a row can have.

    Returns
    -------
    store, mapped : Estimate
        Means of all rows, and of the rest.
    """
    interval = rest_interval(values, rest, support) if rest else None
    return _combine(known, float(n_known), float(rest), interval, len(values), n_known + rest)


def estimate_weighted_mean(
    values: np.ndarray, sample: np.ndarray, weights: np.ndarray, waits: np.ndarray, support: tuple[float, float]
) -> tuple[Estimate, Estimate]:
    """Estimate a weighted mean over all rows; known rows have the value 1.

    Parameters
    ----------
    values : ndarray, shape (m,)
        Values of the sample.
    sample : ndarray of int, shape (m,)
        Row numbers of the sample.
    weights : ndarray, shape (n,)
        Weights of all rows.
    waits : ndarray of bool, shape (n,)
        Rows that are not known.
    support : (float, float)
        Minimum and maximum value that a row can have.

    Returns
    -------
    store, mapped : Estimate
        Weighted means of all rows, and of those that are not known.
    """
    known, left = float(weights[~waits].sum()), weights[waits]
    interval = None
    if left.any():
        interval = rest_interval(values, len(left), support, weights=weights[sample], rest_weights=left)
    return _combine(known, known, float(left.sum()), interval, len(values), len(weights))


def _combine(
    known: float, n_known: float, rest: float, interval: tuple[float, float, float] | None, m: int, n: int
) -> tuple[Estimate, Estimate]:
    """Return the means of all rows and of the rest, from the known sum and the estimated mean of the rest with its interval."""
    if interval is None:
        value = known / n_known
        return Estimate(value, value, value, n), Estimate(value, value, value, 0)
    value, low, high = ((known + rest * mean) / (n_known + rest) for mean in interval)
    return Estimate(value, low, high, m), Estimate(*interval, m)
