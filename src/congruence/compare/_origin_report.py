"""The result of examining the rows of a store, with a summary in sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TypedDict

import numpy as np

__all__ = ["NEAR", "NearMean", "OddRow", "OriginReport"]

#: Largest mean squared distance from a map's mean, in units of that at the fit, for which rows count as that model's (docs/doctor.md).
NEAR = 1.25


class OddRow(TypedDict):
    """A row that fits no known model: its id (if any), the nearest model, its distance (1 is typical) and its p-value."""

    row: int
    id: object
    nearest: str
    p: float
    distance: float


class NearMean(TypedDict):
    """A mean of a map: the share of rows for which it is the nearest mean, and their distance (1 at the fit)."""

    name: str
    nearest: float
    distance: float


@dataclass(frozen=True)
class OriginReport:
    """Result of examining the rows of a store.

    Attributes
    ----------
    n, width : int
        Number of rows and their dimensions.
    names : list of str
        Known models whose rows have this width, in the order given.
    counts : list of int
        Number of rows that look like each of them.
    recognized : list of float
        Share of each model's own known rows (those not used to fit it) that are assigned to it.
    other_width : dict of str to int
        Known models with another width, and that width; the rows cannot be theirs.
    not_finite, zero : list of int
        Numbers of rows with NaN or infinity, and of rows of zeros. They belong to no model, and are not counted elsewhere.
    unit : float
        Share of the other rows that have unit norm.
    odd : list of dict
        Rows that belong to no known model, the least likely first: ``row``, ``id`` (None without ids), ``nearest`` (a known model), ``p`` and
        ``distance`` (squared; 1 is the median of that model's own rows). Empty without known rows.
    fdr : float
        Bound on the expected share of rows of known models among ``odd``.
    by_means : list of dict
        For each modality and side of a map: ``name``, ``nearest`` (share of the rows that are most likely there, under isotropic normal
        distributions about the means) and ``distance`` (their mean squared distance from it, 1 being that at the fit; None if there are none).
    mapped : dict of str to int
        Number of rows that were written by each map, if this can be determined: a map's output may span fewer directions than the space has.
    looks_like : str or None
        The known model that more than half of the rows look like, if any.
    origin : ndarray of int16, shape (n,)
        Position in ``names`` of the model that each row looks like; −1 for none.
    p_value : ndarray of float32, shape (n,)
        Largest p-value of each row over the known models; NaN for rows with NaN or infinity, for zero rows, and without known rows.
    """

    n: int
    width: int
    names: list[str]
    counts: list[int]
    recognized: list[float]
    other_width: dict[str, int]
    not_finite: list[int]
    zero: list[int]
    unit: float
    odd: list[OddRow]
    fdr: float
    by_means: list[NearMean]
    mapped: dict[str, int]
    looks_like: str | None
    origin: np.ndarray = field(repr=False)
    p_value: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return everything except the results for individual rows as plain data."""
        return {key: value for key, value in asdict(self).items() if key not in ("origin", "p_value")}

    def summary(self) -> list[str]:
        """Return the conclusions as sentences."""
        sentences = []
        for rows, content in (
            (self.not_finite, "NaN or infinity"),
            (self.zero, "only zeros, as after a failed encoding"),
        ):
            if rows:
                sentences.append(
                    f"{_rows(len(rows))} with {content}, the first is row {rows[0]:,}: re-encode or remove."
                )
        if 0 < self.unit < 1:
            sentences.append(
                f"{self.unit:.1%} of the rows have unit norm, the others do not: they were written in two ways, or by two models."
            )
        if self.other_width:
            widths = ", ".join(f"{name} ({width}-d)" for name, width in self.other_width.items())
            sentences.append(f"The rows are {self.width}-d, so they cannot be of {widths}.")
        shares = [(count / self.n, name) for name, count in zip(self.names, self.counts, strict=True) if count]
        if not self.names:
            shares = [
                (mean["nearest"], mean["name"])
                for mean in self.by_means
                if mean["nearest"] >= 0.01 and mean["distance"] <= NEAR
            ]
        if len(shares) > 1:
            parts = ", ".join(f"{share:.1%} {name}" for share, name in sorted(shares, reverse=True))
            sentences.append(f"Rows of several models: {parts}. Scores of one query against them are not comparable.")
        elif self.looks_like:
            sentences.append(f"The rows look like those of {self.looks_like}.")
        elif self.names or self.by_means:
            sentences.append("The rows do not look like those of any known model.")
        if self.odd:
            sentences.append(
                f"{_rows(len(self.odd))} of {self.n:,} fit no known model; the least likely is row {self.odd[0]['row']:,}."
            )
        sentences += [f"{_rows(count)} were written by the map {name}." for name, count in self.mapped.items() if count]
        known = self.names or self.by_means or self.other_width
        return (
            sentences
            if known
            else [*sentences, "There is nothing to compare the rows with: pass rows of a known model, or a map."]
        )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
