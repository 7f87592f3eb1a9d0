"""How well vectors of one space agree with another's, and the table that names the measures."""

from __future__ import annotations

from congruence.metrics._base import Metric
from congruence.metrics.paired import paired_cosine, paired_cosines, paired_distance
from congruence.metrics.retrieval import (
    class_retrieval,
    ensemble_prompts,
    recall_at_k,
    top1_scores,
    zero_shot_accuracy,
    zero_shot_scores,
)

__all__ = [
    "METRICS",
    "Metric",
    "class_retrieval",
    "ensemble_prompts",
    "paired_cosine",
    "paired_cosines",
    "paired_distance",
    "recall_at_k",
    "top1_scores",
    "zero_shot_accuracy",
    "zero_shot_scores",
]

_PAPER = "Gupta et al. (2026), appendix D.4.2"

#: Measures of paired rows, by name; each fact in an entry is tested.
METRICS: dict[str, Metric] = {
    "paired_cosine": Metric(
        "paired_cosine",
        paired_cosine,
        (-1.0, 1.0),
        True,
        frozenset({"joint rotation", "row scaling", "joint permutation"}),
        _PAPER,
    ),
    "paired_distance": Metric(
        "paired_distance",
        paired_distance,
        (0.0, float("inf")),
        False,
        frozenset({"joint rotation", "joint permutation"}),
        _PAPER,
    ),
}
