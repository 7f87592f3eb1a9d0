"""Losses over all pairs of two batches, with values and gradients computed in strips of rows, so that no n × m array is
stored.

Imports torch; import this module only when torch is known to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import once_differentiable

from congruence._utils.arrays import blocks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

#: Bytes of a strip of logits. A few arrays of this size exist at a time; they should stay in the cache of one core.
STRIP = 8 * 2**20


def strips(X: Tensor, Y: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of X whose inner products with all rows of Y fit in :data:`STRIP`."""
    return blocks(len(X), max(1, len(Y)) * X.element_size(), budget=STRIP)


class Siglip(torch.autograd.Function):
    """Sum over all i, j of log(1 + exp(−z_ij (s⟨x_i, y_j⟩ + b))), with z = 1 where i = j and −1 elsewhere."""

    @staticmethod
    def forward(ctx: FunctionCtx, X: Tensor, Y: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Return the sum; the gradients are computed in the same pass."""
        total = X.new_zeros((), dtype=torch.float64)
        dX, dY = torch.zeros_like(X), torch.zeros_like(Y)
        slopes = X.new_zeros(2, dtype=torch.float64)
        for part in strips(X, Y):
            S = X[part] @ Y.T
            L = S * scale + bias
            own = L.diagonal(part.start)  # of the pairs; empty beyond the last column
            total += torch.nn.functional.softplus(L).sum(dtype=torch.float64) - own.sum(dtype=torch.float64)
            G = torch.sigmoid_(L)
            G.diagonal(part.start).sub_(1)
            slopes[0] += torch.dot(G.reshape(-1), S.reshape(-1))
            slopes[1] += G.sum(dtype=torch.float64)
            G *= scale
            torch.matmul(G, Y, out=dX[part])
            dY.addmm_(G.T, X[part])
        ctx.save_for_backward(dX, dY, slopes)
        ctx.dtypes = scale.dtype, bias.dtype
        return total.to(X.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY, slopes = ctx.saved_tensors
        d_scale, d_bias = ((slope * upstream).to(dtype) for slope, dtype in zip(slopes, ctx.dtypes, strict=True))
        return dX * upstream, dY * upstream, d_scale, d_bias


class InfoNCE(torch.autograd.Function):
    """Mean of the cross-entropies of rows and of columns of s⟨x_i, y_j⟩ with the diagonal as their target."""

    @staticmethod
    def forward(ctx: FunctionCtx, X: Tensor, Y: Tensor, scale: Tensor) -> Tensor:
        """Return the mean; one pass for the normalizers, one for the gradients."""
        n = len(X)
        rows, columns = X.new_empty(n), X.new_full((len(Y),), -torch.inf)
        own = (X * Y).sum(1) * scale
        for part in strips(X, Y):
            L = X[part] @ Y.T * scale
            rows[part] = L.logsumexp(1)
            columns = torch.logaddexp(columns, L.logsumexp(0))
        value = 0.5 * (rows + columns - 2 * own).mean()
        dX, dY, slope = torch.zeros_like(X), torch.zeros_like(Y), X.new_zeros(())
        for part in strips(X, Y):
            S = X[part] @ Y.T
            L = S * scale
            G = (L - rows[part, None]).exp_().add_((L - columns).exp_()).mul_(0.5 / n)
            G.diagonal(part.start).sub_(1 / n)
            slope += (G * S).sum()
            G *= scale
            torch.matmul(G, Y, out=dX[part])
            dY.addmm_(G.T, X[part])
        ctx.save_for_backward(dX, dY, slope)
        ctx.dtype = scale.dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY, slope = ctx.saved_tensors
        return dX * upstream, dY * upstream, (slope * upstream).to(ctx.dtype)


class SoftmaxKL(torch.autograd.Function):
    """Mean over rows of KL(softmax(⟨tx_i, ty⟩/ε*) ‖ softmax(⟨x_i, y⟩/ε))."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor, epsilon: float, epsilon_teacher: float
    ) -> Tensor:
        """Return the mean. Rows are independent, so one pass computes value and gradients."""
        n = len(X)
        total = X.new_zeros((), dtype=torch.float64)
        dX, dY = torch.zeros_like(X), torch.zeros_like(Y)
        for part in strips(X, Y):
            student = torch.log_softmax(X[part] @ Y.T / epsilon, 1)
            teacher = torch.log_softmax(TX[part] @ TY.T / epsilon_teacher, 1)
            Q = teacher.exp()
            # Where Q underflows, 0 · (log Q − log P) is 0: both logarithms are finite.
            total += torch.dot(Q.reshape(-1), (teacher - student).reshape(-1))
            G = student.exp_().sub_(Q).mul_(1 / (n * epsilon))
            torch.matmul(G, Y, out=dX[part])
            dY.addmm_(G.T, X[part])
        ctx.save_for_backward(dX, dY)
        return (total / n).to(X.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY = ctx.saved_tensors
        return dX * upstream, dY * upstream, None, None, None, None


class LogSumOthers(torch.autograd.Function):
    """For each of n rows, log Σ exp(s⟨x_i, t_j⟩) over the texts of all other rows.

    The m texts of row i are rows i·m to (i + 1)·m − 1 of T.

    With labels, of shape (n, g), rows that share a label in any column are left out of each other's sums.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, X: Tensor, T: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the logarithms: −inf for a row without other rows."""
        out = X.new_empty(len(X))
        for part in strips(X, T):
            out[part] = _hide_same(X[part] @ T.T * scale, part, len(T) // len(X), labels).logsumexp(1)
        ctx.save_for_backward(X, T, scale, out, labels)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; the strips are recomputed, since the softmax weights were not stored."""
        X, T, scale, out, labels = ctx.saved_tensors
        # For a row without other rows, every weight becomes exp(−inf) = 0; without the clamp it would be exp(−inf +
        # inf), which is NaN.
        out = out.clamp_min(torch.finfo(out.dtype).min)
        dX, dT, slope = torch.zeros_like(X), torch.zeros_like(T), X.new_zeros((), dtype=torch.float64)
        for part in strips(X, T):
            S = X[part] @ T.T
            G = (
                _hide_same(S * scale, part, len(T) // len(X), labels)
                .sub_(out[part, None])
                .exp_()
                .mul_(upstream[part, None])
            )
            slope += torch.dot(G.reshape(-1), S.reshape(-1))
            G *= scale
            torch.matmul(G, T, out=dX[part])
            dT.addmm_(G.T, X[part])
        return dX, dT, slope.to(scale.dtype), None


def _hide_same(L: Tensor, part: slice, m: int, labels: Tensor | None) -> Tensor:
    """Set the logits of each row's own texts, and of the texts of rows that share a label with it, to −inf, in
    place.
    """
    if labels is not None:
        same = (labels[part, None] == labels).any(2)
        return L.masked_fill_(same.repeat_interleave(m, 1), -torch.inf)
    rows = torch.arange(len(L), device=L.device)[:, None]
    return L.index_put_((rows, (rows + part.start) * m + torch.arange(m, device=L.device)), L.new_tensor(-torch.inf))
