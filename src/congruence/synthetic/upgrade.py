"""The same items in two dual encoders, one of which replaces the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_seed
from congruence.synthetic.rigid import random_rotation

__all__ = ["UpgradeProblem", "upgrade_problem"]


@dataclass(frozen=True)
class UpgradeProblem:
    """Images and texts of the same items in two dual encoders related by a rotation, up to chosen disturbances.

    Attributes
    ----------
    source_images, source_texts : ndarray, shape (n, d_source)
        Unit rows; row i of each is item i.
    target_images, target_texts : ndarray, shape (n, d_target)
    labels : ndarray of int, shape (n,)
        Class of each item.
    rotation : ndarray, shape (d_source, d_target)
        Acts on rows.
    """

    source_images: np.ndarray
    source_texts: np.ndarray
    target_images: np.ndarray
    target_texts: np.ndarray
    labels: np.ndarray
    rotation: np.ndarray


def upgrade_problem(
    n: int,
    d_source: int,
    d_target: int | None = None,
    *,
    decay: float = 0.5,
    source_noise: float = 0.5,
    target_noise: float = 0.5,
    shared: float = 0.5,
    shear: float = 0.0,
    lost: float = 0.0,
    mispaired: float = 0.0,
    gap: float = 0.5,
    classes: int = 20,
    spread: float = 0.7,
    random_state: int | None = None,
) -> UpgradeProblem:
    """Generate two dual encoders of the same items.

    An item is a concept: a Gaussian vector around the center of its class, with a power-law spectrum. For images and texts separately, each encoder adds
    noise and an offset, and scales rows to unit norm; the second encoder also stretches its axes and rotates.

    Parameters
    ----------
    n, d_source : int
    d_target : int, optional
        Defaults to ``d_source``.
    decay : float, default=0.5
        Concept coordinate k has standard deviation proportional to (k + 1)^-decay; their squares sum to 1.
    source_noise, target_noise : float, default=0.5
        Norm of an encoder's noise, relative to that of the concept: the less noise, the better the model.
    shared : float, default=0.5
        Correlation of the two encoders' noise on the same image or text.
    shear : float, default=0
        The second encoder stretches its axes by exp(shear · N(0, 1)), which no rotation can undo.
    lost : float, default=0
        Share of the concept's variance, in its weakest coordinates, that the second encoder does not encode.
    mispaired : float, default=0
        Share of items whose rows in the second encoder belong to other items.
    gap : float, default=0.5
        Norm of the difference between the modalities' means, before normalization.
    classes : int, default=20
    spread : float, default=0.7
        Share of the concept's variance within classes.
    random_state : int, optional
    """
    d_target = d_source if d_target is None else d_target
    rng = np.random.default_rng(None if random_state is None else check_seed(random_state))
    width = min(d_source, d_target)
    scale = np.arange(1, width + 1, dtype=float) ** -decay
    scale /= np.linalg.norm(scale)
    labels = rng.integers(classes, size=n)
    centers = rng.standard_normal((classes, width))
    concept = (np.sqrt(1 - spread) * centers[labels] + np.sqrt(spread) * rng.standard_normal((n, width))) * scale
    encoded = np.cumsum(scale**2) <= 1 - lost + 1e-12
    stretch = np.exp(shear * rng.standard_normal(width))
    rotation = random_rotation(d_source, d_target, random_state=int(rng.integers(2**31)))
    # Orthonormal rows that map the concept into the source space, and with the rotation into the target space.
    frame = random_rotation(width, d_source, random_state=int(rng.integers(2**31)))
    if d_source > d_target:
        frame = rotation.T
    images: list[np.ndarray] = []
    texts: list[np.ndarray] = []
    for side in (images, texts):
        common = rng.standard_normal((n, width)) / np.sqrt(width)
        shift = rng.standard_normal(width)
        shift *= gap / np.linalg.norm(shift)
        for noise, keep, factor in ((source_noise, 1.0, 1.0), (target_noise, encoded, stretch)):
            own = rng.standard_normal((n, width)) / np.sqrt(width)
            rows = concept * keep + noise * (np.sqrt(shared) * common + np.sqrt(1 - shared) * own) + shift
            side.append(rows * factor)
    order = np.arange(n)
    wrong = rng.choice(n, round(mispaired * n), replace=False)
    order[wrong] = np.roll(wrong, 1)

    mapped = frame @ rotation
    return UpgradeProblem(
        normalize_rows(images[0] @ frame),
        normalize_rows(texts[0] @ frame),
        normalize_rows(images[1][order] @ mapped),
        normalize_rows(texts[1][order] @ mapped),
        labels,
        rotation,
    )
