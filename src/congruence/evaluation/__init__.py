"""Evaluate a map: the paper's measures before and after mapping, next to the scores of each model alone."""

from __future__ import annotations

from congruence.evaluation.comparison import Comparison, Difference, compare_maps
from congruence.evaluation.exposure import Exposure, measure_exposure
from congruence.evaluation.joint_search import search
from congruence.evaluation.scores import Score, Scores, evaluate

__all__ = [
    "Comparison",
    "Difference",
    "Exposure",
    "Score",
    "Scores",
    "compare_maps",
    "evaluate",
    "measure_exposure",
    "search",
]
