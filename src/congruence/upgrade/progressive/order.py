"""Choose which rows to re-embed next: those with the highest scores of an order, a function of a ``View``.

Scores are compared within one call only. Orders never see the meter's new vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence.errors import ParameterError
from congruence.upgrade.progressive.texts import TextFacts


@dataclass(frozen=True, eq=False)
class View:
    """The information that an order may use."""

    old: np.ndarray  # (n, d_old), unit rows of the old model
    mapped: np.ndarray  # (n, d_new), by the current map, also of re-embedded items
    native: np.ndarray  # (e,), positions of re-embedded ones among them, without the meter's
    surprise: np.ndarray  # (e,), 1 − cosine between each of them and its mapped vector before
    size: int  # rows wanted
    random_state: int = 0
    by_texts: tuple[TextFacts, TextFacts] | None = None  # of old and mapped rows; None if the order needs no texts
    rows: np.ndarray | None = None  # (n,), their numbers in the store, of which large ones are shown in part

    def facts(self) -> tuple[TextFacts, TextFacts]:
        """Return the facts about the old rows and about the mapped ones; an error without texts."""
        if self.by_texts is None:
            problem = "This order needs texts; there are none."
            raise ParameterError(problem, "Pass `texts=…` and `new_texts=…`, or `order='residual'`.")
        return self.by_texts


#: Function of a ``View`` that returns one score per row; rows with the highest scores come first.
Order = Callable[[View], np.ndarray]


def _by_random(view: View) -> np.ndarray:
    return np.random.default_rng([view.random_state, len(view.native)]).random(len(view.old))


def _by_entropy(view: View) -> np.ndarray:
    """Sum of the entropies of both models over texts: rows that neither can place come first."""
    old, new = view.facts()
    return np.asarray(old.entropy + new.entropy)


def _by_disagreement(view: View) -> np.ndarray:
    """Rows whose nearest text differs between the old model and the map come first, then those with a small margin."""
    old, new = view.facts()
    return np.asarray((old.nearest != new.nearest) * (1 + new.margin.max()) - new.margin)


def _by_margin(view: View) -> np.ndarray:
    """Margin sampling (Scheffer, Decomain and Wrobel 2001): a small lead of the nearest text comes first."""
    return np.asarray(-view.facts()[1].margin)


def _by_residual(view: View) -> np.ndarray:
    """Ridge regression, on the old vectors, of the distance between re-embedded rows and their mapped vectors."""
    if len(view.native) < 2:
        return _by_random(view)
    X = view.old[view.native].astype(np.float64)
    mean = X.mean(axis=0)
    A, y = X - mean, view.surprise - view.surprise.mean()
    if len(A) < A.shape[1]:
        coef = A.T @ np.linalg.solve(A @ A.T + np.eye(len(A)), y)
    else:
        coef = np.linalg.solve(A.T @ A + np.eye(A.shape[1]), A.T @ y)
    return np.asarray(view.old @ coef - mean @ coef)


#: Orders by name; docs/progressive.md has what each reaches.
ORDERS: dict[str, Order] = {
    "entropy": _by_entropy,
    "disagreement": _by_disagreement,
    "margin": _by_margin,
    "residual": _by_residual,
    "random": _by_random,
}
BY_TEXTS = ("entropy", "disagreement", "margin")  # which need texts


def by_queries(queries: np.ndarray, k: int = 10) -> Order:
    """Return an order that puts first the rows which a log of queries (m, d_new) is expected to use most.

    A row's expected use is the sum over the queries of k / (k + its rank among the mapped rows).
    """

    def order(view: View) -> np.ndarray:
        use = np.zeros(len(view.mapped))
        for query in normalize_rows(np.asarray(queries, np.float32)):
            use[np.argsort(-(view.mapped @ query))] += k / (k + np.arange(len(use)))
        return use

    return order


def take_in_order(scores: np.ndarray, eligible: np.ndarray, free: np.ndarray, n: int) -> np.ndarray:
    """Return the first ``n`` eligible rows in order; ``free`` ones, the meter's, which are encoded anyway, do not
    count.
    """
    rows = np.flatnonzero(eligible)
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    return rows[: int(np.searchsorted(np.cumsum(~free[rows]), n)) + 1] if n else rows[:0]
