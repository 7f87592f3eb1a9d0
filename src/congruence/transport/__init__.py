"""Optimal transport: distances between collections whose rows are not paired, and plans between them."""

from congruence.transport.divergence import Convergence, klot, klot_features, solve_teacher
from congruence.transport.entropic import SinkhornResult, sinkhorn, sinkhorn_unbalanced
from congruence.transport.shift import Distance, DistributionShift, distribution_shift
from congruence.transport.sliced import random_frames, sliced_wasserstein_sphere

__all__ = [
    "Convergence",
    "Distance",
    "DistributionShift",
    "SinkhornResult",
    "distribution_shift",
    "klot",
    "klot_features",
    "random_frames",
    "sinkhorn",
    "sinkhorn_unbalanced",
    "sliced_wasserstein_sphere",
    "solve_teacher",
]
