"""Tiny models of sentence-transformers with random weights; the library is imported when one is made, since that takes seconds."""

from __future__ import annotations

import numpy as np

WORDS = ["[UNK]", "a", "photo", "of", "the", "cat", "dog", "red", "sky"]
TEXTS = ["a photo of the cat", "red sky", "the dog"]


def wide(width: int, *more):
    """Return a static model of so many dimensions, with further modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).standard_normal((len(WORDS), width)).astype(np.float32)
    modules = [StaticEmbedding(tokenizer, embedding_weights=weights), *more]
    return SentenceTransformer(modules=modules, device="cpu", prompts={"query": "the "})


def tiny(*more):
    """Return one of the width that the maps of these tests take."""
    return wide(6, *more)
