"""Losses over all pairs of two batches, in strips of rows, so that no n × m array is stored. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from congruence._utils.arrays import blocks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

#: Bytes of a strip of logits. A few arrays of this size exist at a time; they should stay in the cache of one core.
STRIP = 2 * 2**20


def strips(X: Tensor, Y: Tensor) -> list[slice]:
    """Return slices of the rows of X whose inner products with all rows of Y fit in ``STRIP``."""
    return list(blocks(len(X), max(1, len(Y)) * X.element_size(), budget=STRIP))


def in_strips(loss: Callable[..., Tensor], X: Tensor, Y: Tensor, *parameters: Tensor) -> Tensor:
    """Return the sum over strips of rows of ``loss(part, X[part], Y, *parameters)``, a scalar.

    Beyond one strip, gradients with respect to X, Y and the parameters are computed strip by strip, with the value.
    """
    parts = strips(X, Y)
    if len(parts) == 1:
        return loss(parts[0], X, Y, *parameters)
    total: Tensor = _InStrips.apply(loss, parts, X, Y, *parameters)
    return total


class _InStrips(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, loss: Callable[..., Tensor], parts: list[slice], X: Tensor, *others: Tensor
    ) -> Tensor:
        needed = ctx.needs_input_grad[2:]
        total = X.new_zeros((), dtype=torch.float64)
        gradients = [torch.zeros_like(one) for one, need in zip((X, *others), needed, strict=True) if need]
        for part in parts:
            inputs = [one.detach().requires_grad_(need) for one, need in zip((X[part], *others), needed, strict=True)]
            wanted = [one for one in inputs if one.requires_grad]
            with torch.set_grad_enabled(bool(wanted)):
                value = loss(part, *inputs)
            total += value.detach()
            slopes = torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ()
            for k, slope in enumerate(slopes):
                if slope is not None:
                    into: Any = gradients[k][part] if k == 0 and needed[0] else gradients[k]
                    into += slope
        ctx.needed = needed
        ctx.save_for_backward(*gradients)
        return total.to(X.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        return None, None, *(next(kept) * upstream if need else None for need in ctx.needed)
