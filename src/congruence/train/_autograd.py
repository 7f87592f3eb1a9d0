"""Losses over all pairs of two batches, with values and gradients computed in strips of rows, so that no n × m array is
stored. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from congruence._utils.arrays import blocks
from congruence.transport import sinkhorn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

#: Bytes of a strip of logits. A few arrays of this size exist at a time; they should stay in the cache of one core.
STRIP = 8 * 2**20


def strips(X: Tensor, Y: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of X whose inner products with all rows of Y fit in ``STRIP``."""
    return blocks(len(X), max(1, len(Y)) * X.element_size(), budget=STRIP)


class _Scalar(torch.autograd.Function):
    """A scalar whose gradients are computed in the forward pass, together with its value."""

    @staticmethod
    def keep(ctx: FunctionCtx, inputs: Sequence[Any], *gradients: Tensor) -> None:
        """Store the gradients with respect to the first inputs; the other inputs have none."""
        ctx.save_for_backward(*gradients)
        ctx.dtypes, ctx.constants = [one.dtype for one in inputs[: len(gradients)]], len(inputs) - len(gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the stored gradients times the upstream gradient."""
        scaled = ((one * upstream).to(dtype) for one, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
        return (*scaled, *[None] * ctx.constants)


class Siglip(_Scalar):
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
        _Scalar.keep(ctx, (X, Y, scale, bias), dX, dY, slopes[0], slopes[1])
        return total.to(X.dtype)


class InfoNCE(_Scalar):
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
        _Scalar.keep(ctx, (X, Y, scale), dX, dY, slope)
        return value


class SoftmaxKL(_Scalar):
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
        _Scalar.keep(ctx, (X, Y, TX, TY, epsilon, epsilon_teacher), dX, dY)
        return (total / n).to(X.dtype)


class LogSumOthers(torch.autograd.Function):
    """For each of n rows, log Σ exp(s⟨x_i, t_j⟩) over the texts of all other rows; those of row i are rows i·m to (i +
    1)·m − 1 of T. Rows that share a label (n, g) in any column are left out of each other's sums.
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
    """Set the logits of each row's own texts, and of those of rows that share a label with it, to −inf, in place."""
    if labels is not None:
        same = (labels[part, None] == labels).any(2)
        return L.masked_fill_(same.repeat_interleave(m, 1), -torch.inf)
    rows = torch.arange(len(L), device=L.device)[:, None]
    return L.index_put_((rows, (rows + part.start) * m + torch.arange(m, device=L.device)), L.new_tensor(-torch.inf))


class CrossEntropy(_Scalar):
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
        _Scalar.keep(ctx, (X, Y, scale, targets), dX, dY, slope)
        return (total / n).to(X.dtype)


def pseudo_labels(
    U: Tensor, X: Tensor, assignment: str, temperature: float, max_iter: int
) -> Callable[[slice], Tensor]:
    """Return a function from a slice of U (m, d) to its rows' weights over the rows of X (n, d), which add up to 1."""
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


class GeometryDivergence(_Scalar):
    """Mean over rows of the divergence of softmax(⟨z_i, z⟩/τ) from softmax(⟨t_i, t⟩/τ); see ``structure_loss``."""

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
        _Scalar.keep(ctx, (Z, T, temperature, published), dZ)
        return (total / n).to(Z.dtype)


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
