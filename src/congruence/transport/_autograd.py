"""Autograd functions with the explicit gradient of the KLOT loss.

Imports torch; import this module only if torch is installed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from congruence.transport._comparison import Side, compare


class Klot(torch.autograd.Function):
    """The divergence as a function of the student's affinities; the gradient is computed from the potentials."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, A: Tensor, T: Tensor, student: Side, teacher: Side, scale: float, differences: list[float]
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``differences``."""
        ctx.save_for_backward(A, T)  # lets torch detect in-place changes of either
        ctx.sides, ctx.scale = (student, teacher), scale
        parts = compare(student, teacher, 8 * A.numel(), lambda _, G: torch.linalg.vector_norm(G, 1))
        value, difference = (sum(terms) for terms in zip(*parts, strict=True))
        differences.append(float(difference))
        return (scale * value).to(student.affinity.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return (P − P*)/ε times ``scale`` and the upstream gradient."""
        A, _ = ctx.saved_tensors
        student, teacher = ctx.sides
        gradient = torch.empty_like(A)
        factor = upstream * (ctx.scale / student.epsilon)

        def keep(part: slice, G: Tensor) -> None:
            G *= factor
            gradient[part] = G

        compare(student, teacher, 8 * A.numel(), keep)
        return gradient, None, None, None, None, None


class KlotFeatures(torch.autograd.Function):
    """The divergence as a function of the student's vectors; the gradients are computed with the value."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        X: Tensor,
        Y: Tensor,
        student: Side,
        teacher: Side,
        scale: float,
        memory: int,
        differences: list[float],
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``differences``."""
        dtype, factor, (needs_X, needs_Y, *_) = student.affinity.dtype, scale / student.epsilon, ctx.needs_input_grad
        wide_Y = Y.to(dtype)
        dX = torch.empty_like(X) if needs_X else None
        dY = torch.zeros_like(wide_Y) if needs_Y else None

        def write_dX(part: slice, G: Tensor) -> Tensor:
            difference = torch.linalg.vector_norm(G, 1)
            G *= factor
            if dX is not None:
                dX[part] = G @ wide_Y
            return difference

        def add_dY(part: slice, G: Tensor) -> None:
            assert dY is not None
            dY.addmm_(G.T, X[part].to(dtype))

        parts = compare(student, teacher, memory, write_dX, None if dY is None else add_dY)
        value, difference = (sum(terms) for terms in zip(*parts, strict=True))
        differences.append(float(difference))
        ctx.save_for_backward(*(None if grad is None else grad.to(side.dtype) for grad, side in ((dX, X), (dY, Y))))
        return (scale * value).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY = (None if grad is None else grad * upstream.to(grad.dtype) for grad in ctx.saved_tensors)
        return dX, dY, None, None, None, None, None
