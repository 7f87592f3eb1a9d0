"""The theorems of Gupta et al. (2026) as functions on arrays: what each promises, and what is measured beside it."""

from __future__ import annotations

from congruence.theory._base import Bound
from congruence.theory.agreement import KernelAgreement, gram_agreement, kernel_agreement
from congruence.theory.linear_map import AnchorMap, TextError, anchor_map, linear_bound, linear_text_error
from congruence.theory.margins import Margins, class_margins
from congruence.theory.probed import Probed, ProbedShare, probed_share, probed_subspace
from congruence.theory.spanning import Spanning, anchors_needed, sym_spanning
from congruence.theory.spanning_constant import Kappa, kappa
from congruence.theory.stability import (
    PolarRotation,
    RankTradeOff,
    orthogonal_bound,
    polar_rotation,
    projected_text_bound,
    rank_trade_off,
    text_bound,
)

__all__ = [
    "AnchorMap",
    "Bound",
    "Kappa",
    "KernelAgreement",
    "Margins",
    "PolarRotation",
    "Probed",
    "ProbedShare",
    "RankTradeOff",
    "Spanning",
    "TextError",
    "anchor_map",
    "anchors_needed",
    "class_margins",
    "gram_agreement",
    "kappa",
    "kernel_agreement",
    "linear_bound",
    "linear_text_error",
    "orthogonal_bound",
    "polar_rotation",
    "probed_share",
    "probed_subspace",
    "projected_text_bound",
    "rank_trade_off",
    "sym_spanning",
    "text_bound",
]
