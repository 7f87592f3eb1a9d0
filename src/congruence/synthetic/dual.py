"""Two dual encoders whose kernels agree up to chosen disturbances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_seed
from congruence.synthetic.rigid import random_rotation

__all__ = ["DualProblem", "dual_problem"]


@dataclass(frozen=True)
class DualProblem:
    """Images and texts in two dual encoders whose kernels agree up to the requested disturbances.

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
    random_state: int | None = None,
) -> DualProblem:
    """Generate two dual encoders on the sphere, related by one rotation and then disturbed.

    Parameters
    ----------
    n, m : int
        Number of images and of texts.
    d_source : int
    d_target : int, optional
        At least ``d_source``, which is the default.
    noise : float, default=0
        Length of the random vector added to each target row before it is normalized again.
    shear : float, default=0
        Spectral norm of a random matrix S; target rows pass through I + S before they are normalized again.
    rank : int, optional
        Dimension of the span of the images; all by default. The texts of both models then agree within that span only: the component of each
        text outside of it is drawn independently in the target, and does not affect the kernels.
    random_state : int, optional
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(None if random_state is None else check_seed(random_state))

    rotation = random_rotation(d_source, d_target, random_state=int(rng.integers(2**31)))
    span = random_rotation(rank or d_source, d_source, random_state=int(rng.integers(2**31)))
    F = normalize_rows(rng.standard_normal((n, len(span))) @ span)
    G = normalize_rows(rng.standard_normal((m, d_source)))
    F_target, G_target = F @ rotation, G @ rotation
    if len(span) < d_source:
        target_span = span @ rotation
        within = G @ span.T
        outside = rng.standard_normal((m, d_target))
        outside = normalize_rows(outside - outside @ target_span.T @ target_span)
        G_target = within @ target_span + np.sqrt(np.maximum(1 - (within**2).sum(axis=1, keepdims=True), 0)) * outside
    if shear:
        S = rng.standard_normal((d_target, d_target))
        S *= shear / np.linalg.norm(S, 2)
        F_target, G_target = normalize_rows(F_target + F_target @ S), normalize_rows(G_target + G_target @ S)
    if noise:
        F_target, G_target = (
            normalize_rows(Z + noise * normalize_rows(rng.standard_normal(Z.shape))) for Z in (F_target, G_target)
        )
    return DualProblem(F, G, F_target, G_target, rotation)
