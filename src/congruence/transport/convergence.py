"""Convergence of the iterations for KLOT's plans, and a warning when it is insufficient for the gradient."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from congruence.errors import ConvergenceWarning

__all__ = ["GRADIENT_ERROR", "Convergence", "warn_unconverged"]

#: A warning is given if the marginal errors exceed this share of ‖P − P*‖₁: the gradient is then off by at least 1 % to 5 % in L1 norm (docs/transport.md).
GRADIENT_ERROR = 0.01


@dataclass(frozen=True)
class Convergence:
    """Convergence of the iterations for the two plans of a KLOT.

    Attributes
    ----------
    marginal_error, marginal_error_teacher : float
        L1 distance of the row sums of the student's and of the teacher's plan from their marginals, for mass 1: from 0 to 2. The column sums
        are exact. Computed during the last iteration at no extra cost, so the final plan is at least this accurate.
    n_iter, n_iter_teacher : int
        Number of iterations.
    difference : float
        ‖P − P*‖₁ for mass 1, from 0 to 2: ε times the L1 norm of the gradient with respect to the affinities. The maximum, 2, if the GPU kernels
        do not report it.
    settled : float
        Marginal errors up to this always count as converged: the largest of ``tol`` (if given), 1e-6, and the rounding error.
    """

    marginal_error: float
    marginal_error_teacher: float
    n_iter: int
    n_iter_teacher: int
    difference: float
    settled: float

    @property
    def gradient_error(self) -> float:
        """Sum of the marginal errors divided by ‖P − P*‖₁, at most 1; 0 if both are ``settled``, or the plans are equal.

        In all measurements the gradient's relative error in L1 norm was 1 to 5 times this.
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
    """Warn if the iterations ended too early for an accurate gradient.

    Parameters
    ----------
    gradient_error : float
        See :class:`Convergence`.
    where : str
        When the error occurred, in the message.
    otherwise : str
        A further remedy, appended to the message; may be empty.
    stacklevel : int
        As for :func:`warnings.warn`, counted from the caller.
    """
    if gradient_error <= GRADIENT_ERROR:
        return
    # Two digits at most, so that a loop over batches repeats a few messages, each of which Python shows once.
    warnings.warn(
        f"Got transport plans whose marginals are off by {math.ceil(100 * gradient_error) / 100:.2g} of ‖P − P*‖₁ {where}; expected "
        f"{GRADIENT_ERROR} at most, since the gradient of KLOT is off by that share or more. Raise max_iter or epsilon, or lower tol{otherwise}.",
        ConvergenceWarning,
        stacklevel=stacklevel + 1,
    )
