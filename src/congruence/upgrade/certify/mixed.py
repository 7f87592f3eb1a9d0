"""Scores of a store that is partly re-embedded and partly mapped, on items with vectors of both models.

The order of a progressive migration (``congruence.upgrade.progressive``) is applied to the scored items. Each is
mapped by a map, and by a refit of it, that were fitted without it. The first rows get their new vectors, and the mixed
store is searched, so that competition between re-embedded and mapped rows is included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence.upgrade.certify.design import EvaluationSet, deal
from congruence.upgrade.certify.estimates import (
    Measured,
    draw_errors,
    freedom,
    joint_covariance,
    rate_interval,
)
from congruence.upgrade.certify.scoring import judge_of, read, similarities, unit_rows
from congruence.upgrade.progressive.forecast import MOST
from congruence.upgrade.progressive.meter import Estimate
from congruence.upgrade.progressive.order import ORDERS, View
from congruence.upgrade.progressive.refit import FEWEST, Known, Refit
from congruence.upgrade.progressive.texts import Gate, Texts

_MOST = 500  # most items that a refit is made on here: its time grows with their cube


def refit_unseen(
    refit: Refit,
    old: np.ndarray,
    new: np.ndarray,
    mapped: np.ndarray,
    take: Callable[[np.ndarray, int], np.ndarray],
    part: np.ndarray,
    sizes: Iterable[int],
) -> dict[int, np.ndarray]:
    """Map items after refits that have not seen them, by number of re-embedded rows; few rows keep the first map.

    ``mapped`` (n, d_new) are the items by a first map that has not seen them; ``take`` returns which of some items are
    re-embedded first; items of one ``part`` (n,) are mapped after a refit on the others.
    """
    sizes = sorted(set(sizes), reverse=True)
    kind = refit.first()
    out = {size: refit.transform(old, kind, mapped) for size in sizes}
    for k in np.unique(part):
        test, others = np.flatnonzero(part == k), np.flatnonzero(part != k)
        for size in sizes:
            rows = take(others, min(size, len(others), _MOST))
            if len(rows) < FEWEST:
                continue
            # Kind and penalty are chosen once, on the most rows of the first part: few candidates, hardly moved by an
            # item of their own.
            every, choose = np.ones(len(rows), bool), k == part.min() and size == sizes[0]
            known = Known(old[rows], new[rows], every.astype(float), every, mapped[rows])
            kind = refit.fit([known], len(rows), kind, choose=choose)
            out[size][test] = refit.transform(old[test], kind, mapped[test])
    return out


#: Shares of the store that are re-embedded, from none to the largest for which progressive re-embedding is recommended.
SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, MOST)

METER = 0.25  # share of random rows among the re-embedded ones: the default ``meter_share`` of a progressive migration
_FOLDS = 5  # folds of the items: each fold is mapped after a refit on the others


@dataclass(frozen=True, eq=False)
class MixedStore:
    """Scores of a store by the share of its rows that is re-embedded, with the map refitted on these rows."""

    order: str  # key of ORDERS
    values: np.ndarray  # (s,), at SHARES
    influence: np.ndarray  # (n, s), pseudo-values of each query
    known: np.ndarray  # (n, q), the same of the strategies
    names: list[str]  # of these strategies
    groups: np.ndarray | None  # (n,)
    each: int  # results over which the score of a query is averaged

    def at(self, share: float) -> Estimate:
        """Return the score with this share of the store re-embedded, interpolated between the measured shares."""
        value, low, high = (float(np.interp(share, SHARES, side)) for side in (self.values, *self._ends()))
        return Estimate(value, low, high, len(self.influence))

    def draw(self, drawn: dict[str, np.ndarray], values: dict[str, float], rng: np.random.Generator) -> np.ndarray:
        """Draw true scores, given draws of the strategies' true scores, shape (draws, s)."""
        q = len(self.names)
        spread = joint_covariance(np.hstack([self.known, self.influence]), self.groups)
        slope = np.linalg.lstsq(spread[:q, :q], spread[:q, q:], rcond=None)[0]
        rest = spread[q:, q:] - slope.T @ spread[:q, q:]
        moved = np.stack([drawn[name] - values[name] for name in self.names], axis=1)
        noise = draw_errors((rest + rest.T) / 2, freedom(len(self.influence), self.groups), len(moved), rng)
        return np.asarray(np.clip(self.values + moved @ slope + noise, 0, 1))

    def to_dict(self) -> dict[str, object]:
        """Return the scores as plain data."""
        low, high = self._ends().tolist()
        return {"order": self.order, "share": [*SHARES], "value": self.values.tolist(), "low": low, "high": high}

    def _ends(self) -> np.ndarray:
        """Return the lower and the upper ends of the intervals at ``SHARES``, shape (2, s)."""
        sides = zip(self.values.tolist(), self.influence.T, strict=True)
        ends = [rate_interval(value, rows, groups=self.groups, each=self.each) for value, rows in sides]
        return np.array(ends).T


def reached(values: np.ndarray, wanted: float) -> float | None:
    """Return the smallest share, in whole percents, at which values at ``SHARES`` reach a score, or None."""
    enough = np.flatnonzero(values >= wanted)
    if not len(enough):
        return None
    k = int(enough[0])
    if k == 0:  # the texts that are added to the map are sufficient by themselves
        return 0.01
    below, above = values[k - 1], values[k]
    share = SHARES[k - 1] + (SHARES[k] - SHARES[k - 1]) * (wanted - below) / (above - below)
    return float(np.ceil(100 * share - 1e-9) / 100)


def measure_mixed(
    items: EvaluationSet, measured: Measured, task: str, n_rows: int | None = None, random_state: int = 0
) -> MixedStore | None:
    """Score stores with increasing shares of re-embedded rows; None if the store or mapping cannot be scored.

    A share of ``n_rows`` is the number of rows to refit on, by default all items of the other folds. The order is
    random, since nothing of the queries is known; if they count as seen, as a fixed list of classes, it is that of a
    migration that is given these texts, and mixtures of class descriptions are added to mapped rows. What the anchors
    left out of each fold's map would add is estimated from maps fitted on one fold less.
    """
    items = measured.compared or items
    tables, base = items.tables, f"{task}/stored"
    if tables.store_modality not in tables.target or base not in measured.scores or measured.mapped is None:
        return None
    found, scored = items.searches[-1], measured.scores[base]
    rows = found.rows
    plain = measured.mapped[rows]
    native, raw = (side[tables.store_modality][rows] for side in (tables.target, tables.source))
    old, texts = normalize_rows(raw, dtype=np.float64), _texts(items, rows) if items.seen else None
    known = texts if tables.by_class else None  # captions are of future queries even then
    groups = None if items.groups is None else items.groups[rows]
    size = float(np.einsum("ij,ij->", raw, raw, dtype=np.float64) / len(rows))
    refit = Refit(None, known, size, None if known is None else Gate.fit(old, known))

    def mix(base: np.ndarray) -> np.ndarray:
        """Return rows mapped with the help of the descriptions, before any row is re-embedded."""
        return base if known is None else np.asarray(refit.transform(raw, refit.first(), base))

    mapped = mix(plain)
    order, scores = _order(old, normalize_rows(mapped, dtype=np.float64), texts, random_state)
    ranks = np.argsort(-scores, kind="stable")
    shuffled = np.random.default_rng([random_state, 21]).permutation(len(rows))
    n = len(rows)
    part = deal(np.arange(n) if groups is None else groups, _FOLDS, np.random.default_rng(random_state))
    counts = [n if n_rows is None and share else min(n, round(share * (n_rows or n))) for share in SHARES]

    def take(some: np.ndarray, count: int) -> np.ndarray:
        ranked, drawn = np.argsort(-scores[some], kind="stable"), np.argsort(np.argsort(shuffled)[some])
        return np.asarray(some[first_rows(ranked, drawn, count / len(some))])

    again = refit_unseen(refit, raw, normalize_rows(native, dtype=np.float64), plain, take, part, counts)

    judge = judge_of(items, found, similarities("re-embed", items, found))
    queries = unit_rows(found.target, None, found.queries)

    def search(store: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and pseudo-values of the target model's queries in a store of these rows."""
        near = queries @ unit_rows(store, None, np.arange(len(store))).astype(queries.dtype, copy=False).T
        hits = read(items, found, "stored", near, judge, base)[base]
        return hits.score, hits.influence()

    def along(stores: list[np.ndarray]) -> list[np.ndarray]:
        """Return scores and pseudo-values of stores with growing shares of re-embedded rows, shapes (n, s)."""
        new = [first_rows(ranks, shuffled, share)[:, None] for share in SHARES]
        pairs = [search(np.where(which, native, store)) for which, store in zip(new, stores, strict=True)]
        return [np.stack(side, axis=1) for side in zip(*pairs, strict=True)]

    first = [mapped] * len(SHARES)
    values, influence = along([mapped if not count else again[count] for count in counts])
    if known is None:
        still = 1 - np.array(SHARES)  # the first share is none: the store that was scored
        values = values + still * (scored.value - values[:, 0])[:, None]
        influence = influence + still * (scored.influence - influence[:, 0])[:, None]
    elif measured.mapped_by_fewer is not None:
        fewer = [mix(measured.mapped_by_fewer[rows])] * len(SHARES)
        for more, less, out in zip(along(first), along(fewer), (values, influence), strict=True):
            out += measured.ahead * (more - less)
    names = [name.split("/")[1] for name in measured.scores if name.startswith(f"{task}/")]
    return MixedStore(
        order,
        np.clip(values.mean(axis=0), 0, 1),
        influence,
        np.stack([measured.scores[f"{task}/{name}"].influence for name in names], axis=1),
        names,
        scored.groups,
        scored.each,
    )


def first_rows(ranks: np.ndarray, shuffled: np.ndarray, share: float) -> np.ndarray:
    """Return which rows are re-embedded: the first of the order, and random ones among the others."""
    chosen = np.zeros(len(ranks), bool)
    count = round(share * len(ranks))
    random = round(METER * count)
    chosen[ranks[: count - random]] = True
    chosen[shuffled[~chosen[shuffled]][:random]] = True
    return chosen


def _texts(items: EvaluationSet, rows: np.ndarray) -> Texts | None:
    """Return texts in both models: descriptions of classes, captions, or text queries."""
    tables = items.tables
    ours, theirs = items.texts or (None, None)
    if tables.query_modality != tables.store_modality:
        ours, theirs = (side.get(tables.query_modality) for side in (tables.source, tables.target))
    if ours is None or theirs is None:
        return None
    return Texts.of(ours, theirs, normalize_rows(tables.source[tables.store_modality][rows], dtype=np.float64))


def _order(old: np.ndarray, mapped: np.ndarray, texts: Texts | None, random_state: int) -> tuple[str, np.ndarray]:
    """Return a plan's initial order and its scores: "entropy" if most rows' own texts are known, else "random"."""
    facts, name = None, "random"
    if texts is not None and Refit(None, texts, 1.0, Gate.fit(old, texts)).most_are_known:
        facts, name = texts.facts(old, mapped), "entropy"
    view = View(old, mapped, np.empty(0, np.intp), np.empty(0), 1, random_state, facts)
    return name, ORDERS[name](view)
