"""How far the iterations for KLOT's plans got, and when that is too little for its gradient."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from congruence.errors import ConvergenceWarning

__all__ = ["GRADIENT_ERROR", "Convergence", "warn_unconverged"]

#: Share of ‖P − P*‖₁ past which marginal errors are warned of: the gradient is then off by 1 % to 5 % in L1 norm at least (docs/transport.md).
GRADIENT_ERROR = 0.01


@dataclass(frozen=True)
class Convergence:
    """How far the iterations for the two plans of a KLOT got.

    Attributes
    ----------
    marginal_error, marginal_error_teacher : float
        L1 distance of the sums of rows from their marginals, of the student's and of the teacher's plan, for mass 1: from 0 to 2. The sums of
        columns are exact. Found in the course of the last iteration, at no cost, so that the plan it ended with is no worse.
    n_iter, n_iter_teacher : int
        Iterations done.
    difference : float
        ‖P − P*‖₁ for mass 1, from 0 to 2: ε times the L1 norm of the gradient by the affinities. 2, the most it can be, where the GPU kernels
        do not tell.
    settled : float
        Marginal errors up to this always count as converged: ``tol`` if given, 1e-6, or what rounding leaves, whichever is largest.
    """

    marginal_error: float
    marginal_error_teacher: float
    n_iter: int
    n_iter_teacher: int
    difference: float
    settled: float

    @property
    def gradient_error(self) -> float:
        """Sum of the marginal errors over ‖P − P*‖₁, at most 1; 0 where both are ``settled``, or the plans the same.

        The gradient's relative error in L1 norm was 1 to 5 times this wherever it was measured.
        """
        errors = self.marginal_error, self.marginal_error_teacher
        if max(errors) <= self.settled or self.difference == 0:
            return 0.0
        return sum(errors) / max(sum(errors), self.difference)

    @property
    def converged(self) -> bool:
        """Whether ``gradient_error`` is at most 0.01."""
        return self.gradient_error <= GRADIENT_ERROR


def warn_unconverged(gradient_error: float, where: str, otherwise: str, stacklevel: int) -> None:
    """Warn if the iterations ended too early for the gradient."""
    if gradient_error <= GRADIENT_ERROR:
        return
    # Two digits at most, so that a loop over batches repeats a few messages, each of which Python shows once.
    warnings.warn(
        f"Got transport plans whose marginals are off by {math.ceil(100 * gradient_error) / 100:.2g} of ‖P − P*‖₁ {where}; expected "
        f"{GRADIENT_ERROR} at most, since the gradient of KLOT is off by that share or more. Raise max_iter or epsilon, or lower tol{otherwise}.",
        ConvergenceWarning,
        stacklevel=stacklevel + 1,
    )
