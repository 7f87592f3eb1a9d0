"""Problems with known answers, for tests, docs and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RigidProblem:
    """Paired embeddings that differ by a known rotation, known means and noise.

    Attributes
    ----------
    X : ndarray, shape (n, d_source)
        Source rows.
    Y : ndarray, shape (n, d_target)
        Target rows, ``(X - source_mean) @ rotation + target_mean`` plus noise.
    rotation : ndarray, shape (d_source, d_target)
        Acts on rows; its rows (d_source ≤ d_target) or columns are orthonormal.
    source_mean, target_mean : ndarray
        The centres about which the rotation turns.
    """

    X: np.ndarray
    Y: np.ndarray
    rotation: np.ndarray
    source_mean: np.ndarray
    target_mean: np.ndarray


def random_rotation(d_source: int, d_target: int | None = None, seed: int | None = None) -> np.ndarray:
    """Draw a semi-orthogonal matrix uniformly (Haar measure).

    Parameters
    ----------
    d_source : int
    d_target : int, optional
        Defaults to ``d_source``.
    seed : int, optional

    Returns
    -------
    ndarray, shape (d_source, d_target)
        Orthonormal rows when d_source ≤ d_target, else orthonormal columns.

    References
    ----------
    Mezzadri (2007), "How to generate random matrices from the classical compact groups", §5.
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(seed)
    tall = rng.standard_normal((max(d_source, d_target), min(d_source, d_target)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))  # without the signs the draw is not uniform
    return q if d_source >= d_target else q.T


def rigid_problem(
    n: int,
    d_source: int,
    d_target: int | None = None,
    *,
    noise: float = 0.0,
    decay: float = 0.0,
    rank: int | None = None,
    offset: float = 1.0,
    seed: int | None = None,
) -> RigidProblem:
    """Make paired rows related by a rotation, two means and Gaussian noise.

    Parameters
    ----------
    n, d_source : int
    d_target : int, optional
        Defaults to ``d_source``.
    noise : float, default=0
        Standard deviation of the noise on each target coordinate.
    decay : float, default=0
        Column k of the source has standard deviation (k + 1)^-decay, so the spectrum falls as a power law.
    rank : int, optional
        Number of source directions with any variance; all by default.
    offset : float, default=1
        Scale of the two means.
    seed : int, optional

    Returns
    -------
    RigidProblem
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(seed)
    rotation = random_rotation(d_source, d_target, seed=int(rng.integers(2**31)))
    basis = random_rotation(d_source, seed=int(rng.integers(2**31)))
    scale = np.arange(1, d_source + 1, dtype=float) ** -decay
    if rank is not None:
        scale[rank:] = 0
    source_mean = offset * rng.standard_normal(d_source)
    target_mean = offset * rng.standard_normal(d_target)
    centred = (rng.standard_normal((n, d_source)) * scale) @ basis
    Y = centred @ rotation + target_mean
    if noise:
        Y = Y + noise * rng.standard_normal(Y.shape)
    return RigidProblem(centred + source_mean, Y, rotation, source_mean, target_mean)


@dataclass(frozen=True)
class DualProblem:
    """Images and texts in two dual encoders whose kernels agree, but for what was asked to disturb them.

    Attributes
    ----------
    F, F_target : ndarray, shape (n, d_source) and (n, d_target)
        Images, unit rows.
    G, G_target : ndarray, shape (m, d_source) and (m, d_target)
        Texts, unit rows.
    rotation : ndarray, shape (d_source, d_target)
        Acts on rows; ``F_target = F @ rotation`` without noise and shear.
    """

    F: np.ndarray
    G: np.ndarray
    F_target: np.ndarray
    G_target: np.ndarray
    rotation: np.ndarray


def dual_problem(
    n: int,
    m: int,
    d_source: int,
    d_target: int | None = None,
    *,
    noise: float = 0.0,
    shear: float = 0.0,
    rank: int | None = None,
    seed: int | None = None,
) -> DualProblem:
    """Make two dual encoders on the sphere, related by one rotation, then disturbed.

    Parameters
    ----------
    n, m : int
        Number of images and of texts.
    d_source : int
    d_target : int, optional
        At least ``d_source``, which is the default.
    noise : float, default=0
        Length of the random vector added to each target row before it is normalised again.
    shear : float, default=0
        Spectral norm of a random matrix S; target rows pass through I + S before they are normalised again.
    rank : int, optional
        Dimension of the span of the images; all by default. The texts of both models then agree within that span only: the
        rest of each is drawn anew in the target, and the kernels do not see it.
    seed : int, optional

    Returns
    -------
    DualProblem
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(seed)

    def unit(Z: np.ndarray) -> np.ndarray:
        return Z / np.linalg.norm(Z, axis=1, keepdims=True)

    rotation = random_rotation(d_source, d_target, seed=int(rng.integers(2**31)))
    span = random_rotation(rank or d_source, d_source, seed=int(rng.integers(2**31)))
    F = unit(rng.standard_normal((n, len(span))) @ span)
    G = unit(rng.standard_normal((m, d_source)))
    F_target, G_target = F @ rotation, G @ rotation
    if len(span) < d_source:
        seen = span @ rotation
        within = G @ span.T
        other = rng.standard_normal((m, d_target))
        other = unit(other - other @ seen.T @ seen)
        G_target = within @ seen + np.sqrt(np.maximum(1 - (within**2).sum(axis=1, keepdims=True), 0)) * other
    if shear:
        S = rng.standard_normal((d_target, d_target))
        S *= shear / np.linalg.norm(S, 2)
        F_target, G_target = unit(F_target + F_target @ S), unit(G_target + G_target @ S)
    if noise:
        F_target, G_target = (unit(Z + noise * unit(rng.standard_normal(Z.shape))) for Z in (F_target, G_target))
    return DualProblem(F, G, F_target, G_target, rotation)
