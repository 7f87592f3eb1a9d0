"""A fitted map as a ``torch.nn.Module``; imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from congruence._utils.typing import Layer
from congruence.errors import ShapeError
from congruence.maps._layers import LAYERS
from congruence.maps.readout import Folded, to_sphere

if TYPE_CHECKING:
    from torch import Tensor


class TorchMap(nn.Module):
    """The layers of a map as a module, from rows (…, d_in) to rows (…, d_out); created by ``Map.to_torch``."""

    def __init__(
        self,
        layers: Iterable[Layer],
        d_in: int,
        d_out: int,
        *,
        trainable: bool = False,
        dtype: torch.dtype = torch.float32,
        about: str = "",
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_modules(layers, dtype))
        self.d_in, self.d_out, self.about = d_in, d_out, about
        self.requires_grad_(trainable)

    def forward(self, input: Tensor) -> Tensor:
        """Map rows (…, d_in), on the module's device and of its dtype, to rows (…, d_out)."""
        if input.shape[-1] != self.d_in:
            problem = f"Got rows of width {input.shape[-1]}; expected {self.d_in}, the width of the map's input."
            raise ShapeError(problem, "Pass vectors of its source model.")
        out: Tensor = self.layers(input)
        return out

    def extra_repr(self) -> str:
        """Return the map's kind, widths and modality, and whether mapped rows have unit norm."""
        return self.about


def _normalize(x: Tensor) -> Tensor:
    """Return rows (…, d) of unit norm; half precision is summed in float32. Zero rows stay, with a gradient."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32 if half else None)
    return (x / torch.where(norms > 0, norms, torch.ones_like(norms))).to(x.dtype)


class TorchLayer(nn.Module):
    """One layer: its arrays are parameters, and all other values plain numbers."""

    def __init__(self, layer: Layer, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kind = layer["kind"]
        self.values = {name: value for name, value in layer.items() if isinstance(value, float)}
        for name, value in layer.items():
            if isinstance(value, np.ndarray):  # a copy, on the CPU; the module's to() moves it
                self.register_parameter(name, nn.Parameter(torch.tensor(value, dtype=dtype, device="cpu")))

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to rows (…, d)."""
        if self.kind == "normalize":
            return _normalize(input)
        if self.kind == "sphere":
            return _sphere(self, input)
        out: Tensor = LAYERS[self.kind].forward({**self.values, **self._parameters}, input)
        return out

    def plain(self) -> Layer:
        """Return the layer as plain data."""
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}
        return {"kind": self.kind, **self.values, **arrays}


def _sphere(layer: nn.Module, x: Tensor) -> Tensor:
    mean, offset = getattr(layer, "mean", None), np.array(layer.values["offset"])
    folded = Folded(np.empty(0), offset, layer.base, layer.axis, layer.values["height"], mean)
    out: Tensor = to_sphere(x.reshape(-1, x.shape[-1]), folded).reshape(x.shape)
    return out


class _Sum(nn.ModuleList):
    def forward(self, input: Tensor) -> Tensor:
        first, *rest = self
        out = first(input)
        for branch in rest:
            out = out + branch(input)
        return out


class _Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def _modules(layers: Iterable[Layer], dtype: torch.dtype) -> list[nn.Module]:
    return [_module(layer, dtype) for layer in layers]


def _module(layer: Layer, dtype: torch.dtype) -> nn.Module:
    if layer["kind"] == "residual":
        return _Residual(*_modules(layer["layers"], dtype))
    if layer["kind"] == "sum":
        return _Sum(nn.Sequential(*_modules(branch, dtype)) for branch in layer["branches"])
    if layer["kind"] != "linear":
        return TorchLayer(layer, dtype)
    # torch's own class, which its tools (quantization, pruning) look for. Skip the default initialization, which would
    # draw from the caller's random generator.
    weight, bias = torch.tensor(layer["weight"].T, dtype=dtype), layer.get("bias")
    module = nn.utils.skip_init(nn.Linear, *weight.T.shape, bias=bias is not None, dtype=dtype, device="cpu")
    module.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        module.bias = nn.Parameter(torch.tensor(bias, dtype=dtype))
    return module
