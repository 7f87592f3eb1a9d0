"""Entropic transport that need not match all mass: unbalanced plans (Chizat et al. 2018)."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.typing import RowsLike, Tensor
from congruence._utils.validation import check_positive
from congruence.transport._kernel import Affinity, Kernel, Strip, strip_pool_for
from congruence.transport.balanced import (
    CONVERGED,
    GROWTH,
    MAX_ITER,
    MEMORY,
    Goal,
    Potentials,
    Progress,
    Sample,
    SinkhornResult,
    as_array,
    check_epsilon,
    check_marginals,
    check_options,
    choose_affinity,
    kernel_marginals,
    log_domain_pass,
    sinkhorn,
)

#: Largest |log a| + |log b| after an iteration. Beyond it, entries of K that were raised to the floor (see GROWTH)
#: would matter, and exp would overflow.
LEAP = 2 * GROWTH


def sinkhorn_unbalanced(
    affinity: RowsLike | None = None,
    rho: float = 0.1,
    epsilon: float = 0.05,
    max_iter: int = MAX_ITER,
    tolerance: float = CONVERGED,
    *,
    X: RowsLike | None = None,
    Y: RowsLike | None = None,
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None = None,
    memory: int = MEMORY,
) -> SinkhornResult:
    """Transport one collection to another when some rows have no partner: marginals are soft constraints of strength ρ.

    The optimal plan is that of argmax ⟨P, A⟩ − ε KL(P | r cᵀ) − ρ KL(P1 | r) − ρ KL(Pᵀ1 | c), and the result is this
    plan divided by its mass.

    Parameters
    ----------
    rho : float, default=0.1
        Cost of leaving mass unmatched, in units of affinity: with a smaller value, more of the plan's mass is where
        affinities are high. ``math.inf`` gives the result of ``sinkhorn``, to the bit.
    affinity, epsilon, max_iter, tolerance, X, Y, marginals, memory
        As for ``sinkhorn``; the tolerance is a share of the mass.

    Notes
    -----
    The entropy is relative to r cᵀ (POT's ``reg_type="kl"``). Row potentials are updated by u ← log r − λ log Σ_j
    exp(A_ij/ε + v_j) with λ = ρ/(ρ + ε); the balance between u and v is set in closed form. Adding a constant k to all
    affinities multiplies the plan by exp(k/(ε + 2ρ)), so it changes ``log_mass`` only; adding a vector to all rows or
    columns changes the plan (docs/transport.md).

    Source: Chizat, Peyré, Schmitzer and Vialard (2018), "Scaling algorithms for unbalanced optimal transport problems".
    Séjourné, Vialard and Peyré (2022), "Faster unbalanced optimal transport: translation invariant Sinkhorn and 1-D
    Frank-Wolfe".
    """
    if math.isinf(check_rho(rho, "rho")):
        return sinkhorn(affinity, epsilon, max_iter, tolerance, X=X, Y=Y, marginals=marginals, memory=memory)
    check_options(max_iter, tolerance, memory)
    A, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(A, epsilon, "epsilon")
    r, c = check_marginals(marginals, A)
    solved, sums = relax(A, float(epsilon), float(rho), r, c, max_iter, Goal(tolerance), memory)
    return SinkhornResult(
        A.vector(solved.u),
        A.vector(solved.v),
        float(epsilon),
        "unit",
        solved.marginal_error,
        solved.error,
        solved.n_iter,
        solved.error <= tolerance,
        as_array(sums[0], A),
        as_array(sums[1], A),
        A,
        rho=float(rho),
        log_mass=solved.log_mass,
    )


def check_rho(rho: float, name: str) -> float:
    """Return a strength of the marginal constraints, positive or infinite."""
    return rho if isinstance(rho, float) and rho == math.inf else check_positive(rho, name)


def relax(
    affinity: Affinity,
    epsilon: float,
    rho: float,
    r: np.ndarray,
    c: np.ndarray,
    max_iter: int,
    goal: Goal,
    memory: int,
) -> tuple[Potentials[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return potentials and marginals of the optimal plan divided by its mass, after accelerated iterations from
    v = log c.

    One iteration is u ← log r − λ log Σ_j exp(A_ij/ε + v_j), λ = ρ/(ρ + ε), then the same for columns, written as in
    ``iterate`` with scalings a, b of a stored kernel K = exp(U_i + A_ij/ε + V_j). Since λ damps the whole potential,
    log a = log r − λ log(K b) − (1 − λ) U − (1 + λ) h; the scalar h keeps the mass of K near 1, and u = U + log a + h.
    The shift (u + t, v − t), on which the plan does not depend, would converge only at the rate λ², and is set in
    closed form after every iteration (Séjourné, Vialard and Peyré 2022). A row without a partner may correctly have a
    sum far below its marginal, so no entries are dropped.
    """
    with strip_pool_for(affinity, memory) as pool:
        return _relax(Kernel(affinity, epsilon, memory, pool), epsilon / rho, r, c, max_iter, goal)


def _relax(
    kernel: Kernel, ratio: float, r: np.ndarray, c: np.ndarray, max_iter: int, goal: Goal
) -> tuple[Potentials[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Run the iteration of ``relax``, with ``ratio`` = ε/ρ."""
    lam, damp = 1 / (1 + ratio), ratio / (1 + ratio)  # damp = 1 − λ, without cancellation
    log_r, log_c = np.log(r), np.log(c)
    sample = Sample(kernel.affinity, kernel.epsilon, r)
    progress = Progress(c, float(np.finfo(kernel.real).eps), goal, sample, lam)
    h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, log_c)
    log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
    n_iter = 1
    while n_iter < max_iter:
        b = np.exp(log_b)
        narrow = b.astype(kernel.real)
        row_terms, new_log_a = log_r - damp * kernel.u - (1 + lam) * h, np.zeros(len(r))

        def scale(
            part: slice,
            K: Strip,
            b: np.ndarray = narrow,
            row_terms: np.ndarray = row_terms,
            new_log_a: np.ndarray = new_log_a,
        ) -> np.ndarray:
            new_log_a[part] = row_terms[part] - lam * np.log(K.times(b))
            return K.transposed_times(np.exp(new_log_a[part]).astype(b.dtype))

        sums = functools.reduce(operator.iadd, kernel.strips(scale), np.zeros(len(c)))
        new_log_b = log_c - damp * kernel.v - (1 + lam) * h - lam * np.log(sums)
        grown = float(np.abs(new_log_a).max()) + max(float(np.abs(side).max()) for side in (log_b, new_log_b))
        n_iter += 1
        # The potentials may change by thousands in an early iteration: repeat this one in the log domain, like the
        # first.
        if not grown <= LEAP:
            h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, kernel.v + log_b + h)
            log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
            progress.restart()
            continue
        t = _shift(ratio, kernel.u + new_log_a - log_r + h, kernel.v + new_log_b - log_c + h, log_r, log_c)
        # An update changes a potential by λ times the logarithmic error of its sum.
        have = b * sums
        plain = new_log_b - log_b
        wanted = have * np.exp(np.clip(plain / lam, -2 * GROWTH, 2 * GROWTH))
        residual = (wanted - have) / max(wanted.sum(), have.sum())
        change = progress.change(kernel.v + log_b + h, plain - t, kernel.u + new_log_a + (t + h), residual)
        log_a = new_log_a
        if change is None:
            break
        kernel.u, kernel.v = kernel.u + t, kernel.v - t  # the kernel depends on u + v only, so its entries stay valid
        log_b = log_b + change + t
        if n_iter < max_iter and grown > GROWTH:
            half = 0.5 * math.log(float(np.exp(log_b) @ sums))
            h += half
            kernel.rebase(kernel.u + (log_a - half), kernel.v + (log_b - half))
            log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
    best = progress.result(n_iter, kernel.u + log_a + h, kernel.v + log_b + h)
    return _result(kernel, best, h, ratio, log_r, log_c)


def _result(
    kernel: Kernel, best: Potentials[np.ndarray], h: float, ratio: float, log_r: np.ndarray, log_c: np.ndarray
) -> tuple[Potentials[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Normalize the plan, and measure its distance from the optimality conditions; ``best`` has potentials with h."""
    u, v = best.u - h, best.v - h
    rows, columns = kernel_marginals(kernel, u, v)
    log_mass = math.log(rows.sum())
    h += 0.5 * log_mass
    u, v = u - 0.5 * log_mass, v - 0.5 * log_mass
    rows, columns = kernel_marginals(kernel, u, v)
    error = 0.0
    for potential, log_weight, sums in ((u, log_r, rows), (v, log_c, columns)):
        log_implied = log_weight - ratio * (potential + h - log_weight) - 2 * h
        # Far from convergence the exponent may be arbitrarily large: clip it to avoid overflow.
        error += float(np.abs(sums - np.exp(np.clip(log_implied, -700.0, 700.0))).sum())
    return replace(best, u=u, v=v, marginal_error=error, log_mass=2 * h), (rows, columns)


def _log_domain_iteration(
    kernel: Kernel, lam: float, ratio: float, log_r: np.ndarray, log_c: np.ndarray, start: np.ndarray
) -> float:
    """Run one log-domain iteration from the column potentials ``start``, rebase to mass 1, and return h."""
    u, largest, log_sums = log_domain_pass(
        kernel, start, lambda part, largest, log_sums: log_r[part] - lam * (largest + log_sums)
    )
    log_column_sums = largest + log_sums - start  # log of the sums of exp(u + A/ε) over rows
    v = log_c - lam * log_column_sums
    half = 0.5 * _log_sum(v + log_column_sums)
    t = _shift(ratio, u - log_r, v - log_c, log_r, log_c)
    kernel.rebase(u + (t - half), v - (t + half))
    return half


def _shift(ratio: float, f: np.ndarray, g: np.ndarray, log_r: np.ndarray, log_c: np.ndarray) -> float:
    """Return the t that maximizes the dual value of (f + t, g − t); f and g are potentials divided by ε."""
    return (_log_sum(log_r - ratio * f) - _log_sum(log_c - ratio * g)) / (2 * ratio)


def _log_sum(L: np.ndarray) -> float:
    """Return log Σ exp(L)."""
    return float(np.logaddexp.reduce(L))
