"""Synthetic data: two unimodal encoders of one shared latent variable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_seed
from congruence.errors import ParameterError
from congruence.synthetic.rigid import random_rotation

__all__ = ["UnimodalProblem", "unimodal_problem"]


@dataclass(frozen=True)
class UnimodalProblem:
    """Images and texts of the same items, encoded by two independent encoders of one shared latent.

    Attributes
    ----------
    images : ndarray, shape (n, d_source), float32
        Unit rows, one per item.
    texts : ndarray, shape (n · captions, d_target), float32
        Unit rows; the texts of an item are consecutive.
    latent : ndarray, shape (n, k), float32
        The shared latent.
    image_labels, text_labels : ndarray of int, shape (n,) and (n · captions,)
        Item of each row, or its class if ``classes`` is given.
    source : ndarray of int, shape (n,)
        Collection of each item.
    image_frame, text_frame : ndarray, shape (k, d_source) and (k, d_target)
        Orthonormal rows: before the offset and the normalization, ``images @ image_frame.T`` is the latent plus noise. These are the heads
        that alignment should recover.
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

    A row is the sum of the latent and noise in the encoder's frame, a random nuisance and a non-linear function of the latent outside of the frame,
    and a constant offset; it is then scaled to unit norm.

    Parameters
    ----------
    n, d_source : int
        Number of items, and width of the image encoder.
    d_target : int, optional
        Width of the text encoder; ``d_source`` by default. Both widths must be larger than ``latent``.
    latent : int, default=16
        Dimension k of the latent.
    decay : float, default=0.5
        Latent coordinate j has standard deviation proportional to (j + 1)^-decay; the variances add up to 1.
    noise : float, default=0.3
        Norm of each row's noise on the latent, relative to that of the latent; the noise has the same spectrum.
    nuisance : float, default=1
        Norm of the variation that only one encoder has, relative to that of the latent. Its spectrum has the same decay, over all directions outside
        the frame.
    bend : float, default=0
        Norm of a random non-linear function of the latent, different for each encoder, relative to that of the latent; it lies outside the frame.
    offset : float, default=0.5
        Norm of the mean that is added to all rows of a side.
    captions : int, default=1
        Number of texts per item.
    classes : int, optional
        Draw the latent around the centers of this number of classes, and label rows by class.
    spread : float, default=0.5
        Share of the latent's variance within classes.
    sources : int, default=1
        Number of collections. In each but the first, the latent and the nuisance are shifted in a random direction.
    shift : float, default=1
        Norm of these shifts.
    random_state : int, optional

    Examples
    --------
    >>> from congruence.synthetic import unimodal_problem
    >>> problem = unimodal_problem(100, 24, 20, latent=6, noise=0, nuisance=0, offset=0, random_state=0)
    >>> seen = problem.images @ problem.image_frame.T  # the latent, up to the length of each row
    >>> cosines = (seen * problem.latent).sum(1) / np.linalg.norm(problem.latent, axis=1)
    >>> bool(np.allclose(cosines, 1, atol=1e-5))
    True
    """
    d_target = d_source if d_target is None else d_target
    if latent >= min(d_source, d_target):
        raise ParameterError(
            f"Got latent={latent} in encoders of width {d_source} and {d_target}; expected less than both. Pass a smaller latent=…."
        )
    rng = np.random.default_rng(None if random_state is None else check_seed(random_state))

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
    """Return the shift of each source; zero for the first."""
    shifts = rng.standard_normal((sources, width))
    shifts *= size / np.linalg.norm(shifts, axis=1, keepdims=True)
    shifts[0] = 0
    return shifts
