"""Choose which rows to re-embed next: the highest scores first, without near-duplicates as long as other rows remain.

An order is a function of a ``View``; its scores are compared within one call only. Orders never see the meter's
new vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import ParameterError
from congruence.upgrade.progressive.texts import TextFacts, Texts, nearest_texts, overlap

_BLOCK = 512  # number of rows that are compared with each other in one matrix product


@dataclass(frozen=True, eq=False)
class View:
    """The information that an order may use."""

    old: np.ndarray  # (n, d_old), unit rows of the old model
    mapped: np.ndarray  # (n, d_new), by the current map, also of re-embedded items
    native: np.ndarray  # (e,), positions of re-embedded ones among them, without the meter's
    surprise: np.ndarray  # (e,), 1 − cosine between each of them and its mapped vector before
    size: int  # rows wanted
    random_state: int = 0
    old_facts: TextFacts | None = None  # about the old rows; None without texts, or for an order that needs none
    new_facts: TextFacts | None = None  # about the mapped ones
    rows: np.ndarray | None = None  # (n,), their numbers in the store, of which large ones are shown in part

    def facts(self) -> tuple[TextFacts, TextFacts]:
        """Return the facts about the old rows and about the mapped ones; an error without texts."""
        if self.old_facts is None or self.new_facts is None:
            raise ParameterError(
                "This order needs texts; there are none.", "Pass `texts=…` and `new_texts=…`, or `order='residual'`."
            )
        return self.old_facts, self.new_facts


#: Function of a ``View`` that returns one score per row; rows with the highest scores come first.
Order = Callable[[View], np.ndarray]


def _by_random(view: View) -> np.ndarray:
    """Random scores."""
    return np.random.default_rng([view.random_state, len(view.native)]).random(len(view.old))


def _by_entropy(view: View) -> np.ndarray:
    """Sum of the entropies of both models over texts: rows that neither can place come first."""
    old, new = view.facts()
    return np.asarray(old.entropy + new.entropy)


def _by_disagreement(view: View) -> np.ndarray:
    """Rows whose nearest text differs between the old model and the map come first, then those with a small margin."""
    old, new = view.facts()
    return np.asarray((old.near[:, 0] != new.near[:, 0]) * (1 + new.margin.max()) - new.margin)


def _by_overlap(view: View) -> np.ndarray:
    """Rows whose nearest texts in the old model and under the map have the fewest in common come first."""
    old, new = view.facts()
    return 1 - overlap(old.near, new.near)


def _by_margin(view: View) -> np.ndarray:
    """Margin sampling (Scheffer, Decomain and Wrobel 2001): a small lead of the nearest text comes first."""
    return np.asarray(-view.facts()[1].margin)


def _by_coverage(view: View) -> np.ndarray:
    """Variance of a ridge regression's prediction: rows in directions that re-embedded rows cover least come first."""
    taken = view.old[view.native].astype(np.float64)
    d = view.old.shape[1]
    inverse = np.linalg.inv(taken.T @ taken + 3.0 * np.eye(d))
    out = np.empty(len(view.old))
    for part in blocks(len(out), 3 * 8 * d):
        rows = view.old[part]
        out[part] = np.einsum("ij,ij->i", rows @ inverse, rows)
    return out


def _by_distance(view: View) -> np.ndarray:
    """Distance from the nearest re-embedded row or, before there are any, from the store's mean."""
    if not len(view.native):
        return np.asarray(-(view.old @ view.old.mean(axis=0)))
    near, native = np.full(len(view.old), -np.inf), view.old[view.native]
    for part in blocks(len(view.old), 4 * (len(native) + 3 * view.old.shape[1])):
        near[part] = (view.old[part] @ native.T).max(axis=1)
    return np.asarray(-near)


def _by_k_center(view: View) -> np.ndarray:
    """Farthest-first traversal (Gonzalez 1985; Sener and Savarese 2018) in the old space, from re-embedded rows."""
    apart = _by_distance(view)
    score = apart.copy()
    top = float(apart.max() - apart.min()) + 2.0
    # Some of the chosen rows may be the meter's, which do not count toward the batch: choose more than needed.
    for place in range(min(2 * view.size, len(apart))):
        chosen = int(np.argmax(apart))
        score[chosen] = top + 1.0 - place / len(apart)
        apart = np.minimum(apart, -(view.old @ view.old[chosen]))
        apart[chosen] = -np.inf
    return score


def _by_residual(view: View) -> np.ndarray:
    """Ridge regression, on the old vectors, of the distance between re-embedded rows and their mapped vectors."""
    if len(view.native) < 2:
        return _by_distance(view)
    X = view.old[view.native].astype(np.float64)
    mean = X.mean(axis=0)
    A = X - mean
    gram = A @ A.T + np.eye(len(A)) if len(A) < A.shape[1] else A.T @ A + np.eye(A.shape[1])
    y = view.surprise - view.surprise.mean()
    coef = A.T @ np.linalg.solve(gram, y) if len(A) < A.shape[1] else np.linalg.solve(gram, A.T @ y)
    return np.asarray(view.old @ coef - mean @ coef)


class _Entry(NamedTuple):
    """An order, its requirements, and the evidence for it in docs/progressive.md; None if it was not measured."""

    order: Order
    needs_texts: bool
    auto: str  # whether "auto" compares it: "texts" (with texts only), "vectors" (without them only), "both", "never"
    caltech: float | None  # accuracy on Caltech-101 after 8 %
    emoji: float | None  # recall@10 on the emoji sample after 45 %
    lvis: float | None  # recall@10 on LVIS names, without texts, after 50 %, with scores on one scale


_TABLE = {
    "entropy": _Entry(_by_entropy, True, "texts", 0.898, 0.687, None),
    "disagreement": _Entry(_by_disagreement, True, "texts", 0.897, 0.667, None),
    "overlap": _Entry(_by_overlap, True, "texts", None, None, None),
    "margin": _Entry(_by_margin, True, "texts", 0.897, 0.664, None),
    "residual": _Entry(_by_residual, False, "both", 0.882, 0.666, 0.718),
    "coverage": _Entry(_by_coverage, False, "both", None, None, 0.715),
    "distance": _Entry(_by_distance, False, "vectors", None, None, 0.719),
    "k-center": _Entry(_by_k_center, False, "never", 0.886, 0.658, 0.715),
    "random": _Entry(_by_random, False, "both", 0.881, 0.655, 0.755),
}

#: Orders by name.
ORDERS: dict[str, Order] = {name: entry.order for name, entry in _TABLE.items()}

#: Orders that require texts, and those that do not.
BY_TEXTS, WITHOUT_TEXTS = (tuple(n for n, entry in _TABLE.items() if entry.needs_texts == by) for by in (True, False))


@dataclass(frozen=True)
class Mixture:
    """Combination of several orders, such as ``Mixture({"entropy": 2.0, "k-center": 1.0})``.

    A row's score is the mean of its ranks under them, by the weights of ``parts``.
    """

    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ParameterError("Got a mixture without orders.", "Pass `parts={'entropy': 1.0}`, for example.")
        for name, weight in self.parts.items():
            check_choice(name, ORDERS, "parts")
            check_positive(weight, "weight")

    def __call__(self, view: View) -> np.ndarray:
        """Return the mean rank of each row, shape (n,)."""
        return np.asarray(sum(weight * quantiles(ORDERS[name](view)) for name, weight in self.parts.items()))


def quantiles(scores: np.ndarray) -> np.ndarray:
    """Return the rank of each score as a share, 1 for the highest; ties get their mean rank."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(scores) / len(scores))


def ranks(scores: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Return ``quantiles`` for some of the scores, given by value, with less memory."""
    ordered = np.sort(scores)
    return (np.searchsorted(ordered, some, "left") + np.searchsorted(ordered, some, "right") + 1) / (2 * len(scores))


def take_in_order(
    scores: np.ndarray, eligible: np.ndarray, free: np.ndarray, n: int, old: np.ndarray, native: np.ndarray, near: float
) -> np.ndarray:
    """Take rows in order, postponing near-duplicates of rows already taken or of ``native`` ones.

    ``free`` rows, the meter's, do not count toward ``n``, because their new vectors are requested anyway.
    """
    rows = np.flatnonzero(eligible)
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    if near <= 1 and n < len(rows):
        kept, copies, examined = _apart(rows[: 4 * n], free, n, old, native, near)
        rows = np.concatenate([kept, copies, rows[examined:]])
    count = np.cumsum(~free[rows])
    return rows[: int(np.searchsorted(count, n)) + 1] if n else rows[:0]


def _apart(
    ahead: np.ndarray, free: np.ndarray, n: int, old: np.ndarray, native: np.ndarray, near: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """Split rows, until ``n`` that are not free are kept, into those and near-duplicates; return also their number."""
    kept, copies, count, examined = [np.empty(0, np.intp)], [np.empty(0, np.intp)], 0, 0
    for part in blocks(len(ahead), 1, budget=_BLOCK):
        if count >= n:
            break
        candidates = ahead[part]
        rows = old[candidates]
        copy = np.zeros(len(candidates), bool)
        for earlier in (native, np.concatenate(kept)):
            for piece in blocks(len(earlier), 4 * (len(candidates) + old.shape[1])):
                copy |= (rows @ old[earlier[piece]].T >= near).any(axis=1)
        similar = rows @ rows.T >= near
        for place in range(len(candidates)):
            if not copy[place]:
                copy[place + 1 :] |= similar[place, place + 1 :]
        kept.append(candidates[~copy])
        copies.append(candidates[copy])
        count += int(np.count_nonzero(~free[candidates[~copy]]))
        examined += len(candidates)
    return np.concatenate(kept), np.concatenate(copies), examined


#: Minimum number of random rows for a choice, and number of standard errors by which another order must lead.
FEWEST, LEAD = 20, 2.5


class OrderSelection:
    """The candidate orders, and how well each predicted the harm to random rows.

    A row's harm is the share of its nearest texts that mapping changes (without texts, 1 − cosine). An order's score is
    the correlation of its ranks with the harm. Another order replaces the default if it leads by 2.5 standard errors of
    the paired difference.
    """

    def __init__(self, default: str, has_texts: bool) -> None:
        self.default = default
        compared = ("both", "texts" if has_texts else "vectors")
        self.names = [name for name, entry in _TABLE.items() if entry.auto in compared]
        #: Rank of each recorded row under each candidate, and its harm once it was re-embedded.
        self.ranks: dict[int, list[float]] = {}
        self.harm: dict[int, float] = {}

    def record(self, rows: np.ndarray, places: np.ndarray, view: View) -> None:
        """Record how the candidates rank random rows that were just requested, by their places in the view."""
        if not len(rows):
            return
        by_order = (ORDERS[name](view) for name in self.names)
        table = np.stack([ranks(scores, scores[places]) for scores in by_order], axis=1)
        self.ranks.update(zip(rows.tolist(), table.tolist(), strict=True))

    def finish(self, rows: np.ndarray, new: np.ndarray, mapped: np.ndarray, texts: Texts | None, k: int) -> None:
        """Record the harm to recorded rows among those re-embedded now; ``mapped`` is from before the refit."""
        known = np.array([row in self.ranks and row not in self.harm for row in rows.tolist()], bool)
        if not known.any():
            return
        theirs, ours = new[known], mapped[known]
        if texts is None:
            harm = 1 - np.einsum("ij,ij->i", theirs, ours)
        else:
            near = (nearest_texts(side @ texts.new.T, k) for side in (theirs, ours))
            harm = 1 - overlap(*near)
        self.harm.update(zip(rows[known].tolist(), harm.tolist(), strict=True))

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
        """Restore the state returned by ``state``."""
        self.ranks = {int(row): list(ranks) for row, *ranks in state["ranks"]}
        self.harm = {int(row): float(harm) for row, harm in state["harm"]}
