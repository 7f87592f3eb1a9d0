"""``sentence-transformers:<name-or-path>``: sentence encoders with their own pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import EncoderOptions, Item, TorchEncoder, loading, tokenizer_digest


class SentenceTransformersEncoder(TorchEncoder):
    """A sentence-transformers model, unchanged: its modules pool, project and, if so configured, normalize.

    A model's default prompt is prepended, if it has one. Its prompts for queries or documents are not; add them to the
    texts.
    """

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("text",), "layer", "pooling", "description")
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
        modules = [type(module).__name__ for module in model]
        self._set_model(options, model, modality, normalize=modules[-1] == "Normalize")
        prompt = (model.prompts or {}).get(model.default_prompt_name)
        self.space = replace(self.space, prompt=prompt or None)
        self._set_fingerprint(
            "sentence-transformers",
            modules=modules,
            settings=[module.get_config_dict() for module in model if hasattr(module, "get_config_dict")],
            tokenizer=tokenizer_digest(model.tokenizer),
            length=model.get_max_seq_length(),
            prompt=prompt,
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
            out = self._model.encode(
                items, batch_size=len(items), convert_to_tensor=True, show_progress_bar=False, device=self.device
            )
        return out.float().cpu().numpy()
