"""Upper bounds on κ: exact in two dimensions, and two certified bounds in higher dimensions."""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import blocks
from congruence.theory.spanning import features

__all__ = ["combination_bound", "design_bound", "in_the_plane"]

#: Iterations of the weights of anchors; the bound decreases little after ten.
_ITERATIONS = 12


def in_the_plane(A: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return κ of anchors in two dimensions, a matrix that attains it and its direction.

    Write M = aI + b · (reflection at angle w/2). For an anchor u at angle θ, uᵀMu = a + b cos(2θ − w), and ‖M‖₂ = |a| + |b|. So
    {M : |uᵀMu| ≤ 1} is the polar of the convex hull of a polygon, the points at angle 2θ of the unit circle at height 1, and its mirror
    image through the origin. ‖M‖₂ is convex, hence largest at a vertex of the polar, i.e. at a facet of the hull. Each facet, apart from the
    polygons themselves, contains an edge of one polygon and the vertex of the other that is extreme in the direction w of the edge's normal:
    a + b cos(g/2) = 1 for an edge between neighbors at a gap g, and a + b cos δ = −1 for the anchor nearest to w + π, at angle δ from w.

    Parameters
    ----------
    A : ndarray of float64, shape (n, 2)
        Unit rows that span Sym(2).

    Returns
    -------
    float
    ndarray, shape (2, 2)
        M with |uᵀMu| ≤ 1 on every anchor and ‖M‖₂ = κ.
    ndarray, shape (2,)
        The unit v with |vᵀMv| = κ.
    """
    circle = 2 * np.pi
    t = np.sort(2 * np.arctan2(A[:, 1], A[:, 0]) % circle)
    half_gap = np.diff(t, append=t[0] + circle) / 2
    w = t + half_gap
    opposite = (w + np.pi) % circle
    after = np.searchsorted(t, opposite) % len(t)
    delta = np.max([np.abs((t[k] - w + np.pi) % circle - np.pi) for k in (after, after - 1)], axis=0)
    # cos(g/2) − cos δ as a product, which loses no digits if the two are close.
    b = 1 / (np.sin((delta + half_gap) / 2) * np.sin((delta - half_gap) / 2))
    a = 1 - b * np.cos(half_gap)
    k = int((np.abs(a) + b).argmax())
    M = a[k] * np.eye(2) + b[k] * np.array([[np.cos(w[k]), np.sin(w[k])], [np.sin(w[k]), -np.cos(w[k])]])
    angle = w[k] / 2 if a[k] >= 0 else (w[k] + np.pi) / 2
    return float(abs(a[k]) + b[k]), M, np.array([np.cos(angle), np.sin(angle)])


def combination_bound(A: np.ndarray, T: np.ndarray | None, s: np.ndarray, vt: np.ndarray) -> float:
    """Return an upper bound on κ: the ℓ₁ norm of the least-squares combination of anchors for a direction, maximized over directions.

    κ = max over unit v of min{‖c‖₁ : Σ cᵢ uᵢuᵢᵀ = vvᵀ}. The c of least squares is cᵢ = vᵀGᵢv with svec(Gᵢ) = (TᵀT)⁻¹ svec(uᵢuᵢᵀ), so κ ≤ max Σ |vᵀGᵢv| ≤ ‖Σ |Gᵢ|‖₂,
    with the absolute value |G| of a symmetric matrix.

    Parameters
    ----------
    A : ndarray of float64, shape (n, d)
    T : ndarray, shape (n, D), or None
        Features of A; computed block by block if None.
    s, vt : ndarray
        As returned by :func:`congruence.theory.spanning.decompose`.

    Returns
    -------
    float
    """
    n, d = A.shape
    i, j = np.triu_indices(d)
    inverse = (vt.T / s**2) @ vt
    total = np.zeros((d, d))
    for rows in blocks(n, 8 * (len(s) + 4 * d * d)):
        packed = (features(A[rows]) if T is None else T[rows]) @ inverse
        packed *= np.where(i == j, 1, np.sqrt(0.5))
        G = np.zeros((len(packed), d, d))
        G[:, i, j] = packed
        G[:, j, i] = packed
        values, V = np.linalg.eigh(G)
        total += np.einsum("kai,ki,kbi->ab", V, np.abs(values), V, optimize=True)
    return float(np.linalg.eigvalsh(total)[-1])


def design_bound(T: np.ndarray) -> float:
    """Return an upper bound on κ: the smallest 1/σ_min(√w T) over weights w that approach the D-optimal design.

    For weights w ≥ 0 of sum 1, ‖M‖₂ ≤ ‖M‖_F ≤ ‖√w T svec(M)‖₂/σ_min(√w T) ≤ max |uᵀMu|/σ_min(√w T). Equal weights give √n/σ_min(T). The multiplicative step
    wᵢ ← wᵢ · tᵢᵀ(TᵀWT)⁻¹tᵢ/D increases the determinant (Titterington, 1976); the bound holds at every step.

    Parameters
    ----------
    T : ndarray, shape (n, D)
        Features of the anchors, of full column rank.

    Returns
    -------
    float
    """
    n, D = T.shape
    w, bound = np.full(n, 1 / n), np.inf
    for _ in range(_ITERATIONS):
        values, V = np.linalg.eigh(T.T @ (w[:, None] * T))
        if values[0] <= 0:
            break
        bound = min(bound, float(values[0] ** -0.5))
        w = w * ((T @ (V / np.sqrt(values))) ** 2).sum(axis=1) / D
        w /= w.sum()
    return bound
