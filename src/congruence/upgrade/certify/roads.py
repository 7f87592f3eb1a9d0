"""What each way from the old model to the new one is worth and costs, side by side."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from congruence.upgrade.certify.intervals import Estimate
from congruence.upgrade.certify.mixed import SHARES, MixedStore
from congruence.upgrade.certify.verdict import Verdict

__all__ = ["Road", "roads"]

#: Share shown where mapping alone is enough.
_SOME = 0.1


class Road(TypedDict):
    """One way: its name, the expected score, and what is to be encoded.

    ``share`` is that of the store, ``items`` its rows, ``minutes`` and ``price`` those of encoding them; None where the number of rows, the rate or the price is not known.
    """

    road: str
    score: Estimate | None
    share: float
    items: int | None
    minutes: float | None
    price: float | None


def roads(
    scores: dict[str, Estimate],
    mixed: MixedStore | None,
    verdict: Verdict,
    *,
    by_definition: bool,
    rows: int | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
) -> list[Road]:
    """Return the ways to change models, the cheapest first.

    Parameters
    ----------
    scores : dict of str to Estimate
        Of the decisive measure, by strategy.
    mixed : MixedStore or None
    verdict : Verdict
    by_definition : bool
        The re-embedded store scores 1: results are compared with its own.
    rows : int, optional
        Of the store.
    encode_rate : float, optional
        Items a second that the new model encodes.
    price : float, optional
        Of encoding one item.

    Returns
    -------
    list of Road
        ``"keep"``, ``"map"`` (the stored vectors), ``"progressive"`` and ``"re-embed"``. The share of ``"progressive"`` is that at which the required
        score is reached; a tenth where mapping alone is enough, and half where no less will do.
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
    out: list[Road] = []
    for road, score, share in found:
        items = 0 if share == 0 else None if rows is None else round(share * rows)
        out.append(
            {
                "road": road,
                "score": score,
                "share": share,
                "items": items,
                "minutes": None if items is None or encode_rate is None else items / encode_rate / 60,
                "price": None if items is None or price is None else items * price,
            }
        )
    return out
