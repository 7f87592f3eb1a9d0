"""Encoders: frozen models with a common interface, selected by the prefix of their name."""

from __future__ import annotations

import importlib
from typing import Any

from congruence._utils.validation import check_choice
from congruence.encoders._base import POOLINGS, Encoder, EncoderOptions
from congruence.encoders._items import ENCODED, SUFFIXES, Item, item_digest, open_image
from congruence.encoders.tower import TowerEncoder, load_towers
from congruence.errors import ParameterError

__all__ = [
    "ADAPTERS",
    "ENCODED",
    "PAIRS",
    "POOLINGS",
    "SUFFIXES",
    "Encoder",
    "EncoderOptions",
    "Item",
    "TowerEncoder",
    "item_digest",
    "load_encoder",
    "load_towers",
    "open_image",
]

#: Module and class of each adapter, by name prefix. An adapter's library is imported only when it is used.
ADAPTERS = {
    "hf": ("congruence.encoders.hf", "HfEncoder"),
    "open_clip": ("congruence.encoders.open_clip", "OpenClipEncoder"),
    "sentence-transformers": ("congruence.encoders.sentence_transformers", "SentenceTransformersEncoder"),
    "timm": ("congruence.encoders.timm", "TimmEncoder"),
    "onnx": ("congruence.encoders.onnx", "OnnxEncoder"),
    **dict.fromkeys(("openai", "cohere", "voyage", "gemini"), ("congruence.encoders.openai", "OpenAIEncoder")),
}

#: The Canonical paper's model pairs, source and target: section 6 and appendix E. The paper does not say which SigLIP
#: it uses; the base model has the 768 dimensions that its experiments with equal widths need.
PAIRS = {
    "openai-b32-laion-b32": ("open_clip:ViT-B-32/openai", "open_clip:ViT-B-32/laion400m_e31"),
    "openai-l14-siglip": ("open_clip:ViT-L-14/openai", "hf:google/siglip-base-patch16-224"),
    "openai-l14-flava": ("open_clip:ViT-L-14/openai", "hf:facebook/flava-full"),
    "openai-b32-openai-b16": ("open_clip:ViT-B-32/openai", "open_clip:ViT-B-16/openai"),
    "openai-b32-openai-l14": ("open_clip:ViT-B-32/openai", "open_clip:ViT-L-14/openai"),
}


def load_encoder(name: str, modality: str | None = None, **options: Any) -> Encoder:
    """Load a frozen model by name, or one tower of it. No code distributed with a model is run.

    ``name`` is ``open_clip:<arch>/<tag>``, ``hf:<name-or-path>``, ``sentence-transformers:<name-or-path>``,
    ``timm:<name>``, ``onnx:<path>``, or ``openai:``, ``cohere:``, ``voyage:`` or ``gemini:<name>``; for any other model
    see ``load_towers``. ``modality``, one of ``ENCODED``, is optional for a model with one tower. The other options are
    those of ``EncoderOptions``.
    """
    prefix, colon, path = name.partition(":")
    if not colon or prefix not in ADAPTERS or not path:
        known = ", ".join(f"{prefix}:…" for prefix in ADAPTERS)
        problem = f"Got encoder {name!r}; expected one of {known}."
        raise ParameterError(problem, "Pass a name with one of these prefixes.")
    if modality is not None:
        check_choice(modality, ENCODED, "modality")
    module, kind = ADAPTERS[prefix]
    encoder: Encoder = getattr(importlib.import_module(module), kind)(EncoderOptions(name, modality, **options))
    return encoder
