"""What a few encodings for each query add to result lists: ``congruence.LazySearch`` on the scored items."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.top_k import top_k
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.estimates import Measured, rate_interval
from congruence.upgrade.certify.scoring import unit_rows
from congruence.upgrade.progressive.meter import Estimate
from congruence.upgrade.ranked import POOL, ROUND, RankedList

ENCODINGS = (20, 50, 100)  # for a query
_MOST = 60  # most queries that are searched


def measure_lists(
    items: EvaluationSet,
    measured: Measured,
    log: int,
    rows: int | None,
    encode_rate: float | None,
    price: float | None,
    random_state: int,
) -> dict[str, Any]:
    """Return the overlap with the re-embedded store's lists by encodings for a query, and what a log of queries costs.

    Rows are mapped by maps that may have seen the query: the list without encodings, by maps that have not, corrects
    the others. Queries unlike each other re-embed 1 − (1 − encodings / rows)^log of the ``rows``. Empty for too few
    items, or with a correction for hubs.
    """
    items = measured.compared or items
    search, stored = items.searches[-1], items.tables.store_modality
    n, k = len(search.rows), items.list_length(len(search.rows))
    scored = measured.scores.get(f"{search.name}@{k}/stored")
    budgets = [budget for budget in ENCODINGS if 2 * budget <= n]
    if scored is None or measured.mapped is None or items.hubness is not None or not budgets:
        return {}
    asked = np.random.default_rng([random_state, 6]).permutation(len(search.queries))[:_MOST]
    queries = unit_rows(search.target, None, search.queries[asked]).astype(np.float32)
    sides = (items.tables.source[stored], items.tables.target[stored], measured.mapped)
    old, native, mapped = (np.asarray(normalize_rows(side[search.rows]), np.float32) for side in sides)
    near, true = queries @ mapped.T, queries @ native.T
    own = search.role == "items"
    if own:  # an item is not in its own list
        near[np.arange(len(asked)), asked] = true[np.arange(len(asked)), asked] = -np.inf
    right, pools = top_k(true, k), top_k(near, min(POOL, n - own))
    found = np.empty((len(asked), 1 + len(budgets)))
    for query, scores, keys, wanted, out in zip(queries, near, pools, right, found, strict=True):
        out[0] = np.isin(wanted, keys[:k]).mean()
        one = RankedList(query, keys, old[keys], scores[keys], np.full(len(keys), np.nan))
        for encoded in range(ROUND, budgets[-1] + 1, ROUND):
            _, first = one.ranked({})
            one.learn(first[:ROUND], native[first[:ROUND]])
            if encoded in budgets:
                out[1 + budgets.index(encoded)] = np.isin(wanted, one.keys[one.first(k, True)[0]]).mean()
    missing = (1 - float(np.clip(scored.mean(), 0, 1))) / max(1 - found[:, 0].mean(), 1e-9)
    table = []
    groups = None if scored.groups is None else scored.groups[asked]
    for budget, overlap in zip((0, *budgets), (1 - missing * (1 - found)).T, strict=True):
        value = float(np.clip(overlap.mean(), 0, 1))
        score = Estimate(value, *rate_interval(value, overlap, groups=groups, each=k), len(overlap))
        encodings = log * budget if rows is None else round(rows * (1 - (1 - min(budget / rows, 1)) ** log))
        minutes = None if encode_rate is None else encodings / encode_rate / 60
        cost = None if price is None else encodings * price
        table.append({"encodings": budget, "score": score, "items": encodings, "minutes": minutes, "price": cost})
    return {"measure": f"{search.name}@{k}", "items": n, "log": log, "by_encodings": table}
