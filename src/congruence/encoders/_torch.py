"""Helpers of encoders that run on PyTorch: device, precision, and a hash of the weights."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.optional import choose_device, require
from congruence._utils.validation import check_choice
from congruence.encoders._base import Encoder, Item, Options

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from torch.nn import Module

#: Precisions a model can run in; its weights stay in float32, autocast lowers the products.
DTYPES = ("auto", "float32", "float16", "bfloat16")


class TorchEncoder(Encoder):
    """An encoder whose model is a torch module.

    Attributes
    ----------
    device : str
        Where the model is.
    dtype : str
        Precision of its products; the vectors are float32 in any case.
    """

    def __init__(self, options: Options, extra: str) -> None:
        self._torch = require("torch", extra=extra)
        self.device = choose_device(self._torch, options.device)
        check_choice(options.dtype, DTYPES, "dtype")
        fallback = "float16" if self.device.startswith("cuda") else "float32"
        self.dtype = fallback if options.dtype == "auto" else options.dtype

    def _place(self, model: Module) -> None:
        """Put the model where it will run, once and for all."""
        self._model = model.to(self.device).eval().requires_grad_(False)

    def _measure(self, sample: Item) -> None:
        """Complete the space with the width of what the model gives for a sample."""
        self.space = replace(self.space, dim=int(self._embed([sample]).shape[1]))

    def _lowered(self) -> AbstractContextManager[object]:
        """Return the context in which products have the precision asked for."""
        if self.dtype == "float32":
            return nullcontext()
        return self._torch.autocast(self.device.split(":")[0], getattr(self._torch, self.dtype))


class TensorEncoder(TorchEncoder):
    """A torch encoder that prepares its inputs as tensors on the CPU and moves them to its device."""

    def _embed(self, items: list[Item]) -> np.ndarray:
        inputs = self._prepare(items)  # in full precision: only the model is lowered
        with self._torch.inference_mode(), self._lowered():
            vectors = self._forward({key: value.to(self.device) for key, value in inputs.items()})
        return vectors.float().cpu().numpy()

    @abstractmethod
    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        """Return the model's inputs as tensors on the CPU."""

    @abstractmethod
    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return vectors as a tensor, shape (b, dim)."""


def weights_digest(model: Module) -> str:
    """Return SHA-256 in hex of a module's weights, names, shapes and types.

    Parameters
    ----------
    model : torch.nn.Module

    Returns
    -------
    str
    """
    torch = require("torch", extra="train")
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if hasattr(tensor, "numel"):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def blank_image() -> Image.Image:
    """Return a picture for testing a model."""
    return require("PIL.Image", extra="images").new("RGB", (256, 224), (120, 130, 140))
