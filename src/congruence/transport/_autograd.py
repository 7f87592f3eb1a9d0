"""Autograd functions with the explicit gradient of the KLOT loss.

Imports torch; import this module only if torch is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array
from congruence.transport._kernel import Dense, Scratch, exponential, fits, strip_bytes, strip_pool_for, width
from congruence.transport.entropic import Side

T = TypeVar("T")


def compare(
    student: Side,
    teacher: Side,
    memory: int,
    use: Callable[[slice, Array], T],
    then: Callable[[slice, Array], None] | None = None,
) -> list[tuple[Array, T]]:
    """Return, for each strip of rows, its part of the divergence and the result of ``use`` on P − P*.

    A part is the sum of P* log(P*/P) − P* + P, float64: over all rows the last two terms cancel up to rounding, but
    with them the sum is never negative, and the gradient is exact at any potentials. ``use``, in several threads at
    once, and then ``then``, in the order of the rows, get a slice and its strip of P − P*, which is scratch memory.
    """
    affinity = student.affinity
    xp, n = affinity.xp, affinity.shape[0]
    held = fits(affinity, memory)
    parts = list(blocks(n, width(affinity), strip_bytes(affinity.device, held)))
    scratch = Scratch(affinity)

    def strip(part: slice, number: int) -> Array:
        return scratch.rows(part.stop - part.start, number)

    def work(part: slice) -> tuple[Array, T]:
        P, Q, spare = (strip(part, number) for number in range(3))
        student.exponent(part, P)
        teacher.exponent(part, Q)
        xp.subtract(Q, P, out=spare)
        spare *= exponential(Q)
        exponential(P)
        P -= Q
        spare += P
        return xp.sum(xp.astype(xp.sum(spare, axis=1), xp.float64)), use(part, P)

    after = None if then is None else lambda part, _: then(part, strip(part, 0))
    with strip_pool_for(affinity, memory) as pool:
        return list(pool.each(work, parts, after))


class Klot(torch.autograd.Function):
    """The divergence as a function of the student's affinities."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, A: Tensor, T: Tensor, student: Side, teacher: Side, scale: float, differences: list[float]
    ) -> Tensor:
        """Return ``scale`` times the divergence, and append ‖P − P*‖₁ to ``differences``."""
        ctx.save_for_backward(A, T)  # lets torch detect in-place changes of either
        value, difference, ctx.gradient = _compare_in_place(student, teacher, ctx.needs_input_grad[0])
        ctx.sides, ctx.scale = (student, replace(teacher, kernel=None)), scale
        differences.append(difference)
        return torch.as_tensor(scale * value, dtype=student.affinity.dtype, device=A.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return (P − P*)/ε times ``scale`` and the upstream gradient."""
        A, _ = ctx.saved_tensors
        student, teacher = ctx.sides
        factor = upstream * (ctx.scale / student.epsilon)
        gradient, ctx.gradient = ctx.gradient, None  # given away, and computed again if it is asked for again
        if gradient is not None:
            gradient *= factor
            return gradient.to(A.dtype), None, None, None, None, None
        gradient = torch.empty_like(A)

        def keep(part: slice, G: Tensor) -> None:
            G *= factor
            gradient[part] = G

        compare(student, teacher, 8 * A.numel(), keep)
        return gradient, None, None, None, None, None


def _compare_in_place(student: Side, teacher: Side, keep: bool) -> tuple[float, float, Tensor | None]:
    """Return the divergence, ‖P − P*‖₁ and, to ``keep``, P − P* (n, m), which takes the place of the teacher's kernel.

    The logarithm of P* is not computed again: its products with P* are those of the affinities and of the potentials.
    """
    A, T, kernel = student.affinity, teacher.affinity, teacher.kernel
    if kernel is None or kernel.buffer is None or not isinstance(T, Dense):
        parts = compare(student, teacher, 8 * math.prod(A.shape), lambda _, G: torch.linalg.vector_norm(G, 1))
        value, difference = (float(sum(terms)) for terms in zip(*parts, strict=True))
        return value, difference, None
    u, v = teacher.potentials.u, teacher.potentials.v
    rows, columns = (T.vector(np.exp(side)) for side in (u - kernel.u, v - kernel.v))
    du, dv = (T.vector(there - here) for there, here in ((u, student.potentials.u), (v, student.potentials.v)))
    gradient: Any = kernel.buffer
    ones = torch.ones_like(columns)
    scratch = Scratch(A)

    def work(part: slice) -> tuple[float, float]:
        Q: Tensor = gradient[part]
        Q *= rows[part, None]
        Q *= columns
        P: Any = scratch.rows(part.stop - part.start)
        flat, sums = Q.reshape(-1), Q @ ones
        value = sums @ (du[part] - 1) + (Q @ dv).sum()
        for side, sign in ((teacher, 1), (student, -1)):
            affinities: Any = side.affinity
            value += torch.dot(flat, affinities.A[part].to(Q.dtype).reshape(-1)) * (sign / side.epsilon)
        exponential(student.exponent(part, P))
        value += (P @ ones).sum()
        torch.sub(P, Q, out=Q)
        return float(value), float((torch.abs(Q, out=P) @ ones).sum())

    pieces = list(blocks(A.shape[0], width(A), strip_bytes(A.device, True)))
    with strip_pool_for(A, math.prod(A.shape) * A.itemsize) as pool:
        values, differences = zip(*pool.each(work, pieces), strict=True)
    return max(sum(values), 0.0), sum(differences), gradient if keep else None  # below 0 only by rounding


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
