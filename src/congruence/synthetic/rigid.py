"""Pairs that differ by a known rotation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.validation import check_seed

__all__ = ["RigidProblem", "random_rotation", "rigid_problem"]


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
    source_mean, target_mean : ndarray, shape (d_source,) and (d_target,)
        The centers about which the rotation turns.
    """

    X: np.ndarray
    Y: np.ndarray
    rotation: np.ndarray
    source_mean: np.ndarray
    target_mean: np.ndarray


def random_rotation(d_source: int, d_target: int | None = None, random_state: int | None = None) -> np.ndarray:
    """Draw a semi-orthogonal matrix uniformly (Haar measure).

    Parameters
    ----------
    d_source : int
    d_target : int, optional
        Defaults to ``d_source``.
    random_state : int, optional

    Returns
    -------
    ndarray, shape (d_source, d_target)
        Orthonormal rows when d_source ≤ d_target, else orthonormal columns.

    References
    ----------
    Mezzadri (2007), "How to generate random matrices from the classical compact groups", §5.
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(None if random_state is None else check_seed(random_state))
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
    random_state: int | None = None,
) -> RigidProblem:
    """Generate paired rows related by a rotation, two means and Gaussian noise.

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
    random_state : int, optional
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(None if random_state is None else check_seed(random_state))
    rotation = random_rotation(d_source, d_target, random_state=int(rng.integers(2**31)))
    basis = random_rotation(d_source, random_state=int(rng.integers(2**31)))
    scale = np.arange(1, d_source + 1, dtype=float) ** -decay
    if rank is not None:
        scale[rank:] = 0
    source_mean = offset * rng.standard_normal(d_source)
    target_mean = offset * rng.standard_normal(d_target)
    centered = (rng.standard_normal((n, d_source)) * scale) @ basis
    Y = centered @ rotation + target_mean
    if noise:
        Y = Y + noise * rng.standard_normal(Y.shape)
    return RigidProblem(centered + source_mean, Y, rotation, source_mean, target_mean)
