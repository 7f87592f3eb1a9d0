"""Cross-entropy between softmaxes over a batch and given targets, with value and gradients computed in strips of rows.

Imports torch; import this module only when torch is known to be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import once_differentiable

from congruence.train._autograd import strips
from congruence.transport import sinkhorn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx


class CrossEntropy(torch.autograd.Function):
    """Mean over rows of −Σ_j q_ij log softmax_j(s⟨x_i, y_j⟩), for targets q whose rows add up to 1."""

    @staticmethod
    def forward(ctx: FunctionCtx, X: Tensor, Y: Tensor, scale: Tensor, targets: Callable[[slice], Tensor]) -> Tensor:
        """Return the mean. Rows are independent, so one pass computes value and gradients."""
        n = len(X)
        total, slope = (X.new_zeros((), dtype=torch.float64) for _ in range(2))
        dX, dY = torch.zeros_like(X), torch.zeros_like(Y)
        for part in strips(X, Y):
            S = X[part] @ Y.T
            L = torch.log_softmax(S * scale, 1)
            Q = targets(part)
            total -= torch.dot(Q.reshape(-1), L.reshape(-1))
            G = L.exp_().sub_(Q).mul_(1 / n)
            slope += torch.dot(G.reshape(-1), S.reshape(-1))
            G *= scale
            torch.matmul(G, Y, out=dX[part])
            dY.addmm_(G.T, X[part])
        ctx.save_for_backward(dX, dY, slope)
        ctx.dtype = scale.dtype
        return (total / n).to(X.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY, slope = ctx.saved_tensors
        return dX * upstream, dY * upstream, (slope * upstream).to(ctx.dtype), None


def pseudo_labels(
    U: Tensor, X: Tensor, assignment: str, temperature: float, max_iter: int
) -> Callable[[slice], Tensor]:
    """Return a function that assigns the rows of a slice of U to the rows of X; see :class:`~congruence.train.SCLIP`.

    Shapes: ``U``, ``X`` (m, d). Returns: from a slice of U to a tensor of weights, shape (rows, n), whose rows add up
    to 1.
    """
    if assignment == "ot":
        result = sinkhorn(X=U, Y=X, epsilon=temperature, max_iter=max_iter)

        def transported(part: slice) -> Tensor:
            P: Tensor = result.plan(part)
            return P / P.sum(1, keepdim=True).clamp_min(torch.finfo(P.dtype).tiny)

        return transported
    if assignment == "soft":
        return lambda part: torch.softmax(U[part] @ X.T / temperature, 1)

    def nearest(part: slice) -> Tensor:
        S = U[part] @ X.T
        return torch.zeros_like(S).scatter_(1, S.argmax(1, keepdim=True), 1)

    return nearest
