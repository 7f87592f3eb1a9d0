"""Dual encoders built from unimodal features with linear heads in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from congruence.synthetic import random_rotation
from congruence_papers.canonical.data import unit_rows

__all__ = ["Heads", "contrastive_heads"]


@dataclass(frozen=True)
class Heads:
    """Linear image and text heads into a joint space; see :func:`contrastive_heads`."""

    image_mean: np.ndarray
    image_matrix: np.ndarray
    text_mean: np.ndarray
    text_matrix: np.ndarray

    def images(self, rows: np.ndarray) -> np.ndarray:
        """Return the embeddings of image features, as unit rows."""
        return unit_rows((np.asarray(rows, np.float64) - self.image_mean) @ self.image_matrix)

    def texts(self, rows: np.ndarray) -> np.ndarray:
        """Return the embeddings of text features, as unit rows."""
        return unit_rows((np.asarray(rows, np.float64) - self.text_mean) @ self.text_matrix)


def contrastive_heads(images: np.ndarray, texts: np.ndarray, dim: int, *, ridge: float = 0.1, seed: int = 0) -> Heads:
    """Fit linear heads that minimize the spectral contrastive loss, in closed form.

    For ridge-whitened features x and y of a pair, the optimal linear heads of width k are the k leading singular vectors of
    their cross-covariance, each scaled by the square root of its singular value: regularized canonical correlation
    analysis. The loss depends on inner products only, so it does not determine a common rotation of both heads. It is
    drawn at random, as training from a random initialization would result in an arbitrary one.

    Parameters
    ----------
    images : ndarray, shape (n, p)
        Image features.
    texts : ndarray, shape (n, q)
        Text features; row i describes image i.
    dim : int
        Width of the joint space.
    ridge : float, default=0.1
        Ridge added to the diagonal of both covariances, relative to their mean eigenvalue.
    seed : int, default=0
        Random seed of the rotation.

    Returns
    -------
    Heads

    References
    ----------
    HaoChen et al. (2021), "Provable guarantees for self-supervised deep learning with spectral contrastive loss", §3.
    """
    X, Y = (np.asarray(rows, np.float64) for rows in (images, texts))
    x_mean, y_mean = X.mean(axis=0), Y.mean(axis=0)
    X, Y = X - x_mean, Y - y_mean
    roots = []
    for rows in (X, Y):
        covariance = rows.T @ rows / len(rows)
        covariance.flat[:: len(covariance) + 1] += ridge * np.trace(covariance) / len(covariance)
        roots.append(linalg.cholesky(covariance, lower=True))
    cross = linalg.solve_triangular(roots[0], X.T @ Y / len(X), lower=True)
    cross = linalg.solve_triangular(roots[1], cross.T, lower=True).T
    U, s, Vt = linalg.svd(cross, full_matrices=False, check_finite=False)
    rotation = random_rotation(dim, random_state=seed)
    scale = np.sqrt(s[:dim])
    A = linalg.solve_triangular(roots[0].T, U[:, :dim] * scale, lower=False)
    B = linalg.solve_triangular(roots[1].T, Vt[:dim].T * scale, lower=False)
    return Heads(x_mean, A @ rotation, y_mean, B @ rotation)
