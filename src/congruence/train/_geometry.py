"""The divergence between two geometries of one set of rows, with value and gradient computed in strips of rows.

Imports torch; import this module only when torch is known to be installed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import once_differentiable

from congruence.train._autograd import strips

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx


class GeometryDivergence(torch.autograd.Function):
    """Mean over rows of the divergence of softmax(⟨z_i, z⟩/τ) from softmax(⟨t_i, t⟩/τ).

    The divergence is the Jensen–Shannon divergence (KL(p‖m) + KL(q‖m))/2 or, with ``published``, (KL(m‖p) + KL(m‖q))/2.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, Z: Tensor, T: Tensor, temperature: float, published: bool) -> Tensor:
        """Return the mean; one pass computes value and gradient."""
        n = len(Z)
        total = Z.new_zeros((), dtype=torch.float64)
        dZ = torch.zeros_like(Z)
        for part in strips(Z, Z):
            log_p = torch.log_softmax(T[part] @ T.T / temperature, 1)
            log_q = torch.log_softmax(Z[part] @ Z.T / temperature, 1)
            value, G = _published(log_p, log_q) if published else _jensen_shannon(log_p, log_q)
            total += value
            # G is q · ∂/∂q; the softmax's Jacobian subtracts q times the row's sum.
            G.addcmul_(log_q.exp_(), G.sum(1, keepdim=True), value=-1).mul_(1 / (n * temperature))
            # A row of Z enters its own row of logits, and one column of the logits of all rows.
            dZ[part].addmm_(G, Z)
            dZ.addmm_(G.T, Z[part])
        ctx.save_for_backward(dZ)
        return (total / n).to(Z.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient from the forward pass times the upstream gradient."""
        (dZ,) = ctx.saved_tensors
        return dZ * upstream, None, None, None


def _jensen_shannon(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over rows, and q · ∂/∂q = q (log q − log m)/2."""
    p, q = log_p.exp(), log_q.exp()
    log_m = (p + q).clamp_min_(torch.finfo(p.dtype).tiny).log_().sub_(math.log(2))  # clamped where both underflow
    total = torch.dot(p.reshape(-1), (log_p - log_m).reshape(-1))
    G = q.mul_(log_q - log_m)
    return 0.5 * (total + G.sum(dtype=torch.float64)), G.mul_(0.5)


def _published(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over rows, and q · ∂/∂q = q (log m + 1 − (log p + log q)/2)/2 − m/2."""
    q = log_q.exp()
    m = log_p.exp().add_(q).mul_(0.5).clamp_min_(torch.finfo(q.dtype).tiny)  # clamped where both underflow
    ratio = m.log().sub_(log_p, alpha=0.5).sub_(log_q, alpha=0.5)  # log m − (log p + log q)/2
    total = torch.dot(m.reshape(-1), ratio.reshape(-1)).double()
    return total, q.mul_(ratio.add_(1)).sub_(m).mul_(0.5)
