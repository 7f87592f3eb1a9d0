"""Metrics of paired rows, within one space or between two, and the table ``METRICS`` of them by name.

All of them refuse arrays of the wrong shape or type, numbers that are not finite, too few rows (``TooFewAnchorsError``)
and rows that do not vary with a ``congruence.errors.InputError``, and invalid options with a
``congruence.errors.ParameterError``.
"""

from __future__ import annotations

from congruence.errors import ParameterError
from congruence.metrics import cka, correlations, dissimilarity, neighbors, retrieval, shape
from congruence.metrics._base import INVARIANCES, Metric, prepare_each
from congruence.metrics.cka import cross_kernel_cka, linear_cka, rbf_cka
from congruence.metrics.correlations import CCAFit, cca, fit_cca, pwcca, svcca
from congruence.metrics.dissimilarity import rsa
from congruence.metrics.hubness import CSLS, HUBNESS, Hubness, QBNorm
from congruence.metrics.neighbors import cknna, cycle_knn, edit_knn, lcs_knn, mutual_knn
from congruence.metrics.retrieval import (
    class_retrieval,
    ensemble_prompts,
    paired_cosine,
    paired_cosines,
    paired_distance,
    recall_at_k,
    top1_scores,
    zero_shot_accuracy,
)
from congruence.metrics.search import nearest
from congruence.metrics.shape import procrustes_distance

__all__ = [
    "BETWEEN_SPACES",
    "CSLS",
    "HUBNESS",
    "INVARIANCES",
    "METRICS",
    "CCAFit",
    "Hubness",
    "Metric",
    "QBNorm",
    "between_spaces",
    "cca",
    "cknna",
    "class_retrieval",
    "cross_kernel_cka",
    "cycle_knn",
    "edit_knn",
    "ensemble_prompts",
    "fit_cca",
    "lcs_knn",
    "linear_cka",
    "mutual_knn",
    "nearest",
    "paired_cosine",
    "paired_cosines",
    "paired_distance",
    "prepare_each",
    "procrustes_distance",
    "pwcca",
    "rbf_cka",
    "recall_at_k",
    "rsa",
    "svcca",
    "top1_scores",
    "zero_shot_accuracy",
]

#: Metrics of paired rows, by name; every property declared in an entry is tested.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for family in (retrieval, cka, neighbors, correlations, dissimilarity, shape)
    for metric in family.METRICS
}

#: Names of the metrics that compare two spaces, rather than vectors of one.
BETWEEN_SPACES = tuple(name for name, metric in METRICS.items() if not metric.one_space)


def between_spaces(name: str) -> Metric:
    """Return a metric that compares two spaces by its name."""
    if name not in BETWEEN_SPACES:
        raise ParameterError(
            argument="metric",
            got=name,
            expected=f"one that compares two spaces: {', '.join(BETWEEN_SPACES)}",
            fix="Pass one of these.",
        )
    return METRICS[name]
