"""What SUE is made of: the graph of a batch, the spectral loss over it, and the maximum mean discrepancy.

Imports torch: only to be imported once that is known to be there. All functions hold n × n arrays of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def affinities(X: Tensor, k: int, scale_k: int) -> Tensor:
    """Return the symmetric graph of k nearest neighbors of rows, weighted by a Gaussian kernel.

    Parameters
    ----------
    X : tensor, shape (n, d)
    k : int
        Neighbors of a row; all others where there are fewer.
    scale_k : int
        The kernel's width is the median distance of a row to its scale_k-th neighbor, or to the k-th if that is nearer.

    Returns
    -------
    tensor, shape (n, n)
    """
    D = squared_distances(X, X)
    D.fill_diagonal_(torch.inf)
    k = min(k, len(X) - 1)
    near, index = D.topk(k, dim=1, largest=False)
    scale = near[:, min(scale_k, k) - 1].median().clamp_min(torch.finfo(X.dtype).tiny)
    W = torch.zeros_like(D).scatter_(1, index, torch.exp(-near / scale))
    return (W + W.T) / 2


def spectral_loss(Z: Tensor, W: Tensor) -> Tensor:
    """Return the mean Rayleigh quotient of the graph's Laplacian over the span of the centered columns of Z.

    The mean of ``r`` eigenvalues of (D − W)/(mean degree) at its least, where the columns span the eigenvectors of the r smallest ones but that of
    the constant. It is the spectral loss Σ W_ij ‖y_i − y_j‖² of orthonormal y = Z R⁻¹, whichever R.

    Parameters
    ----------
    Z : tensor, shape (n, r)
        Outputs of a network. A gradient flows in them.
    W : tensor, shape (n, n)

    Returns
    -------
    tensor, shape ()
    """
    Z = Z - Z.mean(0)
    degrees = W.sum(1)
    smooth = (Z.T @ (degrees[:, None] * Z - W @ Z)).double()
    inner = (Z.T @ Z).double()
    width = len(inner)
    # Directions that are next to none of the variance would be divided by rounding error.
    inner = inner + 1e-6 * inner.trace() / width * torch.eye(width, dtype=inner.dtype, device=inner.device)
    return (torch.linalg.solve(inner, smooth).trace() / (width * degrees.mean())).to(Z.dtype)


def squared_distances(X: Tensor, Y: Tensor) -> Tensor:
    """Return all squared Euclidean distances, with a gradient that is finite where they are 0."""
    return (X.square().sum(1)[:, None] + Y.square().sum(1) - 2 * X @ Y.T).clamp_min(0)


def mmd(X: Tensor, Y: Tensor, scales: int) -> Tensor:
    """Return the squared maximum mean discrepancy of two batches, biased, under a sum of Gaussian kernels.

    The kernels are exp(−‖x − y‖²/(s·2ᵉ)) with s the mean squared distance of different rows of both batches together and e from −⌊scales/2⌋ on.

    Parameters
    ----------
    X, Y : tensor, shape (n, d) and (m, d)
    scales : int

    Returns
    -------
    tensor, shape ()
        In [0, 2·scales].
    """
    both = torch.cat([X, Y])
    D = squared_distances(both, both)
    scale = (D.detach().sum() / (len(both) * (len(both) - 1))).clamp_min(torch.finfo(D.dtype).tiny)
    K = sum(torch.exp(-D / (scale * 2.0 ** (e - scales // 2))) for e in range(scales))
    n = len(X)
    return K[:n, :n].mean() + K[n:, n:].mean() - 2 * K[:n, n:].mean()
