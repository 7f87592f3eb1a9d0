"""Gromov–Wasserstein: transport between rows of two spaces, using only the similarities within each space."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence._utils.validation import check_positive
from congruence.errors import ShapeError
from congruence.transport.entropic import sinkhorn


@dataclass(frozen=True)
class GromovResult:
    """A coupling ``plan`` (n, m); ``converged``: the last linearization moved at most ``tol`` of the mass."""

    plan: np.ndarray = field(repr=False)
    objective: float
    n_iter: int
    converged: bool


def gromov_wasserstein(
    X: np.ndarray,
    Y: np.ndarray,
    epsilon: float,
    *,
    start: np.ndarray | None = None,
    relative: bool = False,
    max_iter: int = 50,
    sinkhorn_iter: int = 100,
    tol: float = 1e-6,
) -> GromovResult:
    """Couple rows so that inner products match within X and Y: entropic Gromov–Wasserstein with square loss.

    ``epsilon`` weighs the entropy in units of the loss Σ (⟨x_i, x_k⟩ − ⟨y_j, y_l⟩)² P_ij P_kl or, with ``relative``, of
    the standard deviation of each linearized problem's affinities. The result is a local optimum, which depends on
    ``start`` (n, m), by default the independent coupling: a stationary point if rows are centered.

    Under fixed marginals the loss is a constant minus 2 ‖Xᵀ P Y‖²_F, whose linearization has the affinities 4 X (Xᵀ P
    Y) Yᵀ: O(n m d) operations and no n × n or m × m matrix. Each linearized problem is solved by ``sinkhorn``, a
    projected gradient with steps of 1/ε.

    Source: Peyré, Cuturi and Solomon (2016), "Gromov–Wasserstein averaging of kernel and distance matrices", prop. 2.
    Scetbon, Peyré and Cuturi (2022), "Linear-time Gromov Wasserstein distances using low rank couplings and costs".
    """
    check_positive(epsilon, "epsilon")
    check_positive(max_iter, "max_iter", integer=True)
    n, m = len(X), len(Y)
    plan = np.full((n, m), 1 / (n * m), X.dtype) if start is None else start
    if plan.shape != (n, m):
        raise ShapeError(
            f"Got a start of shape {plan.shape} for {n} and {m} rows.", f"Pass `start=…` of shape ({n}, {m})."
        )
    moved, n_iter, cross = np.inf, 0, X.T @ plan @ Y
    while n_iter < max_iter and moved > tol:
        n_iter += 1
        affinity = 4 * (X @ cross) @ Y.T
        scale = (float(affinity.std()) if relative else 0) or 1.0
        new = np.asarray(sinkhorn(affinity, epsilon * scale, sinkhorn_iter).plan())
        moved = float(np.abs(new - plan).sum()) / 2
        plan, cross = new, X.T @ new @ Y
    return GromovResult(plan, float(np.square(cross).sum()), n_iter, moved <= tol)


def local_distributions(X: np.ndarray, n_quantiles: int = 256) -> np.ndarray:
    """Return, for each row of X (n, d), ascending quantiles of its inner products with all rows: (n, n_quantiles).

    The transport cost between them (Mémoli 2011, the third lower bound) gives an initial plan of the full problem.
    """
    check_positive(n_quantiles, "n_quantiles", integer=True)
    return np.asarray(np.quantile(X @ X.T, (np.arange(n_quantiles) + 0.5) / n_quantiles, axis=1).T)
