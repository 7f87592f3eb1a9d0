"""Choose the order that best predicts which rows mapping degrades, by comparison on random rows ranked before they were re-embedded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.upgrade.progressive.order import ORDERS, View, ranks
from congruence.upgrade.progressive.texts import Texts, nearest_texts, overlap

__all__ = ["OrderSelection"]

#: Orders that are compared.
WITH_TEXTS = ("entropy", "disagreement", "overlap", "margin", "residual", "coverage", "random")
WITHOUT_TEXTS = ("random", "residual", "coverage", "distance")

#: Minimum number of random rows for a choice, and number of standard errors by which another order must lead.
FEWEST, LEAD = 20, 2.5


class OrderSelection:
    """The candidate orders, and how well each predicted the harm to random rows.

    Parameters
    ----------
    default : str
    has_texts : bool

    Notes
    -----
    A row's harm is the share of its nearest texts that mapping changes (without texts, 1 − cosine). An order's score is the correlation of its ranks with
    the harm. Another order replaces the default if its score is higher by 2.5 standard errors of the paired difference.
    """

    def __init__(self, default: str, has_texts: bool) -> None:
        self.default = default
        self.names = WITH_TEXTS if has_texts else WITHOUT_TEXTS
        #: Rank of each recorded row under each candidate, and its harm once it was re-embedded.
        self.ranks: dict[int, list[float]] = {}
        self.harm: dict[int, float] = {}

    def record(self, rows: np.ndarray, view: View) -> None:
        """Record how the candidates rank random rows that were just requested."""
        if not len(rows):
            return
        by_order = (ORDERS[name](view) for name in self.names)
        table = np.stack([ranks(scores, scores[rows]) for scores in by_order], axis=1)
        self.ranks.update(zip(rows.tolist(), table.tolist(), strict=True))

    def finish(self, new: Mapping[int, np.ndarray], mapped: np.ndarray, texts: Texts | None, k: int) -> None:
        """Record the harm to recorded rows that were re-embedded now; ``mapped`` is from before the refit."""
        rows = [row for row in new if row in self.ranks and row not in self.harm]
        if not rows:
            return
        theirs, ours = np.stack([new[row] for row in rows]), mapped[rows]
        if texts is None:
            harm = 1 - np.einsum("ij,ij->i", theirs, ours)
        else:
            near = (nearest_texts(side @ texts.new.T, k) for side in (theirs, ours))
            harm = 1 - overlap(*near)
        self.harm.update(zip(rows, harm.tolist(), strict=True))

    def current_order(self) -> str:
        """Return the order to use."""
        rows = list(self.harm)
        if len(rows) < FEWEST:
            return self.default
        table, harm = np.array([self.ranks[row] for row in rows]), np.array([self.harm[row] for row in rows])
        if not harm.std() > 0:
            return self.default
        standard = (table - table.mean(axis=0)) / np.maximum(table.std(axis=0), 1e-12)
        products = standard * ((harm - harm.mean()) / harm.std())[:, None]
        ahead = products - products[:, [self.names.index(self.default)]]
        mean, error = ahead.mean(axis=0), ahead.std(axis=0, ddof=1) / np.sqrt(len(rows))
        best = int(np.argmax(mean))
        return self.names[best] if mean[best] > LEAD * error[best] > 0 else self.default

    def state(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {"ranks": [[row, *ranks] for row, ranks in self.ranks.items()], "harm": [*map(list, self.harm.items())]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state`."""
        self.ranks = {int(row): list(ranks) for row, *ranks in state["ranks"]}
        self.harm = {int(row): float(harm) for row, harm in state["harm"]}
