"""The JAM paper's definitions of its four metrics, and those of :data:`congruence.metrics.METRICS`.

Yoon, Yue and Kim report the *first* canonical correlation (appendix B.2.3), the *biased* CKA (equations 3 and 4) and a CKNNA of their own (equations 6
to 9). The metrics here default to the mean of the canonical correlations, the debiased CKA, and CKNNA by the code of Huh et al. (2024).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from congruence._utils.validation import check_choice
from congruence.errors import ParameterError
from congruence.metrics import null
from congruence.metrics.local_alignment import Masked, compare_masked, prepare_masked, reorder_masked
from congruence.metrics.null import PermutationStatistic, permutation_statistic
from congruence.metrics.rows import unit

__all__ = ["FORMULAS", "Measure", "measures"]

DEFINITIONS = ("both", "jam", "congruence")

#: The formulas of each of the paper's metrics: in the paper, and in this library.
FORMULAS = {
    "linear_cka": ("biased", "debiased"),
    "cknna": ("eq. 6–9", "Huh et al."),
    "cca": ("first", "mean"),
    "svcca": ("mean", "mean"),
}


class Measure(NamedTuple):
    """A metric under one definition.

    Attributes
    ----------
    metric : str
        Key of :data:`congruence.metrics.METRICS`.
    definition : {"jam", "congruence", "both"}
        Source of the definition; ``"both"`` if the two agree.
    formula : str
        A short label that distinguishes the definitions, or an empty string.
    steps : PermutationStatistic
        The metric itself.
    """

    metric: str
    definition: str
    formula: str
    steps: PermutationStatistic[Any]


def measures(
    metric: str, definition: str = "both", *, components: bool = True, normalize: bool = False
) -> list[Measure]:
    """Return a metric under the requested definitions, the paper's first.

    Parameters
    ----------
    metric : str
        Key of :data:`congruence.metrics.METRICS` that compares two spaces.
    definition : {"both", "jam", "congruence"}, default="both"
        Definitions to return: the paper's, this library's, or both.
    components : bool, default=True
        Whether rows are reduced to a number of principal components beforehand. SVCCA of these is the same as their CCA.
    normalize : bool, default=False
        Scale rows to unit norm before CKNNA.

    Returns
    -------
    list of Measure
        One or two.

    Raises
    ------
    ParameterError
        If the metric or definition is unknown, or ``"jam"`` is requested for a metric that the paper does not define.
    """
    check_choice(definition, DEFINITIONS, "definition")
    default = permutation_statistic("cca" if metric == "svcca" and components else metric)
    if metric == "cknna" and normalize:
        default = _masked("huh", normalize=True)
    if metric not in FORMULAS:
        if definition == "jam":
            raise ParameterError(
                f"Got {metric} by the definition of JAM; expected one of its metrics: {', '.join(FORMULAS)}. Choose one of these."
            )
        return [Measure(metric, "congruence", "", default)]
    jam_formula, formula = FORMULAS[metric]
    if metric == "svcca":
        return [Measure(metric, "both", formula, default)]
    jam_steps: dict[str, Callable[[], PermutationStatistic[Any]]] = {
        "linear_cka": lambda: null.BIASED_CKA,
        "cknna": lambda: _masked("jam", normalize=normalize),
        "cca": lambda: PermutationStatistic(default.prepare, default.reorder, null.compare_first),
    }
    both = [Measure(metric, "jam", jam_formula, jam_steps[metric]()), Measure(metric, "congruence", formula, default)]
    return [measure for measure in both if definition in ("both", measure.definition)]


def _masked(definition: str, *, normalize: bool) -> PermutationStatistic[Masked]:
    def prepare(A: np.ndarray, name: str) -> Masked:
        return prepare_masked(unit(A, name) if normalize else A, name, definition=definition)

    return PermutationStatistic(prepare, reorder_masked, compare_masked)
