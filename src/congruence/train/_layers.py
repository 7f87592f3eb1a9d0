"""The layers of a head as torch modules, with conversion from and to plain data. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from congruence._utils.typing import Layer
from congruence.maps.torch_module import TorchLayer

if TYPE_CHECKING:
    from torch import Tensor

#: A head's layers as plain data, in the order in which they are applied; see
#: ``congruence.maps.HeadsMap.from_layers``.
Layers: TypeAlias = list[Layer]


class _SwiGLU(TorchLayer):
    """SwiGLU with the weights of gate and value concatenated: with small batches, one wide product is faster."""

    def __init__(self, layer: Layer):
        both = {name: np.concatenate([layer[f"gate_{name}"], layer[name]], axis=-1) for name in ("weight", "bias")}
        super().__init__({**{name: value for name, value in layer.items() if not name.startswith("gate_")}, **both})

    def forward(self, x: Tensor) -> Tensor:
        gate, value = torch.addmm(self.bias, x, self.weight).chunk(2, dim=1)
        return F.silu(gate) * value

    def plain(self) -> Layer:
        layer = super().plain()
        for name in ("weight", "bias"):
            layer[f"gate_{name}"], layer[name] = (part.copy() for part in np.split(layer[name], 2, axis=-1))
        return layer


class _Dropout(TorchLayer):
    """Dropout, which is active only in training and not part of the plain data of a head."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.device.type != "cpu":
            return F.dropout(x, self.values["p"], self.training)
        # On the CPU, torch draws one random number per entry. Using each random 64-bit word for four entries takes a
        # fifth of the time.
        cut = round(self.values["p"] * 2**16)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        kept = (words.view(torch.int16)[: x.numel()] >= cut - 2**15).view(x.shape)
        return x * kept.to(x.dtype).mul_(2**16 / (2**16 - cut))


class _ResidualLayer(TorchLayer):
    def __init__(self, layer: Layer):
        super().__init__(layer)
        self.inner = Head(layer["layers"])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)

    def plain(self) -> Layer:
        return {"kind": self.kind, **self.values, "layers": self.inner.plain()}


_KINDS: dict[str, type[TorchLayer]] = {"swiglu": _SwiGLU, "dropout": _Dropout, "residual": _ResidualLayer}


class Head(torch.nn.Module):
    """A sequence of layers, given as plain data."""

    def __init__(self, layers: Layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(_KINDS.get(layer["kind"], TorchLayer)(layer) for layer in layers)
        for layer in self.layers:
            if layer.kind == "center":
                layer.requires_grad_(False)  # means are not trained

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to a batch, shape (b, d_in)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def plain(self) -> Layers:
        """Return the layers as plain data, without layers that are active only in training."""
        return [layer.plain() for layer in self.layers if layer.kind != "dropout"]


def linear(d_in: int, d_out: int, rng: np.random.Generator) -> Layer:
    """Return a linear layer with torch's default initialization: uniform in ±1/√d_in."""
    bound = 1 / math.sqrt(d_in)
    return {
        "kind": "linear",
        "weight": rng.uniform(-bound, bound, (d_in, d_out)).astype(np.float32),
        "bias": rng.uniform(-bound, bound, d_out).astype(np.float32),
    }


def mlp(widths: Sequence[int], rng: np.random.Generator) -> Layers:
    """Return linear layers of the given widths with GELU between them; two widths give one linear layer."""
    layers: Layers = []
    for d_in, d_out in pairwise(widths):
        layers += [linear(d_in, d_out, rng), {"kind": "gelu"}]
    return layers[:-1]
