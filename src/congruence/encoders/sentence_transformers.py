"""``sentence-transformers:<name-or-path>``: encoders of texts, and of images if the model takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import EncoderOptions, TorchEncoder, loading, tokenizer_digest
from congruence.encoders._items import Item


class SentenceTransformersEncoder(TorchEncoder):
    """A sentence-transformers model, unchanged: its modules pool, project and, if so configured, normalize.

    ``prompt`` is put before each text, or the model's own prompt of this name; otherwise its default prompt, if any.
    """

    def __init__(self, options: EncoderOptions) -> None:
        super().__init__(options, "sentence-transformers")
        library = require("sentence_transformers", extra="sentence-transformers")
        with loading(options):
            model = library.SentenceTransformer(
                options.folder or options.path,
                device="cpu",
                revision=options.revision,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True} if options.safetensors_only else None,
            )
        taken = getattr(model, "modalities", ["text"])  # since sentence-transformers 5.4
        offered = tuple(one for one in ("text", "image") if one in taken)
        modality = options.check(offered, "layer", "pooling", "description")
        modules = [type(module).__name__ for module in model]
        self._set_model(options, model, modality, normalize=modules[-1] == "Normalize")
        prompts = model.prompts or {}
        prompt = prompts.get(model.default_prompt_name) if options.prompt is None else options.prompt
        prompt = prompts.get(prompt, prompt) if modality == "text" else None
        self.space, self._prompt = replace(self.space, prompt=prompt or None), ""  # which the library puts there
        self._set_fingerprint(
            "sentence-transformers",
            modules=modules,
            settings=[module.get_config_dict() for module in model if hasattr(module, "get_config_dict")],
            tokenizer=tokenizer_digest(model.tokenizer),
            length=model.get_max_seq_length(),
            prompt=prompt,
            **({} if modality == "text" else {"images": model[0].processor.image_processor.to_json_string()}),
        )

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return the number of tokens of each text, with the default prompt; None if unknown."""
        if not texts:
            return []
        model, prompt = self._model, self.space.prompt or ""
        # Count in the input of the first module: the tokenizer itself may not be callable (StaticEmbedding), or may be
        # missing.
        prepare = getattr(model, "preprocess", model.tokenize)  # the name before sentence-transformers 6
        features = prepare([prompt + text for text in texts])
        if "attention_mask" in features:
            counts: list[int] = features["attention_mask"].sum(dim=1).tolist()
            return counts
        if "offsets" in features:
            return np.diff(features["offsets"].tolist(), append=len(features["input_ids"])).tolist()
        return None

    def _embed(self, items: list[Item]) -> np.ndarray:
        with self._autocast():
            options = {"batch_size": len(items), "show_progress_bar": False, "device": self.device}
            out = self._model.encode(items, prompt=self.space.prompt or "", convert_to_tensor=True, **options)
        return out.float().cpu().numpy()
