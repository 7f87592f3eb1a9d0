"""The theorems of Gupta et al. (2026) as functions on arrays: what each promises, and what is measured beside it."""

from __future__ import annotations

from congruence.theory._base import Bound
from congruence.theory.probed import Probed, ProbedShare, probed_share, probed_subspace
from congruence.theory.spanning import Spanning, anchors_needed, sym_spanning

__all__ = [
    "Bound",
    "Probed",
    "ProbedShare",
    "Spanning",
    "anchors_needed",
    "probed_share",
    "probed_subspace",
    "sym_spanning",
]
