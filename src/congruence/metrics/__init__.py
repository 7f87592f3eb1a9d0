"""Metrics of paired rows, within one space or between two, and the table :data:`METRICS` of them by name."""

from __future__ import annotations

from congruence.metrics._base import INVARIANCES, Metric
from congruence.metrics.cka import cross_kernel_cka, linear_cka, rbf_cka
from congruence.metrics.correlations import cca, pwcca, svcca
from congruence.metrics.dissimilarity import rsa
from congruence.metrics.heldout_cca import CCAFit, fit_cca
from congruence.metrics.hubness import CSLS, HUBNESS, Hubness, QBNorm
from congruence.metrics.local_alignment import cknna
from congruence.metrics.neighbors import cycle_knn, edit_knn, lcs_knn, mutual_knn
from congruence.metrics.paired import paired_cosine, paired_cosines, paired_distance
from congruence.metrics.prompts import ensemble_prompts
from congruence.metrics.retrieval import (
    class_retrieval,
    recall_at_k,
    top1_scores,
    zero_shot_accuracy,
    zero_shot_scores,
)
from congruence.metrics.search import nearest
from congruence.metrics.shape import procrustes_distance

__all__ = [
    "CSLS",
    "HUBNESS",
    "INVARIANCES",
    "METRICS",
    "CCAFit",
    "Hubness",
    "Metric",
    "QBNorm",
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
    "procrustes_distance",
    "pwcca",
    "rbf_cka",
    "recall_at_k",
    "rsa",
    "svcca",
    "top1_scores",
    "zero_shot_accuracy",
    "zero_shot_scores",
]

_PAPER = "Gupta et al. (2026), appendix D.4.2"
_HUH = "Huh et al. (2024)"
_SHAPE = frozenset({"rotation", "isotropic scaling", "translation", "joint permutation", "symmetry"})

_ENTRIES = (
    Metric(
        "paired_cosine",
        paired_cosine,
        (-1.0, 1.0),
        True,
        frozenset({"joint rotation", "row scaling", "joint permutation", "symmetry"}),
        _PAPER,
        one_space=True,
    ),
    Metric(
        "paired_distance",
        paired_distance,
        (0.0, float("inf")),
        False,
        frozenset({"joint rotation", "joint permutation", "symmetry"}),
        _PAPER,
        one_space=True,
    ),
    Metric("linear_cka", linear_cka, (-1.0, 1.0), True, _SHAPE, "Kornblith et al. (2019), Song et al. (2012)", "n·d²"),
    Metric("rbf_cka", rbf_cka, (-1.0, 1.0), True, _SHAPE, "Kornblith et al. (2019)", "n²·d"),
    Metric(
        "cknna",
        cknna,
        (float("-inf"), float("inf")),
        True,
        frozenset({"rotation", "isotropic scaling", "joint permutation"}),
        f"{_HUH}, appendix A",
        "n²·d",
    ),
    Metric(
        "mutual_knn",
        mutual_knn,
        (0.0, 1.0),
        True,
        frozenset({"rotation", "isotropic scaling", "joint permutation", "symmetry"}),
        f"{_HUH}, eq. 11",
        "n²·d",
    ),
    Metric(
        "cycle_knn",
        cycle_knn,
        (0.0, 1.0),
        True,
        frozenset({"rotation", "isotropic scaling", "joint permutation"}),
        f"{_HUH}, appendix A",
        "n²·d",
    ),
    Metric(
        "lcs_knn",
        lcs_knn,
        (0.0, float("inf")),
        True,
        frozenset({"rotation", "isotropic scaling", "joint permutation", "symmetry"}),
        f"{_HUH}, appendix A",
        "n²·d",
    ),
    Metric(
        "edit_knn",
        edit_knn,
        (0.0, 1.0),
        True,
        frozenset({"rotation", "isotropic scaling", "joint permutation", "symmetry"}),
        f"{_HUH}, appendix A",
        "n²·d",
    ),
    Metric("cca", cca, (0.0, 1.0), True, _SHAPE, "Hotelling (1936)", "n·d²"),
    Metric("svcca", svcca, (0.0, 1.0), True, _SHAPE, "Raghu et al. (2017)", "n·d²"),
    Metric(
        "pwcca",
        pwcca,
        (0.0, 1.0),
        True,
        frozenset({"isotropic scaling", "translation", "joint permutation"}),
        "Morcos et al. (2018)",
        "n·d²",
    ),
    Metric(
        "rsa",
        rsa,
        (-1.0, 1.0),
        True,
        frozenset({"row scaling", "joint permutation", "symmetry"}),
        "Kriegeskorte et al. (2008)",
        "n²·d",
    ),
    Metric(
        "procrustes_distance",
        procrustes_distance,
        (0.0, 1.5707963267948966),
        False,
        _SHAPE,
        "Williams et al. (2021)",
        "n·d²",
    ),
)

#: Metrics of paired rows, by name; every property declared in an entry is tested.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ENTRIES}
