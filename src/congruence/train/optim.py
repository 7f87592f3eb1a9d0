"""The optimizers of the training loop, and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch


class Lion(torch.optim.Optimizer):
    """Evolved sign momentum (Chen et al. 2023, algorithm 2), with decoupled weight decay.

    Every weight changes by the learning rate, up or down, whatever the size of its gradient: multiplying a loss by a
    constant has no effect, only the ratio of two losses matters.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, object]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                p.mul_(1 - rate * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, first).sign_(), alpha=-rate)
                momentum.lerp_(p.grad, 1 - second)
        return loss


def make_optimizer(name: str, module: torch.nn.Module, rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return an optimizer for a module; vectors and scalars (biases, gains, scales) have no weight decay."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "lion":
        return Lion(groups, lr=rate)
    # Fused: one pass over memory instead of a dozen, which matters with small batches, where the optimizer takes much
    # of a step.
    fused = all(p.device.type in ("cpu", "cuda") for p in trained)
    return torch.optim.AdamW(groups, lr=rate, fused=fused)


def rate_at(step: int, steps: int, warmup: int, schedule: str) -> float:
    """Return the share of the learning rate at a step: a linear rise from 1/warmup, then constant or half a cosine,
    which ends above zero.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
