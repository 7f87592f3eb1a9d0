"""A fitted map as a ``torch.nn.Module``; imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from congruence._utils.typing import Layer
from congruence.errors import ShapeError

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
            raise ShapeError(
                f"Got rows of width {input.shape[-1]}; expected {self.d_in}, the width of the map's input.",
                "Pass vectors of its source model.",
            )
        out: Tensor = self.layers(input)
        return out

    def extra_repr(self) -> str:
        """Return the map's kind, widths and modality, and whether mapped rows have unit norm."""
        return self.about


class UnitRows(nn.Module):
    """Scale rows to unit norm. Zero rows stay zero and have a finite gradient, unlike with torch's own function."""

    def forward(self, input: Tensor) -> Tensor:
        """Return rows of unit norm, shape (…, d), in their dtype; half precision is summed in float32."""
        half = input.dtype in (torch.float16, torch.bfloat16)
        norms = torch.linalg.vector_norm(input, dim=-1, keepdim=True, dtype=torch.float32 if half else None)
        return (input / torch.where(norms > 0, norms, torch.ones_like(norms))).to(input.dtype)


class _Center(nn.Module):
    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean)

    def forward(self, input: Tensor) -> Tensor:
        return input - self.mean


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


class _SwiGLU(nn.Module):
    def __init__(self, gate: nn.Module, value: nn.Module) -> None:
        super().__init__()
        self.gate, self.value = gate, value

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.silu(self.gate(input)) * self.value(input)


def _modules(layers: Iterable[Layer], dtype: torch.dtype) -> list[nn.Module]:
    return [_MODULES[layer["kind"]](layer, dtype) for layer in layers]


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.tensor(array, dtype=dtype, device="cpu")  # a copy; the module's to() moves it


def _linear(weight: np.ndarray, bias: np.ndarray | None, dtype: torch.dtype) -> nn.Module:
    d_in, d_out = weight.shape
    # Skip the default initialization, which would draw from the caller's random generator.
    module = nn.utils.skip_init(nn.Linear, d_in, d_out, bias=bias is not None, dtype=dtype, device="cpu")
    module.weight = nn.Parameter(_tensor(weight.T, dtype).contiguous())
    if bias is not None:
        module.bias = nn.Parameter(_tensor(bias, dtype))
    return module


def _layernorm(layer: Layer, dtype: torch.dtype) -> nn.Module:
    weight, bias = layer.get("weight"), layer.get("bias")
    if weight is None and bias is None:
        return _PlainLayerNorm(layer["eps"])
    module = nn.LayerNorm(
        len(layer["bias"] if weight is None else weight),
        eps=layer["eps"],
        bias=bias is not None,
        dtype=dtype,
        device="cpu",
    )
    if weight is not None:
        module.weight = nn.Parameter(_tensor(weight, dtype))
    if bias is not None:
        module.bias = nn.Parameter(_tensor(bias, dtype))
    return module


class _PlainLayerNorm(nn.Module):
    """Layer normalization without weights, and therefore for any width."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.layer_norm(input, input.shape[-1:], eps=self.eps)


#: The module class of each kind of layer. ``tests/integrations/test_torch.py`` compares the keys with the table of
#: layers.
_MODULES: dict[str, Callable[[Layer, torch.dtype], nn.Module]] = {
    "normalize": lambda layer, dtype: UnitRows(),
    "center": lambda layer, dtype: _Center(_tensor(layer["mean"], dtype)),
    "linear": lambda layer, dtype: _linear(layer["weight"], layer.get("bias"), dtype),
    "gelu": lambda layer, dtype: nn.GELU(),
    "relu": lambda layer, dtype: nn.ReLU(),
    "silu": lambda layer, dtype: nn.SiLU(),
    "layernorm": _layernorm,
    "swiglu": lambda layer, dtype: _SwiGLU(
        _linear(layer["gate_weight"], layer.get("gate_bias"), dtype), _linear(layer["weight"], layer.get("bias"), dtype)
    ),
    "residual": lambda layer, dtype: _Residual(*_modules(layer["layers"], dtype)),
    "sum": lambda layer, dtype: _Sum(nn.Sequential(*_modules(branch, dtype)) for branch in layer["branches"]),
}
