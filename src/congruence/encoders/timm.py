"""``timm:<name>``: pooled features of timm's image models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.encoders._base import EncoderOptions, TorchEncoder, loading
from congruence.encoders._items import Item

if TYPE_CHECKING:
    from torch import Tensor


class TimmEncoder(TorchEncoder):
    """A timm image model without its classifier, with its own preprocessing; rows are not scaled.

    The name may be one that timm knows, ``hf-hub:<owner>/<name>``, or a folder with timm's ``config.json``.
    """

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("image",), "layer", "pooling", "revision", "description")
        super().__init__(options, "timm")
        timm = require("timm", extra="timm")
        data = require("timm.data", extra="timm")
        with loading(options):
            name = f"local-dir:{options.folder}" if options.folder else options.path
            model = timm.create_model(name, pretrained=True, num_classes=0)
            config = data.resolve_model_data_config(model)
            self._transform = data.create_transform(**config, is_training=False)
        self._set_model(options, model, modality, normalize=False)
        self._set_fingerprint("timm", prepared=config)

    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        return {"image": self._torch.stack([self._transform(item) for item in items])}

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._model(inputs["image"])
