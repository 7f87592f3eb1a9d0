"""The unbalanced Sinkhorn iteration: marginals are relaxed by Kullback-Leibler divergences of strength ρ (Chizat et al. 2018).

With P = exp(u_i + A_ij/ε + v_j) and λ = ρ/(ρ + ε), one iteration is u ← log r − λ log Σ_j exp(A_ij/ε + v_j), then the same for columns. As in
``_scaling`` it is written with scalings a, b of a stored kernel K = exp(U_i + A_ij/ε + V_j). But since λ < 1 damps the whole potential and
not only the scaling, the update contains the kernel's potential: log a = log r − λ log(K b) − (1 − λ) U − (1 + λ) h. The scalar h keeps the
mass of K near 1, so that neither a large offset of the affinities nor a small plan leaves the range of float32: u = U + log a + h.

Two things differ from the balanced iteration. First, (u + t, v − t) gives the same plan but not the same dual value, and the plain iteration
converges to the optimal t only at the rate λ²; that t is known in closed form, and is applied after every iteration (Séjourné, Vialard and Peyré
2022). Second, a row without a partner may correctly have a sum far below its marginal, so the rule for dropping entries in ``_kernel`` does not apply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from congruence._utils.typing import Array, ArrayNamespace
from congruence.transport._kernel import Affinity, Kernel, Strip, strip_pool_for
from congruence.transport._scaling import GROWTH, SETTLED, Potentials, kernel_marginals, log_domain_pass

#: Largest |log a| + |log b| after an iteration. Beyond it, entries of K that were raised to the floor (see GROWTH) would matter, and exp
#: would overflow.
LEAP = 2 * GROWTH


@dataclass(frozen=True)
class Relaxed(Potentials):
    """Result of the unbalanced iteration: exp(u_i + A_ij/ε + v_j) is the optimal plan divided by its mass.

    Attributes not listed here are those of :class:`Potentials`.

    Attributes
    ----------
    error : float
        L1 distance of the row sums from those that the potentials imply, r·exp(−ε(u − log r)/ρ) for the unnormalized plan, plus
        the same for columns; relative to the mass.
    log_mass : float
        Logarithm of the mass of the unnormalized plan.
    rows, columns : array of float64, shapes (n,) and (m,)
        Marginals of the normalized plan.
    """

    log_mass: float
    rows: Array
    columns: Array


def relax(
    affinity: Affinity, epsilon: float, rho: float, r: Array, c: Array, max_iter: int, tol: float | None, memory: int
) -> Relaxed:
    """Return the potentials after unbalanced Sinkhorn iterations from v = log c, rows first.

    Parameters
    ----------
    affinity : Dense or Products
    epsilon, rho : float
        Entropic regularization ε and strength ρ of the marginal penalty, both finite.
    r, c : array, shapes (n,) and (m,)
        Marginals that sum to 1.
    max_iter : int
        Maximum number of iterations.
    tol : float, optional
        Stop once the L1 distance of the row sums from those that the potentials imply, relative to the mass, is at most this. Values below the
        rounding error, and None, count as the rounding error.
    memory : int
        Maximum bytes of the kernel to keep in memory.

    Returns
    -------
    Relaxed
    """
    with strip_pool_for(affinity, memory) as pool:
        return _relax(Kernel(affinity, epsilon, memory, pool), epsilon / rho, r, c, max_iter, tol)


def _relax(kernel: Kernel, ratio: float, r: Array, c: Array, max_iter: int, tol: float | None) -> Relaxed:
    """Run the iteration of :func:`relax`, with ``ratio`` = ε/ρ."""
    xp = kernel.xp
    lam, damp = 1 / (1 + ratio), ratio / (1 + ratio)  # damp = 1 − λ, without cancellation
    log_r, log_c = xp.log(r), xp.log(c)
    h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, log_c)
    log_a, log_b = kernel.zeros(len(r)), kernel.zeros(len(c))
    settled = max(tol or 0.0, SETTLED * float(xp.finfo(kernel.affinity.dtype).eps))
    n_iter = 1
    while n_iter < max_iter:
        a, b, sums = xp.exp(log_a), xp.exp(log_b), kernel.zeros(len(c))
        change = mass = 0.0
        row_terms = log_r - damp * kernel.u - (1 + lam) * h
        new_log_a = kernel.zeros(len(r))

        def scale(
            part: slice,
            K: Strip,
            a: Array = a,
            b: Array = b,
            row_terms: Array = row_terms,
            new_log_a: Array = new_log_a,
        ) -> tuple[Array, Array, Array]:
            row = K.times(b)
            new_log_a[part] = row_terms[part] - lam * xp.log(row)
            new_a = xp.exp(new_log_a[part])
            return xp.sum(xp.abs(a[part] - new_a) * row), xp.sum(new_a * row), K.transposed_times(new_a)

        for strip_change, strip_mass, columns in kernel.strips(scale):
            change, mass, sums = change + float(strip_change), mass + float(strip_mass), sums + columns
        new_log_b = log_c - damp * kernel.v - (1 + lam) * h - lam * xp.log(sums)
        grown = float(xp.max(xp.abs(new_log_a)) + xp.max(xp.abs(new_log_b)))
        n_iter += 1
        # The potentials may change by thousands in an early iteration: repeat this one in the log domain, like the first.
        if not grown <= LEAP:
            h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, kernel.v + log_b + h)
            log_a, log_b = kernel.zeros(len(r)), kernel.zeros(len(c))
            continue
        log_a, log_b = new_log_a, new_log_b
        t = _shift(xp, ratio, kernel.u + log_a - log_r + h, kernel.v + log_b - log_c + h, log_r, log_c)
        kernel.u, kernel.v = kernel.u + t, kernel.v - t  # the kernel depends on u + v only, so its entries stay valid
        # An update changes a potential by λ times the logarithmic error of its sum.
        if change <= lam * settled * mass:
            break
        if n_iter < max_iter and grown > GROWTH:
            half = 0.5 * math.log(float(xp.sum(xp.exp(log_b) * sums)))
            h += half
            kernel.rebase(kernel.u + (log_a - half), kernel.v + (log_b - half))
            log_a, log_b = kernel.zeros(len(r)), kernel.zeros(len(c))
    return _result(kernel, kernel.u + log_a, kernel.v + log_b, h, ratio, log_r, log_c, n_iter)


def _result(
    kernel: Kernel, u: Array, v: Array, h: float, ratio: float, log_r: Array, log_c: Array, n_iter: int
) -> Relaxed:
    """Normalize the plan, and measure its distance from the optimality conditions."""
    xp = kernel.xp
    rows, columns = kernel_marginals(kernel, u, v)
    log_mass = math.log(float(xp.sum(rows)))
    h += 0.5 * log_mass
    u, v = u - 0.5 * log_mass, v - 0.5 * log_mass
    rows, columns = kernel_marginals(kernel, u, v)
    error = 0.0
    for potential, log_weight, sums in ((u, log_r, rows), (v, log_c, columns)):
        log_weight = xp.astype(log_weight, xp.float64)
        log_implied = log_weight - ratio * (xp.astype(potential, xp.float64) + h - log_weight) - 2 * h
        # Far from convergence the exponent may be arbitrarily large: clip it to avoid overflow.
        error += float(xp.sum(xp.abs(sums - xp.exp(xp.clip(log_implied, -700.0, 700.0)))))
    return Relaxed(u, v, n_iter, error, 2 * h, rows, columns)


def _log_domain_iteration(kernel: Kernel, lam: float, ratio: float, log_r: Array, log_c: Array, start: Array) -> float:
    """Run one log-domain iteration from the column potentials ``start``, rebase the kernel to mass 1, and return the new h."""
    xp = kernel.xp
    u, largest, log_sums = log_domain_pass(
        kernel, start, lambda part, largest, log_sums: log_r[part] - lam * (largest + log_sums)
    )
    log_column_sums = largest + log_sums - start  # log of the sums of exp(u + A/ε) over rows
    v = log_c - lam * log_column_sums
    half = 0.5 * _log_sum(xp, v + log_column_sums)
    t = _shift(xp, ratio, u - log_r, v - log_c, log_r, log_c)
    kernel.rebase(u + (t - half), v - (t + half))
    return half


def _shift(xp: ArrayNamespace, ratio: float, f: Array, g: Array, log_r: Array, log_c: Array) -> float:
    """Return the t that maximizes the dual value of (f + t, g − t); f and g are potentials divided by ε."""
    return (_log_sum(xp, log_r - ratio * f) - _log_sum(xp, log_c - ratio * g)) / (2 * ratio)


def _log_sum(xp: ArrayNamespace, L: Array) -> float:
    """Return log Σ exp(L), in float64."""
    wide = xp.astype(L, xp.float64)
    largest = float(xp.max(wide))
    return largest + math.log(float(xp.sum(xp.exp(wide - largest))))
