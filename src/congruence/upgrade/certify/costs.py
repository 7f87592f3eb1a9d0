"""Quality and cost of each strategy for changing models, side by side."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from congruence.upgrade._estimate import Estimate
from congruence.upgrade.certify.mixed import SHARES, MixedStore
from congruence.upgrade.certify.verdict import Verdict

__all__ = ["StrategyCost", "strategy_costs"]

#: Share shown where mapping alone is enough.
_SOME = 0.1


class StrategyCost(TypedDict):
    """One strategy: its name, the expected score, and what must be encoded.

    ``share`` is the share of the store to encode, ``items`` the number of rows, ``minutes`` and ``price`` the time and cost; None if unknown.
    """

    strategy: str
    score: Estimate | None
    share: float
    items: int | None
    minutes: float | None
    price: float | None


def strategy_costs(
    scores: dict[str, Estimate],
    mixed: MixedStore | None,
    verdict: Verdict,
    *,
    by_definition: bool,
    rows: int | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
) -> list[StrategyCost]:
    """Return the strategies for changing models, the cheapest first.

    Parameters
    ----------
    scores : dict of str to Estimate
        Scores on the decisive measure, by strategy.
    mixed : MixedStore or None
    verdict : Verdict
    by_definition : bool
        The re-embedded store scores 1 by definition, because results are compared with its own.
    rows : int, optional
        Rows of the store.
    encode_rate : float, optional
        Items per second that the new model encodes.
    price : float, optional
        Price of encoding one item.

    Returns
    -------
    list of StrategyCost
        ``"keep"``, ``"map"`` (the stored vectors), ``"progressive"`` and ``"re-embed"``. The share of ``"progressive"`` is that at which the required
        score is reached; one tenth if mapping alone is sufficient, and one half if no smaller share is.
    """
    n = scores["stored"].n
    best = Estimate(1.0, 1.0, 1.0, n) if by_definition else scores.get("re-embed")
    found: list[tuple[str, Estimate | None, float]] = [
        ("keep", scores.get("keep"), 0.0),
        ("map", scores["stored"], 0.0),
    ]
    if mixed is not None:
        wanted = np.inf if verdict.wanted is None else verdict.wanted
        enough = _SOME if scores["stored"].value >= wanted else mixed.needed(wanted)
        share = SHARES[-1] if enough is None else enough
        found.append(("progressive", mixed.at(share), share))
    found.append(("re-embed", best, 1.0))
    out: list[StrategyCost] = []
    for strategy, score, share in found:
        items = 0 if share == 0 else None if rows is None else round(share * rows)
        out.append(
            {
                "strategy": strategy,
                "score": score,
                "share": share,
                "items": items,
                "minutes": None if items is None or encode_rate is None else items / encode_rate / 60,
                "price": None if items is None or price is None else items * price,
            }
        )
    return out
