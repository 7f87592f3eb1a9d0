"""Autograd functions with the explicit gradient of the KLOT loss.

Imports torch; import this module only if torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from congruence._utils.arrays import blocks
from congruence.transport._kernel import Dense, Scratch, exponential, fits, remote, strip_bytes, strip_pool_for, width
from congruence.transport.entropic import Side


def compare(
    student: Side,
    teacher: Side,
    memory: int,
    gradient: Tensor | None = None,
    use: Callable[[slice, Tensor], None] | None = None,
    then: Callable[[slice, Tensor], None] | None = None,
) -> tuple[float, float]:
    """Return the divergence and ‖P − P*‖₁, and write P − P* into ``gradient`` (n, m), which may be the memory of the
    teacher's kernel; without, each strip of it is scratch memory.

    The divergence is the sum of P* log(P*/P) − P* + P: over all rows the last two terms cancel up to rounding, but with
    them the gradient is exact at any potentials. ``use``, in several threads at once, and then ``then``, in the order
    of the rows, get a slice and its strip of P − P*.
    """
    A, at = student.affinity, teacher.potentials
    kernel: Any = teacher.kernel
    T: Any = teacher.affinity
    scratch = Scratch(A)
    kept = gradient is not None and kernel is not None and kernel.buffer is gradient
    if kept:
        rows, columns = A.vector(np.exp(at.u - kernel.u)), A.vector(np.exp(at.v - kernel.v))
        u = A.vector(at.u + teacher.marginals[1] @ at.v)

    def strip(part: slice) -> Any:
        return scratch.rows(part.stop - part.start, 1) if gradient is None else gradient[part]

    def work(part: slice) -> tuple[float, float]:
        P: Any = scratch.rows(part.stop - part.start)
        Q = strip(part)
        student.exponent(part, P)
        if kept:  # columns of both plans add up; the product of P* with log P* is that with affinities and potentials
            Q *= rows[part, None]
            Q *= columns
            terms = dots(Q, T.A[part].to(Q.dtype)) / teacher.epsilon - dots(Q, P) + Q.sum(dim=1) * u[part]
            exponential(P)
        else:
            spare: Any = scratch.rows(len(P), 2)
            torch.sub(teacher.exponent(part, Q), P, out=spare)
            exponential(Q)
            terms = dots(Q, spare) + exponential(P).sum(dim=1) - Q.sum(dim=1)
        torch.sub(P, Q, out=Q)
        difference = torch.abs(Q, out=P).sum(dim=1)
        if use is not None:
            use(part, Q)
        return float(terms.sum(dtype=torch.float64)), float(difference.sum(dtype=torch.float64))

    after = None if then is None else lambda part, _: then(part, strip(part))
    parts = list(blocks(A.shape[0], width(A), strip_bytes(A.device, fits(A, memory))))
    with strip_pool_for(A, memory) as pool:
        values, differences = zip(*pool.each(work, parts, after), strict=True)
    return max(sum(values), 0.0), sum(differences)  # below 0 only by rounding


def dots(P: Tensor, Q: Tensor) -> Tensor:
    """Return the dot product of each row of P with that of Q, (n,); NumPy's do not depend on the number of threads."""
    if remote(P.device):
        return torch.linalg.vecdot(P, Q)
    return torch.from_numpy(np.vecdot(P.numpy(), Q.numpy()))


class Klot(torch.autograd.Function):
    """The divergence as a function of the student's affinities."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, A: Tensor, T: Tensor, student: Side, teacher: Side, scale: float, differences: list[float]
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``differences``."""
        ctx.save_for_backward(A, T)  # lets torch detect in-place changes of either
        buffer: Any = teacher.kernel and teacher.kernel.buffer
        if buffer is None and ctx.needs_input_grad[0]:
            buffer = torch.empty(A.shape, dtype=student.affinity.dtype, device=A.device)
        value, difference = compare(student, teacher, 8 * A.numel(), buffer)
        ctx.gradient = buffer if ctx.needs_input_grad[0] else None
        ctx.sides, ctx.scale = (student, replace(teacher, kernel=None)), scale
        differences.append(difference)
        return torch.as_tensor(scale * value, dtype=student.affinity.dtype, device=A.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return (P − P*)/ε times ``scale`` and the upstream gradient."""
        A, _ = ctx.saved_tensors
        student, teacher = ctx.sides
        gradient, ctx.gradient = ctx.gradient, None  # given away, and computed again if it is asked for again
        if gradient is None:
            gradient = torch.empty(A.shape, dtype=student.affinity.dtype, device=A.device)
            compare(student, teacher, 8 * A.numel(), gradient)
        gradient *= upstream * (ctx.scale / student.epsilon)
        return gradient.to(A.dtype), None, None, None, None, None


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

        def write_dX(part: slice, G: Tensor) -> None:
            G *= factor
            if dX is not None:
                dX[part] = G @ wide_Y

        def add_dY(part: slice, G: Tensor) -> None:
            assert dY is not None
            dY.addmm_(G.T, X[part].to(dtype))

        buffer: Any = teacher.kernel and teacher.kernel.buffer if isinstance(teacher.affinity, Dense) else None
        then = None if dY is None else add_dY
        value, difference = compare(student, teacher, memory, buffer, write_dX, then)
        differences.append(difference)
        ctx.save_for_backward(*(None if grad is None else grad.to(side.dtype) for grad, side in ((dX, X), (dY, Y))))
        return torch.as_tensor(scale * value, dtype=dtype, device=X.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients from the forward pass times the upstream gradient."""
        dX, dY = (None if grad is None else grad * upstream.to(grad.dtype) for grad in ctx.saved_tensors)
        return dX, dY, None, None, None, None, None
