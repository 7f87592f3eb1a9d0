"""Autograd functions that use the explicit gradient of the KLOT loss. Imports torch, so import it only if torch is installed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from congruence.transport._comparison import Side, compare


class Klot(torch.autograd.Function):
    """The divergence as a function of the student's affinities; the backward pass computes the gradient from the potentials."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, A: Tensor, T: Tensor, student: Side, teacher: Side, scale: float, found: list[float]
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``found``."""
        ctx.save_for_backward(A, T)  # lets torch detect in-place changes of either
        ctx.sides, ctx.scale = (student, teacher), scale
        parts = compare(student, teacher, 8 * A.numel(), lambda _, G: torch.linalg.vector_norm(G, 1))
        value, size = (sum(terms) for terms in zip(*parts, strict=True))
        found.append(float(size))
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
    """The divergence as a function of the student's vectors; the forward pass computes the gradients together with the value."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        X: Tensor,
        Y: Tensor,
        student: Side,
        teacher: Side,
        scale: float,
        memory: int,
        found: list[float],
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``found``."""
        dtype, factor = student.affinity.dtype, scale / student.epsilon
        needs = ctx.needs_input_grad[:2]
        value, size, dX, dY = _from_strips(X, Y, student, teacher, factor, memory, needs)
        found.append(float(size))
        ctx.save_for_backward(*(None if slope is None else slope.to(side.dtype) for slope, side in ((dX, X), (dY, Y))))
        return (scale * value).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY = (None if slope is None else slope * upstream.to(slope.dtype) for slope in ctx.saved_tensors)
        return dX, dY, None, None, None, None, None


def _from_strips(
    X: Tensor, Y: Tensor, student: Side, teacher: Side, factor: float, memory: int, needs: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the divergence, ‖P − P*‖₁ and, for each one in ``needs``, ``factor`` times (P − P*)·Y and (P − P*)ᵀ·X."""
    dtype, (needs_X, needs_Y) = student.affinity.dtype, needs
    right = Y.to(dtype)
    dX = torch.empty_like(X) if needs_X else None
    dY = torch.zeros_like(right) if needs_Y else None

    def take(part: slice, G: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(G, 1)
        G *= factor
        if dX is not None:
            dX[part] = G @ right
        return size

    def add(part: slice, G: Tensor) -> None:
        assert dY is not None
        dY.addmm_(G.T, X[part].to(dtype))

    parts = compare(student, teacher, memory, take, None if dY is None else add)
    value, size = (sum(terms) for terms in zip(*parts, strict=True))
    return value, size, dX, dY
