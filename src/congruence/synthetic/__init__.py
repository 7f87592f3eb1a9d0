"""Synthetic problems with known solutions, for tests, docs and benchmarks."""

from __future__ import annotations

from congruence.synthetic.dual import DualProblem, dual_problem
from congruence.synthetic.rigid import RigidProblem, random_rotation, rigid_problem
from congruence.synthetic.unimodal import UnimodalProblem, unimodal_problem
from congruence.synthetic.upgrade import UpgradeProblem, upgrade_problem

__all__ = [
    "DualProblem",
    "RigidProblem",
    "UnimodalProblem",
    "UpgradeProblem",
    "dual_problem",
    "random_rotation",
    "rigid_problem",
    "unimodal_problem",
    "upgrade_problem",
]
