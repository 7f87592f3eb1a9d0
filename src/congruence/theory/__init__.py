"""The theorems of Gupta et al. (2026) as functions on arrays: each computes a bound and the measured value."""

from __future__ import annotations

from congruence.theory._base import Bound
from congruence.theory.agreement import KernelAgreement, gram_agreement, kernel_agreement
from congruence.theory.bounds import (
    AnchorMap,
    PolarRotation,
    RankTradeOff,
    TextError,
    anchor_map,
    linear_bound,
    linear_text_error,
    orthogonal_bound,
    polar_rotation,
    projected_text_bound,
    rank_trade_off,
    text_bound,
)
from congruence.theory.covered import CoveredShare, CoveredSubspace, covered_share, covered_subspace
from congruence.theory.critic import (
    CriticGap,
    CriticRank,
    Curation,
    DualEncoder,
    bayes_posterior,
    critic_gap,
    critic_rank,
    curate,
    independent_weights,
    infonce_loss,
    latent_joint,
    pmi,
    realize_critic,
    sigmoid_loss,
)
from congruence.theory.margins import Margins, class_margins
from congruence.theory.spanning import Kappa, Spanning, anchors_needed, kappa, sym_spanning

__all__ = [
    "AnchorMap",
    "Bound",
    "CoveredShare",
    "CoveredSubspace",
    "CriticGap",
    "CriticRank",
    "Curation",
    "DualEncoder",
    "Kappa",
    "KernelAgreement",
    "Margins",
    "PolarRotation",
    "RankTradeOff",
    "Spanning",
    "TextError",
    "anchor_map",
    "anchors_needed",
    "bayes_posterior",
    "class_margins",
    "covered_share",
    "covered_subspace",
    "critic_gap",
    "critic_rank",
    "curate",
    "gram_agreement",
    "independent_weights",
    "infonce_loss",
    "kappa",
    "kernel_agreement",
    "latent_joint",
    "linear_bound",
    "linear_text_error",
    "orthogonal_bound",
    "pmi",
    "polar_rotation",
    "projected_text_bound",
    "rank_trade_off",
    "realize_critic",
    "sigmoid_loss",
    "sym_spanning",
    "text_bound",
]
