"""The theorems of Gupta et al. (2026) as functions on arrays: what each promises, and what is measured beside it."""

from __future__ import annotations

from congruence.theory._base import Bound
from congruence.theory.margins import Margins, class_margins
from congruence.theory.probed import Probed, ProbedShare, probed_share, probed_subspace
from congruence.theory.spanning import Spanning, anchors_needed, sym_spanning
from congruence.theory.spanning_constant import Kappa, kappa

__all__ = [
    "Bound",
    "Kappa",
    "Margins",
    "Probed",
    "ProbedShare",
    "Spanning",
    "anchors_needed",
    "class_margins",
    "kappa",
    "probed_share",
    "probed_subspace",
    "sym_spanning",
]
