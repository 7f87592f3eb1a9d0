"""Scores of single rows, from which the meter and the forecast are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.arrays import blocks
from congruence.upgrade._estimate import Estimate
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive._row_states import LEARN, RowStates
from congruence.upgrade.progressive.meter import Reading, estimate_mean, estimate_weighted_mean
from congruence.upgrade.progressive.texts import Texts, nearest_texts, overlap

if TYPE_CHECKING:
    from congruence.upgrade.progressive.forecast import Forecast

__all__ = ["ScoredRows", "losses", "picture", "read"]

#: Without texts, neighbors are searched among this many times k random rows, the same at every stage, so that stages are comparable.
REFERENCES = 5

#: Minimum number of recent re-embedded rows, without the meter's, from which the lowest possible cosine of a mapped row is estimated.
FEWEST = 20


class ScoredRows:
    """The rows of a plan, with the vectors and texts by which they are scored.

    Parameters
    ----------
    states : RowStates
    new : Received
        New vectors by row.
    old, mapped : ndarray, shapes (n, d_old) and (n, d_new)
        Unit rows.
    texts : Texts or None
    labels : ndarray of int, shape (n,), or None
        Index of each row's own text, negative if it is not known.
    k : int
        Number of nearest neighbors that are compared.
    weights : ndarray, shape (n,), or None
        How often each row is requested.
    surprise : ndarray, shape (e,)
        1 − cosine between each re-embedded row (without the meter's) and its mapped vector before it was re-embedded, in order of arrival.
    """

    def __init__(
        self,
        states: RowStates,
        new: Received,
        old: np.ndarray,
        mapped: np.ndarray,
        texts: Texts | None,
        labels: np.ndarray | None,
        k: int,
        weights: np.ndarray | None,
        surprise: np.ndarray,
    ) -> None:
        self.weights, self.surprise = weights, surprise
        self.states, self.new, self.old, self.mapped, self.texts, self.k = states, new, old, mapped, texts, k
        self.labels = labels if labels is not None and (labels >= 0).any() else None
        self.sample = states.measured

    def native(self, rows: np.ndarray) -> np.ndarray:
        """Return the new vectors of re-embedded rows."""
        return self.new.take(rows)

    def kept(self) -> dict[str, np.ndarray]:
        """Return by metric how much of each row of the meter's sample mapping preserves, shape (m,); 1 if nothing is lost."""
        theirs, ours = self.native(self.sample), self.mapped[self.sample]
        out = {}
        against = None
        if self.texts is not None:
            against = self.texts.new
        elif len(references := self.references()):
            against = self.native(references)
        if against is not None:
            near = [nearest_texts(side @ against.T, self.k) for side in (theirs, ours)]
            if self.texts is not None:
                out["agreement"] = (near[0][:, 0] == near[1][:, 0]).astype(float)
            out[f"overlap@{self.k}"] = overlap(near[0], near[1])
        out["cosine"] = np.einsum("ij,ij->i", theirs, ours).astype(float)
        return out

    def references(self) -> np.ndarray:
        """Return the random rows, without the meter's, among which neighbors are searched if there are no texts: the first 5 k in random order; none if there are fewer."""
        states, wanted = self.states, REFERENCES * self.k
        random = states.permutation[(states.role == LEARN)[states.permutation] & states.embedded[states.permutation]]
        return np.asarray(random[:wanted] if len(random) >= wanted else random[:0])

    def support(self, name: str, kept: np.ndarray) -> tuple[float, float]:
        """Return the minimum and maximum value that a row can have of a metric.

        For the cosine, the minimum is estimated as the lowest value of the later half of the re-embedded rows, which the order put first, and of the meter's rows. The
        provable bound −1 is used if that half has fewer than 20 rows, the meter has none, or all values are equal up to rounding.
        """
        if name != "cosine":
            return 0.0, 1.0
        later = 1 - self.surprise[len(self.surprise) // 2 :]
        if len(later) < FEWEST or not len(kept):
            return -1.0, 1.0
        least = float(min(later.min(), kept.min()))
        return (least if kept.max() - least > 1e-6 else -1.0), max(1.0, float(kept.max()))

    def hits(self, rows: np.ndarray, take: Callable[[np.ndarray], np.ndarray], texts: np.ndarray) -> np.ndarray:
        """Return whether each row's own text is the nearest, and among the k nearest, shape (rows, 2); NaN if its text is not known."""
        assert self.labels is not None
        label = self.labels[rows]
        out = np.full((len(rows), 2), np.nan)
        for part in blocks(len(rows), 8 * (len(texts) + 3 * texts.shape[1])):
            scores = take(rows[part]) @ texts.T
            own = np.take_along_axis(scores, np.maximum(label[part], 0)[:, None], axis=1)
            before = np.count_nonzero(scores > own, axis=1)
            out[part] = np.stack([before < 1, before < self.k], axis=1)
        out[label < 0] = np.nan
        return out


def read(rows: ScoredRows) -> Reading:
    """Return the quality of the store at this stage."""
    n, rest = len(rows.old), rows.states.rest
    n_embedded = n - rest
    reading = Reading(n, n_embedded, len(rows.sample))
    waits = ~rows.states.embedded
    for name, kept in rows.kept().items():
        support = rows.support(name, kept)
        reading.store[name], reading.mapped[name] = estimate_mean(float(n_embedded), n_embedded, kept, rest, support)
        if rows.weights is not None:
            weighted = estimate_weighted_mean(kept, rows.sample, rows.weights, waits, support)
            reading.store[f"weighted {name}"], reading.mapped[f"weighted {name}"] = weighted
    if rows.labels is not None and rows.texts is not None:
        _add_hits(rows, reading)
    return reading


def _add_hits(rows: ScoredRows, reading: Reading) -> None:
    """Add accuracy and recall, from rows' own texts: exact for the old model and the present store, estimated for the new model."""
    assert rows.texts is not None
    assert rows.labels is not None
    states = rows.states
    done, waits = np.flatnonzero(states.embedded), np.flatnonzero(~states.embedded)
    by_old = rows.hits(np.arange(len(rows.old)), rows.old.__getitem__, rows.texts.old)
    by_new = rows.hits(done, rows.native, rows.texts.new)
    by_map = rows.hits(waits, rows.mapped.__getitem__, rows.texts.new)
    sample = np.isin(done, rows.sample) & np.isfinite(by_new[:, 0])
    n_done, n_waits = (int(np.isfinite(side[:, 0]).sum()) for side in (by_new, by_map))
    for column, name in enumerate(("accuracy", f"recall@{rows.k}")):
        old, map_, new = (np.nansum(side[:, column]) for side in (by_old, by_map, by_new))
        n = n_done + n_waits
        exact = [(old / n, n), ((new + map_) / n, n), (map_ / max(n_waits, 1), n_waits)]
        values = [Estimate(float(v), float(v), float(v), m) for v, m in exact]
        reading.old[name], reading.store[name], reading.mapped[name] = values
        reading.new[name] = estimate_mean(float(new), n_done, by_new[sample, column], n_waits, (0.0, 1.0))[0]


def losses(
    rows: ScoredRows,
) -> tuple[dict[str, np.ndarray], dict[str, tuple[float, float]], tuple[float, float] | None]:
    """Return what mapping loses, for the forecast.

    Returns
    -------
    losses : dict of str to ndarray, shape (m,)
        By metric, the loss of each of the meter's rows; for accuracy, relative to the new model's accuracy.
    support : dict of str to (float, float)
        By metric, the minimum and maximum of 1 − loss.
    better : (float, float) or None
        Accuracy of the old model, and upper bound of the new model's; None without labels.
    """
    kept = rows.kept()
    out = {name: 1 - values for name, values in kept.items()}
    support = {name: rows.support(name, values) for name, values in kept.items()}
    better = None
    if rows.labels is not None and rows.texts is not None:
        reading, texts = read(rows), rows.texts
        level = reading.new["accuracy"].value
        if level > 0:
            ours = rows.hits(rows.sample, rows.mapped.__getitem__, texts.new)[:, 0]
            theirs = rows.hits(rows.sample, rows.native, texts.new)[:, 0]
            out["accuracy"] = (theirs - ours) / level
            support["accuracy"] = 1 - 1 / level, 1 + 1 / level
            better = reading.old["accuracy"].value, reading.new["accuracy"].high
    return out, support, better


def picture(history: list[Reading], name: str, forecast: Forecast | None) -> dict[str, Any]:
    """Return the data that :func:`congruence.plotting.draw_progress` plots."""
    stages = [_point(reading.share, reading.store[name]) for reading in history]
    last = history[-1]
    lines = {"new model": last.new[name].value if name in last.new else 1.0}
    if name in last.old:
        lines["old model"] = last.old[name].value
    ahead: list[dict[str, Any]] = []
    if forecast is not None:
        shares, values = forecast.share, (forecast.value, forecast.low, forecast.high)
        # A forecast of accuracy is relative to the new model's; the shift makes it start at the measured value.
        level = lines["new model"] if name == "accuracy" else 1.0
        shift = stages[-1]["value"] - forecast.value[0] * level
        ahead = [
            {"share": share, "value": v * level + shift, "low": low * level + shift, "high": high * level + shift}
            for share, v, low, high in zip(shares, *values, strict=True)
        ]
    return {"metric": name, "stages": stages, "forecast": ahead, "lines": lines}


def _point(share: float, estimate: Estimate) -> dict[str, Any]:
    return {"share": share, "value": estimate.value, "low": estimate.low, "high": estimate.high}
