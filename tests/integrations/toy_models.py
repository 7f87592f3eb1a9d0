"""Two text models without weights: sums of random vectors of letter trigrams, and the same sums rotated, with noise."""

import os
import threading
import time
import zlib
from functools import cache

import numpy as np

from congruence.embeddings import Space
from congruence.encoders import Encoder

OLD, NEW = 24, 16
TURN = np.linalg.qr(np.random.default_rng(1).normal(size=(OLD, OLD)))[0][:NEW]

ANIMALS = ["cat", "dog", "horse", "owl", "eel", "newt", "crow", "ant", "bee", "frog"]
DEEDS = ["sleeps", "eats", "runs", "sings", "hides", "waits", "swims", "digs", "climbs", "calls"]
PLACES = ["on the mat", "in a tree", "by the river", "under a stone", "at night", "all day", "in the snow"]
PLACES.insert(6, "with its young")
TEXTS = [f"a {animal} {deed} {place}" for animal in ANIMALS for deed in DEEDS for place in PLACES]


@cache
def letters(three: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(three.encode())).normal(size=NEW)


def new_model(texts) -> np.ndarray:
    """Return unit rows of the new model, float32, shape (n, 16)."""
    rows = np.zeros((len(texts), NEW))
    for row, text in zip(rows, texts, strict=True):
        for k in range(len(text)):
            row += letters(text[k : k + 3])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def old_model(texts) -> np.ndarray:
    """Return unit rows of the old model, shape (n, 24)."""
    rows = new_model(texts) @ TURN
    rows += np.random.default_rng(2).normal(scale=0.02, size=(len(texts), OLD))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class Toy(Encoder):
    """The new model as an encoder of the library, loaded as ``toy:new`` if a test registers it."""

    def __init__(self, options: object = None) -> None:
        self.space = Space("toy:new", "1", "text", NEW, True)
        self.fingerprint = "toy"
        self.threads: set[str] = set()

    def count_tokens(self, texts):
        return [len(text.split()) + 2 for text in texts]

    def _embed(self, items):
        self.threads.add(threading.current_thread().name)
        if any("slow" in item for item in items):
            time.sleep(float(os.environ.get("TOY_PAUSE", "0")))
        return new_model(items)
