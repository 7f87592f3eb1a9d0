"""Recall and nDCG of ranked lists, query by query, and their expected values for random lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence._utils.validation import check_choice
from congruence.evaluation.judgments import Judgments

#: What recall measures: whether at least one relevant row is among the k, or the share of relevant rows found.
MODES = ("any", "share")


def _names(at: Sequence[int], ndcg_at: int) -> list[str]:
    return [*(f"recall@{k}" for k in at), f"ndcg@{ndcg_at}"]


def _ideal(grades: np.ndarray, discounts: np.ndarray) -> float:
    best = np.sort(grades)[::-1][: len(discounts)]
    return float(best @ discounts[: len(best)])


def ranked_scores(
    found: np.ndarray, judgments: Judgments, *, at: Sequence[int] = (1, 10), ndcg_at: int = 10, mode: str = "any"
) -> dict[str, np.ndarray]:
    """Score ranked lists of rows ``found`` (m, k), best first: ``"recall@1"``, …, ``"ndcg@10"`` of each query.

    ``mode`` as for :func:`congruence.metrics.recall_at_k`. nDCG (Järvelin and Kekäläinen 2002) is Σᵢ gᵢ / log₂(i + 1)
    over its best possible value, where g is the grade itself, as in trec_eval and scikit-learn. Rows without a judgment
    count as not relevant; every query must have a relevant row.
    """
    check_choice(mode, MODES, "mode")
    discounts = 1 / np.log2(np.arange(2, ndcg_at + 2))
    out = {name: np.zeros(len(found)) for name in _names(at, ndcg_at)}
    for q, (rows, grades) in enumerate(zip(judgments.rows, judgments.grades, strict=True)):
        place = np.minimum(np.searchsorted(rows, found[q]), len(rows) - 1)
        gains = np.where(rows[place] == found[q], grades[place], 0.0)
        for k in at:
            hits = int(np.count_nonzero(gains[:k]))
            out[f"recall@{k}"][q] = hits / len(rows) if mode == "share" else float(hits > 0)
        top = gains[:ndcg_at]
        out[f"ndcg@{ndcg_at}"][q] = float(top @ discounts[: len(top)]) / _ideal(grades, discounts)
    return out


def expected_scores(
    judgments: Judgments, n: int, *, at: Sequence[int] = (1, 10), ndcg_at: int = 10, mode: str = "any"
) -> dict[str, float]:
    """Return the expected scores of n rows in random order; the parameters are those of :func:`ranked_scores`."""
    discounts = 1 / np.log2(np.arange(2, ndcg_at + 2))
    out = dict.fromkeys(_names(at, ndcg_at), 0.0)
    m = len(judgments.rows)
    for rows, grades in zip(judgments.rows, judgments.grades, strict=True):
        for k in at:
            draws = np.arange(min(k, n))
            missed = float(np.prod(np.maximum(n - len(rows) - draws, 0) / (n - draws)))
            out[f"recall@{k}"] += (min(k, n) / n if mode == "share" else 1 - missed) / m
        out[f"ndcg@{ndcg_at}"] += float(grades.sum() / n * discounts[:n].sum()) / _ideal(grades, discounts) / m
    return out
