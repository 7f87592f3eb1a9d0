"""Synthetic problems with known solutions, for tests, docs and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_seed
from congruence.errors import ParameterError


@dataclass(frozen=True)
class RigidProblem:
    """Paired rows X (n, d_source) and Y (n, d_target): ``(X - source_mean) @ rotation + target_mean`` plus noise.

    The rows (d_source ≤ d_target) or the columns of the rotation (d_source, d_target) are orthonormal.
    """

    X: np.ndarray
    Y: np.ndarray
    rotation: np.ndarray
    source_mean: np.ndarray
    target_mean: np.ndarray


def _generator(random_state: int | None) -> np.random.Generator:
    return np.random.default_rng(None if random_state is None else check_seed(random_state))


def random_rotation(d_source: int, d_target: int | None = None, random_state: int | None = None) -> np.ndarray:
    """Draw a semi-orthogonal matrix (d_source, d_target) uniformly (Haar measure); see Mezzadri (2007), §5.

    Its rows are orthonormal if d_source ≤ d_target (by default equal), else its columns.
    """
    d_target, rng = d_target or d_source, _generator(random_state)
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
    """Generate rows related by a rotation, two means and Gaussian noise of standard deviation ``noise`` on the target.

    Column k of the source has standard deviation (k + 1)^-decay, and zero from ``rank`` on; ``offset`` scales the
    means.
    """
    d_target, rng = d_target or d_source, _generator(random_state)
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


@dataclass(frozen=True)
class DualProblem:
    """Images F (n, d_source), F_target (n, d_target) and texts G, G_target (m, …) in two dual encoders, as unit rows.

    Without noise and shear, ``F_target = F @ rotation``, with a rotation (d_source, d_target).
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
    """Generate two dual encoders on the sphere, of n images and m texts, related by one rotation and then disturbed.

    ``noise`` is the length of the random vector added to each target row, ``shear`` the spectral norm of S in I + S,
    through which target rows pass. ``rank`` is the dimension of the span of the images: the texts of both models agree
    within that span only, and outside do not affect the kernels. ``d_target`` is at least ``d_source``.
    """
    d_target, rng = d_target or d_source, _generator(random_state)

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


@dataclass(frozen=True)
class UnimodalProblem:
    """Images and texts of the same items, encoded by two independent encoders of one shared latent.

    ``images`` (n, d_source) and ``texts`` (n · captions, d_target) are unit rows in float32; the texts of an item are
    consecutive, and ``latent`` (n, k) is what they share. Labels (one per row) are the item or, with ``classes``, its
    class; ``source`` (n,) is the collection of each item. The rows of ``image_frame`` (k, d_source) and ``text_frame``
    (k, d_target) are orthonormal, the heads that alignment should recover: before offset and normalization,
    ``images @ image_frame.T`` is the latent plus noise.
    """

    images: np.ndarray
    texts: np.ndarray
    latent: np.ndarray
    image_labels: np.ndarray
    text_labels: np.ndarray
    source: np.ndarray
    image_frame: np.ndarray
    text_frame: np.ndarray


def unimodal_problem(
    n: int,
    d_source: int,
    d_target: int | None = None,
    *,
    latent: int = 16,
    decay: float = 0.5,
    noise: float = 0.3,
    nuisance: float = 1.0,
    bend: float = 0.0,
    offset: float = 0.5,
    captions: int = 1,
    classes: int | None = None,
    spread: float = 0.5,
    sources: int = 1,
    shift: float = 1.0,
    random_state: int | None = None,
) -> UnimodalProblem:
    """Generate two unimodal encoders of one shared latent, each with additional variation of its own.

    A row is the sum of the latent and noise in the encoder's frame, a random nuisance and a non-linear function of the
    latent outside of the frame, and a constant offset; it is then scaled to unit norm.

    Parameters
    ----------
    latent, decay
        Dimension k of the latent, less than both widths; coordinate j has standard deviation proportional to
        (j + 1)^-decay, their variances add up to 1.
    noise, nuisance, bend
        Norms, relative to that of the latent, of each row's noise on it; of the variation that only one encoder has,
        over all directions outside the frame; of the non-linear function there.
    offset, captions
        Norm of the mean that is added to all rows of a side; number of texts per item.
    classes, spread
        Draw the latent around the centers of so many classes; share of the variance within them.
    sources, shift
        Number of collections, and the norm by which latent and nuisance of each but the first are shifted.

    >>> from congruence.synthetic import unimodal_problem
    >>> problem = unimodal_problem(100, 24, 20, latent=6, noise=0, nuisance=0, offset=0, random_state=0)
    >>> seen = problem.images @ problem.image_frame.T  # the latent, up to the length of each row
    >>> cosines = (seen * problem.latent).sum(1) / np.linalg.norm(problem.latent, axis=1)
    >>> bool(np.allclose(cosines, 1, atol=1e-5))
    True
    """
    d_target = d_target or d_source
    if latent >= min(d_source, d_target):
        expected = f"less than both widths, {d_source} and {d_target}"
        raise ParameterError(argument="latent", got=latent, expected=expected, fix="Pass a smaller `latent=…`.")
    rng = _generator(random_state)

    def spectrum(k: int) -> np.ndarray:
        scale = np.arange(1, k + 1, dtype=float) ** -decay
        return scale / np.linalg.norm(scale)

    source = np.arange(n) * sources // n
    labels = np.arange(n) if classes is None else rng.integers(classes, size=n)
    Z = rng.standard_normal((n, latent))
    if classes is not None:
        Z = np.sqrt(1 - spread) * rng.standard_normal((classes, latent))[labels] + np.sqrt(spread) * Z
    Z *= spectrum(latent)
    Z += _shifts(sources, latent, shift, rng)[source]
    rows, frames = [], []
    for d, count in ((d_source, 1), (d_target, captions)):
        basis = random_rotation(d, random_state=int(rng.integers(2**31)))
        frame, outside = basis[:latent], basis[latent:]
        z, row_source = np.repeat(Z, count, axis=0), np.repeat(source, count)
        variation = rng.standard_normal((len(z), len(outside))) * spectrum(len(outside)) * nuisance
        variation += _shifts(sources, len(outside), shift * nuisance, rng)[row_source]
        if bend:
            W = rng.standard_normal((latent, len(outside))) * np.sqrt(latent)
            variation += bend * np.tanh(z @ W) / np.sqrt(len(outside))
        z = z + noise * rng.standard_normal(z.shape) * spectrum(latent)
        mean = rng.standard_normal(d)
        X = z @ frame + variation @ outside + mean * (offset / np.linalg.norm(mean))
        rows.append(np.asarray(normalize_rows(X), np.float32))
        frames.append(frame)
    return UnimodalProblem(
        rows[0], rows[1], Z.astype(np.float32), labels, np.repeat(labels, captions), source, frames[0], frames[1]
    )


def _shifts(sources: int, width: int, size: float, rng: np.random.Generator) -> np.ndarray:
    shifts = rng.standard_normal((sources, width))
    shifts *= size / np.linalg.norm(shifts, axis=1, keepdims=True)
    shifts[0] = 0
    return shifts


@dataclass(frozen=True)
class UpgradeProblem:
    """Images and texts (n, d) of the same items in two dual encoders related by a rotation, up to chosen disturbances.

    Row i of each table, all unit rows, is item i, whose class is ``labels[i]``. The rotation acts on rows.
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

    An item is a concept: a Gaussian vector around the center of its class, with standard deviations proportional to (k
    + 1)^-decay. For images and texts separately, each encoder adds noise and an offset, and scales rows to unit norm.

    Parameters
    ----------
    source_noise, target_noise, shared
        Norm of an encoder's noise, relative to that of the concept, and correlation of the two encoders' noise.
    shear, lost
        The second encoder stretches its axes by exp(shear · N(0, 1)), which no rotation can undo, and does not encode
        this share of the concept's variance, in its weakest coordinates.
    mispaired
        Share of items whose rows in the second encoder belong to other items.
    gap
        Norm of the difference between the modalities' means, before normalization.
    classes, spread
        Number of classes, and share of the concept's variance within them.
    """
    d_target, rng = d_target or d_source, _generator(random_state)
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
    old_images, old_texts = (normalize_rows(side[0] @ frame) for side in (images, texts))
    new_images, new_texts = (normalize_rows(side[1][order] @ (frame @ rotation)) for side in (images, texts))
    return UpgradeProblem(old_images, old_texts, new_images, new_texts, labels, rotation)
