"""Generalized Procrustes analysis from cross-covariances: one rotation per model into a common frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congruence.linalg.procrustes import cross_svd


@dataclass(frozen=True)
class GeneralizedProcrustes:
    """Rotations (d_m, k) of several models into a common frame, with orthonormal rows. ``evidence`` Σ_j C_mj R_j is
    each model's cross-covariance with all others in the frame, and ``objective`` (sweeps + 1,) Σ_{m<j} tr(R_mᵀ C_mj
    R_j).
    """

    rotations: list[np.ndarray]
    evidence: list[np.ndarray]
    objective: np.ndarray
    converged: bool


def generalized_procrustes(
    cross: Mapping[tuple[int, int], np.ndarray],
    weight: Mapping[tuple[int, int], float],
    widths: Sequence[int],
    k: int,
    *,
    max_iter: int = 200,
    tol: float = 1e-8,
) -> GeneralizedProcrustes:
    """Maximize Σ_{m<j} tr(R_mᵀ C_mj R_j) over matrices R_m (d_m, k) with orthonormal rows, given cross-covariances
    C_mj. Given the others, the best R_m is the polar factor of Σ_j C_mj R_j, so no step decreases the objective: Gower
    (1975) and ten Berge (1977), with missing rows as in Commandeur (1991). It begins along a maximum spanning tree from
    the widest model; directions about which a parent has no information get axes that no model uses yet.
    """
    models = range(len(widths))
    partners = {m: [j for j in models if _key(m, j) in cross] for m in models}
    R = _initialize(cross, weight, widths, k, partners)

    def evidence(m: int) -> np.ndarray:
        total = np.zeros((widths[m], k))
        for j in partners[m]:
            total += (cross[m, j] if m < j else cross[j, m].T) @ R[j]
        return total

    def objective() -> float:
        return float(sum(np.vdot(R[m], C @ R[j]) for (m, j), C in cross.items()))

    history = [objective()]
    converged = False
    for _ in range(max_iter):
        for m in models:
            R[m] = _polar(evidence(m))
        history.append(objective())
        if history[-1] - history[-2] <= tol * abs(history[-1]):
            converged = True
            break
    return GeneralizedProcrustes(R, [evidence(m) for m in models], np.array(history), converged)


def _key(m: int, j: int) -> tuple[int, int]:
    return min(m, j), max(m, j)


def _polar(B: np.ndarray) -> np.ndarray:
    svd = cross_svd(B)
    return np.asarray(svd.U @ svd.Vt)


def _initialize(
    cross: Mapping[tuple[int, int], np.ndarray],
    weight: Mapping[tuple[int, int], float],
    widths: Sequence[int],
    k: int,
    partners: Mapping[int, Sequence[int]],
) -> list[np.ndarray]:
    """Return pairwise solutions along a maximum spanning tree (Prim); of equal weights the first models are chosen."""
    root = int(np.argmax(widths))
    R = {root: np.eye(widths[root], k)}
    used = widths[root]  # axes of the frame that some model uses: the first ones
    while len(R) < len(widths):
        edges = [(weight[_key(m, j)], -j, -m) for j in R for m in partners[j] if m not in R]
        if not edges:
            raise ValueError("some models are not connected to the others by a cross-covariance")
        _, minus_j, minus_m = max(edges)
        j, m = -minus_j, -minus_m
        C = cross[m, j] if m < j else cross[j, m].T
        svd = cross_svd(C @ R[j], scale=float(np.linalg.norm(C)))
        rows, uncovered = svd.Vt.copy(), widths[m] - svd.rank
        if uncovered <= k - used:
            rows[svd.rank :] = 0
            rows[svd.rank + np.arange(uncovered), used + np.arange(uncovered)] = 1
            used += uncovered
        R[m] = svd.U @ rows
    return [R[m] for m in range(len(widths))]
