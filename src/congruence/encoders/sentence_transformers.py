"""``sentence-transformers:<name-or-path>``: sentence encoders with their own pooling."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import Item, Options, check_modality, fingerprint, loading
from congruence.encoders._torch import TorchEncoder, weights_digest

__all__ = ["SentenceTransformersEncoder"]


class SentenceTransformersEncoder(TorchEncoder):
    """A sentence-transformers model, unchanged: its modules pool, project and, if so configured, normalize.

    A model's default prompt is added, if it has one; those it keeps for queries or documents are not: write them into the
    texts.

    Parameters
    ----------
    options : Options

    Raises
    ------
    MissingExtraError, ParameterError, FileError
        If an optional dependency is not installed; a parameter has an invalid value; or a file cannot be read.
    """

    def __init__(self, options: Options) -> None:
        options.refuse("layer", "pooling", "description")
        modality = check_modality(options, ("text",))
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
        weights = f"sha256:{weights_digest(model)}"
        normalize = modules[-1] == "Normalize" if options.normalize is None else options.normalize
        fast = getattr(model.tokenizer, "backend_tokenizer", None)
        tokens = fast.to_str() if fast is not None else json.dumps(model.tokenizer.get_vocab(), sort_keys=True)
        self._place(model)
        self._describe(options, modality, normalize=normalize, revision=weights[:19])
        self._measure("a text")
        self.fingerprint = fingerprint(
            adapter="sentence-transformers",
            weights=weights,
            modules=modules,
            settings=[module.get_config_dict() for module in model if hasattr(module, "get_config_dict")],
            tokenizer=hashlib.sha256(tokens.encode()).hexdigest(),
            length=model.get_max_seq_length(),
            prompt=(model.prompts or {}).get(model.default_prompt_name),
            normalize=normalize,
            dtype=self.dtype,
        )

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return the number of tokens the model reads of each text, with its default prompt; None if its first module does not report it."""
        if not texts:
            return []
        model = self._model
        prompt = (model.prompts or {}).get(model.default_prompt_name) or ""
        # What the first module is given: its tokenizer alone may be no function (StaticEmbedding), or none at all.
        prepare = getattr(model, "preprocess", model.tokenize)  # by its name before sentence-transformers 6
        read = prepare([prompt + text for text in texts])
        if "attention_mask" in read:
            counts: list[int] = read["attention_mask"].sum(dim=1).tolist()
            return counts
        if "offsets" in read:
            return np.diff(read["offsets"].tolist(), append=len(read["input_ids"])).tolist()
        return None

    def _embed(self, items: list[Item]) -> np.ndarray:
        with self._lowered():
            out = self._model.encode(
                items, batch_size=len(items), convert_to_tensor=True, show_progress_bar=False, device=self.device
            )
        return out.float().cpu().numpy()
