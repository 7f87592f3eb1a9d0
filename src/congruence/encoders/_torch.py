"""Base classes of the encoders that run on PyTorch: device, precision, and digests of weights and tokenizers."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.optional import choose_device, require
from congruence._utils.validation import check_choice
from congruence.encoders._base import Encoder, Item, Options

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from torch.nn import Module

#: Precisions of matrix products, which autocast sets; the weights stay in float32.
DTYPES = ("auto", "float32", "float16", "bfloat16")


class TorchEncoder(Encoder):
    """An encoder whose model is a torch module.

    ``dtype``: precision of its matrix products; vectors are always float32.
    """

    def __init__(self, options: Options, extra: str) -> None:
        self._torch = require("torch", extra=extra)
        self.device = choose_device(self._torch, options.device)
        check_choice(options.dtype, DTYPES, "dtype")
        fallback = "float16" if self.device.startswith("cuda") else "float32"
        self.dtype = fallback if options.dtype == "auto" else options.dtype

    def _place(self, model: Module) -> None:
        """Move the model to its device and prepare it for inference."""
        self._model = model.to(self.device).eval().requires_grad_(False)

    def _set_dim(self, sample: Item) -> None:
        """Encode a sample, and set the width of the space to that of its vector."""
        self.space = replace(self.space, dim=int(self._embed([sample]).shape[1]))

    def _autocast(self) -> AbstractContextManager[object]:
        """Return the context in which matrix products have the requested precision."""
        if self.dtype == "float32":
            return nullcontext()
        return self._torch.autocast(self.device.split(":")[0], getattr(self._torch, self.dtype))


class TensorEncoder(TorchEncoder):
    """A torch encoder that prepares its inputs as tensors on the CPU and moves them to its device."""

    def _embed(self, items: list[Item]) -> np.ndarray:
        inputs = self._prepare(items)  # in full precision: autocast is for the model only
        with self._torch.inference_mode(), self._autocast():
            vectors = self._forward({key: value.to(self.device) for key, value in inputs.items()})
        return vectors.float().cpu().numpy()

    @abstractmethod
    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        """Return the model's inputs as tensors on the CPU."""

    @abstractmethod
    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return vectors as a tensor, shape (b, dim)."""


def weights_digest(model: Module) -> str:
    """Return the hexadecimal SHA-256 of a module's weights, with their names, shapes and types."""
    torch = require("torch", extra="train")
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if hasattr(tensor, "numel"):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the hexadecimal SHA-256 of a tokenizer of transformers: of its full description, or of its vocabulary if it has no fast version."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def blank_image() -> Image.Image:
    """Return an image of one color, from which the width of a model's vectors is determined."""
    return require("PIL.Image", extra="images").new("RGB", (256, 224), (120, 130, 140))
