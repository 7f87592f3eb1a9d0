"""Tiny sentence-transformers models with random weights; the library is imported on first use."""

import numpy as np

WORDS = ["[UNK]", "a", "photo", "of", "the", "cat", "dog", "red", "sky"]
TEXTS = ["a photo of the cat", "red sky", "the dog"]


def wide(width: int, *more):
    """Return a static model of the given dimension, followed by the given modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).standard_normal((len(WORDS), width)).astype(np.float32)
    modules = [StaticEmbedding(tokenizer, embedding_weights=weights), *more]
    return SentenceTransformer(modules=modules, device="cpu", prompts={"query": "the "})


def tiny(*more):
    """Return a model of the dimension that the maps of these tests expect."""
    return wide(6, *more)
