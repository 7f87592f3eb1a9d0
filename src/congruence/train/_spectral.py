"""Components of SUE: the graph of a batch, its spectral loss, and the maximum mean discrepancy. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def affinities(X: Tensor, k: int, scale_k: int) -> Tensor:
    """Return the symmetric k-nearest-neighbor graph (n, n) of the rows, weighted by exp(−‖x − y‖²/s), where s is the
    median squared distance of a row to its ``scale_k``-th neighbor, at most the k-th.
    """
    D = squared_distances(X, X)
    D.fill_diagonal_(torch.inf)
    k = min(k, len(X) - 1)
    near, index = D.topk(k, dim=1, largest=False)
    scale = near[:, min(scale_k, k) - 1].median().clamp_min(torch.finfo(X.dtype).tiny)
    W = torch.zeros_like(D).scatter_(1, index, torch.exp(-near / scale))
    return (W + W.T) / 2


def spectral_loss(Z: Tensor, W: Tensor) -> Tensor:
    """Return the mean Rayleigh quotient of the graph's Laplacian over the span of the centered columns of Z (n, r).

    The minimum, the mean of the r smallest eigenvalues of (D − W)/(mean degree) but that of the constant vector, is
    reached where the columns span their eigenvectors: up to a factor Σ W_ij ‖y_i − y_j‖² of orthonormal y = Z R⁻¹.
    """
    Z = Z - Z.mean(0)
    degrees = W.sum(1)
    smooth = (Z.T @ (degrees[:, None] * Z - W @ Z)).double()
    inner = (Z.T @ Z).double()
    width = len(inner)
    # Regularize directions with almost no variance; otherwise they would be divided by rounding error.
    inner = inner + 1e-6 * inner.trace() / width * torch.eye(width, dtype=inner.dtype, device=inner.device)
    return (torch.linalg.solve(inner, smooth).trace() / (width * degrees.mean())).to(Z.dtype)


def squared_distances(X: Tensor, Y: Tensor) -> Tensor:
    """Return all squared Euclidean distances, with gradients that are finite at zero distance."""
    return (X.square().sum(1)[:, None] + Y.square().sum(1) - 2 * X @ Y.T).clamp_min(0)


def mmd(X: Tensor, Y: Tensor, scales: int) -> Tensor:
    """Return the biased squared maximum mean discrepancy of two batches (n, d), for a sum of Gaussian kernels exp(−‖x −
    y‖²/(s·2ᵉ)): s is the mean squared distance of different rows, e runs over ``scales`` integers from −⌊scales/2⌋.
    """
    both = torch.cat([X, Y])
    D = squared_distances(both, both)
    scale = (D.detach().sum() / (len(both) * (len(both) - 1))).clamp_min(torch.finfo(D.dtype).tiny)
    K = sum(torch.exp(-D / (scale * 2.0 ** (e - scales // 2))) for e in range(scales))
    n = len(X)
    return K[:n, :n].mean() + K[n:, n:].mean() - 2 * K[:n, n:].mean()
