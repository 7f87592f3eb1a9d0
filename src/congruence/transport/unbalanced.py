"""Entropic transport that need not match all mass: unbalanced plans (Chizat et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from congruence._utils.typing import Array, RowsLike, Tensor
from congruence._utils.validation import check_positive
from congruence.transport._inputs import check_epsilon
from congruence.transport._relaxed import Relaxed, relax
from congruence.transport._scaling import iterate
from congruence.transport._scaling import marginals as plan_marginals
from congruence.transport.balanced import (
    CONVERGED,
    MEMORY,
    SinkhornResult,
    check_marginals,
    check_options,
    choose_affinity,
)

__all__ = ["UnbalancedResult", "check_rho", "sinkhorn_unbalanced"]


@dataclass(frozen=True)
class UnbalancedResult(SinkhornResult):
    """An unbalanced plan divided by its mass, stored in O(n + m) numbers; other attributes are as in :class:`SinkhornResult`.

    Attributes
    ----------
    marginal_error : float
        Distance of the plan from the optimum: L1 distance of its row sums from r·exp(−ε(u_i − log r_i)/ρ), with u of the unnormalized plan,
        plus the same for columns, as a share of the mass. For ρ = ∞ it is the error of a balanced plan.
    rho : float
        Strength of the marginal constraints, in units of affinity.
    log_mass : float
        Natural logarithm of the plan's sum before normalization.
    row_marginal : array of float64, shape (n,)
        Row sums of the normalized plan: rows without a near partner have little mass.
    column_marginal : array of float64, shape (m,)
    """

    rho: float = math.inf
    log_mass: float = 0.0
    row_marginal: Array | None = None
    column_marginal: Array | None = None


def sinkhorn_unbalanced(
    affinity: RowsLike | None = None,
    rho: float = 0.1,
    epsilon: float = 0.05,
    max_iter: int = 100,
    tol: float | None = None,
    *,
    X: RowsLike | None = None,
    Y: RowsLike | None = None,
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None = None,
    memory: int = MEMORY,
) -> UnbalancedResult:
    """Transport one collection to another when some rows have no partner: marginals are soft constraints of strength ρ.

    The optimal plan is that of argmax ⟨P, A⟩ − ε KL(P | r cᵀ) − ρ KL(P1 | r) − ρ KL(Pᵀ1 | c), and the result is this plan divided by its mass.

    Parameters
    ----------
    affinity : array_like, shape (n, m), optional
        As for :func:`sinkhorn`.
    rho : float, default=0.1
        Cost of leaving mass unmatched, in units of affinity: with a smaller value, more of the plan's mass is where affinities are high.
        ``math.inf`` gives the result of :func:`sinkhorn`, to the bit.
    epsilon, max_iter : optional
        As for :func:`sinkhorn`.
    tol : float, optional
        Stop when the row sums are within this L1 distance, as a share of the mass, of the values implied by the potentials.
    X, Y : array_like, shapes (n, d) and (m, d), optional
        As for :func:`sinkhorn`; computed in strips.
    marginals : tuple of array_like, shapes (n,) and (m,), optional
        r and c, each summing to 1. Uniform by default.
    memory : int, default=2**30
        As for :func:`sinkhorn`.

    Returns
    -------
    UnbalancedResult

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ParameterError
        If ``rho`` is not positive, or as for :func:`sinkhorn`.

    Notes
    -----
    Adding a constant k to all affinities multiplies the plan by exp(k/(ε + 2ρ)), so it changes ``log_mass`` but not the normalized plan. Unlike in
    balanced transport, adding a vector to all rows or columns changes the plan.

    The entropy is relative to r cᵀ (POT's ``reg_type="kl"``). Row potentials are updated by u ← log r − λ log Σ_j exp(A_ij/ε + v_j) with
    λ = ρ/(ρ + ε). Each iteration converges at the balanced rate or faster; the balance between u and v, for which the plain iteration
    needs about ρ/ε iterations, is set in closed form. All entries of a kernel are kept, without the sparse form of :func:`sinkhorn`.

    References
    ----------
    Chizat, Peyré, Schmitzer and Vialard (2018), "Scaling algorithms for unbalanced optimal transport problems".
    Séjourné, Vialard and Peyré (2022), "Faster unbalanced optimal transport: translation invariant Sinkhorn and 1-D Frank-Wolfe".

    Examples
    --------
    The third row is near to no column:

    >>> import numpy as np
    >>> from congruence.transport import sinkhorn_unbalanced
    >>> A = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> sinkhorn_unbalanced(A, rho=0.1, epsilon=0.05).row_marginal.round(3)
    array([0.5  , 0.5  , 0.001])
    """
    check_rho(rho, "rho")
    check_options(max_iter, tol, memory)
    A, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(A, epsilon, "epsilon")
    r, c = check_marginals(marginals, A)
    xp = A.xp
    if math.isinf(rho):
        balanced = iterate(A, float(epsilon), r, c, max_iter, tol, memory)
        rows, columns = plan_marginals(A, float(epsilon), balanced.u, balanced.v, memory)
        error = float(xp.sum(xp.abs(rows - r)) + xp.sum(xp.abs(columns - c)))
        solved = Relaxed(balanced.u, balanced.v, balanced.n_iter, error, 0.0, rows, columns)
    else:
        solved = relax(A, float(epsilon), float(rho), r, c, max_iter, tol, memory)
    return UnbalancedResult(
        solved.u,
        solved.v,
        float(epsilon),
        "unit",
        solved.error,
        solved.n_iter,
        solved.error <= (CONVERGED if tol is None else tol),
        A,
        rho=float(rho),
        log_mass=solved.log_mass,
        row_marginal=solved.rows,
        column_marginal=solved.columns,
    )


def check_rho(rho: float, name: str) -> float:
    """Return a strength of the marginal constraints, positive or infinite.

    Raises
    ------
    ParameterError
        If ``rho`` is not a positive number or infinity.
    """
    return rho if isinstance(rho, float) and rho == math.inf else check_positive(rho, name)
