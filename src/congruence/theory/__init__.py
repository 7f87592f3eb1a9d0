"""The theorems of Gupta et al. (2026) as functions on arrays: what each promises, and what is measured beside it."""

from __future__ import annotations

from congruence.theory._base import Bound
from congruence.theory.agreement import KernelAgreement, gram_agreement, kernel_agreement
from congruence.theory.linear_map import AnchorMap, TextError, anchor_map, linear_bound, linear_text_error
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
    "KernelAgreement",
    "PolarRotation",
    "RankTradeOff",
    "TextError",
    "anchor_map",
    "gram_agreement",
    "kernel_agreement",
    "linear_bound",
    "linear_text_error",
    "orthogonal_bound",
    "polar_rotation",
    "projected_text_bound",
    "rank_trade_off",
    "text_bound",
]
