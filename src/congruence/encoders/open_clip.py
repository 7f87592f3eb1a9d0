"""``open_clip:<arch>/<tag>``: CLIP models of OpenAI, LAION and others, through open_clip."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.encoders._base import EncoderOptions, TorchEncoder, loading
from congruence.encoders._items import Item
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from torch import Tensor


class OpenClipEncoder(TorchEncoder):
    """One tower of an open_clip model; rows have unit norm by default.

    Besides ``<arch>/<tag>`` the name may be ``<arch>/<file of weights>``, ``hf-hub:<owner>/<name>``, or a folder with
    an ``open_clip_config.json``. QuickGELU is used for all weights that were trained with it, so
    ``ViT-B-32/laion400m_e31`` is the same model as ``ViT-B-32-quickgelu/laion400m_e31``.
    """

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("image", "text"), "layer", "pooling", "revision", "description")
        super().__init__(options, "open-clip")
        open_clip = require("open_clip", extra="open-clip")
        folder = None if "/" in options.path and options.path[0] not in "/.~" else options.folder
        arch, slash, tag = options.path.partition("/")
        if options.path.startswith("hf-hub:"):
            arch, tag = options.path, ""
        elif folder:
            arch, tag = f"local-dir:{folder}", ""
        elif not slash or not tag:
            problem = f"Got {options.name!r}; expected open_clip:<arch>/<tag>."
            raise ParameterError(problem, "Pass a pair of open_clip.list_pretrained().")
        quick = bool(tag) and bool(open_clip.get_pretrained_cfg(arch, tag).get("quick_gelu"))
        with loading(options):
            model, self._transform = open_clip.create_model_from_pretrained(
                arch, pretrained=tag or None, precision="fp32", device="cpu", force_quick_gelu=quick, weights_only=True
            )
            self._tokenizer = open_clip.get_tokenizer(arch) if modality == "text" else None
        self._set_model(options, model, modality, normalize=True)
        if self._tokenizer is None:
            facts = open_clip.get_model_preprocess_cfg(model)
            prepared: object = asdict(facts) if is_dataclass(facts) and not isinstance(facts, type) else dict(facts)
        else:  # the tokens of a sample, since open_clip's tokenizers have no common description
            prepared = [int(token) for token in self._tokenizer(["A photo of 12 naïve façades, isn't it?"])[0]]
        self._set_fingerprint("open_clip", quick_gelu=quick, modality=modality, prepared=prepared)

    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        if self._tokenizer is not None:
            return {"text": self._tokenizer(items)}
        return {"image": self._torch.stack([self._transform(item) for item in items])}

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._model.encode_text(**inputs) if "text" in inputs else self._model.encode_image(**inputs)
