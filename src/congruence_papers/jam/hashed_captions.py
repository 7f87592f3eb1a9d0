"""Surrogate image embeddings, computed from the words of an image's captions; no image is used."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_positive
from congruence.errors import ParameterError

__all__ = ["caption_features"]

#: Number of hash buckets for words and pairs of words, and the weight of a pair relative to a word.
BUCKETS, PAIR = 8192, 0.7


def caption_features(texts: Sequence[Sequence[str]], dim: int = 768, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return a vector for each image, computed from the words and word pairs of its captions.

    Words and pairs of adjacent words are hashed and counted over all captions of an image, with rare ones weighted more, followed by a random
    projection, a tanh and Gaussian noise. A vector thus encodes the objects, attributes and relations in an image, and the order of adjacent
    words. This is part of the information in a photo, less ambiguous, and limited to what captions mention.

    Parameters
    ----------
    texts : sequence of sequence of str, length n
        The correct captions of each image.
    dim : int, default=768
        Width of the vectors; the default is that of DINOv2 ViT-B.
    noise : float, default=0.5
        Standard deviation of the noise, relative to that of the signal.
    seed : int, default=0
        Random seed of the projection and of the noise.

    Returns
    -------
    ndarray, shape (n, dim), float32

    Raises
    ------
    ParameterError
        If an image has no caption, or ``dim`` or ``noise`` is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> V = caption_features([["a cat on a mat"], ["a mat on a cat"], ["two red cars"]], noise=0.0)
    >>> correlations = np.corrcoef(V)
    >>> bool(1 > correlations[0, 1] > correlations[0, 2])
    True
    """
    check_positive(dim, "dim", integer=True)
    check_positive(noise, "noise", zero=True)
    if not len(texts) or not all(len(own) for own in texts):
        raise ParameterError(
            "Got an image without a caption; expected at least one for each. Add a caption, or leave this image out."
        )
    counts = np.zeros((len(texts), BUCKETS), np.float32)
    for row, own in enumerate(texts):
        for text in own:
            words = re.findall(r"\w+", text.casefold())
            for token in words:
                bucket, sign = _hash(token)
                counts[row, bucket] += sign
            for pair in pairwise(words):
                bucket, sign = _hash(" ".join(pair))
                counts[row, bucket] += sign * PAIR
    rarity = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0)))
    weighted = np.sign(counts) * np.log1p(np.abs(counts)) * np.maximum(rarity, 0.1)
    weighted = normalize_rows(weighted)
    rng = np.random.default_rng([seed, 29])
    signal = np.tanh(weighted.astype(np.float32) @ rng.standard_normal((BUCKETS, dim), np.float32))
    return (signal + noise * signal.std() * rng.standard_normal(signal.shape)).astype(np.float32)


def _hash(token: str) -> tuple[int, int]:
    """Return the hash bucket of a token and the sign it is counted with."""
    # The recorded tables of the JAM paper were measured on these features, so scikit-learn's HashingVectorizer cannot replace them (it uses another
    # hash, and weights a pair like a word), nor can its TfidfTransformer (it adds 1 to every inverse document frequency).
    number = zlib.crc32(token.encode())
    return number % BUCKETS, 1 if number >> 16 & 1 else -1
