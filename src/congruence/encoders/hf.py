"""``hf:<name-or-path>``: Hugging Face transformers, from CLIP, SigLIP and FLAVA to DINO, BERT and language models."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import Item, Options, check_modality, check_pooling, fingerprint, loading
from congruence.encoders._torch import TensorEncoder, blank_image, weights_digest
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from torch.nn import Module

__all__ = ["HfEncoder"]

#: Text towers that saw every text padded to the full length, and read their vector off the last place.
_PADDED = ("siglip", "siglip2")

#: Models whose positions begin after the padding's: two of them are no room for tokens.
_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")


class HfEncoder(TensorEncoder):
    """A tower of a dual encoder, or a unimodal model, in transformers.

    A dual encoder (CLIP, SigLIP, SigLIP2, FLAVA …) gives its projected features, scaled to unit norm as the Canonical
    paper does; FLAVA, which projects every token, those of its [CLS] token, on which its contrastive loss acts. With
    ``layer`` or ``pooling`` the tower's hidden states are pooled instead, before any projection. Any other model's
    hidden states are pooled and left unscaled: ``cls`` for images where there is one, else ``mean``.

    Image processors run in their Pillow form even where torchvision is installed, so that vectors do not depend on it;
    the one of DINOv3, which has no such form, is computed here with the same operations.

    Parameters
    ----------
    options : Options

    Raises
    ------
    MissingExtraError, ParameterError, FileError
        If an optional dependency is not installed; a parameter has an invalid value; or a file cannot be read.
    """

    def __init__(self, options: Options) -> None:
        options.refuse("description")
        check_pooling(options)
        super().__init__(options, "hf")
        transformers = require("transformers", extra="hf")
        with loading(options), _quiet(transformers):
            place = options.folder or options.path
            # A hub's commit names the weights; a folder on this machine may hold any.
            commit = None if options.folder else _commit(transformers, place, options.revision)
            revision = commit or options.revision
            hub: dict[str, str] = {"revision": revision} if revision else {}
            model = transformers.AutoModel.from_pretrained(
                place,
                dtype=self._torch.float32,
                trust_remote_code=False,
                use_safetensors=True if options.safetensors_only else None,
                **hub,
            )
            dual = hasattr(model, "get_image_features") and hasattr(model, "get_text_features")
            sees = model.main_input_name == "pixel_values"
            modality = check_modality(options, ("image", "text") if dual else ("image",) if sees else ("text",))
            prepared = (
                self._start_images(transformers, place, model, hub)
                if modality == "image"
                else self._start_texts(transformers, place, model, hub)
            )
        self._projected = dual and options.layer is None and options.pooling is None
        self._modality, self._layer = modality, options.layer
        tower = model if self._projected or not dual else _tower(model, modality)
        self._start_pooling(tower, options, modality)
        weights = commit or f"sha256:{weights_digest(model)}"
        normalize = self._projected if options.normalize is None else options.normalize
        self._place(tower)
        self._describe(options, modality, normalize=normalize, revision=commit or weights[:19])
        self._count_layers()
        self._measure(blank_image() if modality == "image" else "a text")
        self.fingerprint = fingerprint(
            adapter="hf",
            model=options.path if commit else "",
            weights=weights,
            modality=modality,
            prepared=prepared,
            layer=self._layer,
            pooling=None if self._projected else self._pooling,
            normalize=normalize,
            dtype=self.dtype,
        )

    # ------------------------------------------------------------------ inputs

    def _start_images(
        self, transformers: ModuleType, place: str, model: Module, hub: dict[str, str]
    ) -> dict[str, object]:
        facts, _ = transformers.ImageProcessingMixin.get_image_processor_dict(place, **hub)
        kind = facts.get("image_processor_type") or ""
        if kind.startswith("DINOv3ViT"):
            self._processor: Any = _Dinov3Processor(self._torch, facts)
            return self._processor.facts
        self._processor = transformers.AutoImageProcessor.from_pretrained(
            place, backend="pil", trust_remote_code=False, **hub
        )
        return {"class": type(self._processor).__name__, **json.loads(self._processor.to_json_string())}

    def _start_texts(
        self, transformers: ModuleType, place: str, model: Module, hub: dict[str, str]
    ) -> dict[str, object]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False, **hub)
        if tokenizer.pad_token_id is None:  # language models have none; what is padded is masked
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = tokenizer.padding_side if model.config.model_type in _PADDED else "right"
        config = getattr(model.config, "text_config", model.config)
        room = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
        room -= 2 if config.model_type in _OFFSET else 0
        self._tokenizer = tokenizer
        self._length = int(min(tokenizer.model_max_length, room))
        self._padding = "max_length" if model.config.model_type in _PADDED else "longest"
        self._masked = "attention_mask" in tokenizer.model_input_names
        fast = getattr(tokenizer, "backend_tokenizer", None)
        text = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
        return {
            "tokenizer": hashlib.sha256(text.encode()).hexdigest(),
            "padding": [self._padding, tokenizer.padding_side, tokenizer.pad_token_id, self._masked],
            "length": self._length,
        }

    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        if self._modality == "image":
            # Said outright: a picture three pixels high would be taken for one with its channels first.
            batch = self._processor(images=items, return_tensors="pt", input_data_format="channels_last")
            return {key: value for key, value in batch.items() if self._torch.is_tensor(value)}
        batch = self._tokenizer(
            items,
            padding=self._padding,
            truncation=True,
            max_length=self._length,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return dict(batch)

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return how many tokens of each text the model reads, padding left out."""
        read = self._tokenizer(texts, truncation=True, max_length=self._length)
        return [len(tokens) for tokens in read["input_ids"]]

    # ------------------------------------------------------------------ vectors

    def _start_pooling(self, tower: Module, options: Options, modality: str) -> None:
        names = [name.rpartition(".")[2] for name, _ in tower.named_parameters()]
        has_cls = "cls_token" in names or "class_embedding" in names
        if modality == "text":
            has_cls = self._tokenizer.cls_token_id is not None
        extra = int(getattr(tower.config, "num_register_tokens", 0) or 0) + ("distillation_token" in names)
        self._prefix = has_cls + extra if modality == "image" else 0
        self._pooling = options.pooling or ("cls" if has_cls and modality == "image" else "mean")
        if (self._pooling.startswith("cls") and not has_cls) or (self._pooling == "last" and modality == "image"):
            allowed = "'mean'" if modality == "image" else "'mean' or 'last'"
            token = "[CLS] token" if self._pooling != "last" else "last token that means the whole"
            raise ParameterError(
                f"Got pooling={self._pooling!r} for the {modality}s of {options.name!r}, which have no {token}; "
                f"expected {allowed}. Pass such a pooling=…."
            )

    def _count_layers(self) -> None:
        """Find out how many hidden states there are, and which of them is meant."""
        if self._layer is None:
            return
        layer, self._layer, self.n_layers = self._layer, "all", None
        sample = blank_image() if self._modality == "image" else "a text"
        self._stacked = 0
        self._embed([sample])
        count = self._stacked
        if isinstance(layer, str):  # "all"
            self.n_layers = count
            return
        if not -count <= layer < count:
            raise ParameterError(
                f"Got layer={layer} of {self.space.model!r}; expected 0, the embeddings, to {count - 1}, the last. Pass a layer in this range."
            )
        self._layer = layer % count

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs.get("attention_mask")
        if mask is not None and not self._masked:
            inputs = {key: value for key, value in inputs.items() if key != "attention_mask"}
        if self._projected:
            dual = self._model.get_image_features if self._modality == "image" else self._model.get_text_features
            features = dual(**inputs)
            features = getattr(features, "pooler_output", features)
            return features[:, 0] if features.ndim == 3 else features
        out = self._model(**inputs, output_hidden_states=self._layer is not None)
        mask = inputs.get("pixel_attention_mask", mask)
        if self._layer is None:
            return self._pool(out.last_hidden_state, mask)
        if self._layer != "all":
            return self._pool(out.hidden_states[self._layer], mask)
        self._stacked = len(out.hidden_states)
        return self._torch.cat([self._pool(states, mask) for states in out.hidden_states], dim=1)

    def _pool(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Pool hidden states, shape (b, tokens, d); those of a convolution (b, d, height, width) count as tokens."""
        states = states.float()
        states = states.flatten(2).transpose(1, 2) if states.ndim == 4 else states
        if self._pooling == "cls":
            return states[:, 0]
        if mask is None:
            weight = states.new_ones(states.shape[:2])
        else:
            weight = mask.to(states.dtype)
        if self._pooling == "last":
            place = (weight.cumsum(1) * weight).argmax(1)
            return states[self._torch.arange(len(states), device=states.device), place]
        # Of an image, the patches alone; of a text, every token that is not padding.
        rest, weight = states[:, self._prefix :], weight[:, self._prefix :]
        mean = (rest * weight[..., None]).sum(1) / weight.sum(1, keepdim=True).clamp(min=1)
        return mean if self._pooling == "mean" else self._torch.cat([states[:, 0], mean], dim=1)


class _Dinov3Processor:
    """DINOv3's preparation, whose own class needs torchvision: rescale, resize with antialiasing, standardise."""

    def __init__(self, torch: ModuleType, facts: dict[str, Any]) -> None:
        size = facts.get("size") or {"height": 224, "width": 224}
        self._torch = torch
        self.facts = {
            "class": "DINOv3ViT",
            "size": [int(size["height"]), int(size["width"])],
            "scale": float(facts.get("rescale_factor", 1 / 255)),
            "mean": [float(x) for x in facts.get("image_mean", (0.485, 0.456, 0.406))],
            "std": [float(x) for x in facts.get("image_std", (0.229, 0.224, 0.225))],
        }
        resample = facts.get("resample", 2)
        odd = [key for key in ("do_resize", "do_rescale", "do_normalize") if not facts.get(key, True)]
        if odd or facts.get("do_center_crop") or resample not in (2, 3):
            raise ParameterError(
                f"Got a DINOv3 preprocessor with resample={resample}, do_center_crop={facts.get('do_center_crop')} and "
                f"{odd or 'nothing'} switched off; expected resizing, rescaling and standardizing alone. Load the model through another adapter, timm: for example."
            )
        self.facts["mode"] = {2: "bilinear", 3: "bicubic"}[resample]

    def __call__(self, images: list[Image.Image], **_: object) -> dict[str, Tensor]:
        torch, facts = self._torch, self.facts
        out = []
        for image in images:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() * facts["scale"]
            out.append(
                torch.nn.functional.interpolate(
                    pixels, size=facts["size"], mode=facts["mode"], antialias=True, align_corners=False
                )
            )
        mean, std = (torch.tensor(facts[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
        return {"pixel_values": (torch.cat(out) - mean) / std}


def _commit(transformers: ModuleType, name: str, revision: str | None) -> str | None:
    """Return the commit that a branch or tag of the hub stands for, so that every file is of the same one."""
    file = transformers.utils.cached_file(name, "config.json", revision=revision)
    found = re.search(r"[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]", str(file))
    return found[1] if found else None


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Silence notes on unused weights and bars for weights that load in a second."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _tower(model: Module, modality: str) -> Module:
    """Return the part of a dual encoder that sees one modality."""
    names = ("vision_model", "image_model") if modality == "image" else ("text_model",)
    found = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if found is None:
        raise ParameterError(
            f"Got layer or pooling for {type(model).__name__}, whose {modality} tower has no known name; expected a dual encoder like CLIP. Leave out layer=… and pooling=…."
        )
    return found
