"""The Sinkhorn iteration as a scaling of a kernel, with the scalings absorbed into the potentials before they can overflow.

With P = exp(u_i + A_ij/ε + v_j), one iteration sets u so that the rows of P have their marginals, then v so that the columns do.
Written with scalings a, b of a kernel K with fixed base potentials it is a ← r/(K b), b ← c/(Kᵀ a), without exponentials. The row scalings of a
strip of K need only that strip, so both half steps take a single pass over K.

Only the first iteration can meet rows or columns of very different magnitudes, so it is done in the log domain. After it K = P has
column marginals c. From then on a half step divides by sums between r_i·min(c) and 1, or c_j·min(r) and 1. So no sum vanishes, and the
logarithms of the scalings grow by at most log(1/min) per iteration: they can always be absorbed into the potentials in time, as in
Schmitzer (2019), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from congruence._utils.typing import Array
from congruence.transport._kernel import Affinity, Kernel, Scratch, Strip, exponential, strip_pool_for

#: Largest |log a| + |log b| before the scalings are absorbed. Entries of K below e^-65 are raised to e^-65 (6e-29): times both scalings they
#: are below 3e-20, too small to affect any marginal.
GROWTH = 20.0
#: L1 error of the marginals, in machine epsilons, below which further iterations change only rounding errors.
SETTLED = 4


@dataclass(frozen=True)
class Potentials:
    """Result of the iteration: the potentials of the plan P = exp(u_i + A_ij/ε + v_j), of total mass 1.

    Attributes
    ----------
    u : array, shape (n,)
    v : array, shape (m,)
    n_iter : int
        Number of iterations done.
    error : float
        L1 distance of the row sums from their marginals at the beginning of the last iteration; at its end it is no larger, and
        the column sums are exact. After a single iteration, the distance at its end.
    """

    u: Array
    v: Array
    n_iter: int
    error: float


def iterate(
    affinity: Affinity, epsilon: float, r: Array, c: Array, max_iter: int, tol: float | None, memory: int
) -> Potentials:
    """Return the potentials after Sinkhorn iterations from v = 0, rows first.

    Parameters
    ----------
    affinity : Dense or Products
    epsilon : float
        Entropic regularization ε.
    r, c : array, shapes (n,) and (m,)
        Marginals that sum to 1.
    max_iter : int
        Maximum number of iterations.
    tol : float, optional
        Stop after an iteration before which the L1 error of the row marginals was at most this; an iteration never increases it. Values below
        the rounding error, and None, count as the rounding error.
    memory : int
        Maximum bytes of the kernel to keep in memory.

    Returns
    -------
    Potentials
    """
    with strip_pool_for(affinity, memory) as pool:
        return _iterate(Kernel(affinity, epsilon, memory, pool), r, c, max_iter, tol)


def _iterate(kernel: Kernel, r: Array, c: Array, max_iter: int, tol: float | None) -> Potentials:
    xp, affinity = kernel.xp, kernel.affinity
    u, v = _first(kernel, r, c)
    if max_iter == 1:  # otherwise the next iteration would compute the error anyway
        return Potentials(u, v, 1, float(xp.sum(xp.abs(kernel_marginals(kernel, u, v)[0] - r))))
    kernel.rebase(u, v, (r, c))
    # Computing a kernel takes as long as reading it dozens of times: if the whole kernel fits in memory, try a sparse one only once.
    sparse_marginals = None if kernel.fits else (r, c)
    a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
    settled = max(tol or 0.0, SETTLED * float(xp.finfo(affinity.dtype).eps))
    n_iter, error = 1, math.inf
    while n_iter < max_iter:
        new_a, sums = kernel.zeros(len(u)), kernel.zeros(len(v))
        row_error: Array | float = 0.0

        def scale(part: slice, K: Strip, a: Array = a, b: Array = b, new_a: Array = new_a) -> tuple[Array, Array]:
            row = K.times(b)
            new_a[part] = r[part] / row
            return xp.sum(xp.abs(a[part] * row - r[part])), K.transposed_times(new_a[part])

        for strip_error, columns in kernel.strips(scale):
            row_error += strip_error
            sums += columns
        new_b = c / sums
        log_a, log_b = xp.log(new_a), xp.log(new_b)
        grown = float(xp.max(xp.abs(log_a)) + xp.max(xp.abs(log_b)))
        if kernel.reach is not None and not grown <= kernel.reach:
            # The dropped entries may matter now: restart from here; with a dense kernel if a single iteration already exceeded the limit.
            kernel.rebase(kernel.u + xp.log(a), kernel.v + xp.log(b), sparse_marginals if growth else None)
            a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
            continue
        a, b, growth = new_a, new_b, grown
        n_iter, error = n_iter + 1, float(row_error)
        if error <= settled:
            break
        if n_iter < max_iter and kernel.reach is None and growth > GROWTH:
            kernel.rebase(kernel.u + log_a, kernel.v + log_b, sparse_marginals)
            a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
    return Potentials(kernel.u + xp.log(a), kernel.v + xp.log(b), n_iter, error)


def _first(kernel: Kernel, r: Array, c: Array) -> tuple[Array, Array]:
    """Return u and v after the first iteration, in the log domain."""
    xp = kernel.xp
    u, largest, log_sums = log_domain_pass(
        kernel, kernel.zeros(len(c)), lambda part, largest, log_sums: xp.log(r[part]) - largest - log_sums
    )
    return u, xp.log(c) - largest - log_sums


def log_domain_pass(
    kernel: Kernel, v: Array, row_potentials: Callable[[slice, Array, Array], Array]
) -> tuple[Array, Array, Array]:
    """Compute row potentials from column potentials in the log domain, and the column sums that result, in one pass over the rows.

    Parameters
    ----------
    kernel : Kernel
    v : array, shape (m,)
        Column potentials.
    row_potentials : callable
        Returns u for a slice of rows, given for each row the largest exponent A_ij/ε + v_j, and log Σ_j exp of the exponents minus the largest.

    Returns
    -------
    u : array, shape (n,)
    largest, log_sums : array, shape (m,)
        For each column, the largest exponent u_i + A_ij/ε + v_j, and log Σ_i exp of the exponents minus the largest.
    """
    xp, (n, m) = kernel.xp, kernel.affinity.shape
    u = kernel.zeros(n)
    scratch = Scratch(kernel.affinity)

    def work(part: slice, L: Array) -> tuple[Array, Array]:
        row_largest = xp.max(L, axis=1)
        spare = scratch.rows(len(L))
        xp.subtract(L, row_largest[:, None], out=spare)
        u[part] = row_potentials(part, row_largest, xp.log(xp.sum(exponential(spare), axis=1)))
        L += u[part][:, None]
        strip_largest = xp.max(L, axis=0)
        L -= strip_largest
        return strip_largest, xp.sum(exponential(L), axis=0)

    largest, sums = kernel.zeros(m) - xp.inf, kernel.zeros(m)
    for strip_largest, strip_sums in kernel.exponents(work, kernel.zeros(n), v):
        new_largest = xp.maximum(largest, strip_largest)
        sums = sums * xp.exp(largest - new_largest) + strip_sums * xp.exp(strip_largest - new_largest)
        largest = new_largest
    return u, largest, xp.log(sums)


def marginals(affinity: Affinity, epsilon: float, u: Array, v: Array, memory: int) -> tuple[Array, Array]:
    """Return the row sums and the column sums of the plan, in float64."""
    with strip_pool_for(affinity, memory) as pool:
        return kernel_marginals(Kernel(affinity, epsilon, memory, pool), u, v)


def kernel_marginals(kernel: Kernel, u: Array, v: Array) -> tuple[Array, Array]:
    """Return the row sums and the column sums of exp(u_i + A_ij/ε + v_j), in float64."""
    xp = kernel.xp
    rows, columns = (xp.astype(kernel.zeros(size), xp.float64) for size in kernel.affinity.shape)

    def add_up(part: slice, L: Array) -> Array:
        P = exponential(L)
        rows[part] = xp.sum(P, axis=1)
        return xp.sum(P, axis=0)

    for sums in kernel.exponents(add_up, u, v):
        columns += sums
    return rows, columns
