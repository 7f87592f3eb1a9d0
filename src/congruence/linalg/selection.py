"""Selection of representative rows: ``n`` ≤ m row numbers of centered rows ``X`` (m, d), in the order of selection, in
time O(m d n) and memory O(m d), except for facility location, which compares all pairs of rows once, in blocks.
"""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import blocks

#: Number of rows whose gain facility location recomputes at a time.
_LAZY = 64


def greedy_variance(X: np.ndarray, n: int, ridge: float) -> np.ndarray:
    """Select greedily the row that most reduces the error of ridge regression on the selected rows over all rows.

    With M = (λI + Σ_selected x xᵀ)⁻¹, ``ridge`` λ in mean squared norms, the error is proportional to tr(M C), C = XᵀX
    / m, and row x lowers it by xᵀMCMx / (1 + xᵀMx); both forms have rank-one updates. Source: Yu, Bi and Tresp (2006);
    Farahat et al. (2011) for λ → 0.
    """
    C = X.T @ X / len(X)
    scale = ridge * float(np.trace(C))
    M = np.eye(X.shape[1]) / scale
    xMx = np.einsum("ij,ij->i", X, X) / scale
    xMCMx = np.einsum("ij,ij->i", X @ C, X) / scale**2
    order = np.empty(n, np.intp)
    selected = np.zeros(len(X), bool)
    for k in range(n):
        order[k] = pick = int(np.argmax(np.where(selected, -1.0, xMCMx / (1 + xMx))))
        selected[pick] = True
        y = M @ X[pick]
        y /= np.sqrt(1 + X[pick] @ y)
        z = C @ y
        Xy, XMz = (X @ np.column_stack([y, M @ z])).T
        xMCMx += Xy * (Xy * (y @ z) - 2 * XMz)
        xMx -= Xy**2
        M -= np.outer(y, y)
    return order


def greedy_volume(X: np.ndarray, n: int, ridge: float) -> np.ndarray:
    """Select greedily the row farthest from the span of the selected ones (Çivril and Magdon-Ismail 2009)."""
    squared = np.einsum("ij,ij->i", X, X)
    scale = ridge * float(squared.mean())
    M = np.eye(X.shape[1]) / scale
    xMx = squared / scale  # with M = (λI + Σ_selected x xᵀ)⁻¹, as in greedy_variance
    order = np.empty(n, np.intp)
    for k in range(n):
        order[k] = pick = int(np.argmax(xMx))
        y = M @ X[pick]
        y /= np.sqrt(1 + X[pick] @ y)
        xMx -= (X @ y) ** 2
        xMx[order[: k + 1]] = -1
        M -= np.outer(y, y)
    return order


def facility_location(X: np.ndarray, n: int) -> np.ndarray:
    """Select greedily by distances to the nearest selected row or the mean; stale gains are bounds (Minoux 1978)."""
    squared = np.einsum("ij,ij->i", X, X)
    nearest = squared.copy()

    def gains(rows: np.ndarray) -> np.ndarray:
        distance = squared + squared[rows, None] - 2 * (X[rows] @ X.T)
        return np.asarray(np.maximum(nearest - distance, 0).sum(axis=1))

    row_numbers = np.arange(len(X))
    bound = np.concatenate([gains(row_numbers[part]) for part in blocks(len(X), 24 * len(X))])
    order = np.empty(n, np.intp)
    for k in range(n):
        is_current = np.zeros(len(X), bool)
        while not is_current[pick := int(np.argmax(bound))]:
            stale = np.where(is_current, -np.inf, bound)
            width = min(_LAZY, len(X))
            top = np.argpartition(-stale, width - 1)[:width]
            top = top[~is_current[top]]
            bound[top], is_current[top] = gains(top), True
            bound[order[:k]] = -1  # never select a row twice, even if no row has a positive gain
        order[k] = pick
        np.minimum(nearest, squared + squared[pick] - 2 * (X @ X[pick]), out=nearest)
        bound[pick] = -1
    return order


def kmeans_plus_plus(X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw rows by their squared distance from those drawn already (Arthur and Vassilvitskii 2007)."""
    squared = np.einsum("ij,ij->i", X, X)
    nearest = np.full(len(X), np.inf)
    order = np.empty(n, np.intp)
    pick = int(rng.integers(len(X)))
    for k in range(n):
        order[k] = pick
        # Despite rounding, rows not drawn must keep a positive distance, and drawn rows must have distance 0.
        distance = np.maximum(squared + squared[pick] - 2 * (X @ X[pick]), np.finfo(np.float64).tiny)
        np.minimum(nearest, distance, out=nearest)
        nearest[order[: k + 1]] = 0
        if k + 1 < n:
            ends = np.cumsum(nearest)
            pick = int(np.searchsorted(ends, (1 - rng.random()) * ends[-1]))
    return order


def leverage(X: np.ndarray, n: int, rng: np.random.Generator, ridge: float) -> np.ndarray:
    """Draw distinct rows by their ridge leverage score (Alaoui and Mahoney 2015)."""
    C = X.T @ X
    C.flat[:: len(C) + 1] += ridge * np.trace(C) / len(X)
    scores = np.einsum("ij,ij->i", np.linalg.solve(C, X.T).T, X)
    # With Gumbel noise on the log scores, the n largest are a weighted draw without replacement (Efraimidis and
    # Spirakis 2006).
    keys = np.log(np.maximum(scores, np.finfo(np.float64).tiny)) + rng.gumbel(size=len(X))
    return np.argsort(-keys, kind="stable")[:n]


def covered_share(X: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the share of the rows' variance in the span of the first k rows of an order, for each k."""
    C = X.T @ X
    total = max(float(np.trace(C)), np.finfo(np.float64).tiny)
    share, covered = np.empty(len(order)), 0.0
    basis = np.empty((min(len(order), X.shape[1]), X.shape[1]))
    r = 0
    for k, row in enumerate(X[order]):
        if r < len(basis):
            residual = row
            for _ in range(2):  # the rounding error of one projection is proportional to the component it removes
                residual = residual - (basis[:r] @ residual) @ basis[:r]
            norm = float(np.linalg.norm(residual))
            if norm > 1e-9 * float(np.linalg.norm(row)):
                basis[r] = residual / norm
                covered += float(basis[r] @ C @ basis[r])
                r += 1
        share[k] = covered
    return np.minimum(share / total, 1.0)
