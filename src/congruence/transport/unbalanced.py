"""Entropic transport that need not match everything: unbalanced plans (Chizat et al. 2018)."""

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
from congruence.transport.sinkhorn import (
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
    """An unbalanced plan divided by its mass, in O(n + m) numbers; what is not said here is as in :class:`SinkhornResult`.

    Attributes
    ----------
    marginal_error : float
        How far the plan is from optimal: L1 distance of the sums of its rows from r·exp(−ε(u_i − log r_i)/ρ), u of the plan that is not
        normalized, plus the same of columns; as a share of the mass. At ρ = ∞ that is the error of a balanced plan.
    rho : float
        In units of affinity.
    log_mass : float
        Natural logarithm of what the plan adds up to before it is normalized.
    row_marginal : array of float64, shape (n,)
        Sums of the normalized plan's rows: rows of which no partner is near have little.
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
    """Transport one collection to another where some of either has no partner: marginals are preferred with strength ρ, not held.

    The optimal plan is that of argmax ⟨P, A⟩ − ε KL(P | r cᵀ) − ρ KL(P1 | r) − ρ KL(Pᵀ1 | c), and the result is this plan divided by its mass.

    Parameters
    ----------
    affinity : array_like, shape (n, m), optional
        As in :func:`sinkhorn`.
    rho : float, default=0.1
        What it costs to leave mass unmatched, in units of affinity: the less, the more of the plan lies where affinities are high.
        ``math.inf`` is :func:`sinkhorn`, to the bit.
    epsilon, max_iter : optional
        As in :func:`sinkhorn`.
    tol : float, optional
        Stop once the sums of rows are this near to what the potentials ask for, in L1 norm and as a share of the mass.
    X, Y : array_like, optional
        As in :func:`sinkhorn`; computed in strips.
    marginals : tuple of array_like, shapes (n,) and (m,), optional
        r and c, each adding up to 1. Uniform by default.
    memory : int, default=2**30
        As in :func:`sinkhorn`.

    Returns
    -------
    UnbalancedResult

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
    ParameterError
        ``rho`` not above 0, or as in :func:`sinkhorn`.

    Notes
    -----
    Adding a constant k to all affinities multiplies the plan by exp(k/(ε + 2ρ)), so it changes ``log_mass`` and not the normalized plan. Adding a
    vector to all rows or columns does change the plan, other than in balanced transport.

    The entropy is relative to r cᵀ (POT's ``reg_type="kl"``). Rows' potentials are u ← log r − λ log Σ_j exp(A_ij/ε + v_j) with
    λ = ρ/(ρ + ε). An iteration brings the plan nearer at the balanced rate or better; the balance between u and v, for which the plain iteration
    takes some ρ/ε iterations, is set in closed form. All entries of a kernel are held, without the sparse form of :func:`sinkhorn`.

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
    held, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(held, epsilon, "epsilon")
    r, c = check_marginals(marginals, held)
    xp, limit = held.xp, CONVERGED if tol is None else tol
    if math.isinf(rho):
        found = iterate(held, float(epsilon), r, c, max_iter, tol, memory)
        rows, columns = plan_marginals(held, float(epsilon), found.u, found.v, memory)
        error = float(xp.sum(xp.abs(rows - r)) + xp.sum(xp.abs(columns - c)))
        its = Relaxed(found.u, found.v, found.n_iter, error, 0.0, rows, columns)
    else:
        its = relax(held, float(epsilon), float(rho), r, c, max_iter, tol, memory)
    return UnbalancedResult(
        its.u,
        its.v,
        float(epsilon),
        "unit",
        its.error,
        its.n_iter,
        its.error <= limit,
        held,
        rho=float(rho),
        log_mass=its.log_mass,
        row_marginal=its.rows,
        column_marginal=its.columns,
    )


def check_rho(rho: float, name: str) -> float:
    """Return a strength of marginals, positive or infinite.

    Raises
    ------
    ParameterError
    """
    return rho if isinstance(rho, float) and rho == math.inf else check_positive(rho, name)
