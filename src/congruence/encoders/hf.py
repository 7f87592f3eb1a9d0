"""``hf:<name-or-path>``: Hugging Face transformers, from CLIP, CLAP and X-CLIP to DINO, BERT and language models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.encoders._base import (
    POOLINGS,
    EncoderOptions,
    TorchEncoder,
    loading,
    pool,
    tokenizer_digest,
    weights_digest,
)
from congruence.encoders._items import ENCODED, Item
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from torch.nn import Module


#: Model types whose text towers were trained on texts padded to the full length, and pool the last position.
_PADDED = ("siglip", "siglip2")

#: Model types whose position numbers start after the padding index, so that two positions are not available for tokens.
_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "clap_text_model", "altclip_text_model")

#: Modality of a model with one tower, by its main input; of any other it is text.
_MAIN = {"pixel_values": "image", "pixel_values_videos": "video", "input_values": "audio", "input_features": "audio"}


class HfEncoder(TorchEncoder):
    """One tower of a dual encoder, or a unimodal model, from transformers.

    The vectors of a dual encoder (CLIP, SigLIP, FLAVA; CLAP for audio, X-CLIP for video …) are its projected features,
    scaled to unit norm as in the Canonical paper; FLAVA's are those of the [CLS] token, to which its contrastive loss
    applies. With ``layer`` or ``pooling``, hidden states are pooled instead, as are those of any other model, and not
    scaled. Image processors always use Pillow, so that vectors do not depend on whether torchvision is installed.
    """

    def __init__(self, options: EncoderOptions) -> None:
        if options.pooling is not None:
            check_choice(options.pooling, POOLINGS, "pooling")
        layer = options.layer
        if layer not in (None, "all") and (not isinstance(layer, int) or isinstance(layer, bool)):
            raise ParameterError(f"Got `layer={layer!r}`.", "Pass a whole number, `layer=-1` for the last, or 'all'.")
        super().__init__(options, "hf")
        transformers = require("transformers", extra="hf")
        with loading(options), _quiet(transformers):
            name = options.folder or options.path
            # A commit on the hub identifies the weights; the content of a local folder can change.
            commit = None if options.folder else _commit(transformers, name, options.revision)
            revision = commit or options.revision
            hub: dict[str, str] = {"revision": revision} if revision else {}
            safe = {"trust_remote_code": False, "use_safetensors": True if options.safetensors_only else None}
            model = transformers.AutoModel.from_pretrained(name, dtype=self._torch.float32, **safe, **hub)
            towers = tuple(one for one in ENCODED if hasattr(model, f"get_{one}_features"))
            dual = "text" in towers and len(towers) > 1
            offered = towers if dual else (_MAIN.get(model.main_input_name, "text"),)
            modality = options.check(offered, "description")
            sequence = modality in ("audio", "video")
            if sequence:
                options.check(offered, "layer", "pooling")
            # BLIP-2 compares a text with the best of an image's 32 vectors.
            if model.config.model_type == "blip-2" or (sequence and not dual):
                problem = f"{options.name!r}, a {type(model).__name__}, has no one vector for {modality} items."
                raise ParameterError(problem, "Write its vectors by a function: congruence.encoders.load_towers.")
            if modality == "text":
                preprocessing = self._load_tokenizer(transformers, name, model, hub)
            else:
                preprocessing = self._load_processor(transformers, name, model, modality, hub)
        self._projected = dual and options.layer is None and options.pooling is None
        self._modality, self._layer = modality, options.layer
        tower = model if self._projected or not dual else _tower(model, modality)
        if not sequence:
            self._set_pooling(tower, options, modality)
        weights = commit or weights_digest(model)  # of both towers
        self._set_model(options, tower, modality, normalize=self._projected, weights=weights)
        self._resolve_layer()
        self._set_fingerprint(
            "hf",
            model=options.path if commit else "",
            modality=modality,
            prepared=preprocessing,
            layer=self._layer,
            pooling=None if self._projected else self._pooling,
        )

    # ------------------------------------------------------------------ inputs

    def _load_processor(
        self, transformers: ModuleType, name: str, model: Module, modality: str, hub: dict[str, str]
    ) -> dict[str, object]:
        """Load the processor of images, video frames or audio, and return its settings."""
        loader, own = transformers.AutoFeatureExtractor, {}
        if modality != "audio":
            settings, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name, **hub)
            if (settings.get("image_processor_type") or "").startswith("DINOv3ViT"):
                self._processor: Any = _Dinov3Processor(self._torch, settings)
                return self._processor.settings
            loader, own = transformers.AutoImageProcessor, {"backend": "pil"}
        self._processor = loader.from_pretrained(name, trust_remote_code=False, **own, **hub)
        self.rate = int(getattr(self._processor, "sampling_rate", self.rate))
        self.frames = int(getattr(getattr(model.config, "vision_config", None), "num_frames", self.frames))
        facts = {"frames": self.frames} if modality == "video" else {}
        return {"class": type(self._processor).__name__, **facts, **json.loads(self._processor.to_json_string())}

    def _load_tokenizer(self, library: ModuleType, name: str, model: Module, hub: dict[str, str]) -> dict[str, Any]:
        """Load the tokenizer, and return everything that determines the tokens."""
        tokenizer = library.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **hub)
        if tokenizer.pad_token_id is None:  # as in many language models; any token will do, since padding is masked
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = tokenizer.padding_side if model.config.model_type in _PADDED else "right"
        config = getattr(model.config, "text_config", model.config)
        positions = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
        positions -= 2 if config.model_type in _OFFSET else 0
        self._tokenizer = tokenizer
        self._length = int(min(tokenizer.model_max_length, positions))
        self._padding = "max_length" if model.config.model_type in _PADDED else "longest"
        self._masked = "attention_mask" in tokenizer.model_input_names
        return {
            "tokenizer": tokenizer_digest(tokenizer),
            "padding": [self._padding, tokenizer.padding_side, tokenizer.pad_token_id, self._masked],
            "length": self._length,
        }

    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        if self._modality == "text":
            padded = {"padding": self._padding, "return_attention_mask": True, "return_tensors": "pt"}
            return dict(self._tokenizer(items, truncation=True, max_length=self._length, **padded))
        if self._modality == "image":
            return self._pixels(items)
        # One by one, each with the same random numbers: CLAP's extractor takes a random part of long audio, and marks a
        # random one of a batch of short ones as long.
        state, parts = np.random.get_state(), []  # noqa: NPY002
        for item in items:
            np.random.seed(0)  # noqa: NPY002
            if self._modality == "audio":
                parts.append(self._processor(item[0], sampling_rate=self.rate, return_tensors="pt"))
            else:
                parts.append({key: x.reshape(1, -1, *x.shape[-3:]) for key, x in self._pixels(item).items()})
        np.random.set_state(state)  # noqa: NPY002
        return {key: self._torch.cat([part[key] for part in parts]) for key in parts[0]}

    def _pixels(self, images: list[Image.Image]) -> dict[str, Tensor]:
        # The format is stated, since an image three pixels high would be taken for one with its channels first.
        batch = self._processor(images=images, return_tensors="pt", input_data_format="channels_last")
        return {key: value for key, value in batch.items() if self._torch.is_tensor(value)}

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return the number of tokens of each text that the model processes, after truncation and without padding."""
        prompted = [f"{self._prompt}{text}" for text in texts]
        encoded = self._tokenizer(prompted, truncation=True, max_length=self._length)
        return [len(tokens) for tokens in encoded["input_ids"]]

    # ------------------------------------------------------------------ vectors

    def _set_pooling(self, tower: Module, options: EncoderOptions, modality: str) -> None:
        names = [name.rpartition(".")[2] for name, _ in tower.named_parameters()]
        has_cls = "cls_token" in names or "class_embedding" in names
        if modality == "text":
            has_cls = self._tokenizer.cls_token_id is not None
        extra = int(getattr(tower.config, "num_register_tokens", 0) or 0) + ("distillation_token" in names)
        self._prefix = has_cls + extra if modality == "image" else 0
        self._pooling = options.pooling or ("cls" if has_cls and modality == "image" else "mean")
        if (self._pooling.startswith("cls") and not has_cls) or (self._pooling == "last" and modality == "image"):
            token = "[CLS] token" if self._pooling != "last" else "last token that represents the whole"
            problem = f"Got `pooling={self._pooling!r}` for the {modality}s of {options.name!r}, which have no {token}."
            allowed = "'mean'" if modality == "image" else "'mean' or 'last'"
            raise ParameterError(problem, f"Pass `pooling=…` with {allowed}.")

    def _resolve_layer(self) -> None:
        """Determine the number of hidden states, and the index of the requested layer among them."""
        if self._layer is None:
            return
        layer, self._layer, self.n_layers = self._layer, "all", None
        self._embed([self._sample()])
        count = self._n_states
        if isinstance(layer, str):  # "all"
            self.n_layers = count
        elif -count <= layer < count:
            self._layer = layer % count
        else:
            raise ParameterError(f"Got `layer={layer}` of {self.space.model!r}.", f"Pass 0 to {count - 1}, the last.")

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs.get("attention_mask")
        if mask is not None and not self._masked:
            inputs = {key: value for key, value in inputs.items() if key != "attention_mask"}
        if self._projected:
            features = getattr(self._model, f"get_{self._modality}_features")(**inputs)
            features = getattr(features, "pooler_output", features)
            return features[:, 0] if features.ndim == 3 else features
        out = self._model(**inputs, output_hidden_states=self._layer is not None)
        mask = inputs.get("pixel_attention_mask", mask)
        if self._layer is None:
            return self._pool(out.last_hidden_state, mask)
        if self._layer != "all":
            return self._pool(out.hidden_states[self._layer], mask)
        self._n_states = len(out.hidden_states)
        return self._torch.cat([self._pool(states, mask) for states in out.hidden_states], dim=1)

    def _pool(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Pool hidden states, shape (b, tokens, d); of a feature map, (b, d, height, width), positions are tokens."""
        states = states.float()
        states = states.flatten(2).transpose(1, 2) if states.ndim == 4 else states
        return pool(states, mask, self._pooling, self._prefix)


class _Dinov3Processor:
    """DINOv3's preprocessing, whose own class requires torchvision: rescale, resize, standardize."""

    def __init__(self, torch: ModuleType, config: dict[str, Any]) -> None:
        size = config.get("size") or {"height": 224, "width": 224}
        self._torch = torch
        self.settings = {
            "class": "DINOv3ViT",
            "size": [int(size["height"]), int(size["width"])],
            "scale": float(config.get("rescale_factor", 1 / 255)),
            "mean": [float(x) for x in config.get("image_mean", (0.485, 0.456, 0.406))],
            "std": [float(x) for x in config.get("image_std", (0.229, 0.224, 0.225))],
        }
        resample = config.get("resample", 2)
        disabled = [key for key in ("do_resize", "do_rescale", "do_normalize") if not config.get(key, True)]
        if disabled or config.get("do_center_crop") or resample not in (2, 3):
            crop = config.get("do_center_crop")
            odd = f"resample={resample}, do_center_crop={crop}, switched off: {disabled}"
            problem = f"Got a DINOv3 preprocessor that does not just resize, rescale and standardize ({odd})."
            raise ParameterError(problem, "Load the model through another adapter, timm: for example.")
        self.settings["mode"] = {2: "bilinear", 3: "bicubic"}[resample]

    def __call__(self, images: list[Image.Image], **_: object) -> dict[str, Tensor]:
        torch, settings = self._torch, self.settings
        out = []
        resize = {"size": settings["size"], "mode": settings["mode"], "antialias": True, "align_corners": False}
        for image in images:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() * settings["scale"]
            out.append(torch.nn.functional.interpolate(pixels, **resize))
        mean, std = (torch.tensor(settings[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
        return {"pixel_values": (torch.cat(out) - mean) / std}


def _commit(transformers: ModuleType, name: str, revision: str | None) -> str | None:
    """Return the commit of a branch or tag on the hub, so that all files are of one; None if it is unknown."""
    file = transformers.utils.cached_file(name, "config.json", revision=revision)
    match = re.search(r"[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]", str(file))
    return match[1] if match else None


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Suppress the messages of transformers about unused weights, and its progress bars."""
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
    for name in ("vision_model", "image_model") if modality == "image" else ("text_model",):
        if hasattr(model, name):
            return getattr(model, name)
    problem = f"The {modality} tower of {type(model).__name__} has no known name."
    raise ParameterError(problem, "Leave out `layer=…` and `pooling=…`.")
