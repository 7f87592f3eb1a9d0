"""Optimal transport: distances between collections whose rows are not paired."""

from congruence.transport.shift import Distance, DistributionShift, distribution_shift
from congruence.transport.sliced import random_frames, sliced_wasserstein_sphere

__all__ = ["Distance", "DistributionShift", "distribution_shift", "random_frames", "sliced_wasserstein_sphere"]
